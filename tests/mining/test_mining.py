"""`mine` against a miner written with loops, and its draws against the laws they claim."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from negbench.contracts import PlaneName, ScoreView, Strategy
from negbench.contracts.splitmix import splitmix, uniform
from negbench.errors import NegbenchError
from negbench.metrics.fixed import KINDS
from negbench.metrics.ragged import Ragged
from negbench.mining import mine as mining
from negbench.mining.draws import draw_uniform, draw_weighted
from negbench.mining.filters import Filters
from negbench.mining.mine import mine
from negbench.mining.mined import SHARES, BatchPools, Mined, batch_statistics, distinct, kind_shares
from negbench.mining.planes import EmbeddedPlane
from negbench.mining.pool_file import PoolFiles, overlap, pack
from negbench.mining.task import MiningTask
from negbench.scoring import tiles
from negbench.strategies.in_batch import InBatch
from tests.spies import spy

# --- strategies of this file: the plug-ins are tested elsewhere -----------------------------------------------------


@dataclass(frozen=True)
class Function(Strategy):
    """A strategy whose pool is any given function."""

    answer: Callable[[ScoreView], Any]

    def pool(self, view: ScoreView) -> Tensor:
        return self.answer(view)


@dataclass(frozen=True)
class Oracle(Function):
    reads_truth: ClassVar[bool] = True


@dataclass(frozen=True)
class Planar(Function):
    reads: ClassVar[tuple[PlaneName, ...]] = ("target",)


def below(view: ScoreView) -> Tensor:
    """Choose the three highest-scored allowed images below the target; none where there is none."""
    under = (view.allowed & (view.scores < view.positive[:, None])).gather(1, view.order)
    nearest = under & (under.cumsum(1) <= 3)
    return torch.zeros_like(nearest).scatter_(1, view.order, nearest)


def band(view: ScoreView) -> Tensor:
    """Choose images whose gap to the target lies in a band: no order needed, often none."""
    gap = view.positive[:, None] - view.scores
    return view.allowed & (gap >= 0.1) & (gap <= 0.4)


def thirds(view: ScoreView) -> Tensor:
    """Choose every third column: one of two images that tie, with others between."""
    return view.allowed & (torch.arange(view.scores.shape[1]) % 3 == 0)


def nothing(view: ScoreView) -> Tensor:
    return torch.zeros_like(view.allowed)


EVERYTHING = Function(lambda view: view.allowed)
BELOW = Function(below)
NOTHING = Function(nothing)
# some rows weigh only part of the corpus
WEIGHTED = Function(lambda view: torch.where(view.allowed & (view.scores > 0), 1 + view.scores, 0.0))
ORACLE = Oracle(lambda view: view.allowed & ~view.relevant)

# --- tasks ----------------------------------------------------------------------------------------------------------


def toy_task(*, tokens: int = 1, queries: int = 41, truth: bool = True, seed: int = 0) -> MiningTask:
    """Return a task: three overlapping galleries, one unordered; exclusions; relevant images; scores of both signs."""
    generator = torch.Generator().manual_seed(seed)
    candidates = normalize(torch.randn(40, tokens, 8, generator=generator), dim=-1)
    candidates[11] = candidates[3]  # a twin: ties
    groups = (torch.arange(0, 12), torch.randperm(40, generator=generator)[:17], torch.arange(20, 40))
    group = torch.randint(3, (queries,), generator=generator)
    target = torch.tensor([int(groups[g][torch.randint(len(groups[g]), (), generator=generator)]) for g in group])
    excluded = [torch.randint(40, (i % 4,), generator=generator).tolist() for i in range(queries)]
    relevant = [[int(t), *torch.randint(40, (3,), generator=generator).tolist()] for t in target]
    relevant[0] = []
    relevant[1] = [*range(40)]
    embeddings = normalize(torch.randn(queries, 8, generator=generator), dim=-1)
    embeddings[:3] = -normalize(candidates[target[:3]].mean(1), dim=-1)  # targets that score (near) the lowest
    codes = torch.randint(5, (queries, 40), generator=generator).to(torch.int8)
    task = MiningTask(embeddings, candidates, target, group, groups, excluded=Ragged.of(excluded))
    if not truth:
        return task
    return dataclasses.replace(task, relevant=Ragged.of(relevant), kinds=lambda ids, columns: codes[ids][:, columns])


def scored_task(scores: list[list[float]], target: list[int], **more: Any) -> MiningTask:
    """Return a task of one gallery with the given scores (embeddings need not be unit norm for mining)."""
    rows = torch.tensor(scores)
    columns = torch.arange(rows.shape[1])
    group = torch.zeros(len(rows), dtype=torch.int64)
    return MiningTask(rows, torch.eye(rows.shape[1])[:, None], torch.tensor(target), group, [columns], **more)


def run(task: MiningTask, strategy: Strategy, *, seed: int = 0, draws: int = 4, refresh: int = 0, **more: Any) -> Mined:
    generator = torch.Generator().manual_seed(seed)
    with patch.object(mining, "BLOCK", more.pop("block", mining.BLOCK)):
        return mine(task, strategy, refresh=refresh, draws=draws, generator=generator, **more)


BY_QUERY = [field.name for field in dataclasses.fields(Mined) if field.name not in ("stale", "copies")]


def assert_same(one: Mined, other: Mined) -> None:
    for name in BY_QUERY:
        a = getattr(one, name)
        b = getattr(other, name)
        if a is not None or b is not None:
            assert a.dtype == b.dtype, name
            assert torch.equal(a.nan_to_num(nan=-9.0), b.nan_to_num(nan=-9.0)), name


# --- the loop miner -------------------------------------------------------------------------------------------------


def loop_query(task: MiningTask, i: int, rule: Callable[..., set[int]], oracle: bool = False) -> dict[str, Any]:
    """Return all that `mine` reports on query i except its draws, by Python loops over plain floats."""
    corpus = task.groups[int(task.group[i])].tolist()
    score = {j: max(float(task.queries[i].double() @ token.double()) for token in task.candidates[j]) for j in corpus}
    target = int(task.target[i])
    relevant = set(task.relevant.row(i).tolist()) if task.relevant is not None else set()
    excluded = set(task.excluded.row(i).tolist()) if task.excluded is not None else set()
    allowed = [j for j in corpus if j != target and j not in excluded]
    by_rank = sorted(allowed, key=lambda j: (-round(score[j], 6), corpus.index(j)))
    pool = rule(score, by_rank, target, relevant)
    code = 0
    if not pool:
        usable = [j for j in by_rank if not (oracle and j in relevant)] or by_rank
        under = [j for j in usable if score[j] < score[target] - 1e-6]
        if under:
            pool = {under[0]}
            code = 1
        else:
            pool = set(usable)
            code = 2
    positions = sorted(by_rank.index(j) for j in pool)
    last = max(len(by_rank) - 1, 1)
    scores_outside = {score[j] for j in allowed if j not in pool}
    return {
        "pool": pool,
        "score": score,
        "fallback": code,
        "pool_size": len(pool),
        "band_start": positions[0] / last,
        "band_end": positions[-1] / last,
        "band_mean": sum(positions) / len(positions) / last,
        "false_negative_rate_pool": len(pool & relevant) / len(pool) if relevant else math.nan,
        "target_rank": 1 + sum(score[j] >= score[target] - 1e-6 for j in allowed),
        "positive": score[target],
        "relevant": relevant,
        "allowed": allowed,
        "cut_tie": any(score[j] in scores_outside for j in pool),
    }


# the strategies above once more: pools of one query, from its scores by image and its allowed images by rank


def loop_everything(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    return set(by_rank)


def loop_below(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    under = [j for j in by_rank if score[j] < score[target] - 1e-6]
    return set(under[:3])


def loop_band(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    return {j for j in by_rank if 0.1 <= score[target] - score[j] <= 0.4}


def loop_weighted(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    return {j for j in by_rank if score[j] > 0}


def loop_oracle(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    return set(by_rank) - relevant


def loop_thirds(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    corpus = list(score)
    return {j for j in by_rank if corpus.index(j) % 3 == 0}


def loop_nothing(score: dict[int, float], by_rank: list[int], target: int, relevant: set[int]) -> set[int]:
    return set()


RULES: dict[str, tuple[Function, Callable[..., set[int]]]] = {
    "everything": (EVERYTHING, loop_everything),
    "below": (BELOW, loop_below),
    "band": (Function(band), loop_band),
    "weighted": (WEIGHTED, loop_weighted),
    "oracle": (ORACLE, loop_oracle),
    "thirds": (Function(thirds), loop_thirds),
    "nothing": (NOTHING, loop_nothing),
    "an oracle's nothing": (Oracle(nothing), loop_nothing),
}


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", RULES)
def test_equals_a_miner_of_loops(tokens, name):
    task = toy_task(tokens=tokens)
    strategy, rule = RULES[name]
    mined = run(task, strategy, draws=9)
    for i in range(len(task.queries)):
        want = loop_query(task, i, rule, oracle=strategy.reads_truth)
        for name in ("pool_size", "fallback", "target_rank", "cut_tie"):
            assert int(getattr(mined, name)[i]) == want[name], (i, name)
        for name in ("band_start", "band_end", "band_mean", "false_negative_rate_pool", "positive"):
            assert float(getattr(mined, name)[i]) == pytest.approx(want[name], abs=1e-6, nan_ok=True), (i, name)
        drawn = mined.negatives[i].tolist()
        size = want["pool_size"]
        for start in range(0, len(drawn), size):  # each image once, before any comes again
            cycle = drawn[start : start + size]
            assert len(set(cycle)) == len(cycle), i
            assert set(cycle) <= want["pool"], i
            assert len(cycle) < size or set(cycle) == want["pool"], i
        for j, score in zip(drawn, mined.scores[i].tolist(), strict=True):
            assert score == pytest.approx(want["score"][j], abs=1e-6), i
        ahead = [j for j in want["allowed"] if want["score"][j] > mined.scores[i, 0] + 1e-6]
        assert int(mined.draw_rank[i]) == 1 + len(ahead), i
        gap = [want["positive"] - want["score"][j] for j in drawn]
        assert float(mined.hardness[i]) == pytest.approx(sum(gap) / len(gap), abs=1e-6), i
        wrong = sum(j in want["relevant"] for j in drawn) / len(drawn) if want["relevant"] else math.nan
        assert float(mined.false_negative_rate_draws[i]) == pytest.approx(wrong, abs=1e-6, nan_ok=True), i
    assert (mined.positive < 0).any()
    assert mined.overlap.isnan().all()
    assert mined.cut_tie.any() or strategy.answer is not thirds


# --- scores, blocks, shards, processes ------------------------------------------------------------------------------


def test_any_block_size_gives_the_same_scores_where_the_product_alone_would_not():
    generator = torch.Generator().manual_seed(1)
    queries = normalize(torch.randn(300, 96, generator=generator), dim=-1)
    images = normalize(torch.randn(500, 1, 96, generator=generator), dim=-1)
    corpus = mining.Corpus.of(images, torch.arange(len(images)))
    whole = mining.tiled_relevance(queries, corpus)
    for size in (1, 3, 64, 255, 257):
        parts = torch.cat([mining.tiled_relevance(part, corpus) for part in torch.split(queries, size)])
        assert torch.equal(parts, whole), size


def test_any_block_size_gives_the_same_bits(monkeypatch, subtests):
    task = toy_task(tokens=3)
    done: list[int] = []
    for strategy, block in ((BELOW, 1), (WEIGHTED, 7)):
        with subtests.test(strategy=strategy, block=block):
            assert_same(run(task, strategy), run(task, strategy, block=block))
    for module in (tiles, mining):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", 60)
    run(task, EVERYTHING, progress=done.append)
    assert (sum(done), max(done)) == (41, 4)  # 60 // 12 = 5, rounded down to whole tiles of a power of two


def test_a_corpus_is_viewed_copied_or_gathered(subtests, monkeypatch):
    table = torch.arange(36.0).view(6, 3, 2)
    monkeypatch.setattr(tiles, "_COPY_BYTES", 4 * table[0].nbytes)
    for columns, how in (([1, 2, 3], "view"), ([0, 2, 1, 3], "copy"), ([5, 0], "copy"), ([0, 1, 3, 4, 5], "gather")):
        with subtests.test(how=how):
            rows = torch.tensor(columns)
            tokens, gathered, _ = tiles.Corpus.of(table, rows)
            assert torch.equal(tokens if gathered is None else tokens[gathered], table[rows])
            shared = tokens.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
            assert shared == (how != "copy")
            assert (gathered is not None) == (how == "gather")


def test_half_precision_embeddings_are_scored_in_float32_even_under_autocast():
    task = toy_task()
    half = dataclasses.replace(task, queries=task.queries.bfloat16(), candidates=task.candidates.bfloat16())
    exact = half.queries.float() @ half.candidates[:, 0].float().T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mined = run(half, EVERYTHING)
    torch.testing.assert_close(mined.scores, exact.gather(1, mined.negatives), atol=1e-6, rtol=0)


def test_shards_put_together_are_the_whole():
    task, strategy = toy_task(tokens=3), WEIGHTED
    whole = run(task, strategy)
    for rank in range(3):
        rows = torch.arange(rank, len(task.queries), 3).flip(0)
        picked = {name: getattr(whole, name)[rows] for name in BY_QUERY}
        assert_same(run(task.shard(rows), strategy), Mined(**picked, stale=False))


def test_draws_are_counted_by_kind():
    task = toy_task()
    mined = run(task, EVERYTHING, draws=9)
    for row in range(len(task.queries)):
        columns = task.groups[task.group[row]]
        codes = dict(zip(columns.tolist(), task.kinds(torch.tensor([row]), columns)[0].tolist(), strict=True))
        right = set(task.relevant.row(row).tolist())
        banned = {int(task.target[row]), *task.excluded.row(row).tolist()}
        free = [column for column in columns.tolist() if column not in banned]
        names = {}
        for column in columns.tolist():
            names[column] = "false" if column in right else (*KINDS, "unrelated")[codes[column] - 1]
        for shares, drawn in ((mined.kind_draws, mined.negatives[row].tolist()), (mined.kind_random, free)):
            drawn_names = [names[column] for column in drawn]
            want = [drawn_names.count(name) / len(drawn) for name in SHARES]
            assert shares[row].tolist() == pytest.approx(want, abs=1e-6), row
    summary = mined.summary()
    assert sum(summary[f"draws_{name}"] for name in SHARES) == pytest.approx(1, abs=1e-6)
    assert not any(name.startswith("draws_") for name in run(toy_task(truth=False), EVERYTHING).summary())


@pytest.mark.parametrize(("strategy", "reads"), [(EVERYTHING, False), (ORACLE, True)], ids=["plain", "oracle"])
def test_kinds_of_random_draws_are_counted_at_the_first_refresh(strategy, reads):
    """Later ones ask for the kinds of what is drawn, and of all images only for a strategy that is shown them."""
    task = toy_task()
    calls: list[tuple[Any, ...]] = []
    watched = dataclasses.replace(task, kinds=spy(task.kinds, calls))

    def widths() -> set[int]:
        return {len(images) for _, images in calls}

    first = run(watched, strategy, draws=1, block=7)
    assert {12, 17, 20} <= widths()
    calls.clear()
    assert_same(run(watched, strategy, draws=1, block=7), first)
    assert (widths() >= {12, 17, 20}) == reads
    assert torch.equal(run(watched.shard(torch.arange(5, 9)), strategy, draws=1).kind_random, first.kind_random[5:9])


def test_parts_of_a_block_and_images_that_are_gathered_change_nothing(monkeypatch):
    task = toy_task(tokens=2)
    plane = EmbeddedPlane(normalize(task.candidates.mean(1), dim=-1)[task.target], task.candidates)
    task = dataclasses.replace(task, planes={"target": plane}, filters=Filters(max_target=0.9))
    nearer = Planar(lambda view: view.allowed & (view.plane("target") > view.scores))  # to the target than the query
    whole = run(task, nearer)
    assert int((whole.fallback == 0).sum()) > 20
    monkeypatch.setattr(mining, "_PART_ENTRIES", 40)
    assert_same(run(task, nearer), whole)
    monkeypatch.setattr(tiles, "_COPY_BYTES", 0)
    table, gathered, _ = mining.Corpus.of(task.candidates, task.groups[1])
    assert table is task.candidates
    assert gathered is not None
    assert_same(run(task, nearer), whole)


class _Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
        return result


def test_memory_is_bounded_by_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "_TILE_QUERIES", 8)
    generator = torch.Generator().manual_seed(0)
    count, images, block = 400, 300, 8
    queries = normalize(torch.randn(count, 4, generator=generator), dim=-1)
    candidates = normalize(torch.randn(images, 2, 4, generator=generator), dim=-1)
    target = torch.randint(images, (count,), generator=generator)
    task = MiningTask(queries, candidates, target, torch.zeros_like(target), [torch.arange(images)])
    run(task, BELOW, block=block, files=PoolFiles(tmp_path / "0"))
    with _Largest() as tensors:
        run(task, BELOW, block=block, files=PoolFiles(tmp_path / "1", tmp_path / "0"))
    assert block * images <= tensors.largest <= 2 * block * images  # two tokens per image
    assert count * images > 20 * tensors.largest


# --- draws ----------------------------------------------------------------------------------------------------------


def test_splitmix_gives_the_published_stream(subtests):
    """The stream equals the reference implementation's vectors for seed 1234567, and the recurrence in big integers."""
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [value % 2**64 for value in splitmix(torch.tensor(1234567), torch.arange(5)).tolist()] == want
    for seed in (0, -1, -(2**63), 2**63 - 1):
        with subtests.test(seed=seed):
            state = seed % 2**64
            for number, value in enumerate(splitmix(torch.tensor(seed), torch.arange(4)).tolist()):
                state = (state + 0x9E3779B97F4A7C15) % 2**64
                z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) % 2**64
                z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
                assert value % 2**64 == z ^ z >> 31, f"value {number}"


