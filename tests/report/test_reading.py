"""What is read, not computed, needs no torch, and what is shown as it is stored no pandas.

Their imports take longer than all else that these commands do.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from negbench.analysis.unchanged import forget
from negbench.report.finish import finish
from negbench.report.loaded import stored_latex

# Runs light commands one after the other in an interpreter of its own, and prints what each has imported of `HEAVY`.
READ = """
import contextlib, json, os, sys
from pathlib import Path

from negbench.cli.main import main

names, folder, alone = sys.argv[1:]
heavy = names.split(",")
runs = Path(folder)
imported = {}


def note(what):
    imported[what] = [name for name in heavy if name in sys.modules]


def command(*words, what=""):
    with contextlib.suppress(SystemExit):
        main([*words])
    note(what or " ".join(words[:2]))


def note_server(*_):
    note("ui")
    raise SystemExit


command("--help")
command("--version")
command("list", "strategies")
command("list", "recipes")
os.environ |= {"_NEGBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "negbench report --", "COMP_CWORD": "2"}
with contextlib.suppress(SystemExit):
    main([])
note("completion")
del os.environ["_NEGBENCH_COMPLETE"]

import negbench

result = negbench.load("small", runs)
assert result.answer
note("answer")
command("report", "small", "--runs-dir", str(runs), "--latex", what="report --latex")
assert len(result.table)
assert len(result.statistics)
assert len(result.cells)
note("load")
command("report", "small", "--runs-dir", str(runs), "--markdown", what="report --markdown")
command("report", "small", "--runs-dir", str(runs), "--galleries", "0")
command("doctor", "--runs-dir", str(runs), "--tracking-uri", "none", what="doctor")
os.execve = note_server
command("ui", "--runs-dir", alone)
print(json.dumps(imported), file=sys.stderr)
"""
HEAVY = ("torch", "scipy.stats", "pandas")


@pytest.fixture(scope="module")
def imported(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return command -> the modules of `HEAVY` that are imported after it."""
    runs = tmp_path_factory.mktemp("read") / "runs"
    shutil.copytree(compared, runs)  # other tests use the folder as it is
    finish(Console(quiet=True), runs, "small", "none")  # with a page, whose figures are taken over
    alone = tmp_path_factory.mktemp("alone") / "runs"
    first = min(runs.glob("*/result.json")).parent
    shutil.copytree(first, alone / first.name)
    words = [sys.executable, "-c", READ, ",".join(HEAVY), str(runs), str(alone)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return modules


AS_STORED = ("--help", "--version", "list strategies", "list recipes", "completion", "answer", "report --latex")
FRAMES = ("load", "report --markdown", "report small", "doctor", "ui")


@pytest.mark.slow
@pytest.mark.parametrize("what", AS_STORED)
def test_what_is_shown_as_it_is_stored_imports_nothing_heavy(what, imported):
    assert imported[what] == []


@pytest.mark.slow
@pytest.mark.parametrize("what", FRAMES)
def test_reading_imports_neither_torch_nor_scipys_statistics(what, imported):
    assert set(imported[what]) <= {"pandas"}


def test_the_stored_table_is_the_one_that_is_made_anew(compared, tmp_path, run_command):
    """Whether the stored file is shown, or a changed folder makes it from the ranks."""
    runs = Path(shutil.copytree(compared, tmp_path / "runs"))
    finish(Console(quiet=True), runs, "small", "none", report=False)
    command = ["report", "small", "--runs-dir", str(runs), "--latex"]
    assert stored_latex(runs, "small") is not None
    printed = run_command(*command).out
    assert printed.startswith("\\begin{table}")
    forget(runs / "small")
    assert stored_latex(runs, "small") is None
    assert run_command(*command).out == printed
    (runs / "small" / "table.tex").write_text("forged", encoding="utf-8")
    assert run_command(*command).out == printed
