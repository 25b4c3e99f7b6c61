"""Mean average precision at k, for queries with several relevant images."""

import torch
from torch import Tensor

from negbench.errors import NegbenchError, check_option
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import sorted_rows


def average_precision_at_k(relevant_ranks: Ragged, k: int) -> Tensor:
    r"""Average precision of every query, cut at k.

    .. math:: AP@k_i = \frac{1}{\min(|R_i|, k)} \sum_{r \in R_i,\, r \le k} \frac{|\{r' \in R_i : r' \le r\}|}{r}

    where R_i holds the ranks of the query's relevant images (Baldrati et al., Zero-Shot Composed Image Retrieval with
    Textual Inversion, ICCV 2023, CIRCO's metric).

    Args:
        relevant_ranks: Q rows of distinct ranks, 1 is best (`negbench.metrics.ranks.relevant_ranks`).
        k: cut-off, >= 1.

    Returns:
        [Q] float64 in [0, 1].

    Raises:
        NegbenchError: there is no query, or one without any relevant image.
        OptionError: k below 1.

    Example:
        >>> average_precision_at_k(Ragged.of([[1, 4], [2]]), 3)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    check_option("k", k, k >= 1, ">= 1")
    lengths = relevant_ranks.lengths
    if not len(lengths):
        raise NegbenchError("average precision needs at least one query, got none")
    none = int((lengths < 1).sum())
    if none:
        raise NegbenchError(f"average precision needs a relevant image for every query: {none} have none")
    ranks = sorted_rows(relevant_ranks)
    row = torch.arange(len(ranks)).repeat_interleave(lengths)
    hits = torch.arange(len(row)) - ranks.offsets[row] + 1
    precision = torch.where(ranks.values <= k, hits.double() / ranks.values, 0.0)
    total = torch.zeros(len(ranks), dtype=torch.float64).index_add_(0, row, precision)
    return total / lengths.clamp(max=k)


def trapezoid_average_precision(positions: Ragged) -> Tensor:
    r"""Average precision by the trapezoidal rule, as the code of i-CIR computes it (Psomas et al., NeurIPS 2025).

    .. math:: AP_i = \frac{1}{2 (n_i + 10^{-5})} \sum_{j=0}^{n_i - 1} \left(\frac{j}{p_j} + \frac{j+1}{p_j + 1}\right)

    over the positions p of the right images, from 0 and ascending; j / p is 1 at the first position.

    Args:
        positions: Q rows of distinct positions.

    Returns:
        [Q] float64, at most n / (n + 1e-5); 0 for a query without a right image.
    """
    position = sorted_rows(positions).values.double()
    row = torch.arange(len(positions)).repeat_interleave(positions.lengths)
    before = (torch.arange(len(position)) - positions.offsets[row]).double()
    heights = torch.where(position > 0, before / position.clamp(min=1), 1.0) + (before + 1) / (position + 1)
    sums = torch.zeros(len(positions), dtype=torch.float64).index_add_(0, row, heights)
    return sums / (2 * (positions.lengths.double() + 1e-5))
