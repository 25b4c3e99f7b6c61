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
from negbench.analysis.frame import config_of, first_run, key_of, known_numbers, labels_of, mean_of, shared_value
from negbench.analysis.learning_curve import add_plateaus
from negbench.analysis.regime_card import last_regime_cards, numbers_of
from negbench.analysis.temperature import temperature_of
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import (
    OVER_ALL,
    beside_batch,
    distinct_of,
    headline_metrics,
    negatives_of,
    round_negatives,
)
from negbench.analysis.words import spread_text
from negbench.grid.axis import AXES, group_key
from negbench.grid.setting import OWN_SETTING
from negbench.machine.grouping import group_by

FOLDED = ("settings", "loss", "backbone", "dataset", "seeds", "lr", "epochs", "negatives")  # no columns if alike


LeaderTable = Mapping[str, pd.DataFrame]  # quality, behaviour, regime (empty if no run has a card), training, cost


def leader_table(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict] = ()) -> LeaderTable:
    """Build the tables of means and standard deviations over each group's seeds, as text.

    All are in one row order: negatives per query and step, then the metric, best first.

    Args:
        groups: of a comparison.
        rows: their verdicts, for the columns that need a test; those without a group ("over all") go to `quality`.
    """
    groups = sort_alike(groups, rows)
    tested = {group_key(vars(row)): row for row in rows if row.main}
    verdicts = [tested.pop(key_of(group), None) for group in groups]
    lines = [line_of(group, row) for group, row in zip(groups, verdicts, strict=True)]
    lines_over_all = [row_line(row) for row in sort_by_negatives(list(tested.values()))]
    metrics: dict[str, None] = {}
    for group, row in zip(groups, verdicts, strict=True):
        metrics |= dict.fromkeys(_headline(group, row))
    quality = [metric_column(name) for name in metrics]
    if len({line["lr"] for line in lines}) > 1:
        quality.append(COLUMNS["lr"])
    if any(line["settings"] == OWN_SETTING for line in lines) and len({line["temperature"] for line in lines}) > 1:
        quality.append(COLUMNS["temperature"])
    quality += [NEGATIVES, COLUMNS["distinct"], COLUMNS["false_negative_rate_draws"]]
    if rows and beside_batch(rows):  # the question is what each adds to the batch, not which is the best of as many
        quality = [*TABLES["against"], *quality, *TABLES["last"]]
    elif rows:
        quality = [*TABLES["leaders"], *quality]
        if any(row.baseline_asked for row in rows):
            quality += TABLES["against"]
        quality += TABLES["last"]
    axes = [*axes_of(groups, rows), "seeds"]
    return {"quality": texts(quality, [*lines_over_all, *lines], axes), **_others(texts, groups, lines, axes)}


def leader_tables(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict] = ()) -> dict[str, LeaderTable]:
    """Build data set (or "over all") -> leader table; along dials, whose points are data sets, one table under ''."""
    if any(shared_value(group, "point") for group in groups):
        return {"": leader_table(groups, rows)}
    names = sorted({shared_value(group, "dataset") for group in groups})
    if any(row.dataset == OVER_ALL for row in rows):
        names.append(OVER_ALL)
    tables = {}
    for name in names:
        on_dataset = [group for group in groups if shared_value(group, "dataset") == name]
        tables[name] = leader_table(on_dataset, [row for row in rows if row.dataset == name])
    return tables


def verdict_frame(rows: Sequence[Verdict]) -> pd.DataFrame:
    """Build the table of all test results on one metric, in the order of the leader table."""
    return texts(TABLES["tests"], [row_line(row) for row in sort_by_negatives(rows)], axes_of((), rows))


def measured_tables(groups: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Build all tables but quality as unrounded numbers under the names of result.json, for CSV files."""
    groups = sort_alike(groups)
    return _others(numbers, groups, [line_of(group) for group in groups], [*axes_of(groups), "seeds"])


def _others(
    write: Callable[..., pd.DataFrame], groups: Sequence[pd.DataFrame], lines: Sequence[Line], axes: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Build all tables but quality with `texts` or `numbers`; the regime table has no column of seeds."""
    regime = []
    for group, line in zip(groups, lines, strict=True):
        card = regime_of(group)
        if card:
            regime.append({**line, **card})
    without_seeds = [axis for axis in axes if axis != "seeds"]
    return {
        "behaviour": write(TABLES["behaviour"], lines, axes),
        "regime": write(TABLES["regime"], regime, without_seeds),
        "training": write(TABLES["training"], add_plateaus(groups, lines), axes),
        "cost": write(TABLES["cost"], lines, axes),
    }


# --- lines -------------------------------------------------------------------------------------------------------


def axes_of(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict] = ()) -> list[str]:
    """Return the axes that a comparison has."""
    used_axes = set()
    for labels in [*(labels_of(group) for group in groups), *(vars(row) for row in rows)]:
        used_axes |= {axis for axis in AXES if labels.get(axis)}
    return [axis for axis in AXES if axis in used_axes]


