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
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from negbench.analysis.answer import say
from negbench.analysis.findings import read_findings
from negbench.analysis.frame import first_run, folders_of, known_numbers, shared_value
from negbench.analysis.leader import leader_tables, sort_alike
from negbench.analysis.run_tables import behaviour_lines
from negbench.analysis.verdict_record import Estimate
from negbench.analysis.words import percent
from negbench.cli.main import run as negbench
from negbench.data.scene import DataCache, load_split
from negbench.errors import NegbenchError
from negbench.machine.files import write_json
from negbench.metrics.score_curves import ScoreCurves
from negbench.plugins.registry import registry
from negbench.report import build, figures
from negbench.report.build import write_report
from negbench.report.charts import GREY, _figure
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
        if "href" in attributes:
            (self.sources if tag == "image" else self.hrefs).append(str(attributes["href"]))
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
    left, out = compared / "small" / "report" / "figures" / ".forest.svg.abc.partial", io.StringIO()
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a killed process")
    with redirect_stdout(out):
        assert negbench(["report", "small", "--card", "--galleries", "1", "--runs-dir", str(compared)]) == 0
    assert not left.exists()
    return out.getvalue().splitlines()


@pytest.fixture(scope="module")
def page(printed: list[str]) -> Parsed:
    return Parsed(Path(printed[2]).read_text(encoding="utf-8"))


