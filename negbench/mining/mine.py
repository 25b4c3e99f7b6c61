"""Define pools and draw from them: one block of queries against its corpus at a time.

A block holds queries of one gallery group, and is scored at once. The strategy sees it in parts (`ScoredPart`), which
keeps its intermediates small. For each part: the strategy's pools, the fallbacks of empty pools (counted), all draws
of the coming interval, and the statistics of each query. Nothing of size Q x N is ever held: tensors are bounded by
`BLOCK` rows, and the pools of a refresh go to a file (`negbench.mining.pool_file`), from which the next refresh reads
its overlap.

These are exactly reproducible:
- draws depend on (generator, query, pool) alone: given the same pools they are the same for any block size, device
  and split of the queries (weighted draws: up to the device's rounding of two logarithms);
- scores are computed in tiles of a fixed shape, whatever `BLOCK` is, as a matrix product may round differently for
  another number of rows. On one machine with one number of threads everything `mine` returns is therefore the same for
  any block size and any split of the queries. Another device or library rounds scores differently, and a strategy that
  sorts them may then choose another pool.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option
from negbench.contracts.splitmix import splitmix
from negbench.errors import NegbenchError
from negbench.metrics.equal_rows import Copies
from negbench.metrics.parts import put
from negbench.metrics.ranks import count, nearest_below
from negbench.mining.ask import as_mask, ask_for_pools, filter_view
from negbench.mining.draws import draw
from negbench.mining.mined import ANY_ALLOWED, BELOW_TARGET, NO_FALLBACK, Mined, ScoredPart, kind_shares, statistics_of
from negbench.mining.pool_file import NO_FILES, PoolFiles, overlap, pack, read_pools, row_bytes, write_pools
from negbench.mining.task import MiningTask
from negbench.scoring.tiles import BLOCK_ENTRIES, Corpus, tile_rows, tiled_relevance

BLOCK = 256  # queries scored at once; fewer where [BLOCK, N] would exceed BLOCK_ENTRIES
_PART_ENTRIES = 2**21  # scores that a strategy sees at once (on a GPU 16 times as many): keeps its intermediates small


@torch.no_grad()
def mine(
    task: MiningTask,
    strategy: Strategy,
    *,
    refresh: int,
    draws: int,
    generator: torch.Generator,
    per_epoch: int | None = None,
    files: PoolFiles = NO_FILES,
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
        draws: negatives per query for the whole interval: in training, `TrainConfig.draws` (per epoch) times the
            epochs of the interval, or those of one epoch if they serve all (`mining.redraw=false`).
        generator: gives the 63-bit number that all draws derive from; advanced by one draw, nothing else is random.
        per_epoch: start afresh after this many draws: with replacement from one epoch to the next.
        files: where to write this refresh's pools, and where those of an earlier refresh of the same task are.
        progress: called after each block with the number of queries it held.

    Raises:
        NegbenchError: a query without any allowed image or whose target is not in its corpus, scores that are not
            finite, a strategy that breaks its contract or reads a plane that the task lacks, or earlier pools of
            another task.
    """
    _check_arguments(strategy, refresh, draws)
    base = torch.randint(2**63 - 1, (1,), generator=generator, device=generator.device).cpu()
    largest_corpus = max((len(columns) for columns in task.groups), default=0)
    shape = (len(task.queries), row_bytes(largest_corpus))
    read_earlier = read_pools(files.previous, shape)
    fields: dict[str, Tensor] = {}  # of `Mined`
    pools_hold_all = True  # that is allowed, so far
    with write_pools(files.written, shape) as write:
        for rows, corpus in _blocks(task, len(strategy.reads)):
            for part in _score_block(task, rows, corpus, refresh, strategy):
                pools, fallback = _fall_back(part, ask_for_pools(strategy, part.filtered))
                seed = splitmix(base, task.ids.cpu()[part.rows]).to(pools.device)
                drawn = draw(pools, seed, draws, per_epoch=per_epoch)
                in_pool = as_mask(pools)
                values = _part_statistics(task, part, corpus, in_pool, drawn)
                values["fallback"] = fallback
                values["negatives"] = corpus.columns[drawn.cpu()]
                values["overlap"] = torch.full((len(in_pool),), torch.nan)
                if files != NO_FILES:
                    bits = pack(in_pool)
                    values["overlap"] = overlap(bits, read_earlier(part.rows, bits.shape[1]))
                    write(part.rows, bits)
                put(fields, {name: value.cpu() for name, value in values.items()}, part.rows, len(task.queries))
                pools_hold_all = pools_hold_all and torch.equal(values["pool_size"], part.allowed_count)
                del part, pools, in_pool  # free them before the next block's planes are computed
            if progress is not None:
                progress(len(rows))
    if task.kinds is not None:
        task.cache["kind_random"] = fields["kind_random"]
    stale = refresh > 0 and not pools_hold_all and bool((fields["overlap"] == 1).all())
    has_copy = torch.isin(task.target.cpu(), torch.cat(Copies.of(task.candidates)).cpu())
    return Mined(**fields, stale=stale, copies=int(has_copy.sum()))


