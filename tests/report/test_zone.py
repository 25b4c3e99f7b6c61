"""The zone figure: windows as a line, other rules as points, at the ranks that they drew from."""

from dataclasses import replace

import pytest

from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.verdict_record import Estimate
from negbench.api import compare
from negbench.report.charts import _figure
from negbench.report.zone import zone_chart
from negbench.settings.options import Compare

RANKS = ((0, 2), (3, 5), (6, 14))  # of three windows: after the first, up to the last
WINDOWS = [{"name": "shifted-top-k", "start": start, "stop": stop} for start, stop in RANKS]


@pytest.fixture(scope="module")
def findings(longer: list[str], tmp_path_factory: pytest.TempPathFactory) -> Findings:
    runs = tmp_path_factory.mktemp("zone")
    training = [text for text in longer if not text.startswith(("backbone", "dataset"))]
    sizes = [f"dataset.{name}=64" for name in ("train_images", "train_queries", "val_images", "val_queries")]
    options = Compare(
        name="zone",
        strategies=["all-corpus", "in-batch", "top-k:k=4", *WINDOWS],
        baseline="all-corpus",
        backbones="vectors",
        datasets="vectors",
        seeds=1,
        lr="fixed",
        sets=(*training, *sizes, "train.epochs=2"),
        runs_dir=runs,
        tracking_uri="none",
        report=False,
    )
    compare(options)
    return read_findings(runs, "zone")


def test_windows_are_a_line_and_rules_are_points_at_the_ranks_they_draw(findings):
    chart = zone_chart(findings.groups, findings.main_verdicts)
    assert [panel.title for panel in chart.panels] == ["1 negative per query and step"]
    (axes,) = _figure(chart, narrow=False).axes
    line, points = axes.containers
    ranks = line[0].get_xdata()
    assert list(ranks) == sorted(ranks)  # later windows draw from further down
    for rank, (start, stop) in zip(ranks, RANKS, strict=True):
        assert start + 1 <= rank <= stop, f"window {start} to {stop}"
    by_name = {row.strategy: 100 * row.against_baseline.value for row in findings.main_verdicts if row.against_baseline}
    names = {label.get_text() for label in axes.texts}
    assert names == {"windows", "top-k(k=4)"}  # neither the baseline nor a strategy of the batch
    assert list(points[0].get_ydata()) == [by_name["top-k(k=4)"]]
    assert {*line[0].get_ydata()} == {value for name, value in by_name.items() if name.startswith("shifted")}
    bottom, top = axes.get_ylim()
    for row in findings.main_verdicts:
        if row.strategy.startswith(("shifted", "top-k")):
            interval = row.against_baseline
            assert bottom <= 100 * interval.low <= 100 * interval.high <= top, row.strategy


def test_panels_name_their_budgets_shortest_first(findings):
    groups = []
    rows = []
    for epochs in ("120", "20"):
        groups += [group.assign(epochs=epochs) for group in findings.groups]
        rows += [replace(row, epochs=epochs) for row in findings.main_verdicts]
    chart = zone_chart(groups, rows)
    assert [panel.title.partition(", ")[2] for panel in chart.panels] == ["20 epochs", "120 epochs"]


def shrink(estimate: Estimate | None) -> Estimate | None:
    if estimate is None:
        return None
    return replace(estimate, value=estimate.value / 2, high=estimate.high / 9)


def test_panels_share_a_scale_and_say_over_what(findings):
    rows = []
    groups = []
    for row in findings.main_verdicts:
        rows.append(replace(row, epochs="20"))
        rows.append(replace(row, epochs="120", against_baseline=shrink(row.against_baseline)))
    for group in findings.groups:
        groups += [group.assign(epochs="20"), group.assign(epochs="120")]
    limits = set()
    for axes in _figure(zone_chart(groups, rows), narrow=False).axes:
        assert axes.get_ylabel() == "R@10, points over all-corpus", axes.get_title()
        limits.add(axes.get_ylim())
    assert len(limits) == 1


def test_there_is_no_zone_without_two_windows(findings):
    few = [row for row in findings.main_verdicts if "start=3" not in row.strategy and "start=6" not in row.strategy]
    assert zone_chart(findings.groups, few) is None