@pytest.mark.parametrize(("bits", "want"), [(0, 2.0**-53), (-1, 1 - 2.0**-53), (-(2**63), 0.5 + 2.0**-53)])
def test_uniform_is_never_0_and_never_1(bits, want, monkeypatch):
    monkeypatch.setattr("negbench.contracts.splitmix.splitmix", lambda seed, count: seed)
    assert float(uniform(torch.tensor(bits), torch.tensor(0))) == want


_SEEDS = splitmix(torch.tensor(2024), torch.arange(24_000))
_POOL = torch.tensor([True, False, True, True, False, True])


def assert_uniform(codes: Tensor, kinds: int) -> None:
    """Test by chi-square that all codes that there are, so many, are equally frequent."""
    counts = codes.unique(return_counts=True)[1]
    assert len(counts) == kinds
    assert chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("draw", [draw_uniform, lambda pool, *rest: draw_weighted(pool.double(), *rest)])
def test_every_order_of_a_pool_is_equally_likely_in_every_cycle(draw):
    """All 4! orders of each cycle are, and all pairs (last of the first cycle, first of the second)."""
    drawn = draw(_POOL.expand(len(_SEEDS), -1), _SEEDS, 8)
    for cycle in (drawn[:, :4], drawn[:, 4:]):
        assert_uniform((cycle * torch.tensor([6**3, 6**2, 6, 1])).sum(1), 24)
    assert_uniform(drawn[:, 3] * 6 + drawn[:, 4], 16)


