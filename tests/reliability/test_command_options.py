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
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from negbench.settings.command_options import (
    Audit,
    Claims,
    Doctor,
    Embed,
    EncodeData,
    Evaluate,
    FetchData,
    Init,
    List,
    Mine,
    Ui,
    VerifyData,
)
from negbench.settings.options import Compare, Options, Report, Run, Study

MODELS: dict[str, type[Options]] = {
    "run": Run, "compare": Compare, "report": Report, "audit": Audit, "mine": Mine, "evaluate": Evaluate,
    "study": Study, "claims": Claims, "init": Init, "embed": Embed, "list": List, "ui": Ui, "doctor": Doctor,
    "data verify": VerifyData, "data fetch": FetchData, "data encode": EncodeData,
}  # fmt: skip
# command -> what it is given besides the data; RUN is a finished run, and c a finished comparison
BASES: dict[str, tuple[str, ...]] = {
    "run": ("run", "--strategy", "top-k:k=3"),
    "compare": ("compare", "--strategies", "top-k:k=3,in-batch", "--seeds", "2", "--lr", "fixed", "--no-report"),
    "report": ("report", "c", "--markdown"),
    "audit": ("audit", "--run", "RUN", "--strategy", "top-k:k=8:halve=true", "--queries", "8"),
    "mine": ("mine", "--run", "RUN", "--strategy", "top-k:k=8:halve=true", "--out", "mined.jsonl"),
    "evaluate": ("evaluate", "RUN"),
    "study": ("study", "--strategy", "top-k:k=3", "--trials", "2", "--search", "strategy.k=2|3", "--final-seeds", "0"),
    "claims": ("claims", "--only", "3", "--seeds", "2", "--dry-run"),
    "init": ("init", "own"),
    "embed": ("embed", "own", "--encoder", "encoders.py:Mine"),
    "list": ("list", "strategies"),
    "doctor": ("doctor", "--strategy", "top-k:k=3"),
    "data verify": ("data", "verify", "own/queries.csv"),
}
TRAINS = ("run", "compare", "study", "claims", "doctor")  # what is given the data; the others read a finished run
KEEPS_RUNS = (*TRAINS, "report", "audit", "mine", "evaluate")
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
    "study": {
        "trials": ("3",),
        "seeds": ("2",),
        "search": ("train.lr=0.01:0.03",),
        "fix": ("schedule.warmup",),
        "sampler": ("random",),
        "pruner": ("none",),
        "final_seeds": ("1",),
        "metric": ("R@1",),
        "max_seeds": ("9",),
        "budget": ("1h",),
        "seed": ("1",),
    },
    "claims": {"only": ("5",), "long": ("9",), "seeds": ("3",), "max_seeds": ("9",), "budget": ("1h",)},
    "init": {"columns": ("text=words",)},
    "embed": {"device": ("cuda",), "gallery": ("more.txt",), "columns": ("text=words",), "as_shown": ()},
    "list": {},
    "ui": {},
    "doctor": {"epochs": ("3",), "seed": ("1",), "loss": ("info-nce",), "system": ("qure",)},
    "data verify": {"split": ("val",), "sets": ("val_fraction=0.5",), "annotations": ()},
    "data fetch": {},
    "data encode": {},
}
DATA = "which data and settings: tests/reliability/test_settings.py, tests/cli/test_options.py"
ROOMS_OF_STORES = "where results are, or who computes them: tests/grid, tests/store, tests/test_executors.py"
NOT_TRIED = {
    **dict.fromkeys(("dataset", "datasets", "backbone", "backbones", "data_root", "allow_missing", "plugin"), DATA),
    **dict.fromkeys(("sets", "recipe", "system", "systems"), DATA),
    **dict.fromkeys(("runs_dir", "tracking_uri", "name", "workers", "executor", "address", "share"), ROOMS_OF_STORES),
    "dry_run": "prints a plan: tests/cli/test_offered.py",
    "max_hours": "ends a command early: tests/reliability/test_signals.py",
    "until": "adds seeds: tests/analysis/test_deciding.py",
    "tuned": "a study for each strategy: tests/tuning",
    "temperature": "trials of temperatures: tests/grid/test_temperature_grid.py",
    "report": "writes the page: tests/report/test_finish.py",
    "storage": "where trials are: tests/tuning/test_book.py",
    "batch_size": "how many at a time: tests/cli/test_embed.py",
    "overwrite": "permits to write over files: tests/cli/test_embed.py",
    "encoder": "whose vectors: tests/cli/test_embed.py",
    "port": "of MLflow's server: tests/report/test_browser.py",
    "kind": "an argument: tests/cli/test_list.py",
    "folder": "an argument: tests/cli/test_init.py",
}
OF_BASES = ("strategy", "strategies", "run", "name", "out", "markdown")  # which a base gives
REPEATABLE = {"dials": "dial", "sets": "set"}  # field -> its flag
OF_COMMANDS = {  # reasons for one command alone
    "data verify": {"workers": "threads, with the same findings: tests/cli/test_data.py"},
    "study": {"loss": "the same option as of run, above"},
    "data fetch": {"out": "fetches from a registry: tests/datasets/test_fetch.py"},
}
CASES = [(command, name) for command, options in VALUES.items() for name in options]
SOME = CASES if "NEGBENCH_FUZZ" in os.environ else sorted(random.Random(3).sample(CASES, 6))

