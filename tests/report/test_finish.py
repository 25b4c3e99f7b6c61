"""`finish` for every kind of comparison: with dials, with systems, at both settings, over two backbones."""

import base64
import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from negbench.analysis.differences import differences
from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import Rules, tables_of
from negbench.analysis.words import estimate_text, join_names
from negbench.grid.comparison import ComparisonFolder
from negbench.machine.files import read_json, seal, write_json
from negbench.report import charts
from negbench.report import finish as finish_module
from negbench.report.build import write_report
from negbench.report.charts import Chart
from negbench.report.finish import finish
from negbench.report.loaded import Comparison
from negbench.report.tables import tables
from negbench.store.runfolder import RunFolder

SMALL = ("in-batch", "qure", "top-k")
Cells = list[dict[str, Any]]


def finish_comparison(runs: Path, name: str, cells: Cells, *, report: bool = True, **axes: Any) -> str:
    """Return what `finish` prints for a comparison of existing runs."""
    seal(runs / name)
    write_json(runs / name / "comparison.json", {"kind": "comparison", "cells": cells, **axes})
    out = io.StringIO()
    finish(Console(file=out, width=1000), runs, name, "none", Rules(), report=report)
    return out.getvalue()


@pytest.fixture
def cells(compared: Path) -> Callable[..., Cells]:
    """Return a function that returns the cells of one loss and its first seeds under other labels."""

    def cells_of(loss: str, /, seeds: int = 1, **labels: str | int) -> Cells:
        rows = ComparisonFolder(compared / "small").cells()
        return [{**row, **labels} for row in rows if row["loss"] == loss and row["seed"] < seeds]

    return cells_of


def test_dials(compared, cells, words_of):
    """With the two losses as points, verdicts equal those of two tables; heat map, lines and answer are written."""
    small = cells("bradley-terry", 2, point="k=1", **{"dataset.k": 1})
    large = cells("info-nce", 2, point="k=2", loss="bradley-terry", **{"dataset.k": 2})
    rows = small + large
    axes: dict[str, Any] = {"dials": [{"key": "dataset.k", "values": [1, 2]}]}
    axes["left_out"] = [{"point": "k=3", "strategy": "dqe", "reason": "k is too large"}]
    out = finish_comparison(compared, "dials", rows, **axes)
    assert "2 points (average recall, 2 seeds, " in out
    assert "note: dqe at k=3 is not defined: k is too large" in out
    folder = compared / "dials"
    want = {(row.loss, row.strategy): row for row in read_findings(compared, "small").verdicts if row.main}
    for row in read_findings(compared, "dials").main_verdicts:
        plain = want[{"k=1": "bradley-terry", "k=2": "info-nce"}[row.point], row.strategy]
        assert row.mean == plain.mean, row
        if plain.verdict != "baseline":
            assert row.against_baseline.value == plain.against_baseline.value, row
    assert list(pd.read_csv(folder / "table.csv")["point"]) == ["k=1"] * 3 + ["k=2"] * 3
    assert list(pd.read_csv(folder / "points.csv")["k"]) == [1, 2]
    assert {"best.svg", "along-k.svg"} <= {path.name for path in (folder / "report" / "figures").iterdir()}
    page = words_of(folder / "report" / "index.html")
    for line in Comparison(folder).answer:
        assert line.split("(")[0] in page, line
    assert "dqe at k=3 is not defined" in page


def test_systems(compared, cells):
    """A system's own strategy is its baseline; a folder of schema 1 with corners says the same."""
    rows = cells("info-nce", system="plain") + cells("bradley-terry", system="sys")
    own_strategies = {"plain": "in-batch", "sys": "qure"}
    facts = [{**row, "own": row["strategy"] == own_strategies[row["system"]]} for row in rows]
    out = finish_comparison(compared, "systems", facts, report=False, remarks=["no colours here"])
    assert "note: no colours here" in out
    findings = read_findings(compared, "systems")
    assert {row.system for row in findings.verdicts} == {"plain", "sys"}
    assert {(row.system, row.baseline) for row in findings.verdicts} == {*own_strategies.items()}
    assert len(pd.read_csv(compared / "systems" / "matrix.csv")) == 3
    corner = [{**row, "system": "sys: negatives"} for row in cells("info-nce")]
    systems = {"names": list(own_strategies), "corners": {}, "own": own_strategies, "remarks": ["no colours here"]}
    old_rows = [without_plugin(row) for row in rows + corner]
    old_out = finish_comparison(compared, "schema-1", old_rows, report=False, systems=systems)
    assert old_out.replace("schema-1", "systems") == out
    old_verdicts = read_findings(compared, "schema-1").verdicts
    assert list(map(vars_but_facts, old_verdicts)) == list(map(vars_but_facts, findings.verdicts))