def _check_arguments(strategy: Strategy, refresh: int, draws: int) -> None:
    """Raise OptionError for a number out of range, NegbenchError for a strategy that cannot be mined."""
    check_option("draws", draws, draws >= 1, "at least 1")
    check_option("refresh", refresh, refresh >= 0, "at least 0")
    if strategy.scope != "corpus":
        name = type(strategy).__name__
        raise NegbenchError(f"{name} is a {strategy.scope} strategy: it is used inside a batch and cannot be mined")


# --- scores ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupCorpus:
    """Corpus of one gallery group: n images."""

    columns: Tensor  # [n] int64
    images: Corpus
    local: Tensor  # [N] int64, position of each column in this corpus, or -1
    scores: Tensor  # [b, n] float32, overwritten by each block


def _blocks(task: MiningTask, planes: int) -> Iterator[tuple[Tensor, _GroupCorpus]]:
    """Yield every query once, in blocks: [b] int64 rows of one gallery group, and its corpus.

    A block is small enough for its [b, n] scores and this many planes.
    """
    group = task.group.cpu()
    for index, columns in enumerate(task.groups):
        rows = (group == index).nonzero().squeeze(1)
        if len(rows):
            height = min(len(rows), _block_rows(len(columns), planes))
            corpus = _group_corpus(task, index, height)
            for block in rows.split(height):
                yield block, corpus


