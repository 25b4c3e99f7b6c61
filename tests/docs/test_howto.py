"""The how-to notebooks run from top to bottom, in an empty folder, on tiny data, with fewer seeds and no report."""

import re
import runpy
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from negbench.testing import BackboneTestCase, LossTestCase, StrategyTestCase, build

HOWTO = Path(__file__).parents[2] / "docs" / "howto"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_registry")]


FEWER = {
    "--seeds 3 ": "--seeds 1 --no-report ",
    "--seeds 2 ": "--seeds 1 ",
    "--name own ": "--name own --no-report ",
    "=200 ": "=60 ",  # images
    "=100 ": "=40 ",  # queries
}
# notebook -> patterns in its output; a comparison and a text in the table of it
NOTEBOOKS: dict[str, tuple[tuple[str, ...], tuple[str, str] | None]] = {
    "own_strategy": ((r"\[\[0, 0, 1, 1, 0\]\]",), ("first-try", "below")),
    "own_data": (("10 queries against 20 images", "recall_at_10"), None),
    "reading_a_comparison": (("in-batch\\+qure minus in-batch:", r"exit status 0(?s:.*)verdict(?s:.*)baseline"), None),
    "own_loss": ((r"0\.6931\s*\Z",), ("own-loss", "soft-margin")),
    "own_backbone": ((), ("own-backbone", "colours")),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path, monkeypatch, capsys):
    page = tmp_path / f"{name}.py"
    empty = tmp_path / "empty"
    source = (HOWTO / page.name).read_text(encoding="utf-8")
    for text, shorter in FEWER.items():
        source = source.replace(text, shorter)
    page.write_text(source, encoding="utf-8")
    empty.mkdir()
    monkeypatch.chdir(empty)
    runpy.run_path(str(page))
    out = capsys.readouterr().out
    assert out.count("exit status 0") == out.count("exit status") > 0
    patterns, comparison = NOTEBOOKS[name]
    assert [text for text in patterns if not re.search(text, out)] == []
    if comparison is not None:
        folder, text = comparison
        assert text in (empty / "runs" / folder / "table.md").read_text(encoding="utf-8")


def test_every_notebook_has_a_test():
    assert {file.stem for file in HOWTO.glob("*.py")} == set(NOTEBOOKS)


def names_of_example(name: str) -> dict[str, Any]:
    """Return the names that the plug-in file of a notebook defines, or the example in a Markdown file."""
    path = HOWTO / name
    quotes = r"^ *```python\n(.*?)^ *```" if path.suffix == ".md" else r"^SOURCE = '''(.*?)^'''"
    (source,) = re.findall(quotes, path.read_text(encoding="utf-8"), flags=re.M | re.S)
    module = types.ModuleType(f"howto_{path.stem}")
    sys.modules[module.__name__] = module  # dataclasses and pickled functions look up their module
    exec(textwrap.dedent(source), module.__dict__)
    return module.__dict__


class TestSemiHard(StrategyTestCase):
    @pytest.fixture
    def strategy(self) -> Any:
        return names_of_example("../../CONTRIBUTING.md")["SemiHard"]()


class TestSoftMargin(LossTestCase):
    @pytest.fixture
    def loss(self) -> Any:
        return names_of_example("own_loss.py")["SoftMargin"]()


class TestColours(BackboneTestCase):
    @pytest.fixture
    def make(self) -> Any:
        colours = names_of_example("own_backbone.py")["Colours"]

        def make_colours(seed: int) -> Any:
            return build(colours, seed=seed)

        return make_colours
