"""How a strategy's runs ended, beside their mean: which of them collapsed, and which score exactly as others do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from negbench.analysis.frame import shared_value
from negbench.machine.grouping import group_by

LOST = 0.75  # of what the best run gained
FALL = 0.1  # of a metric's range; smaller differences between seeds are scatter


@dataclass(frozen=True)
class Ends:
    """How the runs of a strategy ended.

    Attributes:
        collapsed: seeds of the runs that collapsed.
        identical: strategies of the table whose runs have exactly the same metrics, with the same seeds.
        unmoved: whether every run has exactly the metrics of its untrained model.
    """

    collapsed: frozenset[int] = frozenset()
    identical: tuple[str, ...] = ()
    unmoved: bool = False


def bound(untrained: float, best: float) -> float:
    """Return the value below which a run has collapsed, from its untrained model and the best run of its group.

    Fine-tuning calls a run failed that ends no better than a trivial baseline (Dodge et al., arXiv:2002.06305; Mosbach
    et al., arXiv:2006.04884), and the runs of an unstable method end near one of two levels. The bound is nearer to the
    lower one, `LOST` of the gain and at least `FALL` below the higher one, so that seeds that merely scatter have not
    collapsed: the best of many runs lies above what a run gains on average.
    """
    high = max(untrained, best)
    return high - max((high - untrained) * LOST, FALL)


def ends_of(groups: Sequence[pd.DataFrame], metric: str) -> dict[str, Ends]:
    """Return strategy -> how its runs ended on this metric, for the groups of one table.

    Of a metric that follows from ranks alone the untrained model's value is not stored: the main metric tells.
    """
    groups_by_scores = group_by(groups, _scores)
    ends = {}
    for group in groups:
        name = shared_value(group, "strategy")
        results = [run.result for run in group["stored"]]
        if metric not in results[0]["metrics"]:
            metric = str(results[0]["main_metric"])
        best = max(result["metrics"][metric] for result in results)
        collapsed = []
        for result in results:
            untrained = _untrained_metrics(result).get(metric, 0.0)
            collapsed.append(result["metrics"][metric] < bound(untrained, best))
        identical = {shared_value(other, "strategy") for other in groups_by_scores[_scores(group)]} - {name}
        unmoved = all(result["metrics"] == _untrained_metrics(result) for result in results)
        ends[name] = Ends(frozenset(group["seed"][collapsed]), tuple(sorted(identical)), unmoved)
    return ends


def _untrained_metrics(result: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the metrics of a run's untrained model; empty if they are not stored."""
    return dict(result.get("baselines", {}).get("untrained", {}))


def _scores(group: pd.DataFrame) -> str:
    """Return the seeds and metrics of a group's runs as a text that is equal for equal ones."""
    return repr([(run.config.seed, run.result["metrics"]) for run in group["stored"]])