def text_of(compared: Path) -> str:
    return (compared / "small" / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_section_is_there_and_linked(page):
    want = [
        "leader", "false-negatives", "kinds", "training", "pool-sizes", "score-curves", "behaviour", "strategies",
        "own", "gallery", "negatives", "tests", "cells",
    ]  # fmt: skip
    assert [i for i in page.ids if i in want] == want
    links = [h for h in page.hrefs if h.startswith("#") and not h.startswith("#image")]
    assert [h for h in links if h[1:] in want] == [f"#{key}" for key in want]
    chapters = ("result", "why", "your-data", "examples", "details")
    assert [h for h in links if "chapter" in h] == [f"#chapter-{name}" for name in chapters]
    assert len(set(page.ids)) == len(page.ids)
    assert {h[1:] for h in page.hrefs if h.startswith("#")} <= set(page.ids)


def test_the_answer_comes_first_and_detail_is_folded(page, compared, words_of):
    text, lines = text_of(compared), say(read_findings(compared, "small"))
    before, after = words_of(compared / "small" / "report" / "index.html").split('id="leader"')
    assert [line.split(":")[0] for line in lines[:2]] == ["bradley-terry", "info-nce"]
    assert lines[2].startswith("average recall averaged over 3 strategies: ")
    for line, part in zip(lines, [*[before] * 3, *[after] * len(lines)], strict=False):
        assert line in part, line
    assert all("average recall with 1 negative per query and step, after " in line for line in lines[:2])
    assert text.index('id="figure-forest"') < text.index('id="table-table"') < text.index("<details")
    assert text.index("<details") > text.index('id="gallery"')
    assert page.folded == [True]  # only the details are folded
    head = re.search(r'<p class="header">(.*?)</p>', text)
    date = datetime.fromtimestamp((compared / "small" / "comparison.json").stat().st_mtime, tz=UTC)
    words = re.sub("<[^>]*>", " ", head[1])
    for word in ("synthetic@", "2 seeds", "3 epochs", f"{date:%Y-%m}", "negbench 0."):
        assert word in words, word


def test_a_strategy_links_to_the_line_on_what_it_draws(page, compared):
    text = text_of(compared)
    lines = dict(re.findall(r'<li id="(strategy-\d+)">(.*?)</li>', text))
    summaries = {each.name: each.summary for each in registry.describe("strategies")}
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
    own = text[text.index('id="own"') : text.index('id="chapter-examples"')]
    commands = re.findall(r"<code>negbench (.*?)</code>", html.unescape(re.sub("</?span[^>]*>|<wbr>", "", own)))
    assert [command.split()[0] for command in commands] == ["init", "audit", "mine"]
    assert text.index('id="chapter-why"') < text.index('id="own"')
    for command in commands:
        name, *words = command.split()
        assert negbench([name, "--help"]) == 0, command
        told = capsys.readouterr().out
        for word in words:
            assert not word.startswith("--") or f"{word} " in told, command


def test_the_header_names_drawn_worlds_once(tmp_path):
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")

    def drawn(seed: int) -> Any:
        config = SimpleNamespace(seed=seed, train=SimpleNamespace(epochs=3))
        manifest = {"dataset": {"val": f"vectors@x-{seed}", "world": str(seed)}, "versions": {"negbench": "0.1"}}
        return SimpleNamespace(folder=SimpleNamespace(path=tmp_path), config=config, manifest=manifest)

    labels = {"dataset": "vectors@x", "backbone": "b", "loss": "l"}
    group = pd.DataFrame([{**labels, "stored": drawn(0)}, {**labels, "stored": drawn(1)}])
    others = [group.assign(loss=loss) for loss in ("m", "n")]
    first, *rest = build.header_of([group])
    assert first == "vectors@x (generated, a world for each seed)"
    assert rest[:4] == ["backbone b", "loss l", "2 seeds", "3 epochs"]
    losses = [build.header_of([group, *others[:more]])[2] for more in (1, 2)]
    assert losses == ["loss l or m", "3 values of loss"]


def test_the_best_numbers_are_bold(page, compared):
    text = text_of(compared)
    table = text[text.index('id="table-table"') :]
    bold = re.findall("<b>([^<]*)</b>", table[: table.index("</table>")])
    frame = pd.read_csv(compared / "small" / "report" / "tables" / "table.csv", dtype=str)
    means = frame[["recall", "R@10", "R@50", "mAP@10"]].map(lambda cell: float(cell.split()[0]))
    blocks = means.groupby([frame["loss"], frame["negatives"]])
    best = (means == blocks.transform("max")) & (blocks.transform("nunique") > 1)
    want = [frame[name][row] for row in frame.index for name in means if best[name][row]]
    assert bold == want
    assert page.tables["table-table"][0][:4] == ["strategy", "loss", "against the best", "behind the best"]


def test_nothing_is_asked_from_the_network_and_nothing_breaks_when_the_file_is_sent_alone(page, compared):
    assert page.sources
    assert {source.split(",")[0] for source in page.sources} == {"data:image/webp;base64", "data:image/svg+xml;base64"}
    assert len(set(page.sources)) == len(page.sources)
    assert all(h.startswith("#") or h == "data:," for h in page.hrefs)
    text = text_of(compared)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text
    assert "onclick" not in text
    for name in re.findall(r'class="files">(tables|figures)/([\w.-]+?)\.(\w+)', text):
        assert (compared / "small" / "report" / name[0] / f"{name[1]}.{name[2]}").is_file(), name
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
            dropped = [column for column in frame.columns if column not in head]
            assert all(frame[column].nunique() == 1 for column in dropped), key
            assert "negatives" in frame, key
    assert {"against the best", "behind the best", "distinct", "beaten by", "mean"} <= set(want["quality"].columns)
    counts = [float(text) for text in want["quality"]["negatives"]]
    assert counts == sorted(counts)
    assert set(want["quality"]["strategy"][:4]) == {"qure", "top-k"}


def test_parts_of_a_page_are_named_by_what_differs(drawn_runs):
    pair = drawn_runs.groups[:2]
    worlds = [group.assign(dataset=f"v@twins{n}-50-{n}") for n, group in enumerate(pair)]
    assert [part.where for part in figures.parts_of(worlds)] == ["v@twins0", "v@twins1"]
    budgets = [group.assign(epochs=str(n)) for n, group in enumerate(pair, 1)]
    assert [part.where for part in figures.parts_of(budgets)] == ["1 epochs", "2 epochs"]
    assert drawn_runs.where == ""


def test_every_chart_is_drawn_with_its_words_and_written(page, compared):
    written = {path.stem for path in (compared / "small" / "report" / "figures").glob("*.svg")}
    shown = {i.removeprefix("figure-") for i in page.ids if i.startswith("figure-")}
    assert shown == written == {"forest", "false-negatives", "kinds", "training", "pool-sizes", "score-curves"}
    assert page.unnamed == 0
    for name in written:
        picture = (compared / "small" / "report" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert len(re.findall("<path|<use", picture)) > 20, name  # it is not blank
    for figure in re.findall(r'<figure class="block chart".*?</figure>', text_of(compared), re.DOTALL):
        words = re.search(r'<p class="small">(.*?)</p>', figure)
        assert len(words[1]) > 40, words[1]  # a sentence explains the figure


def drawn(panel: Any) -> Any:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


@pytest.fixture
def drawn_runs(compared: Path) -> figures.ChartData:
    findings = read_findings(compared, "small")
    (runs,) = figures.parts_of(sort_alike(findings.groups, findings.verdicts), findings.verdicts)
    return runs


def test_training_lines_are_the_points_of_the_runs(drawn_runs):
    group = next(
        g for g in drawn_runs.groups if (shared_value(g, "strategy"), shared_value(g, "loss")) == ("qure", "info-nce")
    )
    want = []
    for epoch in range(-1, 3):
        points = [
            p for run in folders_of(group) for p in run.metrics() if p["epoch"] == epoch and "val/average/recall" in p
        ]
        assert len(points) == 2, f"epoch {epoch}"
        want.append(100 * sum(p["val/average/recall"] for p in points) / 2)
    chart = figures.training(drawn_runs)
    axes = drawn(next(panel for panel in chart.panels if panel.title == "info-nce"))
    line = next(line for line in axes.lines if line.get_label() == "qure")
    assert list(line.get_xdata()) == [0, 1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx(want)
    assert line.get_markevery() == [1, 2]  # refreshed before the second and the third epoch
    assert axes.get_ylabel() == "average recall (%)"
    assert "2 seeds" in chart.text
    assert "of the reported split after each epoch, " in chart.text
    assert "a marker shows" in chart.text
    for each in drawn_runs.groups:
        first_run(each).result["refresh_epochs"] = [0]
    assert "marker" not in figures.training(drawn_runs).text  # a caption promises only what is drawn


def test_a_caption_says_at_which_epochs_points_lie(subtests):
    for epochs, words in (
        ([0, 1, 2], "after each epoch"),
        ([0, 10, 20], "after every 10 epochs"),
        ([0, 1, 7], "after 0, 1 and 7 epochs"),
        ([0, 30], "after 0 and 30 epochs"),
    ):
        with subtests.test(epochs=epochs):
            assert figures._at(epochs) == words


def test_on_a_phone_the_forest_keeps_what_is_drawn_beside_its_intervals(drawn_runs):
    (chart,) = figures.forests(drawn_runs)
    figure = _figure(chart, narrow=True)
    (axes,) = figure.axes
    titles = [text for text in axes.texts if hasattr(text, "xyann") and text.xy[1] == -1]
    assert [text.get_text() for text in titles] == ["FN %", "rank", "mostly"]
    boxes = [text.get_window_extent() for text in titles]
    edges = [axes.get_window_extent().x1, *(edge for box in boxes for edge in (box.x0, box.x1)), figure.bbox.x1]
    assert edges == sorted(edges)  # from left to right, none over another, none outside
    assert axes.get_position().width > 0.2


@pytest.mark.parametrize("title", ["behind", "difference"])
def test_forest_plots_hold_the_intervals_and_verdicts_of_the_rows(drawn_runs, title):
    asked = tuple(replace(row, baseline_asked=True) for row in drawn_runs.verdicts)
    against, runs = title == "difference", replace(drawn_runs, verdicts=asked)
    assert len(figures.forests(drawn_runs)) == 1
    chart = figures.forests(runs)[against]
    (panel,) = chart.panels
    axes = drawn(panel)
    losses = {t.get_position()[1]: t.get_text().removeprefix("under ") for t in axes.texts if "under" in t.get_text()}
    assert list(losses.values()) == ["bradley-terry", "info-nce"]
    places = list(zip([t.get_text() for t in axes.get_yticklabels()], axes.get_yticks(), strict=True))
    assert [name for name, _ in places] == 2 * ["top-k", "qure", "in-batch" + " (baseline)" * against]
    words = {(t.xyann[0], t.xy[1]): t.get_text() for t in axes.texts if hasattr(t, "xyann")}
    columns = {text: x for (x, y), text in words.items() if y == -1}
    assert list(columns) == ["recall %", title, "FN %", "rank", "mostly", "negatives"]
    for name, y in places:
        loss = losses[max(height for height in losses if height < y)]
        row = next(r for r in runs.verdicts if r.main and r.loss == loss and r.strategy == name.split()[0])
        cells = {title: words[x, y] for title, x in columns.items()}
        assert (cells["recall %"], cells["negatives"]) == (percent(row.mean.value, 1), f"{row.negatives:.3g}"), (
            f"{name} under {loss}"
        )
        group = next(
            g for g in runs.groups if (shared_value(g, "strategy"), shared_value(g, "loss")) == (row.strategy, loss)
        )
        rates = known_numbers(group, "behaviour/false_negative_rate_draws")
        assert cells["FN %"] == f"{100 * sum(rates) / 2:.2f}", f"{name} under {loss}"
        ranks = known_numbers(group, "behaviour/draw_rank_median")
        expected = f"{sum(ranks) / len(ranks):,.0f}" if ranks else "-"
        assert cells["rank"] == expected, f"{name} under {loss}"
        (mean,) = (t for t in axes.texts if getattr(t, "xyann", [0])[0] == columns["recall %"] and t.xy[1] == y)
        of_loss = [each.mean.value for each in runs.verdicts if each.main and each.loss == loss]
        highest = row.mean.value == max(of_loss) if against else row.standing in ("best", "highest")
        assert (mean.get_fontweight() == "bold") == highest, f"{name} under {loss}"
        wanted = row.against_baseline if against else row.behind_best
        verdict = row.verdict if against else row.standing
        if verdict in ("best", "highest"):
            wanted = Estimate(0.0, 0.0, 0.0)
        elif verdict in ("only", "baseline"):
            continue
        bar, point = (line for line in axes.lines if len(line.get_ydata()) and set(line.get_ydata()) == {y})
        assert [*point.get_xdata(), *bar.get_xdata()] == [100 * wanted.value, 100 * wanted.low, 100 * wanted.high], (
            f"{name} under {loss}"
        )
        assert (point.get_color(), point.get_marker()) == figures.VERDICTS[verdict], f"{name} under {loss}"
    assert any(word in chart.text for word in figures.VERDICTS)
    assert figures.VERDICTS["undecided"][0] == GREY


def test_colours_are_the_same_in_every_figure(drawn_runs):
    seen: dict[str, set[str]] = {}
    for chart in (figures.training(drawn_runs), figures.false_negatives(drawn_runs)):
        for panel in chart.panels:
            for line in drawn(panel).lines:
                if line.get_label() in drawn_runs.strategies:
                    seen.setdefault(line.get_label(), set()).add(line.get_color())
    assert seen.keys() == set(drawn_runs.strategies)
    assert all(len(colors) == 1 for colors in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


def test_pool_sizes_and_score_curves_are_those_of_the_runs(drawn_runs):
    sizes, curves = figures.pool_sizes(drawn_runs), figures.score_curves(drawn_runs)
    for place, (loss, groups) in enumerate(drawn_runs.by_loss()):
        lines = {str(line.get_label()): line for line in drawn(sizes.panels[place]).lines}
        assert sizes.panels[place].title == curves.panels[place].title == loss, loss
        assert lines.keys() == {"qure", "top-k"}, loss
        group = next(group for group in groups if shared_value(group, "strategy") == "qure")
        frames = [[run.table(path.stem) for path in sorted(run.path.glob("mining-*"))] for run in folders_of(group)]
        means = np.mean([[frame["pool_size"].mean() for frame in of_run] for of_run in frames], axis=0)
        assert list(lines["qure"].get_ydata()) == pytest.approx(list(means)), loss
        drawn_curves = {str(line.get_label()): line for line in drawn(curves.panels[place]).lines}
        before, after = drawn_curves  # one warm-up for all, after which the pools differ
        assert (before, set(after.split(", "))) == ("before training", {"qure", "top-k"}), loss
        stored = [ScoreCurves.load(run.path / "curves-warm.npz") for run in folders_of(group)]
        warm = drawn_curves[after]
        assert warm.get_color() != drawn_curves[before].get_color(), loss
        assert list(warm.get_ydata()) == pytest.approx(list(np.mean([each.scores for each in stored], axis=0))), loss
        assert warm.get_xdata()[0] == 1, loss
        marked = np.array([warm.get_xdata()[at] for at in warm.get_markevery()])
        ranks = np.median(np.sort(np.concatenate([each.drops for each in stored])), axis=0) + 1
        apart = np.abs(marked[:, None] / ranks - 1)  # one marker where both ranks fall on one place
        assert (apart.min(0) < 0.06).all(), loss
        assert (apart.min(1) < 0.06).all(), loss


def test_a_warm_up_that_many_share_is_named_by_two(drawn_runs):
    group = next(group for group in drawn_runs.groups if shared_value(group, "strategy") == "qure")
    many = pd.concat([group.assign(strategy=name) for name in "abcd"])
    (panel,) = figures.score_curves(replace(drawn_runs, results=many)).panels
    assert panel.title == ""  # of one loss
    assert [str(line.get_label()) for line in drawn(panel).lines] == ["before training", "a, b and 2 more"]


def test_the_untrained_model_has_one_curve_though_a_strategy_has_fewer_seeds(drawn_runs):
    first, *others = drawn_runs.groups
    fewer = replace(drawn_runs, results=pd.concat([first[:1], *others]))
    for panel in figures.score_curves(fewer).panels:
        names = [str(line.get_label()) for line in drawn(panel).lines]
        assert names.count("before training") == 1, panel.title


def test_galleries_show_what_was_drawn(page, compared, words_of):
    with Image.open(io.BytesIO(base64.b64decode(page.sources[0].split(",")[1]))) as opened:
        assert opened.format == "WEBP"
    text = words_of(compared / "small" / "report" / "index.html")
    run = next(f for f in sorted(compared.glob("qure-bradley-terry*-s0-*")) if f.is_dir())
    mined = pd.read_parquet(run / "mining-00.parquet")
    shown = re.search(r"query (\S+)-train-(\d+) of train", text)
    assert shown is not None
    assert len(re.findall("<h4>[^<]*negatives drawn", text)) == 3 * 2  # best, worst, random; two mining strategies
    queries = [query.id for query in load_split(RunFolder(run).config.dataset, "train", images=False).queries]
    row = queries.index(f"{shown.group(1)}-train-{shown.group(2)}")
    block = text[shown.end() :]
    strip = block[block.index("qure: negatives drawn") :]
    assert f"{mined['scores'][row][0]:.2f}" in strip[: strip.index("</ul>")]


def test_galleries_show_what_the_trained_model_ranked(compared):
    folder = RunFolder(next(f for f in sorted(compared.glob("qure-bradley-terry*-s0-*")) if f.is_dir()))
    ranks = folder.ranks()["target_rank"].tolist()
    dataset = load_split(folder.config.dataset, "val", images=False)
    every, config = dict.fromkeys(range(len(ranks)), "all"), resolve(folder.config)
    columns, _ = _view("qure", folder, config, DataCache(), every, None)[0].val
    for rank, target, top in zip(ranks, dataset.target_columns.tolist(), columns.tolist(), strict=True):
        assert top.index(target) + 1 == rank if rank <= TOP else target not in top, dataset.images[target]


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
    text, page = words_of(file), Parsed(file.read_text(encoding="utf-8"))
    assert "statistics.json</code> is absent" in text
    assert text.count(": no weights") == 1
    assert str(tmp_path / "gone") in text
    assert "<image" not in text
    assert 'id="leader"' in text
    assert "1 of 12 cells are not finished" in text
    assert "the &lt;b&gt;loss&lt;/b&gt; is nan" in file.read_text(encoding="utf-8")
    assert "tests" not in page.ids


def test_versions_that_differ_are_named(runs, undrawn):
    """Of a package with several versions, the page names all, above the results; of the others, nothing."""
    assert read_findings(runs, "small").differing_computation() == []
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    versions = folder.manifest["versions"]
    folder.write_manifest({**folder.manifest, "versions": {**versions, "torch": "1.0"}})
    (remark,) = read_findings(runs, "small").differing_computation()
    assert {"torch", "1.0", versions["torch"]} < set(remark.replace(":", " ").split())
    assert "python" not in remark
    assert undrawn(runs, "small").count("1.0 and " if "1.0 and" in remark else " and 1.0") == 3  # twice, and the facts
    started = {**folder.manifest["started"], "threads": 33}
    folder.write_manifest({**folder.manifest, "versions": versions, "started": started})
    (threads,) = read_findings(runs, "small").differing_computation()
    assert threads.endswith(" and 33 threads: their last bits may differ")
    folder.write_manifest({**folder.manifest, "started": {**started, "device": "cuda"}})
    assert read_findings(runs, "small").differing_computation() == []
    folder.write_manifest({**folder.manifest, "versions": {**versions, "torch": "1.0"}})
    findings = read_findings(runs, "small")
    first, second = build.comparison_page(runs / "small", findings, (), 0).chapters["result"][0].parts
    assert (first.text, second.key) == (f"{remark[0].upper()}{remark[1:]}.", "forest")


def test_steps_that_were_computed_otherwise_are_named(runs, undrawn):
    folder = RunFolder(next(runs.glob("qure-*-s0-*")))
    in_parts = {"epoch": 0, "micro_batch": 8, "recompute": True, "processes": 1}
    folder.write_result({**folder.result, "computed": [in_parts]})
    (remark,) = read_findings(runs, "small").differing_computation()
    plans = "micro-batches of 8, activations computed again and in whole batches"
    assert remark == f"the runs were trained in {plans}: the last bits of gradients may differ"
    assert undrawn(runs, "small").count("micro-batches of 8") == 3  # twice above the results, and the facts
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


def test_the_command_prints_what_it_wrote(printed, compared, undrawn, expect_error):
    files = [compared / "small" / name for name in ("card.json", "card.md", "report/index.html")]
    assert printed[:3] == [str(file) for file in files]
    assert all(file.is_file() for file in files)
    assert any("files (svg)" in line for line in printed)
    assert not {"gallery", "negatives"} & set(Parsed(undrawn(compared, "small", 0)).ids)  # none on request
    absent = ["report", "nosuch", "--runs-dir", str(compared)]
    assert "small" in expect_error(absent, f"no comparison 'nosuch' in {compared}; known: ")
    write_json(compared / "foreign" / "comparison.json", {"cells": [{"name": "of another form"}]})
    expect_error(
        ["report", "foreign", "--runs-dir", str(compared)], "comparison.json is from another version of negbench, or"
    )


def test_sort_keys():
    keys = {"12.34 ± 0.5": "12.34", "1,234": "1234", "-": "", "-0.3": "-0.3", "+1.71 [0.08, 3.35]": "+1.71"}
    keys |= {"Qure": "qure", "[1, 2]": "[1, 2]", "<0.001": "0.001"}
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
    for text, shown in spelled["prose"].items():
        with subtests.test(text=text):
            assert _prose(text) == shown