def without_plugin(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "plugin"}


def vars_but_facts(row: Verdict) -> dict[str, Any]:
    return {**vars(row), "facts": {}}


@dataclass(frozen=True)
class Tuned:
    """A comparison of default and tuned settings: its folder of runs, what was printed, and what was found."""

    runs: Path
    out: str
    findings: Findings


@pytest.fixture
def tuned(compared: Path, cells: Callable[..., Cells]) -> Tuned:
    """Finish a comparison in which qure was "tuned" to another loss, top-k kept its default, and in-batch has none."""
    rows = cells("bradley-terry", settings="default")
    tuned_rows = cells("info-nce", settings="tuned", loss="bradley-terry")
    rows += [row for row in tuned_rows if row["strategy"] == "qure"]
    rows += [{**row, "settings": "tuned"} for row in cells("bradley-terry") if row["strategy"] != "qure"]
    labels = {axis: rows[0][axis] for axis in ("loss", "backbone", "dataset")}
    empty = {"knobs": [], "trials": 0, "seconds": 0.0, "default": None, "best": None, "found": None, "error": ""}
    searches = [
        {**empty, "labels": {**labels, "strategy": "qure"}, "study": "s", "knobs": ["strategy.k"], "trials": 5,
         "seconds": 7.4, "found": {"strategy.k": 3}},
        {**empty, "labels": {**labels, "strategy": "top-k"}, "study": "s", "trials": 5, "found": {}},
        {**empty, "labels": {**labels, "strategy": "in-batch"}, "study": ""},
    ]  # fmt: skip
    out = finish_comparison(compared, "tuned", rows, report=False, tuned={"trials": 5, "tunings": searches})
    return Tuned(compared, out, read_findings(compared, "tuned"))


def test_the_gain_of_tuning_is_the_difference_of_the_runs_at_both_settings(tuned):
    """As for any table of two, at alpha over one tuned strategy."""
    values = {}
    for table in tables_of(tuned.findings.groups, main_only=True):
        values[table.labels["settings"]] = table.values[table.main_metric]["qure"]
    test = differences(values, "default").against["tuned"]
    (gain,) = tuned.findings.gains
    (row,) = [row for row in tuned.findings.main_verdicts if (row.settings, row.strategy) == ("tuned", "qure")]
    assert (gain.strategy, gain.mean.value) == ("qure", row.mean.value)
    difference = gain.against_baseline
    expected = (test.value, test.interval.low, test.interval.high)
    assert (difference.value, difference.low, difference.high) == pytest.approx(expected, abs=1e-9)
    stored = pd.read_csv(tuned.runs / "tuned" / "statistics.csv").set_index("baseline")
    assert stored.loc["its default", "difference"] == pytest.approx(difference.value)


def test_the_answer_has_both_settings_and_what_tuning_gained_and_cost(tuned):
    assert "default: average recall" in tuned.out
    assert "tuned: average recall" in tuned.out
    (gain,) = tuned.findings.gains
    line = estimate_text(gain.against_baseline)
    cost = "10 trials on a dev part, 7 s of computing besides the runs of both tables"
    others = "top-k keeps its default; in-batch has nothing to tune."
    assert f"Equal tuning ({cost}): qure with k=3, {line} points over its default; {others}" in tuned.out


def test_the_page_of_both_settings_has_the_figures_of_the_default(tuned, page_text):
    assert 'id="training"' in page_text(tuned.runs, "tuned")


def test_two_backbones_have_a_block_over_all(subtests, compared, cells, page_text, monkeypatch):
    monkeypatch.setattr(RunFolder, "has_weights", False)
    rows = cells("bradley-terry", backbone="one") + cells("info-nce", backbone="two", loss="bradley-terry")
    out = finish_comparison(compared, "both", rows, report=False)
    findings = read_findings(compared, "both")
    means = {(row.backbone, row.strategy): row.mean.value for row in findings.main_verdicts}
    for name in SMALL:
        with subtests.test(name=name):
            assert means["over all", name] == pytest.approx((means["one", name] + means["two", name]) / 2)
    assert out.partition("\nanswer\n")[2].startswith("over all: average recall with ")
    assert list(pd.read_csv(compared / "both" / "table.csv")["backbone"]).count("over all") == 3
    page = page_text(compared, "both", 2)
    assert [page.count(f"{name}: no weights") for name in SMALL] == [1, 1, 1]  # not once per backbone


