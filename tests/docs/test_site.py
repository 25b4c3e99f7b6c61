"""The documentation site: no warnings when built, a page for every plug-in, no requests to the network."""

import html
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import negbench
from negbench.contracts import ScoreView, Strategy
from negbench.plugins.registry import KINDS, registry
from negbench.systems.system import systems

ROOT = Path(__file__).parents[2]

MAIN_PAGES = [
    "index",
    "strategies/qure",
    "concepts",
    "statistics",
    "howto/ten_minutes",
    "howto/own_data",
    "strategies/index",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(forked: Callable[[Callable[[], object]], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with MkDocs as `make docs` does, with warnings as errors; return its folder."""
    mkdocs = pytest.importorskip("mkdocs.__main__", reason="MkDocs is not installed: pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")

    def build() -> None:
        os.chdir(ROOT)
        os.dup2(1, 2)
        mkdocs.cli(["build", "-q", "--strict", "-d", str(out)])

    process = forked(build)
    output = process.communicate()
    assert process.returncode == 0, output[-3000:]
    return out


@pytest.fixture
def build(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """Return the module docs/build.py."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install '.[docs]'")
    return load_file(ROOT / "docs" / "build.py")


class Addresses(HTMLParser):
    """Parser that collects the addresses that a page fetches and those of its links."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.followed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and attributes.get("src"):
            self.fetched.append(str(attributes["src"]))
        if tag == "link" and attributes.get("rel") in ("stylesheet", "preconnect", "icon", "preload"):
            self.fetched.append(str(attributes["href"]))
        if tag == "a" and attributes.get("href"):
            self.followed.append(str(attributes["href"]))


def read(page: Path) -> Addresses:
    addresses = Addresses()
    addresses.feed(page.read_text(encoding="utf-8"))
    return addresses


def built_in_names(kind: str) -> list[str]:
    return [name for name, plugin in registry.plugins(kind).items() if plugin.origin == "built-in"]


def test_every_plugin_and_system_has_a_page(subtests, site):
    for kind in KINDS:
        with subtests.test(kind=kind):
            for name in built_in_names(kind):
                text = (site / kind / f"{name}.html").read_text(encoding="utf-8")
                assert f'id="{name}"' in text, name
                assert "Options" in text, name
    for name, system in systems().items():
        assert system.title in (site / "systems" / f"{name}.html").read_text(encoding="utf-8"), name
    for page in ("concepts", "regimes", "statistics", "api/index", "findings", "reliability", "howto/own_strategy"):
        assert (site / f"{page}.html").exists(), page


def test_options_stand_with_type_default_range_and_meaning(site):
    text = (site / "strategies" / "qure.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>(.*?)</td>", text, flags=re.DOTALL)
    index = cells.index("<code>variant</code>")
    _, kind, default, values, meaning = [re.sub(r"<[^>]+>", "", cell) for cell in cells[index : index + 5]]
    assert (kind, default, values) == ("paper or release", "paper", "paper|release")
    assert "k1 and k2 are the two largest drops" in meaning
    assert "<strong>Departures of <code>variant" in text


def test_every_corpus_strategy_has_a_picture_of_its_pool(site):
    for name in built_in_names("strategies"):
        cls = registry.get("strategies", name)
        has_picture = '<figure class="pool"' in (site / "strategies" / f"{name}.html").read_text(encoding="utf-8")
        assert has_picture == (cls.scope == "corpus"), name


def test_a_picture_says_how_many_images_the_pool_has(build):
    cls = registry.get("strategies", "top-k")
    view: ScoreView = build.score_row(cls)
    assert torch.equal(view.scores[0].sort(descending=True).values, view.scores[0])  # rank = column + 1
    assert "100 images are in the pool" in build.pool_picture("top-k", cls)

    class Weighted(Strategy):
        def pool(self, view: ScoreView) -> torch.Tensor:
            return torch.where(view.allowed & (view.scores > 0.6), view.scores, 0)

    count = int((view.allowed & (view.scores > 0.6)).sum())
    assert f"{count} images are in the pool; larger dots are drawn more often" in build.pool_picture("own", Weighted)


def test_pages_fetch_nothing_from_the_network_and_link_to_what_exists(site):
    pages = sorted(site.rglob("*.html"))
    paths = {str(path) for path in (site, *site.rglob("*"))}
    assert len(pages) > 60
    for page in pages:
        addresses = read(page)
        assert [address for address in addresses.fetched if re.match(r"(https?:)?//", address)] == [], page
        if page.name == "404.html":  # its addresses start at a server's root
            continue
        for address in {*addresses.fetched, *addresses.followed}:
            if not re.match(r"[a-z]+:|#", address):
                assert os.path.normpath(page.parent / address.split("#")[0].split("?")[0]) in paths, (page, address)


def test_the_first_page_is_light(site):
    files = [site / address.split("?")[0] for address in read(site / "index.html").fetched]
    assert len(files) < 15
    assert sum(file.stat().st_size for file in (site / "index.html", *files)) < 1_000_000


def test_styles_fetch_nothing_from_the_network(site):
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_public_name_is_in_the_api(site):
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    anchors = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="([\w.-]+)"', text)}
    options = {"audit", "claims", "compare", "embed", "evaluate", "mine", "run", "study"}  # headings of api/options
    assert options <= anchors
    public = {name for name in dir(negbench) if not name.startswith("_")} - {name.title() for name in options}
    assert {name for name in public if not isinstance(getattr(negbench, name), ModuleType)} <= anchors


def test_doctests_are_code(site):
    page = (site / "api" / "commands.html").read_text(encoding="utf-8")
    assert re.search(r"<code>.*&gt;&gt;&gt; .*?make_strategy", re.sub(r"</?(span|a)\b[^>]*>", "", page))
    for file in site.rglob("*.html"):
        assert not re.search(r"<blockquote>\s*<blockquote>", file.read_text(encoding="utf-8")), file


def test_examples_are_shown_as_code(site):
    pages = {
        "examples/open_clip_loop.py": "howto/other_trainers.html",
        "examples/plain_pytorch.py": "howto/other_trainers.html",
        "examples/sentence_transformers_mining.py": "howto/other_trainers.html",
        "tests/datasets/pairs_plugin.py": "api/data.html",
    }
    for name, page in pages.items():
        text = html.unescape(re.sub(r"<[^>]+>", "", (site / page).read_text(encoding="utf-8")))
        assert (ROOT / name).read_text(encoding="utf-8").strip().splitlines()[-1].strip() in text, name


@pytest.mark.browser
def test_a_search_finds_how_tos(site, browser):
    pages = {
        "exclude reference": "false_negatives",
        "false negatives": "false_negatives",
        "separator": "ten_minutes",
        "latex": "share",
        "share": "share",
        "slurm": "scaling",
    }
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))  # a search needs a server
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        for words, name in pages.items():
            page.goto(f"{address}?q={words.replace(' ', '+')}")
            first = page.locator(".md-search-result__item > a").first
            first.wait_for(timeout=60_000)
            assert f"/{name}.html" in str(first.get_attribute("href")), words
        page.close()
        server.shutdown()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])  # each width and each scheme once
def test_axe_finds_nothing_in_the_main_pages_and_none_is_wider_than_a_phone(site, browser, axe, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True)
    page = context.new_page()
    violations = dict[str, list[str]]()
    begin_with_text = ("index", "strategies/qure")  # other pages begin with a table or a figure
    for name in begin_with_text if width == 1440 else MAIN_PAGES:  # a phone and the dark find more
        page.goto((site / f"{name}.html").as_uri())
        page.locator(".md-typeset__scrollwrap").first.or_(page.locator("h1")).first.wait_for()
        if name in begin_with_text:
            for element in ("header .md-header__button", ".md-content h1", ".md-content p"):
                box = page.locator(f"{element}:visible").first.bounding_box()
                assert 0 <= box["y"] < 844 / 2, name
                assert 0 <= box["x"] < width, name
        violations[name] = axe(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
    assert {name: lines for name, lines in violations.items() if lines} == {}
    context.close()


def test_docstrings_become_markdown(subtests, build, spelled):
    for text, page in spelled["docstrings"].items():
        with subtests.test(text=text):
            assert build.prose(text) == page


def test_the_section_of_arguments_goes_and_what_follows_stays(build):
    text = "Pool.\n\nArgs:\n    k: images,\n        many.\n\n    n: more.\n\nAfter."
    assert build.without_arguments(text).split() == ["Pool.", "After."]


def test_a_script_in_percent_format_becomes_a_page(build):
    page = build.notebook('"""x"""\n# %% [markdown]\n# # Title\n#\n# text\n\n# %%\na = 1  # one\n', "x.py")
    assert page.startswith("# Title\n\ntext\n\n```python\na = 1  # one\n```\n")
