"""In a real browser: MLflow's pages of a comparison, and the report, on what `negbench compare` made."""

import http.client
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from negbench.cli.main import run as negbench
from negbench.machine.files import write_json
from negbench.report.claims import claims_page
from negbench.report.page import write_page
from negbench.store.copies import POSITION
from negbench.store.tracking import Tracker

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "seen"
SHIFTS = """window.shift = 0;
    const added = list => list.getEntries().forEach(entry => { window.shift += entry.value; });
    new PerformanceObserver(added).observe({ type: 'layout-shift', buffered: true });"""
UNFOLD = "document.querySelectorAll('details').forEach(d => { d.removeAttribute('name'); d.open = true; })"


@pytest.fixture(scope="module")
def runs(toy_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of a comparison made by the command line, with its store and report."""
    where = tmp_path_factory.mktemp("browser")
    sets = [part for text in (*toy_sets, "train.epochs=2") for part in ("--set", text)]
    axes = ["--strategies", "qure,in-batch", "--losses", "bradley-terry,info-nce", "--seeds=1", "--baseline=in-batch"]
    assert negbench(["compare", "--lr=fixed", *axes, "--name", NAME, "--runs-dir", str(where), *sets]) == 0
    return where


@pytest.fixture(scope="module")
def server(
    runs: Path, forked: Callable[[Callable[[], object]], Any], strangers: Callable[[Path], Path]
) -> Iterator[str]:
    """Start `negbench ui` in a folder of strangers, yield its address, and kill it with all its children at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = runs / "ui.log"
    strange = strangers(runs.with_name("strange"))

    def serve() -> None:
        os.setsid()
        with log.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(1, 2)
        os.chdir(strange)
        negbench(["ui", "--runs-dir", str(runs), "--port", str(port)])

    process = forked(serve)
    try:
        while not log.exists() or f":{port}/#/" not in log.read_text(encoding="utf-8"):  # told when it answers
            assert process.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):  # it never became a group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    """Yield one page for all tests: MLflow's scripts are fetched and started once for all of its pages."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    # MLflow opens its assistant over a quarter of the window on the first visit only
    context.add_init_script("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
    opened = context.new_page()
    opened.set_default_timeout(180_000)  # on a busy machine the scripts take a minute
    yield opened
    context.close()


def mlflow_runs(runs: Path) -> dict[str, list[Any]]:
    """Return the MLflow runs of the experiment, by kind."""
    client = Tracker.open(runs).client()
    experiment = client.get_experiment_by_name(NAME)
    by_kind: dict[str, list[Any]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        by_kind.setdefault(run.data.tags["negbench.kind"], []).append(run)
    return by_kind


def test_the_printed_address_opens_bar_charts_of_the_strategies_under_the_answer(page, server, runs):
    """Without a name, `negbench ui` prints the address of the newest comparison."""
    (printed,) = re.findall(rf"{server}/#/experiments/\S+", (runs / "ui.log").read_text(encoding="utf-8"))
    page.goto(printed)
    ranked = sorted(mlflow_runs(runs)["summary"], key=lambda run: run.data.tags[POSITION])
    page.get_by_role("link", name=ranked[0].info.run_name, exact=True).first.wait_for()
    names = page.locator("a[href*='/runs/']").all_inner_texts()  # summaries only, the best first
    assert names == [run.info.run_name for run in ranked]
    page.get_by_text("R/10 average", exact=True).wait_for()  # the first section of charts
    page.get_by_text((runs / NAME / "answer.md").read_text(encoding="utf-8")[:40]).first.wait_for()
    page.get_by_role("link", name="Models", exact=True).wait_for()  # the pages for training, not for GenAI


def test_the_parent_says_the_answer_and_its_artifacts_open(page, server, runs):
    (parent,) = mlflow_runs(runs)["comparison"]
    where = f"{server}/#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}"
    page.goto(where)
    page.get_by_text((runs / NAME / "answer.md").read_text(encoding="utf-8").split("\n")[0]).first.wait_for()
    figures = {artifact.path for artifact in Tracker.open(runs).client().list_artifacts(parent.info.run_id, "figures")}
    assert {"figures/forest.svg", "figures/training.svg"} <= figures
    page.goto(f"{where}/artifacts/index.html")
    report = page.locator("iframe").first.content_frame
    assert report.locator("h1").inner_text() == f"negbench: {NAME}"
    report.locator("#figure-forest img").first.wait_for()


def test_the_pages_import_nothing_from_the_current_folder_and_answer_to_this_machine_s_names_alone(server, runs):
    address = server.removeprefix("http://")
    ours = (address, "localhost")
    others = ("10.0.0.1", "192.168.1.7:5000", "172.16.0.1", "[fc00::1]", "127.0.0.1.example.com", "example.com")
    for host, status in [*((host, 200) for host in ours), *((host, 403) for host in others)]:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/", headers={"Host": host})
        assert connection.getresponse().status == status, host
        connection.close()
    assert [path.name for path in runs.with_name("strange").glob("*.ran")] == []


# --- the report --------------------------------------------------------------------------------------------------


def check_first_screen(report: Any, width: int) -> None:
    answer = report.locator("#answer p").first.bounding_box()
    forest = report.locator("#figure-forest img").first.bounding_box()
    assert answer["y"] + answer["height"] < 900
    assert width == 390 or forest["y"] < 900  # on a phone the answer fills the first screen
    report.locator("#facts").last.scroll_into_view_if_needed()
    assert report.evaluate("window.shift") < 0.01  # nothing moves while it loads
    lines_of = "names => names.map(n => [n.textContent, n.getClientRects().length])"
    lines = report.locator(".answer .whole").evaluate_all(lines_of)
    assert {"in-batch", "bradley-terry"} <= {name for name, _ in lines}
    assert [name for name, count in lines if count > 1] == []  # no name breaks at its hyphens


def check_table_at(report: Any, width: int, *, scrolls: bool) -> None:
    """Check that the table's first result is seen without scrolling, but for long names on a phone."""
    report.set_viewport_size({"width": width, "height": 900})
    assert report.evaluate("document.documentElement.scrollWidth") == width
    box = report.locator("#table-table .scroll").bounding_box()
    head = report.locator("#table-table th:has-text('against the best')").bounding_box()
    assert scrolls or head["x"] + head["width"] <= box["x"] + box["width"]


def check_details_unfold(report: Any) -> None:
    """Check that a link into the details unfolds them, with pictures of one width."""
    assert report.locator("#chapter-details > details").get_attribute("open") is None
    report.evaluate("location.hash = '#tests'")
    report.locator("#tests table").first.wait_for()
    assert report.evaluate("document.documentElement.scrollWidth") == 1920
    widths = "[...document.querySelectorAll('.thumb svg')].map(s => s.getBoundingClientRect().width)"
    assert set(report.evaluate(widths)) <= {84}


def check_charts_on_a_phone(report: Any, *, scroll: bool) -> None:
    """Check that charts are legible, all panels without scrolling unless names are long."""
    report.set_viewport_size({"width": 390, "height": 900})
    scales = "[...document.querySelectorAll('.chart img')].map(i => i.clientWidth / i.naturalWidth)"
    report.wait_for_function(f"Math.min(...{scales}) > 0.6")  # swapping a picture takes a moment
    hidden = "[...document.querySelectorAll('.chart .scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    assert scroll or report.evaluate(hidden) == 0
    assert report.evaluate("document.documentElement.scrollWidth") == 390


def check_colours(report: Any, scheme: str) -> None:
    background = "rgb(20, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)"
    assert report.evaluate("getComputedStyle(document.body).backgroundColor") == background
    paper = report.evaluate("getComputedStyle(document.querySelector('#figure-training .scroll')).backgroundColor")
    assert paper == "rgb(255, 255, 255)"  # pictures are drawn on white


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
@pytest.mark.parametrize("name", [NAME, "many"])
def test_the_report_answers_on_the_first_screen_without_network(subtests, browser, runs, many, name, width, scheme):
    """That of four groups, and that of thirty."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    report = context.new_page()
    trouble = list[str]()
    requests = list[str]()
    report.set_default_timeout(20_000)
    report.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    report.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    report.on("request", lambda request: requests.append(request.url))
    report.add_init_script(SHIFTS)
    address = ((runs if name == NAME else many) / name / "report" / "index.html").as_uri()
    report.goto(address)
    check_first_screen(report, width)
    for wide in (390, 768, 1440, 1920):
        with subtests.test(wide=wide):
            check_table_at(report, wide, scrolls=(name, wide) == ("many", 390))
    check_details_unfold(report)
    check_charts_on_a_phone(report, scroll=name == "many")
    check_colours(report, scheme)
    assert [line for line in trouble if line.startswith(("error: ", "warning: "))] == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [address]
    context.close()


@pytest.fixture
def report(browser: Any, runs: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the report in an offline desktop window; `indirect` parameters are options of the window."""
    options: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, **getattr(request, "param", {})}
    context = browser.new_context(offline=True, **options)
    opened = context.new_page()
    opened.goto((runs / NAME / "report" / "index.html").as_uri())
    yield opened
    context.close()


def test_tables_sort_by_mouse_and_by_key_and_filter_by_words(report):
    table = report.locator("#table-table table")
    heads = [text.strip("↕↑↓ \n") for text in table.locator("th").all_inner_texts()]

    def column(name: str) -> list[str]:
        return table.locator(f"tbody td:nth-child({heads.index(name) + 1})").all_inner_texts()

    head = table.locator("th").nth(heads.index("R@10"))
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    numbers = [float(text.split()[0]) for text in column("R@10")]
    assert numbers == sorted(numbers, reverse=True)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.split()[0]) for text in column("R@10")] == sorted(numbers)
    name = table.locator("th").nth(heads.index("strategy"))
    name.locator("button").click()
    assert column("strategy") == ["in-batch", "in-batch", "qure", "qure"]
    assert head.get_attribute("aria-sort") == "none"
    gaps = table.locator("th").nth(heads.index("p")).locator("button")
    for number in range(2):  # gaps stay last in both directions
        gaps.click()
        assert column("p")[-2:] == ["-", "-"], f"click {number}"
    visible = table.locator("tbody tr:visible td:first-child")
    report.get_by_placeholder("Filter all tables").fill("QURE info")
    assert visible.all_inner_texts() == ["qure"]
    report.get_by_placeholder("Filter all tables").fill("")
    assert visible.count() == 4


