"""Agreement with people who saw two sets of retrieved images, and how relevant a scorer finds what a model ranks first.

One row is one judgement: a query, two sets, the set that the participant chose, and a Likert score of either set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from negbench.errors import NegbenchError, check_option

RESAMPLES = 10_000
_BLOCK = 1000  # resamples held at once


class Correlation(NamedTuple):
    """A rank correlation in [-1, 1] and its two-sided p-value; both nan where either side is constant."""

    value: float
    p_value: float


def set_scores(scores: Tensor, sets: Tensor) -> Tensor:
    r"""Score of every set: the mean score of its images (QuRe eq. 8, CIRQRS eq. 7).

    .. math:: S_{ia} = \frac{1}{m} \sum_{j \in A_{ia}} s_{ij}

    Args:
        scores: [Q, N] float of any sign, higher is better.
        sets: [Q, sets, m] int64, columns of the images of each set.

    Returns:
        [Q, sets] float64; two sets of the same images have the same score to the last bit, in whatever order they name
        them.

    Raises:
        NegbenchError: a score of one of the sets is not finite.

    Example:
        >>> set_scores(torch.tensor([[1.0, 2.0, -4.0]]), torch.tensor([[[0, 1], [1, 2]]]))
        tensor([[ 1.5000, -1.0000]], dtype=torch.float64)
    """
    ordered = sets.to(scores.device).sort(-1).values  # a sum depends on its order
    found = scores.gather(1, ordered.flatten(1)).double().reshape(sets.shape)
    bad = ~found.isfinite()
    if bad.any():
        raise NegbenchError(
            f"{int(bad.sum())} scores of the sets are not finite, first in row {int(bad.nonzero()[0, 0])}: a diverged "
            "model cannot be judged"
        )
    return found.mean(-1)


def preference_rate(scores: Tensor, first: Tensor, *, ties: bool = False, among: Tensor | None = None) -> float:
    r"""One-sided preference rate: how often people chose set 1 where the scores put it ahead.

    .. math:: P(1 \succ 2 \mid S_1 > S_2)

    is QuRe eq. 9. With `ties` the condition is :math:`S_1 \ge S_2`, CIRQRS eq. 8. CIRQRS eq. 9 is the strict condition
    `among` the judgements whose sets have equal recall. A scorer that knows nothing scores the share of `first`, which
    need not be one half.

    Args:
        scores: [Q, 2] scores of the sets.
        first: [Q] bool, whether set 1 was chosen.
        ties: whether equal scores meet the condition.
        among: [Q] bool, judgements to look at; default: all.

    Returns:
        Value in [0, 1]; nan where no judgement meets the condition.

    Example:
        >>> scores = torch.tensor([[0.5, -0.5], [0.25, 0.25], [0.0, 1.0]])
        >>> first = torch.tensor([True, False, False])
        >>> preference_rate(scores, first), preference_rate(scores, first, ties=True)
        (1.0, 0.5)
    """
    met = scores[:, 0] >= scores[:, 1] if ties else scores[:, 0] > scores[:, 1]
    if among is not None:
        met = met & among
    return float(first[met].double().mean())  # the mean of nothing is nan


def agreement(scores: Tensor, first: Tensor) -> Tensor:
    """[Q] float64: 1 where the set with the higher score was chosen, 0 where the other was, 1/2 where scores tie.

    Its mean is the symmetric accuracy: one half for a scorer that knows nothing, however often set 1 was chosen.

    Example:
        >>> agreement(torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), torch.tensor([True, False, True]))
        tensor([1.0000, 0.0000, 0.5000], dtype=torch.float64)
    """
    ahead = (scores[:, 0] - scores[:, 1]).sign().double()
    return (1 + torch.where(first, ahead, -ahead)) / 2


def clustered_interval(values: Tensor, clusters: Tensor, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of `values` when whole clusters are drawn again.

    The judgements of one participant are alike, so that drawing judgements alone would give too narrow an interval.

    Args:
        values: [Q] float.
        clusters: [Q] int64, participant of each judgement, numbered from 0 without a gap.
        resamples: how often the participants are drawn, with replacement, as many as there are; from a fixed seed.

    Returns:
        Low and high end; both nan with fewer than two clusters, whose spread cannot be known.
    """
    cluster = clusters.numpy()
    sums, sizes = np.bincount(cluster, weights=values.double().numpy()), np.bincount(cluster)
    count = len(sizes)
    if count < 2:
        return float("nan"), float("nan")
    generator = np.random.default_rng(0)
    means = []
    for start in range(0, resamples, _BLOCK):
        drawn = generator.integers(count, size=(min(_BLOCK, resamples - start), count))
        means.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def spearman(scores: Tensor, ratings: Tensor) -> Correlation:
    """Spearman's rank correlation, ties at their mean rank, with the p-value of Student's t.

    The p-value takes all values as independent; ratings by one person are not, so that it is too small.

    Args:
        scores: any shape, any sign.
        ratings: the same shape.

    Example:
        >>> round(spearman(torch.tensor([-3.0, -1.0, 0.0, 2.0]), torch.tensor([1, 2, 4, 3])).value, 6)
        0.8
    """
    from scipy.stats import spearmanr

    x, y = scores.flatten().double().numpy(), ratings.flatten().double().numpy()
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(float("nan"), float("nan"))
    found = spearmanr(x, y)
    return Correlation(float(found.statistic), float(found.pvalue))


