"""The training loop: determinism, fairness, resuming to the bit, what a run leaves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from negbench.config import RunConfig
from negbench.errors import NegbenchError
from negbench.loop import runs
from negbench.loop.runs import Bench
from negbench.loop.types import RunResult
from negbench.runfolder import RunFolder
from negbench.systems.system import load_config


def config_of(strategy: str, vector_sets: list[str], *more: str, loss: str = "bradley-terry") -> RunConfig:
    flags = {"strategy": {"name": strategy}, "loss": {"name": loss}}
    return load_config(flags=flags, sets=[*vector_sets, *more])


def run(config: RunConfig, where: Path, **options: Any) -> RunResult:
    return runs.run_config(config, Bench.open(where, "none"), **options)


def test_a_run_leaves_the_global_generators_alone(tmp_path: Path, toy_sets: list[str]) -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  # the legacy generator is what must be left alone
    torch.manual_seed(5)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    run(config_of("qure", toy_sets, "train.epochs=2"), tmp_path)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_run_leaves_its_files(tmp_path: Path, toy_sets: list[str]) -> None:
    result = run(config_of("qure", toy_sets), tmp_path)
    curve = [p["val/average/recall_at_10"] for p in result.folder.metrics() if "val/average/recall_at_10" in p]
    assert curve[0] == result.details["baselines"]["untrained"]["average/recall_at_10"]
    assert curve[-1] == result.metrics["average/recall_at_10"]
    ranks = result.folder.ranks()
    assert len(ranks) == 36
    assert result.metrics["dress/recall_at_10"] == (ranks[ranks["group"] == "dress"]["target_rank"] <= 10).mean()
    assert isinstance(pd.read_parquet(result.path / "mining-00.parquet"), pd.DataFrame)
    assert result.details["behaviour_by_refresh"]


def test_a_diverged_model_is_one_line(tmp_path: Path, vector_sets: list[str]) -> None:
    with pytest.raises(NegbenchError, match=r"loss is nan|NaN") as error:
        run(config_of("in-batch", vector_sets, "train.lr=1e6"), tmp_path)
    assert "\n" not in str(error.value)
    folder = RunFolder(next(tmp_path.glob("in-batch*")))
    assert folder.status == "failed"
    assert str(error.value) in (folder.path / "error.txt").read_text(encoding="utf-8")


def test_a_run_has_its_threads_and_a_resumed_one_is_failed_no_more(
    tmp_path: Path, vector_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), list[tuple[str, int]]()

    def stopped(opened: Any, folder: RunFolder, log: Any) -> Any:
        seen.append((folder.status, torch.get_num_threads()))
        raise NegbenchError("mend this")

    monkeypatch.setattr(runs, "train", stopped)
    with pytest.raises(NegbenchError, match="mend this"):
        run(config_of("in-batch", vector_sets, f"compute.threads={before + 1}"), tmp_path)
    folder = RunFolder(next(tmp_path.glob("in-batch*")))
    assert folder.status == "failed"
    with pytest.raises(NegbenchError, match="mend this"):
        run(config_of("in-batch", vector_sets, f"compute.threads={before + 1}"), tmp_path)
    assert seen == [("interrupted", before + 1)] * 2
    assert torch.get_num_threads() == before
