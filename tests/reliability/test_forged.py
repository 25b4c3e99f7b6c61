"""Received comparisons whose hashes fit: what they say of themselves is not believed, but computed from their ranks."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from negbench import api
from negbench.analysis import unchanged
from negbench.analysis.cell_check import check_cells
from negbench.analysis.findings import read_findings
from negbench.analysis.unchanged import made_here
from negbench.analysis.words import csv_text
from negbench.cli.main import run as negbench
from negbench.errors import RunError
from negbench.machine.files import SUMS, sha256_of
from negbench.report.build import FROM_RANKS
from tests.vector_files import write_vectors

SETS = ("train.epochs=2", "train.batch_size=16", "train.lr=0.03")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with a comparison `duel`."""
    place = tmp_path_factory.mktemp("honest")
    flags = [word for text in (*write_vectors(place / "own"), *SETS) for word in ("--set", text)]
    grid = ["compare", "--strategies", "qure,in-batch", "--seeds", "2", "--name", "duel", "--lr=fixed", "--margin", "3"]
    assert negbench([*grid, *flags, "--runs-dir", str(place / "runs"), "--tracking-uri", "none"]) == 0
    return place / "runs"


@pytest.fixture
def received(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "runs")
    return tmp_path / "runs"


def fit(folder: Path) -> None:
    """Let SHA256SUMS fit what is in a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file and the hashes beside it."""
    value = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(value)), encoding="utf-8")
    fit(path.parent)


def forge(folder: Path) -> None:
    """Forge answer, statistics, tables and the note on their inputs."""
    for name in ("answer.md", "table.csv", "behaviour.csv"):
        path = folder / name
        path.write_text("qure wins by 40 points (FORGED)\n" + path.read_text(encoding="utf-8"), encoding="utf-8")

    def better(document: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(document).replace('"verdict": "', '"verdict": "FORGED ')
        return dict(json.loads(text))

    changed(folder / "statistics.json", better)
    fit(folder)


def test_what_this_machine_made_is_believed(received):
    assert "answer.md" in made_here(received, "duel")


def test_a_forged_answer_is_computed_again(honest, received, run_command):
    forge(received / "duel")
    run_command("report", "duel", "--runs-dir", received)
    page = (received / "duel" / "report" / "index.html").read_text(encoding="utf-8")
    assert "FORGED" not in page
    assert FROM_RANKS in page
    theirs, ours = api.load("duel", received), api.load("duel", honest)
    assert theirs.answer == ours.answer
    assert theirs.statistics.to_json() == ours.statistics.to_json()
    assert theirs.table.equals(ours.table)
    assert "FORGED" not in run_command("report", "duel", "--markdown", "--runs-dir", received).out


def test_the_rules_of_the_folder_are_used_and_damaged_ones_are_one_line(received, run_command):
    (received / "duel" / "answer.md").write_text("other\n", encoding="utf-8")
    fit(received / "duel")
    assert {row.margin for row in read_findings(received, "duel").main_verdicts} == {0.03}
    changed(received / "duel" / "inputs.json", lambda note: {**note, "rules": {"margin": "wide"}})
    assert "rules.margin" in run_command("report", "duel", "--runs-dir", received, code=2).err


def test_a_forged_look_is_not_believed(tmp_path, own_cache, subtests):
    unchanged.keep_look(tmp_path, 4, ["a"], {"open": []})
    assert unchanged.look(tmp_path, 4, ["a"]) == {"open": []}
    assert unchanged.look(tmp_path, 4, ["b"]) is None
    looks = tmp_path / "looks.json"
    looks.write_text(looks.read_text(encoding="utf-8").replace("[]", '["FORGED"]'), encoding="utf-8")
    assert unchanged.look(tmp_path, 4, ["a"]) is None
    for text in ("null", "[1]", '{"4": null}', '{"4": {"inputs": ["a"]}}'):
        with subtests.test(text):
            looks.write_text(text, encoding="utf-8")
            assert unchanged.look(tmp_path, 4, ["a"]) is None


def swap(cells: list[dict[str, Any]]) -> None:
    cells[0]["run"], cells[-1]["run"] = cells[-1]["run"], cells[0]["run"]


def swap_with_hashes(cells: list[dict[str, Any]]) -> None:
    swap(cells)
    cells[0]["hash"], cells[-1]["hash"] = cells[-1]["hash"], cells[0]["hash"]
    cells[0]["seed"], cells[-1]["seed"] = cells[-1]["seed"], cells[0]["seed"]


def name_twice(cells: list[dict[str, Any]]) -> None:
    for key in ("run", "hash", "seed"):
        cells[0][key] = cells[-1][key]


CELLS: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "runs swapped": (swap, "has another hash"),
    "runs and hashes swapped": (swap_with_hashes, "whose strategy is"),
    "one run twice": (name_twice, "whose strategy is"),
    "a run outside": (lambda cells: cells[0].update(run="../outside/x"), "expected the plain name"),
    "an absolute run": (lambda cells: cells[0].update(run="/outside/x"), "expected the plain name"),
    "a run that is a number": (lambda cells: cells[0].update(run=5), "cells.0.run: "),
    "another hash": (lambda cells: cells[0].update(hash="0" * 64), "has another hash"),
    "another seed": (lambda cells: cells[0].update(seed=7), "has another seed"),
    "another loss": (lambda cells: cells[0].update(loss="info-nce"), "whose loss is"),
    "another backbone": (lambda cells: cells[0].update(backbone="tiny"), "whose backbone is"),
}


