"""What strategies would do on a subject: pools, draws, false negatives, hardness, diversity, fallbacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.audit.subject import AuditOptions, Judge, Subject
from negbench.contracts import ScoreView, Strategy, relevance
from negbench.metrics.similarity import target_similarity
from negbench.mining.mine import MiningTask, batch_statistics, mine

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
        similarity_mean, similarity_q05, similarity_q50, similarity_q95: cosine of the draws to the target in the
            judge's eyes, mean and quantiles over all of them; a batch strategy draws what it uses.
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
    similarity_mean: float
    similarity_q05: float
    similarity_q50: float
    similarity_q95: float
    hardness: float
    diversity: float
    fallback_below: float
    fallback_any: float
    empty: float


def corpus_row(
    subject: Subject, label: str, strategy: Strategy, options: AuditOptions, judge: Judge | None, file: Path
) -> AuditRow:
    """A corpus strategy's row; its packed pools go to `file`."""
    task = subject.task
    mined = mine(
        task,
        strategy,
        refresh=options.refresh,
        draws=options.draws,
        generator=options.generator("draws"),
        pools=file,
    )
    summary = mined.summary()
    judged_pool = judged_draws = math.nan
    if judge is not None:
        judged_pool = _judged_pools(task, np.load(file), judge)
        judged_draws = float(judge.wrong(task.target, mined.negatives).double().mean())
    pairs = torch.arange(len(task.queries))[:, None].expand_as(mined.negatives)
    names = ("pool_size", "pool_size_median", "band_start", "band_mean", "band_end", "hardness")
    rates = ("false_negative_rate_pool", "false_negative_rate_draws", "fallback_below", "fallback_any")
    return AuditRow(
        strategy=label,
        scope="corpus",
        queries=len(task.queries),
        judged_rate_pool=judged_pool,
        judged_rate_draws=judged_draws,
        diversity=float(diversity(subject.images[mined.negatives]).mean()),
        empty=math.nan,
        **_similarity(judge, task.target[pairs.flatten()], mined.negatives.flatten()),
        **{name: summary[name] for name in (*names, *rates)},
    )


def _similarity(judge: Judge | None, targets: Tensor, images: Tensor) -> dict[str, float]:
    """The judge's cosine of each target to each image [P], as fields of a row; NaN without a judge."""
    levels = {"similarity_q05": 0.05, "similarity_q50": 0.5, "similarity_q95": 0.95}
    if judge is None:
        return dict.fromkeys(("similarity_mean", *levels), math.nan)
    found = target_similarity(judge.images[targets], judge.images[images][:, None], list(levels.values()))
    return {"similarity_mean": found.mean, **{name: found.quantiles[level] for name, level in levels.items()}}


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


def pool_rows(bits: NDArray[np.uint8], rows: Tensor, width: int) -> Tensor:
    """[b, width] bool from the packed pools of `mine`."""
    return torch.from_numpy(np.unpackbits(bits[rows.numpy()], axis=1, count=width).astype(bool))


def _judged_pools(task: MiningTask, bits: NDArray[np.uint8], judge: Judge) -> float:
    """Mean over queries of the share of the pool that the judge calls wrong."""
    shares = []
    for rows, columns in blocks_of(task):
        pool = pool_rows(bits, rows, len(columns))
        wrong = judge.wrong(task.target[rows], columns)
        shares.append((pool & wrong).sum(1).double() / pool.sum(1))
    return float(torch.cat(shares).mean())


def batch_row(subject: Subject, label: str, strategy: Strategy, options: AuditOptions, judge: Judge | None) -> AuditRow:
    """The sampled queries in random batches of the run's size; a last one with a single query is left out."""
    task, size = subject.task, int(subject.config.train.batch_size or 2)
    order = torch.randperm(len(task.queries), generator=options.generator("batches"))
    found: list[dict[str, float]] = []
    sizes, spread, pairs = list[Tensor](), list[Tensor](), list[Tensor]()
    judged = ("judged_rate_pool", "judged_rate_draws")
    for rows in order.split(size):
        if len(rows) < 2:
            continue
        view, known = _batch_view(subject, rows, options.refresh, truth=strategy.reads_truth)
        pool = strategy.pool(view).cpu()
        values = batch_statistics(view, pool.to(view.scores.device), known)
        weights = pool.double()
        targets = task.target[rows]
        wrong = None if judge is None else judge.wrong(targets, targets).double()
        values["filled"] = len(rows) - values["empty"]
        found.append(values | {name: _share(wrong, w) for name, w in zip(judged, (weights > 0, weights), strict=True)})
        sizes.append((weights > 0).sum(1))
        pairs.append(targets[(weights > 0).nonzero()])  # [P, 2]
        members = subject.images[targets][None].expand(len(rows), -1, -1)
        spread.append(diversity(members, weights > 0))
    nan = math.nan
    names = ("pool_size", "false_negative_rate_pool", "false_negative_rate_draws", "hardness")
    return AuditRow(
        strategy=label,
        scope="batch",
        queries=sum(len(part) for part in sizes),
        pool_size_median=float(np.median(torch.cat(sizes).numpy())),
        diversity=float(torch.cat(spread).nanmean()),
        empty=sum(values["empty"] for values in found),
        **_similarity(judge, *torch.cat(pairs).unbind(1)),
        **{name: _weighted(found, name) for name in (*names, *judged)},
        **dict.fromkeys(("band_start", "band_mean", "band_end", "fallback_below", "fallback_any"), nan),
    )


def _weighted(batches: Sequence[Mapping[str, float]], name: str) -> float:
    """Mean over the queries of all batches that have a negative; NaN where none has."""
    filled = sum(batch["filled"] for batch in batches)
    return sum(batch[name] * batch["filled"] for batch in batches if batch["filled"]) / filled if filled else math.nan


def _share(wrong: Tensor | None, weights: Tensor) -> float:
    """Mean over the rows that hold anything of the share of the weight [b, b] that is wrong; NaN where unknown."""
    if wrong is None:
        return math.nan
    filled = weights[weights.sum(1) > 0].double()
    return float(((filled * wrong[weights.sum(1) > 0]).sum(1) / filled.sum(1)).mean())


def _batch_view(subject: Subject, rows: Tensor, refresh: int, *, truth: bool) -> tuple[ScoreView, Tensor | None]:
    """The batch's own [B, B] scores of targets as a run sees them, and which are known to be relevant."""
    task, split, queries = subject.task, subject.scene.train, subject.rows[rows]
    device = task.queries.device
    targets = task.target[rows]
    scores = relevance(task.queries[rows.to(device)].float(), task.candidates[targets.to(device)].float())
    known = split.batch_relevant(queries)
    known = None if known is None else known.to(device)
    tokens = {name: value[queries] for name, value in split.tokens.items()}
    allowed = split.batch_allowed("target", queries, tokens, subject.config.mining).to(device)
    own = torch.arange(len(rows), device=device)
    return ScoreView(scores, own, allowed, refresh, known if truth else None), known
