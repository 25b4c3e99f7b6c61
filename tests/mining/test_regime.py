"""The regime card against loops over every query and image, scipy, and the pools that QuRe's strategy makes."""

import itertools
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import torch
from scipy import stats

from negbench.api import make_strategy
from negbench.contracts import relevance
from negbench.errors import NegbenchError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.recall import expected_hits_at_k, hits_at_k
from negbench.mining.mine import mine
from negbench.mining.mined import NO_FALLBACK
from negbench.mining.regime import CUT, NEAR, TOP, Regime, regime
from negbench.mining.task import MiningTask

SIZES = (25, 34)  # images of the two gallery groups


def task_of(seed: int, *, shift: float = 0.0, ties: bool = False, truth: bool = True) -> MiningTask:
    """Return a task: 40 queries, two groups, two tokens per image; `shift` < 0: scores negative; `ties`: many equal."""
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randn(sum(SIZES), 2, 6, generator=generator)
    queries = torch.randn(40, 6, generator=generator)
    if ties:
        candidates = candidates.round()
        queries = queries.sign()
    if shift:
        candidates[..., 0] = 30.0
        queries[:, 0] = shift
    groups = [torch.arange(SIZES[0]), torch.arange(SIZES[0], sum(SIZES))]
    group = torch.arange(40) % 2
    target = torch.stack([groups[g][(7 * i) % len(groups[g])] for i, g in enumerate(group.tolist())])
    excluded = []
    relevant = []
    for i, g in enumerate(group.tolist()):
        columns = groups[g].tolist()
        excluded.append([columns[(7 * i + j) % len(columns)] for j in (3, 4)][: i % 3])
        if i % 4:
            others = [columns[(7 * i + 3 * j) % len(columns)] for j in range(1, 5)]
            relevant.append([int(target[i]), *others])
        else:
            relevant.append([])
    task = MiningTask(queries, candidates, target, group, groups, excluded=Ragged.of(excluded))
    return replace(task, relevant=Ragged.of(relevant)) if truth else task


def ranks_of(ranks: list[int], sizes: list[int]) -> QueryRanks:
    names = tuple(map(str, range(len(ranks))))
    return QueryRanks(names, names, torch.tensor(ranks), torch.tensor(sizes), Ragged.of([[r] for r in ranks]))


def rows_of(task: MiningTask) -> list[tuple[int, list[tuple[float, int]], float]]:
    """Return each query, its allowed images as (score, column) by descending score, and its target's score."""
    scores = relevance(task.queries, task.candidates)
    rows = []
    for i in range(len(task.queries)):
        target = int(task.target[i])
        gone = set(task.excluded.row(i).tolist())
        allowed = [c for c in task.groups[int(task.group[i])].tolist() if c != target and c not in gone]
        row = sorted(((float(scores[i, c]), c) for c in allowed), key=lambda pair: (-pair[0], pair[1]))
        rows.append((i, row, float(scores[i, target])))
    return rows


CASES = pytest.mark.parametrize(("shift", "ties"), [(0.0, False), (-1.0, False), (0.0, True)])


@CASES
def test_ranks_shape_drops_and_bands_against_loops_scipy_and_the_strategy(shift, ties):
    task = task_of(1, shift=shift, ties=ties)
    card = regime(task)
    rows = rows_of(task)
    ranks = [1 + sum(score >= positive for score, _ in row) for _, row, positive in rows]
    assert card.queries == 40
    assert card.images == median(len(row) + 1 for _, row, _ in rows)
    assert card.target_rank_median == median(ranks)
    assert card.target_first == sum(rank == 1 for rank in ranks) / 40
    values = [np.array([score for score, _ in row]) for _, row, _ in rows]
    if shift:
        assert max(value.max() for value in values) < 0
    tails = [(np.quantile(v, 0.99) - np.median(v)) / (stats.iqr(v) / (2 * stats.norm.ppf(0.75))) for v in values]
    assert card.tail == pytest.approx(median(tails), rel=1e-3)
    largest = []
    second = []
    for _, row, positive in rows:
        below = [score for score, _ in row if score < positive]
        falls = sorted((a - b for a, b in itertools.pairwise(below)), reverse=True)
        if falls and median(falls) > 0:
            largest.append(falls[0] / median(falls))
        if len(falls) >= 3 and falls[2] > 0:
            second.append(falls[1] / falls[2])
    assert card.drop_prominence == pytest.approx(median(largest), rel=1e-3)
    assert card.drop_prominence_second == pytest.approx(median(second), rel=1e-3)
    mined = mine(task, make_strategy("qure"), refresh=0, draws=1, generator=torch.Generator().manual_seed(0))
    start = mined.band_start[mined.fallback == NO_FALLBACK].tolist()
    assert 1 < len(start) <= 40
    assert card.band_start_median == pytest.approx(median(start))
    assert card.band_start_top == pytest.approx(sum(share <= TOP for share in start) / len(start))


