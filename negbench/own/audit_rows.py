"""What strategies would do on a subject: pools, draws, false negatives, hardness, diversity, fallbacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.command_options import Audit
from negbench.contracts import ScoreView, Strategy, relevance
from negbench.mining.checked import filtered
from negbench.mining.mine import mine
from negbench.mining.mined import batch_statistics
from negbench.mining.pool_file import PoolFiles, unpacked
from negbench.mining.task import MiningTask
from negbench.own.subject import Judge, Subject, generator_of

_BLOCK = 256  # queries judged at once


@dataclass(frozen=True)
class AuditRow:
    """What one strategy would do; means over queries, NaN where nothing is known or there is no such thing.

    Attributes:
        strategy: its label.
        scope: corpus, or batch: used whole, in simulated batches, its target slot alone.
        queries: that were sampled.
        pool_size, pool_size_median: images in a query's pool, after the fallback.
        band_start, band_mean, band_end: rank percentile of the pool among the allowed images, 0 the highest-scored.
        false_negative_rate_pool: share of the pool that the data set knows to be relevant.
        false_negative_rate_draws: the same of the draws.
        judged_rate_pool, judged_rate_draws: the same by the judge.
        hardness: mean over the draws of s+ - s-; small or negative is hard.
        diversity: 1 - mean cosine between the drawn negatives of a query, all pairs, in the audited model's own
            embeddings (an image's is the normalised mean of its candidate tokens); 0 where all draws look the same.
        fallback_below, fallback_any: queries whose empty pool fell back to the nearest image below the target, or to
            any; batch strategies: `empty` rows of the batches, which then have no negative at all.
    """

    strategy: str
    scope: str
    queries: int
    pool_size: float
    pool_size_median: float
    band_start: float
    band_mean: float
    band_end: float
    false_negative_rate_pool: float
    false_negative_rate_draws: float
    judged_rate_pool: float
    judged_rate_draws: float
    hardness: float
    diversity: float
    fallback_below: float
    fallback_any: float
    empty: float


def corpus_row(
    subject: Subject, label: str, strategy: Strategy, options: Audit, judge: Judge | None, file: Path
) -> AuditRow:
    """A corpus strategy's row; its packed pools go to `file`."""
    task = subject.task
    mined = mine(
        task,
        strategy,
        refresh=options.refresh,
        draws=options.draws,
        generator=generator_of(options, "draws"),
        files=PoolFiles(file),
    )
    summary = mined.summary()
    judged = _judged(task, np.load(file), mined.negatives, judge)
    names = ("pool_size", "pool_size_median", "band_start", "band_mean", "band_end", "hardness")
    rates = ("false_negative_rate_pool", "false_negative_rate_draws", "fallback_below", "fallback_any")
    return AuditRow(
        strategy=label,
        scope="corpus",
        queries=len(task.queries),
        diversity=float(diversity(subject.images[mined.negatives]).mean()),
        empty=math.nan,
        **judged,
        **{name: summary[name] for name in (*names, *rates)},
    )


def diversity(drawn: Tensor, used: Tensor | None = None) -> Tensor:
    """1 - mean cosine over all pairs of a query's negatives.

    Args:
        drawn: [Q, M, D] unit-norm embeddings.
        used: [Q, M] bool, which of them there are; default all.

    Returns:
        [Q] float64; NaN for a query with fewer than two.
    """
    weight = torch.ones(drawn.shape[:2]) if used is None else used
    weight = weight.to(torch.float64)
    count = weight.sum(1)
    total = torch.einsum("qm,qmd->qd", weight, drawn.double())
    norms = (weight * drawn.double().square().sum(-1)).sum(1)
    pairs = (total.square().sum(1) - norms) / (count * (count - 1))
    return torch.where(count > 1, 1 - pairs, torch.nan)


def blocks_of(task: MiningTask) -> Iterator[tuple[Tensor, Tensor]]:
    """([b] rows of the task, [n] columns of their corpus)."""
    for group, columns in enumerate(task.groups):
        for rows in torch.split((task.group == group).nonzero()[:, 0], _BLOCK):
            if len(rows):
                yield rows, columns


def _judged(task: MiningTask, bits: NDArray[np.uint8], drawn: Tensor, judge: Judge | None) -> dict[str, float]:
    """What the judge says of packed pools and draws [Q, D], as fields of a row."""
    if judge is None:
        return dict.fromkeys(("judged_rate_pool", "judged_rate_draws"), math.nan)
    shares, found = [], []
    for rows, columns in blocks_of(task):
        scores, pool = judge.scores(rows, columns), unpacked(bits[rows.numpy()], len(columns))
        shares.append((pool & (scores > judge.threshold)).sum(1).double() / pool.sum(1))
        place = torch.full((len(task.candidates),), -1).index_copy_(0, columns, torch.arange(len(columns)))
        found.append(scores.gather(1, place[drawn[rows]]))
    return {
        "judged_rate_pool": float(torch.cat(shares).mean()),
        "judged_rate_draws": float((torch.cat(found) > judge.threshold).double().mean()),
    }


def batch_row(subject: Subject, label: str, strategy: Strategy, options: Audit, judge: Judge | None) -> AuditRow:
    """The sampled queries in random batches of the run's size; a last one with a single query is left out."""
    task, size = subject.task, int(subject.config.train.batch_size or 2)
    order = torch.randperm(len(task.queries), generator=generator_of(options, "batches"))
    found, filled = list[dict[str, float]](), list[float]()
    sizes, spread = list[Tensor](), list[Tensor]()
    judged: dict[str, list[Tensor]] = {"judged_rate_pool": [], "judged_rate_draws": []}
    for rows in (rows for rows in order.split(size) if len(rows) > 1):
        view, known = _batch_view(subject, rows, options.refresh, strategy)
        pool = strategy.pool(view).cpu()
        weights, targets = pool.double(), task.target[rows]
        found.append(batch_statistics(view, pool.to(view.scores.device), known))
        filled.append(len(rows) - found[-1]["empty"])
        sizes.append((weights > 0).sum(1))
        members = subject.images[targets][None].expand(len(rows), -1, -1)
        spread.append(diversity(members, weights > 0))
        if judge is not None:
            scores = judge.scores(rows, targets)
            for shares, counted in zip(judged.values(), ((weights > 0).double(), weights), strict=True):
                shares.append((counted * (scores > judge.threshold)).sum(1) / counted.sum(1))
    names = ("pool_size", "false_negative_rate_pool", "false_negative_rate_draws", "hardness")
    return AuditRow(
        strategy=label,
        scope="batch",
        queries=sum(len(part) for part in sizes),
        pool_size_median=float(np.median(torch.cat(sizes).numpy())),
        diversity=float(torch.cat(spread).nanmean()),
        empty=sum(values["empty"] for values in found),
        **{name: _weighted([values[name] for values in found], filled) for name in names},
        **{name: float(torch.cat([torch.empty(0), *shares]).nanmean()) for name, shares in judged.items()},
        **dict.fromkeys(("band_start", "band_mean", "band_end", "fallback_below", "fallback_any"), math.nan),
    )


def _weighted(values: Sequence[float], filled: Sequence[float]) -> float:
    """Mean over the queries of all batches that have a negative; NaN where none has."""
    pairs = [(value, weight) for value, weight in zip(values, filled, strict=True) if weight]
    return sum(value * weight for value, weight in pairs) / sum(filled) if pairs else math.nan


def _batch_view(subject: Subject, rows: Tensor, refresh: int, strategy: Strategy) -> tuple[ScoreView, Tensor | None]:
    """The batch's own [B, B] scores of targets as a run sees them, and which are known to be relevant."""
    task, split, queries = subject.task, subject.scene.train, subject.rows[rows]
    device = task.queries.device
    targets = task.target[rows]
    scores = relevance(task.queries[rows.to(device)].float(), task.candidates[targets.to(device)].float())
    known = split.batch_relevant(queries)
    known = None if known is None else known.to(device)
    allowed = split.batch_allowed("target", queries, subject.config.mining).to(device)
    own = torch.arange(len(rows), device=device)
    view = ScoreView(
        scores=scores,
        target=own,
        allowed=allowed,
        refresh=refresh,
        relevant=known if strategy.reads_truth else None,
        temperature=task.temperature,
        dim=task.queries.shape[1],
        planes={name: plane.block(rows, targets) for name, plane in task.planes.items()},
    )
    return filtered(view, task.filters, strategy), known
