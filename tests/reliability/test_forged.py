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
from negbench.analysis.unchanged import files_made_here
from negbench.analysis.words import csv_text
from negbench.cli.main import run as negbench
from negbench.errors import RunError
from negbench.machine.files import SUMS, sha256_of
from negbench.report.build import FROM_RANKS
from tests.runs import flags_of
from tests.vector_files import write_vectors

SETS = ("train.epochs=2", "train.batch_size=16", "train.lr=0.03")
Change = Callable[[Any], Any]  # from the document in a JSON file to another


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with a comparison `duel`."""
    folder = tmp_path_factory.mktemp("honest")
    flags = flags_of([*write_vectors(folder / "own"), *SETS])
    grid = ["compare", "--strategies", "qure,in-batch", "--seeds", "2", "--name", "duel", "--lr=fixed", "--margin", "3"]
    assert negbench([*grid, *flags, "--runs-dir", str(folder / "runs"), "--tracking-uri", "none"]) == 0
    return folder / "runs"


@pytest.fixture
def received(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "runs")
    return tmp_path / "runs"


def fit(folder: Path) -> None:
    """Let SHA256SUMS fit what is in a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def edit(path: Path, change: Change) -> None:
    """Change a JSON file and the hashes beside it."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(document)), encoding="utf-8")
    fit(path.parent)


def put(*path: str | int, value: Any) -> Change:
    """Return a change that puts a value at a path of a document, such as "cells", 0, "run"."""

    def change(document: Any) -> Any:
        *outer, key = path
        part = document
        for name in outer:
            part = part[name]
        part[key] = value
        return document

    return change


def without(*keys: str) -> Change:
    """Return a change that leaves out keys."""

    def change(document: Any) -> Any:
        return {key: value for key, value in document.items() if key not in keys}

    return change


def forge(folder: Path) -> None:
    """Forge answer, statistics, tables and the note on their inputs."""
    for name in ("answer.md", "table.csv", "behaviour.csv"):
        path = folder / name
        path.write_text("qure wins by 40 points (FORGED)\n" + path.read_text(encoding="utf-8"), encoding="utf-8")

    def forge_verdicts(document: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(document).replace('"verdict": "', '"verdict": "FORGED ')
        return dict(json.loads(text))

    edit(folder / "statistics.json", forge_verdicts)
    fit(folder)


def test_what_this_machine_made_is_believed(received):
    assert "answer.md" in files_made_here(received, "duel")


def test_a_forged_answer_is_computed_again(honest, received, run_command):
    forge(received / "duel")
    run_command("report", "duel", "--runs-dir", received)
    page = (received / "duel" / "report" / "index.html").read_text(encoding="utf-8")
    assert "FORGED" not in page
    assert FROM_RANKS in page
    theirs = api.load("duel", received)
    ours = api.load("duel", honest)
    assert theirs.answer == ours.answer
    assert theirs.statistics.to_json() == ours.statistics.to_json()
    assert theirs.table.equals(ours.table)
    assert "FORGED" not in run_command("report", "duel", "--markdown", "--runs-dir", received).out


def test_the_rules_of_the_folder_are_used_and_damaged_ones_are_one_line(received, run_command):
    (received / "duel" / "answer.md").write_text("other\n", encoding="utf-8")
    fit(received / "duel")
    assert {row.margin for row in read_findings(received, "duel").main_verdicts} == {0.03}
    edit(received / "duel" / "inputs.json", put("rules", value={"margin": "wide"}))
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


def swap(*keys: str) -> Change:
    """Return a change by which the first and the last cell swap values."""

    def change(document: Any) -> Any:
        first = document["cells"][0]
        last = document["cells"][-1]
        for key in keys:
            first[key], last[key] = last[key], first[key]
        return document

    return change


def name_twice(document: Any) -> Any:
    """Let the first cell name the run of the last one."""
    for key in ("run", "hash", "seed"):
        document["cells"][0][key] = document["cells"][-1][key]
    return document


CELLS: dict[str, tuple[Change, str]] = {
    "runs swapped": (swap("run"), "has another hash"),
    "runs and hashes swapped": (swap("run", "hash", "seed"), "whose strategy is"),
    "one run twice": (name_twice, "whose strategy is"),
    "a run outside": (put("cells", 0, "run", value="../outside/x"), "expected the plain name"),
    "an absolute run": (put("cells", 0, "run", value="/outside/x"), "expected the plain name"),
    "a run that is a number": (put("cells", 0, "run", value=5), "cells.0.run: "),
    "another hash": (put("cells", 0, "hash", value="0" * 64), "has another hash"),
    "another seed": (put("cells", 0, "seed", value=7), "has another seed"),
    "another loss": (put("cells", 0, "loss", value="info-nce"), "whose loss is"),
    "another backbone": (put("cells", 0, "backbone", value="tiny"), "whose backbone is"),
}


@pytest.mark.parametrize(("change", "text"), CELLS.values(), ids=CELLS)
def test_a_cell_is_compared_with_its_run(received, run_command, change, text):
    edit(received / "duel" / "comparison.json", change)
    assert text in run_command("report", "duel", "--runs-dir", received, code=2).err


def test_one_run_of_two_cells_has_the_same_labels_in_both(tmp_path):
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


def main_metric_of(value: Any) -> Change:
    """Return a change of the main metric in result.json."""

    def change(result: Any) -> Any:
        result["metrics"][result["main_metric"]] = value
        return result

    return change


def change_first_metric(result: Any) -> Any:
    """Change the first metric in result.json, which is not the main one."""
    first = next(iter(result["metrics"]))
    result["metrics"][first] = 0.123
    return result


def raise_a_little(result: Any) -> Any:
    """Raise the main metric by less than is printed."""
    result["metrics"][result["main_metric"]] += 1e-4
    return result


FORGED: dict[str, Change] = {
    "main metric": main_metric_of(0.9),
    "another metric": change_first_metric,
    "a little": raise_a_little,
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("judged", [True, False])
def test_metrics_that_are_not_those_of_the_ranks_are_one_line(received, run_command, change, judged):
    run = next(received.glob("qure-*"))
    edit(run / "result.json", change)
    if not judged:
        (received / "duel" / "statistics.json").unlink()
    fit(received / "duel")
    line = run_command("report", "duel", "--runs-dir", received, code=2).err
    assert f"run {run.name}: by its result.json " in line
    assert "its ranks give" in line
    with pytest.raises(RunError, match="its ranks give"):
        api.load(run.name, received)


# --- JSON of other shapes ------------------------------------------------------------------------------------------


def replace_by(value: Any) -> Change:
    """Return a change that puts another document in the place of the whole one."""
    return lambda document: value


def rate_of_a_group(**row: Any) -> Change:
    """Return a change that gives comparison.json the learning rate of one group, right but for `row`."""
    labels = {"strategy": "qure", "loss": "l", "backbone": "b", "dataset": "d"}
    right = {"labels": labels, "seeds": [0, 1], "lr": 0.1, "tried": [[0.1, 0.5]]}
    return put("rates", value=[{**right, **row}])


def leave_out_runs(document: Any) -> Any:
    """Leave out the run of each cell."""
    for cell in document["cells"]:
        del cell["run"]
    return document


RUN_FILES: dict[str, Change] = {
    "config.json: config null": put("config", value=None),
    "config.json: hash 5": put("hash", value=5),
    "config.json: versions a list": put("versions", value=[]),
    "result.json: without behaviour": without("behaviour"),
    "result.json: without seconds": without("seconds"),
    "result.json: Infinity": main_metric_of(float("inf")),
    "result.json: NaN": main_metric_of(float("nan")),
    "result.json: a metric that is a text": main_metric_of("x"),
}
COMPARISONS: dict[str, Change] = {
    "a rate without all": put("rates", value=[{"x": 1}]),
    "a rate of no strategy": rate_of_a_group(labels={}),
    "a rate without seeds": rate_of_a_group(seeds=[]),
    "a rate that is a text": rate_of_a_group(lr="a"),
    "four values tried": rate_of_a_group(tried=[[0.1, 0.5, 7, 7]]),
    "a trial is a number": rate_of_a_group(runs=[[0.1, [5]]]),
    "trials before a rate": rate_of_a_group(runs=[[["a"], 1]]),
    "tuned, of nothing": put("tuned", value={"tunings": [{}]}),
    "cells null": put("cells", value=None),
    "a cell null": put("cells", value=[None]),
    "a cell without run": leave_out_runs,
    "a seed that is Infinity": put("cells", 0, "seed", value=float("inf")),
}


def json_cases() -> list[Any]:
    """Return the files, relative to the runs folder or to a run, and how each is changed."""
    cases = []
    for file in ("config.json", "result.json", "duel/comparison.json"):
        for text in ("null", "[]", "{}", "7", '"x"'):
            cases.append(pytest.param(file, replace_by(json.loads(text)), id=f"{file}: {text}"))
    for name, change in RUN_FILES.items():
        cases.append(pytest.param(name.partition(":")[0], change, id=name))
    for name, change in COMPARISONS.items():
        cases.append(pytest.param("duel/comparison.json", change, id=f"comparison.json: {name}"))
    return cases


@pytest.mark.parametrize(("name", "change"), json_cases())
def test_json_of_another_shape_is_one_line_everywhere(received, run_command, name, change, subtests):
    commands = [["report", "duel", "--latex"], ["report", "duel"]]
    if name == "duel/comparison.json":
        path = received / name
    else:
        path = next(received.glob("qure-*")) / name
        commands.append(["evaluate", "qure"])
    edit(path, change)
    for command in commands:
        with subtests.test(" ".join(command)):
            lines = run_command(*command, "--runs-dir", received, code=2).err.splitlines()
            assert len(lines) == 1
            assert lines[0].startswith("negbench: error: ")


def test_runs_that_are_no_trials_are_refused_as_such(received, run_command):
    """The comparison's own runs are of the strategy, but at another rate, and reported."""
    names = [run.name for run in sorted(received.glob("qure-*"))]
    edit(received / "duel" / "comparison.json", rate_of_a_group(runs=[[0.1, names]]))
    (line,) = run_command("report", "duel", "--latex", "--runs-dir", received, code=2).err.splitlines()
    assert f"names {', '.join(names)} as trials of 'qure' at the rate 0.1, which are other runs" in line