@pytest.mark.parametrize("draw", [draw_uniform, lambda pool, *rest: draw_weighted(pool.float(), *rest)])
def test_neighbouring_queries_draw_independently(draw):
    """With streams numbered 0, 1, 2, ..., images and pairs of neighbours' first draws are uniform."""
    drawn = draw(torch.ones(20_000, 10, dtype=torch.bool), splitmix(torch.tensor(0), torch.arange(20_000)), 2)
    for codes, kinds in ((drawn[:, 0], 10), (drawn[:, 1], 10), (drawn[:-1:2, 0] * 10 + drawn[1::2, 0], 100)):
        assert_uniform(codes, kinds)


def test_weighted_draws_follow_the_closed_form(subtests):
    """First draw: w / sum; ordered pair (i, j): w_i / sum * w_j / (sum - w_i); the same again in the second cycle."""
    weights = torch.tensor([0.5, 0.0, 3.0, 1.0, 1.5], dtype=torch.float64)
    drawn = draw_weighted(weights.expand(len(_SEEDS), -1), _SEEDS, 8)
    total = float(weights.sum())
    for at in (0, 4):
        with subtests.test(at=at):
            first = torch.bincount(drawn[:, at], minlength=5)
            assert int(first[1]) == 0
            inside = weights > 0
            assert chisquare(first[inside].numpy(), (weights[inside] / total * len(_SEEDS)).numpy()).pvalue > 1e-3
            counts = []
            want = []
            for i, j in itertools.permutations(inside.nonzero()[:, 0].tolist(), 2):
                counts.append(int(((drawn[:, at] == i) & (drawn[:, at + 1] == j)).sum()))
                want.append(float(weights[i] / total * weights[j] / (total - weights[i])) * len(_SEEDS))
            assert chisquare(counts, want).pvalue > 1e-3


