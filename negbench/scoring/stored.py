"""Scores with their source, and scoring without a model: ready-made rankings, and stored per-query values of runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from negbench.data.scene import load_split
from negbench.datasets.dataset import Dataset
from negbench.datasets.preferences import PreferenceFormat
from negbench.errors import DataError, OptionError
from negbench.metrics.changes import recall_by_change
from negbench.metrics.query_ranks import QueryRanks
from negbench.scoring.rankings import doubts, highest_ranks, ranks_of_rankings, read_rankings
from negbench.settings.config import PluginConfig
from negbench.settings.layers import merge_layers

if TYPE_CHECKING:
    import pandas as pd

PERCENT = "%"
Layers = Sequence[Mapping[str, Any]]  # of a configuration; only its sections dataset and compute are used


@dataclass(frozen=True, eq=False)
class Scores:
    """Metrics of one model, or of stored ranks.

    Attributes:
        title: what was scored on what.
        metrics: name -> value; `GROUP/NAME` where a data set has groups.
        queries: one row per query.
        main: name of the main metric.
        unit: of the metrics: PERCENT for shares that print in percent, "" for plain numbers.
        remarks: one line each.
        partial: whether images are missing, so that these numbers are not the benchmark's.
        unknown: metrics that rankings too short for them leave open.
    """

    title: str
    metrics: dict[str, float]
    queries: pd.DataFrame
    main: str
    unit: str = PERCENT
    remarks: tuple[str, ...] = ()
    partial: bool = False
    unknown: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return all fields except the per-query values, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "queries"}


def benchmark_scores(dataset: Dataset, ranks: QueryRanks, what: str, remarks: tuple[str, ...] = ()) -> Scores:
    """Compute the data set's own metrics from ranks; `what` names their source."""
    return _scores(dataset, what, _measure(dataset, ranks), ranks.to_frame(), PERCENT, remarks)


def _measure(dataset: Dataset, ranks: QueryRanks) -> dict[str, float]:
    """Compute the data set's metrics, those of mistakes, and the recall by kind of change."""
    texts = {query.id: query.text for query in dataset.queries}
    by_change = recall_by_change(ranks, [texts[query] for query in ranks.query])
    return dataset.summarise(ranks) | dataset.summarise_mistakes(ranks) | by_change


def choice_agreement(dataset: PreferenceFormat, sets: Tensor, what: str, remarks: tuple[str, ...] = ()) -> Scores:
    """Measure the agreement of [Q, 2] set scores with people's choices."""
    return _scores(dataset, what, dataset.judge(sets), dataset.table(sets), "", remarks)


def _scores(
    dataset: Dataset, what: str, metrics: dict[str, float], queries: pd.DataFrame, unit: str, remarks: tuple[str, ...]
) -> Scores:
    title = f"{what} on {dataset.full_name}"
    main = dataset.card.main
    return Scores(title, metrics, queries, main, unit, (*dataset.remarks, *remarks), dataset.partial)


def check_sections(layers: Layers, names: tuple[str, ...]) -> None:
    """Raise OptionError if the layers set other sections than these."""
    for section in itertools.chain(*layers):
        if section not in (*names, "plugins"):  # files that `--plugin` has registered
            raise OptionError(f"--set {section}...: only {', '.join(names)} can be set when scoring again")


def score_file(path: Path, layers: Layers, split: str) -> Scores:
    """Compute the benchmark's metrics from a file of rankings.

    Args:
        path: as for `read_rankings`.
        layers: set the section `dataset`.
        split: its name.

    Raises:
        NegbenchError: a file that cannot be read or does not fit the data set, closed labels, a wrong option.
    """
    dataset = load_named_dataset(layers, split, f"--ranks {path}")
    dataset.require_labels()
    rankings = read_rankings(path)
    worst = ranks_of_rankings(dataset, rankings)
    best = highest_ranks(dataset, rankings)
    lowest = _measure(dataset, worst)
    highest = _measure(dataset, best)
    unknown = tuple(name for name, value in lowest.items() if value != highest[name] and not math.isnan(value))
    scores = benchmark_scores(dataset, worst, str(path), tuple(doubts(dataset, rankings)))
    if not unknown:
        return scores
    exact = (worst.target_rank == best.target_rank).numpy()
    names = ", ".join(dict.fromkeys(name.rpartition("/")[2] for name in unknown))
    remark = f"{path} omits what {names} would need: unknown, and left out; {(~exact).sum():,} targets are not listed"
    return replace(
        scores,
        metrics={name: value for name, value in lowest.items() if name not in unknown},
        queries=scores.queries.assign(target_rank_is_exact=exact),
        remarks=(*scores.remarks, remark),
        unknown=unknown,
    )


def load_named_dataset(layers: Layers, split: str, flag: str) -> Dataset:
    """Load a split without images. Raises OptionError, which names the flag, if the layers name no data set."""
    check_sections(layers, ("dataset",))
    section = merge_layers(layers).get("dataset", {})
    if "name" not in section:
        raise OptionError(f"{flag}: name its data set with --dataset")
    return load_split(PluginConfig(**section), split, images=False)


def preferences_of(dataset: Dataset) -> PreferenceFormat:
    """Return the data set if it holds people's choices, else raise DataError."""
    if not isinstance(dataset, PreferenceFormat):
        raise DataError(f"{dataset.card.name} has no preferences between sets: use hp-fashioniq")
    return dataset
