"""Recall at k: the share of queries whose target is among the first k."""

import torch
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
        raise NegbenchError("recall needs at least one query, got none")
    if int(ranks.min()) < 1:
        raise NegbenchError(f"recall needs a target for every query: {int((ranks < 1).sum())} queries have none")
    return (ranks <= k).float()


def expected_hits_at_k(ranks: Tensor, gallery_size: Tensor, k: int, size: int) -> Tensor:
    r"""Probability that a target is among the first k of a random gallery, so that unequal galleries compare.

    Of the n - 1 other images, of which r - 1 stand before the target, size - 1 are kept at random:

    .. math:: P(H \le k - 1), \quad H \sim \mathrm{Hypergeometric}(n - 1,\ r - 1,\ \mathrm{size} - 1)

    Args:
        ranks: [Q] int64 ranks r of the targets, 1 is best.
        gallery_size: [Q] int64, candidates n of each query, >= size.
        k: cut-off, >= 1.
        size: images of the random gallery, the target included, >= 1.

    Returns:
        [Q] float64 in [0, 1]; `hits_at_k` where size is n.

    Example:
        >>> expected_hits_at_k(torch.tensor([2, 2]), torch.tensor([3, 2]), 1, 2)
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    check_option("k", k, k >= 1, ">= 1")
    staying = torch.arange(min(k, size), dtype=torch.float64)  # how many images before the target stay
    ahead = (ranks - 1)[:, None].double()
    behind = (gallery_size - ranks)[:, None].double()
    log_ways = _log_choose(ahead, staying) + _log_choose(behind, size - 1 - staying)
    log_all_ways = _log_choose(ahead + behind, size - 1.0)
    return (log_ways - log_all_ways).exp().sum(1)


def _log_choose(total: Tensor, part: Tensor | float) -> Tensor:
    """Return the logarithm of the binomial coefficient; -inf where there is no way to choose so many."""
    part = torch.as_tensor(part, dtype=torch.float64)
    log_ways = torch.lgamma(total + 1) - torch.lgamma(part + 1) - torch.lgamma((total - part).clamp(min=0) + 1)
    return torch.where(part <= total, log_ways, -torch.inf)
