"""`finish` for every kind of comparison: with dials, with systems, at both settings, over two backbones."""

import base64
import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from negbench.analysis.differences import differences
from negbench.analysis.findings import read_findings
from negbench.analysis.verdicts import Rules, tables_of
from negbench.analysis.words import estimate_text, join_names
from negbench.grid.comparison import ComparisonFolder
from negbench.machine.files import seal, write_json
from negbench.report import charts
from negbench.report.build import write_report
from negbench.report.charts import Chart
from negbench.report.finish import finish
from negbench.report.loaded import Comparison
from negbench.report.tables import tables
from negbench.store.runfolder import RunFolder

SMALL = ("in-batch", "qure", "top-k")
Cells = list[dict[str, Any]]


def ended(runs: Path, name: str, cells: Cells, *, report: bool = True, **axes: Any) -> str:
    """Return what `finish` prints for a comparison of existing runs."""
    seal(runs / name)
    write_json(runs / name / "comparison.json", {"kind": "comparison", "cells": cells, **axes})
    out = io.StringIO()
    finish(Console(file=out, width=1000), runs, name, "none", Rules(), report=report)
    return out.getvalue()


@pytest.fixture
def cells(compared: Path) -> Callable[..., Cells]:
    """Return a function that returns the cells of one loss and its first seeds under other labels."""

    def of(loss: str, /, seeds: int = 1, **labels: str | int) -> Cells:
        rows = ComparisonFolder(compared / "small").cells()
        return [{**row, **labels} for row in rows if row["loss"] == loss and row["seed"] < seeds]

    return of


def test_dials(compared, cells, words_of):
    """With the two losses as points, verdicts equal those of two tables; heat map, lines and answer are written."""
    small = cells("bradley-terry", 2, point="k=1", **{"dataset.k": 1})
    large = cells("info-nce", 2, point="k=2", loss="bradley-terry", **{"dataset.k": 2})
    rows = small + large
    axes: dict[str, Any] = {"dials": [{"key": "dataset.k", "values": [1, 2]}]}
    axes["left_out"] = [{"point": "k=3", "strategy": "dqe", "reason": "k is too large"}]
    out = ended(compared, "dials", rows, **axes)
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
    own = {"plain": "in-batch", "sys": "qure"}
    facts = [{**row, "own": row["strategy"] == own[row["system"]]} for row in rows]
    out = ended(compared, "systems", facts, report=False, remarks=["no colours here"])
    assert "note: no colours here" in out
    findings = read_findings(compared, "systems")
    assert {row.system for row in findings.verdicts} == {"plain", "sys"}
    assert {(row.system, row.baseline) for row in findings.verdicts} == {*own.items()}
    assert len(pd.read_csv(compared / "systems" / "matrix.csv")) == 3
    corner = [{**row, "system": "sys: negatives"} for row in cells("info-nce")]
    systems = {"names": list(own), "corners": {}, "own": own, "remarks": ["no colours here"]}
    old = [{key: value for key, value in row.items() if key != "plugin"} for row in rows + corner]
    assert ended(compared, "schema-1", old, report=False, systems=systems).replace("schema-1", "systems") == out
    assert [{**vars(row), "facts": 0} for row in read_findings(compared, "schema-1").verdicts] == [
        {**vars(row), "facts": 0} for row in findings.verdicts
    ]


def test_both_settings(compared, cells, undrawn):
    """For qure "tuned" to another loss, the gain is the difference of its two groups of runs."""
    rows = cells("bradley-terry", settings="default")
    tuned = cells("info-nce", settings="tuned", loss="bradley-terry")
    rows += [row for row in tuned if row["strategy"] == "qure"]
    rows += [{**row, "settings": "tuned"} for row in cells("bradley-terry") if row["strategy"] != "qure"]
    labels = {axis: rows[0][axis] for axis in ("loss", "backbone", "dataset")}
    empty = {"knobs": [], "trials": 0, "seconds": 0.0, "default": None, "best": None, "found": None, "error": ""}
    searches = [
        {**empty, "labels": {**labels, "strategy": "qure"}, "study": "s", "knobs": ["strategy.k"], "trials": 5,
         "seconds": 7.4, "found": {"strategy.k": 3}},
        {**empty, "labels": {**labels, "strategy": "top-k"}, "study": "s", "trials": 5, "found": {}},
        {**empty, "labels": {**labels, "strategy": "in-batch"}, "study": ""},
    ]  # fmt: skip
    out = ended(compared, "tuned", rows, report=False, tuned={"trials": 5, "tunings": searches})
    findings = read_findings(compared, "tuned")
    means = {(row.settings, row.strategy): row.mean.value for row in findings.main_verdicts}
    (gain,) = findings.gains
    listed = tables_of(findings.groups, main_only=True)
    pair = {each.labels["settings"]: each.values[each.main_metric]["qure"] for each in listed}
    test = differences(pair, "default").against["tuned"]  # as for any table of two, at alpha over one tuned strategy
    assert (gain.strategy, gain.mean.value) == ("qure", means["tuned", "qure"])
    assert (gain.against_baseline.value, gain.against_baseline.low, gain.against_baseline.high) == pytest.approx(
        (test.value, test.interval.low, test.interval.high), abs=1e-9
    )
    assert "default: average recall" in out
    assert "tuned: average recall" in out
    table = pd.read_csv(compared / "tuned" / "statistics.csv").set_index("baseline")
    assert table.loc["its default", "difference"] == pytest.approx(gain.against_baseline.value)
    line = estimate_text(gain.against_baseline)
    cost = "10 trials on a dev part, 7 s of computing besides the runs of both tables"
    others = "top-k keeps its default; in-batch has nothing to tune."
    assert f"Equal tuning ({cost}): qure with k=3, {line} points over its default; {others}" in out
    assert 'id="training"' in undrawn(compared, "tuned")  # the figures of the default settings


