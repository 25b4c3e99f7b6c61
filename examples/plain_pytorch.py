"""A plain PyTorch loop that mines with negbench: encode, refresh, train on the negatives, repeat.

Run it: python examples/plain_pytorch.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import negbench


def train(
    model: nn.Module,
    queries: Tensor,
    images: Tensor,
    targets: Tensor,
    *,
    strategy: str = "after-target:k=30",
    draws: int = 4,
    epochs: int = 10,
    batch: int = 64,
    lr: float = 1e-2,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train `model`, which maps query features [Q, F] to embeddings [Q, D], against fixed image embeddings [N, D].

    Returns the miner's summary of each refresh: pool size, hardness, overlap with the previous refresh, ...
    """
    miner = negbench.Miner(strategy, draws=draws, seed=seed)
    loss_of = negbench.make_loss("bradley-terry", tau=0.05)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    order, summaries = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        with torch.no_grad():
            mined = miner.refresh(model(queries), images, targets)
        summaries.append(mined.summary())
        for rows in torch.randperm(len(queries), generator=order).split(batch):
            embedded = normalize(model(queries[rows]), dim=1)
            chosen = normalize(images[torch.cat([targets[rows, None], mined.negatives[rows]], dim=1)], dim=2)
            scores = torch.einsum("bd,bmd->bm", embedded, chosen)
            optimiser.zero_grad()
            loss_of(scores[:, 0], scores[:, 1:]).backward()
            optimiser.step()
    return summaries


@torch.no_grad()
def recall(model: nn.Module, queries: Tensor, images: Tensor, targets: Tensor, k: int = 1) -> float:
    """Share of queries whose target is among the k images with the highest cosine."""
    scores = normalize(model(queries), dim=1) @ normalize(images, dim=1).T
    return float((scores.topk(k).indices == targets[:, None]).any(1).double().mean())


def main() -> tuple[float, float]:
    """Learn a rotation of the space; returns recall@1 before and after."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(300, 16, generator=generator)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    targets = torch.randint(300, (600,), generator=generator)
    queries = images[targets] @ turn + 0.3 * torch.randn(600, 16, generator=generator)
    model = nn.Linear(16, 16, bias=False)
    nn.init.eye_(model.weight)
    before = recall(model, queries, images, targets)
    for refresh, summary in enumerate(train(model, queries, images, targets)):
        print(f"refresh {refresh}: pools of {summary['pool_size']:.1f} images, hardness {summary['hardness']:.3f}")
    after = recall(model, queries, images, targets)
    print(f"recall@1 {before:.3f} -> {after:.3f}")
    return before, after


if __name__ == "__main__":
    main()
