"""Options shared by commands: help, version, plug-ins with options, names of folders."""

import re
import shlex
import sys

import pytest
import typer

from negbench import __version__
from negbench.cli.command import unused_variables
from negbench.cli.main import app
from negbench.errors import NegbenchError
from negbench.grid.compute import executor_of
from negbench.grid.executors import InProcess, Processes
from negbench.machine.files import check_name
from negbench.settings.options import Compare, Study


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_a_command_is_missing_the_help_is_shown(arguments, run_command):
    output = run_command(*arguments, code=2)
    assert output.err.startswith(f"Usage: negbench {'data ' if arguments else ''}[OPTIONS] COMMAND")
    assert "negbench: error" not in output.err
    assert output.err.count("\n") > 7


def test_the_help_of_compare_is_two_screens_in_groups(subtests, run_command, monkeypatch):
    for width in (80, 100):
        with subtests.test(width=width):
            monkeypatch.setenv("COLUMNS", str(width))
            lines = run_command("compare", "--help").out.splitlines()
            assert len(lines) <= 104
            titles = [line.rstrip(":") for line in lines if re.fullmatch(r"[A-Z][a-z]+:", line)]
            assert titles == ["Options", "Settings", "Data", "Computing", "Output", "Examples"]
            flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", "\n".join(lines), flags=re.MULTILINE)
            assert sorted(flags) == sorted(set(flags))
            assert {"--strategies", "--recipe", "--data-root", "--workers", "--json", "--help"} <= {*flags}
            examples = lines[lines.index("Examples:") + 1 :]
            assert [line for line in examples if not line.startswith("  negbench compare --")] == []
            assert len(examples) > 2


def test_every_example_of_the_help_is_a_command_line():
    root = typer.main.get_command(app)
    commands = {**root.commands, **root.commands["data"].commands}
    examples = [line for command in commands.values() for line in getattr(command, "examples", ())]
    assert len(examples) > 25
    with_dry_run = set()
    for name, command in commands.items():
        if any("--dry-run" in option.opts for option in command.params):
            with_dry_run.add(name)
    assert with_dry_run == {"run", "compare", "study", "claims", "mine", "embed"}
    for line in examples:
        first, *words = shlex.split(line)
        assert first == "negbench", line
        name, *rest = words[1:] if words[0] == "data" else words
        commands[name].make_context(name, rest).close()  # raises for an unknown flag


def test_version(run_command):
    assert run_command("--version").out == f"negbench {__version__}\n"


def test_options_of_a_plugin_reach_every_command(expect_error, tmp_path, subtests):
    """The strategy itself rejects the value, so the option was passed on."""
    for command in ["run", "study", "audit"]:
        with subtests.test(command):
            runs = [] if command == "audit" else ["--runs-dir", str(tmp_path)]
            expect_error(
                [command, "--strategy", "dqe:alpha=0.9:beta=0.3", *runs], "alpha must be below beta (0.3), got 0.9"
            )
            expect_error([command, "--strategy", "dqe:alhpa=0.9", *runs], "did you mean 'alpha'")
            expect_error(
                [command, "--strategy", "dqe", "--backbone", "tiny:fusoin=sum", *runs], "did you mean 'fusion'"
            )


def test_a_path_that_no_disk_can_have_is_one_line(expect_error, tmp_path):
    path = tmp_path / ("x" * 300 + ".npz")
    vectors = ["--backbone", "precomputed", "--set", f"backbone.images='{path}'", "--set", f"backbone.texts='{path}'"]
    data = ["--dataset", "vectors", "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    expect_error(["run", "--strategy", "qure", *vectors, *data], f"{path}: File name too long")


def test_where_tasks_run_is_checked(expect_error, monkeypatch, tmp_path, mistakes, subtests):
    for flags, message in mistakes["workers"].items():
        with subtests.test(flags):
            monkeypatch.setitem(sys.modules, "ray", None)  # simulates a missing package
            monkeypatch.setenv("NEGBENCH_RUNS", str(tmp_path))
            expect_error(["compare", *flags.split()], message)


def test_the_pool_is_what_there_is_without_a_word(tmp_path):
    assert executor_of("pool", None, None, tmp_path, None) == InProcess()
    assert executor_of("pool", None, 3, tmp_path, None) == Processes(3)
    preloads = [executor_of("pool", None, 3, tmp_path, uri).preload for uri in (None, "none")]
    assert ["mlflow.tracking" in names for names in preloads] == [True, False]


def test_names_cannot_leave_the_runs_folder(subtests, expect_error, tmp_path, monkeypatch):
    for name in ["a/b", "../out", "/abs", ".hidden", "", "a b", "a\nb", "-x", "x" * 101, "a\\b"]:
        with subtests.test(name=name):
            monkeypatch.chdir(tmp_path)
            with pytest.raises(NegbenchError, match="expected a plain name"):
                check_name(name, "--name")
            for command in ("compare", "study", "claims"):
                expect_error([command, f"--name={name}"], "expected a plain name")
            assert list(tmp_path.iterdir()) == []


def test_the_help_groups_the_commands_in_whole_sentences(run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run_command("-h").out
    assert "..." not in out.partition("Start:")[2]
    assert max(map(len, out.splitlines())) <= 80
    groups = re.findall(r"^(\w+):\n((?:  .*\n)+)", out.partition("COMMAND [ARGS]")[2], re.M)
    commands = {title: re.findall(r"^  (\w+)", rows, re.M) for title, rows in groups}
    assert {title: names for title, names in commands.items() if title != "Options"} == {
        "Start": ["init", "embed", "data", "doctor"],
        "Compare": ["run", "compare", "study", "claims"],
        "Negatives": ["audit", "mine"],
        "Inspect": ["report", "ui", "list", "evaluate"],
    }


VARIABLES = [  # variable, command, flag that does the same
    ("MLFLOW_TRACKING_URI", Compare, "--tracking-uri"),
    ("MLFLOW_EXPERIMENT_NAME", Compare, "--name"),
    ("OPTUNA_STORAGE", Study, "--storage"),
]


@pytest.mark.parametrize(("variable", "model", "flag"), VARIABLES, ids=[row[0] for row in VARIABLES])
def test_variables_of_other_tools_that_are_not_used_are_mentioned(monkeypatch, variable, model, flag):
    monkeypatch.setenv(variable, "somewhere")
    flags = {"strategy": "dqe"} if model is Study else {"strategies": "qure,dqe"}
    assert unused_variables(model.from_flags(flags)) == [f"{variable} is set and not used: give {flag} to use it here"]
    option = flag.removeprefix("--").replace("-", "_")
    value = "c" if option == "name" else "sqlite:///x.db"
    assert unused_variables(model.from_flags({**flags, option: value})) == []
    monkeypatch.delenv(variable)
    assert unused_variables(model.from_flags(flags)) == []
