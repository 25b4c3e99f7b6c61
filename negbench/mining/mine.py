"""Streams blocks of queries against their corpora through a strategy: pools, draws, fallbacks, statistics.

For each block of queries of one gallery group: scores, the strategy's pools, the fallbacks of empty pools (counted),
all draws of the coming interval, and the statistics of each query. Nothing of size Q x N is ever held: tensors are
bounded by `block` rows, and the pools of a refresh go to a file (`negbench.mining.pool_file`), from which the next
refresh reads its overlap.

What is reproducible, exactly:
- draws depend on (generator, query, pool) alone: given the same pools they are the same for any block size, device
  and split of the queries (weighted draws: up to the device's rounding of two logarithms);
- scores are computed in tiles of a fixed shape, whatever `block` is, as a matrix product may round differently for
  another number of rows. On one machine with one number of threads everything `mine` returns is therefore the same for
  any block size and any split of the queries. Another device or library rounds scores differently, and a strategy that
  sorts them may then choose another pool.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from negbench.contracts import DEFAULT_TEMPERATURE, Embedded, ScoreView, Strategy, check_option
from negbench.errors import NegbenchError
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import Tally, at_most, count, descending, less, places_of, tally, window
from negbench.mining.draws import draw, splitmix
from negbench.mining.pool_file import opened, overlap, packed, row_bytes, written

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from negbench.mining.filters import Filters
    from negbench.mining.planes import Plane

# A tile of scores: 256 queries, fewer only where the corpus is so large that a block must be smaller, against as many
# images as have 2^14 tokens together; where it is written to its place in a second step, 2^10 on a CPU: what a product
# of these reads and writes stays in the second cache.
_TILE_QUERIES = 256
_TILE_TOKENS = 2**14
_CACHED_TOKENS = 2**10
_BLOCK_ENTRIES = 2**27  # a block shrinks below `block` rows where [rows, N] would exceed this: 512 MiB of float32
_PART_ENTRIES = 2**21  # scores that a strategy sees at once (on a GPU 16 times as many): what it makes of them is small
_SHARED_ENTRIES = 2**23  # the largest block that is new memory for each: 32 MiB, beyond which malloc returns it at once
# Images between the ends of a pool and not in it: their places are counted where they are few, and few for the width of
# a row; else the row is sorted, which takes as long for so many images as it takes to count one place.
_FEW_HOLES, _SORTED_AT_ONCE = 8, 2_000
_COPY_BYTES = 2**27  # a corpus whose images lie apart is copied up to this size, and gathered tile by tile beyond

_STALE = (
    "stale pools: refresh {refresh} of {name} left every pool as it was; was the model trained in between, and were "
    "queries and candidates encoded again?"
)

NO_FALLBACK, BELOW_TARGET, ANY_ALLOWED = 0, 1, 2


@dataclass(frozen=True)
class MiningTask:
    """Who is mined against what. Q queries, N images in all, T tokens each, width D; a *column* is an image's index.

    Args:
        queries: [Q, D] unit-norm embeddings, on the device that computes the scores.
        candidates: [N, T, D] unit-norm tokens of all images, on the same device.
        target: [Q] int64 column of each query's positive.
        group: [Q] int64, index into `groups`.
        groups: per gallery group, the int64 columns of its corpus, without repeats.
        excluded: per query, columns that may never be drawn (known duplicates of the target; the reference on request).
        relevant: per query, columns known to be relevant, the target included; an empty row where nothing is known.
            None: nothing is known of any query beyond its target, and false-negative rates are NaN.
        ids: [Q] int64, numbers of the queries' random streams, also used in messages; default 0..Q-1. `shard` keeps
            those of the whole task.
        temperature: > 0, told to the strategy.
        planes: further scores, by name, for strategies that declare them (`Strategy.reads`), and for `filters`.
        filters: what no strategy may draw, by the scores.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """

    queries: Tensor
    candidates: Tensor
    target: Tensor
    group: Tensor
    groups: Sequence[Tensor]
    excluded: Ragged | None = None
    relevant: Ragged | None = None
    ids: Tensor = None  # type: ignore[assignment]  # resolved below
    temperature: float = DEFAULT_TEMPERATURE
    planes: Mapping[str, Plane] = field(default_factory=dict)
    filters: Filters | None = None

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or self.candidates.ndim != 3 or self.queries.shape[1] != self.candidates.shape[2]:
            raise ValueError(
                "want queries [Q, D] and candidates [N, T, D], "
                f"got {tuple(self.queries.shape)} and {tuple(self.candidates.shape)}"
            )
        count = len(self.queries)
        if self.ids is None:
            object.__setattr__(self, "ids", torch.arange(count))
        for name in ("target", "group", "ids"):
            tensor = getattr(self, name)
            if tensor.shape != (count,) or tensor.dtype != torch.int64:
                raise ValueError(f"{name} must be a [{count}] int64 tensor, got {tuple(tensor.shape)} {tensor.dtype}")
        if not count:
            raise ValueError("there is no query to mine")
        for name, end in (("target", len(self.candidates)), ("group", len(self.groups))):
            low, high = int(getattr(self, name).min()), int(getattr(self, name).max())
            if low < 0 or high >= end:
                raise ValueError(f"{name} must lie in 0..{end - 1}, got {low}..{high}")
        for name in ("excluded", "relevant"):
            rows = getattr(self, name)
            if rows is not None and len(rows) != count:
                raise ValueError(f"{name} must have {count} rows, got {len(rows)}")

    def shard(self, rows: Tensor) -> MiningTask:
        """The task of some queries only (`rows` [R] int64); they are mined as they would be within the whole task."""
        return dataclasses.replace(
            self,
            queries=self.queries[rows.to(self.queries.device)],
            target=self.target[rows.to(self.target.device)],
            group=self.group[rows.to(self.group.device)],
            excluded=None if self.excluded is None else self.excluded.select(rows),
            relevant=None if self.relevant is None else self.relevant.select(rows),
            ids=self.ids[rows.to(self.ids.device)],
            planes={name: plane.shard(rows) for name, plane in self.planes.items()},
        )


@dataclass(frozen=True)
class Mined:
    """What a refresh yields, per query, on the CPU. A query's pool is the one drawn from: after the fallback, if any.

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
    false_negative_rate_draws: Tensor  # [Q] float32, the same of the draws
    overlap: Tensor  # [Q] float32, Jaccard index with the previous refresh's pool; NaN: no previous one
    hardness: Tensor  # [Q] float32, mean over the draws of s+ - s-; small or negative is hard
    target_rank: Tensor  # [Q] int64, 1 + how many allowed images score at least s+ (ties count against the model)
    fallback: Tensor  # [Q] int8: 0 none, 1 nearest allowed image below the target, 2 any allowed image
    stale: bool  # every pool is what it was at the previous refresh, though pools are not all that is allowed

    def frame(self) -> pd.DataFrame:
        """One row per query: every field that is per query; `negatives` and `scores` as lists."""
        import pandas as pd

        table = self.table()
        return pd.DataFrame({name: pd.Series(table[name].to_pylist()) for name in table.column_names})

    def table(self) -> pa.Table:
        """The frame for a file: int64 and float64, without a Python object for each number."""
        import pyarrow as pa

        found: dict[str, pa.Array] = {}
        for name in (f.name for f in dataclasses.fields(self) if f.name != "stale"):
            values = getattr(self, name).numpy()
            wide = pa.array(values.ravel().astype(np.float64 if values.dtype.kind == "f" else np.int64))
            if values.ndim == 1:
                found[name] = wide
            else:
                starts = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
                found[name] = pa.ListArray.from_arrays(starts, wide)
        return pa.table(found)

    def summary(self) -> dict[str, float]:
        """Flat dictionary for logging: means over the queries that have a value (NaN where none has), and counts."""
        means = (
            "pool_size",
            "band_start",
            "band_mean",
            "band_end",
            "false_negative_rate_pool",
            "false_negative_rate_draws",
            "overlap",
            "hardness",
        )
        return {name: float(getattr(self, name).double().nanmean()) for name in means} | {
            "pool_size_median": _median(self.pool_size),
            "fallback_below": float((self.fallback == BELOW_TARGET).sum()),
            "fallback_any": float((self.fallback == ANY_ALLOWED).sum()),
            "stale": float(self.stale),
        }


