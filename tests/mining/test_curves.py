"""Drops of sorted scores against a loop over every query and image."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from negbench.errors import NegbenchError
from negbench.metrics.score_curves import ScoreCurves, octave_positions
from negbench.mining.curves import score_curves
from negbench.mining.task import MiningTask
from tests.mining.test_regime import rows_of, task_of


def loops(task: MiningTask) -> list[tuple[list[float], list[int]]]:
    """Return each query's images' sorted scores, and the positions of the two steepest drops below the target."""
    expected = []
    for _, ranked, positive in rows_of(task):
        values = sorted([positive, *(score for score, _ in ranked)], reverse=True)
        drops = []
        for position, (higher, lower) in enumerate(pairwise(values)):
            if higher < positive:
                drops.append((lower - higher, position))
        expected.append((values, [position for _, position in sorted(drops)[:2]]))
    return expected


@pytest.mark.parametrize("shift", [0.0, -1.0])
def test_against_loops(shift):
    task = task_of(0, shift=shift)
    curves = score_curves(task)
    expected = loops(task)
    assert sorted(curves.queries.tolist()) == list(range(40))
    positions = octave_positions(min(len(values) for values, _ in expected)).tolist()
    means = [np.mean([values[position] for values, _ in expected]) for position in positions]
    assert curves.scores.tolist() == pytest.approx(means, rel=1e-5)
    for index, row in enumerate(curves.queries.tolist()):
        values, drops = expected[row]
        length = len(values)
        assert curves.length[index] == length, f"query {row}"
        assert [position for position in curves.drops[index].tolist() if position >= 0] == drops, f"query {row}"
        shares = [position / (length - 1) for position in drops]
        assert curves.shares[index, : len(drops)].tolist() == pytest.approx(shares), f"query {row}"
        assert np.isnan(curves.shares[index, len(drops) :]).all(), f"query {row}"


def test_round_trip_is_exact_and_the_bytes_repeat(subtests, tmp_path):
    curves = score_curves(task_of(0))
    curves.save(tmp_path / "a.npz")
    curves.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = ScoreCurves.load(tmp_path / "a.npz")
    for name in ("queries", "length", "drops", "scores"):
        with subtests.test(name=name):
            assert np.array_equal(getattr(again, name), getattr(curves, name))


def test_a_file_without_scores_is_read(tmp_path):
    curves = score_curves(task_of(0))
    np.savez(tmp_path / "old.npz", queries=curves.queries, length=curves.length, drops=curves.drops)
    assert len(ScoreCurves.load(tmp_path / "old.npz").scores) == 0


def test_a_damaged_or_missing_file_is_named(tmp_path):
    score_curves(task_of(0)).save(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(NegbenchError, match=r"a\.npz"):
        ScoreCurves.load(tmp_path / "a.npz")
    with pytest.raises(NegbenchError, match=r"none\.npz"):
        ScoreCurves.load(tmp_path / "none.npz")


def test_a_corpus_of_the_target_and_one_more():
    tokens = torch.tensor([[[0.5, 0.0]], [[0.9, 0.0]]])
    first = torch.tensor([0])
    task = MiningTask(torch.tensor([[1.0, 0.0]]), tokens, first, first, [torch.arange(2)])
    assert score_curves(task).drops.tolist() == [[-1, -1]]


def test_positions_are_an_eighth_of_an_octave_apart_and_those_of_a_shorter_row_come_first():
    positions = octave_positions(17_000)
    ranks = positions[40:] + 1
    ratios = ranks[1:] / ranks[:-1]
    assert ratios == pytest.approx(np.full(len(ratios), 2 ** (1 / 8)), rel=0.03)
    assert len(positions) < 110
    assert np.array_equal(octave_positions(600), positions[: len(octave_positions(600))])
