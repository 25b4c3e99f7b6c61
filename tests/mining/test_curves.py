"""Score curves against a loop over every query and image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from negbench.api import make_strategy
from negbench.contracts import relevance
from negbench.errors import NegbenchError
from negbench.metrics.ragged import Ragged
from negbench.mining.curves import Curves, marked, score_curves
from negbench.mining.mine import mine
from negbench.mining.task import MiningTask


def task_of(seed: int = 0, queries: int = 12, shift: float = 0.0) -> MiningTask:
    """Two groups of 9 and 14 images, two tokens each; `shift` < 0 makes every score negative."""
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


def loop(task: MiningTask, row: int) -> tuple[list[float], int, list[int]]:
    """Sorted scores, the target's place, and the two steepest drops below it, by plain loops."""
    assert task.excluded is not None
    scores = relevance(task.queries, task.candidates)[row].tolist()
    target, gone = int(task.target[row]), task.excluded.row(row).tolist()
    ranked = [c for c in task.groups[int(task.group[row])].tolist() if c == target or c not in gone]
    ranked.sort(key=lambda c: -scores[c])
    values = [scores[c] for c in ranked]
    drops = []
    for place in range(len(values) - 1):
        if values[place] < scores[target]:
            drops.append((values[place] - values[place + 1], place))
    drops.sort(key=lambda drop: (-drop[0], drop[1]))
    return values, ranked.index(target), [place for _, place in drops[:2]]


def test_against_loops() -> None:
    for shift in [0.0, -1.0]:
        task = task_of(shift=shift)
        found = score_curves(task)
        if shift:
            assert found.high.max() < 0
        assert sorted(found.queries.tolist()) == list(range(12))
        sampled = []
        for index, row in enumerate(found.queries.tolist()):
            values, place, drops = loop(task, row)
            assert found.length[index] == len(values)
            assert found.target[index] == place
            assert [p for p in found.drops[index].tolist() if p >= 0] == drops
            sampled.append([values[round(float(s) * (len(values) - 1))] for s in found.share])
        np.testing.assert_allclose(found.mean, np.mean(sampled, axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.low, np.percentile(sampled, 10, axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.high, np.percentile(sampled, 90, axis=0), rtol=1e-5, atol=1e-6)
        assert (found.pool == -1).all()
        assert np.isnan(found.shares(found.pool)).all()
        np.testing.assert_allclose(found.shares(found.target), found.target / (found.length - 1))


def test_pool_ends_are_those_of_the_strategy() -> None:
    for name in ["after-target", "top-k", "all-corpus", "qure"]:
        from negbench.contracts import ScoreView

        strategy = make_strategy(name, **({"k": 3} if name in ("after-target", "top-k") else {}))
        task = task_of(3)
        assert task.excluded is not None
        found = marked(score_curves(task), task, strategy)
        mined = mine(task, strategy, refresh=0, draws=2, generator=torch.Generator().manual_seed(1))
        known = marked(score_curves(task), task, strategy, mined=mined)  # as a run does that has just mined
        for field in dataclasses.fields(Curves):
            np.testing.assert_array_equal(getattr(known, field.name), getattr(found, field.name))
        scores = relevance(task.queries, task.candidates)
        for index, row in enumerate(found.queries.tolist()):
            columns = task.groups[int(task.group[row])]
            local = columns.tolist().index(int(task.target[row]))
            allowed = torch.tensor([[c not in task.excluded.row(row).tolist() for c in columns.tolist()]])
            pool = strategy.pool(ScoreView(scores[row, columns][None], torch.tensor([local]), allowed))[0]
            if not pool.any():  # the fallback's
                continue
            ranked = [c for c in range(len(columns)) if allowed[0, c] or c == local]
            ranked.sort(key=lambda c: -float(scores[row, columns[c]]))
            places = [ranked.index(c) for c in pool.nonzero()[:, 0].tolist()]
            assert found.pool[index].tolist() == [min(places), max(places)]


def test_the_sample_is_seeded_and_bounded() -> None:
    task = task_of(queries=40)
    first, second = score_curves(task, sample=10), score_curves(task_of(1, 40), sample=10)
    assert first.queries.tolist() == second.queries.tolist()
    assert len(first.queries) == 10
    state = torch.get_rng_state()
    marked(score_curves(task), task, make_strategy("qure"))
    assert torch.equal(torch.get_rng_state(), state)


def test_round_trip_is_exact_and_the_bytes_repeat(tmp_path: Path) -> None:
    found = marked(score_curves(task_of()), task_of(), make_strategy("qure"))
    found.save(tmp_path / "a.npz")
    found.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = Curves.load(tmp_path / "a.npz")
    for name in ("queries", "target", "drops", "pool", "mean"):
        assert np.array_equal(getattr(again, name), getattr(found, name))
    (tmp_path / "a.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:200])
    with pytest.raises(NegbenchError, match=r"a\.npz"):
        Curves.load(tmp_path / "a.npz")
    with pytest.raises(NegbenchError, match=r"none\.npz"):
        Curves.load(tmp_path / "none.npz")


def test_a_corpus_of_the_target_and_one_more() -> None:
    task = MiningTask(
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[[0.5, 0.0]], [[0.9, 0.0]]]),
        torch.tensor([0]),
        torch.tensor([0]),
        [torch.arange(2)],
    )
    found = marked(score_curves(task), task, make_strategy("after-target"))
    assert found.target.tolist() == [1]
    assert found.drops.tolist() == [[-1, -1]]
    assert found.pool.tolist() == [[0, 0]]