def test_two_backbones_have_a_block_over_all(subtests, compared, cells, undrawn, monkeypatch):
    monkeypatch.setattr(RunFolder, "has_weights", False)
    rows = cells("bradley-terry", backbone="one") + cells("info-nce", backbone="two", loss="bradley-terry")
    out = ended(compared, "both", rows, report=False)
    findings = read_findings(compared, "both")
    means = {(row.backbone, row.strategy): row.mean.value for row in findings.main_verdicts}
    for name in SMALL:
        with subtests.test(name=name):
            assert means["over all", name] == pytest.approx((means["one", name] + means["two", name]) / 2)
    assert out.partition("\nanswer\n")[2].startswith("over all: average recall with ")
    assert list(pd.read_csv(compared / "both" / "table.csv")["backbone"]).count("over all") == 3
    page = undrawn(compared, "both", 2)
    assert [page.count(f"{name}: no weights") for name in SMALL] == [1, 1, 1]  # not once per backbone


def test_every_table_is_printed_stored_and_on_the_page(compared, cells, undrawn):
    """The list of tables decides all three: titles on the terminal unless in detail, files, the page."""
    out = ended(compared, "listed", cells("bradley-terry") + cells("bradley-terry", dataset="other"), report=False)
    listed, page = tables(read_findings(compared, "listed")), undrawn(compared, "listed")
    assert {table.name for table in listed} == {"table", "behaviour", "regime", "training", "cost", "statistics"}
    assert len({table.key for table in listed}) == len(listed)
    for table in listed:
        assert (table.title in out.splitlines()) == (not table.detail), table.key
        file = pd.read_csv(compared / "listed" / f"{table.name}.csv", dtype=str)
        same = [each for each in listed if each.name == table.name]
        assert len(file) == sum(len(each.frame) for each in same), table.key
        assert set(table.frame if table.numbers is None else table.numbers) <= set(file), table.key
        assert page.count(f'id="table-{table.key}"') == 1, table.key
    assert [table.key for table in listed if table.name == "cost"] == [
        f"cost-{name}" for name in sorted({each.where for each in listed if each.name == "cost"})
    ]
    assert (compared / "listed" / "table.md").read_text(encoding="utf-8").startswith("### other\n\n| ")


def test_a_run_that_is_gone_counts_as_missing(compared, cells, undrawn):
    rows = cells("bradley-terry")
    ended(compared, "less", rows, report=False)
    rows = [{**rows[0], "run": "gone"}, {**rows[1], "run": None}, *rows[2:]]
    write_json(compared / "less" / "comparison.json", {"kind": "comparison", "cells": rows})
    assert "2 of 3 cells are not finished and missing from this page: " in undrawn(compared, "less")
    lost = Counter(row["strategy"] for row in rows[:2])
    assert join_names([f"{n} of {name}" for name, n in lost.items()]) + ". All runs" in undrawn(compared, "less")
    assert list(Comparison(compared / "less").cells["average/recall_at_10"].isna()) == [True] * 2 + [False]


def test_figures_are_drawn_again_where_their_inputs_changed(subtests, compared, cells, monkeypatch):
    """`report` takes pictures and answer from the page that `finish` wrote of the same cells, and only then."""
    drawn, folder = list[str](), compared / "again"

    def draw(chart: Chart, narrow: bool) -> SimpleNamespace:
        drawn.append(f'<svg width="9pt">{chart.key} {narrow} {len(drawn)}</svg>')
        return SimpleNamespace(savefig=lambda file, **_: file.write(drawn[-1].encode()))

    def new() -> int:
        before = len(drawn)
        page = write_report(compared, "again", 0)[0].read_text(encoding="utf-8")
        shown = {base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)}
        assert shown == {*drawn[-whole:]}
        assert {path.read_text() for path in folder.glob("report/figures/*.svg")} < shown
        return len(drawn) - before

    monkeypatch.setattr(charts, "_figure", draw)
    one, two = cells("bradley-terry", 1), cells("bradley-terry", 2)
    ended(compared, "again", two)
    whole = len(drawn)
    assert new() == 0
    for rows in (one, two):  # the second time, the page is that of the first
        with subtests.test(rows=rows):
            write_json(folder / "comparison.json", {"kind": "comparison", "cells": rows})
            assert new() == whole
    ended(compared, "again", one, report=False)  # judged, but the page is that of two seeds
    assert new() == whole
