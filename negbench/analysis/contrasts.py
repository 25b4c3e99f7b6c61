"""Losses and backbones compared: each one's mean over the strategies that all of them trained."""

from __future__ import annotations

from collections.abc import Sequence

from negbench.analysis.verdicts import OVER_ALL, TABLE_AXES, VerdictRow, VerdictTable, alike_but, side_by_side
from negbench.analysis.words import in_points, label_of, signed

CONTRAST = "contrast"  # the fact of a row that names its axis; its `strategy` is a value of that axis
_AXES = ("loss", "backbone")


def contrasts(tables: Sequence[VerdictTable]) -> list[VerdictTable]:
    """Return tables whose rows are losses, or backbones: means over the shared strategies, with equal weights.

    Strategies that collapsed in any of them are left out; a table without shared strategies and seeds is, too.
    """
    made = [_contrast(axis, members) for axis in _AXES for members in alike_but((axis,), tables) if len(members) > 1]
    return [table for table in made if table is not None]


def _contrast(axis: str, tables: Sequence[VerdictTable]) -> VerdictTable | None:
    main, parts = tables[0].main, [table.values.get(table.main, {}) for table in tables]
    out = {name for table in tables for name, ends in table.ends.items() if ends.collapsed}
    shared = [name for name in parts[0] if name not in out and all(name in part for part in parts)]
    seeds = set.intersection(*({*part[name].seeds} for part in parts for name in shared)) if shared else set[int]()
    if not seeds:
        return None
    datasets = [tables[0].labels["dataset"]] * len(shared)
    values = {
        table.labels[axis]: side_by_side([part[name] for name in shared], sorted(seeds), datasets)
        for table, part in zip(tables, parts, strict=True)
    }
    facts = {name: {CONTRAST: axis, "strategies": len(shared)} for name in values}
    return VerdictTable({**tables[0].labels, axis: OVER_ALL}, main, {main: values}, facts=facts)


def contrast_text(rows: Sequence[VerdictRow], tables: Sequence[Sequence[VerdictRow]]) -> str:
    """Compare the rows of a contrast with the highest of them: verdicts, intervals, and how many strategies agree.

    Args:
        rows: of one contrast.
        tables: rows of every table of strategies.
    """
    best, *rest = sorted(rows, key=lambda row: -row.mean)
    axis, count = best.facts[CONTRAST], best.facts["strategies"]

    def means(level: str) -> dict[str, float]:
        place = tuple(level if name == axis else getattr(best, name) for name in TABLE_AXES)
        return {row.strategy: row.mean for table in tables for row in table if row.table_key == place}

    parts = []
    for row in rest:
        here, there = means(best.strategy), means(row.strategy)
        shared = {*here} & {*there}
        gap = f"{signed(row.gap, row.gap_low, row.gap_high, sign=False)} points"
        words = {"worse": "beats {} by {}", "equal": f"is equal to {{}} within {in_points(row.margin)}, {{}} higher"}
        text = words.get(row.standing, "is undecided against {}, {} higher").format(row.strategy, gap)
        parts.append(f"{text} (higher with {sum(here[name] > there[name] for name in shared)} of {len(shared)})")
    over = f"averaged over {count} strategies" if count > 1 else "with the only shared strategy"
    return f"{label_of(best.metric)} {over}: {best.strategy} {'; '.join(parts)}."