PHONE = {"viewport": {"width": 390, "height": 900}, "color_scheme": "dark"}  # the desktop is light


@pytest.mark.parametrize("report", [{"bypass_csp": True}, {**PHONE, "bypass_csp": True}], indirect=True)
def test_axe_finds_nothing_in_the_report(report, axe):
    if report.evaluate("innerWidth") > 390:  # not on the phone: unfolding shows the same colours
        assert axe(report) == []
    report.evaluate(UNFOLD)
    assert axe(report) == []
    report.evaluate("document.querySelector('#answer p').style.color = '#bbbbbb55'")
    assert [line.split(":")[0] for line in axe(report, "#answer")] == ["color-contrast"]  # axe does find flaws


def test_the_report_by_keyboard_alone(report):
    report.keyboard.press("Tab")
    focused = "document.activeElement"
    assert report.evaluate(f"{focused}.textContent") == "Skip to the results"
    assert report.evaluate(f"{focused}.getBoundingClientRect().left") >= 0  # visible while focused
    report.keyboard.press("Enter")
    assert report.evaluate("location.hash") == "#main"
    report.locator("#chapter-details summary").first.focus()
    report.keyboard.press("Enter")
    report.locator("#tests table").first.wait_for()
    wide = report.locator("#table-table .scroll")
    wide.focus()  # scrolling areas take the focus for the arrow keys
    assert report.evaluate(f"{focused}.className") == "scroll"