@torch.no_grad()
def mine(
    task: MiningTask,
    strategy: Strategy,
    *,
    refresh: int,
    draws: int,
    generator: torch.Generator,
    per_epoch: int | None = None,
    block: int = 256,
    previous: Path | None = None,
    pools: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Mined:
    """Define the pools of one refresh and draw the negatives of the interval that follows it.

    A query draws without repeats until its pool is used up, then again from the whole pool (unless `per_epoch` says
    otherwise): uniformly from a bool pool, in proportion from weights. An empty pool falls back to the nearest allowed
    image below the target, or, if none is below it, to all allowed images; `Mined.fallback` records both. A strategy
    that declares `reads_truth` is shown the known relevant images, and its fallbacks avoid them too, unless no other
    image is allowed.

    Args:
        task: the queries and their corpora.
        strategy: a corpus strategy.
        refresh: 0-based count of this refresh, handed to the strategy.
        draws: negatives per query: negatives per epoch times epochs of the interval.
        generator: gives the 63-bit number that all draws derive from; advanced by one draw, nothing else is random.
        per_epoch: draw anew after so many draws: with replacement from one epoch to the next.
        block: queries scored at once; fewer where a corpus is so large that [block, N] would exceed 2^27 entries.
        previous: the file that an earlier refresh of the same task wrote to `pools`, for the overlap.
        pools: file to write this refresh's pools to (`negbench.mining.pool_file`); it appears only when complete.
            Give each refresh its own file, else a refresh that is repeated compares with itself.
        progress: called after each block with the number of queries it held.

    Raises:
        NegbenchError: a query without any allowed image or whose target is not in its corpus, scores that are not
            finite, a strategy that breaks its contract or reads a plane that the task has not, or a `previous` of
            another task.
    """
    check_option("draws", draws, draws >= 1, "at least 1")
    check_option("block", block, block >= 1, "at least 1")
    check_option("refresh", refresh, refresh >= 0, "at least 0")
    name = type(strategy).__name__
    if strategy.scope != "corpus":
        raise NegbenchError(f"{name} is a {strategy.scope} strategy: it is used inside a batch and cannot be mined")
    base = torch.randint(2**63 - 1, (1,), generator=generator, device=generator.device).cpu()
    shape = (len(task.queries), row_bytes(max(map(len, task.groups), default=0)))
    before = opened(previous, shape)
    columns: dict[str, Tensor] = {}
    free = True  # every pool so far holds all that is allowed
    with written(pools, shape) as write:
        for rows, corpus, table in _blocks(task, block, 1 + len(strategy.reads)):
            for scored in _scored(task, rows, corpus, table, refresh, strategy):
                answer, fallback = _fall_back(scored, answer_of(strategy, scored.shown))
                seed = splitmix(base, task.ids.cpu()[scored.rows]).to(answer.device)
                drawn, pool = draw(answer, seed, draws, per_epoch=per_epoch), _inside(answer)
                found = _statistics(scored, pool, drawn) | {"fallback": fallback}
                found["negatives"] = corpus.columns[drawn.cpu()]
                found["overlap"] = torch.full((len(pool),), torch.nan)
                if previous is not None or pools is not None:
                    bits = packed(pool.cpu().numpy(), shape[1])
                    found["overlap"] = overlap(bits, before(scored.rows, bits.shape[1]), pool.shape[1])
                    write(scored.rows, bits)
                _put(columns, found, scored.rows, len(task.queries))
                free = free and torch.equal(found["pool_size"], scored.room)
                del scored, answer, pool  # else the planes of the next block would be made while these are held
            if progress is not None:
                progress(len(rows))
    stale = refresh > 0 and not free and bool((columns["overlap"] == 1).all())
    if stale:
        warnings.warn(_STALE.format(refresh=refresh, name=name), stacklevel=2)
    return Mined(**columns, stale=stale)


def batch_statistics(view: ScoreView, pool: Tensor, relevant: Tensor | None = None) -> dict[str, float]:
    """What `Mined.summary` says of corpus strategies, for one batch of a batch strategy, which is used whole.

    Args:
        view: the batch's [B, M] scores.
        pool: [B, M] bool or float weights >= 0, as the strategy returned it.
        relevant: [B, M] bool, columns known to be relevant; None: nothing is known.

    Returns:
        `pool_size`; `false_negative_rate_pool`, the share of the pool's images that are relevant;
        `false_negative_rate_draws`, their share of the weight, as every image is used; `hardness`, the weighted mean of
        s+ - s-: means over the rows that hold an image, NaN if none does. `empty`: how many rows hold none.
    """
    weights = pool.double()
    inside = weights > 0
    size, total = inside.sum(1), weights.sum(1)
    wrong = torch.full_like(inside, torch.nan, dtype=torch.float64) if relevant is None else relevant.double()
    gap = (view.positive[:, None] - view.scores).double()
    values = {
        "pool_size": size.double(),
        "false_negative_rate_pool": (inside * wrong).sum(1) / size,
        "false_negative_rate_draws": (weights * wrong).sum(1) / total,
        "hardness": (weights * gap).sum(1) / total,
    }
    filled = size > 0
    return {name: float(value[filled].mean()) for name, value in values.items()} | {"empty": float((~filled).sum())}


# --- scores ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Corpus:
    """Corpus of one gallery group: n images."""

    columns: Tensor  # [n] int64
    tokens: Tensor  # [n, T, D], or all images' where `gathered` names the corpus among them
    gathered: Tensor | None  # [n] int64
    local: Tensor  # [N] int64, where a column stands in this corpus, or -1


@dataclass(frozen=True)
class _Scored:
    """Part of a block: b queries with the scores of their corpus of n images."""

    rows: Tensor  # [b] int64 queries of the task
    view: ScoreView  # before the filters: what statistics and the last fallbacks are of
    shown: ScoreView  # to the strategy
    room: Tensor  # [b] int64, how many images are allowed
    relevant: Tensor | None  # [b, n] bool ground truth, for the statistics; in the view for oracles only
    known: Tensor  # [b] bool, False where the ground truth of a query is unknown beyond its target


def _blocks(task: MiningTask, block: int, tables: int) -> Iterator[tuple[Tensor, _Corpus, Tensor]]:
    """Every query once, as [b] int64 rows of one gallery group with its corpus and room for their scores [b, n].

    Large blocks share that memory, as new memory takes the system longer to give than a pass over it takes; small ones
    are given what was used before by the allocator. `tables` [b, n] are held of each block.
    """
    group = task.group.cpu()
    members = [(group == index).nonzero().squeeze(1) for index in range(len(task.groups))]
    heights = [_block_rows(len(columns), block, tables) for columns in task.groups]
    most = max(
        min(len(rows), height) * len(columns)
        for rows, height, columns in zip(members, heights, task.groups, strict=True)
    )
    shared = torch.empty(most if most > _SHARED_ENTRIES else 0, device=task.queries.device)
    for index, (rows, height) in enumerate(zip(members, heights, strict=True)):
        if len(rows):
            corpus = _corpus(task, index)
            width = len(corpus.columns)
            for part in torch.split(rows, height):
                size = len(part) * width
                table = shared[:size] if len(shared) else torch.empty(size, device=shared.device)
                yield part, corpus, table.view(len(part), width)


def _block_rows(images: int, block: int, tables: int) -> int:
    """Queries of a block: whole tiles, if it holds one."""
    most, height = max(1, min(block, _BLOCK_ENTRIES // (tables * max(1, images)))), _tile_rows(max(1, images))
    return most // height * height or most


def _tile_rows(images: int) -> int:
    """Queries of a tile, of the corpus alone: the power of two that a block of it holds, at most _TILE_QUERIES."""
    return min(_TILE_QUERIES, 1 << (max(1, _BLOCK_ENTRIES // images).bit_length() - 1))


def _corpus(task: MiningTask, index: int) -> _Corpus:
    columns = task.groups[index].cpu()
    local = torch.full((len(task.candidates),), -1)
    local[columns] = torch.arange(len(columns))
    if int((local >= 0).sum()) != len(columns):
        raise ValueError(f"groups[{index}] must name every column once")
    lost = ((task.group.cpu() == index) & (local[task.target.cpu()] < 0)).nonzero().squeeze(1)
    if len(lost):
        raise NegbenchError(
            f"query {int(task.ids[lost[0]])}: its target, column {int(task.target[lost[0]])}, is not in its corpus, "
            f"gallery group {index}; add it to the corpus or drop the query ({len(lost)} such queries)"
        )
    return _Corpus(columns, *gatherable(task.candidates, columns), local)


def gatherable(table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """`table[rows]`, a view of it where the rows lie side by side; where it would be large, both as they are."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    if last - first == len(rows) and bool((rows.diff() == 1).all()):
        return table[first:last], None
    rows = rows.to(table.device)
    large = len(rows) * table[0].nbytes > _COPY_BYTES
    return (table, rows) if large else (table[rows], None)


def _scored(
    task: MiningTask, rows: Tensor, corpus: _Corpus, scores: Tensor, refresh: int, strategy: Strategy
) -> Iterator[_Scored]:
    """Score a block into `scores` [b, n], and hand it out in parts."""
    device, width = task.queries.device, len(corpus.columns)
    tiled_relevance(task.queries[rows.to(device)], corpus.tokens, corpus.gathered, scores)
    wanted = {*strategy.reads, *(() if task.filters is None else task.filters.reads)} & task.planes.keys()
    planes: dict[str, Tensor] = {name: task.planes[name].block(rows, corpus.columns) for name in wanted}
    height = max(1, (_PART_ENTRIES if device.type == "cpu" else 16 * _PART_ENTRIES) // width)
    for top in range(0, len(rows), height):
        part = slice(top, top + height)
        own = {name: plane[part] for name, plane in planes.items()}
        yield _part(task, rows[part], corpus, scores[part], own, refresh, strategy)


def _part(
    task: MiningTask,
    rows: Tensor,
    corpus: _Corpus,
    scores: Tensor,
    planes: dict[str, Tensor],
    refresh: int,
    strategy: Strategy,
) -> _Scored:
    device, width = scores.device, scores.shape[1]
    bad = (~scores.sum(1).isfinite()).nonzero()
    if len(bad):
        raise NegbenchError(
            f"query {int(task.ids[rows[bad[0]]])}: its scores hold NaN or infinity; the model diverged: "
            "lower the learning rate or turn mixed precision off"
        )
    allowed = relevant = None
    if task.excluded is not None:
        allowed = ~task.excluded.select(rows).mask(corpus.local, width).to(device)
    known = torch.zeros(len(rows), dtype=torch.bool)
    if task.relevant is not None:
        chosen = task.relevant.select(rows)
        relevant, known = chosen.mask(corpus.local, width).to(device), chosen.lengths > 0
    target = corpus.local[task.target.cpu()[rows]].to(device)
    view = ScoreView(
        scores=scores,
        target=target,
        allowed=allowed,  # type: ignore[arg-type]  # None: all but the target
        refresh=refresh,
        relevant=relevant if strategy.reads_truth else None,
        temperature=task.temperature,
        dim=task.queries.shape[1],
        planes=planes,
    )
    shown = filtered(view, task.filters, strategy)
    room = count(view.allowed)
    alone = (room == 0).nonzero()
    if len(alone):
        raise NegbenchError(
            f"query {int(task.ids[rows[alone[0]]])}: no image of its corpus ({width} images) is allowed as a negative; "
            "enlarge the corpus or exclude fewer images"
        )
    return _Scored(rows, view, shown, room, relevant, known.to(device))


def filtered(view: ScoreView, filters: Filters | None, strategy: Strategy) -> ScoreView:
    """The view as a strategy sees it: without what the filters drop, and with the planes that it declares alone."""
    active = filters is not None and filters.active
    if not active and not view.planes:
        return view
    allowed = view.allowed & filters.keep(view) if filters is not None and active else view.allowed
    planes: dict[str, Tensor] = {name: plane for name, plane in view.planes.items() if name in strategy.reads}
    return dataclasses.replace(view, allowed=allowed, planes=planes)


@torch.no_grad()
def tiled_relevance(
    queries: Tensor, tokens: Tensor, gathered: Tensor | None = None, scores: Tensor | None = None
) -> Tensor:
    """[b, D] and [n, T, D] -> [b, n], `relevance` in float32 and tiles of fixed shape (the module's docstring: why).

    Args:
        queries: on the tokens' device.
        tokens: of any precision.
        gathered: int64 rows of `tokens` that are scored; None: all of them.
        scores: [b, n] float32, filled and returned; None: a new one.
    """
    images, (_, each, width) = len(tokens if gathered is None else gathered), tokens.shape
    # one tile of images is written where it belongs; of several the rows lie so far apart that a copy is faster
    alone, cpu = each == 1 and images <= _TILE_TOKENS, queries.device.type == "cpu"
    step = images if alone else min(images, max(1, (_CACHED_TOKENS if cpu else _TILE_TOKENS) // each))
    height = _tile_rows(images)
    if scores is None:
        scores = torch.empty(len(queries), images, device=queries.device)
    # buffers for all tiles: new memory costs more than the conversion
    wide = None if tokens.dtype == torch.float32 else tokens.new_empty(step, each, width, dtype=torch.float32)
    whole = alone and len(queries) % height == 0
    product = scores.new_empty(0 if whole else height * step * each)
    queries = functional.pad(queries.float(), (0, 0, 0, -len(queries) % height))
    with torch.autocast(queries.device.type, enabled=False):
        for left in range(0, images, step):
            tile = tokens[left : left + step] if gathered is None else tokens[gathered[left : left + step]]
            if wide is not None:
                tile = wide[: len(tile)].copy_(tile)
            columns = tile.reshape(-1, width).T
            for top in range(0, len(queries), height):
                into, rows = scores[top : top + height, left : left + step], queries[top : top + height]
                if whole:
                    torch.mm(rows, columns, out=into)
                    continue
                found = product[: height * columns.shape[1]].view(height, -1)
                torch.mm(rows, columns, out=found)
                found = found[: len(into)]
                into.copy_(found if each == 1 else found.view(len(found), -1, each).amax(-1))
    return scores


# --- pools -------------------------------------------------------------------------------------------------------


def answer_of(strategy: Strategy, view: ScoreView) -> Tensor:
    """The strategy's pools, of a corpus or of a batch; NegbenchError unless they are what `Strategy.pool` promises."""
    before, answer, name = _versions(view), strategy.pool(view), type(strategy).__name__
    if _versions(view) != before:  # its scores may be those that the loss is made of
        raise NegbenchError(f"{name}.pool wrote into the view that it was shown; change a copy (.clone())")
    if not isinstance(answer, Tensor) or answer.shape != view.scores.shape:
        got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise NegbenchError(f"{name}.pool must return a {tuple(view.scores.shape)} tensor, got {got}")
    if answer.dtype != torch.bool and not answer.is_floating_point():
        raise NegbenchError(f"{name}.pool must return bool or float weights, got {answer.dtype}")
    if answer.layout != torch.strided or answer.device != view.scores.device:
        raise NegbenchError(f"{name}.pool must return a dense tensor on {view.scores.device}, got {answer.device}")
    if answer.is_floating_point() and not bool((answer.isfinite() & (answer >= 0)).all()):
        raise NegbenchError(f"{name}.pool must return finite weights >= 0")
    wrong = _inside(answer) & ~view.allowed
    if wrong.numpy(force=True).any():
        row, column = wrong.nonzero()[0].tolist()
        what = "the target itself" if column == int(view.target[row]) else "an excluded image"
        raise NegbenchError(f"{name}.pool chose {what} (row {row}, column {column}); choose only where view.allowed")
    return answer


def synthetic_of(strategy: Strategy, shown: Embedded) -> tuple[Tensor, Tensor]:
    """The strategy's synthetic negatives; NegbenchError unless they are what `Strategy.synthetic` promises."""
    given, name = (shown.pool, shown.queries, shown.images), f"{type(strategy).__name__}.synthetic"
    before, answer = _versions(shown.view, *given), strategy.synthetic(shown)
    if _versions(shown.view, *given) != before:
        raise NegbenchError(f"{name} wrote into what it was shown; change a copy (.clone())")
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(one, Tensor) for one in answer):
        raise NegbenchError(f"{name} must return two tensors, the tokens and which of them there are")
    tokens, there = answer
    (rows, width), (_, images, _) = shown.queries.shape, shown.images.shape
    if tokens.ndim != 4 or (len(tokens), *tokens.shape[2:]) != (rows, images, width):
        raise NegbenchError(f"{name} must return [{rows}, S, {images}, {width}] tokens, got {tuple(tokens.shape)}")
    if there.shape != tokens.shape[:2] or there.dtype != torch.bool:
        expected = f"a {tuple(tokens.shape[:2])} bool tensor"
        raise NegbenchError(f"{name} must say which there are by {expected}, got {tuple(there.shape)} {there.dtype}")
    if not tokens.is_floating_point() or any(one.device != shown.images.device for one in answer):
        raise NegbenchError(f"{name} must return float tokens on {shown.images.device}, got {tokens.dtype}")
    norms = torch.linalg.vector_norm(tokens.float(), dim=-1)
    near = ((norms - 1).abs() < 1e-2) | ~there[:, :, None]  # half precision is off by 1e-3
    if not bool((near & norms.isfinite()).all()):  # what is not there must be finite too: 0 x NaN is a gradient of NaN
        raise NegbenchError(f"{name} must return finite tokens of unit norm")
    return answer


def _versions(view: ScoreView, *others: Tensor) -> list[int]:
    """How often each tensor of a view, and each of the others, was written to; inference mode keeps no count."""
    shown = (view.scores, view.target, view.allowed, view.relevant, *view.planes.values(), *others)
    return [tensor._version for tensor in shown if tensor is not None and not tensor.is_inference()]


def _inside(answer: Tensor) -> Tensor:
    """The pools as bool."""
    return answer if answer.dtype == torch.bool else answer > 0


def _fall_back(scored: _Scored, answer: Tensor) -> tuple[Tensor, Tensor]:
    """Fill empty pools; returns the pools and [b] int8 which fallback each took."""
    view = scored.shown
    code = torch.full((len(answer),), NO_FALLBACK, dtype=torch.int8, device=answer.device)
    empty = (count(_inside(answer)) == 0).nonzero().squeeze(1)
    if not len(empty):
        return answer, code
    allowed, scores = view.allowed[empty], view.scores[empty]
    if len(bare := (count(allowed) == 0).nonzero().squeeze(1)):  # filters left nothing
        allowed[bare] = scored.view.allowed[empty[bare]]
    if view.relevant is not None:  # an oracle's ceiling must not be lowered by its fallbacks
        clean = allowed & ~view.relevant[empty]
        allowed = torch.where(clean.any(1, keepdim=True), clean, allowed)
    nearest = window(scores, allowed & less(scores, view.positive[empty, None]), 0, 1)  # of equal ones the first column
    some = count(nearest) > 0
    answer = answer.clone()
    answer[empty] = torch.where(some[:, None], nearest, allowed).to(answer.dtype)
    code[empty] = torch.where(some, BELOW_TARGET, ANY_ALLOWED).to(code.dtype)
    return answer, code


# --- statistics --------------------------------------------------------------------------------------------------


def _statistics(scored: _Scored, pool: Tensor, drawn: Tensor) -> dict[str, Tensor]:
    """Fields of `Mined` that the scores, the pools [b, n] and the draws [b, D] (local columns) determine."""
    view = scored.view
    told = tally(view.scores, view.allowed, pool, view.target)
    size = told.size
    scores = view.scores.gather(1, drawn)
    gap = (view.positive[:, None] - scores).double()
    start, mean, end = _band(scored, pool, told)
    of_pool = of_draws = torch.full_like(view.positive, torch.nan)
    if scored.relevant is not None:
        of_pool = torch.where(scored.known, count(pool & scored.relevant) / size, torch.nan)
        of_draws = torch.where(scored.known, scored.relevant.gather(1, drawn).sum(1) / drawn.shape[1], torch.nan)
    return {
        "scores": scores,
        "positive": view.positive,
        "pool_size": size,
        "band_start": start,
        "band_mean": mean,
        "band_end": end,
        "false_negative_rate_pool": of_pool,
        "false_negative_rate_draws": of_draws,
        # a running sum adds in one order; `mean` may add in another for another number of rows
        "hardness": (gap.cumsum(1)[:, -1] / drawn.shape[1]).float(),
        "target_rank": 1 + told.reached,
    }


def _band(scored: _Scored, pool: Tensor, told: Tally) -> tuple[Tensor, Tensor, Tensor]:
    """Rank percentile of the first, the mean and the last member of each pool, among the allowed images."""
    view, room = scored.view, scored.room
    size, first, last = told.size, told.first.clone(), told.last.clone()
    last_rank = (room - 1).clamp(min=1)
    if torch.equal(size, room):  # all that is allowed: known without sorting
        end = ((room - 1) / last_rank).float()
        return torch.zeros_like(end), end / 2, end
    total = size * (first + last) // 2  # where every allowed image between the two is in the pool
    holes = last - first + 1 - size  # allowed images that tie with an end of the pool or lie inside it
    few = min(_FEW_HOLES, pool.shape[1] // _SORTED_AT_ONCE)
    for row in ((holes > 0) & (holes <= few)).nonzero().squeeze(1).tolist():
        place = _holes(view, pool, row)
        total[row] = int((first[row] + last[row]) * (last[row] - first[row] + 1)) // 2 - sum(place)
        while int(first[row]) in place:
            first[row] += 1
        while int(last[row]) in place:
            last[row] -= 1
    for_row = (holes > few).nonzero().squeeze(1)
    if len(for_row):
        order = descending(view.scores[for_row])
        inside = pool[for_row].gather(1, order)
        rank = view.allowed[for_row].gather(1, order).cumsum(1, dtype=torch.int32) - 1
        total[for_row] = rank.masked_fill(~inside, 0).sum(1)
        first[for_row] = rank.masked_fill(~inside, rank.shape[1]).amin(1).long()
        last[for_row] = rank.masked_fill(~inside, -1).amax(1).long()
    return first / last_rank, (total.double() / size / last_rank).float(), last / last_rank


def _holes(view: ScoreView, pool: Tensor, row: int) -> list[int]:
    """Places, among the allowed images of a row, of those between the ends of its pool that are not in it."""
    scores, allowed, inside = view.scores[row], view.allowed[row], pool[row]
    own = scores[inside]
    between = at_most(own.amin(), scores).logical_and_(at_most(scores, own.amax()))
    columns = (between & allowed & ~inside).nonzero().squeeze(1)
    return places_of(scores, allowed, columns).tolist()


def _put(columns: dict[str, Tensor], found: dict[str, Tensor], rows: Tensor, count: int) -> None:
    """Write a block's values into [Q, ...] tensors on the CPU, made when the first block comes."""
    for name, value in found.items():
        if name not in columns:
            columns[name] = torch.empty((count, *value.shape[1:]), dtype=value.dtype)
        columns[name][rows] = value.cpu()


def _median(values: Tensor) -> float:
    """Median, the mean of the two middle values where the count is even (torch.median takes the lower)."""
    return float(np.median(values.numpy()))
