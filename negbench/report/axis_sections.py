"""Page sections for a comparison's own axes: dials, systems, default and tuned settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.analysis.decomposition import READ_SIGNS, SIGNS, corners_frame, matrix_frame, parts_frame
from negbench.analysis.dial_points import at_point, points_frame, size_of, unbeaten
from negbench.analysis.findings import Findings
from negbench.analysis.leader import FOLDED
from negbench.analysis.tuned_gain import tuned_frame
from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import label_of
from negbench.grid.dials import Dials, Point
from negbench.report.charts import Chart, Panel, heat, label_ends, line_style, squares, tall_enough
from negbench.report.page import PageSection, Part, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axis_sections(findings: Findings) -> list[PageSection]:
    """Build the sections on dials and systems; none if a comparison has neither."""
    if not findings.rows:
        return []
    return [*(_dials(findings) if findings.dials.axes else ()), *(_systems(findings) if findings.systems else ())]


def _dials(findings: Findings) -> list[PageSection]:
    """Build the sections on the best strategy at each point and on the lines along each dial."""
    charts = dial_charts(findings.dials, findings.main)
    text = "Strategies with overlapping ranks are not separated; intervals are simultaneous over all pairs of a point."
    points = Table("points", "All points", points_frame(findings.dials, findings.main), text)
    best = [chart for chart in charts if chart.key.startswith("best")]
    lines = tuple(chart for chart in charts if chart not in best)
    return [
        PageSection("best", "Best strategy at each point", "", (*best, points)),
        PageSection("lines", "Along the dials", "", lines),
    ]


def _systems(findings: Findings) -> list[PageSection]:
    """Build the sections on the matrix of systems and negatives, and on the parts of each system's gain."""
    parts: list[Part] = [matrix_chart(findings.main)]
    title = f"{label_of(findings.main[0].metric)}, points against the system's own negatives"
    text = f"{READ_SIGNS}; intervals are simultaneous within a column."
    parts.append(Table("matrix", title, matrix_frame(findings.main), text))
    sections = [PageSection("matrix", "Effect of other negatives on each system", "", tuple(parts))]
    if findings.gains:
        text = (
            "Own term: gain of a factor alone over the plain system. Interaction: further gain of factors in "
            "combination. Shapley share: the own term plus an equal part of the interactions. In points; intervals "
            "are simultaneous within a system."
        )
        corners = Table("corners", "Corners between the plain system and each system", corners_frame(findings.gains))
        gains = Table("decomposition", "Gain over the plain system", parts_frame(findings.gains), text)
        sections.append(PageSection("gains", "Parts of each system's gain", "", (gains, corners)))
    return sections


def tuned_section(findings: Findings) -> PageSection | None:
    """Build the section with default and tuned settings side by side; None if nothing was tuned."""
    if not findings.tuned:
        return None
    text = (
        "Every strategy with knobs got the same number of trials on a part of train, with a separate seed; the "
        "reported split was not used. Each side has its own tests against its own baseline; `tuning gains`: tuned "
        "minus default, with intervals that are simultaneous over a table."
    )
    table = Table("tuned", f"{findings.document['tuned']['trials']} trials", tuned_frame(findings.tuned), "", FOLDED)
    return PageSection("tuned", "At equal tuning", text, (table,))


# --- charts ---------------------------------------------------------------------------------------------------------


def dial_charts(dials: Dials, rows: Sequence[VerdictRow]) -> list[Chart]:
    """Draw the best strategy at every point, and the metric along each dial."""
    return [_best(dials, rows), *(_along(dials, rows, i) for i, axis in enumerate(dials.axes) if len(axis.values) > 1)]


def _styles(rows: Sequence[VerdictRow]) -> dict[str, dict[str, Any]]:
    return {name: line_style(index) for index, name in enumerate(sorted({row.strategy for row in rows}))}


def _best(dials: Dials, rows: Sequence[VerdictRow]) -> Chart:
    """Draw two dials as a heat map; further dials as further panels."""
    across, *others = dials.axes
    names, down = dials.names, others[0] if others else None
    styles = _styles(rows)
    panels = []
    for rest in product(*(axis.values for axis in others[1:])):
        title = ", ".join(f"{name}={value}" for name, value in zip(names[2:], rest, strict=True))
        places = [
            [(x, *((y,) if down else ()), *rest) for x in across.values] for y in (down.values if down else (None,))
        ]
        labels = [f"{names[1]} {value}" for value in down.values] if down else [""]
        panels.append(Panel(title, _winners(dials, rows, places, labels, styles), 0.42 * len(places) + 0.1))
    best = {point[0].strategy for place in dials.points if (point := at_point(rows, dials.label(place)))}
    legend = tuple(("s", styles[name]["color"], name) for name in sorted(best))
    text = (
        f"Strategy with the highest {label_of(rows[0].metric)} at each point, and its lead over the next, in points "
        f"({size_of(rows)} per point). Hatched: others share first place with it."
    )
    title = f"Best strategy by {' and '.join(names[:2])}"
    return Chart("best", title, text, tuple(panels), 2, legend)


