"""No option of a command does nothing in silence: each is given to a command that runs, with other values.

For each value one of these holds: what the command prints or writes differs; a line says that the option does nothing;
or it is refused. The suite tries some, by seed; `make fuzz` all. Each option of each command is either tried or listed
with the reason why not.
"""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from negbench.settings.command_options import Audit, Evaluate, Mine
from negbench.settings.options import Compare, Options, Report, Run

MODELS: dict[str, type[Options]] = {
    "run": Run, "compare": Compare, "report": Report, "audit": Audit, "mine": Mine, "evaluate": Evaluate,
}  # fmt: skip
# command -> what it is given besides the data; RUN is a finished run, and c a finished comparison
BASES: dict[str, tuple[str, ...]] = {
    "run": ("run", "--strategy", "top-k:k=3"),
    "compare": ("compare", "--strategies", "top-k:k=3,in-batch", "--seeds", "2", "--lr", "fixed", "--no-report"),
    "report": ("report", "c", "--markdown"),
    "audit": ("audit", "--run", "RUN", "--strategy", "top-k:k=8:halve=true", "--queries", "8"),
    "mine": ("mine", "--run", "RUN", "--strategy", "top-k:k=8:halve=true", "--out", "mined.jsonl"),
    "evaluate": ("evaluate", "RUN"),
}
# option -> values; () is a switch
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "run": {"epochs": ("3",), "seed": ("1",), "loss": ("info-nce",), "strategy": ("in-batch",)},
    "compare": {
        "negatives": ("1,2",),
        "epochs": ("2,3",),
        "losses": ("info-nce",),
        "seeds": ("1",),
        "baseline": ("in-batch",),
        "metric": ("R@1",),
        "margin": ("5",),
        "alpha": ("0.2",),
        "lr": ("0.02",),
        "pairs": ("best",),
        "max_seeds": ("9",),
        "budget": ("1h",),
        "dials": ("loss.tau=0.1,0.2",),
    },
    "report": {
        "metric": ("R@1",),
        "columns": ("R@5",),
        "epochs": ("7",),
        "latex": (),
        "out": ("page.md",),
        "galleries": ("1",),
        "figures": ("pdf",),
        "card": (),
    },
    "audit": {"draws": ("4",), "queries": ("5",), "split": ("val",), "refresh": ("2",), "seed": ("3",)},
    "mine": {
        "draws": ("2",),
        "split": ("val",),
        "refresh": ("2",),
        "seed": ("3",),
        "format": ("ids",),
        "with_reference": (),
        "dot": (),
        "device": ("cuda",),
        "targets": ("absent.npy",),
        "images": ("absent.npy",),
        "queries": ("absent.npy",),
    },
    "evaluate": {
        "split": ("train",),
        "out": ("values.parquet",),
        "metric": ("cirqrs",),
        "scorer": ("RUN",),
        "submission": ("files",),
        "ranks": ("absent.json",),
    },
}
DATA = "which data and settings: tests/reliability/test_settings.py, tests/cli/test_options.py"
PLACE = "where results are, or who computes them: tests/grid, tests/store, tests/test_executors.py"
NOT_TRIED = {
    **dict.fromkeys(("dataset", "datasets", "backbone", "backbones", "data_root", "allow_missing", "plugin"), DATA),
    **dict.fromkeys(("sets", "recipe", "system", "systems"), DATA),
    **dict.fromkeys(("runs_dir", "tracking_uri", "name", "workers", "executor", "address", "share"), PLACE),
    "dry_run": "prints a plan: tests/cli/test_offered.py",
    "max_hours": "ends a command early: tests/reliability/test_signals.py",
    "until": "adds seeds: tests/analysis/test_deciding.py",
    "tuned": "a study for each strategy: tests/tuning",
    "report": "writes the page: tests/report/test_finish.py",
}
OF_BASES = ("strategy", "strategies", "run", "name", "out", "markdown")  # which a base gives
REPEATABLE = {"dials": "dial"}  # field -> its flag
CASES = [(command, name) for command, options in VALUES.items() for name in options]
SOME = CASES if "NEGBENCH_FUZZ" in os.environ else sorted(random.Random(3).sample(CASES, 6))

Seen = tuple[int, str, dict[str, str]]


@pytest.fixture(scope="module")
def place(vector_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs: a finished comparison, whose runs the commands find."""
    from negbench.cli.main import run

    folder = tmp_path_factory.mktemp("options")
    given = [*BASES["compare"], *vector_flags, "--runs-dir", str(folder / "runs"), "--tracking-uri", "none"]
    assert run([*given, "--name", "c"]) == 0
    return folder


@pytest.fixture
def observe(
    place: Path, vector_flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Seen]:
    """Return a function that runs a command with further flags: its exit code, its text, and the files it wrote."""
    from negbench.cli.main import run

    def observed(command: str, *more: str) -> Seen:
        work = place / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place / "runs", work / "runs")
        monkeypatch.chdir(work)
        trained = next(path.parent.name for path in (work / "runs").glob("top-k*-s0-*/result.json"))
        arguments = [*BASES[command], *more]
        if command in ("run", "compare"):  # the others read a finished one
            arguments += vector_flags
        arguments += ["--runs-dir", "runs"]
        if command in ("run", "compare"):
            arguments += ["--tracking-uri", "none"]
        if command == "compare":
            arguments += ["--name", "n"]
        capsys.readouterr()
        code = run([trained if text == "RUN" else text for text in arguments])
        printed = capsys.readouterr()
        files = {}
        for path in sorted(work.rglob("*")):
            if path.is_file() and ("runs" not in path.parts or path.parent.name in ("n", "c")):
                files[str(path.relative_to(work))] = untimed(path.read_bytes().decode(errors="replace"))
        return code, untimed(printed.out + printed.err), files

    return observed


def untimed(text: str) -> str:
    """Return a text without seconds, memory and dates."""
    return re.sub(r"[\d.,]+ ?(s|ms|min|h|MiB|GiB)\b|\d{4}-\d\d-\d\d[T \d:.+]*|\"[a-z_]*seconds[^,}]*", "", text)


@pytest.mark.parametrize("command", MODELS)
def test_each_option_is_tried_or_has_a_reason(command):
    known = {*VALUES[command], *NOT_TRIED, *OF_BASES}
    assert {*MODELS[command].model_fields} <= known
    assert {*VALUES[command]} <= {*MODELS[command].model_fields}


@pytest.mark.parametrize(("command", "name"), SOME)
def test_an_option_moves_something_or_says_that_it_does_not(command, name, observe):
    flag = f"--{REPEATABLE.get(name, name).replace('_', '-')}"
    plain = observe(command)
    assert plain[0] == 0, plain
    silent = []
    for value in VALUES[command][name] or (None,):
        seen = observe(command, flag, *([] if value is None else [value]))
        told = "does nothing" in seen[1] and flag in seen[1]
        if seen[0] not in (0, 2) or (seen[0] == 0 and seen == plain and not told):
            silent.append((value, seen[:2]))
    assert silent == []


@pytest.mark.parametrize("command", BASES)
def test_a_command_that_is_repeated_differs_in_nothing(command, observe):
    """Else the test above could not fail."""
    assert observe(command) == observe(command)
