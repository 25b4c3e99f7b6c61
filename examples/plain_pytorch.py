"""A plain PyTorch loop that mines with negbench: encode, refresh, train with the batch and the negatives, repeat.

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
    strategy: str | None = "shifted-top-k:start=8:stop=16",
    draws: int = 1,
    epochs: int = 10,
    batch: int = 64,
    lr: float = 1e-2,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train `model`, which maps query features [Q, F] to embeddings [Q, D], against fixed image embeddings [N, D].

    The loss is InfoNCE over the other targets of the batch and the query's own mined images; a strategy of None is the
    batch alone. Returns the miner's summary of each refresh: pool size, hardness, overlap with the previous one, ...
    """
    miner = None if strategy is None else negbench.Miner(strategy, draws=draws, seed=seed)
    loss_of = negbench.make_loss("info-nce", tau=0.07)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    summaries = []
    for _ in range(epochs):
        if miner is not None:
            with torch.no_grad():
                mined = miner.refresh(model(queries), images, targets)
            summaries.append(mined.summary())
        for rows in torch.randperm(len(queries), generator=order).split(batch):
            embedded = normalize(model(queries[rows]), dim=1)
            scores = embedded @ normalize(images[targets[rows]], dim=1).T  # [B, B], own targets in the diagonal
            positive = scores.diagonal()
            allowed = targets[rows, None] != targets[rows]  # another query's target, unless it is this one's, too
            if miner is not None:
                negatives = normalize(images[mined.negatives[rows]], dim=2)  # [B, M, D]
                scores = torch.cat([scores, torch.einsum("bd,bmd->bm", embedded, negatives)], dim=1)
                allowed = torch.cat([allowed, torch.ones(negatives.shape[:2], dtype=torch.bool)], dim=1)
            optimiser.zero_grad()
            loss_of(positive, scores, allowed).backward()
            optimiser.step()
    return summaries


@torch.no_grad()
def recall(model: nn.Module, queries: Tensor, images: Tensor, targets: Tensor, k: int = 1) -> float:
    """Share of queries whose target is among the k images with the highest cosine."""
    scores = normalize(model(queries), dim=1) @ normalize(images, dim=1).T
    return float((scores.topk(k).indices == targets[:, None]).any(1).double().mean())


def main() -> dict[str, float]:
    """Learn a rotation of the space, with the batch alone and with mined images; returns recall@1, also untrained."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(300, 16, generator=generator)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=generator)).Q
    targets = torch.randint(300, (600,), generator=generator)
    queries = images[targets] @ turn + 0.3 * torch.randn(600, 16, generator=generator)
    recalls = {}
    for name, strategy in (("the batch alone", None), ("with mined images", "shifted-top-k:start=8:stop=16")):
        model = nn.Linear(16, 16, bias=False)
        nn.init.eye_(model.weight)
        recalls["untrained"] = recall(model, queries, images, targets)
        for refresh, summary in enumerate(train(model, queries, images, targets, strategy=strategy)):
            print(f"refresh {refresh}: pools of {summary['pool_size']:.1f} images, hardness {summary['hardness']:.3f}")
        recalls[name] = recall(model, queries, images, targets)
    print("recall@1:", ", ".join(f"{name} {value:.3f}" for name, value in recalls.items()))
    return recalls


if __name__ == "__main__":
    main()