# --- fallbacks ------------------------------------------------------------------------------------------------------


FALLBACKS = [  # scores, the target first; what is excluded; a filter's margin; the code and all that may be drawn
    ([-0.5, -0.9, -0.7, -0.5], [], None, mining.BELOW_TARGET, {2}),  # a tie with the target is not below it
    ([0.9, 0.1, 0.3, 0.3], [], None, mining.BELOW_TARGET, {2}),  # of equal images the first of the corpus
    ([-0.9, -0.9, 0.1, 0.1], [1], None, mining.ANY_ALLOWED, {2, 3}),
    ([0.5, 0.45, 0.6, 0.1, 0.2], [], 0.2, mining.BELOW_TARGET, {4}),
    ([-0.5, -0.4, 0.3, -0.3, -0.2], [], -0.25, mining.ANY_ALLOWED, {1, 3}),
    ([-0.5, -0.4, -0.6, -0.7], [], 1.5, mining.BELOW_TARGET, {2}),  # a filter that leaves nothing is no filter
    ([-0.9, -0.5, -0.6, -0.7], [], 1.5, mining.ANY_ALLOWED, {1, 2, 3}),
]


@pytest.mark.parametrize(("scores", "excluded", "margin", "code", "want"), FALLBACKS)
def test_an_empty_pool_falls_back_to_the_nearest_below_or_to_any(scores, excluded, margin, code, want):
    task = scored_task([scores], [0], excluded=Ragged.of([excluded]), filters=Filters(margin=margin))
    mined = run(task, NOTHING, draws=6)
    assert (mined.fallback.tolist(), mined.pool_size.tolist()) == ([code], [len(want)])
    assert set(mined.negatives[0].tolist()) == want
    counts = mined.summary()
    assert (counts["fallback_below"], counts["fallback_any"]) == (2 - code, code - 1)


