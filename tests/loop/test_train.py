"""The training loop: determinism, fairness, resuming to the bit, what a run leaves."""

from __future__ import annotations

import math
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from negbench.config import RunConfig, load_config
from negbench.errors import NegbenchError, RunError
from negbench.loop import record, runs
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import Bench, RunResult
from negbench.loop.train import Loop
from negbench.runfolder import RunFolder


def config_of(strategy: str, toy_sets: list[str], *more: str, loss: str = "bradley-terry") -> RunConfig:
    flags = {"strategy": {"name": strategy}, "loss": {"name": loss}}
    return load_config(flags=flags, sets=[*toy_sets, *more])


def run(config: RunConfig, where: Path, **options: Any) -> RunResult:
    return runs.run_config(config, Bench.open(where, "none"), **options)


def resume(name: str, where: Path) -> RunResult:
    return runs.resume(name, Bench.open(where, "none"))


def outcome(folder: RunFolder) -> dict[str, Any]:
    """All that must not depend on how a run was computed: everything but times, memory and the state of caches."""
    result = {k: v for k, v in folder.result.items() if k not in ("seconds", "peak_memory_mib", "images_encoded")}
    return result | {"points": folder.metrics(), "ranks": folder.ranks().to_json()}


def same_weights(a: RunFolder, b: RunFolder) -> bool:
    left, right = a.weights(), b.weights()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path, toy_sets: list[str]) -> None:
    first = run(config_of("qure", toy_sets), tmp_path / "a")
    second = run(config_of("qure", toy_sets), tmp_path / "b")
    other = run(config_of("qure", toy_sets, "seed=1"), tmp_path / "b")
    assert outcome(first.folder) == outcome(second.folder)
    assert same_weights(first.folder, second.folder)
    assert not same_weights(first.folder, other.folder)
    assert first.run_id == second.run_id  # named by what it is


def test_a_run_leaves_the_global_generators_alone(tmp_path: Path, toy_sets: list[str]) -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  # the legacy generator is what must be left alone
    torch.manual_seed(5)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    run(config_of("qure", toy_sets), tmp_path)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("stop_at", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["qure", "hycole"])
def test_interrupted_and_resumed_gives_the_same_bits(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch, strategy: str, stop_at: int
) -> None:
    config = config_of(strategy, toy_sets, "train.num_negatives=2")
    straight = run(config, tmp_path / "straight")
    real = Loop.train_epoch

    def interrupted(self: Loop) -> None:
        real(self)  # work that is lost
        if self.state.epoch == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "halves")
    monkeypatch.setattr(Loop, "train_epoch", real)
    assert RunFolder(tmp_path / "halves" / straight.run_id).status == "interrupted"
    resumed = resume(straight.run_id, tmp_path / "halves")
    assert outcome(resumed.folder) == outcome(straight.folder)
    assert same_weights(resumed.folder, straight.folder)
    assert not (resumed.path / "checkpoint.pt").exists()