@CASES
def test_false_negatives_against_loops(shift, ties):
    task = task_of(3, shift=shift, ties=ties)
    counts = {"": [0, 0], "_above": [0, 0], "_below": [0, 0]}
    for i, row, positive in rows_of(task):
        relevant = set(task.relevant.row(i).tolist())
        if not relevant:
            continue
        ahead = [column for score, column in row if score >= positive]
        behind = [column for score, column in row if score < positive]
        parts = {"": ahead + behind, "_above": ahead[-NEAR:], "_below": behind[:NEAR]}
        for name, columns in parts.items():
            counts[name][0] += sum(column in relevant for column in columns)
            counts[name][1] += len(columns)
    card = regime(task).summary()
    for name, (wrong, images) in counts.items():
        assert card[f"false_negatives{name}"] == pytest.approx(wrong / images), name
    assert card["relevant"] == 5
    unknown = regime(task_of(3, truth=False)).summary()
    without = {name for name, value in unknown.items() if math.isnan(value)}
    assert without >= {"relevant", *(f"false_negatives{name}" for name in counts)}
    assert not math.isnan(unknown["target_rank_median"])


def test_the_fit_gap_is_in_galleries_of_one_size():
    task = task_of(4)
    ranks = [1 + sum(score >= positive for score, _ in row) for _, row, positive in rows_of(task)]
    sizes = [len(row) + 1 for _, row, _ in rows_of(task)]
    assert min(sizes) == 23
    none = regime(task)
    assert none.recall_train == pytest.approx(
        float(expected_hits_at_k(torch.tensor(ranks), torch.tensor(sizes), CUT, 23).mean())
    )
    assert math.isnan(none.recall_val)
    assert math.isnan(none.fit_gap)
    same = regime(task, ranks_of([*ranks, 0], [*sizes, 3]))  # a query without a target does not count
    assert same.recall_val == same.recall_train == none.recall_train
    assert same.fit_gap == 0
    wide = regime(task, ranks_of([1, 15], [15, 15]))
    assert wide.recall_val == 0.5
    assert wide.recall_train > none.recall_train
    assert wide.fit_gap == wide.recall_train - 0.5
    narrow = regime(task, ranks_of([1], [CUT]))  # any target is among the first ten of ten
    assert math.isnan(narrow.recall_train)
    assert math.isnan(narrow.recall_val)
    assert math.isnan(narrow.fit_gap)


def test_expected_hits_against_every_smaller_gallery(subtests):
    for images, rank, k, size in itertools.product((6, 7), (1, 3, 6), (1, 2), (2, 4, 6)):
        with subtests.test(images=images, rank=rank, k=k, size=size):
            ahead = [True] * (rank - 1) + [False] * (images - rank)
            galleries = list(itertools.combinations(ahead, size - 1))
            want = sum(sum(gallery) < k for gallery in galleries) / len(galleries)
            hits = expected_hits_at_k(torch.tensor([rank]), torch.tensor([images]), k, size)
            assert float(hits[0]) == pytest.approx(want)
    ranks = torch.tensor([1, 7, 30, 900, 25_000])
    sizes = torch.full((5,), 25_000)
    want = stats.hypergeom.cdf(9, sizes.numpy() - 1, ranks.numpy() - 1, 599)
    np.testing.assert_allclose(expected_hits_at_k(ranks, sizes, 10, 600), want, rtol=1e-8, atol=1e-12)
    ranks = torch.tensor([1, 10, 11, 50])
    sizes = torch.full((4,), 50)
    assert torch.equal(expected_hits_at_k(ranks, sizes, 10, 50), hits_at_k(ranks, 10).double())


def test_the_sample_is_seeded_and_takes_nothing_from_global_streams():
    task = task_of(5)
    val = ranks_of([3], [40])
    state = torch.get_rng_state()
    assert regime(task, val, sample=10) == regime(task, val, sample=10) != regime(task, val, sample=11)
    assert torch.equal(torch.get_rng_state(), state)


def single(scores: list[float], target: int) -> Regime:
    """Return the card of one query whose images have these scores."""
    column = torch.tensor([target])
    tokens = torch.tensor(scores)[:, None, None]
    return regime(MiningTask(torch.ones(1, 1), tokens, column, torch.zeros_like(column), [torch.arange(len(scores))]))


def test_what_is_not_there_is_nan(subtests):
    flat = single([0.5] * 12, 3)
    assert flat.target_rank_median == 12  # ties count against the model
    for name in ("tail", "drop_prominence", "band_start_median", "band_start_top"):
        with subtests.test(name=name):
            assert math.isnan(getattr(flat, name))
    pair = single([0.1, 0.9], 0)
    assert (pair.target_rank_median, pair.images, pair.target_first) == (2, 2, 0)
    assert math.isnan(single([0.3], 0).tail)
    with pytest.raises(NegbenchError, match="NaN"):
        single([0.1, math.nan, 0.3], 0)
