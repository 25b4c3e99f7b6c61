"""Tables of a comparison: quality with verdicts, behaviour, regime, training, cost.

All but cost depend on the cells and the rules of comparison alone, so the files written from them are the same bytes
however the cells were computed. Cost depends on the machine and has its own table. Strategies with equally many
negatives per query and step are listed together, best first.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from negbench.analysis.columns import COLUMNS, NEGATIVES, TABLES, Line, metric_column, numbers, texts
from negbench.analysis.plateau import with_plateaus
from negbench.analysis.regime_card import last_regime_cards, numbers_of
from negbench.analysis.verdicts import OVER_ALL, VerdictRow, distinct_of, headline_metrics, negatives_of, rounded
from negbench.grid.comparison import AXES, CellGroup, group_key, together

FOLDED = ("settings", "loss", "backbone", "dataset", "seeds", "lr", "epochs", "negatives")  # no columns if alike


LeaderTable = Mapping[str, pd.DataFrame]  # quality, behaviour, regime (empty if no run has a card), training, cost


def leader_table(groups: Sequence[CellGroup], rows: Sequence[VerdictRow] = ()) -> LeaderTable:
    """Build the tables of means and standard deviations over each group's seeds, as text.

    All are in one row order: negatives per query and step, then the metric, best first.

    Args:
        groups: of a comparison.
        rows: their verdicts, for the columns that need a test; those without a group ("over all") go to `quality`.
    """
    groups = ordered(groups, rows)
    tested = {group_key(vars(row)): row for row in rows if row.main}
    verdicts = [tested.pop(group_key(group.labels), None) for group in groups]
    lines = [line_of(group, row) for group, row in zip(groups, verdicts, strict=True)]
    over_all = [row_line(row) for row in by_negatives(list(tested.values()))]
    axes = [*axes_of(groups, rows), "seeds"]
    names = (name for group, row in zip(groups, verdicts, strict=True) for name in _headline(group, row))
    metrics = [metric_column(name) for name in dict.fromkeys(names)]
    rates = [COLUMNS["lr"]] * (len({line["lr"] for line in lines}) > 1)
    quality = [*metrics, *rates, NEGATIVES, COLUMNS["distinct"], COLUMNS["false_negative_rate_draws"]]
    if rows:
        against = TABLES["against"] * any(row.against for row in rows)
        quality = [*TABLES["leaders"], *quality, *against, *TABLES["last"]]
    return {"quality": texts(quality, [*over_all, *lines], axes), **_others(texts, groups, lines, axes)}


def leader_tables(groups: Sequence[CellGroup], rows: Sequence[VerdictRow] = ()) -> dict[str, LeaderTable]:
    """Build data set (or "over all") -> leader table; along dials, whose points are data sets, one table under ''."""
    if any("point" in group.labels for group in groups):
        return {"": leader_table(groups, rows)}
    names = sorted({group.labels["dataset"] for group in groups})
    names += [OVER_ALL] * any(row.dataset == OVER_ALL for row in rows)
    own = {name: [group for group in groups if group.labels["dataset"] == name] for name in names}
    return {name: leader_table(own[name], [row for row in rows if row.dataset == name]) for name in names}


def verdict_frame(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """Build the table of all test results on one metric, in the order of the leader table."""
    return texts(TABLES["tests"], [row_line(row) for row in by_negatives(rows)], axes_of((), rows))


def measured(groups: Sequence[CellGroup]) -> dict[str, pd.DataFrame]:
    """Build all tables but quality as unrounded numbers under the names of result.json, for CSV files."""
    groups = ordered(groups)
    return _others(numbers, groups, [line_of(group) for group in groups], [*axes_of(groups), "seeds"])


def _others(
    write: Callable[..., pd.DataFrame], groups: Sequence[CellGroup], lines: Sequence[Line], axes: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Build all tables but quality with `texts` or `numbers`; the regime table omits the last axis, seeds."""
    cards = [{**line, **card} for line, card in zip(lines, map(regime_of, groups), strict=True) if card]
    given = {"behaviour": lines, "regime": cards, "training": with_plateaus(groups, lines), "cost": lines}
    return {name: write(TABLES[name], own, axes[: -1 if name == "regime" else None]) for name, own in given.items()}


# --- lines -------------------------------------------------------------------------------------------------------


def axes_of(groups: Sequence[CellGroup], rows: Sequence[VerdictRow] = ()) -> list[str]:
    """Return the axes that a comparison has."""
    used = [group.labels for group in groups] + [vars(row) for row in rows]
    return [axis for axis in AXES if any(labels.get(axis) for labels in used)]