def test_excluded_images_neither_hide_a_tie_nor_make_one(subtests):
    rows = [[0.9, 0.5, 0.5, 0.5, 0.3, 0.1], [0.3, 0.5, 0.4, 0.45, 0.3, 0.9], [0.9, 0.5, 0.4, 0.45, 0.3, 0.3]]
    task = scored_task(rows, [0, 5, 0], excluded=Ragged.of([[2], [0], []]))
    for out, want in ((3, [True, False, False]), (5, [False, False, True])):
        with subtests.test(out=out):
            missing = Function(lambda view, out=out: view.allowed & (torch.arange(6) != out))
            assert run(task, missing).cut_tie.tolist() == want


def test_fallbacks_of_weighted_pools_leave_the_other_rows_as_they_are():
    task = scored_task([[0.5, 0.4, 0.3], [0.5, 0.4, 0.3]], [0, 0])
    weights = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 2.5]])
    assert run(task, Function(lambda view: weights), draws=3).negatives.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert not weights[0].any()


# --- what may be chosen ---------------------------------------------------------------------------------------------


BREACHES = [
    (lambda view: torch.ones_like(view.allowed), r"Function.pool chose the target itself \(row 0, column 1\)"),
    (lambda view: view.scores.new_ones(view.scores.shape), "chose the target itself"),
    (lambda view: torch.arange(4)[None] == 3, r"chose an excluded image \(row 0, column 3\)"),
    (lambda view: view.allowed[:, :2], r"must return a \(1, 4\) tensor, got \(1, 2\)"),
    (lambda view: [True], "must return a .* tensor, got list"),
    (lambda view: view.allowed.long(), "must return bool or float weights, got torch.int64"),
    (lambda view: torch.where(view.allowed, -1.0, 0.0), "finite weights >= 0"),
    (lambda view: torch.where(view.allowed, torch.nan, 0.0), "finite weights >= 0"),
    (lambda view: torch.where(view.allowed, torch.inf, 0.0), "finite weights >= 0"),
    (lambda view: view.scores.clamp_(max=0.0) < view.allowed, "Function.pool modified its view"),
    (lambda view: view.allowed.logical_not_(), "Function.pool modified its view; change a"),
]


