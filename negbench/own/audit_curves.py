"""Score curves of single queries, and where every strategy's pool lies on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from negbench.contracts import relevance
from negbench.files import atomic_write
from negbench.metrics.ranks import descending
from negbench.mining.pool_file import unpacked
from negbench.own.subject import AuditOptions, Subject

if TYPE_CHECKING:
    from negbench.own.audit import Audit

_CURVE_POINTS = 2000  # of one score curve; more ranks than that are thinned out


@dataclass(frozen=True)
class Curve:
    """Scores of one query's corpus in descending order, and where the pools lie; ranks count from 1.

    `ranks` and `scores` are thinned out to at most 2,000 points. `pools`: strategy -> (first rank, last rank, size).
    """

    query: str
    text: str
    target_rank: int
    target_score: float
    relevant_ranks: list[int]
    ranks: list[int]
    scores: list[float]
    pools: dict[str, tuple[int, int, int]]


def curves_of(subject: Subject, pools: Mapping[str, NDArray[np.uint8]], options: AuditOptions) -> list[Curve]:
    """Curves of a few sampled queries, with the packed pools of `mine` by label."""
    task = subject.task
    order = torch.randperm(len(task.queries), generator=options.generator("curves"))
    return [_curve(subject, int(row), pools) for row in order[: options.curves].sort().values]


def _curve(subject: Subject, row: int, pools: Mapping[str, NDArray[np.uint8]]) -> Curve:
    task, device = subject.task, subject.task.queries.device
    columns = task.groups[int(task.group[row])]
    scores = relevance(task.queries[row : row + 1].float(), task.candidates[columns.to(device)].float()).cpu()
    ranked = descending(scores)[0]
    rank = torch.empty_like(ranked)
    rank[ranked] = torch.arange(1, len(ranked) + 1)
    place = {int(column): position for position, column in enumerate(columns.tolist())}
    target = place[int(task.target[row])]
    known = [] if task.relevant is None else [place[c] for c in task.relevant.row(row).tolist() if c in place]
    spans = {}
    for label, bits in pools.items():
        inside = rank[unpacked(bits[row : row + 1], len(columns))[0]]
        spans[label] = (int(inside.min()), int(inside.max()), len(inside))
    shown = torch.linspace(0, len(ranked) - 1, min(len(ranked), _CURVE_POINTS)).round().long().unique()
    query = subject.dataset.queries[int(subject.rows[row])]
    return Curve(
        query=query.id,
        text=query.text,
        target_rank=int(rank[target]),
        target_score=round(float(scores[0, target]), 6),
        relevant_ranks=sorted(int(rank[position]) for position in known if position != target),
        ranks=(shown + 1).tolist(),
        scores=[round(float(value), 6) for value in scores[0, ranked[shown]]],
        pools=spans,
    )


def write_curves(audit: Audit, path: Path) -> Path:
    """Draw the score curves as PNG: one column a query, the pools as bars below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = audit.curves
    figure = Figure(figsize=(1.5 + 4.2 * len(curves), 3.4 + 0.22 * len(audit.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [3.0, 0.4 + 0.22 * len(audit.rows)]
    panels = figure.subplots(2, len(curves), sharex="col", squeeze=False, height_ratios=heights)
    for column, curve in enumerate(curves):
        top, bottom = panels[0][column], panels[1][column]
        top.plot(curve.ranks, curve.scores, color="#1f5fa8", linewidth=1.2)
        top.axvline(curve.target_rank, color="#2e8b57", linewidth=1)
        top.plot([curve.target_rank], [curve.target_score], "o", color="#2e8b57", markersize=5, label="target")
        lookup = np.interp(curve.relevant_ranks, curve.ranks, curve.scores)
        if len(curve.relevant_ranks):
            top.plot(curve.relevant_ranks, lookup, "x", color="#c0392b", markersize=4, label="known relevant")
        text = curve.text if len(curve.text) <= 48 else curve.text[:47] + "…"
        title = f"{curve.query}\n{text}".replace("$", r"\$")  # no mathematics
        top.set(xscale="log", title=title)
        top.title.set_fontsize(8)
        if column == 0:
            top.set_ylabel("score")
            top.legend(frameon=False, fontsize=7)
        for place, (first, last, _) in enumerate(curve.pools.values()):
            bottom.broken_barh([(first, max(last - first, 0.02 * first))], (place - 0.35, 0.7), color="#c05a2e")
        bottom.set(xlabel="rank", yticks=range(len(curve.pools)), yticklabels=list(curve.pools) if column == 0 else [])
        bottom.tick_params(axis="y", labelsize=7)
        bottom.invert_yaxis()
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return path
