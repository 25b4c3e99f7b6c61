"""CIRQRS: how relevant a scorer finds what a model ranks first (CIRQRS eq. 10, table 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from negbench.errors import NegbenchError, check_option
from negbench.metrics.preference import Correlation, spearman


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


def cirqrs_table(values: Mapping[int, Tensor], groups: Sequence[str]) -> dict[str, float]:
    """Table 6 of CIRQRS: means by gallery group, their unweighted mean over the groups, and the mean over the k.

    Args:
        values: k -> [Q] values (`cirqrs_at_k`).
        groups: [Q] gallery group of each query (FashionIQ: the category).

    Returns:
        `GROUP/cirqrs_at_K` and `average/cirqrs_at_K`, or `cirqrs_at_K` where there is one group; likewise `cirqrs`, the
        mean over the k, where there are several.

    Example:
        >>> cirqrs_table({10: torch.tensor([1.0, 1.0, -3.0])}, ["dress", "dress", "shirt"])
        {'dress/cirqrs_at_10': 1.0, 'shirt/cirqrs_at_10': -3.0, 'average/cirqrs_at_10': -1.0}
    """
    names, several = np.array(groups), list(dict.fromkeys(groups))
    parts = {f"{group}/": [names == group] for group in several} | {"average/": [names == group for group in several]}
    table: dict[str, float] = {}
    for part, masks in parts.items() if len(several) > 1 else [("", [slice(None)])]:
        for k, value in values.items():
            means = [float(value.double().numpy()[mask].mean()) for mask in masks]
            table[f"{part}cirqrs_at_{k}"] = sum(means) / len(means)
        if len(values) > 1:
            table[f"{part}cirqrs"] = sum(table[f"{part}cirqrs_at_{k}"] for k in values) / len(values)
    return table


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