@pytest.mark.parametrize(("answer", "message"), BREACHES)
def test_a_strategy_that_breaks_its_contract_is_refused(answer, message):
    with pytest.raises(NegbenchError, match=message):
        run(scored_task([[0.1, 0.2, 0.3, 0.4]], [1], excluded=Ragged.of([[3]])), Function(answer))


PAIR = scored_task([[0.5, 0.4], [0.5, 0.4]], [0, 0])
MISUSES: list[tuple[MiningTask, dict[str, Any], str]] = [
    (PAIR, {"strategy": InBatch()}, "InBatch is a batch strategy"),
    (PAIR, {"draws": 0}, "draws must be at least 1, got 0"),
    (PAIR, {"refresh": -1}, "refresh must be at least 0, got -1"),
    (dataclasses.replace(PAIR, groups=[torch.tensor([1])]), {}, "query 0: its target, column 0, is not in its corpus"),
    (scored_task([[0.5]], [0]), {}, r"query 0: no image of its corpus \(1 images\) is allowed"),
    (dataclasses.replace(PAIR, excluded=Ragged.of([[], [1]])), {}, "query 1: no image"),
]


@pytest.mark.parametrize(("task", "options", "message"), MISUSES)
def test_what_cannot_be_mined_is_named(task, options, message):
    with pytest.raises(NegbenchError, match=message):
        run(task, **{"strategy": EVERYTHING, **options})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_one_line(value):
    task = toy_task()
    task.queries[7, 0] = value
    with pytest.raises(NegbenchError, match=r"query 7: its scores contain NaN or infinity; the model") as caught:
        run(task, EVERYTHING)
    assert "\n" not in str(caught.value)


# --- refreshes ------------------------------------------------------------------------------------------------------


def test_overlap_is_the_jaccard_index_with_the_previous_pool(tmp_path):
    first = toy_task(tokens=3)
    second = toy_task(tokens=3)
    second.queries[:] = normalize(second.queries + 0.3 * torch.randn(41, 8, generator=torch.Generator().manual_seed(9)))
    strategy, rule = RULES["below"]
    run(first, strategy, files=PoolFiles(tmp_path / "a"), block=5)
    mined = run(second, strategy, files=PoolFiles(tmp_path / "b", tmp_path / "a"), refresh=1, block=7)
    for i in range(41):
        one = loop_query(first, i, rule)["pool"]
        other = loop_query(second, i, rule)["pool"]
        assert float(mined.overlap[i]) == pytest.approx(len(one & other) / len(one | other)), i
    assert 0 < mined.summary()["overlap"] < 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert np.unpackbits(np.load(tmp_path / "b"), axis=1).sum(1).tolist() == mined.pool_size.tolist()
    many = torch.arange(70_000)[None]
    assert float(overlap(pack(many < 300), pack(many < 70_000))) == pytest.approx(300 / 70_000)