def _headline(group: pd.DataFrame, row: Verdict | None) -> list[str]:
    """Return the metrics that a table shows for a group, the tested one first."""
    names = headline_metrics(list(first_run(group).result["metrics"]))
    return names if row is None else list(dict.fromkeys([row.metric, *names]))


def line_of(group: pd.DataFrame, row: Verdict | None = None) -> dict[str, object]:
    """Return a group's values by column key: means over seeds, the highest peak memory, its verdict."""
    line: dict[str, object] = {axis: shared_value(group, axis) for axis in AXES}
    for name in ("negatives_seen", "steps", "images_encoded"):
        line[name] = mean_of(group, name)
    for column in group.columns:
        table, _, name = column.partition("/")
        numbers = known_numbers(group, column)
        if not numbers:
            continue
        if table == "behaviour":
            line[name] = mean_of(group, column)
        elif table == "seconds":
            line[f"{name}_seconds"] = sum(numbers) / len(group)
        elif table == "peak_memory_mib":
            line[f"peak_memory_{name}_mib"] = max(numbers)
    config = config_of(group)
    line |= {
        "lr": config.train.lr,
        "temperature": temperature_of(first_run(group)),
        "epochs_trained": config.train.epochs,
    }
    if row is not None:
        line |= row_line(row)
    for name in _headline(group, row):
        values = known_numbers(group, f"metrics/{name}")
        if values:  # a metric that follows from ranks is the verdict's alone
            line[metric_column(name).key] = values
    line |= {"negatives": negatives_text(negatives_of(group)), "distinct": distinct_of(group), "seeds": len(group)}
    return line


def row_line(row: Verdict) -> dict[str, object]:
    """Return a verdict's values by column key; verdicts say where numbers of negatives differ or images are too few."""
    verdict = row.verdict
    standing = row.standing
    if row.against_best is not None:
        standing += row.against_best.after
    if row.against_baseline is not None:
        verdict += row.against_baseline.after
        if round_negatives(row.negatives) != round_negatives(row.baseline_negatives):
            verdict += f" ({negatives_text(row.negatives)} against {negatives_text(row.baseline_negatives)} negatives)"
        verdict += row.marks
    return row.flat() | {
        "standing": standing + row.marks,
        "verdict": verdict,
        "ranks": row.ranks,
        "negatives": negatives_text(row.negatives),
        metric_column(row.metric).key: spread_text(row.mean.value, row.sd),
    }


def regime_of(group: pd.DataFrame) -> dict[str, float]:
    """Average the last refresh's regime card over seeds; empty if no run has one."""
    cards = last_regime_cards(group)
    if not cards:
        return {}
    means = {}
    for column in TABLES["regime"]:
        values = numbers_of(cards, column.key)
        means[column.key] = float(np.mean(values)) if values else math.nan
    return means


# --- order -------------------------------------------------------------------------------------------------------


def negatives_text(value: float) -> str:
    """'1', '62.9', '189'; '-' where it is not known."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def negatives_words(count: str) -> str:
    """'1 negative', '62.9 negatives'; an old run did not record how many."""
    if count == "-":
        return "an unrecorded number of negatives"
    return "1 negative" if count == "1" else f"{count} negatives"


def group_by_negatives(rows: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Group rows by negatives per query and step, as tables print them; the most common number first."""
    blocks = group_by(rows, lambda row: round_negatives(row.negatives))
    blocks_by_text = {}
    for count in sorted(blocks, key=lambda count: (-len(blocks[count]), count)):
        block = blocks[count]
        blocks_by_text[negatives_text(block[0].negatives)] = block
    return blocks_by_text


def sort_by_negatives(rows: Sequence[Verdict]) -> list[Verdict]:
    """Sort rows as tables and figures do: by the axes outside a data set, negatives, and the metric, best first."""
    return sorted(rows, key=lambda row: _rank(vars(row), row.negatives, row.mean.value))


def sort_alike(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict] = ()) -> list[pd.DataFrame]:
    """Sort groups in the same order."""
    means = {group_key(vars(row)): row.mean.value for row in rows if row.main}

    def rank(group: pd.DataFrame) -> tuple[object, ...]:
        mean = means.get(key_of(group), mean_of(group, f"metrics/{shared_value(group, 'main_metric')}"))
        return _rank(labels_of(group), negatives_of(group), mean)

    return sorted(groups, key=rank)


def _rank(labels: Mapping[str, str], negatives: float, mean: float) -> tuple[object, ...]:
    """Return the key by which rows and groups are sorted: outer axes, number of negatives, the mean, best first."""
    outer = []
    for axis in AXES:
        if axis not in ("strategy", "loss", "backbone"):
            value = labels.get(axis, "")
            outer.append(value.zfill(9) if value.isdigit() else value)  # 4 epochs before 25
    return outer, round_negatives(negatives), -mean, group_key(labels)