def _block_rows(images: int, planes: int) -> int:
    """Return the number of queries per block: whole tiles, if it holds one."""
    entries_per_query = (1 + planes) * max(1, images)  # one score for each image, and of each plane one
    most = max(1, min(BLOCK, BLOCK_ENTRIES // entries_per_query))
    height = tile_rows(images)
    return most // height * height or most


def _group_corpus(task: MiningTask, index: int, height: int) -> _GroupCorpus:
    """Return the corpus of gallery group `index`, with room for the scores of `height` queries.

    Raises:
        NegbenchError: a query whose target is not in it.
    """
    columns = task.groups[index].cpu()
    local = torch.full((len(task.candidates),), -1)
    local[columns] = torch.arange(len(columns))
    lost = ((task.group.cpu() == index) & (local[task.target.cpu()] < 0)).nonzero().squeeze(1)
    if len(lost):
        raise NegbenchError(
            f"query {int(task.ids[lost[0]])}: its target, column {int(task.target[lost[0]])}, is not in its corpus, "
            f"gallery group {index}; add it to the corpus or drop the query ({len(lost)} such queries)"
        )
    scores = torch.empty(height, len(columns), device=task.queries.device)
    return _GroupCorpus(columns, Corpus.of(task.candidates, columns), local, scores)


def _score_block(
    task: MiningTask, rows: Tensor, corpus: _GroupCorpus, refresh: int, strategy: Strategy
) -> Iterator[ScoredPart]:
    """Score a block, and yield it in parts."""
    device = task.queries.device
    width = len(corpus.columns)
    scores = tiled_relevance(task.queries[rows.to(device)], corpus.images, corpus.scores)
    names = {*strategy.reads}
    if task.filters is not None:
        names |= {*task.filters.reads}
    planes: dict[str, Tensor] = {}
    for name in names & task.planes.keys():
        planes[name] = task.planes[name].block(rows, corpus.columns)
    entries = _PART_ENTRIES if device.type == "cpu" else 16 * _PART_ENTRIES
    height = max(1, entries // width)
    for top in range(0, len(rows), height):
        span = slice(top, top + height)
        part_planes = {name: plane[span] for name, plane in planes.items()}
        yield _scored_part(task, rows[span], scores[span], part_planes, corpus, refresh, strategy)


def _scored_part(
    task: MiningTask,
    rows: Tensor,
    scores: Tensor,
    planes: dict[str, Tensor],
    corpus: _GroupCorpus,
    refresh: int,
    strategy: Strategy,
) -> ScoredPart:
    """Return what a strategy sees of b queries, and what their statistics need.

    Args:
        task: as for `mine`.
        rows: [b] int64 queries of the task.
        scores: [b, n] float32.
        planes: name -> [b, n] float32.
        corpus: of the queries' gallery group.
        refresh: as for `mine`.
        strategy: as for `mine`.

    Raises:
        NegbenchError: scores that are not finite, a query without any allowed image.
    """
    _check_finite(task, rows, scores)
    device = scores.device
    width = scores.shape[1]
    allowed = None  # all but the target
    if task.excluded is not None:
        allowed = ~task.excluded.select(rows).mask(corpus.local, width).to(device)
    relevant = None
    has_truth = torch.zeros(len(rows), dtype=torch.bool)
    if task.relevant is not None:
        lists = task.relevant.select(rows)
        relevant = lists.mask(corpus.local, width).to(device)
        has_truth = lists.lengths > 0
    kinds = None
    if task.kinds is not None and (strategy.reads_truth or "kind_random" not in task.cache):
        kinds = _kinds(task, rows, corpus.columns, device)
    target = corpus.local[task.target.cpu()[rows]].to(device)
    view = ScoreView(
        scores=scores,
        target=target,
        allowed=allowed,  # type: ignore[arg-type]
        refresh=refresh,
        relevant=relevant if strategy.reads_truth else None,
        kinds=kinds if strategy.reads_truth else None,
        temperature=task.temperature,
        dim=task.queries.shape[1],
        planes=planes,
    )
    filtered = filter_view(view, task.filters, strategy)
    allowed_count = torch.full_like(target, width - 1) if allowed is None else count(view.allowed)
    _check_allowed(task, rows, allowed_count, width)
    return ScoredPart(rows, view, filtered, allowed_count, relevant, has_truth.to(device), kinds)


def _check_finite(task: MiningTask, rows: Tensor, scores: Tensor) -> None:
    """Raise NegbenchError if scores [b, n] are not finite."""
    bad = (~scores.sum(1).isfinite()).nonzero()
    if len(bad):
        raise NegbenchError(
            f"query {int(task.ids[rows[int(bad[0])]])}: its scores contain NaN or infinity; the model diverged: "
            "try a tenth of train.lr, or --set train.precision=fp32"
        )


def _kinds(task: MiningTask, rows: Tensor, columns: Tensor, device: torch.device) -> Tensor:
    """[b, n] int8 codes of the judged negatives among these columns."""
    assert task.kinds is not None
    return task.kinds(task.ids.cpu()[rows], columns).to(device)


def _check_allowed(task: MiningTask, rows: Tensor, allowed_count: Tensor, images: int) -> None:
    """Raise NegbenchError for a query that may draw none of its corpus of so many images."""
    alone = (allowed_count == 0).nonzero()
    if len(alone):
        raise NegbenchError(
            f"query {int(task.ids[rows[int(alone[0])]])}: no image of its corpus ({images} images) is allowed as a "
            "negative; enlarge the corpus or exclude fewer images"
        )


# --- pools -------------------------------------------------------------------------------------------------------


def _fall_back(part: ScoredPart, pools: Tensor) -> tuple[Tensor, Tensor]:
    """Fill empty pools; return the pools and [b] int8, the fallback that each took."""
    view = part.filtered
    code = torch.full((len(pools),), NO_FALLBACK, dtype=torch.int8, device=pools.device)
    empty = (as_mask(pools).view(torch.uint8).amax(1) == 0).nonzero().squeeze(1)
    if not len(empty):
        return pools, code
    allowed = view.allowed[empty]
    if view is not part.view:  # where filters leave nothing, ignore them
        bare = (count(allowed) == 0).nonzero().squeeze(1)
        if len(bare):
            allowed[bare] = part.view.allowed[empty[bare]]
    if view.relevant is not None:  # an oracle's ceiling must not be lowered by its fallbacks
        clean = allowed & ~view.relevant[empty]
        allowed = torch.where(clean.any(1, keepdim=True), clean, allowed)
    column = nearest_below(view.scores, empty, allowed, view.positive)
    some = column >= 0
    pools = pools.clone()
    pools[empty[some], column[some]] = 1
    pools[empty[~some]] = allowed[~some].to(pools.dtype)
    code[empty] = torch.where(some, BELOW_TARGET, ANY_ALLOWED).to(code.dtype)
    return pools, code


# --- statistics ---------------------------------------------------------------------------------------------------


def _part_statistics(
    task: MiningTask, part: ScoredPart, corpus: _GroupCorpus, in_pool: Tensor, drawn: Tensor
) -> dict[str, Tensor]:
    """Return the fields of `Mined` that follow from the scores, the pools [b, n] and the draws [b, D] of b queries."""
    statistics = statistics_of(part, in_pool, drawn)
    if task.kinds is not None:
        statistics |= _kind_statistics(task, part, corpus, drawn)
    return statistics


def _kind_statistics(task: MiningTask, part: ScoredPart, corpus: _GroupCorpus, drawn: Tensor) -> dict[str, Tensor]:
    """Return the kinds of the draws, and those expected of random draws: those cached, if the part has no kinds."""
    columns, column_of_draw = drawn.unique(return_inverse=True)
    kinds = _kinds(task, part.rows, corpus.columns[columns.cpu()], drawn.device).gather(1, column_of_draw)
    relevant = None if part.relevant is None else part.relevant.gather(1, drawn)
    shares = {"kind_draws": kind_shares(kinds, relevant, torch.ones_like(drawn))}
    if part.kinds is None:
        return shares | {"kind_random": task.cache["kind_random"][part.rows]}
    return shares | {"kind_random": kind_shares(part.kinds, part.relevant, part.view.allowed)}