def test_resuming_after_the_last_epoch_only_finishes(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("in-batch", toy_sets)
    straight = run(config, tmp_path / "straight")
    monkeypatch.setattr(record, "details", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "halves")
    monkeypatch.undo()
    resumed = resume(straight.run_id, tmp_path / "halves")
    assert outcome(resumed.folder) == outcome(straight.folder)


def test_what_cannot_be_resumed(tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(config_of("in-batch", toy_sets, "train.epochs=1"), tmp_path)
    with pytest.raises(RunError, match="is finished: there is nothing to resume"):
        resume(done.run_id, tmp_path)
    with pytest.raises(RunError, match="there is no run 'nosuch'"):
        resume("nosuch", tmp_path)
    (done.path / "result.json").unlink()
    monkeypatch.setattr(runs, "config_hash", lambda *_, **__: "0" * 64)
    with pytest.raises(RunError, match="cannot be resumed: code, data or weights have changed"):
        resume(done.run_id, tmp_path)


def test_strategies_of_one_seed_share_weights_and_batches(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[list[int]]] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    real = Objective.forward

    def watched(self: Objective, batch: Batch) -> Any:
        key = type(self.strategy).__name__
        if key not in weights:
            weights[key] = {n: p.detach().clone() for n, p in self.backbone.named_parameters()}
        seen.setdefault(key, []).append(batch.rows.tolist())
        return real(self, batch)

    monkeypatch.setattr(Objective, "forward", watched)
    for strategy in ("qure", "dqe", "in-batch", "oracle-all"):
        run(config_of(strategy, toy_sets), tmp_path)
    first, *others = weights
    for other in others:
        assert seen[other] == seen[first]
        assert all(torch.equal(weights[other][n], p) for n, p in weights[first].items())
    queries = 72
    assert sorted(row for rows in seen[first][: math.ceil(queries / 16)] for row in rows) == list(
        range(queries)
    )  # an epoch sees each once


@pytest.mark.parametrize("loss", ["bradley-terry", "info-nce", "margin-kl"])
@pytest.mark.parametrize(
    "strategy",
    [
        "all-corpus",
        "top-k",
        "after-target",
        "qure",
        "cirqrs",
        "dqe",
        "hycole",
        "in-batch",
        "oracle-after-target",
        "oracle-all",
    ],
)
def test_every_strategy_runs_with_every_loss(tmp_path: Path, toy_sets: list[str], strategy: str, loss: str) -> None:
    result = run(config_of(strategy, toy_sets, "train.epochs=2", loss=loss), tmp_path)
    assert all(0 <= value <= 1 for value in result.metrics.values())
    assert result.details["behaviour"]["pool_size"] > 0
    assert result.details["negatives_seen"] > 0


def test_batch_strategies_see_what_they_should(tmp_path: Path, toy_sets: list[str]) -> None:
    in_batch = run(config_of("in-batch", toy_sets, "train.epochs=1"), tmp_path)
    hycole = run(config_of("hycole", toy_sets, "train.epochs=1"), tmp_path)
    corpus = run(config_of("all-corpus", toy_sets, "train.epochs=1", "train.num_negatives=3"), tmp_path)
    assert corpus.details["negatives_seen"] == 72 * 3
    full = 4 * 16 * 15 + 8 * 7  # four batches of 16 and one of 8, nobody its own negative
    assert 0.9 * full < in_batch.details["negatives_seen"] <= full  # fewer where a batch holds a target twice
    assert 2.5 * full < hycole.details["negatives_seen"] <= 3 * full


def test_one_negative_per_query_is_drawn_each_epoch_without_repeats(
    tmp_path: Path, toy_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []
    real = Objective.forward

    def watched(self: Objective, batch: Batch) -> Any:
        assert batch.negatives is not None
        drawn.append(torch.cat([batch.rows[:, None], batch.negatives], dim=1))
        return real(self, batch)

    monkeypatch.setattr(Objective, "forward", watched)
    run(config_of("all-corpus", toy_sets, "train.num_negatives=2"), tmp_path)
    table = torch.cat(drawn)
    for query in range(72):
        negatives = table[table[:, 0] == query][:, 1:].flatten().tolist()
        assert len(negatives) == 4 * 2
        assert len(set(negatives)) == len(negatives)


def test_oracle_all_never_draws_what_is_relevant(tmp_path: Path, toy_sets: list[str]) -> None:
    oracle = run(config_of("oracle-all", toy_sets), tmp_path).details["behaviour"]
    plain = run(config_of("all-corpus", toy_sets), tmp_path).details["behaviour"]
    assert oracle["false_negative_rate_draws"] == oracle["false_negative_rate_pool"] == 0
    assert plain["false_negative_rate_pool"] > 0


def test_selection_on_dev_reports_its_best_epoch(tmp_path: Path, toy_sets: list[str]) -> None:
    result = run(config_of("in-batch", toy_sets, "eval.select=dev", "eval.dev_fraction=0.3"), tmp_path)
    points = [p for p in result.folder.metrics() if "dev/average/recall" in p]
    best = max(points, key=lambda p: p["dev/average/recall"])  # the first of equals
    assert result.details["reported_epoch"] == best["epoch"] + 1
    assert result.metrics == {k[4:]: v for k, v in best.items() if k.startswith("val/") and k[4:] in result.metrics}
    assert result.folder.manifest["dataset"]["train_queries"] < 72


def test_baselines_and_files(tmp_path: Path, toy_sets: list[str]) -> None:
    result = run(config_of("qure", toy_sets), tmp_path)
    names = {"untrained", "image_only", "text_only", "untrained_image_only", "untrained_text_only"}
    assert set(result.details["baselines"]) == names
    curve = [p["val/average/recall_at_10"] for p in result.folder.metrics() if "val/average/recall_at_10" in p]
    assert curve[0] == result.details["baselines"]["untrained"]["average/recall_at_10"]
    assert curve[-1] == result.metrics["average/recall_at_10"]
    assert len(curve) == 1 + 4
    ranks = result.folder.ranks()
    assert len(ranks) == 36
    assert result.metrics["dress/recall_at_10"] == (ranks[ranks["group"] == "dress"]["target_rank"] <= 10).mean()
    assert isinstance(pd.read_parquet(result.path / "mining-00.parquet"), pd.DataFrame)


def test_a_diverged_model_is_one_line(tmp_path: Path, toy_sets: list[str]) -> None:
    with pytest.raises(NegbenchError, match=r"loss is nan|NaN") as error:
        run(config_of("in-batch", toy_sets, "train.lr=1e30"), tmp_path)
    assert "\n" not in str(error.value)
    folder = RunFolder(next(tmp_path.glob("in-batch*")))
    assert folder.status == "failed"
    assert str(error.value) in (folder.path / "error.txt").read_text(encoding="utf-8")


def test_two_processes_cannot_compute_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.lock(), pytest.raises(RunError, match="by another process"), folder.lock():
        pytest.fail("both held it")


def test_a_torn_metrics_line_is_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "epoch": 0, "a": 1.0})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "epo')
    assert folder.metrics() == [{"step": 1, "epoch": 0, "a": 1.0}]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, toy_sets: list[str]) -> None:
    """Gradients are averaged over equal shares, so the weights are those of one process but for rounding."""
    config = config_of("all-corpus", toy_sets, "train.epochs=2", "train.batch_size=18")  # 72 queries: 4 even batches
    alone = run(config, tmp_path / "alone")
    command = [sys.executable, "-m", "negbench", "run", "--strategy", "all-corpus", "--tracking-uri", "none"]
    sets = [part for text in (*toy_sets, "train.epochs=2", "train.batch_size=18") for part in ("--set", text)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "1",
    }
    processes = [
        subprocess.Popen(
            [*command, *sets, "--runs-dir", str(tmp_path / "two")],
            env={**common, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert alone.run_id in outputs[0]
    assert outputs[1] == ""
    (folder,) = (RunFolder(p.parent) for p in (tmp_path / "two").glob("*/result.json"))
    assert folder.run_id == alone.run_id
    assert folder.result["negatives_seen"] == alone.details["negatives_seen"]
    losses = [[p["train/loss"] for p in f.metrics() if "train/loss" in p] for f in (alone.folder, folder)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for name, value in alone.folder.weights().items():
        torch.testing.assert_close(folder.weights()[name], value, atol=2e-4, rtol=1e-3)
