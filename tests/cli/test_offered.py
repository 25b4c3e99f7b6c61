"""Every command line that README, docs, recipes and `--help` offer is understood, and planned on generated data.

| what | where from |
|---|---|
| parsed into the command's options | fenced lines, code spans, examples of `--help`, heads of recipes |
| planned at toy size | `run`, `compare` and `study` on generated data: a few, in `make fuzz` all |
| `--dry-run` in a process of its own | one line of every command that has the flag |
"""

import importlib
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from negbench.campaign.plan import plan_comparison, with_recipe
from negbench.cli import main
from negbench.cli.command import Command
from negbench.settings.layers import recipes
from negbench.settings.options import Compare, Options, Run, Study
from negbench.tuning.search import plan_study

ROOT = Path(__file__).parents[2]
PAGES = [*map(ROOT.joinpath, ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted((ROOT / "docs").rglob("*.md"))]
OPEN = ("...", "$", "{", "OURS=THEIRS", "\\")  # parts of lines that a reader has to complete
STANDINS = {"KEY": "qure", "FILE": "world"}  # of words that stand for a name
SMALL = ("train_images", "train_queries", "val_images", "val_queries")


def find_commands() -> dict[str, Command]:
    """Return all commands by name; those of a group as "data fetch"."""
    commands = {}
    for name in [name for names in main._GROUPS.values() for name in names]:
        command_or_group = getattr(importlib.import_module(f"negbench.cli.{name}"), name)
        if isinstance(command_or_group, Command):
            commands[name.rstrip("_")] = command_or_group
        else:
            for command in command_or_group.commands:
                commands[f"{name} {command.call.__name__}"] = command
    return commands


COMMANDS = find_commands()


def find_lines() -> dict[str, str]:
    """Return each line that names a command with an option or an argument, with the page or help that has it first."""
    sources: dict[str, str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                sources.setdefault(" ".join(line.split()), page.name)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for line in code_spans(prose):
            sources.setdefault(line, page.name)
    for name, path in recipes().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in code_spans(" ".join(line[2:] for line in lines if line.startswith("# "))):
            sources.setdefault(line, name)
    for name, command in COMMANDS.items():
        for line in command.examples:
            sources.setdefault(line, f"{name} --help")
    return {line: source for line, source in sources.items() if words_of(line) and not is_open(line)}


def code_spans(text: str) -> list[str]:
    """Return the commands that stand in a text as `negbench ...`."""
    return [" ".join(line.split()) for line in re.findall(r"`(negbench [^`]+)`", text)]


def is_open(line: str) -> bool:
    """Whether a reader has to complete the line."""
    return any(part in line for part in OPEN)


def words_of(line: str) -> list[str]:
    """Return the words behind `negbench` if the line names one of our commands with something behind it, else []."""
    program, *words = shlex.split(line, comments=True) or [""]
    if program != "negbench" or len(words) < 2 or not name_of(words):
        return []
    return [STANDINS.get(word, word) for word in words]


def name_of(words: list[str]) -> str:
    """Return the name of the command that the words begin with; "" if there is none."""
    return next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), "")


def options_of(words: list[str]) -> Options:
    """Parse the words as `negbench` does, without calling the command."""
    name = name_of(words)
    parser: Any = typer.main.get_command(main.app)
    for part in name.split():
        parser = parser.commands[part]
    context = parser.make_context(name, words[len(name.split()) :])
    model = COMMANDS[name].model
    flags = {}
    for key, value in context.params.items():
        if key in model.model_fields and key != "json" and value not in (None, [], ()):
            flags[key] = value
    return model.from_flags(flags)


LINES = find_lines()


def is_mention(line: str) -> bool:
    """Whether a line only names an option in running text, as in "`compare --dial`"."""
    return bool(re.fullmatch(r"negbench \w+( --[a-z-]+)+", line))


def test_every_page_and_every_help_offers_something():
    assert len(LINES) > 90
    assert {name_of(words_of(line)).split()[0] for line in LINES} == {name.split()[0] for name in COMMANDS}


@pytest.mark.parametrize("line", [line for line in LINES if not is_mention(line)])
def test_an_offered_line_is_understood(line):
    assert isinstance(options_of(words_of(line)), Options), LINES[line]