@pytest.mark.parametrize("case", CELLS)
def test_a_cell_is_compared_with_its_run(received, run_command, case):
    change, text = CELLS[case]

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        change(document["cells"])
        return document

    changed(received / "duel" / "comparison.json", apply)
    assert text in run_command("report", "duel", "--runs-dir", received, code=2).err


def test_one_run_in_two_places_has_the_same_labels_in_both(tmp_path):
    """A run may stand in a table of two systems, but not for two strategies; nothing of it is read for that."""
    cell = {"strategy": "a", "loss": "l", "backbone": "b", "dataset": "d", "run": "x", "seed": 0, "hash": "h"}
    check_cells(tmp_path, [{**cell, "system": "s"}, {**cell, "system": "t"}])
    with pytest.raises(RunError, match="with different labels name one run, x"):
        check_cells(tmp_path, [cell, {**cell, "strategy": "c"}])


@pytest.mark.parametrize("rank", [0, -3, 10**6, float("nan")])
def test_ranks_that_are_none_are_one_line(received, run_command, rank):
    run = next(received.glob("qure-*"))
    frame = pd.read_parquet(run / "ranks.parquet")
    frame["target_rank"] = frame["target_rank"].astype(float)
    frame.loc[0, "target_rank"] = rank
    frame.to_parquet(run / "ranks.parquet")
    fit(run)
    assert "ranks.parquet" in run_command("report", "duel", "--runs-dir", received, code=2).err


