"""Agreement with people who chose between two sets of retrieved images, and a scorer's rating of a model's top images.

One row is one judgement: a query, two sets, the set that the participant chose, and a Likert score of each set.
"""

import warnings

import numpy as np
import torch
from torch import Tensor

from negbench.errors import NegbenchError, check_option


def set_scores(scores: Tensor, sets: Tensor) -> Tensor:
    r"""Score of every set: the mean score of its images (QuRe eq. 8, CIRQRS eq. 7).

    .. math:: S_{ia} = \frac{1}{m} \sum_{j \in A_{ia}} s_{ij}

    Args:
        scores: [Q, N] float of any sign, higher is better.
        sets: [Q, sets, m] int64, columns of the images of each set.

    Returns:
        [Q, sets] float64; sets of the same images have the same score to the last bit, whatever their order.

    Raises:
        NegbenchError: a score of one of the sets is not finite.

    Example:
        >>> set_scores(torch.tensor([[1.0, 2.0, -4.0]]), torch.tensor([[[0, 1], [1, 2]]]))
        tensor([[ 1.5000, -1.0000]], dtype=torch.float64)
    """
    ordered = sets.to(scores.device).sort(-1).values  # a float sum depends on its order
    image_scores = scores.gather(1, ordered.flatten(1)).double().reshape(sets.shape)
    bad = ~image_scores.isfinite()
    if bad.any():
        raise NegbenchError(
            f"{int(bad.sum())} scores of the sets are not finite, first in row {int(bad.nonzero()[0, 0])}: a diverged "
            "model cannot be judged"
        )
    return image_scores.mean(-1)


def preference_rate(scores: Tensor, first: Tensor, *, ties: bool = False, among: Tensor | None = None) -> float:
    r"""One-sided preference rate: how often people chose set 1 where the scores put it ahead.

    .. math:: P(1 \succ 2 \mid S_1 > S_2)

    is QuRe eq. 9. With `ties` the condition is :math:`S_1 \ge S_2`, CIRQRS eq. 8. CIRQRS eq. 9 is the strict condition
    `among` the judgements whose sets have equal recall. A random scorer gets the mean of `first`, which need not
    be one half.

    Args:
        scores: [Q, 2] scores of the sets.
        first: [Q] bool, whether set 1 was chosen.
        ties: whether equal scores meet the condition.
        among: [Q] bool, judgements to include; default: all.

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

    Its mean is the symmetric accuracy: one half for a random scorer, however often set 1 was chosen.

    Example:
        >>> agreement(torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), torch.tensor([True, False, True]))
        tensor([1.0000, 0.0000, 0.5000], dtype=torch.float64)
    """
    ahead = (scores[:, 0] - scores[:, 1]).sign().double()
    return (1 + torch.where(first, ahead, -ahead)) / 2


def spearman_test(scores: Tensor, ratings: Tensor) -> tuple[float, float]:
    """Spearman's rank correlation in [-1, 1], ties at their mean rank, and its p; nan where either side is constant.

    Args:
        scores: any shape, any sign, at least three values.
        ratings: the same shape.

    Example:
        >>> [round(value, 6) for value in spearman_test(torch.tensor([-3, -1, 0, 2]), torch.tensor([1, 2, 4, 3]))]
        [0.8, 0.2]
    """
    from scipy.stats import spearmanr

    x = scores.flatten().double().numpy()
    y = ratings.flatten().double().numpy()
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan"), float("nan")
    result = spearmanr(x, y)
    return float(result.statistic), float(result.pvalue)


def normality_p(scores: Tensor) -> float:
    """Return the p of the Shapiro-Wilk test that the scores (any shape) are normal; nan below 3 or if all are equal."""
    from scipy.stats import shapiro

    x = scores.flatten().double().numpy()
    if len(x) < 3 or np.ptp(x) == 0:
        return float("nan")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*N > 5000")  # said in `PreferenceFormat.judge`
        return float(shapiro(x).pvalue)


def cirqrs_at_k(scores: Tensor, k: int) -> Tensor:
    r"""Mean score of each query's first k images.

    .. math:: C_i@k = \frac{1}{k} \sum_{j \in \mathrm{top}_k(i)} s_{ij}

    Args:
        scores: [Q, K] float of any sign, the scorer's, of the first K images of a ranking, best ranked first; NaN after
            the last image of a smaller gallery. Divided by the scorer's temperature they are those of CIRQRS eq. 1.
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
    means = scores[:, :k].double().nanmean(1)
    without = means.isnan().nonzero()
    if len(without):
        raise NegbenchError(f"CIRQRS needs an image for every query: query {int(without[0, 0])} has none")
    return means