@pytest.mark.parametrize("report", [{"color_scheme": "dark"}], indirect=True)
def test_printed_the_report_is_whole(report):
    assert report.locator("details:not([open])").count() == 1
    printed = report.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert report.locator("details:not([open])").count() == 0
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) > 3
    report.emulate_media(media="print", color_scheme="dark")
    assert not report.locator("nav").is_visible()
    report.set_viewport_size({"width": 720, "height": 1000})  # width of the paper at 96 dpi
    wide = "[...document.querySelectorAll('table, img, .thumbs')].map(e => e.getBoundingClientRect().right)"
    assert max(report.evaluate(wide)) <= 720  # nothing is clipped at the right
    assert report.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert report.evaluate("getComputedStyle(document.querySelector('.small')).color") == "rgb(92, 104, 115)"


def test_every_column_of_the_claims_is_seen_on_a_desktop(browser, tmp_path):
    text = "The whole corpus as pool improves steadily, but ends below pools chosen by score. "
    claim = {"id": 1, "verdict": "undecided", "words": text, "published": text, "measured": [text] * 3, "source": text}
    write_json(tmp_path / "claims.json", {"about": "vectors", "claims": [claim]})
    write_page(tmp_path / "report", claims_page(tmp_path))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((tmp_path / "report" / "index.html").as_uri())
    width, visible = page.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))")
    assert width == visible
    page.close()
