"""What captions say of the temperature: learned from where and from whom, or fixed."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from negbench.analysis.temperature import temperature_text
from negbench.cli.main import run as command
from negbench.report.finish import _grid
from negbench.report.tables import Table, paper_table, with_temperature_start
from negbench.systems.system import load_config
from tests.report.test_printed import TABLE

SAYS = [
    ((), {"temperature": 0.07, "temperature_from": "default"}, "temperature learned from 0.07 (default)"),
    ((), {"temperature": 0.051322, "temperature_from": "file"}, "temperature learned from 0.05132 (of the weights)"),
    ((), {"temperature": 0.05, "temperature_from": "option"}, "temperature learned from 0.05 (as set)"),
    (
        ("train.temperature_rate=10", "train.temperature_least=0.02"),
        {"temperature": 0.07, "temperature_from": "default"},
        "temperature learned from 0.07 (default), at least 0.02, at 10 times the rate",
    ),
    (("loss.tau=0.1",), {"temperature": 0.07, "temperature_from": "default"}, "temperature fixed at 0.1"),
    (("hybrid.temperature=own",), {}, "temperatures of the loss's terms, learned from e^-1"),
    (("loss.name=triplet",), {"temperature": 0.07, "temperature_from": "default"}, ""),
    ((), {}, ""),
]


@pytest.mark.parametrize(("sets", "details", "text"), SAYS, ids=[text or str(sets) for sets, _, text in SAYS])
def test_a_run_says_what_divides_its_scores(sets: tuple[str, ...], details: dict[str, Any], text: str):
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=list(sets))
    manifest = {"divisor": config.divisor, "backbone": {"name": "tiny", "details": details}}
    assert temperature_text(config, manifest) == text


def test_a_run_of_before_says_nothing():
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=[])
    details = {"temperature": 0.07, "temperature_from": "default"}
    assert temperature_text(config, {"backbone": {"name": "tiny", "details": details}}) == ""


def test_every_form_of_a_table_has_it(subtests):
    table = replace(TABLE, caption="temperature fixed at 0.1")
    for form in ("latex", "markdown"):
        with subtests.test(form=form):
            assert "all rows: backbone b" in paper_table(table, form)
            assert "negatives 16, temperature fixed at 0.1." in paper_table(table, form)
    assert _grid(table, None).caption.endswith(", temperature fixed at 0.1")


@pytest.fixture(scope="module")
def starts(vector_sets, tmp_path_factory):
    """Compare a learned temperature with a fixed one, and in `begun` two starts of a learned one."""
    folder = tmp_path_factory.mktemp("starts")
    words = ["--strategies", "in-batch,in-batch+top-k:k=5", "--losses", "info-nce", "--seeds", "1", "--lr", "fixed"]
    words += ["--tracking-uri", "none", "--runs-dir", str(folder), "--no-report"]
    for text in vector_sets:
        words += ["--set", text]
    assert command(["compare", *words, "--dial", "loss.tau=learned,0.5", "--name", "dial"]) == 0
    assert command(["compare", *words, "--dial", "backbone.temperature=0.3,0.15", "--name", "begun"]) == 0
    assert command(["report", "dial", "--card", "--galleries", "0", "--runs-dir", str(folder)]) == 0
    return folder


NAMING = [  # files that name a learned temperature
    "points.csv", "table.csv", "table.md", "table.tex", "report/index.html", "card.md",
    "report/tables/statistics-recall_at_10.csv",
]  # fmt: skip


@pytest.mark.parametrize("file", NAMING)
def test_a_table_with_a_learned_temperature_says_where_it_starts(file, starts):
    text = (starts / "dial" / file).read_text(encoding="utf-8")
    assert "learned from 0.07" in text
    assert re.findall(r".{,90}\btau=learned(?! from).{,40}", text) == []


PRINTED = {
    "LaTeX": ("dial", "--latex", {"temperature fixed at 0.5", "temperature learned from 0.07 (default)"}),
    "Markdown": ("dial", "--markdown", {"temperature fixed at 0.5", "temperature learned from 0.07 (default)"}),
    "terminal": ("dial", "--metric=recall_at_10", {"temperature learned from 0.07 (default)"}),
    "two starts": (
        "begun",
        "--latex",
        {"temperature learned from 0.3 (as set)", "temperature learned from 0.15 (as set)"},
    ),
}


@pytest.mark.parametrize(("name", "option", "texts"), PRINTED.values(), ids=PRINTED)
def test_what_is_printed_says_where_a_learned_temperature_starts(name, option, texts, starts, run_command):
    printed = " ".join(run_command("report", name, option, "--runs-dir", starts).out.split())
    assert [text for text in texts if text not in printed] == []


def test_several_starts_stand_in_the_caption():
    """And in each cell if there is one alone, of a point, a setting or a column of temperatures."""
    frame = pd.DataFrame({"point": ["tau=learned", "tau=0.5"], "own setting": ["lr=1, tau=learned", "lr=1, tau=0.1"]})
    runs = [run_starting_at(0.07), run_starting_at(0.3)]
    table = with_temperature_start(Table("table", "", frame), runs)
    assert table.frame.equals(frame)
    assert table.caption == "temperature learned from 0.07 (as set) or temperature learned from 0.3 (as set)"
    untouched = Table("table", "", pd.DataFrame({"strategy": ["qure"]}))
    assert with_temperature_start(untouched, runs) is untouched
    alike = with_temperature_start(
        Table("table", "", frame.assign(tau=["learned", "0.5"])), [run_starting_at(0.3), run_starting_at(0.3)]
    ).frame
    assert alike.iloc[0].tolist() == ["tau=learned from 0.3", "lr=1, tau=learned from 0.3", "learned from 0.3"]
    assert alike.iloc[1].tolist() == ["tau=0.5", "lr=1, tau=0.1", "0.5"]


def run_starting_at(start: float) -> Any:
    """Return what captions read of a run whose temperature is learned from `start`."""
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=[])
    details = {"temperature": start, "temperature_from": "option"}
    manifest = {"divisor": config.divisor, "backbone": {"name": "tiny", "details": details}}
    return SimpleNamespace(config=config, manifest=manifest)
