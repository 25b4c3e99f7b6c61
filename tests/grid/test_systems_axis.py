"""Systems as an axis: its cells, settings that stay untouched, and the corners."""

from __future__ import annotations

from pathlib import Path

import pytest

from negbench.cli.main import run as negbench
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.grid.axes import expand
from negbench.grid.systems import Matrix, system_cells
from negbench.machine.files import read_json
from negbench.settings.config import ResolvedConfig
from negbench.settings.layers import set_layer
from negbench.systems.system import PLAIN


def matrix_of(vector_sets: list[str], systems: str, strategies: str, seeds: int = 1) -> Matrix:
    return system_cells(
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
        assert config_of(matrix, "plain", strategy).train.num_negatives == plain  # the 15 others in a batch of 16
        assert config_of(matrix, "qure", strategy).train.num_negatives == qure


def test_the_schedule_is_the_systems(vector_sets: list[str]) -> None:
    matrix = matrix_of([*vector_sets, "schedule.n_def=null", "train.epochs=12"], "qure,cirqrs", "qure,cirqrs")
    for system, refreshes in (("qure", (2, 4, 6, 8, 10)), ("cirqrs", (2, 4, 6, 8, 10))):
        for strategy in ("qure", "cirqrs"):
            assert config_of(matrix, system, strategy).schedule.refresh_epochs == refreshes


def corners_of(matrix: Matrix, system: str) -> dict[frozenset[str], str]:
    return {frozenset(corner["factors"]): corner["label"] for corner in matrix.corners[system]}


def test_corners_take_each_factor_from_one_or_the_other(vector_sets: list[str]) -> None:
    matrix = matrix_of(vector_sets, "plain,qure,hycole", "in-batch")
    assert PLAIN not in matrix.corners
    labels = corners_of(matrix, "qure")
    assert {tuple(sorted(factors)) for factors in labels} == {
        (),
        ("negatives",),
        ("objective",),
        ("negatives", "objective"),
    }  # vectors do not support QuRe's architecture
    of = {c.labels["system"]: c.config for c in matrix.cells}
    for factors, label in labels.items():
        assert of[label].strategy.name == ("qure" if "negatives" in factors else "in-batch")
        assert of[label].loss.name == ("bradley-terry" if "objective" in factors else "info-nce")
    plain, whole = labels[frozenset()], labels[frozenset({"negatives", "objective"})]
    hashes = {c.labels["system"]: c.hash for c in matrix.cells}
    assert hashes[plain] == hashes[PLAIN]  # the same runs: computed once
    own = next(c for c in matrix.cells if c.labels["system"] == "qure" and c.config.strategy.name == "qure")
    assert hashes[whole] == own.hash
    assert set().union(*corners_of(matrix, "hycole")) == {"negatives", "objective", "architecture"}
    for factors, label in corners_of(matrix, "hycole").items():
        fusion = "gated" if "architecture" in factors else "sum"  # every system starts from it, plain included
        assert of[label].backbone.options["fusion"] == fusion


def test_what_is_not_defined_says_why(vector_sets: list[str]) -> None:
    matrix = matrix_of([*vector_sets, "train.batch_size=500"], "plain,qure", "all-corpus,in-batch-cube:k=null")
    assert {cell["strategy"] for cell in matrix.undefined} <= {"in-batch-cube"}
    for cell in matrix.undefined:
        assert cell["reason"]
        assert "\n" not in cell["reason"]


def test_the_command_keeps_the_matrix_for_its_readers(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for text in (*vector_sets, "train.epochs=2") for part in ("--set", text)]
    command = ["compare", "--systems", "plain,qure", "--strategies", "all-corpus,in-batch", "--seeds", "2"]
    command += ["--name", "s", "--no-report", "--lr=fixed", "--runs-dir", str(tmp_path)]
    command += ["--tracking-uri", "none", *sets]
    assert negbench(command) == 0
    document = read_json(tmp_path / "s" / "comparison.json")
    names, corners, own = (document["systems"][key] for key in ("names", "corners", "own"))
    assert names == ["plain", "qure"]
    assert own == {"plain": "in-batch", "qure": "qure"}
    assert [corner["factors"] for corner in corners["qure"]] == [
        [], ["negatives"], ["objective"], ["negatives", "objective"],
    ]  # fmt: skip
    rows = document["cells"]
    assert {row["system"] for row in rows} == {*names, *(corner["label"] for corner in corners["qure"])}
    assert sum(row["system"] in names for row in rows) == 2 * (2 + 3)  # two seeds; in-batch is plain's own
    assert all(row["run"] for row in rows)
    capsys.readouterr()
    assert negbench([*command, "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        f"{len({row['hash'] for row in rows})} different runs), {len({row['hash'] for row in rows})} already finished"
        in out
    )
