"""Ranks and mAP at k against loops and ties; scores of both signs."""

import itertools

import pytest
import torch
from torch import Tensor

from negbench.errors import NegbenchError
from negbench.metrics import compiled, ragged
from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import descending, relevant_ranks, target_ranks, top_columns
from negbench.metrics.recall import expected_hits_at_k, hits_at_k


def loop_target_rank(scores: list[float], target: int, allowed: list[bool]) -> int:
    return 1 + sum(1 for j, s in enumerate(scores) if j != target and allowed[j] and s >= scores[target])


def loop_relevant_ranks(scores: list[float], relevant: list[int], allowed: list[bool]) -> list[int]:
    """Rank each relevant image: irrelevant ones first among equals, relevant ones in their order."""
    ranks = []
    for position, image in enumerate(relevant):
        rank = 1
        for other, score in enumerate(scores):
            if other in relevant:
                comes_first = relevant.index(other) < position
                rank += score > scores[image] or (score == scores[image] and comes_first)
            elif allowed[other]:
                rank += score >= scores[image]
        ranks.append(rank)
    return ranks


def table(seed: int, rows: int, columns: int, *, levels: int | None = None, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if levels is not None:  # few distinct values: ties everywhere
        return torch.randint(-levels, levels, (rows, columns), generator=generator).float() + shift
    return torch.randn(rows, columns, generator=generator) + shift


def test_target_ranks_against_loops(subtests):
    for seed, shift, levels in itertools.product(range(5), (0.0, -50.0, 50.0), (None, 2)):
        with subtests.test(seed=seed, shift=shift, levels=levels):
            scores = table(seed, 7, 11, levels=levels, shift=shift)
            generator = torch.Generator().manual_seed(seed + 100)
            target = torch.randint(0, 11, (7,), generator=generator)
            allowed = torch.rand(7, 11, generator=generator) < 0.7
            want = [loop_target_rank(scores[i].tolist(), int(target[i]), allowed[i].tolist()) for i in range(7)]
            assert target_ranks(scores, target, allowed).tolist() == want
            everything = [loop_target_rank(scores[i].tolist(), int(target[i]), [True] * 11) for i in range(7)]
            assert target_ranks(scores, target).tolist() == everything


@pytest.mark.parametrize("smallest", [0, 2**62])
def test_relevant_ranks_against_loops(subtests, smallest, monkeypatch):
    """With compiled passes, where numba is installed, and without."""
    monkeypatch.setattr(compiled, "SMALLEST", smallest)
    for seed, shift, levels in itertools.product(range(8), (0.0, -50.0), (None, 2)):
        with subtests.test(seed=seed, shift=shift, levels=levels):
            scores = table(seed, 9, 30, levels=levels, shift=shift)
            generator = torch.Generator().manual_seed(seed + 100)
            lengths = torch.randint(0, 6 if seed < 4 else 21, (9,), generator=generator).tolist()
            rows = [torch.randperm(30, generator=generator)[:n].tolist() for n in lengths]
            allowed = torch.rand(9, 30, generator=generator) < 0.7
            for mask in (None, allowed):
                open_to = torch.ones(9, 30, dtype=torch.bool) if mask is None else mask
                ranks = relevant_ranks(scores, Ragged.of(rows), mask)
                for i, row in enumerate(rows):
                    want = loop_relevant_ranks(scores[i].tolist(), row, open_to[i].tolist())
                    assert ranks.row(i).tolist() == want, f"row {i}, masked: {mask is not None}"


@pytest.mark.parametrize("smallest", [0, 2**62], ids=["compiled", "torch"])
@pytest.mark.parametrize("levels", [None, 2], ids=["distinct", "ties"])
def test_a_column_left_out_counts_as_one_that_is_not_allowed(subtests, levels, smallest, monkeypatch):
    """One of the best images, the target, another one, or none (-1)."""
    monkeypatch.setattr(compiled, "SMALLEST", smallest)
    scores = table(3, 12, 23, levels=levels)
    target = torch.arange(12) % 5
    best = scores.argmax(1)
    left_out = torch.where(torch.arange(12) % 4 == 0, best, torch.tensor([-1, 22, 3]).repeat(4))
    left_out[7] = target[7]
    allowed = torch.ones(12, 23, dtype=torch.bool)
    for row, column in enumerate(left_out.tolist()):
        if column >= 0:
            allowed[row, column] = False
    assert torch.equal(target_ranks(scores, target, left_out=left_out), target_ranks(scores, target, allowed))
    relevant = Ragged.of([[int(column), 20] for column in target])
    without = relevant_ranks(scores, relevant, left_out=left_out)
    assert torch.equal(without.values, relevant_ranks(scores, relevant, allowed).values)
    for k in (1, 4, 22, 23, 40):
        with subtests.test(k=k):
            assert torch.equal(top_columns(scores, k, left_out=left_out), top_columns(scores, k, allowed))


def test_infinite_scores_are_ranked():
    scores = torch.tensor([[float("-inf"), float("-inf"), 0.0, float("inf")]])
    assert relevant_ranks(scores, Ragged.of([[0, 2]])).values.tolist() == [4, 2]
    assert target_ranks(scores, torch.tensor([0])).tolist() == [4]


def test_one_candidate_is_first_and_no_target_is_zero():
    assert target_ranks(torch.tensor([[-3.0], [2.0]]), torch.tensor([0, -1])).tolist() == [1, 0]


def test_half_precision_is_compared_in_float32():
    scores = table(3, 20, 40).half()
    target = torch.arange(20)
    assert torch.equal(target_ranks(scores, target), target_ranks(scores.float(), target))
    # 2048 and 2049 are one number in half precision and two in float32
    assert target_ranks(torch.tensor([[2048.0, 2049.0]]), torch.tensor([1])).tolist() == [1]
    assert target_ranks(torch.tensor([[2048.0, 2049.0]]).half(), torch.tensor([1])).tolist() == [2]


def test_nan_is_an_error_that_says_where():
    scores = torch.zeros(2, 3)
    scores[1, 2] = float("nan")
    with pytest.raises(NegbenchError, match="row 1, column 2"):
        target_ranks(scores, torch.tensor([0, 0]))
    with pytest.raises(NegbenchError, match="NaN"):
        relevant_ranks(scores, Ragged.of([[0], [1]]))


def test_top_columns_against_a_sorted_list(subtests):
    for k, levels in itertools.product((1, 3, 9, 40), (None, 2)):
        with subtests.test(k=k, levels=levels):
            generator = torch.Generator().manual_seed(k + 100)
            scores = table(k, 30, 12, levels=levels, shift=-1 if levels else -3)
            scores[0, 3] = -torch.inf
            scores[1] = -torch.inf
            allowed = torch.rand(30, 12, generator=generator) < 0.6
            allowed[2] = False
            allowed[3] = True
            for mask in (None, allowed):
                top = top_columns(scores, k, mask)
                assert top.shape == (30, min(k, 12)), f"masked: {mask is not None}"
                for row in range(30):
                    pool = [c for c in range(12) if mask is None or mask[row, c]]
                    best = sorted(pool, key=lambda c: (-float(scores[row, c]), c))[:k]
                    want = best + [-1] * (top.shape[1] - len(best))
                    assert top[row].tolist() == want, f"row {row}, masked: {mask is not None}"
            assert torch.equal(top_columns(scores.half(), 12), descending(scores.half().float()))


@pytest.mark.parametrize("levels", [None, 3, 40, 1000])
def test_top_columns_of_wide_rows(subtests, levels):
    """Few of many columns: distinct scores, ties at the last position, and rows with fewer candidates."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, 700, generator=generator)
    share = torch.rand(50, 1, generator=generator) / 8
    if levels is not None:
        scores = (scores * levels).round() / levels
    some = torch.rand(50, 700, generator=generator) < share
    for k, mask in itertools.product((1, 4, 9), (None, some)):
        with subtests.test(k=k, masked=mask is not None):
            want = descending(scores if mask is None else scores.masked_fill(~mask, -torch.inf))[:, :k]
            if mask is not None:
                want = want.where(mask.gather(1, want), -1)
            assert torch.equal(top_columns(scores, k, mask), want)


def test_top_columns_of_nothing_and_of_nan():
    assert top_columns(torch.zeros(0, 4), 3).shape == (0, 3)
    assert top_columns(torch.zeros(4, 0), 3).shape == (4, 0)
    with pytest.raises(NegbenchError, match="NaN"):
        top_columns(torch.tensor([[0.0, torch.nan]]), 1)
    with pytest.raises(NegbenchError, match="k must be >= 1, got 0"):
        top_columns(torch.zeros(1, 1), 0)


# --- recall and mAP at k ---------------------------------------------------------------------------------------------


NO_VALUE = [
    (hits_at_k, (torch.tensor([1]), 0), "k must be >= 1, got 0"),
    (expected_hits_at_k, (torch.tensor([1]), torch.tensor([2]), 0, 2), "k must be >= 1, got 0"),
    (hits_at_k, (torch.tensor([], dtype=torch.int64), 1), "needs at least one query"),
    (hits_at_k, (torch.tensor([1, 0]), 1), "1 queries have none"),
    (average_precision_at_k, (Ragged.of([[1]]), -3), "k must be >= 1, got -3"),
    (average_precision_at_k, (Ragged.of([]), 1), "needs at least one query"),
    (average_precision_at_k, (Ragged.of([[1], []]), 1), "1 have none"),
]


@pytest.mark.parametrize(("metric", "inputs", "message"), NO_VALUE)
def test_what_has_no_recall_or_average_precision(metric, inputs, message):
    with pytest.raises(NegbenchError, match=message):
        metric(*inputs)


def loop_average_precision(scores: list[float], relevant: list[int], k: int) -> float:
    # irrelevant images first among equals: ties count against the model
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], j in relevant))
    hits = 0
    total = 0.0
    for rank, image in enumerate(order[:k], start=1):
        if image in relevant:
            hits += 1
            total += hits / rank
    return total / min(len(relevant), k)


def test_average_precision_against_a_loop(subtests):
    for seed, levels, k in itertools.product(range(4), (None, 3), (1, 3, 10, 30)):
        with subtests.test(seed=seed, levels=levels, k=k):
            generator = torch.Generator().manual_seed(seed + 100)
            scores = table(seed, 12, 30, levels=levels, shift=0 if levels else -3)
            lengths = torch.randint(1, 8, (12,), generator=generator).tolist()
            rows = [torch.randperm(30, generator=generator)[:n].tolist() for n in lengths]
            precisions = average_precision_at_k(relevant_ranks(scores, Ragged.of(rows)), k)
            want = [loop_average_precision(scores[i].tolist(), rows[i], k) for i in range(12)]
            assert precisions.tolist() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("large", [0, 100])
def test_rows_hold_columns_by_a_loop(large, monkeypatch):
    monkeypatch.setattr(ragged, "_LARGE", large)
    lists = [[3, 0], [], [4, 2, 1]]
    columns = [4, 0, 4, 3]
    want = []
    for row in (2, 0, 0, 1):
        want.append([column in lists[row] for column in columns])
    assert Ragged.of(lists).among(torch.tensor([2, 0, 0, 1]), torch.tensor(columns), 5).tolist() == want
