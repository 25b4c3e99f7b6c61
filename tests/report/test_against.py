"""Two comparisons side by side: rows in both, verdicts that changed, settings that differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from negbench.cli.main import run as negbench
from negbench.machine.files import read_json, write_json


@pytest.fixture(scope="module")
def runs(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of `two` (seeds 0, 1) and `one` (seed 0, one epoch, no top-k; forged verdict on qure)."""
    where = tmp_path_factory.mktemp("against")
    common = [*(part for text in vector_sets for part in ("--set", text)), "--runs-dir", str(where), "--no-report"]
    common += ["--tracking-uri", "none", "--losses", "bradley-terry"]
    two = ["--strategies", "in-batch,qure,top-k", "--seeds", "2", "--set", "train.epochs=2"]
    assert negbench(["compare", "--lr=fixed", *common, *two, "--name", "two"]) == 0
    one = ["--strategies", "in-batch,qure", "--seeds", "1", "--set", "train.epochs=1"]
    assert negbench(["compare", "--lr=fixed", *common, *one, "--name", "one"]) == 0
    document = read_json(where / "one" / "statistics.json")
    for row in document["rows"]:
        row["verdict"] = "equal" if row["strategy"] == "qure" else row["verdict"]
    write_json(where / "one" / "statistics.json", document)
    return where


def rows_of(runs: Path, name: str) -> dict[str, Any]:
    return {row["strategy"]: row for row in read_json(runs / name / "statistics.json")["rows"] if row["main"]}


def test_rows_in_both_verdicts_that_changed_and_settings_that_differ(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert negbench(["report", "two", "--against", "one", "--runs-dir", str(runs), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    two, one = rows_of(runs, "two"), rows_of(runs, "one")
    assert {pair["two"]["strategy"] for pair in document["rows"]} == {"in-batch", "qure"}  # top-k is not in `one`
    for pair in document["rows"]:
        name = pair["two"]["strategy"]
        assert (pair["two"]["mean"], pair["one"]["mean"]) == (two[name]["mean"], one[name]["mean"])
    assert two["qure"]["verdict"] != "equal"
    assert document["answer"] == f"Of 2 rows in both, 1 verdict changed: qure (equal → {two['qure']['verdict']})."
    settings = {row["setting"]: (row["two"], row["one"]) for row in document["settings"]}
    assert settings.pop("seed") == ("0, 1", "0")
    assert settings.pop("train.epochs") == ("2", "1")
    assert {key.split(".")[0] for key in settings} <= {"schedule"}  # no entry for the missing seed
    moved = 100 * (two["qure"]["mean"] - one["qure"]["mean"])
    table = (runs / "two" / "against-one" / "tables" / "against.csv").read_text(encoding="utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith("qure")]
    assert row.endswith(f",{moved:+.2f},equal → {two['qure']['verdict']}")
    assert "equal → " in (runs / "two" / "against-one" / "index.html").read_text(encoding="utf-8")


def test_what_cannot_be_paired_is_said(runs: Path, refused: Callable[..., str]) -> None:
    refused(["report", "two", "--against", "two", "--runs-dir", str(runs)], "--against two: name another comparison")
    document = read_json(runs / "one" / "statistics.json")
    (runs / "bare").mkdir()
    write_json(runs / "bare" / "comparison.json", read_json(runs / "one" / "comparison.json"))
    for rows in ([], [row for row in document["rows"] if not row["main"]]):
        write_json(runs / "bare" / "statistics.json", {**document, "rows": [{**r, "strategy": "else"} for r in rows]})
        refused(
            ["report", "two", "--against", "bare", "--runs-dir", str(runs)], "'two' and 'bare' have no row in common"
        )
