"""Fixtures that several areas share."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENS = {1440: 900, 390: 844}  # width -> height of a desktop's window and of a phone
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CHROMIUM = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real annotation files; tests that use it skip where it is absent."""
    path = Path(os.environ.get("NEGBENCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (path / "fashioniq").is_dir():
        pytest.skip(f"no real annotation files at {path} (set NEGBENCH_SHARED_DATA)")
    return path


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set that trains in a moment: three categories of 32 images and 24 queries each."""
    from negbench.datasets._synthesis import Spec, synthesize

    out = tmp_path_factory.mktemp("toy") / "synthetic"
    synthesize(out, Spec(seed=1, twins=2, train_images=32, train_queries=24, val_images=16, val_queries=12))
    return out


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and features of tests stay out of the user's cache; worker and sub-processes inherit it."""
    path = tmp_path_factory.mktemp("cache")
    os.environ["NEGBENCH_CACHE"] = str(path)
    os.environ.pop("NEGBENCH_RUNS", None)
    os.environ.pop("NEGBENCH_DATA", None)
    return path


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests kill processes, never the machine: what is written need not reach the disk (but see test_protocol.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def vector_sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`--set` texts of a run of a tenth of a second: two groups of 20 images and 24 queries, all of them vectors."""
    from negbench.testing.vectors import write_vectors

    training = ["train.epochs=4", "train.batch_size=16", "train.lr=0.03", "schedule.n_def=2"]
    return [*write_vectors(tmp_path_factory.mktemp("vectors")), *training]


@pytest.fixture(scope="session")
def toy_sets(toy_root: Path) -> list[str]:
    """`--set` texts of a run of a second on `toy_root`."""
    return [
        f"dataset.root='{toy_root}'",
        "backbone.weights='random'",
        "train.epochs=4",
        "train.batch_size=16",
        "schedule.n_def=2",
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; tests that use it skip where it is absent."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium: `make system` installs one")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=CHROMIUM.split())
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def first_screens() -> Callable[..., None]:
    """Look at an open page on a desktop and on a phone, in both schemes; keep build/screenshots/NAME-WIDTH-SCHEME.png.

    Each must show something, in the scheme that was asked for. `seen` gets width and height and asserts what is there;
    `own` pages are also no wider than the screen. `dress` turns a page to a scheme that does not follow the browser's.
    """
    from PIL import Image

    folder = Path(__file__).parents[1] / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)

    def look(
        page: Page,
        name: str,
        seen: Callable[[int, int], None],
        *,
        own: bool = True,
        dress: Callable[[str], None] | None = None,
    ) -> None:
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            if dress is not None:
                dress(scheme)
            for width, height in SCREENS.items():
                page.set_viewport_size({"width": width, "height": height})
                page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                seen(width, height)
                file = folder / f"{name}-{width}-{scheme}.png"
                page.screenshot(path=file, animations="disabled")
                with Image.open(file) as picture:
                    assert picture.size == (width, height)
                    grey = np.asarray(picture.convert("L"), dtype=float)
                ground = float(np.bincount(grey.astype(int).ravel()).argmax())
                assert ground < 64 if scheme == "dark" else ground > 192, file
                assert (abs(grey - ground) > 48).mean() > 0.01, f"{file} is blank"
                if own:
                    assert page.evaluate("document.documentElement.scrollWidth") == width, file

    return look


class Load(NamedTuple):
    """What opening a page on a phone takes: bytes of all its files, requests, elements, times in ms, layout shift."""

    bytes: int
    requests: int
    elements: int
    loaded: float
    painted: float
    shift: float


@pytest.fixture(scope="module")
def load_of(browser: Browser) -> Callable[[Path], Load]:
    """Opens a page of the file system in a fresh window; what it prints, times too, `pytest -s` shows."""

    def measure(file: Path) -> Load:
        context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
        page, addresses = context.new_page(), list[str]()
        page.on("request", lambda r: addresses.append(r.url) if r.url.startswith("file:") else None)
        page.add_init_script(
            """window.shift = 0;
            const added = list => list.getEntries().forEach(entry => { window.shift += entry.value; });
            new PerformanceObserver(added).observe({ type: 'layout-shift', buffered: true });"""
        )
        page.goto(file.as_uri())
        page.locator("footer, #facts").last.scroll_into_view_if_needed()
        loaded, painted, elements, shift = page.evaluate(
            """() => [performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
                performance.getEntriesByName('first-contentful-paint')[0].startTime,
                document.querySelectorAll('*').length, window.shift]"""
        )
        context.close()
        paths = [Path(url2pathname(urlsplit(address).path)) for address in addresses]
        weight = sum(path.stat().st_size for path in paths if path.exists())  # MkDocs' theme asks for one that is not
        found = Load(weight, len(addresses), elements, loaded, painted, shift)
        print(f"\n{file.name}: {found}")
        return found

    return measure


@pytest.fixture(scope="session")
def axe() -> Callable[[Page], list[str]]:
    """What axe-core objects to in an open page, a line each: rule, what is wrong, where."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe is not installed: pip install '.[dev]'")
    script = (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")

    def violations(page: Page) -> list[str]:
        page.evaluate(script)
        found = page.evaluate("axe.run(document)")["violations"]
        return [f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:5]]}" for each in found]

    return violations
