"""Output of commands: one JSON document, results without progress, stages with -v; shell completion."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from negbench.cli.main import app, main
from negbench.cli.main import run as negbench
from tests.plugin_file import ANSWER, PLUGIN


@pytest.fixture
def flags(vector_flags: list[str], tmp_path: Path) -> list[str]:
    return [*vector_flags, "--runs-dir", str(tmp_path), "--tracking-uri", "none"]


def test_a_run_as_json_quiet_and_verbose(flags, tmp_path, document, run_command):
    command = ["run", "--strategy", "qure", *flags]
    printed = document(*command, "-v")
    (stored,) = tmp_path.glob("*/result.json")
    assert printed["metrics"] == json.loads(stored.read_text(encoding="utf-8"))["metrics"]
    assert printed["run"] == stored.parent.name
    assert not printed["reused"]
    assert document(*command)["reused"]
    output = run_command(*command, "--set", "seed=1", "-v")
    assert "R@10" in output.out
    assert "train" in output.err  # a stage and its seconds
    assert " s\n" in output.err
    output = run_command(*command, "--quiet")
    assert "R@10" in output.out
    assert output.err == ""


def test_progress_and_notes_leave_standard_output_alone(flags, document, run_command):
    command = ["compare", "--lr=fixed", "--strategy", "qure,in-batch", "--seeds", "1", "--no-report"]
    output = run_command(*command, *flags)
    assert "[2/2]" in output.err
    assert "[2/2]" not in output.out
    assert "answer" in output.out
    assert logging.getLogger("negbench").handlers == []  # commands remove their handlers
    quiet = document(*command, *flags, "--quiet")
    assert {cell["strategy"] for cell in quiet["cells"]} == {"qure", "in-batch"}


def test_what_lists_is_json_too(subtests, document):
    for arguments in ("list", "list losses info-nce", "list recipes", "claims --list --only 5"):
        with subtests.test(arguments=arguments):
            assert document(*arguments.split())


def test_commands_without_a_table_have_no_json(run_command):
    assert "--json" not in run_command("ui", "--help").out
    assert run_command("ui", "--json", code=2).err == "negbench: error: No such option: --json\n"


def test_completion_knows_commands_and_options():
    variables = {"_NEGBENCH_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "negbench comp"}
    code = ["-c", "from negbench.cli.main import main; main()"]
    words = subprocess.run(
        [sys.executable, *code], stdout=subprocess.PIPE, text=True, env=os.environ | variables
    ).stdout
    assert "compare" in words.split()


def commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Yield the words and the parser of each command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))
UNPARSED = (  # an unknown option, an option without its value, an argument that is missing or too much; groups
    *(f"{name}{more}" for name in COMMANDS for more in (" --bogus", " zzz zzz zzz", " --json --name")),
    *(name for name, parser in COMMANDS.items() if any(option.required for option in parser.params)),
    *("zzz", "--bogus", "data", "data zzz", "data --bogus", ""),
)
MISTAKES = (
    *("run --strategy zzz", "compare --strategies zzz", "study --strategy zzz", "claims --only 999", "run --bogus"),
    *("audit --strategy zzz", "mine --strategy qure --out x.csv", "evaluate zzz", "report zzz", "init zzz", "ui zzz"),
    *("embed zzz --encoder x:y", "data verify zzz", "data fetch zzz", "data encode --backbone zzz", "list losses zzz"),
    *("doctor --bogus", "run --recipe zzz", "compare --name a/b --strategies qure"),
)


def test_each_command_errs_below():
    assert [name for name in COMMANDS if not any(f"{mistake} ".startswith(f"{name} ") for mistake in MISTAKES)] == []


@pytest.mark.parametrize("mistake", [*MISTAKES, *UNPARSED])
def test_every_error_is_one_json_document_too(mistake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert negbench([*mistake.split(), "--json"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert json.loads(printed.out) == {"error": line.removeprefix("negbench: error: "), "exit_code": 2}


def test_a_plugin_at_the_end_of_a_file_is_named(vector_flags, tmp_path, capsys, own_registry):
    """Regression: typer turns an EOFError into its Abort, which ended with exit code 130 and without a word."""
    text = PLUGIN.replace(f"return {ANSWER}", "raise EOFError")
    (tmp_path / "ended.py").write_text(text, encoding="utf-8")
    arguments = ["audit", f"--plugin={tmp_path}/ended.py", "--strategy=ended", "--queries=10", *vector_flags[:-8]]
    assert negbench([*arguments, "--json"]) == 2
    line = 1 + text[: text.index("raise EOFError")].count("\n")
    assert f"ended.py failed in line {line}: EOFError" in json.loads(capsys.readouterr().out)["error"]


def test_a_long_error_loses_its_middle(run_command):
    """Regression: found by `make fuzz`, where an error quoted a --device of 2,400 characters."""
    line = run_command("doctor", "first" + 5000 * "x" + "last", code=2).err
    assert "(first" in line
    assert line.endswith("last)\n")
    assert len(line) < 1000


def test_a_dry_run_needs_annotations_alone(toy_root, tmp_path, document, run_command):
    shutil.copytree(toy_root, tmp_path / "data")
    for image in [path for path in (tmp_path / "data").rglob("*") if path.suffix in (".png", ".jpg")]:
        image.unlink()
    command = f"compare --strategies qure,in-batch --seeds 1 --lr=fixed --runs-dir {tmp_path}/r --dataset fashioniq"
    command += f" --data-root {tmp_path}/data --backbone blip2 --set backbone.weights=lavis:none.pth"
    plan = document(*command.split(), "--dry-run")
    assert [row["step"] for row in plan["cells"]] == ["anew", "anew"]
    note = plan["notes"][0]
    assert note.startswith("finished runs cannot be recognised without them: ")
    assert "images are missing" in note
    assert "there is no file none.pth" in note
    assert "images are missing" in run_command(*command.split(), code=2).err  # what is computed needs them


def test_standard_output_without_room_or_unicode_is_one_line(forked, tmp_path):
    """What cannot be encoded is replaced, and what is full is named: the latter by the installed command."""
    np.save(tmp_path / "v.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "t.npy", np.arange(4))
    files = [f"--{name}={tmp_path / 'v.npy'}" for name in ("queries", "images")]
    mine = ["mine", *files, f"--targets={tmp_path / 't.npy'}", "--strategy=qure", f"--out={tmp_path}/é.jsonl"]
    errors = tmp_path / "errors"
    errors.touch()

    def in_ascii() -> None:
        os.dup2(os.open(errors, os.O_WRONLY), 2)
        sys.stdout.reconfigure(encoding="ascii")
        main(mine)

    done = forked(in_ascii)
    assert f"wrote {tmp_path}/?.jsonl" in done.communicate()
    assert (done.returncode, errors.read_text(encoding="utf-8")) == (0, "")
    command = str(Path(sys.executable).with_name("negbench"))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([command, "list", "recipes"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (2, "negbench: error: standard output: No space left on device\n")
