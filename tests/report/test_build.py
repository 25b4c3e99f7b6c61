"""The page of a comparison and of a run: sections, tables, figures, images, and what is missing."""

from __future__ import annotations

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from negbench.cli.main import run as negbench
from negbench.errors import RunError
from negbench.grid import compare
from negbench.report.build import write_report
from negbench.report.leader import leader_tables
from negbench.report.page import sort_key
from negbench.runfolder import RunFolder

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Parsed(HTMLParser):
    """Well-formed or an error; ids, links, tables, images and chart data of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.hrefs: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.specs: list[dict[str, list[dict[str, object]]]] = []
        self._figure = ""
        self._json = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if "src" in found:
            self.sources.append(str(found["src"]))
        if "href" in found:
            self.hrefs.append(str(found["href"]))
        if tag == "img":
            self.images.append(found)
        if tag == "figure":
            self._figure = str(found.get("id"))
        if tag == "table":
            self.tables[self._figure] = []
        if tag == "tr":
            self.tables[self._figure].append([])
        if tag in ("td", "th"):
            self.tables[self._figure][-1].append("")
        self._json = tag == "script" and found.get("type") == "application/json"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._json = False

    def handle_data(self, data: str) -> None:
        if self._json:
            self.specs.append(json.loads(data))
        elif self.open and ("td" in self.open[-2:] or "th" in self.open[-3:]):
            self.tables[self._figure][-1][-1] += data


@pytest.fixture(scope="module")
def page(compared: Path) -> Parsed:
    return Parsed(write_report(compared, "small", 1)[0].read_text(encoding="utf-8"))


def test_every_section_is_there_and_linked(page: Parsed) -> None:
    text = "leader tests training loss pools false-negatives scores heat-map trade-offs map gallery negatives cells"
    want = text.split()
    sections = [i for i in page.ids if i in want]
    assert sections == want
    assert [h for h in page.hrefs if h.startswith("#")][1:] == [f"#{key}" for key in want]
    assert len(set(page.ids)) == len(page.ids)


def test_nothing_is_asked_from_the_network(page: Parsed, compared: Path) -> None:
    assert page.sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources)
    own = [h for h in page.hrefs if not h.startswith(("#", "data:"))]
    for href in own:
        assert (compared / "small" / "report" / href).is_file(), href
    text = (compared / "small" / "report" / "index.html").read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)


def test_tables_are_those_of_the_terminal(page: Parsed, compared: Path) -> None:
    from negbench.report.build import _rows

    groups = compare.groups_of(compared, "small")
    (want,) = leader_tables(groups, _rows(compared / "small")).values()
    folder = compared / "small" / "report" / "tables"
    for key, frame in (("leader", want.quality), ("behaviour", want.behaviour), ("cost", want.cost)):
        pd.testing.assert_frame_equal(pd.read_csv(folder / f"{key}.csv", dtype=str), frame.astype(str))
        head, *rows = page.tables[f"table-{key}"]
        assert rows == frame[head].astype(str).to_numpy().tolist()
        dropped = [column for column in frame.columns if column not in head]
        assert all(frame[column].nunique() == 1 for column in dropped)
    assert len((folder / "leader.md").read_text(encoding="utf-8").splitlines()) == 2 + len(groups)
    assert {"interval", "p (Holm)", "verdict", "letters"} <= set(want.quality.columns)


def test_every_chart_is_drawn_twice_from_the_same_numbers(page: Parsed, compared: Path) -> None:
    import plotly.graph_objects as go

    figures = {path.stem for path in (compared / "small" / "report" / "figures").glob("*.png")}
    assert {i.removeprefix("figure-") for i in page.ids if i.startswith("figure-")} == figures
    assert {"training", "pools", "heat-map", "trade-offs", "scores-qure-bradley-terry", "map-qure"} <= figures
    for name in figures:
        with Image.open(compared / "small" / "report" / "figures" / f"{name}.png") as opened:
            assert len(opened.convert("L").getcolors(256) or []) > 20  # something is drawn
    for spec in page.specs:
        go.Figure(spec)  # plotly's own validation
        assert spec["data"]


def test_training_lines_are_the_points_of_the_runs(page: Parsed, compared: Path) -> None:
    group = next(
        g
        for g in compare.groups_of(compared, "small")
        if (g.labels["strategy"], g.labels["loss"]) == ("qure", "info-nce")
    )
    want = []
    for epoch in range(-1, 4):
        points = [p for run in group.runs for p in run.metrics() if p["epoch"] == epoch and "val/average/recall" in p]
        assert len(points) == 2
        want.append(100 * sum(p["val/average/recall"] for p in points) / 2)
    panels = [s for s in page.specs if s["layout"]["title"]["text"] == "info-nce"]  # type: ignore[call-overload]
    line = next(t for t in panels[0]["data"] if t.get("name") == "qure")
    assert line["x"] == [0, 1, 2, 3, 4]
    assert line["y"] == pytest.approx(want, rel=1e-5)
    assert line["marker"]["size"] == [0, 0, 8, 0, 0]  # type: ignore[index]  # refreshed before the third epoch


def test_galleries_show_what_was_drawn(page: Parsed, compared: Path) -> None:
    for image in page.images:
        assert image["alt"]
    with Image.open(io.BytesIO(__import__("base64").b64decode(page.sources[0].split(",")[1]))) as opened:
        assert opened.format == "JPEG"
    text = (compared / "small" / "report" / "index.html").read_text(encoding="utf-8")
    run = next(f for f in sorted(compared.glob("qure-bradley-terry*-s0-*")) if f.is_dir())
    mined = pd.read_parquet(run / "mining-00.parquet")
    shown = re.search(r"query (\S+)-train-(\d+) of train", text)
    assert shown is not None
    assert len(re.findall("<h4>[^<]*negatives drawn", text)) == 3 * 2  # best, worst, random; two strategies that mine
    row = next(
        index for index, query in enumerate(_train_queries(run)) if query == f"{shown.group(1)}-train-{shown.group(2)}"
    )
    block = text[shown.end() :]
    strip = block[block.index("qure: negatives drawn") :]
    assert f"{mined['scores'][row][0]:.2f}" in strip[: strip.index("</ul>")]


def _train_queries(run: Path) -> list[str]:
    from negbench.scene import load_split

    return [query.id for query in load_split(RunFolder(run).config.dataset, "train", images=False).queries]


def test_a_single_run(compared: Path) -> None:
    run = next(f for f in sorted(compared.glob("in-batch-bradley-terry*-s1-*")) if f.is_dir())
    written = write_report(compared, run.name, 1)
    page = Parsed(written[0].read_text(encoding="utf-8"))
    assert written[0] == run / "report" / "index.html"
    assert {"metrics", "training", "pools", "scores", "map", "gallery", "negatives", "settings"} <= set(page.ids)
    assert not {"heat-map", "trade-offs", "leader", "published"} & set(page.ids)
    head, *rows = page.tables["table-metrics"]
    result = RunFolder(run).result
    values = {row[0]: row[head.index("in-batch")] for row in rows}
    assert values["average recall"] == f"{100 * result['metrics']['average/recall']:.2f}"
    assert "a batch strategy uses its batch" in written[0].read_text(encoding="utf-8")


def test_what_is_gone_is_said(compared: Path, toy_root: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(compared, runs)
    (runs / "small" / "statistics.json").unlink()
    for file in [*runs.glob("*/curves-*.npz"), *runs.glob("*/model.safetensors")]:
        file.unlink()
    cells = json.loads((runs / "small" / "comparison.json").read_text(encoding="utf-8"))
    cells["cells"][0] |= {"run": None, "error": "the <b>loss</b> is nan"}
    (runs / "small" / "comparison.json").write_text(json.dumps(cells), encoding="utf-8")
    text = write_report(runs, "small", 1)[0].read_text(encoding="utf-8")
    page = Parsed(text)
    assert "statistics.json</code> is absent" in text
    assert "kept no score curves" in text
    assert "holds no weights" in text
    assert "1 of 12 cells are not finished" in text
    assert "the &lt;b&gt;loss&lt;/b&gt; is nan" in text
    assert "tests" not in page.ids


def test_data_that_are_gone_do_not_stop_the_report(compared: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(compared, runs)
    for file in runs.glob("*/config.json"):
        manifest = json.loads(file.read_text(encoding="utf-8"))
        manifest["config"]["dataset"]["root"] = str(tmp_path / "gone")
        file.write_text(json.dumps(manifest), encoding="utf-8")
    text = write_report(runs, "small", 1)[0].read_text(encoding="utf-8")
    assert str(tmp_path / "gone") in text
    assert "<img" not in text
    assert 'id="leader"' in text


def test_no_galleries_on_request_and_audits_when_there(compared: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(compared, runs)
    rows = [{"strategy": "qure", "pool_size": 4.0, "false_negative_rate_pool": 0.25, "judged_rate_pool": None}]
    audit = {"backbone": "tiny", "dataset": "d", "model": "untrained", "judge": "", "rows": rows, "remarks": ["so"]}
    (runs / "small" / "audit.json").write_text(json.dumps({"key": {}, "audits": [audit]}), encoding="utf-8")
    page = Parsed(write_report(runs, "small", 0)[0].read_text(encoding="utf-8"))
    assert not {"gallery", "map", "negatives"} & set(page.ids)
    assert page.tables["table-audit-1"] == [["strategy", "pool size", "FN pool %"], ["qure", "4", "25.00"]]


def test_unknown_names(compared: Path) -> None:
    with pytest.raises(RunError, match=r"there is no comparison 'nosuch' in .*: known are small"):
        write_report(compared, "nosuch")
    with pytest.raises(RunError, match="several match"):
        write_report(compared, "qure")


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        ("12.34 ± 0.5", "12.34"),
        ("1,234", "1234"),
        ("-", ""),
        ("-0.3", "-0.3"),
        ("+1.71 [0.08, 3.35]", "+1.71"),
        ("Qure", "qure"),
        ("[1, 2]", "[1, 2]"),
        (2, "2"),
        ("<0.001", "0.001"),
    ],
)
def test_sort_keys(cell: object, key: str) -> None:
    assert sort_key(cell) == key


def test_the_command_prints_what_it_wrote(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(["report", "small", "--galleries", "0", "--runs-dir", str(compared)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(compared / "small" / "report" / "index.html")
    assert any("files (png)" in line for line in lines)
    assert negbench(["report", "nosuch", "--runs-dir", str(compared)]) == 2
