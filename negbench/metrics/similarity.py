"""Cosines between embeddings: of queries that share a reference, and of look-alikes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from negbench.errors import check_option
from negbench.metrics.ranks import top_columns


def semantic_separation(queries: Tensor, references: Sequence[Hashable], texts: Sequence[Hashable]) -> float:
    """Mean cosine between composed queries that share their reference and differ in their modification.

    The lower, the better the model tells modifications apart (DQE-CIR sec. 3.2 claims it of its attribute weights).

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
    every, alike = _squares(queries, references), _squares(queries, list(zip(references, texts, strict=True)))
    total, pairs = (a - b for a, b in zip(every, alike, strict=True))  # each pair twice
    return total / pairs if pairs else float("nan")


def look_alikes(images: Tensor, target: Tensor, count: int = 4, excluded: Tensor | None = None) -> Tensor:
    """The subset that a query's target is to be found in: itself and the images that look most like it.

    With four look-alikes, where chance is 20, 40 and 60 % at 1, 2 and 3, the target's rank in it
    (`target_ranks(scores, target, allowed=look_alikes(...))`) is to any data set what the subset rank is to CIRR,
    whose image groups are the reference and five look-alikes.

    Args:
        images: [N, D] unit-norm embeddings of the corpus by a model that does not change over the runs compared.
        target: [B] int64, column of each query's target.
        count: look-alikes beside the target, >= 1.
        excluded: [B] int64, a column that must not be taken (the reference), or -1.

    Returns:
        [B, N] bool, the target among them; of equal cosines the lower column is taken.

    Example:
        >>> look_alikes(torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]]), torch.tensor([0]), 1)
        tensor([[ True,  True, False]])
    """
    check_option("count", count, count >= 1, ">= 1")
    allowed = torch.ones(len(target), len(images), dtype=torch.bool)
    if excluded is not None:
        rows = (excluded >= 0).nonzero()[:, 0]
        allowed[rows, excluded[rows]] = False
    itself = target[:, None]
    nearest = top_columns(images[target] @ images.T, count, allowed.scatter(1, itself, False))
    subset = torch.zeros_like(allowed).scatter(1, itself, True)
    row, place = (nearest >= 0).nonzero(as_tuple=True)
    subset[row, nearest[row, place]] = True
    return subset


def _squares(rows: Tensor, names: Sequence[Hashable]) -> tuple[float, int]:
    """Sum of the dot products of all [Q, D] rows of one name with each other and themselves, and their number."""
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    index = torch.tensor([number[name] for name in names], dtype=torch.int64)
    total = torch.zeros(len(number), rows.shape[1], dtype=torch.float64).index_add_(0, index, rows.double())
    return float(total.square().sum()), int(torch.bincount(index).square().sum())
