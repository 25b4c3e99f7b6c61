"""Scores of query embeddings against image tokens."""

import torch
from torch import Tensor


def relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Score every query against every image: dot product (QuRe eq. 1), max over the image's tokens (BLIP-2).

    Args:
        queries: [B, D].
        candidates: [N, T, D].

    Returns:
        [B, N].
    """
    count, tokens, width = candidates.shape
    if queries.device.type == "cpu" and not torch.is_grad_enabled():  # one table per token, no maximum over short rows
        best = queries @ candidates[:, 0].T
        for token in candidates.unbind(1)[1:]:
            torch.maximum(best, queries @ token.T, out=best)
        return best
    scores = queries @ candidates.reshape(count * tokens, width).T
    return scores if tokens == 1 else scores.reshape(-1, count, tokens).amax(-1)


def paired_relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Score each query against its own M images: [B, D] and [B, M, T, D] -> [B, M]."""
    return torch.einsum("bd,bmtd->bmt", queries, candidates).amax(-1)
