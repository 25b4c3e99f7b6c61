"""Format numbers and names for tables, figures and sentences."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.errors import printable
from negbench.metrics.names import short
from negbench.metrics.part_name import whole_name

if TYPE_CHECKING:
    import pandas as pd

    from negbench.analysis.verdict_record import Estimate


def label_of(metric: str) -> str:
    """Shorten a metric's name for tables and plots: 'average/recall_at_10' -> 'average R@10'."""
    return short(metric)


def percent(value: Any, digits: int = 1) -> str:
    """0.123 -> '12.3'; '-' where there is no value."""
    return number(None if value is None else 100 * value, digits)


def number(value: Any, digits: int = 0) -> str:
    """1234.5 -> '1,234'; '-' where there is no value."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def plain(value: Any) -> str:
    """Any value of a result in at most four digits; '-' where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_text(values: Mapping[str, Any]) -> str:
    """{'strategy.alpha': 0.13, 'strategy.beta': 0.26} -> 'alpha=0.13, beta=0.26'."""
    return ", ".join(f"{key.split('.')[-1]}={plain(value)}" for key, value in values.items())


def spread(values: Sequence[float]) -> str:
    """'12.34 ± 0.56' in percent: mean and standard deviation over seeds (n - 1), or the mean alone for one seed."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return spread_text(float(np.mean(values)), deviation)


def spread_text(mean: float, deviation: float) -> str:
    """'12.34 ± 0.56' in percent, or the mean alone where the deviation is NaN, as it is for one seed."""
    text = percent(mean, 2)
    return text if math.isnan(deviation) else f"{text} ± {percent(deviation, 2)}"


def bracket(low: float, high: float) -> str:
    """'[12.30, 13.40]' in percent."""
    return f"[{100 * low + 0.0:.2f}, {100 * high + 0.0:.2f}]"  # + 0.0: no '-0.00' of an exact zero


def estimate_text(estimate: "Estimate | None", *, sign: bool = True) -> str:
    """'+1.20 [0.10, 2.30]' in points or percent, the plus only with `sign`; '-' where there is no estimate.

    One that an earlier look decided ends with ' (after 3 seeds)'.
    """
    if estimate is None:
        return "-"
    return with_interval(estimate.value, estimate.low, estimate.high, sign=sign) + estimate.after


def interval_text(estimate: "Estimate") -> str:
    """'[12.30, 13.40]' in percent."""
    return bracket(estimate.low, estimate.high)


def with_interval(value: float, low: float, high: float, *, sign: bool = True) -> str:
    """'+1.20 [0.10, 2.30]' in points or percent, the plus only with `sign`; '-' where there is no value."""
    if math.isnan(value):
        return "-"
    number = f"{100 * value:+.2f}" if sign else f"{100 * value:.2f}"
    return f"{number} {bracket(low, high)}"


def span(values: Iterable[Any], text: Callable[[Any], str] = percent) -> str:
    """'7.0 to 8.2' in percent, from the lowest to the highest value; '7.0' where both ends print alike."""
    ordered = sorted(values)
    lowest = text(ordered[0])
    highest = text(ordered[-1])
    return lowest if lowest == highest else f"{lowest} to {highest}"


def in_points(value: float) -> str:
    """0.01 -> '1 point', 0.005 -> '0.5 points'."""
    return "1 point" if value == 0.01 else f"{100 * value:g} points"


def p_text(value: float) -> str:
    """'0.012', or '<0.001'; '-' where there is no value."""
    if math.isnan(value):
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def join_names(names: Sequence[str], most: int = 6) -> str:
    """'a, b and c'; beyond `most` names, only their number."""
    if len(names) > most:
        return f"{len(names)} strategies"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def first_names(names: Sequence[str], most: int, more: str = "more") -> str:
    """'a, b, c, d and 3 more': the first `most` names, and how many others there are."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} {more}" if len(names) > most else text


def plural(count: float, word: str) -> str:
    """The word for so many: 'seed' for 1, else 'seeds'."""
    return word if count == 1 else f"{word}s"


def seeds_text(counts: Iterable[int]) -> str:
    """'3 seeds', '1 seed', or '2 to 5 seeds' where the counts differ."""
    text = span(counts, str)
    return f"{text} seed" if text == "1" else f"{text} seeds"


def capitalize(text: str) -> str:
    """The text with its first letter in upper case; the others stay as they are."""
    return text[:1].upper() + text[1:]


def shorten_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name without the parts of a generated world that all names of the same kind share.

    'vectors@twins1-500x300-a1' and 'vectors@twins3-500x300-b2' -> 'vectors@twins1' and 'vectors@twins3'; names that
    would be alike keep all parts.
    """
    unique_names = list(dict.fromkeys(names))
    worlds = [whole_name(name)[0] for name in unique_names]
    short_names = {}
    for name in unique_names:
        world, missing = whole_name(name)
        short_names[name] = _shorten(world, worlds) + missing
    if len({*short_names.values()}) < len(unique_names):
        return {name: name for name in unique_names}
    return short_names


def _shorten(name: str, names: Iterable[str]) -> str:
    """Return a name without the parts of its world that all worlds of this kind share, and without the last part."""
    base, _, world = name.partition("@")
    if not world:
        return name
    parts_of_worlds = []
    for other in names:
        other_base, _, other_world = other.partition("@")
        if other_base == base:
            parts_of_worlds.append(other_world.split("-"))
    parts = world.split("-")
    differing = []
    for index, part in enumerate(parts[:-1]):
        if any(len(other) <= index or other[index] != part for other in parts_of_worlds):
            differing.append(part)
    return f"{base}@{'-'.join(differing or parts[:1])}"


def markdown(frame: "pd.DataFrame") -> str:
    """GitHub table; a `|` inside a cell, HTML and links are escaped."""
    rows: list[Any] = [frame.columns, ["---" for _ in frame.columns], *frame.itertuples(index=False)]
    lines = ""
    for row in rows:
        cells = [escape_markup(str(value)).replace("|", r"\|") for value in row]
        lines += f"| {' | '.join(cells)} |\n"
    return lines


_NUMBERS = re.compile(r"[-+]?(?:[\d.,]+(?:e[-+]?\d+)?|inf)(?:[ ±%\[\]\d.,-]|inf)*")


def csv_text(frame: "pd.DataFrame") -> str:
    """Return a table as CSV in which no cell is a formula: a text that a spreadsheet would compute begins with '."""
    cells = frame.map(_no_formula)
    return str(cells.rename(columns=lambda name: _no_formula(str(name))).to_csv(index=False))


def _no_formula(value: Any) -> Any:
    """Return a cell, behind an apostrophe if a spreadsheet would compute it."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    harmless = text[:1] not in ("=", "@", "+", "-") or text == "-" or _NUMBERS.fullmatch(text)
    return text if harmless else f"'{text}"


def escape_markup(text: str) -> str:
    """Return a text as one line of Markdown without HTML and links; "<0.001" and intervals stay as they are."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", printable(text)).replace("](", r"]\(")
