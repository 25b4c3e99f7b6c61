"""A data set of which images are missing is called so wherever its name stands, in every output of every command."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from negbench.analysis.verdicts import seed_text
from negbench.analysis.words import shorten_names
from negbench.metrics.part_name import part_name, share_text, whole_name
from negbench.store.runfolder import RunFolder
from tests.runs import flags_of
from tests.vector_files import write_vectors

PART = "62 % of train and 52 % of val"
COMPARE = ("compare", "--strategies", "top-k:k=3,in-batch", "--seeds", "1", "--lr", "fixed", "--name", "part")
STUDY = ("study", "--strategy", "top-k", "--trials", "1", "--seeds", "1", "--search", "strategy.k=2|5", "--name", "s")
WRITTEN = ("answer.md", "table.csv", "table.md", "table.tex", "comparison.json", "report/index.html", "card.md")


def plain(text: str) -> str:
    """Return a text without what a form escapes, and on one line."""
    unescaped = text.replace("\\%", "%").replace("&nbsp;", " ").replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s+", " ", unescaped)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return flags that select a data set of which every fourth image has no features."""
    folder = tmp_path_factory.mktemp("part")
    sets = write_vectors(folder)
    stored = np.load(folder / "images.npz")
    rows = [row for row, name in enumerate(stored["ids"]) if int(str(name)[-2:]) % 4 != 3]
    np.savez(folder / "images.npz", ids=stored["ids"][rows], features=stored["features"][rows])
    return flags_of([*sets, "dataset.allow_missing=true", "train.epochs=2", "train.batch_size=8"])


@pytest.fixture
def call(run_command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a command in a folder of its own, and returns all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> str:
        done = run_command(*arguments)
        return plain(done.out + done.err)

    return run


def test_the_plan_of_a_comparison(call, flags, tmp_path):
    plan = call(*COMPARE, *flags, "--runs-dir", str(tmp_path / "runs"), "--dry-run")
    assert f"{PART} (30 of 48 train and 21 of 40 scored queries are left" in plan


def test_every_output_of_a_comparison_and_of_its_runs(call, flags, tmp_path):
    where = ("--runs-dir", str(tmp_path / "runs"))
    printed = call(*COMPARE, *flags, *where)
    folder = tmp_path / "runs" / "part"
    assert call("report", "part", "--latex", "--markdown", *where).count(PART) == 2
    call("report", "part", "--card", *where)
    for file in WRITTEN:
        assert PART in plain((folder / file).read_text(encoding="utf-8")), file
    assert printed.count(PART) >= 2  # below the table, and in the answer
    page = (folder / "report/index.html").read_text(encoding="utf-8")
    assert PART in plain(page.partition('class="header"')[2].partition("</p>")[0])
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert PART in card["rows"][0]["dataset"]
    assert PART in card["provenance"]["data set"]
    assert PART in (folder / "mlflow-summary.json").read_text(encoding="utf-8")
    cells = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["cells"]
    run = RunFolder(tmp_path / "runs" / cells[0]["run"])
    assert "%" not in run.run_id
    assert PART in call("run", "--strategy", "top-k:k=3", *flags, *where)  # the first seed again: it is finished
    assert "52 % of val, 21 queries" in call("evaluate", run.run_id, *where)


def test_every_output_of_a_study(call, flags, tmp_path):
    printed = call(*STUDY, *flags, "--runs-dir", str(tmp_path / "runs"), "--tracking-uri", "none")
    assert "s: top-k on triplets, 62 % of train, 1 trial" in printed
    assert PART in printed
    assert PART in (tmp_path / "runs/s-final/answer.md").read_text(encoding="utf-8")


# --- the name --------------------------------------------------------------------------------------------------------


def split(name: str, share: float, *, partial: bool = True) -> Any:
    return SimpleNamespace(split=name, share=share, partial=partial)


NAMES = [
    ([split("train", 1.0, partial=False), split("val", 1.0, partial=False)], "x"),
    ([split("train", 372 / 18000), split("val", 190 / 6016)], "x, 2 % of train and 3 % of val"),
    ([split("train", 1.0, partial=False), split("val", 0.5)], "x, 50 % of val"),
    ([split("val", 1.0)], "x, all queries of val, not all images"),
    ([split("train", 0.4), split("train", 0.4)], "x, 40 % of train"),  # a dev part of train is no other split
]


@pytest.mark.parametrize(("splits", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_name_says_how_much_is_left(splits, name):
    assert part_name("x", splits) == name
    assert whole_name(name)[0] == "x"
    assert "".join(whole_name(name)) == name


SHARES = [(0.0207, "2 %"), (0.004, "0.4 %"), (0.0001, "under 0.1 %"), (0.997, "99.7 %"), (0.99999, "over 99.9 %")]


@pytest.mark.parametrize(("share", "text"), SHARES, ids=[text for _, text in SHARES])
def test_a_share_is_never_rounded_to_all_or_nothing(share, text):
    assert share_text(share) == text


def test_a_short_name_keeps_its_part():
    names = ["vectors@twins1-500x300-a1, 2 % of val", "vectors@twins3-500x300-b2"]
    assert list(shorten_names(names).values()) == ["vectors@twins1, 2 % of val", "vectors@twins3"]


def test_the_part_moves_no_interval():
    key = ("", "info-nce", "clip", "fashioniq@original-6fc571a0", "", "")
    part = tuple(f"{value}, 2 % of train" if "@" in value else value for value in key)
    assert seed_text(part, "recall_at_10") == seed_text(key, "recall_at_10")
