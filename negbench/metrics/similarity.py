"""Cosines between queries that share a reference."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


def semantic_separation(queries: Tensor, references: Sequence[Hashable], texts: Sequence[Hashable]) -> float:
    """Mean cosine between composed queries that share their reference and differ in their modification.

    Lower means that the model separates modifications better (DQE-CIR sec. 3.2 claims so for its attribute weights).

    Args:
        queries: [Q, D] unit-norm embeddings.
        references: Q names of the reference images.
        texts: Q modifications.

    Returns:
        Mean over all such pairs, in [-1, 1]; nan where there is none.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> semantic_separation(rows, ["a", "a", "b"], ["red", "blue", "red"])
        0.0
    """
    every = _squares(queries, references)
    alike = _squares(queries, list(zip(references, texts, strict=True)))
    total, pairs = (a - b for a, b in zip(every, alike, strict=True))  # each pair twice
    return total / pairs if pairs else float("nan")


def _squares(rows: Tensor, names: Sequence[Hashable]) -> tuple[float, int]:
    """Sum the dot products of all pairs of [Q, D] rows with the same name, self-pairs included; also count them."""
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    index = torch.tensor([number[name] for name in names], dtype=torch.int64)
    total = torch.zeros(len(number), rows.shape[1], dtype=torch.float64).index_add_(0, index, rows.double())
    return float(total.square().sum()), int(torch.bincount(index).square().sum())
