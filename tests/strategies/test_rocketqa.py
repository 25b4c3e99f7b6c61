from __future__ import annotations

from pathlib import Path

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.layers import parse_plugin
from negbench.loop.runs import Bench, run_config
from negbench.strategies.rocketqa import Rocketqa
from negbench.systems.system import load_config
from negbench.testing import as_sets, ranking, toy_views
from negbench.testing.vector_files import write_vectors


def naive(view: ScoreView, row: int, strategy: Rocketqa) -> set[int]:
    ranked, guide = ranking(view, row), view.planes["guide"][row].tolist()
    taken: list[int] = []
    for j in ranked[: strategy.k]:
        if len(taken) < strategy.n and guide[j] < strategy.limit:
            taken.append(j)
    return set(taken or ranked[strategy.k :])


@pytest.mark.parametrize(
    "strategy", [Rocketqa(k=6, n=2, limit=0.0), Rocketqa(k=2, n=4, limit=-0.5), Rocketqa(k=4, n=1, limit=0.9)], ids=str
)
def test_against_loops(strategy: Rocketqa) -> None:
    beyond = 0
    for view in toy_views():
        want = [naive(view, row, strategy) for row in range(6)]
        assert as_sets(strategy.pool(view)) == want
        beyond += sum(len(pool) > strategy.n for pool in want)
    assert beyond or strategy.k > 2


def test_by_hand() -> None:
    """Ranks of scores below zero: 3, 1, 4, 0. The guide is sure of 1 and 0; with k 1 it is sure of none."""
    scores = torch.tensor([[-0.9, -0.2, -0.5, -0.1, -0.3]])
    guide = torch.tensor([[0.0, 0.05, 0.9, 0.8, torch.nan]])
    view = ScoreView(scores, torch.tensor([2]), planes={"guide": guide})
    assert as_sets(Rocketqa(k=4, n=2).pool(view)) == [{0, 1}]
    assert as_sets(Rocketqa(k=4, n=1).pool(view)) == [{1}]
    assert as_sets(Rocketqa(k=1).pool(view)) == [{0, 1, 4}]
    assert as_sets(Rocketqa(k=4, limit=-0.5).pool(view)) == [set()]


def test_a_run_with_a_guide_and_a_filtered_batch(vector_sets: list[str], tmp_path: Path) -> None:
    """Both parts of the union read the guide, each in its own place."""
    write_vectors(tmp_path / "guide", seed=1)
    guide = f"precomputed:images={tmp_path / 'guide' / 'images.npz'}:texts={tmp_path / 'guide' / 'texts.npz'}"
    found = {}
    for name in ("rocketqa:k=8:limit=0.3", "in-batch+rocketqa:k=8:limit=0.3", "gist+rocketqa:k=8:limit=0.3"):
        config = load_config(flags={"strategy": parse_plugin(name)}, sets=[*vector_sets, f"mining.guide='{guide}'"])
        found[name.split(":")[0]] = run_config(config, Bench.open(tmp_path, "none"))
    seen = {name: result.details["negatives_seen"] for name, result in found.items()}
    assert seen["rocketqa"] == 4 * 48
    assert seen["rocketqa"] < seen["gist+rocketqa"] < seen["in-batch+rocketqa"]
    assert found["rocketqa"].details["behaviour"]["pool_size"] <= 20
