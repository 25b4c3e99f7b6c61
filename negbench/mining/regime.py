"""The regime card: how well a model ranks the targets of its train queries. What each number means: docs/regimes.md.

Which negatives suit a model depends on the ranks of its targets, on the shape of its score rows, on where the false
negatives are, and on how far it has fitted its training queries. The card gives this in a few numbers, for any
strategy, so that runs and data sets can be compared. It holds only a block of queries against their corpus at a time.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from negbench.metrics.drops import drop_prominence, steepest
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ranks import count, less, window
from negbench.metrics.recall import expected_hits_at_k
from negbench.mining.curves import Rankings, rankings, sample_queries
from negbench.mining.task import MiningTask

MOVES_SCORES = False  # only observes a run: draws from none of its random streams

SAMPLE = 200  # queries sampled for a card, by default
TOP = 0.05  # of the ranking: where a QuRe band counts as near its head
NEAR = 10  # images on either side of the target among which false negatives are counted
CUT = 10  # k of the recalls that are compared

_NORMAL_IQR = 1.3489795003921634  # interquartile range of a normal distribution, in standard deviations


@dataclass(frozen=True)
class Regime:
    """Regime card of a model on a sample of train queries; NaN where a value is unknown or undefined.

    A *row* holds the scores of a query against all images allowed as its negatives (not the target). Ranks count
    ties against the model. Shares are in [0, 1]; a place in the ranking is the share of the allowed images above it: 0
    the highest-scored, 1 the lowest.

    Attributes:
        queries: number of queries sampled.
        images: median number of images ranked, target included.
        target_rank_median: median rank of the targets, from 1.
        target_first: share of the targets that are first.
        tail: how far the top 1 % of a row reaches: (99 % quantile - median) / (interquartile range / 1.349), median
            over the queries; in robust standard deviations, 2.33 for a normal row.
        drop_prominence: steepest drop below the target over the median drop there, median over the queries.
        drop_prominence_second: second steepest drop over the third, median over the queries.
        band_start_median: place of the first image of the band that QuRe's rule (eq. 5-7) would choose, whatever the
            run's strategy; median over the queries that have a band.
        band_start_top: share of these bands that start in the top 5 % of the ranking.
        relevant: images known to be relevant to a query, its target included; mean over the queries for which they are
            known. Only one of them can rank first: `target_first` is at best about 1 / `relevant` if nothing
            distinguishes them.
        false_negatives: share of the allowed images known to be relevant: the false-negative rate of random negatives.
        false_negatives_above: the same for the 10 allowed images right above the target (fewer if it ranks higher),
            over all queries.
        false_negatives_below: the same for the 10 right below it.
        recall_train: expected recall at 10 in a random gallery as small as the smallest one of train and val, so that
            the two compare (`negbench.metrics.recall.expected_hits_at_k`).
        recall_val: the same for the scored split; NaN if it was not ranked.
        fit_gap: `recall_train` - `recall_val`: what was learned for the train queries only.
    """

    queries: int
    images: float
    target_rank_median: float
    target_first: float
    tail: float
    drop_prominence: float
    drop_prominence_second: float
    band_start_median: float
    band_start_top: float
    relevant: float
    false_negatives: float
    false_negatives_above: float
    false_negatives_below: float
    recall_train: float
    recall_val: float
    fit_gap: float

    def summary(self) -> dict[str, float]:
        """Return every field by its name, as float, for logging."""
        return {name: float(value) for name, value in dataclasses.asdict(self).items()}


@torch.no_grad()
def regime(task: MiningTask, val: QueryRanks | None = None, *, sample: int = SAMPLE) -> Regime:
    """Compute the regime card of a task's queries.

    Args:
        task: train queries and their corpora, of any data set.
        val: the same model's ranks on its scored split, for the fit gap; queries without a target do not count.
        sample: most queries to use; chosen with a fixed seed, the same at every refresh of every run.

    Raises:
        NegbenchError: a score is NaN.
    """
    part = task.shard(sample_queries(task, sample))
    blocks = [_measure(part, block) for block in rankings(part)]
    measured = {}
    for name in blocks[0]:
        measured[name] = np.concatenate([block[name].numpy() for block in blocks])
    start = measured["band_start"][~np.isnan(measured["band_start"])]
    rates = {}
    for side in ("", "_above", "_below"):
        near = measured[f"near{side}"].sum()
        rates[f"false_negatives{side}"] = float(measured[f"wrong{side}"].sum() / near) if near else math.nan
    medians = ("images", "tail", "drop_prominence", "drop_prominence_second")
    relevant_counts = measured["relevant"][measured["relevant"] > 0]
    return Regime(
        queries=len(part.queries),
        target_rank_median=_median(measured["rank"]),
        target_first=float((measured["rank"] == 1).mean()),
        band_start_median=_median(start),
        band_start_top=float((start <= TOP).mean()) if len(start) else math.nan,
        relevant=float(relevant_counts.mean()) if len(relevant_counts) else math.nan,
        **{name: _median(measured[name]) for name in medians},
        **rates,
        **_fit(torch.from_numpy(measured["rank"]), torch.from_numpy(measured["images"]), val),
    )


def _measure(task: MiningTask, block: Rankings) -> dict[str, Tensor]:
    """Return name -> values [b] of a block's queries."""
    drop = block.drops
    room = block.length - 1
    largest, second = drop_prominence(drop)
    ends = steepest(drop)
    start = ends.amin(1)  # ranks among the allowed images: the target, above the band, is none of them
    above = less(torch.arange(block.scores.shape[1] - 1), block.reached[:, None] - 1)
    scores = torch.where(above, block.scores[:, :-1], block.scores[:, 1:])  # of the allowed images
    scores = pad(scores, (0, 1), value=-torch.inf)
    target_ranks = {"rank": block.reached, "images": block.length}
    return target_ranks | {
        "drop_prominence": largest,
        "drop_prominence_second": second,
        "band_start": torch.where(start >= 0, start / (room - 1).clamp(min=1), torch.nan),
        "tail": _tail(scores, room),
        **_false_negatives(task, block, scores),
    }


