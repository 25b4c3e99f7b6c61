"""Fine-tune an open_clip model, text to image, with the batch and what negbench mines again before every epoch.

model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-32", pretrained="laion2b_s34b_b79k")
tokens = open_clip.get_tokenizer("ViT-B-32")(captions)
finetune(model, tokens, images, targets, strategy="qure", draws=8, epochs=5)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import negbench


def finetune(
    model: nn.Module,
    tokens: Tensor,
    images: Tensor,
    targets: Tensor,
    *,
    strategy: str = "qure",
    draws: int = 4,
    epochs: int = 5,
    batch: int = 32,
    lr: float = 1e-5,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train an open_clip model on captions [Q, length], each of which describes one of the images [N, 3, H, W].

    The loss is InfoNCE over the images of the batch and the caption's own mined ones.

    Args:
        model: open_clip's, or anything with `encode_text`, `encode_image` (both with `normalize`) and `logit_scale`.
        tokens: tokenised captions.
        images: preprocessed pixels.
        targets: [Q] index of each caption's image.
        strategy: a corpus strategy of negbench.
        draws: negatives per caption and epoch.
        epochs, batch, lr, seed: as usual.

    Returns:
        The miner's summary of each refresh.
    """
    miner = negbench.Miner(strategy, draws=draws, seed=seed)
    loss_of = negbench.make_loss("info-nce")
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    summaries = []
    for _ in range(epochs):
        mined = miner.refresh(*embed(model, tokens, images, batch), targets)
        summaries.append(mined.summary())
        model.train()
        for rows in torch.randperm(len(tokens), generator=order).split(batch):
            columns = torch.cat([targets[rows, None], mined.negatives[rows]], dim=1)
            distinct, position = columns.unique(return_inverse=True)  # encode each image once even if drawn twice
            text = model.encode_text(tokens[rows], normalize=True)
            scores = text @ model.encode_image(images[distinct], normalize=True).T
            of_batch = scores[:, position[:, 0]]  # [B, B], those of the captions' own images in the diagonal
            of_mined = scores.gather(1, position[:, 1:])  # [B, M]
            others = targets[rows, None] != targets[rows]  # another caption's image, unless it is this one's, too
            allowed = torch.cat([others, torch.ones_like(of_mined, dtype=torch.bool)], dim=1)
            optimiser.zero_grad()
            negatives = torch.cat([of_batch, of_mined], dim=1)
            loss_of(of_batch.diagonal(), negatives, allowed, temperature=1 / model.logit_scale.exp()).backward()
            optimiser.step()
    return summaries


@torch.no_grad()
def embed(model: nn.Module, tokens: Tensor, images: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """[Q, D] captions and [N, D] images, unit norm."""
    model.eval()
    texts = torch.cat([model.encode_text(part, normalize=True) for part in tokens.split(batch)])
    return texts, torch.cat([model.encode_image(part, normalize=True) for part in images.split(batch)])
