"""What temperatures, budgets and draws do to a whole run: trained, saved, resumed to the bit, written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.api import make_loss, make_strategy
from negbench.config import RunConfig, resolved
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.loop import runs
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import Bench
from negbench.loop.types import RunResult
from negbench.systems.system import load_config

OWN = ("hybrid.alpha=0.4", "hybrid.beta=0.1")


def config_of(strategy: str, toy_sets: list[str], *more: str, loss: str = "info-nce") -> RunConfig:
    flags = {"strategy": {"name": strategy}, "loss": {"name": loss}}
    return load_config(flags=flags, sets=[*toy_sets, "train.epochs=3", *more])


def run(config: RunConfig, where: Path) -> RunResult:
    return runs.run_config(config, Bench.open(where, "none"))


@pytest.mark.parametrize("more", [OWN, ("train.num_negatives=5",)], ids=["temperatures", "thinned"])
def test_resumed_runs_go_on_with_their_temperatures_and_draws(
    tmp_path: Path, toy_sets: list[str], interrupted: Callable[..., Bench], more: tuple[str, ...]
) -> None:
    config = config_of("hycole", toy_sets, *more)
    straight = run(config, tmp_path / "straight")
    resumed = runs.run_config(config, interrupted(config, tmp_path / "halves", 1))
    for name in ("metrics", "temperatures", "draws", "negatives_seen", "behaviour"):
        assert resumed.details[name] == straight.details[name]
    assert resumed.folder.metrics() == straight.folder.metrics()


def test_own_temperatures_are_trained_and_written_down(tmp_path: Path, toy_sets: list[str]) -> None:
    result = run(config_of("hycole", toy_sets, *OWN), tmp_path)
    points = [p for p in result.folder.metrics() if "train/temperature" in p]
    for term in ("icm", "tcm", "ritm", "titm"):
        curve = [p[f"train/temperature_{term}"] for p in points]
        assert len(set(curve)) == 3
        assert abs(math.log(curve[0]) + 1) < 0.2  # from e^-1 on
        assert result.details["temperatures"][term] == curve[-1]
    # nothing divides by the backbone's, so it stays
    assert len({p["train/temperature"] for p in points}) == 1
    plain = run(config_of("hycole", toy_sets), tmp_path)
    assert list(plain.details["temperatures"]) == ["backbone"]
    assert len({p["train/temperature"] for p in plain.folder.metrics() if "train/temperature" in p}) == 3


def test_temperatures_are_trained_at_the_full_rate_and_without_decay(toy_sets: list[str]) -> None:
    config = resolved(config_of("hycole", toy_sets, *OWN))
    opened = runs.open_run(config, Display(), Scenes())
    strategy, loss = make_strategy("hycole"), make_loss("info-nce")
    objective = Objective(opened.backbone, strategy, loss, opened.scene, config.mining, config.hybrid)
    (group,) = torch.optim.AdamW(objective.parameter_groups(0.25), weight_decay=0.5).param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0)
    assert {id(p) for p in group["params"]} == {id(p) for p in objective.temperatures.parameters()}
    assert len(group["params"]) == 4


def test_a_batch_strategy_keeps_as_many_negatives_as_it_is_told(tmp_path: Path, toy_sets: list[str]) -> None:
    whole = run(config_of("in-batch", toy_sets), tmp_path)
    thinned = run(config_of("in-batch", toy_sets, "train.num_negatives=5"), tmp_path)
    corpus = run(config_of("all-corpus", toy_sets, "train.num_negatives=5"), tmp_path)
    assert thinned.details["negatives_seen"] == corpus.details["negatives_seen"] == 3 * 72 * 5
    assert whole.details["negatives_seen"] > thinned.details["negatives_seen"]
    assert whole.details["draws"] == {"per_query": None, "replacement": None}
    assert thinned.details["draws"] == {"per_query": 5, "replacement": None}
    assert corpus.details["draws"] == {"per_query": 5, "replacement": False}
    assert thinned.folder.path != whole.folder.path


def test_with_replacement_an_epoch_may_repeat_a_negative(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[bool, list[torch.Tensor]] = {}
    real = Objective.forward

    def watched(self: Objective, batch: Batch) -> Any:
        assert batch.negatives is not None
        seen.setdefault(self.mining.replacement, []).append(torch.cat([batch.rows[:, None], batch.negatives], dim=1))
        return real(self, batch)

    monkeypatch.setattr(Objective, "forward", watched)
    repeats = {}
    for replacement in (False, True):
        sets = ("train.num_negatives=4", f"mining.replacement={str(replacement).lower()}")
        result = run(config_of("all-corpus", toy_sets, *sets), tmp_path)
        assert result.details["draws"] == {"per_query": 4, "replacement": replacement}
        table = torch.cat(seen[replacement])
        rows = [table[table[:, 0] == query][:, 1:].flatten().tolist() for query in range(72)]
        assert all(len(row) == 12 for row in rows)
        repeats[replacement] = sum(12 - len(set(row)) for row in rows)
    # 31 images: 3 * 16 / 31 of a query's 12 draws are repeats on average, 111 of all
    assert repeats[False] == 0
    assert 60 < repeats[True] < 170


def test_thinning_draws_from_the_runs_own_stream(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anew for each query and epoch, otherwise under another seed, and without moving the batches."""
    rows: dict[str, list[list[int]]] = {}
    streams: dict[str, list[tuple[int, int]]] = {}
    real, key = Objective.forward, ""

    def watched(self: Objective, batch: Batch) -> Any:
        rows.setdefault(key, []).append(batch.rows.tolist())
        if batch.seed is not None:
            streams.setdefault(key, []).extend(zip(batch.rows.tolist(), batch.seed.tolist(), strict=True))
        return real(self, batch)

    monkeypatch.setattr(Objective, "forward", watched)
    for name, more in {
        "whole": (),
        "thinned": ("train.num_negatives=3",),
        "other": ("train.num_negatives=3", "seed=1"),
    }.items():
        key = name
        run(config_of("in-batch", toy_sets, *more), tmp_path)
    assert rows["whole"] == rows["thinned"] != rows["other"]
    assert "whole" not in streams
    assert len(set(streams["thinned"])) == len(streams["thinned"]) == 3 * 72
    assert len({seed for _, seed in streams["thinned"] + streams["other"]}) == 2 * 3 * 72
