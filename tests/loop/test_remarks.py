"""What looks wrong about a run, from made-up states: each line comes when it should, and not a step before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from negbench.cli.main import run as negbench
from negbench.config import ResolvedConfig, resolved
from negbench.loop.remarks import remarks_of
from negbench.loop.types import State
from negbench.registry import registry
from negbench.systems.system import load_config


def config_of(vector_sets: list[str], *more: str) -> ResolvedConfig:
    return resolved(load_config(flags={"strategy": {"name": "qure"}}, sets=[*vector_sets, *more]))


def told(vector_sets: list[str], loss: str = "bradley-terry", **state: Any) -> list[str]:
    return remarks_of(config_of(vector_sets), registry.make("losses", loss), State(**state), queries=100)


def losses(*values: float) -> list[dict[str, float]]:
    return [{"epoch": float(epoch), "train/loss": value} for epoch, value in enumerate(values)]


def test_nothing_is_said_of_a_healthy_run(vector_sets: list[str]) -> None:
    behaviour = [{"epoch": 1.0, "stale": 0.0, "fallback_below": 4.0, "fallback_any": 6.0}]
    points = [*losses(0.69, 0.6, 0.5, 0.4), {"epoch": 3.0, "val/query_concentration": 0.97}]
    assert told(vector_sets, behaviour=behaviour, points=points) == []


def test_fallbacks_and_stale_pools(vector_sets: list[str]) -> None:
    rows = [
        {"epoch": 1.0, "stale": 0.0, "fallback_below": 5.0, "fallback_any": 6.0},
        {"epoch": 3.0, "stale": 1.0, "fallback_below": math.nan},
    ]
    assert told(vector_sets, behaviour=rows) == [
        "epoch 1: the pools of 11% of the queries were empty, and drawn from a fallback",
        "epoch 3: the refresh left every pool as it was",
    ]


def test_collapsed_embeddings_once(vector_sets: list[str]) -> None:
    points = [{"epoch": float(e), "val/query_concentration": v} for e, v in ((0, 0.9), (1, 0.99), (2, 1.0))]
    assert told(vector_sets, points=points) == ["epoch 2: collapsed, all queries point the same way (0.990)"]


@pytest.mark.parametrize(
    ("loss", "level"), [("bradley-terry", math.log(2)), ("info-nce", math.log(2)), ("triplet", 0.2)]
)
def test_a_loss_that_stays_where_all_scores_are_equal(vector_sets: list[str], loss: str, level: float) -> None:
    """One negative: log 2 in closed form for the logistic ones, the margin for the hinge."""
    if registry.make("losses", loss).candidate_set != "pair":
        pytest.skip("its level depends on the batch")
    pinned = [level * 1.5, level * 1.1, level * 1.005, level * 0.995]
    (line,) = told(vector_sets, loss, points=losses(*pinned))
    assert line.startswith(f"the loss stays at {level:.3f}")
    assert told(vector_sets, loss, points=losses(*pinned[:3], level * 0.98)) == []
    assert told(vector_sets, loss, points=losses(level, level, level)) == []  # too short to tell


def test_the_end_of_a_run_prints_them(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that does not move: its pools stay, and so does its loss."""
    sets = [
        part for text in (*vector_sets, "train.lr=1e-12", "schedule.refresh_epochs=[1,2]") for part in ("--set", text)
    ]
    command = ["run", "--strategy", "after-target", *sets, "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    for _ in range(2):  # a second time it is read
        assert negbench(command) == 0
        assert "note: epoch 2: the refresh left every pool as it was" in capsys.readouterr().err.splitlines()
