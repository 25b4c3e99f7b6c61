"""Recall at k: the share of queries whose target is among the first k."""

from __future__ import annotations

from torch import Tensor

from negbench.errors import NegbenchError, check_option


def hits_at_k(ranks: Tensor, k: int) -> Tensor:
    """[Q] int64 ranks of the targets (1 is best) -> [Q] float, 1 where the rank is at most k; paired tests compare it.

    Raises:
        NegbenchError: there is no query, or one without a target (rank 0).
        OptionError: k below 1.
    """
    check_option("k", k, k >= 1, ">= 1")
    if not len(ranks):
        raise NegbenchError("recall of no queries: the set of queries is empty")
    if int(ranks.min()) < 1:
        raise NegbenchError(f"recall needs a target for every query: {int((ranks < 1).sum())} queries have none")
    return (ranks <= k).float()


def recall_at_k(ranks: Tensor, k: int) -> float:
    r"""Share of the queries whose target ranks among the first k.

    .. math:: R@k = \frac{1}{Q} \sum_i [r_i \le k]

    Args:
        ranks: [Q] int64 ranks of the targets, 1 is best (`negbench.metrics.ranks.target_ranks`).
        k: cut-off, >= 1.

    Returns:
        Value in [0, 1]. Raises as `hits_at_k` does.

    Example:
        >>> import torch
        >>> recall_at_k(torch.tensor([1, 10, 11, 500]), 10)
        0.5
    """
    return float(hits_at_k(ranks, k).double().mean())