def simulated_choices(grades: Tensor, generator: torch.Generator) -> Tensor:
    """Choices of a simulated participant, who takes the better of two sets, and tosses a coin where they are equal.

    Args:
        grades: [Q, 2] true worth of both sets (precision at k, say), any sign.
        generator: gives Q uniform numbers.

    Returns:
        [Q] bool, whether set 1 was chosen.
    """
    gap = (grades[:, 0] - grades[:, 1]).double()
    chance = (1 + gap.sign()) / 2
    return torch.rand(len(gap), generator=generator, dtype=torch.float64) < chance


def cirqrs_at_k(scores: Tensor, k: int) -> Tensor:
    r"""Mean score of each query's first k images.

    .. math:: C_i@k = \frac{1}{k} \sum_{j \in \mathrm{top}_k(i)} s_{ij}

    Args:
        scores: [Q, K] float of any sign, the scorer's, of the first K images of a ranking, best ranked first; NaN
            behind the last image of a gallery of fewer. Divided by the scorer's temperature they are CIRQRS eq. 1's.
        k: how many images, 1 to K; all of them where a gallery is smaller.

    Returns:
        [Q] float64 in the unit of the scores.

    Raises:
        OptionError: k below 1.
        NegbenchError: a query without any image.

    Example:
        >>> cirqrs_at_k(torch.tensor([[0.5, -0.5, 0.75], [-0.25, float("nan"), float("nan")]]), 2)
        tensor([ 0.0000, -0.2500], dtype=torch.float64)
    """
    check_option("k", k, k >= 1, ">= 1")
    found = scores[:, :k].double().nanmean(1)
    if found.isnan().any():
        raise NegbenchError(f"CIRQRS of an empty ranking: query {int(found.isnan().nonzero()[0, 0])} has no image")
    return found


def order_agreement(one: Mapping[str, float], other: Mapping[str, float]) -> Correlation:
    """Whether two metrics order the runs of a comparison alike: Spearman's correlation over the runs that both hold.

    CIRQRS sec. 5.4 claims it of CIRQRS@k and the preference rate of four models.

    Args:
        one: run -> value of a metric, larger is better.
        other: run -> value of another.

    Returns:
        The correlation in [-1, 1]; nan with fewer than three runs, or where either metric is the same for all.

    Example:
        >>> order_agreement({"a": -1.0, "b": 0.5, "c": 0.7}, {"c": 0.2, "a": 0.9, "b": 0.4}).value
        -1.0
    """
    runs = [run for run in one if run in other]
    x, y = (torch.tensor([metric[run] for run in runs], dtype=torch.float64) for metric in (one, other))
    return spearman(x, y)