@pytest.mark.parametrize("line", [line for line in LINES if is_mention(line)])
def test_an_option_that_is_mentioned_exists(line):
    words = words_of(line)
    parser: Any = typer.main.get_command(main.app)
    for part in name_of(words).split():
        parser = parser.commands[part]
    flags = set()
    for parameter in parser.params:
        flags.update(parameter.opts, parameter.secondary_opts)
    assert {word for word in words if word.startswith("--")} <= flags, LINES[line]


# --- planned ---------------------------------------------------------------------------------------------------------


def make_small(options: Any) -> Any:
    """Return the options with 300 queries; windows of ranks need their own number of images."""
    set_keys = {text.partition("=")[0].strip() for text in (*options.sets, *getattr(options, "dials", ()))}
    sizes = []
    for key in ("dataset.train_queries", "dataset.val_queries"):
        if key not in set_keys:
            sizes.append(f"{key}=300")
    return options.replace(sets=(*options.sets, *sizes), tracking_uri="none")


def is_plannable(line: str) -> bool:
    """Whether a line is one of `run`, `compare` or `study` whose data are generated vectors."""
    words = words_of(line)
    if is_mention(line) or words[0] not in ("run", "compare", "study") or "my-data" in line or "your-name" in line:
        return False
    options: Any = options_of(words)
    if str(options.recipe) not in recipes():
        return False
    text = recipes()[str(options.recipe)].read_text(encoding="utf-8")
    of_a_world = re.search(r'extends = "\S*world(?!s/emoji)|system = .*\n.*world', text)
    return 'name = "vectors"' in text or of_a_world is not None


PLANNABLE = [line for line in LINES if is_plannable(line)]
SOME = PLANNABLE if "NEGBENCH_FUZZ" in os.environ else sorted(random.Random(0).sample(PLANNABLE, 4))


@pytest.mark.parametrize("line", SOME)
def test_an_offered_line_is_planned(line, tmp_path):
    options: Any = make_small(options_of(words_of(line)))
    if isinstance(options, Compare):
        assert plan_comparison(with_recipe(options).replace(sets=options.sets), tmp_path).cells
    elif isinstance(options, Study):
        assert plan_study(options).job.trials > 0
    else:
        from negbench.api import plan_of

        assert isinstance(options, Run)
        assert plan_of(options).hash


# --- in a process of its own -----------------------------------------------------------------------------------------

DRY_RUNS = {
    "run": "run --strategy qure --dataset vectors --backbone vectors:dim=16 --epochs 6",
    "compare": "compare --strategies qure,in-batch --dataset vectors --backbone vectors:dim=16 --seeds 1 --epochs 6",
    "study": "study --strategy dqe --dataset vectors --backbone vectors:dim=16 --set train.epochs=6 --trials 2",
    "claims": "claims --only 5 --dataset vectors --backbone vectors:dim=16 --set train.epochs=6 --seeds 1",
    "mine": "mine --dataset vectors --backbone vectors:dim=16 --strategy qure --draws 5 --out negatives.parquet",
    "embed": "embed my-data --encoder encoder.py:Mine",
}
ENCODER = '''
import numpy as np


class Mine:
    """Encodes everything as ones."""

    def encode_image(self, images):
        return np.ones((len(images), 3), dtype=np.float32)

    def encode_text(self, texts):
        return np.ones((len(texts), 3), dtype=np.float32)
'''


def test_every_command_with_a_dry_run_is_tried():
    assert {name for name, command in COMMANDS.items() if command.dry_run is not None} == set(DRY_RUNS)


def write_my_data(parent: Path) -> None:
    """Write an encoder and a folder of four images and three triplets."""
    from PIL import Image

    folder = parent / "my-data"
    folder.mkdir()
    (parent / "encoder.py").write_text(ENCODER, encoding="utf-8")
    rows = ["reference,text,target", *(f"{number}.png,bluer,{number + 1}.png" for number in range(3))]
    (folder / "triplets.csv").write_text("\n".join(rows), encoding="utf-8")
    for number in range(4):
        pixels = np.full((8, 8, 3), 40 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.mark.slow
@pytest.mark.parametrize("name", DRY_RUNS)
def test_a_dry_run_ends_well_in_a_process_of_its_own(name, tmp_path):
    words = shlex.split(DRY_RUNS[name])
    if name == "embed":
        write_my_data(tmp_path)
    else:
        words += [part for key in SMALL for part in ("--set", f"dataset.{key}=300")]
    done = subprocess.run(
        [sys.executable, "-m", "negbench", *words, "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "NEGBENCH_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "reads" in done.stdout + done.stderr
    assert not (tmp_path / "negatives.parquet").exists()