def _headline(group: CellGroup, row: VerdictRow | None) -> list[str]:
    """Return the metrics that a table shows for a group, the tested one first."""
    names = headline_metrics(list(group.results[0]["metrics"]))
    return names if row is None else list(dict.fromkeys([row.metric, *names]))


def line_of(group: CellGroup, row: VerdictRow | None = None) -> dict[str, object]:
    """Return a group's values by column key: means over seeds, the highest peak memory, its verdict."""
    results = group.results
    line: dict[str, object] = {**dict.fromkeys(AXES, ""), **group.labels}
    line |= {name: _mean(group.values(name)) for name in ("negatives_seen", "steps", "images_encoded")}
    line |= {name: _mean(group.values("behaviour", name)) for result in results for name in result["behaviour"]}
    stages = dict.fromkeys(name for result in results for name in result["seconds"])
    line |= {f"{name}_seconds": sum(group.values("seconds", name)) / len(results) for name in stages}
    memory = dict.fromkeys(name for result in results for name in result["peak_memory_mib"])
    line |= {f"peak_memory_{name}_mib": max(group.values("peak_memory_mib", name)) for name in memory}
    line |= {"lr": group.configs[0].train.lr, "epochs_trained": group.configs[0].train.epochs}
    line |= {} if row is None else row_line(row)
    line |= {metric_column(name).key: group.values("metrics", name) for name in _headline(group, row)}
    numbers = {"negatives": negatives_text(negatives_of(group)), "distinct": distinct_of(group)}
    return line | {"seeds": len(results), **numbers}


def row_line(row: VerdictRow) -> dict[str, object]:
    """Return a verdict's values by column key; verdicts say where numbers of negatives differ or images are too few."""
    few, words = row.marked_label.removeprefix(row.strategy), row.verdict
    if row.compared and rounded(row.negatives) != rounded(row.baseline_negatives):
        words += f" ({negatives_text(row.negatives)} against {negatives_text(row.baseline_negatives)} negatives)"
    return dict(vars(row)) | {
        "standing": row.standing + few,
        "verdict": words + few * row.compared,
        "ranks": row.ranks,
        "negatives": negatives_text(row.negatives),
        metric_column(row.metric).key: row.mean,
    }


def regime_of(group: CellGroup) -> dict[str, float]:
    """Average the last refresh's regime card over seeds; empty if no run has one."""
    cards = last_regime_cards(group)
    return {column.key: _mean(numbers_of(cards, column.key)) for column in TABLES["regime"] if cards}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


# --- order -------------------------------------------------------------------------------------------------------


def negatives_text(value: float) -> str:
    """'1', '62.9', '189'; '-' where it is not known."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def negatives_words(count: str) -> str:
    """'1 negative', '62.9 negatives'; an old run did not record how many."""
    if count == "-":
        return "an unrecorded number of negatives"
    return f"{count} negative{'s' * (count != '1')}"


def equally_many(rows: Sequence[VerdictRow]) -> dict[str, list[VerdictRow]]:
    """Group rows by negatives per query and step, as tables print them; the most common number first."""
    blocks = together(rows, lambda row: rounded(row.negatives))
    usual = sorted(blocks.items(), key=lambda item: (-len(item[1]), item[0]))
    return {negatives_text(block[0].negatives): block for _, block in usual}


def by_negatives(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    """Sort rows as tables and figures do: by the axes outside a data set, negatives, and the metric, best first."""
    return sorted(rows, key=lambda row: _rank(vars(row), row.negatives, row.mean))


def ordered(groups: Sequence[CellGroup], rows: Sequence[VerdictRow] = ()) -> list[CellGroup]:
    """Sort groups in the same order."""
    means = {group_key(vars(row)): row.mean for row in rows if row.main}

    def rank(group: CellGroup) -> tuple[object, ...]:
        own = _mean(group.values("metrics", group.results[0]["main_metric"]))
        return _rank(group.labels, negatives_of(group), means.get(group_key(group.labels), own))

    return sorted(groups, key=rank)


def _rank(labels: Mapping[str, str], negatives: float, mean: float) -> tuple[object, ...]:
    outer = [labels.get(axis, "") for axis in AXES if axis not in ("strategy", "loss", "backbone")]
    outer = [value.zfill(9) if value.isdigit() else value for value in outer]  # 4 epochs before 25
    return outer, rounded(negatives), -mean, group_key(labels)