ENCODERS = Path(__file__).parents[1] / "cli" / "encoders.py"


@dataclass(frozen=True)
class Outcome:
    """What a command did: its exit code, what it printed, and the files that it wrote."""

    code: int
    text: str
    files: dict[str, str]


@pytest.fixture(scope="module")
def folder_with_runs(vector_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs: a finished comparison, whose runs the commands find."""
    from negbench.cli.main import run

    folder = tmp_path_factory.mktemp("options")
    command = [*BASES["compare"], *vector_flags, "--runs-dir", str(folder / "runs"), "--tracking-uri", "none"]
    assert run([*command, "--name", "c"]) == 0
    write_own(folder / "own")
    return folder


def write_own(folder: Path) -> None:
    """Write 14 pictures, one of which is turned by its EXIF, and 40 triplets over 12 of them with two texts each."""
    folder.mkdir()
    for number in range(14):
        exif = Image.Exif()
        if number == 5:
            exif[0x0112] = 6  # orientation: a quarter turn
        picture = Image.new("RGB", (8 + number % 3, 9), (15 * number, 7, 200))
        picture.putpixel((0, 0), (255, 255, 255))
        picture.save(folder / f"p{number}.png", exif=exif)
    rows = []
    for number in range(40):
        texts = {"text": f"more {number}", "words": f"less and less {number}"}
        rows.append({"reference": f"p{number % 12}", **texts, "target": f"p{(number + 1 + number // 12) % 12}"})
    pd.DataFrame(rows).to_csv(folder / "queries.csv", index=False)


@pytest.fixture
def observe(
    folder_with_runs: Path, vector_flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Return a function that runs a command with further flags."""
    from negbench.cli.main import run

    def run_and_observe(command: str, *more: str) -> Outcome:
        work = folder_with_runs / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder_with_runs / "runs", work / "runs")
        shutil.copytree(folder_with_runs / "own", work / "own")
        shutil.copy(ENCODERS, work)
        (work / "more.txt").write_text("p12\np13\n", encoding="utf-8")
        monkeypatch.chdir(work)
        trained = next(path.parent.name for path in (work / "runs").glob("top-k*-s0-*/result.json"))
        arguments = [*BASES[command], *more]
        if command in TRAINS:
            arguments += vector_flags
        if command == "claims":  # which set their own schedule
            arguments = without_setting(arguments, "schedule.n_def=2")
        if command in KEEPS_RUNS:
            arguments += ["--runs-dir", "runs"]
        if command in TRAINS:
            arguments += ["--tracking-uri", "none"]
        if command in ("compare", "study"):
            arguments += ["--name", "n"]
        capsys.readouterr()
        code = run([trained if text == "RUN" else text for text in arguments])
        printed = capsys.readouterr()
        files = {}
        for path in sorted(work.rglob("*")):
            if command == "study":  # its journal and its table of trials hold times
                is_compared = path.name == "answer.md"
            else:
                is_compared = "runs" not in path.parts or path.parent.name in ("n", "c")
            if path.is_file() and is_compared:
                files[str(path.relative_to(work))] = without_times(path.read_bytes().decode(errors="replace"))
        return Outcome(code, without_times(printed.out + printed.err), files)

    return run_and_observe


def without_setting(arguments: list[str], setting: str) -> list[str]:
    """Leave out `--set SETTING`."""
    index = arguments.index(setting)
    return [*arguments[: index - 1], *arguments[index + 1 :]]


def without_times(text: str) -> str:
    """Return a text without seconds, memory and dates."""
    text = re.sub(r"(?m)^(\d+ .*?) +[\d.]+$", r"\1", text)  # the last column of a study's trials
    return re.sub(r"[\d.,]+ ?(s|ms|min|h|MiB|GiB)\b|\d{4}-\d\d-\d\d[T \d:.+]*|\"[a-z_]*seconds[^,}]*", "", text)


@pytest.mark.parametrize("command", MODELS)
def test_each_option_is_tried_or_has_a_reason(command):
    accounted_for = {*VALUES[command], *NOT_TRIED, *OF_BASES, *OF_COMMANDS.get(command, {})}
    assert {*MODELS[command].model_fields} <= accounted_for
    assert {*VALUES[command]} <= {*MODELS[command].model_fields}


@pytest.mark.parametrize(("command", "name"), SOME)
def test_an_option_moves_something_or_says_that_it_does_not(command, name, observe):
    flag = f"--{REPEATABLE.get(name, name).replace('_', '-')}"
    plain = observe(command)
    assert plain.code == 0, plain
    values = VALUES[command][name]
    uses = [(flag, value) for value in values] if values else [(flag,)]
    silent = []
    for words in uses:
        outcome = observe(command, *words)
        says_so = "does nothing" in outcome.text and flag in outcome.text
        if outcome.code not in (0, 2) or (outcome == plain and not says_so):
            silent.append((words, outcome.code, outcome.text))
    assert silent == []


@pytest.mark.parametrize("command", sorted({command for command, _ in SOME}))
def test_a_command_that_is_repeated_differs_in_nothing(command, observe):
    """Else the test above could not fail."""
    assert observe(command) == observe(command)