HOSTILE = "=cmd|' /C calc'!A0 \x1b[31m<script>alert(1)</script> & % $ _ # {}"


def test_hostile_texts_reach_no_terminal_table_or_paper(received, run_command):
    """In the label of a loss whose name is right, and in a remark."""

    def make_hostile(document: dict[str, Any]) -> dict[str, Any]:
        for cell in document["cells"]:
            cell["loss"] = f"{cell['loss']}({HOSTILE})"
            cell["dataset"] = HOSTILE
        return {**document, "remarks": [HOSTILE]}

    edit(received / "duel" / "comparison.json", make_hostile)
    run = next(received.glob("qure-*"))
    edit(run / "result.json", put("remarks", value=[HOSTILE]))
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


PLAIN_CELLS = ("-", "-2.5", "+1.0 [0.5, 2.0]", "-0.25 ± 0.1", "-inf", "12 %", "a=b", "", "-1.5e-7")
FORMULAS = ("=1+1", "@SUM(A1)", "+cmd|x", "-1+cmd|' /C calc'!A0", "-x", "=")


@pytest.mark.parametrize(
    ("cell", "want"),
    [*((text, text) for text in PLAIN_CELLS), *((text, f"'{text}") for text in FORMULAS), ("\t=1", " =1")],
)
def test_no_cell_of_a_table_is_a_formula(cell, want):
    (header, written) = csv.reader(csv_text(pd.DataFrame({"=a": [cell], "n": [-1.5]})).splitlines())
    assert header == ["'=a", "n"]
    assert written == [want, "-1.5"]
