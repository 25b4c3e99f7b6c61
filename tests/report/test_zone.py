"""The zone figure: windows as a line, other rules as points, at the ranks that they drew from."""

from dataclasses import replace

import numpy as np
import pytest

from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.verdict_record import Estimate
from negbench.api import compare
from negbench.report.charts import _figure
from negbench.report.zone import zone_chart
from negbench.settings.options import Compare

WINDOWS = [{"name": "shifted-top-k", "start": start, "stop": stop} for start, stop in ((0, 2), (3, 5), (6, 14))]


@pytest.fixture(scope="module")
def findings(longer: list[str], tmp_path_factory: pytest.TempPathFactory) -> Findings:
    runs = tmp_path_factory.mktemp("zone")
    strategies = ["all-corpus", "in-batch", "top-k:k=4", *WINDOWS]
    asked = {"strategies": strategies, "seeds": 1, "lr": "fixed", "baseline": "all-corpus"}
    more = {"tracking_uri": "none", "report": False, "name": "zone", "backbones": "vectors", "datasets": "vectors"}
    training = [text for text in longer if not text.startswith(("backbone", "dataset"))]
    sizes = [f"dataset.{name}=64" for name in ("train_images", "train_queries", "val_images", "val_queries")]
    compare(Compare(runs_dir=runs, sets=(*training, *sizes, "train.epochs=2"), **asked, **more))
    return read_findings(runs, "zone")


def test_windows_are_a_line_and_rules_are_points_at_the_ranks_they_draw(findings):
    chart = zone_chart(findings.groups, findings.main_verdicts)
    assert [panel.title for panel in chart.panels] == ["1 negative per query and step"]
    (axes,) = _figure(chart, narrow=False).axes
    line, points = axes.containers
    ranks = line[0].get_xdata()
    assert len(ranks) == 3
    assert all(np.diff(ranks) > 0)  # later windows draw from further down
    assert [first + 1 <= rank <= last for rank, (first, last) in zip(ranks, ((0, 2), (3, 5), (6, 14)), strict=True)]
    by_name = {row.strategy: 100 * row.against_baseline.value for row in findings.main_verdicts if row.against_baseline}
    names = {label.get_text() for label in axes.texts}
    assert names == {"windows", "top-k(k=4)"}  # neither the baseline nor a strategy of the batch
    assert list(points[0].get_ydata()) == [by_name["top-k(k=4)"]]
    assert {*line[0].get_ydata()} == {value for name, value in by_name.items() if name.startswith("shifted")}


def test_panels_name_their_budgets_shortest_first(findings):
    budgets = ("120", "20")
    groups = [each.assign(epochs=n) for each in findings.groups for n in budgets]
    chart = zone_chart(groups, [replace(row, epochs=n) for row in findings.main_verdicts for n in budgets])
    assert [panel.title.partition(", ")[2] for panel in chart.panels] == ["20 epochs", "120 epochs"]


def smaller(estimate: Estimate | None) -> Estimate | None:
    return estimate and replace(estimate, value=estimate.value / 2, high=estimate.high / 9)


def test_panels_share_a_scale_and_say_over_what(findings):
    half = [
        replace(row, epochs="120", against_baseline=smaller(row.against_baseline)) for row in findings.main_verdicts
    ]
    rows = [*(replace(row, epochs="20") for row in findings.main_verdicts), *half]
    groups = [each.assign(epochs=n) for each in findings.groups for n in ("20", "120")]
    limits = set()
    for axes in _figure(zone_chart(groups, rows), narrow=False).axes:
        assert axes.get_ylabel() == "R@10, points over all-corpus", axes.get_title()
        limits.add(axes.get_ylim())
    assert len(limits) == 1


def test_there_is_no_zone_without_two_windows(findings):
    few = [row for row in findings.main_verdicts if "start=3" not in row.strategy and "start=6" not in row.strategy]
    assert zone_chart(findings.groups, few) is None
