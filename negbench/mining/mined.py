"""Result of a refresh, and the statistics of pools and draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.metrics.fixed import KINDS
from negbench.metrics.ranks import PoolCounts, at_most, count, descending, masked_scores, tally

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NO_FALLBACK = 0
BELOW_TARGET = 1
ANY_ALLOWED = 2


@dataclass(frozen=True)
class Mined:
    """Result of a refresh, per query, on the CPU. A query's pool is the one drawn from: after the fallback, if any.

    `band_*` are rank percentiles among the images of the corpus that were allowed as negatives: 0 the highest-scored
    one, 1 the lowest.
    """

    negatives: Tensor  # [Q, draws] int64 columns, in the order of the draws
    scores: Tensor  # [Q, draws] float32, their scores when they were mined
    positive: Tensor  # [Q] float32, the target's score
    pool_size: Tensor  # [Q] int64
    band_start: Tensor  # [Q] float32, the pool's highest-scored image
    band_end: Tensor  # [Q] float32, the pool's lowest-scored image
    band_mean: Tensor  # [Q] float32, mean over the pool
    false_negative_rate_pool: Tensor  # [Q] float32, share of the pool known to be relevant; NaN: no ground truth
    false_negative_rate_draws: Tensor  # [Q] float32, the same for the draws
    overlap: Tensor  # [Q] float32, Jaccard index with the previous refresh's pool; NaN: no previous one
    hardness: Tensor  # [Q] float32, mean over the draws of s+ - s-; small or negative is hard
    draw_rank: Tensor  # [Q] int64, rank of the first draw among the allowed images, from 1
    target_rank: Tensor  # [Q] int64, 1 + how many allowed images score at least s+ (ties count against the model)
    fallback: Tensor  # [Q] int8: 0 none, 1 nearest allowed image below the target, 2 any allowed image
    cut_tie: Tensor  # [Q] bool: the pool leaves out an allowed image that scores exactly as one that it holds
    stale: bool  # every pool equals that of the previous refresh, though not all pools hold every allowed image
    copies: int = 0  # queries whose target has the same embedding as another image of the task
    kind_draws: Tensor | None = None  # [Q, SHARES] float32, what was drawn (`kind_shares`); None: no kinds are known
    kind_random: Tensor | None = None  # [Q, SHARES] float32, the same expected of random draws

    def frame(self) -> pd.DataFrame:
        """Return one row per query with every per-query field; `negatives` and `scores` as lists."""
        import pandas as pd

        table = self.table()
        return pd.DataFrame({name: pd.Series(table[name].to_pylist()) for name in table.column_names})

    def table(self) -> pa.Table:
        """Return the frame as an Arrow table: int64 and float64, without a Python object for each number."""
        import pyarrow as pa

        columns: dict[str, pa.Array] = {}
        for field in dataclasses.fields(self):
            tensor = getattr(self, field.name)
            if field.name in ("stale", "copies") or tensor is None:
                continue
            values = tensor.numpy()
            flat = pa.array(values.ravel().astype(np.float64 if values.dtype.kind == "f" else np.int64))
            if values.ndim == 1:
                columns[field.name] = flat
            else:
                starts = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
                columns[field.name] = pa.ListArray.from_arrays(starts, flat)
        return pa.table(columns)

    def summary(self) -> dict[str, float]:
        """Return a flat dictionary: means over the queries that have a value (NaN where none has), and counts."""
        rates = ("false_negative_rate_pool", "false_negative_rate_draws")
        means = ("pool_size", "band_start", "band_mean", "band_end", *rates, "overlap", "hardness")
        return {
            **{name: float(getattr(self, name).double().nanmean()) for name in means},
            "pool_size_median": float(np.median(self.pool_size.numpy())),  # torch.median takes the lower of two
            "draw_rank_median": float(np.median(self.draw_rank.numpy())),
            **mean_shares("draws", self.kind_draws),
            **mean_shares("random", self.kind_random),
            "fallback_below": float((self.fallback == BELOW_TARGET).sum()),
            "fallback_any": float((self.fallback == ANY_ALLOWED).sum()),
            "cut_ties": float(self.cut_tie.sum()),
            "stale": float(self.stale),
            "copies": float(self.copies),
        }


def copies_note(summary: Mapping[str, float], queries: int) -> list[str]:
    """Say how many of the targets have copies, which are right answers under another id; nothing where none has."""
    count = int(summary.get("copies", 0))
    if count == 0:
        return []
    what = f"{count:,} of {queries:,} targets have the same embedding as another image, which may be drawn"
    return [f"{what}: leave such copies out with --set mining.max_target=0.999"]


@dataclass(frozen=True)
class ScoredPart:
    """Part of a block of queries, as much as a strategy sees at once: b queries, scored with their corpus of n images.

    The strategy sees `filtered`, in which only what also passes the filters of `[mining]` is allowed. `view` is
    without these filters: of it are the statistics, and the images to fall back on where the filters leave none. Both
    are one object if there are no filters and no planes.
    """

    rows: Tensor  # [b] int64 queries of the task
    view: ScoreView
    filtered: ScoreView
    allowed_count: Tensor  # [b] int64, how many images are allowed
    relevant: Tensor | None  # [b, n] bool ground truth, for the statistics; in the view for oracles only
    has_truth: Tensor  # [b] bool, False where the ground truth of a query is unknown beyond its target
    kinds: Tensor | None = None  # [b, n] int8 codes of judged negatives


SHARES = ("false", *KINDS, "unrelated")  # what an image can be to a query; unrelated: neither, or not judged
_LARGE = 2**16  # entries from which counting kinds one by one is faster than adding up weights


def kind_shares(kinds: Tensor, relevant: Tensor | None, weights: Tensor) -> Tensor:
    """[b, SHARES] float32: the share of the weights on relevant images, on judged ones by kind, and on all others.

    Args:
        kinds: [b, n] int8 codes: 0 for unrelated images, 1 + the index in `KINDS` for judged ones.
        relevant: [b, n] bool; None: nothing is known to be relevant.
        weights: [b, n] bool or >= 0; a row of zeros gives nan.
    """
    # 0 unrelated, then `KINDS`; here one more code: relevant, whatever the kind
    codes = kinds if relevant is None else kinds.masked_fill(relevant, len(SHARES) - 1)
    if weights.dtype == torch.bool and codes.numel() >= _LARGE:
        upto = torch.stack([count(weights & at_most(codes, code)) for code in range(len(SHARES))], dim=1)
        sums = upto.diff(dim=1, prepend=torch.zeros_like(upto[:, :1]))
        total = upto[:, -1:]
    else:
        total = weights.sum(1, keepdim=True)
        sums = torch.zeros(len(kinds), len(SHARES), dtype=torch.float64, device=kinds.device)
        sums.scatter_add_(1, codes.long(), weights.double())
    in_order = torch.cat([sums[:, -1:], sums[:, 1:-1], sums[:, :1]], dim=1)  # of `SHARES`
    return (in_order.double() / total.double()).float()


def mean_shares(what: str, shares: Tensor | None) -> dict[str, float]:
    """Return `WHAT_KIND` -> mean of [Q, SHARES]; nothing where no kinds are known."""
    if shares is None:
        return {}
    means = shares.double().nanmean(0).tolist()
    return {f"{what}_{name}": mean for name, mean in zip(SHARES, means, strict=True)}


def distinct(negatives: Tensor, per_step: int) -> float:
    """Return the mean number of different images among each query's draws for a step.

    Args:
        negatives: [Q, steps * per_step] columns, in the order of the draws.
        per_step: how many are drawn for a query and step, repeats included.
    """
    drawn = negatives.unflatten(1, (-1, per_step)).sort(dim=2).values
    return 1 + float((drawn.diff(dim=2) != 0).sum(dim=2).double().mean())


class BatchPools(NamedTuple):
    """What a batch strategy chose for a batch, for its statistics: B rows, M columns.

    Attributes:
        scores: [B, M] of the view.
        positive: [B], the targets' scores.
        allowed: [B, M] bool.
        pool: [B, M] bool or float weights >= 0, as the strategy returned it.
        drawn: [B, M] likewise, the weights of what is used of it.
        relevant: [B, M] bool, columns known to be relevant; None: nothing is known.
        kinds: [B, M] int8 codes of judged negatives; None: none are known.
    """

    scores: Tensor
    positive: Tensor
    allowed: Tensor
    pool: Tensor
    drawn: Tensor
    relevant: Tensor | None = None
    kinds: Tensor | None = None


def batch_statistics(batches: Iterable[BatchPools]) -> list[tuple[int, dict[str, float]]]:
    """Return the rows of each batch of a batch strategy, and the statistics of `Mined.summary`.

    These are `pool_size`; `false_negative_rate_pool`, the share of the pool's images that are relevant;
    `false_negative_rate_draws`, their share of the weight used; `hardness`, its weighted mean of s+ - s-: means
    over the rows that hold an image, NaN if none does. `empty`: how many pools hold none. Where kinds are known,
    `draws_KIND` and `random_KIND`, shares of the weight used and of the allowed images.
    """

    def shapes(batch: BatchPools) -> list[tuple[torch.Size, torch.dtype] | None]:
        return [None if part is None else (part.shape, part.dtype) for part in batch]

    rows: list[tuple[int, dict[str, float]]] = []
    for _, alike in groupby(batches, shapes):
        rows += _statistics([*zip(*alike, strict=True)])
    return rows


def _statistics(parts: list[Any]) -> list[tuple[int, dict[str, float]]]:
    """`batch_statistics` of n batches of one shape, from the fields of `BatchPools`; bits as of each alone."""
    stacked: list[Any] = [None if part[0] is None else torch.stack(part) for part in parts]
    scores, positive, allowed, pool, drawn, relevant, kinds = stacked  # [n, B, M]
    weights = drawn.double()
    inside = pool > 0
    size = inside.sum(2)
    total = weights.sum(2)
    of_pool = torch.full_like(total, torch.nan)
    of_draws = torch.full_like(total, torch.nan)
    if relevant is not None:  # nothing is known about a query whose row is all False
        has_truth = relevant.any(2)
        of_pool = of_pool.where(~has_truth, (inside & relevant).sum(2).double() / size)
        of_draws = of_draws.where(~has_truth, (weights * relevant).sum(2) / total)
    rows = {
        "pool_size": size.double().masked_fill(size == 0, torch.nan),
        "false_negative_rate_pool": of_pool,
        "false_negative_rate_draws": of_draws,
        "hardness": (weights * (positive[..., None] - scores).double()).sum(2) / total,
    }
    means = dict[str, list[float]]()
    if kinds is not None:
        both_relevant = None if relevant is None else relevant.flatten(0, 1).repeat(2, 1)
        both_weights = torch.stack([weights, allowed.double()]).flatten(0, 2)
        both = kind_shares(kinds.flatten(0, 1).repeat(2, 1), both_relevant, both_weights)
        draws, random = both.view(2, *size.shape, -1).double().nanmean(2)  # [n, SHARES] each
        for index, name in enumerate(SHARES):
            means[f"draws_{name}"] = draws[:, index].tolist()
        for index, name in enumerate(SHARES):
            means[f"random_{name}"] = random[:, index].tolist()
    means |= zip(rows, torch.stack(list(rows.values())).nanmean(2).tolist(), strict=True)
    means["empty"] = (size == 0).sum(1).double().tolist()
    batches, queries, _ = pool.shape
    statistics = []
    for batch in range(batches):
        statistics.append((queries, {name: values[batch] for name, values in means.items()}))
    return statistics


def statistics_of(part: ScoredPart, pool: Tensor, drawn: Tensor) -> dict[str, Tensor]:
    """Compute the fields of `Mined` that follow from scores, pools [b, n] and draws [b, D] (local columns)."""
    view = part.view
    counts = tally(view.scores, view.allowed, pool, view.target, drawn[:, 0])
    scores = view.scores.gather(1, drawn)
    gap = (view.positive[:, None] - scores).double()
    band_start, band_mean, band_end, cut_tie = _band(part, pool, counts)
    of_pool = torch.full_like(view.positive, torch.nan)
    of_draws = torch.full_like(view.positive, torch.nan)
    if part.relevant is not None:
        false_draws = part.relevant.gather(1, drawn).sum(1)
        of_pool = torch.where(part.has_truth, count(pool & part.relevant) / counts.size, torch.nan)
        of_draws = torch.where(part.has_truth, false_draws / drawn.shape[1], torch.nan)
    return {
        "scores": scores,
        "positive": view.positive,
        "pool_size": counts.size,
        "band_start": band_start,
        "band_mean": band_mean,
        "band_end": band_end,
        "cut_tie": cut_tie,
        "false_negative_rate_pool": of_pool,
        "false_negative_rate_draws": of_draws,
        # cumsum adds in a fixed order; the order in `mean` may depend on the number of rows
        "hardness": (gap.cumsum(1)[:, -1] / drawn.shape[1]).float(),
        "draw_rank": 1 + counts.ahead,
        "target_rank": 1 + counts.reached,
    }


def _band(part: ScoredPart, pool: Tensor, counts: PoolCounts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the rank percentiles of each pool's first, mean and last member, among the allowed, and `cut_tie`."""
    view = part.view
    allowed_count = part.allowed_count
    size = counts.size
    first = counts.first.clone()
    last = counts.last.clone()
    last_rank = (allowed_count - 1).clamp(min=1)
    cut = torch.zeros_like(size, dtype=torch.bool)
    if torch.equal(size, allowed_count):  # the pools hold all allowed images: no need to sort
        end = ((allowed_count - 1) / last_rank).float()
        return torch.zeros_like(end), end / 2, end, cut
    total = size * (first + last) // 2  # correct if every allowed image between the two is in the pool
    holes = last - first + 1 - size  # allowed images that tie with an end of the pool or lie inside it
    rows = (holes > 0).nonzero().squeeze(1)
    if len(rows):
        order = descending(masked_scores(view.scores[rows], view.allowed[rows]))  # the allowed images first
        inside = pool[rows].gather(1, order)
        allowed = view.allowed[rows].gather(1, order)
        scores = view.scores[rows].gather(1, order)
        split = (inside[:, 1:] != inside[:, :-1]) & allowed[:, 1:]
        cut[rows] = (split & (scores[:, 1:] == scores[:, :-1])).any(1)
        rank = allowed.cumsum(1, dtype=torch.int32) - 1
        total[rows] = rank.masked_fill(~inside, 0).sum(1)
        first[rows] = rank.masked_fill(~inside, rank.shape[1]).amin(1).long()
        last[rows] = rank.masked_fill(~inside, -1).amax(1).long()
    return first / last_rank, (total.double() / size / last_rank).float(), last / last_rank, cut
