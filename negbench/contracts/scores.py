"""Scores of query embeddings against image tokens."""

import torch
from torch import Tensor

from negbench.metrics.equal_rows import Copies


def relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Score every query against every image: dot product (QuRe eq. 1), max over the image's tokens (BLIP-2).

    Images with the same tokens have the same scores.

    Args:
        queries: [B, D].
        candidates: [N, T, D].

    Returns:
        [B, N].
    """
    count, tokens, width = candidates.shape
    copies = Copies.of(candidates)
    if queries.device.type == "cpu" and not torch.is_grad_enabled():  # one table per token, no maximum over short rows
        best = queries @ candidates[:, 0].T
        for token in candidates.unbind(1)[1:]:
            torch.maximum(best, queries @ token.T, out=best)
        return copies.level(best)
    scores = queries @ candidates.reshape(count * tokens, width).T
    scores = copies.level(scores.reshape(len(queries), count, tokens))
    return scores.squeeze(-1) if tokens == 1 else scores.amax(-1)


def paired_relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Score each query against its own M images: [B, D] and [B, M, T, D] -> [B, M]."""
    return torch.einsum("bd,bmtd->bmt", queries, candidates).amax(-1)
