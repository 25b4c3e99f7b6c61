"""Losses, backbones and temperatures compared: each one's mean over the strategies that all of them trained."""

from collections.abc import Mapping, Sequence

import pandas as pd

from negbench.analysis.frame import config_of, first_run, key_of, shared_value
from negbench.analysis.setting_choice import SettingChoice
from negbench.analysis.temperature import temperature_of
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import OVER_ALL, VerdictTable, batch_alone, concatenate_values, group_over
from negbench.analysis.words import estimate_text, in_points, label_of
from negbench.grid.axis import group_key
from negbench.machine.grouping import group_by
from negbench.scoring.values import Values

CONTRAST = "contrast"  # the fact of a row that names its axis; its `strategy` is a value of that axis
TEMPERATURE = "temperature"  # its value where the rows are temperatures of the batch alone
OF_LOSS = "of_loss"  # the fact that names the loss of a row of temperatures, where several losses have several
_AXES = ("loss", "backbone")


def contrast_tables(tables: Sequence[VerdictTable]) -> list[VerdictTable]:
    """Return tables whose rows are losses, or backbones: means over the shared strategies, with equal weights.

    Strategies that collapsed in any of them are left out; a table without shared strategies and seeds is, too.
    """
    tables_by_axis = []
    for axis in _AXES:
        for members in group_over((axis,), tables):
            table = _contrast(axis, members) if len(members) > 1 else None
            if table is not None:
                tables_by_axis.append(table)
    return tables_by_axis


def _contrast(axis: str, tables: Sequence[VerdictTable]) -> VerdictTable | None:
    """Return the table of an axis's values from tables that differ in it alone; None if they share no strategy."""
    main = tables[0].main_metric
    parts = [table.values.get(table.main_metric, {}) for table in tables]
    collapsed = set()
    for table in tables:
        collapsed |= {name for name, ends in table.ends.items() if ends.collapsed}
    shared = set.intersection(*(set(part) for part in parts)) - collapsed
    strategies = [name for name in parts[0] if name in shared]
    if not strategies:
        return None
    seeds = set(parts[0][strategies[0]].seeds)
    for part in parts:
        for name in strategies:
            seeds &= set(part[name].seeds)
    if not seeds:
        return None
    datasets = [tables[0].labels["dataset"]] * len(strategies)
    values = {}
    for table, part in zip(tables, parts, strict=True):
        values[table.labels[axis]] = concatenate_values([part[name] for name in strategies], sorted(seeds), datasets)
    choices = {}
    for table in tables:
        table_choices = table.choices.get(main, {})
        if all(name in table_choices for name in strategies):
            choices[table.labels[axis]] = tuple(choice for name in strategies for choice in table_choices[name])
    facts = {value: {CONTRAST: axis, "strategies": len(strategies)} for value in values}
    return VerdictTable(
        {**tables[0].labels, axis: OVER_ALL}, main, {main: values}, facts=facts, choices={main: choices}
    )


def loss_of(cells: pd.DataFrame) -> str:
    """Return the name of a group's loss, without its options."""
    return config_of(cells).loss.name


def setting_of(cells: pd.DataFrame) -> tuple[str, str, int | None]:
    """Return a group's temperature ('learned from 0.07', '0.1', 'none'), its rate, and epochs between its refreshes."""
    config = config_of(cells)
    return temperature_of(first_run(cells)), f"{config.train.lr:g}", config.schedule.refresh_every


def temperatures(groups: Sequence[pd.DataFrame], tables: Sequence[VerdictTable]) -> list[VerdictTable]:
    """Return tables whose rows are temperatures: the batch alone, beside which others stand, at each of them.

    A table is of one loss, whose options may differ. Where several losses were compared, the
    fact `OF_LOSS` of its rows names it.
    """
    cells_of = {key_of(cells): cells for cells in groups}
    batches: dict[VerdictTable, pd.DataFrame] = {}  # table -> its cells of the batch alone
    for table in tables:
        cells = cells_of.get(group_key({**table.labels, "strategy": batch_alone(table.plugins)}))
        if cells is not None:
            batches[table] = cells
    temperature_tables = []
    for members in group_over(("loss", "point"), list(batches)):
        tables_by_loss = group_by(members, lambda table: loss_of(batches[table]))
        for loss, loss_tables in tables_by_loss.items():
            facts = {CONTRAST: TEMPERATURE}
            if len(tables_by_loss) > 1:
                facts[OF_LOSS] = loss
            joined_table = _temperature_table({table: batches[table] for table in loss_tables}, facts)
            if joined_table is not None:
                temperature_tables.append(joined_table)
    return temperature_tables


def _temperature_table(batches: Mapping[VerdictTable, pd.DataFrame], facts: Mapping[str, str]) -> VerdictTable | None:
    """Return the table of one loss's temperatures; None if there is one temperature alone.

    Of several tables with one temperature (other rates, or ages of pools), the one with the highest mean stands for it.

    Args:
        batches: table -> its cells of the batch alone.
        facts: of every row.
    """
    values: dict[str, Values] = {}
    choices: dict[str, tuple[SettingChoice, ...]] = {}
    for table, cells in batches.items():
        alone = shared_value(cells, "strategy")
        temperature = setting_of(cells)[0]
        batch_values = table.values[table.main_metric][alone]
        if temperature in values and batch_values.mean <= values[temperature].mean:
            continue
        values[temperature] = batch_values
        choices[temperature] = table.choices.get(table.main_metric, {}).get(alone, ())
    if len(values) < 2:
        return None
    first = next(iter(batches))
    labels = {**first.labels, "loss": OVER_ALL}
    if "point" in labels:
        labels["point"] = OVER_ALL
    choices_with_trials = {temperature: trials for temperature, trials in choices.items() if trials}
    return VerdictTable(
        labels,
        first.main_metric,
        {first.main_metric: values},
        facts=dict.fromkeys(values, facts),
        choices={first.main_metric: choices_with_trials},
    )


def contrast_text(rows: Sequence[Verdict]) -> str:
    """Compare the rows of a contrast with the highest of them: verdicts and intervals."""
    best, *rest = sorted(rows, key=lambda row: -row.mean.value)
    words = {"worse": "better", "equal": f"equal within {in_points(best.margin)}"}
    parts = []
    for row in rest:
        points = estimate_text(row.behind_best, sign=False)
        parts.append(f"{points} points above {row.strategy} ({words.get(row.standing, 'undecided')})")
    count = best.facts["strategies"]
    over = f"averaged over {count} strategies" if count > 1 else "with the only shared strategy"
    return f"{label_of(best.metric)} {over}: {best.strategy} is {'; '.join(parts)}."