def _winners(
    dials: Dials,
    rows: Sequence[VerdictRow],
    places: Sequence[Sequence[Point]],
    labels: Sequence[str],
    styles: dict[str, dict[str, Any]],
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for (y, row), x in product(enumerate(places), range(len(places[0]))):
            point = at_point(rows, dials.label(row[x]))
            if not point:
                continue
            shared, color = len(unbeaten(point)) > 1, styles[point[0].strategy]["color"]
            box = ([x - 0.48, x + 0.48], y - 0.46, y + 0.46)
            axes.fill_between(*box, color=color, linewidth=0, alpha=0.35 if shared else 0.85)
            if shared:
                axes.fill_between(*box, facecolor="none", edgecolor=color, hatch="////", linewidth=0)
            text = point[0].strategy + (f"\n+{100 * point[1].behind:.1f}" if len(point) > 1 else "")
            axes.text(x, y, text, ha="center", va="center", color="#16202a", fontsize=7)
        squares(axes, labels, [str(value) for value in dials.axes[0].values])
        axes.set_xlabel(dials.names[0])

    return draw


def _along(dials: Dials, rows: Sequence[VerdictRow], index: int) -> Chart:
    """Draw the metric of every strategy along one dial, a panel for each setting of the others."""
    name = dials.names[index]
    panels = [
        Panel(dials.label(line[0], without=index), _lines(dials, rows, index, line), tall_enough(len(_styles(rows))))
        for line in dials.lines_along(index)
    ]
    text = (
        f"{label_of(rows[0].metric)} (%) along {name}; bars are the intervals of the means ({size_of(rows)} per point)."
    )
    return Chart(f"along-{name}", f"Along {name}", text, tuple(panels), direct=True)


def _lines(dials: Dials, rows: Sequence[VerdictRow], index: int, line: Sequence[Point]) -> Callable[[Axes], None]:
    styles = _styles(rows)

    def draw(axes: Axes) -> None:
        ends = []
        for number, (name, style) in enumerate(styles.items()):
            points = [
                (x, row) for x, p in enumerate(line) for row in at_point(rows, dials.label(p)) if row.strategy == name
            ]
            if points:
                x = [place + 0.06 * (number - len(styles) / 2) for place, _ in points]
                y = [100 * row.mean for _, row in points]
                reach = 100 * np.array([[r.mean - r.low for _, r in points], [r.high - r.mean for _, r in points]])
                axes.errorbar(x, y, yerr=np.maximum(reach, 0), label=name, elinewidth=0.7, **style)
                ends.append((y[-1], name, style["color"]))
        label_ends(axes, ends)
        axes.set_xticks(range(len(line)), [str(point[index]) for point in line])
        axes.set(xlabel=dials.names[index], ylabel=f"{label_of(rows[0].metric)} (%)")

    return draw


def matrix_chart(rows: Sequence[VerdictRow]) -> Chart:
    """Draw strategies x systems: the difference to the system's own negatives."""
    systems = list(dict.fromkeys(row.system for row in rows))
    strategies = sorted({row.strategy for row in rows})
    cells: dict[tuple[int, ...], tuple[float, str]] = {}
    undecided = set[tuple[int, ...]]()
    for row in rows:
        own = row.verdict == "baseline"
        if own or row.compared:
            place = (strategies.index(row.strategy), systems.index(row.system))
            text = "own" if own else f"{100 * row.difference:+.1f} {SIGNS[row.verdict]}"
            cells[place] = (0.0 if own else row.difference, text)
            undecided |= {place} if row.verdict == "undecided" else set()
    text = (
        f"Difference in {label_of(rows[0].metric)} (points) from each system with its own negatives, "
        f"{size_of(rows)}; {READ_SIGNS}; purple is above 0, orange below, grey undecided."
    )
    panel = heat(strategies, systems, cells, undecided)
    return Chart("matrix", "Every system with every strategy's negatives", text, (panel,), 1)
