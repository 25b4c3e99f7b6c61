"""The page of a comparison: sections, tables, figures, images, and what is missing."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from negbench.analysis.answer import answer_of
from negbench.analysis.findings import read_findings
from negbench.analysis.frame import first_run, folders_of, known_numbers, shared_value
from negbench.analysis.leader import leader_tables, sort_alike
from negbench.analysis.run_tables import behaviour_lines
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.words import percent
from negbench.cli.main import run as negbench
from negbench.data.scene import DataCache, load_split
from negbench.errors import NegbenchError
from negbench.machine.files import write_json
from negbench.metrics.score_curves import ScoreCurves
from negbench.plugins.registry import registry
from negbench.report import build, figures
from negbench.report.build import write_report
from negbench.report.charts import GREY, Chart, _figure
from negbench.report.gallery import TOP, _view
from negbench.report.page import _prose, sort_key
from negbench.settings.config import resolve
from negbench.store.runfolder import RunFolder

VOID = {"meta", "link", "source", "img", "br", "wbr", "hr", "input"}


class Parsed(HTMLParser):
    """Parse a page, which must be well formed: its ids, links, tables, pictures and figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.hrefs: list[str] = []
        self.unnamed = 0
        self.elements = 0
        self.folded: list[bool] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._figure = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements += 1
        if tag not in VOID:
            self.open.append(tag)
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        if "src" in attributes:
            self.sources.append(str(attributes["src"]))
        if "href" in attributes and tag == "image":
            self.sources.append(str(attributes["href"]))
        elif "href" in attributes:
            self.hrefs.append(str(attributes["href"]))
        if attributes.get("role") == "img":
            self.unnamed += not attributes.get("aria-label")
        if tag == "details":
            self.folded.append("open" not in attributes)
        if tag == "figure":
            self._figure = str(attributes.get("id"))
        if tag == "table":
            self.tables[self._figure] = []
        if tag == "tr":
            self.tables[self._figure].append([])
        if tag in ("td", "th"):
            self.tables[self._figure][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and ("td" in self.open[-2:] or "th" in self.open[-3:]):
            self.tables[self._figure][-1][-1] += data


@pytest.fixture(scope="module")
def printed(compared: Path) -> list[str]:
    """Return the lines that `negbench report` prints, in a folder with what a killed process left."""
    partial = compared / "small" / "report" / "figures" / ".forest.svg.abc.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"of a killed process")
    out = io.StringIO()
    with redirect_stdout(out):
        assert negbench(["report", "small", "--card", "--galleries", "1", "--runs-dir", str(compared)]) == 0
    assert not partial.exists()
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def page(printed: list[str]) -> Parsed:
    _card, _card_text, address, *_ = printed
    return Parsed(Path(address).read_text(encoding="utf-8"))


def text_of(compared: Path) -> str:
    return (compared / "small" / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_section_is_there_and_linked(page):
    sections = [
        "leader", "false-negatives", "kinds", "training", "pool-sizes", "score-curves", "behaviour", "strategies",
        "own", "gallery", "negatives", "tests", "cells",
    ]  # fmt: skip
    assert [key for key in page.ids if key in sections] == sections
    links = [href.removeprefix("#") for href in page.hrefs if href.startswith("#")]
    assert [key for key in links if key in sections] == sections
    chapters = ("result", "why", "your-data", "examples", "details")
    assert [key for key in links if "chapter" in key] == [f"chapter-{name}" for name in chapters]
    assert len(set(page.ids)) == len(page.ids)
    assert set(links) <= set(page.ids)


def test_the_answer_comes_first(page, compared, words_of):
    of_first_loss, of_second_loss, of_losses, *others = answer_of(read_findings(compared, "small")).lines
    assert of_first_loss.startswith("bradley-terry: average recall with 1 negative per query and step, after ")
    assert of_second_loss.startswith("info-nce: average recall with 1 negative per query and step, after ")
    assert of_losses.startswith("average recall averaged over 3 strategies: ")
    before, after = words_of(compared / "small" / "report" / "index.html").split('id="leader"')
    for line in (of_first_loss, of_second_loss, of_losses):
        assert line in before, line
    for line in others:
        assert line in after, line


def test_detail_is_folded_and_stands_last(page, compared):
    text = text_of(compared)
    assert text.index('id="figure-forest"') < text.index('id="table-table"') < text.index("<details")
    assert text.index("<details") > text.index('id="gallery"')
    assert page.folded == [True]  # only the details are folded


def test_the_header_names_data_seeds_epochs_date_and_version(page, compared):
    header = re.search(r'<p class="header">(.*?)</p>', text_of(compared))
    words = re.sub("<[^>]*>", " ", header[1])
    date = datetime.fromtimestamp((compared / "small" / "comparison.json").stat().st_mtime, tz=UTC)
    for word in ("synthetic@", "2 seeds", "3 epochs", f"{date:%Y-%m}", "negbench 0."):
        assert word in words, word


def test_a_strategy_links_to_the_line_on_what_it_draws(page, compared):
    text = text_of(compared)
    lines = dict(re.findall(r'<li id="(strategy-\d+)">(.*?)</li>', text))
    summaries = {plugin.name: plugin.summary for plugin in registry.describe("strategies")}
    plain = {key: html.unescape(re.sub("<[^>]*>", "", line)) for key, line in lines.items()}
    assert sorted(plain.values()) == [f"{name}: {summaries[name]}" for name in ("in-batch", "qure", "top-k")]
    table = text[text.index('id="table-table"') :]
    links = re.findall(r'<td[^>]*><a href="#([^"]*)">([^<]*)</a></td>', table[: table.index("</table>")])
    assert len(links) == 6
    for anchor, name in links:
        assert plain[anchor].startswith(f"{name}: "), (anchor, name)


def test_lines_on_combined_and_on_unknown_strategies(monkeypatch):
    def group(label: str, name: str) -> pd.DataFrame:
        config = SimpleNamespace(strategy=SimpleNamespace(name=name))
        run = SimpleNamespace(config=config)
        return pd.DataFrame([{"strategy": label, "stored": run}])

    groups = [group("in-batch+top-k(k=3)", "in-batch+top-k"), group("mine", "nobody-has-this")]
    (terms,) = build._strategy_lines(groups)
    assert terms.lines["in-batch+top-k(k=3)"].startswith("in-batch: ")
    assert " top-k: " in terms.lines["in-batch+top-k(k=3)"]
    assert terms.lines["mine"] == "a plug-in that was not given to this report."
    assert terms.anchor("mine") == "strategy-2"
    assert build._strategy_lines([]) == ()


def test_commands_for_own_data_are_ones_that_negbench_takes(page, compared, capsys):
    text = text_of(compared)
    section = text[text.index('id="own"') : text.index('id="chapter-examples"')]
    commands = re.findall(r"<code>negbench (.*?)</code>", html.unescape(re.sub("</?span[^>]*>|<wbr>", "", section)))
    assert [command.split()[0] for command in commands] == ["init", "audit", "mine"]
    assert text.index('id="chapter-why"') < text.index('id="own"')
    for command in commands:
        name, *words = command.split()
        assert negbench([name, "--help"]) == 0, command
        help_text = capsys.readouterr().out
        for flag in [word for word in words if word.startswith("--")]:
            assert f"{flag} " in help_text, command


def test_the_header_names_drawn_worlds_once(tmp_path):
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")

    def run(seed: int) -> Any:
        config = SimpleNamespace(seed=seed, train=SimpleNamespace(epochs=3))
        manifest = {"dataset": {"val": f"vectors@x-{seed}", "world": str(seed)}, "versions": {"negbench": "0.1"}}
        return SimpleNamespace(folder=SimpleNamespace(path=tmp_path), config=config, manifest=manifest)

    labels = {"dataset": "vectors@x", "backbone": "b", "loss": "l"}
    group = pd.DataFrame([{**labels, "stored": run(0)}, {**labels, "stored": run(1)}])
    data, backbone, loss, seeds, epochs, *_ = build.header_of([group])
    assert data == "vectors@x (generated, a world for each seed)"
    assert (backbone, loss, seeds, epochs) == ("backbone b", "loss l", "2 seeds", "3 epochs")
    two_losses = [group, group.assign(loss="m")]
    assert "loss l or m" in build.header_of(two_losses)
    assert "3 values of loss" in build.header_of([*two_losses, group.assign(loss="n")])


def test_the_best_numbers_are_bold(page, compared):
    text = text_of(compared)
    table = text[text.index('id="table-table"') :]
    bold = re.findall("<b>([^<]*)</b>", table[: table.index("</table>")])
    frame = pd.read_csv(compared / "small" / "report" / "tables" / "table.csv", dtype=str)
    means = frame[["recall", "R@10", "R@50", "mAP@10"]].map(lambda cell: float(cell.split()[0]))
    blocks = means.groupby([frame["loss"], frame["negatives"]])
    best = (means == blocks.transform("max")) & (blocks.transform("nunique") > 1)
    want = []
    for row in frame.index:
        want += [frame[name][row] for name in means if best[name][row]]
    assert bold == want
    assert page.tables["table-table"][0][:4] == ["strategy", "loss", "against the best", "behind the best"]


def test_nothing_is_asked_from_the_network_and_nothing_breaks_when_the_file_is_sent_alone(page, compared):
    assert page.sources
    assert {source.split(",")[0] for source in page.sources} == {"data:image/webp;base64", "data:image/svg+xml;base64"}
    assert len(set(page.sources)) == len(page.sources)
    assert [href for href in page.hrefs if not href.startswith("#") and href != "data:,"] == []
    text = text_of(compared)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text
    assert "onclick" not in text
    for path, _folder in re.findall(r'class="files">((tables|figures)/[\w.-]+?\.\w+)', text):
        assert (compared / "small" / "report" / path).is_file(), path
    assert (compared / "small" / "report" / "index.html").stat().st_size < 1_500_000


def test_tables_are_those_of_the_terminal(page, compared, subtests):
    findings = read_findings(compared, "small")
    (want,) = leader_tables(findings.groups, findings.verdicts).values()
    folder = compared / "small" / "report" / "tables"
    for key, frame in (("table", want["quality"]), ("behaviour", want["behaviour"]), ("cost", want["cost"])):
        with subtests.test(key):
            pd.testing.assert_frame_equal(pd.read_csv(folder / f"{key}.csv", dtype=str), frame.astype(str))
            head, *rows = page.tables[f"table-{key}"]
            assert rows == frame[head].astype(str).to_numpy().tolist(), key
            for column in set(frame.columns) - set(head):
                assert frame[column].nunique() == 1, f"{key}, {column}"
            assert "negatives" in frame, key
    assert {"against the best", "behind the best", "distinct", "beaten by", "mean"} <= set(want["quality"].columns)
    counts = [float(text) for text in want["quality"]["negatives"]]
    assert counts == sorted(counts)
    assert set(want["quality"]["strategy"][:4]) == {"qure", "top-k"}


def test_parts_of_a_page_are_named_by_what_differs(drawn_runs):
    pair = drawn_runs.groups[:2]
    worlds = [group.assign(dataset=f"v@twins{number}-50-{number}") for number, group in enumerate(pair)]
    assert [part.where for part in figures.chart_data_of(worlds)] == ["v@twins0", "v@twins1"]
    budgets = [group.assign(epochs=str(number)) for number, group in enumerate(pair, 1)]
    assert [part.where for part in figures.chart_data_of(budgets)] == ["1 epochs", "2 epochs"]
    assert drawn_runs.where == ""


def test_every_chart_is_drawn_with_its_words_and_written(page, compared):
    written = {path.stem for path in (compared / "small" / "report" / "figures").glob("*.svg")}
    on_page = {key.removeprefix("figure-") for key in page.ids if key.startswith("figure-")}
    assert on_page == written == {"forest", "false-negatives", "kinds", "training", "pool-sizes", "score-curves"}
    assert page.unnamed == 0
    for name in written:
        picture = (compared / "small" / "report" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert len(re.findall("<path|<use", picture)) > 20, name  # it is not blank
    for figure in re.findall(r'<figure class="block chart".*?</figure>', text_of(compared), re.DOTALL):
        words = re.search(r'<p class="small">(.*?)</p>', figure)
        assert len(words[1]) > 40, words[1]  # a sentence explains the figure


def draw(panel: Any) -> Any:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


def lines_of(panel: Any) -> dict[str, Any]:
    """Draw a panel, and return its lines by their labels."""
    return {str(line.get_label()): line for line in draw(panel).lines}


@pytest.fixture
def drawn_runs(compared: Path) -> figures.ChartData:
    findings = read_findings(compared, "small")
    (runs,) = figures.chart_data_of(sort_alike(findings.groups, findings.verdicts), findings.verdicts)
    return runs


def find_group(runs: figures.ChartData, strategy: str, loss: str) -> pd.DataFrame:
    """Return the runs of a strategy under a loss."""
    labels = [(shared_value(group, "strategy"), shared_value(group, "loss")) for group in runs.groups]
    return runs.groups[labels.index((strategy, loss))]


def means_by_epoch(group: pd.DataFrame, metric: str) -> list[float]:
    """Return the mean of a metric over two seeds before training and after each of three epochs."""
    means = []
    for epoch in (-1, 0, 1, 2):
        values = []
        for run in folders_of(group):
            values += [point[metric] for point in run.metrics() if point["epoch"] == epoch and metric in point]
        assert len(values) == 2, f"epoch {epoch}"
        means.append(sum(values) / 2)
    return means


def test_training_lines_are_the_points_of_the_runs(drawn_runs):
    chart = figures.training(drawn_runs)
    (panel,) = [panel for panel in chart.panels if panel.title == "info-nce"]
    axes = draw(panel)
    (line,) = [line for line in axes.lines if line.get_label() == "qure"]
    means = means_by_epoch(find_group(drawn_runs, "qure", "info-nce"), "val/average/recall")
    assert list(line.get_xdata()) == [0, 1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([100 * mean for mean in means])
    assert line.get_markevery() == [1, 2]  # refreshed before the second and the third epoch
    assert axes.get_ylabel() == "average recall (%)"


def test_the_caption_of_training_promises_only_what_is_drawn(drawn_runs):
    text = figures.training(drawn_runs).text
    assert "2 seeds" in text
    assert "of the reported split after each epoch, " in text
    assert "a marker shows" in text
    for group in drawn_runs.groups:
        first_run(group).result["refresh_epochs"] = [0]
    assert "marker" not in figures.training(drawn_runs).text


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        ([0, 1, 2], "after each epoch"),
        ([0, 10, 20], "after every 10 epochs"),
        ([0, 1, 7], "after 0, 1 and 7 epochs"),
        ([0, 30], "after 0 and 30 epochs"),
    ],
)
def test_a_caption_says_at_which_epochs_points_lie(epochs, words):
    assert figures._at(epochs) == words


def test_on_a_phone_the_forest_keeps_what_is_drawn_beside_its_intervals(drawn_runs):
    (chart,) = figures.forests(drawn_runs)
    figure = _figure(chart, narrow=True)
    (axes,) = figure.axes
    titles = [text for text in axes.texts if hasattr(text, "xyann") and text.xy[1] == -1]
    assert [text.get_text() for text in titles] == ["FN %", "rank", "mostly"]
    edges = [axes.get_window_extent().x1]
    for title in titles:
        box = title.get_window_extent()
        edges += [box.x0, box.x1]
    edges.append(figure.bbox.x1)
    assert edges == sorted(edges)  # from left to right, none over another, none outside
    assert axes.get_position().width > 0.2


def test_without_a_baseline_that_was_asked_for_the_forest_is_against_the_best_alone(drawn_runs):
    assert len(figures.forests(drawn_runs)) == 1


@dataclass(frozen=True)
class ForestRow:
    """A row of a forest as it is drawn: the texts beside it, by their columns' titles, and its lines; its verdict."""

    label: str
    texts: dict[str, Any]
    lines: list[Any]
    verdict: Verdict

    @property
    def name(self) -> str:
        return f"{self.label} under {self.verdict.loss}"


@dataclass(frozen=True)
class Forest:
    """A forest as it is drawn: `difference` from a baseline, or how far each is `behind` the best."""

    title: str
    chart: Chart
    losses: list[str]
    columns: list[str]
    rows: list[ForestRow]


@pytest.fixture(params=["behind", "difference"])
def forest(request: pytest.FixtureRequest, drawn_runs: figures.ChartData) -> Forest:
    verdicts = [replace(row, baseline_asked=True) for row in drawn_runs.verdicts if row.main]
    behind_best, from_baseline = figures.forests(replace(drawn_runs, verdicts=tuple(verdicts)))
    chart = behind_best if request.param == "behind" else from_baseline
    (panel,) = chart.panels
    axes = draw(panel)
    loss_at = {}  # height of a loss's title -> loss
    title_at = {}  # index of a column -> its title
    texts_at: dict[float, dict[str, Any]] = {}  # height of a row -> title of a column -> text
    for text in axes.texts:
        if "under" in text.get_text():
            loss_at[text.get_position()[1]] = text.get_text().removeprefix("under ")
        elif hasattr(text, "xyann") and text.xy[1] == -1:
            title_at[text.xyann[0]] = text.get_text()
    for text in axes.texts:
        if hasattr(text, "xyann") and text.xyann[0] in title_at:
            texts_at.setdefault(text.xy[1], {})[title_at[text.xyann[0]]] = text
    rows = []
    for label, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True):
        strategy = label.get_text().removesuffix(" (baseline)")
        loss = loss_at[max(height for height in loss_at if height < y)]
        (verdict,) = [row for row in verdicts if (row.strategy, row.loss) == (strategy, loss)]
        lines = [line for line in axes.lines if set(line.get_ydata()) == {y}]
        rows.append(ForestRow(label.get_text(), texts_at[y], lines, verdict))
    return Forest(request.param, chart, list(loss_at.values()), list(title_at.values()), rows)


def test_a_forest_has_all_strategies_under_each_loss(forest):
    baseline = "in-batch (baseline)" if forest.title == "difference" else "in-batch"
    assert forest.losses == ["bradley-terry", "info-nce"]
    assert [row.label for row in forest.rows] == 2 * ["top-k", "qure", baseline]
    assert any(word in forest.chart.text for word in figures.VERDICTS)


def test_beside_a_forest_stand_the_numbers_of_its_rows(forest, drawn_runs):
    assert forest.columns == ["recall %", forest.title, "FN %", "rank", "mostly", "negatives"]
    for row in forest.rows:
        group = find_group(drawn_runs, row.verdict.strategy, row.verdict.loss)
        false = known_numbers(group, "behaviour/false_negative_rate_draws")
        ranks = known_numbers(group, "behaviour/draw_rank_median")
        texts = {title: text.get_text() for title, text in row.texts.items()}
        assert list(texts) == forest.columns, row.name
        assert texts["recall %"] == percent(row.verdict.mean.value, 1), row.name
        assert texts["negatives"] == f"{row.verdict.negatives:.3g}", row.name
        assert texts["FN %"] == f"{100 * sum(false) / 2:.2f}", row.name
        assert texts["rank"] == (f"{sum(ranks) / len(ranks):,.0f}" if ranks else "-"), row.name


def test_the_best_mean_of_a_forest_is_bold(forest):
    highest: dict[str, float] = {}
    for row in forest.rows:
        highest[row.verdict.loss] = max(row.verdict.mean.value, highest.get(row.verdict.loss, 0.0))
    for row in forest.rows:
        if forest.title == "difference":
            is_best = row.verdict.mean.value == highest[row.verdict.loss]
        else:
            is_best = row.verdict.standing in ("best", "highest")
        assert (row.texts["recall %"].get_fontweight() == "bold") == is_best, row.name


def test_a_forest_has_the_intervals_of_its_rows_in_the_colours_of_their_verdicts(forest):
    for row in forest.rows:
        if forest.title == "difference":
            word = row.verdict.verdict
            estimate = row.verdict.against_baseline
        else:
            word = row.verdict.standing
            estimate = row.verdict.behind_best
        if word in ("best", "highest"):
            estimate = Estimate(0.0, 0.0, 0.0)
        elif word in ("only", "baseline"):
            continue
        bar, point = row.lines
        assert list(point.get_xdata()) == [100 * estimate.value], row.name
        assert list(bar.get_xdata()) == [100 * estimate.low, 100 * estimate.high], row.name
        assert (point.get_color(), point.get_marker()) == figures.VERDICTS[word], row.name


def test_what_is_undecided_is_grey():
    colour, _marker = figures.VERDICTS["undecided"]
    assert colour == GREY


def test_colours_are_the_same_in_every_figure(drawn_runs):
    colours: dict[str, set[str]] = {}
    for chart in (figures.training(drawn_runs), figures.false_negatives(drawn_runs)):
        for panel in chart.panels:
            for line in draw(panel).lines:
                if line.get_label() in drawn_runs.strategies:
                    colours.setdefault(line.get_label(), set()).add(line.get_color())
    assert colours.keys() == set(drawn_runs.strategies)
    assert {name: len(of_strategy) for name, of_strategy in colours.items()} == dict.fromkeys(colours, 1)
    assert len(set.union(*colours.values())) == len(colours)


def mean_pool_sizes(group: pd.DataFrame) -> list[float]:
    """Return the mean size of the stored pools of each refresh, over queries and runs."""
    of_runs = []
    for run in folders_of(group):
        files = sorted(run.path.glob("mining-*"))
        of_runs.append([run.table(file.stem)["pool_size"].mean() for file in files])
    return list(np.mean(of_runs, axis=0))


def test_pool_sizes_are_those_of_the_runs(drawn_runs):
    panels = figures.pool_sizes(drawn_runs).panels
    assert [panel.title for panel in panels] == [loss for loss, _ in drawn_runs.by_loss()]
    for panel in panels:
        lines = lines_of(panel)
        assert lines.keys() == {"qure", "top-k"}, panel.title
        sizes = mean_pool_sizes(find_group(drawn_runs, "qure", panel.title))
        assert list(lines["qure"].get_ydata()) == pytest.approx(sizes), panel.title


def test_score_curves_are_those_of_the_runs(drawn_runs):
    panels = figures.score_curves(drawn_runs).panels
    assert [panel.title for panel in panels] == [loss for loss, _ in drawn_runs.by_loss()]
    for panel in panels:
        lines = lines_of(panel)
        before, after = lines  # one warm-up for all, after which the pools differ
        assert before == "before training", panel.title
        assert set(after.split(", ")) == {"qure", "top-k"}, panel.title
        warm = lines[after]
        assert warm.get_color() != lines[before].get_color(), panel.title
        group = find_group(drawn_runs, "qure", panel.title)
        curves = [ScoreCurves.load(run.path / "curves-warm.npz") for run in folders_of(group)]
        mean = np.mean([curve.scores for curve in curves], axis=0)
        assert list(warm.get_ydata()) == pytest.approx(list(mean)), panel.title
        assert warm.get_xdata()[0] == 1, panel.title
        marked = np.array([warm.get_xdata()[index] for index in warm.get_markevery()])
        ranks = np.median(np.sort(np.concatenate([curve.drops for curve in curves])), axis=0) + 1
        apart = np.abs(marked[:, None] / ranks - 1)  # one marker where both ranks fall on one x
        assert (apart.min(axis=0) < 0.06).all(), panel.title
        assert (apart.min(axis=1) < 0.06).all(), panel.title


def test_a_warm_up_that_many_share_is_named_by_two(drawn_runs):
    group = next(group for group in drawn_runs.groups if shared_value(group, "strategy") == "qure")
    many = pd.concat([group.assign(strategy=name) for name in "abcd"])
    (panel,) = figures.score_curves(replace(drawn_runs, results=many)).panels
    assert panel.title == ""  # of one loss
    assert [str(line.get_label()) for line in draw(panel).lines] == ["before training", "a, b and 2 more"]


def test_the_untrained_model_has_one_curve_though_a_strategy_has_fewer_seeds(drawn_runs):
    first, *others = drawn_runs.groups
    fewer = replace(drawn_runs, results=pd.concat([first[:1], *others]))
    for panel in figures.score_curves(fewer).panels:
        names = [str(line.get_label()) for line in draw(panel).lines]
        assert names.count("before training") == 1, panel.title


def first_qure_run(runs: Path) -> RunFolder:
    """Return the run of qure under the Bradley-Terry loss with seed 0."""
    return RunFolder(next(path for path in sorted(runs.glob("qure-bradley-terry*-s0-*")) if path.is_dir()))


def test_galleries_show_what_was_drawn(page, compared, words_of):
    with Image.open(io.BytesIO(base64.b64decode(page.sources[0].split(",")[1]))) as opened:
        assert opened.format == "WEBP"
    text = words_of(compared / "small" / "report" / "index.html")
    run = first_qure_run(compared)
    mined = pd.read_parquet(run.path / "mining-00.parquet")
    query = re.search(r"query (\S+-train-\d+) of train", text)
    assert query is not None
    assert len(re.findall("<h4>[^<]*negatives drawn", text)) == 3 * 2  # best, worst, random; two mining strategies
    queries = [query.id for query in load_split(run.config.dataset, "train", images=False).queries]
    row = queries.index(query.group(1))
    block = text[query.end() :]
    strip = block[block.index("qure: negatives drawn") :]
    assert f"{mined['scores'][row][0]:.2f}" in strip[: strip.index("</ul>")]


def test_galleries_show_what_the_trained_model_ranked(compared):
    folder = first_qure_run(compared)
    ranks = folder.ranks()["target_rank"].tolist()
    dataset = load_split(folder.config.dataset, "val", images=False)
    every_row = dict.fromkeys(range(len(ranks)), "all")
    view, *_ = _view("qure", folder, resolve(folder.config), DataCache(), every_row, None)
    columns, _ = view.val
    for rank, target, top in zip(ranks, dataset.target_columns.tolist(), columns.tolist(), strict=True):
        if rank <= TOP:
            assert top.index(target) + 1 == rank, dataset.images[target]
        else:
            assert target not in top, dataset.images[target]


@pytest.fixture
def runs(compared: Path, tmp_path: Path) -> Path:
    """Return a copy of the runs folder that a test may change."""
    return Path(shutil.copytree(compared, tmp_path / "runs"))


def test_what_is_gone_is_said(runs, tmp_path, words_of):
    (runs / "small" / "statistics.json").unlink()
    for file in runs.glob("qure-*/model.safetensors"):
        file.unlink()
    for file in runs.glob("*/config.json"):
        manifest = json.loads(file.read_text(encoding="utf-8"))
        manifest["config"]["dataset"]["root"] = str(tmp_path / "gone")
        write_json(file, manifest)
    cells = json.loads((runs / "small" / "comparison.json").read_text(encoding="utf-8"))
    cells["cells"][0] |= {"run": None, "error": "the <b>loss</b> is nan"}
    write_json(runs / "small" / "comparison.json", cells)
    file = write_report(runs, "small", 1)[0]
    text = words_of(file)
    page = Parsed(file.read_text(encoding="utf-8"))
    assert "statistics.json</code> is absent" in text
    assert text.count(": no weights") == 1
    assert str(tmp_path / "gone") in text
    assert "<image" not in text
    assert 'id="leader"' in text
    assert "1 of 12 cells are not finished" in text
    assert "the &lt;b&gt;loss&lt;/b&gt; is nan" in file.read_text(encoding="utf-8")
    assert "tests" not in page.ids


def test_versions_that_differ_are_named(runs, page_text):
    """Of a package with several versions, the page names all, above the results; of the others, nothing."""
    assert read_findings(runs, "small").differing_computation() == []
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    versions = folder.manifest["versions"]
    folder.write_manifest({**folder.manifest, "versions": {**versions, "torch": "1.0"}})
    (remark,) = read_findings(runs, "small").differing_computation()
    assert {"torch", "1.0", versions["torch"]} < set(remark.replace(":", " ").split())
    assert "python" not in remark
    both_versions = "1.0 and " if "1.0 and" in remark else " and 1.0"
    assert page_text(runs, "small").count(both_versions) == 3  # twice, and the facts


def test_numbers_of_threads_that_differ_are_named_where_they_may_matter(runs):
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    started = {**folder.manifest["started"], "threads": 33}
    folder.write_manifest({**folder.manifest, "started": started})
    (threads,) = read_findings(runs, "small").differing_computation()
    assert threads.endswith(" and 33 threads: their last bits may differ")
    folder.write_manifest({**folder.manifest, "started": {**started, "device": "cuda"}})
    assert read_findings(runs, "small").differing_computation() == []


def test_what_was_computed_otherwise_stands_above_the_results(runs):
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    folder.write_manifest({**folder.manifest, "versions": {**folder.manifest["versions"], "torch": "1.0"}})
    findings = read_findings(runs, "small")
    (remark,) = findings.differing_computation()
    first, second = build.comparison_page(runs / "small", findings, (), 0).chapters["result"][0].parts
    assert (first.text, second.key) == (f"{remark[0].upper()}{remark[1:]}.", "forest")


def test_steps_that_were_computed_otherwise_are_named(runs, page_text):
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    in_parts = {"epoch": 0, "micro_batch": 8, "recompute": True, "processes": 1}
    folder.write_result({**folder.result, "computed": [in_parts]})
    (remark,) = read_findings(runs, "small").differing_computation()
    plans = "micro-batches of 8, activations computed again and in whole batches"
    assert remark == f"the runs were trained in {plans}: the last bits of gradients may differ"
    assert page_text(runs, "small").count("micro-batches of 8") == 3  # twice above the results, and the facts
    assert behaviour_lines(folder)[-1] == "steps      in micro-batches of 8, activations computed again"


def test_values_of_another_type_are_one_line(runs, expect_error, subtests):
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    ranks = folder.ranks()
    folder.write_ranks(ranks.assign(target_rank="first"))
    with pytest.raises(NegbenchError, match=r"cannot read .*ranks\.parquet: "):
        folder.ranks()
    folder.write_ranks(ranks)
    result = folder.result
    for flaw in ({"metrics": "high"}, {"regime_by_refresh": "x"}, {"refresh_epochs": ["x"]}):
        with subtests.test(flaw=flaw):
            folder.write_result({**result, **flaw})
            expect_error(["report", "small", "--runs-dir", str(runs)], f"result.json: {next(iter(flaw))}")
    folder.write_result(result)
    (folder.path / "metrics.jsonl").unlink()
    expect_error(["report", "small", "--runs-dir", str(runs)], f"run {folder.run_id} has lost metrics.jsonl")


def test_the_command_prints_what_it_wrote(printed, compared, page_text, expect_error):
    files = [compared / "small" / name for name in ("card.json", "card.md", "report/index.html")]
    assert printed[:3] == [str(file) for file in files]
    assert [file for file in files if not file.is_file()] == []
    assert any("files (svg)" in line for line in printed)
    assert not {"gallery", "negatives"} & set(Parsed(page_text(compared, "small", 0)).ids)  # none on request
    absent = ["report", "nosuch", "--runs-dir", str(compared)]
    assert "small" in expect_error(absent, f"no comparison 'nosuch' in {compared}; known: ")
    write_json(compared / "foreign" / "comparison.json", {"cells": [{"name": "of another form"}]})
    expect_error(
        ["report", "foreign", "--runs-dir", str(compared)], "comparison.json is from another version of negbench, or"
    )


def test_sort_keys():
    keys = {
        "12.34 ± 0.5": "12.34",
        "1,234": "1234",
        "-": "",
        "-0.3": "-0.3",
        "+1.71 [0.08, 3.35]": "+1.71",
        "Qure": "qure",
        "[1, 2]": "[1, 2]",
        "<0.001": "0.001",
    }
    assert {cell: sort_key(cell) for cell in keys} == keys
    assert sort_key(2) == "2"


def test_the_page_of_thirty_groups_is_light(many):
    file = many / "many" / "report" / "index.html"
    assert file.stat().st_size < 3_000_000
    parsed = Parsed(file.read_text(encoding="utf-8"))
    assert len(parsed.tables["table-table"]) - 1 == 30
    assert len(parsed.sources) > 20  # includes galleries and their pictures
    assert parsed.elements < 40_000  # the time to open it grows with them: docs/performance.md


def test_names_and_intervals_are_kept_in_one_line(spelled, subtests):
    for text, markup in spelled["prose"].items():
        with subtests.test(text=text):
            assert _prose(text) == markup
