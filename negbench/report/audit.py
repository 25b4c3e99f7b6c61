"""The table of an audit, for the terminal."""

from __future__ import annotations

import math

from rich.table import Table

from negbench.audit.audit import Audit
from negbench.audit.rows import AuditRow
from negbench.report.tables import number, percent


def audit_table(found: Audit) -> Table:
    """One row a strategy; columns that hold nothing for any strategy are left out."""
    options = found.options
    known = "by the data set's ground truth" if found.truth else "unknown: nothing beyond the target is known here"
    if found.judge:
        known += f"; judged: {found.judge}"
    queries = max((row.queries for row in found.rows), default=0)
    table = Table(
        title=f"audit: {found.backbone}, {found.model}, on {found.dataset}: {queries:,} queries, {options.draws} draws "
        "each",
        caption=f"false negatives {known}; band: rank percentile of the pool; diversity: 1 - mean cosine of the draws; "
        "fallbacks: queries with an empty pool",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("strategy", no_wrap=True)
    columns = [c for c in _COLUMNS if any(not math.isnan(getattr(row, c[1])) for row in found.rows)]
    for title, _, _, _ in columns:
        table.add_column(title, justify="right")
    for row in found.rows:
        table.add_row(row.strategy, *(_cell(row, *column[1:]) for column in columns))
    return table


# title, field, digits, whether in percent
_COLUMNS = (
    ("pool", "pool_size", 0, False),
    ("band from %", "band_start", 1, True),
    ("band %", "band_mean", 1, True),
    ("band to %", "band_end", 1, True),
    ("FN pool %", "false_negative_rate_pool", 2, True),
    ("FN draws %", "false_negative_rate_draws", 2, True),
    ("judged pool %", "judged_rate_pool", 2, True),
    ("judged draws %", "judged_rate_draws", 2, True),
    ("hardness", "hardness", 3, False),
    ("diversity", "diversity", 3, False),
    ("fallbacks below", "fallback_below", 0, False),
    ("fallbacks any", "fallback_any", 0, False),
    ("empty rows", "empty", 0, False),
)


def _cell(row: AuditRow, field: str, digits: int, in_percent: bool) -> str:
    value = getattr(row, field)
    return percent(value, digits) if in_percent else number(value, digits)
