"""Drops of sorted scores against a loop over every query and image."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from negbench.contracts import relevance
from negbench.errors import NegbenchError
from negbench.metrics.ragged import Ragged
from negbench.mining.curves import Curves, score_curves, spaced
from negbench.mining.task import MiningTask


def task_of(seed: int = 0, queries: int = 12, shift: float = 0.0) -> MiningTask:
    """Return a task of two groups of 9 and 14 images, two tokens each; `shift` < 0 makes every score negative."""
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randn(20, 2, 6, generator=generator)
    points = torch.randn(queries, 6, generator=generator)
    if shift:
        candidates[..., 0], points[:, 0] = 30.0, shift
    groups = [torch.arange(9), torch.arange(6, 20)]
    group = torch.arange(queries) % 2
    target = torch.tensor([int(groups[g][(3 * i) % len(groups[g])]) for i, g in enumerate(group.tolist())])
    excluded = Ragged.of([[int(groups[g][(3 * i + 1) % len(groups[g])])] for i, g in enumerate(group.tolist())])
    return MiningTask(points, candidates, target, group, groups, excluded=excluded)


def loop(task: MiningTask, row: int) -> tuple[list[float], list[int]]:
    """Return the ranked images' sorted scores, and the places of the two steepest drops below the target, by loops."""
    scores = relevance(task.queries, task.candidates)[row].tolist()
    target, gone = int(task.target[row]), task.excluded.row(row).tolist()
    values = [scores[c] for c in task.groups[int(task.group[row])].tolist() if c == target or c not in gone]
    values.sort(reverse=True)
    drops = [(b - a, place) for place, (a, b) in enumerate(pairwise(values)) if a < scores[target]]
    return values, [place for _, place in sorted(drops)[:2]]


def test_against_loops():
    for shift in [0.0, -1.0]:
        task = task_of(shift=shift)
        curves = score_curves(task)
        assert sorted(curves.queries.tolist()) == list(range(12))
        rows = [loop(task, row)[0] for row in curves.queries.tolist()]
        places = [0, 1, 2, 3, 4, 5, 6, 7]  # eighths of octaves: every place of a short ranking
        assert min(map(len, rows)) == len(places) == len(curves.scores)
        assert curves.scores.tolist() == pytest.approx([np.mean([row[p] for row in rows]) for p in places], rel=1e-5)
        for index, row in enumerate(curves.queries.tolist()):
            length, drops = len(rows[index]), loop(task, row)[1]
            assert curves.length[index] == length
            assert [p for p in curves.drops[index].tolist() if p >= 0] == drops
            shares = [place / (length - 1) for place in drops]
            assert curves.shares[index, : len(drops)].tolist() == pytest.approx(shares)
            assert np.isnan(curves.shares[index, len(drops) :]).all()


def test_round_trip_is_exact_and_the_bytes_repeat(tmp_path):
    curves = score_curves(task_of())
    curves.save(tmp_path / "a.npz")
    curves.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = Curves.load(tmp_path / "a.npz")
    for name in ("queries", "length", "drops", "scores"):
        assert np.array_equal(getattr(again, name), getattr(curves, name))
    np.savez(tmp_path / "old.npz", queries=curves.queries, length=curves.length, drops=curves.drops)
    assert len(Curves.load(tmp_path / "old.npz").scores) == 0
    (tmp_path / "a.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:200])
    with pytest.raises(NegbenchError, match=r"a\.npz"):
        Curves.load(tmp_path / "a.npz")
    with pytest.raises(NegbenchError, match=r"none\.npz"):
        Curves.load(tmp_path / "none.npz")


def test_a_corpus_of_the_target_and_one_more():
    tokens, first = torch.tensor([[[0.5, 0.0]], [[0.9, 0.0]]]), torch.tensor([0])
    task = MiningTask(torch.tensor([[1.0, 0.0]]), tokens, first, first, [torch.arange(2)])
    assert score_curves(task).drops.tolist() == [[-1, -1]]


def test_places_are_an_eighth_of_an_octave_apart_and_those_of_a_shorter_row_come_first():
    places = spaced(17_000)
    ratios = (places[40:] + 1)[1:] / (places[40:] + 1)[:-1]
    assert ratios == pytest.approx(np.full(len(ratios), 2 ** (1 / 8)), rel=0.03)
    assert len(places) < 110
    assert np.array_equal(spaced(600), places[: len(spaced(600))])