def test_every_table_is_printed_stored_and_on_the_page(compared, cells, page_text):
    """The list of tables decides all three: titles on the terminal unless in detail, files, the page."""
    rows = cells("bradley-terry") + cells("bradley-terry", dataset="other")
    out = finish_comparison(compared, "listed", rows, report=False)
    all_tables = tables(read_findings(compared, "listed"))
    page = page_text(compared, "listed")
    assert {table.name for table in all_tables} == {"table", "behaviour", "regime", "training", "cost", "statistics"}
    assert len({table.key for table in all_tables}) == len(all_tables)
    lengths = Counter()
    for table in all_tables:
        lengths[table.name] += len(table.frame)
    for table in all_tables:
        assert (table.title in out.splitlines()) == (not table.detail), table.key
        file = pd.read_csv(compared / "listed" / f"{table.name}.csv", dtype=str)
        assert len(file) == lengths[table.name], table.key
        assert set(table.frame if table.numbers is None else table.numbers) <= set(file), table.key
        assert page.count(f'id="table-{table.key}"') == 1, table.key
    costs = [table for table in all_tables if table.name == "cost"]
    assert [table.key for table in costs] == [f"cost-{name}" for name in sorted({table.where for table in costs})]
    assert (compared / "listed" / "table.md").read_text(encoding="utf-8").startswith("### other\n\n| ")


def test_a_run_that_is_gone_counts_as_missing(compared, cells, page_text):
    rows = cells("bradley-terry")
    finish_comparison(compared, "less", rows, report=False)
    rows = [{**rows[0], "run": "gone"}, {**rows[1], "run": None}, *rows[2:]]
    write_json(compared / "less" / "comparison.json", {"kind": "comparison", "cells": rows})
    text = page_text(compared, "less")
    assert "2 of 3 cells are not finished and missing from this page: " in text
    lost = Counter(row["strategy"] for row in rows[:2])
    assert join_names([f"{n} of {name}" for name, n in lost.items()]) + ". All runs" in text
    assert list(Comparison(compared / "less").cells["average/recall_at_10"].isna()) == [True] * 2 + [False]


def test_the_description_in_mlflow_names_what_is_not_drawn_behind_the_first_line(compared, cells, monkeypatch):
    monkeypatch.setattr(finish_module, "summary_runs", lambda findings: ([], "MLflow draws 10 of these 12 rows."))
    finish_comparison(compared, "described", cells("info-nce", 2), report=False)
    lines = Comparison(compared / "described").answer
    description = read_json(compared / "described" / "mlflow-summary.json")["answer"]
    assert description.split("\n\n") == [lines[0], "MLflow draws 10 of these 12 rows.", *lines[1:]]


def test_figures_are_drawn_again_where_their_inputs_changed(subtests, compared, cells, monkeypatch):
    """`report` takes pictures from the page that `finish` wrote of the same cells, and only then."""
    pictures = list[str]()
    folder = compared / "again"

    def draw(chart: Chart, narrow: bool) -> SimpleNamespace:
        pictures.append(f'<svg width="9pt">{chart.key} {narrow} {len(pictures)}</svg>')
        return SimpleNamespace(savefig=lambda file, **_: file.write(pictures[-1].encode()))

    def count_drawn_by_report() -> int:
        before = len(pictures)
        page = write_report(compared, "again", 0)[0].read_text(encoding="utf-8")
        on_page = {base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)}
        assert on_page == {*pictures[-whole:]}
        assert {path.read_text() for path in folder.glob("report/figures/*.svg")} < on_page
        return len(pictures) - before

    monkeypatch.setattr(charts, "_figure", draw)
    of_one_seed = cells("bradley-terry", 1)
    of_two_seeds = cells("bradley-terry", 2)
    finish_comparison(compared, "again", of_two_seeds)
    whole = len(pictures)
    assert count_drawn_by_report() == 0
    for seeds, rows in ((1, of_one_seed), (2, of_two_seeds)):  # the second time, the page is that of the first
        with subtests.test(seeds=seeds):
            write_json(folder / "comparison.json", {"kind": "comparison", "cells": rows})
            assert count_drawn_by_report() == whole
    finish_comparison(compared, "again", of_one_seed, report=False)  # judged, but the page is that of two seeds
    assert count_drawn_by_report() == whole
