"""The notebooks of the how-to pages run from top to bottom, in an empty folder, on data of seconds."""

from __future__ import annotations

import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from negbench.datasets._triplet_files import TripletTable
from negbench.own.init import Found, commands
from negbench.testing import BackboneTestCase, LossTestCase

HOWTO = Path(__file__).parents[2] / "docs" / "howto"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_registry")]


def run(name: str, where: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(where)
    runpy.run_path(str(HOWTO / f"{name}.py"))
    out = capsys.readouterr().out
    assert "exit status" in out
    assert "exit status 0" in out.replace("exit status 0", "", out.count("exit status 0") - 1)
    assert out.count("exit status 0") == out.count("exit status")
    return out


def test_own_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = run("own_strategy", tmp_path, monkeypatch, capsys)
    assert "[[0, 0, 1, 1, 0]]" in out
    assert "below" in (tmp_path / "runs" / "first-try" / "table.md").read_text(encoding="utf-8")


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = run("own_data", tmp_path, monkeypatch, capsys)
    assert "10 queries against 20 images" in out
    assert "recall_at_10" in out


def test_reading_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run("reading_a_comparison", tmp_path, monkeypatch, capsys)
    assert "qure minus in-batch:" in out
    table = out.split("exit status 0")[1]
    assert "undecided" in table or "worse" in table or "better" in table


def test_own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = run("own_loss", tmp_path, monkeypatch, capsys)
    assert out.rstrip().endswith("0.6931")
    assert "soft-margin" in (tmp_path / "runs" / "own-loss" / "table.md").read_text(encoding="utf-8")


def test_own_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("own_backbone", tmp_path, monkeypatch, capsys)
    assert "colours" in (tmp_path / "runs" / "own-backbone" / "table.md").read_text(encoding="utf-8")


def shown_in(name: str) -> dict[str, Any]:
    """What the plug-in file of a notebook defines."""
    (source,) = re.findall(r"^SOURCE = '''(.*?)'''", (HOWTO / f"{name}.py").read_text(encoding="utf-8"), re.M | re.S)
    module = types.ModuleType(f"howto_{name}")
    sys.modules[module.__name__] = module  # a dataclass and a pickled function look their module up
    exec(source, module.__dict__)
    return module.__dict__


class TestSoftMargin(LossTestCase):
    @pytest.fixture
    def loss(self) -> Any:
        return shown_in("own_loss")["SoftMargin"]()


class TestColours(BackboneTestCase):
    @pytest.fixture
    def make(self) -> Any:
        made = shown_in("own_backbone")["Colours"]
        return lambda seed: made.load(seed=seed)


def test_every_notebook_has_a_test() -> None:
    assert {f"test_{file.stem}" for file in HOWTO.glob("*.py")} <= globals().keys()


def test_the_commands_of_the_ten_minutes_are_those_that_init_prints() -> None:
    found = Found(Path("my-data"), triplets=(Path("my-data/triplets.jsonl"), TripletTable([], (), "")))
    (block,) = re.findall(r"```sh\n(.*?)```", (HOWTO / "ten_minutes.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    embed, first, *rest = (line.partition("  #")[0].strip() for line in block.splitlines())
    assert embed == "negbench embed my-data --encoder open_clip:ViT-B-32:openai"  # tests/cli/test_embed.py runs it
    assert first == "negbench init my-data"
    assert rest == commands(found)