def in_table(table: str, value: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change of the first number in a table of result.json."""
    return lambda result: {**result, table: {**result[table], next(iter(result[table])): value}}


FORGED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "main metric": lambda value: a_metric_of(0.9)(value),
    "another metric": in_table("metrics", 0.123),
    "a little": lambda value: a_metric_of(value["metrics"][value["main_metric"]] + 1e-4)(value),
}


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.parametrize("judged", [True, False])
def test_metrics_that_are_not_those_of_the_ranks_are_one_line(received, run_command, case, judged):
    run = next(received.glob("qure-*"))
    changed(run / "result.json", FORGED[case])
    if not judged:
        (received / "duel" / "statistics.json").unlink()
    fit(received / "duel")
    line = run_command("report", "duel", "--runs-dir", received, code=2).err
    assert f"run {run.name}: by its result.json " in line
    assert "its ranks give" in line
    with pytest.raises(RunError, match="its ranks give"):
        api.load(run.name, received)


# --- JSON of other shapes ------------------------------------------------------------------------------------------


def without(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda value: {key: part for key, part in value.items() if key not in keys}


def a_metric_of(number: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda value: {**value, "metrics": {**value["metrics"], value["main_metric"]: number}}


def rated(document: dict[str, Any], **row: Any) -> dict[str, Any]:
    """Return a comparison.json with the learning rate of one group."""
    labels = {"strategy": "qure", "loss": "l", "backbone": "b", "dataset": "d"}
    right = {"labels": labels, "seeds": [0, 1], "lr": 0.1, "tried": [[0.1, 0.5]]}
    return {**document, "rates": [{**right, **row}]}


JSONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{f"{file}: {text}": (file, lambda value, text=text: json.loads(text))
       for file in ("config.json", "result.json", "duel/comparison.json") for text in ("null", "[]", "{}", "7", '"x"')},
    "config.json: config null": ("config.json", lambda value: {**value, "config": None}),
    "config.json: hash 5": ("config.json", lambda value: {**value, "hash": 5}),
    "config.json: versions a list": ("config.json", lambda value: {**value, "versions": []}),
    "result.json: without behaviour": ("result.json", without("behaviour")),
    "result.json: without seconds": ("result.json", without("seconds")),
    "result.json: Infinity": ("result.json", a_metric_of(float("inf"))),
    "result.json: NaN": ("result.json", a_metric_of(float("nan"))),
    "result.json: a metric that is a text": ("result.json", a_metric_of("x")),  # type: ignore[arg-type]
    "comparison.json: a rate without all": ("duel/comparison.json", lambda value: {**value, "rates": [{"x": 1}]}),
    "comparison.json: a rate of no strategy": ("duel/comparison.json", lambda value: rated(value, labels={})),
    "comparison.json: a rate without seeds": ("duel/comparison.json", lambda value: rated(value, seeds=[])),
    "comparison.json: a rate that is a text": ("duel/comparison.json", lambda value: rated(value, lr="a")),
    "comparison.json: four values tried": (
        "duel/comparison.json", lambda value: rated(value, tried=[[0.1, 0.5, 7, 7]])),
    "comparison.json: a trial is a number": ("duel/comparison.json", lambda value: rated(value, runs=[[0.1, [5]]])),
    "comparison.json: trials before a rate": ("duel/comparison.json", lambda value: rated(value, runs=[[["a"], 1]])),
    "comparison.json: tuned, of nothing": ("duel/comparison.json", lambda value: {**value, "tuned": {"tunings": [{}]}}),
    "comparison.json: cells null": ("duel/comparison.json", lambda value: {**value, "cells": None}),
    "comparison.json: a cell null": ("duel/comparison.json", lambda value: {**value, "cells": [None]}),
    "comparison.json: a cell without run": (
        "duel/comparison.json", lambda value: {**value, "cells": [without("run")(cell) for cell in value["cells"]]}),
    "comparison.json: a seed that is Infinity": (
        "duel/comparison.json", lambda value: {**value, "cells": [{**value["cells"][0], "seed": float("inf")}]}),
}  # fmt: skip


@pytest.mark.parametrize("case", JSONS)
def test_json_of_another_shape_is_one_line_everywhere(received, run_command, case, subtests):
    name, change = JSONS[case]
    path = received / name if "/" in name else next(received.glob("qure-*")) / name
    changed(path, change)
    for command in (["report", "duel", "--latex"], ["report", "duel"], ["evaluate", "qure"]):
        if command[0] == "evaluate" and "comparison" in case:
            continue
        with subtests.test(" ".join(command)):
            lines = run_command(*command, "--runs-dir", received, code=2).err.splitlines()
            assert len(lines) == 1
            assert lines[0].startswith("negbench: error: ")


def test_runs_that_are_no_trials_are_refused_as_such(received, run_command):
    """The comparison's own runs are of the strategy, but at another rate, and reported."""
    names = [run.name for run in sorted(received.glob("qure-*"))]
    changed(received / "duel" / "comparison.json", lambda value: rated(value, runs=[[0.1, names]]))
    (line,) = run_command("report", "duel", "--latex", "--runs-dir", received, code=2).err.splitlines()
    assert f"names {', '.join(names)} as trials of 'qure' at the rate 0.1, which are other runs" in line


HOSTILE = "=cmd|' /C calc'!A0 \x1b[31m<script>alert(1)</script> & % $ _ # {}"


def test_hostile_texts_reach_no_terminal_table_or_paper(received, run_command):
    """In the label of a loss whose name is right, and in a remark."""

    def hostile(document: dict[str, Any]) -> dict[str, Any]:
        for cell in document["cells"]:
            cell["loss"] = f"{cell['loss']}({HOSTILE})"
            cell["dataset"] = HOSTILE
        return {**document, "remarks": [HOSTILE]}

    changed(received / "duel" / "comparison.json", hostile)
    run = next(received.glob("qure-*"))
    changed(run / "result.json", lambda value: {**value, "remarks": [HOSTILE]})
    page = run_command("report", "duel", "--card", "--runs-dir", received)
    latex = run_command("report", "duel", "--latex", "--runs-dir", received).out
    markdown = run_command("report", "duel", "--markdown", "--runs-dir", received).out
    assert "\x1b" not in page.out + page.err + latex + markdown
    assert "<script>" not in markdown
    assert r"\& \% \$ \_ \# \{\}" in latex
    for path in (received / "duel").rglob("*"):
        if path.suffix in (".csv", ".md", ".html", ".json") and path.name not in ("comparison.json", "inputs.json"):
            text = path.read_text(encoding="utf-8")
            assert "\x1b" not in text, path
            if path.suffix == ".csv":
                assert not re.search(r'(^|,)"?=', text, re.MULTILINE), path
            if path.suffix in (".md", ".html"):
                assert "<script>alert" not in text, path


@pytest.mark.parametrize(
    ("cell", "want"),
    [
        *(
            (text, text)
            for text in ("-", "-2.5", "+1.0 [0.5, 2.0]", "-0.25 ± 0.1", "-inf", "12 %", "a=b", "", "-1.5e-7")
        ),
        *((text, f"'{text}") for text in ("=1+1", "@SUM(A1)", "+cmd|x", "-1+cmd|' /C calc'!A0", "-x", "=")),
        ("\t=1", " =1"),
    ],
)
def test_no_cell_of_a_table_is_a_formula(cell, want):
    (header, written) = csv.reader(csv_text(pd.DataFrame({"=a": [cell], "n": [-1.5]})).splitlines())
    assert header == ["'=a", "n"]
    assert written == [want, "-1.5"]