def _tail(rows: Tensor, count: Tensor) -> Tensor:
    """Return [b] `Regime.tail` of the first `count` [b] scores of sorted rows [b, n]."""
    high = _quantile(rows, count, 0.01)
    upper = _quantile(rows, count, 0.25)
    middle = _quantile(rows, count, 0.5)
    lower = _quantile(rows, count, 0.75)
    robust = (upper - lower) / _NORMAL_IQR
    return torch.where(robust > 0, (high - middle) / robust, torch.nan)


def _quantile(rows: Tensor, count: Tensor, share: float) -> Tensor:
    """Return [b] values exceeded by `share` of each descending row's first `count` scores, interpolated linearly."""
    if not rows.shape[1]:
        return torch.full((len(rows),), torch.nan, dtype=torch.float64)
    position = share * (count - 1).clamp(min=0).double()
    low = position.floor().long()
    pair = rows.gather(1, torch.stack([low, position.ceil().long()], dim=1)).double()
    return torch.lerp(pair[:, 0], pair[:, 1], position - low)


def _false_negatives(task: MiningTask, block: Rankings, scores: Tensor) -> dict[str, Tensor]:
    """Count per query [b]: known relevant images; allowed and wrong ones (all, right above, right below the target)."""
    wrong = torch.zeros_like(block.allowed)
    relevant_count = torch.zeros_like(block.length)
    if task.relevant is not None:
        relevant = task.relevant.select(block.rows)
        wrong = relevant.mask(block.local, wrong.shape[1]) & block.allowed
        relevant_count = relevant.lengths
    images = {"": block.length - 1}
    mistakes = {"": count(wrong)}
    position = block.reached - 1  # of the first allowed image that scores less than the target
    for where, start, stop in (("_above", position - NEAR, position), ("_below", position, position + NEAR)):
        images[where] = stop.minimum(block.length - 1) - start.clamp(min=0)
        mistakes[where] = count(wrong & window(block.table, block.allowed, start, stop, scores))
    counts = {"relevant": relevant_count}
    for where, number in images.items():
        counts[f"near{where}"] = torch.where(relevant_count > 0, number, 0)
        counts[f"wrong{where}"] = torch.where(relevant_count > 0, mistakes[where], 0)
    return counts


def _fit(rank: Tensor, images: Tensor, val: QueryRanks | None) -> dict[str, float]:
    """Return the recalls in galleries of one size, and their difference."""
    pairs = {"recall_train": (rank, images)}
    if val is not None:
        ranked = val.target_rank > 0
        if bool(ranked.any()):
            pairs["recall_val"] = (val.target_rank[ranked], val.gallery_size[ranked])
    size = min(int(images.min()) for _, images in pairs.values())
    recalls = {"recall_train": math.nan, "recall_val": math.nan}
    if size > CUT:  # else every recall is 1
        recalls |= {name: float(expected_hits_at_k(*pair, CUT, size).mean()) for name, pair in pairs.items()}
    return recalls | {"fit_gap": recalls["recall_train"] - recalls["recall_val"]}


def _median(values: np.ndarray) -> float:
    """Return the median of the finite values: a ratio to a drop of 0 says nothing."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else math.nan
