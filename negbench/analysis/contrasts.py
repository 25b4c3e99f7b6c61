"""Losses and backbones compared: each one's mean over the strategies that all of them trained."""

from collections.abc import Sequence

from negbench.analysis.verdicts import OVER_ALL, VerdictRow, VerdictTable, alike_but, side_by_side
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
    own = {table.labels[axis]: [part[name] for name in shared] for table, part in zip(tables, parts, strict=True)}
    values = {name: side_by_side(each, sorted(seeds), datasets) for name, each in own.items()}
    facts = {name: {CONTRAST: axis, "strategies": len(shared)} for name in values}
    return VerdictTable({**tables[0].labels, axis: OVER_ALL}, main, {main: values}, facts=facts)


def contrast_text(rows: Sequence[VerdictRow]) -> str:
    """Compare the rows of a contrast with the highest of them: verdicts and intervals."""
    best, *rest = sorted(rows, key=lambda row: -row.mean)
    words = {"worse": "better", "equal": f"equal within {in_points(best.margin)}"}
    parts = list[str]()
    for row in rest:
        points, verdict = signed(row.gap, row.gap_low, row.gap_high, sign=False), words.get(row.standing, "undecided")
        parts.append(f"{points} points above {row.strategy} ({verdict})")
    over = f"averaged over {best.facts['strategies']} strategies" * (best.facts["strategies"] > 1)
    return f"{label_of(best.metric)} {over or 'with the only shared strategy'}: {best.strategy} is {'; '.join(parts)}."
