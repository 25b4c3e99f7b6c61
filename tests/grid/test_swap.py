"""The swap matrix: which cells there are, that all else is untouched, and that its parts add up."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.config import ResolvedConfig, set_layer
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.files import read_json
from negbench.grid.axes import expand
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.swap import Matrix, swap_matrix
from negbench.runfolder import RunFolder
from negbench.systems.system import PLAIN
from negbench.tracking import Tracker


def matrix_of(vector_sets: list[str], systems: str, strategies: str, seeds: int = 1) -> Matrix:
    return swap_matrix(
        [set_layer(text) for text in vector_sets],
        systems.split(","),
        expand("strategies", strategies),
        range(seeds),
        runs=Path("nowhere"),
        display=Display(),
        scenes=Scenes(),
    )


def config_of(matrix: Matrix, system: str, strategy: str) -> ResolvedConfig:
    return next(c.config for c in matrix.cells if c.labels["system"] == system and c.config.strategy.name == strategy)


def without_negatives(config: ResolvedConfig) -> dict[str, object]:
    return {
        key: value
        for key, value in config.flat().items()
        if not key.startswith(("strategy.", "schedule.")) and key != "train.num_negatives"
    }


def test_all_else_is_untouched(vector_sets: list[str]) -> None:
    matrix = matrix_of(vector_sets, "plain,qure,dqe", "all-corpus,in-batch,cirqrs,hycole")
    for system, own in (("plain", "in-batch"), ("qure", "qure"), ("dqe", "dqe")):
        assert matrix.own[system].startswith(own)
        base = config_of(matrix, system, own)
        swapped = {c.config.strategy.name: c.config for c in matrix.cells if c.labels["system"] == system}
        assert set(swapped) == {own, "all-corpus", "in-batch", "cirqrs", "hycole"}
        for config in swapped.values():
            assert without_negatives(config) == without_negatives(base)


def test_negatives_per_query_are_the_systems_own(vector_sets: list[str]) -> None:
    matrix = matrix_of(vector_sets, "plain,qure", "all-corpus,in-batch,hycole,cirqrs")
    for strategy, plain, qure in (("all-corpus", 15, 1), ("in-batch", None, 1), ("hycole", None, 1), ("cirqrs", 15, 1)):
        assert config_of(matrix, "plain", strategy).train.num_negatives == plain  # a batch of 16
        assert config_of(matrix, "qure", strategy).train.num_negatives == qure


def test_the_schedule_is_the_systems(vector_sets: list[str]) -> None:
    matrix = matrix_of([*vector_sets, "schedule.n_def=null", "train.epochs=12"], "qure,cirqrs", "qure,cirqrs")
    for system, refreshes in (("qure", (2, 4, 6, 8, 10)), ("cirqrs", (2, 4, 6, 8, 10))):
        for strategy in ("qure", "cirqrs"):
            assert config_of(matrix, system, strategy).schedule.refresh_epochs == refreshes


def test_corners_take_each_factor_from_one_or_the_other(vector_sets: list[str]) -> None:
    matrix = matrix_of(vector_sets, "plain,qure,hycole", "in-batch")
    assert PLAIN not in matrix.corners
    labels = matrix.corners["qure"]
    assert {tuple(sorted(factors)) for factors in labels} == {
        (),
        ("negatives",),
        ("objective",),
        ("negatives", "objective"),
    }  # vectors carry no architecture of QuRe's
    of = {c.labels["system"]: c.config for c in matrix.cells}
    for factors, label in labels.items():
        assert of[label].strategy.name == ("qure" if "negatives" in factors else "in-batch")
        assert of[label].loss.name == ("bradley-terry" if "objective" in factors else "info-nce")
    plain, whole = labels[frozenset()], labels[frozenset({"negatives", "objective"})]
    hashes = {c.labels["system"]: c.hash for c in matrix.cells}
    assert hashes[plain] == hashes[PLAIN]  # the same runs: computed once
    own = next(c for c in matrix.cells if c.labels["system"] == "qure" and c.config.strategy.name == "qure")
    assert hashes[whole] == own.hash
    # gated fusion is what this backbone has anyway: a factor that changes nothing is none
    assert {f for factors in matrix.corners["hycole"] for f in factors} == {"negatives", "objective"}


def test_what_is_not_defined_says_why(vector_sets: list[str]) -> None:
    matrix = matrix_of([*vector_sets, "train.batch_size=500"], "plain,qure", "all-corpus,in-batch-cube:k=null")
    assert {cell.strategy for cell in matrix.undefined} <= {"in-batch-cube"}
    for cell in matrix.undefined:
        assert cell.reason
        assert "\n" not in cell.reason


def test_the_command_prints_a_matrix_whose_parts_add_up(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], words_of: Callable[[Path], str]
) -> None:
    sets = [part for text in (*vector_sets, "train.epochs=2") for part in ("--set", text)]
    command = ["swap", "--systems", "plain,qure", "--strategies", "all-corpus,in-batch", "--seeds", "2"]
    command += ["--runs-dir", str(tmp_path), "--tracking-uri", "none", *sets]
    assert negbench(command) == 0
    out = capsys.readouterr().out
    assert "qure against plain:" in out
    assert "different runs, 0 of them finished before" in out
    folder = tmp_path / "swap"
    cells = pd.read_csv(folder / "swap.csv")
    assert len(cells) == 2 + 3  # plain: its own in-batch and all-corpus; qure: its own, all-corpus, in-batch
    rows = ComparisonFolder(folder).cells()
    for cell in cells.itertuples():
        results = [
            RunFolder(tmp_path / row["run"]).result
            for row in rows
            if row["system"] == cell.system and row["strategy"] == cell.strategy
        ]
        values = [result["metrics"][result["main_metric"]] for result in results]
        assert cell.mean == pytest.approx(np.mean(values))
        own = cells[(cells["system"] == cell.system) & cells["own"]]["mean"].item()
        assert math.isnan(cell.difference) if cell.own else cell.difference == pytest.approx(cell.mean - own, abs=1e-9)
    gains = pd.read_csv(folder / "decomposition.csv").set_index("part")["value"]
    assert gains["negatives"] + gains["objective"] == pytest.approx(gains["total"])
    means = cells[cells["own"]].set_index("system")["mean"]
    assert gains["total"] == pytest.approx(means["qure"] - means["plain"])
    assert (folder / "swap.png").read_bytes().startswith(b"\x89PNG")
    page = words_of(folder / "report" / "index.html")
    for line in read_json(folder / "swap.json")["answer"]:
        assert line.split(";")[0] in page
    before = (folder / "report" / "index.html").read_text(encoding="utf-8")
    (folder / "report" / "index.html").unlink()
    assert negbench(["report", "swap", "--runs-dir", str(tmp_path)]) == 0  # again, from the folder alone
    assert (folder / "report" / "index.html").read_text(encoding="utf-8") == before
    capsys.readouterr()
    results = [tmp_path / row["run"] / "result.json" for row in rows]
    computed = [path.stat().st_mtime_ns for path in results]
    assert negbench([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [path.stat().st_mtime_ns for path in results] == computed  # it goes on: nothing is computed again
    assert len(list(tmp_path.glob("*/result.json"))) == len(set(results))
    assert document["answer"] == json.loads((folder / "swap.json").read_text(encoding="utf-8"))["answer"]
    assert len(document["swap"]) == len((folder / "swap.csv").read_text(encoding="utf-8").splitlines()) - 1


def test_the_plain_system_alone_has_no_gain_to_take_apart(vector_sets: list[str], tmp_path: Path) -> None:
    sets = [part for text in (*vector_sets, "train.epochs=1") for part in ("--set", text)]
    command = ["swap", "--systems", "plain", "--strategies", "all-corpus", "--seeds", "2"]
    assert negbench([*command, "--runs-dir", str(tmp_path), *sets]) == 0
    page = (tmp_path / "swap" / "report" / "index.html").read_text(encoding="utf-8")
    assert "Gain over the plain system" not in page
    assert len(pd.read_csv(tmp_path / "swap" / "swap.csv")) == 2
    client = Tracker.open(tmp_path).client()
    experiment = client.get_experiment_by_name("swap")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`negbench.kind` = 'comparison'")
    assert parent.data.tags["mlflow.note.content"].startswith("plain: ")  # the answer
    (key,) = re.findall(r"viewStateShareKey=(\w+)$", Tracker.open(tmp_path).address("swap"))
    view = json.loads(json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])["state"])
    assert view["selectedColumns"][:3] == ["tags.`strategy`", "tags.`loss`", "tags.`seed`"]
    assert client.search_runs([experiment.experiment_id], view["searchFilter"])
    assert not [tag for tag in experiment.tags if tag.endswith(".strategies")]  # no verdicts, no view of them
