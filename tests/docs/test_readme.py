"""Every command of the README runs: in full on tiny settings, or up to missing data or a missing tool.

| commands | how |
|---|---|
| `make ...` | the target exists and its commands hold the expected one (`make -n`) |
| with `--data-root DIR` | in full, on an empty folder: missing data, exit code 2 |
| `negbench ui` | up to the server's own command; tests/report/test_browser.py opens it |
| `negbench init`, `embed` | tests/cli/test_init.py and test_embed.py run them, on images and on embeddings |
| all others of `negbench` | in full, on toy data, with fewer seeds, trials and strategies |
"""

import itertools
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from negbench.cli.main import run as negbench
from negbench.systems.system import systems
from tests.made import without
from tests.runs import flags_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FEWER = {"--trials": "2", "--strategies": "qure,in-batch", "--negatives": "1,5", "--epochs": "1,2"}  # batches of 16
MORE = {  # a comparison with its report and MLflow has a test of its own
    "compare": ["--no-report", "--tracking-uri", "none", "--lr", "fixed", "--seeds", "1"],
    "study": ["--final-seeds", "0"],
}


# the words of every command of the fenced sh blocks, without comments
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
PARTS = [shlex.split(part, comments=True) for block in BLOCKS for part in re.split("&&|\n", block)]
COMMANDS = [words for words in PARTS if words]
OURS = [words[1:] for words in COMMANDS if words[0] == "negbench"]
DATA = [words for words in OURS if "DIR" in words]
WHOLE = [words for words in OURS if words not in DATA and words[0] not in ("ui", "report", "init", "embed")]


def test_there_are_commands_of_every_sort():
    assert {words[0] for words in COMMANDS} == {"make", "negbench"}
    assert len(DATA) >= 1
    assert len(WHOLE) >= 3


def test_the_table_of_the_finding_says_where_it_holds_and_has_the_numbers_of_the_findings():
    paragraphs = README.split("\n\n")
    (index,) = [number for number, text in enumerate(paragraphs) if text.startswith("| in addition to the batch")]
    title = paragraphs[index - 1]
    assert "generated worlds" in title.splitlines()[0]
    texts = ("R@10", "points over training with the batch alone", "InfoNCE, 64", "25 passes", "Bold:")
    assert [text for text in texts if text not in title] == []
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in paragraphs[index].splitlines()]
    names = [row[0] for row in rows]
    for key, system in systems().items():
        if system.negatives["strategy"]["name"] != "in-batch":
            pattern = rf"\[{re.escape(system.title)}\]\(.+\) \(.*20\d\d.*\): "
            assert any(re.match(pattern, name) for name in names), key
    findings = (ROOT / "docs" / "findings_tables.md").read_text(encoding="utf-8")
    cells = [cell for row in rows[2:] for cell in row[1:]]
    assert [cell for cell in cells if cell.strip("*") not in findings] == []


def test_the_printed_lines_are_those_of_the_cards_of_the_demo():
    (block,) = re.findall(r"^```text\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    printed = block.splitlines()
    assert len(printed) == 6
    answers = []
    for name in ("demo-single", "demo"):
        answers += json.loads((ROOT / f"docs/cards/{name}.json").read_text(encoding="utf-8"))["answer"]
    assert [line for line in printed if line not in answers] == []
    assert printed[-1].startswith("Do not mine: ")


def test_the_two_commands_stand_on_the_first_screen():
    first = README.splitlines()[:22]
    assert any(line.startswith("make demo ") for line in first)
    assert any(line.startswith("make pictures ") for line in first)


def test_the_functions_that_the_readme_names_are_there_and_no_command_is_missing():
    import negbench

    (text,) = re.findall(r"`negbench.run`.* are functions", README)
    names = [name.removeprefix("negbench.") for name in re.findall(r"`([\w.]+)`", text)]
    assert "claims" in names
    assert [name for name in names if not callable(getattr(negbench, name))] == []
    assert "the other commands are for a terminal" in README


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_say_how_to_install_and_what_it_takes(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert "`pip install '.[full]'`" in text
    assert "then `negbench compare --recipe demo`" in text
    assert "6 GB" in text
    assert "without a GPU" in text


def test_make():
    commands = {"demo": "negbench compare", "test": "pytest", "docs": "mkdocs build", "pictures": "--recipe emoji"}
    for program, *words in COMMANDS:
        if program == "make":
            target = words[0]
            done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True)
            assert commands[target] in done.stdout, target


@pytest.mark.slow
@pytest.mark.parametrize("words", WHOLE, ids=" ".join)
def test_commands_run_whole(words, toy_sets, vector_sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [words[0], *(FEWER.get(option, word) for option, word in itertools.pairwise(words))]
    sets = [*without(toy_sets if "--dataset" in words else vector_sets, "train.epochs=")]
    if "--epochs" not in words:
        sets.append("train.epochs=2")
    assert negbench([*words, *MORE.get(words[0], []), *flags_of(sets)]) == 0


@pytest.mark.parametrize("words", DATA, ids=" ".join)
def test_commands_on_missing_data_end_there(words, tmp_path, monkeypatch, expect_error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    expect_error(
        [{"DIR": "empty"}.get(word, word) for word in words], "empty has no "
    )  # data are checked before weights


@pytest.mark.slow
@pytest.mark.usefixtures("ui_commands")
def test_report_and_ui_of_a_comparison_named_as_in_the_readme(vector_sets, tmp_path, monkeypatch, capsys, run_command):
    monkeypatch.chdir(tmp_path)
    flags = flags_of([*vector_sets, "train.epochs=1"])
    grid = ["--strategies", "qure,in-batch", "--losses", "bradley-terry", "--seeds", "1", *flags]
    assert negbench(["compare", "--lr=fixed", *grid, "--name", "demo"]) == 0
    assert (tmp_path / "runs" / "demo" / "report" / "index.html").exists()
    (ui,) = (words for words in OURS if words[0] == "ui")
    capsys.readouterr()
    assert "starting MLflow's server" in run_command(*ui).out