@pytest.mark.filterwarnings("error")  # only a miner warns: in a run the model was trained in between
def test_pools_are_stale_that_do_not_move_although_they_could(subtests, tmp_path):
    task = toy_task()
    moved = dataclasses.replace(task, queries=torch.cat([task.queries[:40], -task.queries[40:]]))  # a single query
    for strategy, later, stale in ((BELOW, task, 1), (EVERYTHING, task, 0), (BELOW, moved, 0)):
        with subtests.test(stale=stale):
            (tmp_path / "a").unlink(missing_ok=True)
            run(task, strategy, files=PoolFiles(tmp_path / "a"))
            mined = run(later, strategy, files=PoolFiles(previous=tmp_path / "a"), refresh=1)
            assert (mined.stale, mined.summary()["stale"]) == (stale, stale)
            assert bool((mined.overlap == 1).all()) == (later is task)


def test_a_refresh_that_fails_leaves_no_file(tmp_path):
    def fail(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(toy_task(), EVERYTHING, files=PoolFiles(tmp_path / "a"), progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_previous_pools_of_another_task_or_none_are_refused(tmp_path, subtests):
    run(toy_task(queries=10), EVERYTHING, files=PoolFiles(tmp_path / "a"))
    with pytest.raises(NegbenchError, match=r"belong to another task: they are \(10, 3\) uint8, not \(41, 3\)"):
        run(toy_task(), EVERYTHING, files=PoolFiles(previous=tmp_path / "a"))
    (tmp_path / "b").write_bytes(b"not an array")
    for name in ("b", "missing"):
        with subtests.test(name=name), pytest.raises(NegbenchError, match="cannot read"):
            run(toy_task(), EVERYTHING, files=PoolFiles(previous=tmp_path / name))


# --- what is reported -----------------------------------------------------------------------------------------------


def test_the_summary_holds_what_was_mined():
    mined = run(toy_task(), Function(band))
    summary = mined.summary()
    assert {name for name, value in summary.items() if not isinstance(value, float)} == set()
    assert summary["pool_size"] == pytest.approx(sum(mined.pool_size.tolist()) / 41)
    rates = [rate for rate in mined.false_negative_rate_pool.tolist() if not math.isnan(rate)]
    assert summary["false_negative_rate_pool"] == pytest.approx(sum(rates) / len(rates))
    assert math.isnan(summary["overlap"])
    assert run(toy_task(), Function(thirds)).summary()["cut_ties"] > 0
    assert dataclasses.replace(mined, pool_size=torch.tensor([1, 4])).summary()["pool_size_median"] == 2.5


def test_frame_and_table_hold_what_was_mined():
    mined = run(toy_task(), Function(band))
    frame = mined.frame()
    assert len(frame) == 41
    assert frame["negatives"][3] == mined.negatives[3].tolist()
    assert frame["fallback"].tolist() == mined.fallback.tolist()
    assert mined.table().to_pandas().dtypes.tolist() == frame.dtypes.tolist()
    for name, column in mined.table().to_pydict().items():
        np.testing.assert_array_equal(np.array(column), np.array(frame[name].tolist()))  # NaN does not become null


@pytest.mark.parametrize("truth", [True, False])
def test_kinds_counted_one_by_one_have_the_shares_of_added_weights(truth, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(5, (9, 70), generator=generator).to(torch.int8)
    allowed = torch.rand(9, 70, generator=generator) < 0.6
    relevant = torch.rand(9, 70, generator=generator) < 0.1
    allowed[3] = False
    monkeypatch.setattr("negbench.mining.mined._LARGE", 0)
    counted = kind_shares(kinds, relevant if truth else None, allowed)
    added = kind_shares(kinds, relevant if truth else None, allowed.float())
    assert torch.equal(counted.nan_to_num(-1), added.nan_to_num(-1))
    assert counted[3].isnan().all()


def test_kinds_of_what_batches_draw_equal_loops():
    generator = torch.Generator().manual_seed(1)
    batches = []
    for without in (0, 3):  # a row that draws nothing
        scores, drawn, pooled, true, usable = torch.rand(5, 5, 7, generator=generator)
        kinds = torch.randint(len(SHARES) - 1, (5, 7), generator=generator).to(torch.int8)
        allowed = usable < 0.8
        weights = drawn.masked_fill(~allowed | (pooled < 0.4), 0.0)
        weights[without] = 0.0
        batches.append(BatchPools(scores, scores[:, 0], allowed, weights, weights, true < 0.2, kinds))
    for batch, (rows, statistics) in zip(batches, batch_statistics(batches), strict=True):
        assert rows == 5, "of each batch"
        for what, weights in {"draws": batch.drawn, "random": batch.allowed}.items():
            of_rows = []
            for i in range(5):
                summed = dict.fromkeys(SHARES, 0.0)
                for j in range(7):
                    name = "unrelated" if batch.kinds[i, j] == 0 else SHARES[batch.kinds[i, j]]
                    if batch.relevant[i, j]:
                        name = "false"
                    summed[name] += float(weights[i, j])
                if weights[i].any():
                    of_rows.append(np.array(list(summed.values())) / sum(summed.values()))
            shares = [statistics[f"{what}_{name}"] for name in SHARES]
            assert shares == pytest.approx(np.mean(of_rows, axis=0), abs=1e-6), what


def test_batch_statistics_equal_loops(subtests):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(6, 6, generator=generator) * 2 - 1
    view = ScoreView(scores, torch.arange(6))
    weights = torch.rand(6, 6, generator=generator)
    weights[(torch.rand(6, 6, generator=generator) >= 0.6) | ~view.allowed] = 0
    weights[2] = 0
    relevant = torch.rand(6, 6, generator=generator) < 0.4
    relevant[4] = False  # of a query of which nothing is known
    thinned = (weights > 0) & (torch.rand(6, 6, generator=generator) < 0.7)
    thinned[0] = False  # all that is kept of it stands in another slot
    names = ("pool_size", "false_negative_rate_pool", "false_negative_rate_draws", "hardness")
    batches = []
    for name, pool, drawn in (
        ("weights", weights, weights),
        ("a mask", weights > 0, weights > 0),
        ("some drawn", weights, thinned),
    ):
        with subtests.test(name):
            rows = []
            for i in (0, 1, 3, 4, 5):
                inside = pool[i] > 0
                used = drawn[i].double()
                false = relevant[i].double()
                in_pool = float(false[inside].mean())
                in_draws = float((used * false).sum() / used.sum())  # NaN: no draws
                if not relevant[i].any():
                    in_pool = math.nan
                    in_draws = math.nan
                gap = (used * (scores[i, i] - scores[i])).sum() / used.sum()
                rows.append([float(inside.sum()), in_pool, in_draws, float(gap)])
            want = dict(zip(names, np.nanmean(rows, 0), strict=True))
            batches.append(BatchPools(scores, view.positive, view.allowed, pool, drawn, relevant))
            assert batch_statistics(batches)[-1] == (6, pytest.approx({**want, "empty": 1}))
    one_by_one = []
    for batch in batches:
        one_by_one += batch_statistics([batch])
    assert repr(batch_statistics(batches)) == repr(one_by_one)


def test_statistics_of_batches_with_and_without_truth_are_those_of_each_alone():
    view = ScoreView(torch.rand(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6))
    relevant = torch.eye(6, dtype=torch.bool)
    weights = view.allowed.float()
    batches = [
        BatchPools(view.scores, view.positive, view.allowed, weights, weights, relevant),
        BatchPools(view.scores, view.positive, view.allowed, weights, weights),
    ]
    assert repr(batch_statistics(batches)) == repr([*batch_statistics(batches[:1]), *batch_statistics(batches[1:])])
    _, without_truth = batch_statistics(batches)[-1]
    assert math.isnan(without_truth["false_negative_rate_pool"])
    assert without_truth["pool_size"] > 0


def test_statistics_of_a_batch_without_negatives():
    view = ScoreView(torch.rand(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6))
    none = torch.zeros_like(view.allowed)
    relevant = torch.eye(6, dtype=torch.bool)
    ((_, statistics),) = batch_statistics([BatchPools(view.scores, view.positive, view.allowed, none, none, relevant)])
    assert statistics["empty"] == 6
    assert math.isnan(statistics["hardness"])


@pytest.mark.parametrize("per_step", [1, 3, 63])
def test_distinct_draws_are_counted_per_query_and_step(per_step):
    drawn = torch.randint(6, (5, 4 * per_step), generator=torch.Generator().manual_seed(0))
    counts = [len(set(step)) for step in drawn.reshape(-1, per_step).tolist()]
    assert distinct(drawn, per_step) == pytest.approx(sum(counts) / len(counts))


# --- a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("scores", "message"), [([1.0, math.nan], "contain NaN"), ([1.0, 0.5], "no image of its")])
def test_errors_on_a_gpu_name_the_query(scores, message):
    task = scored_task([[1.0, 0.5], scores], [1, 1], excluded=Ragged.of([[], [0]]))
    on_gpu = dataclasses.replace(task, queries=task.queries.cuda(), candidates=task.candidates.cuda())
    with pytest.raises(NegbenchError, match=f"query 1: .*{message}"):
        run(on_gpu, EVERYTHING)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", [EVERYTHING, BELOW, WEIGHTED], ids=["everything", "below", "weighted"])
def test_a_gpu_draws_what_the_cpu_draws(strategy):
    """The toy scores are far enough apart for rounding not to matter, except between the twins, which tie exactly."""
    task = toy_task(tokens=3)
    on_gpu = dataclasses.replace(task, queries=task.queries.cuda(), candidates=task.candidates.cuda())
    one = run(task, strategy)
    other = run(on_gpu, strategy)
    assert torch.equal(one.negatives, other.negatives)
    for name in ("scores", "band_mean", "hardness", "false_negative_rate_pool"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-5, rtol=0, equal_nan=True)
