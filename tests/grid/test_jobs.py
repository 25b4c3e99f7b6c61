"""`--executor jobs:FOLDER`: what is handed out, collected and given up, and the plain shell loop with a kill."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from negbench import api
from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError, OptionError, PendingError
from negbench.grid.cell_task import compute_task
from negbench.grid.jobs import Jobs, Trusted, compute_line
from negbench.grid.jobs import _main as main
from negbench.machine.files import read_json, write_json
from negbench.machine.signals import Stopped
from negbench.settings.options import Compare, Study
from negbench.store.copies import NOTE
from negbench.store.parents import restore
from negbench.store.tracking import Tracker
from negbench.worlds._synthesis import Spec, ensure
from tests.plugin_file import ANSWER, PLUGIN
from tests.vector_files import write_vectors

ROOT = Path(__file__).parents[2]


def command_of(vector_flags: Sequence[str], folder: Path, *more: str) -> list[str]:
    words = ["compare", "--strategies", "top-k,in-batch", "--seeds", "1", "--lr", "fixed", "--name", "c", "--no-report"]
    where = ["--runs-dir", str(folder / "runs"), "--executor", f"jobs:{folder / 'jobs'}"]
    return [*words, *vector_flags, *where, *more]


def state_of(runs: Path) -> str:
    """Return the state that the comparison has in MLflow."""
    return Tracker.open(runs).state(runs / "c" / NOTE)


def test_the_next_call_collects_what_jobs_computed(vector_flags, tmp_path, capsys):
    """In MLflow the comparison is scheduled while cells are left, and finished once they are collected."""
    command = command_of(vector_flags, tmp_path)
    jobs = tmp_path / "jobs"
    here = Trusted(tmp_path / "runs")
    assert negbench(command) == 75
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "NUMBER" in line]
    job = f"python -m negbench.grid.jobs {jobs} NUMBER --runs-dir {tmp_path}/runs"
    assert line == f"negbench: run `{job}` for 0 to 1, then this command again"
    assert [compute_line(jobs, number, here).kind for number in (0, 1)] == ["done", "done"]
    assert [path.name for path in jobs.iterdir()] == ["cells.jsonl"]
    assert state_of(tmp_path / "runs") == "SCHEDULED"
    assert negbench(command) == 0
    assert state_of(tmp_path / "runs") == "FINISHED"
    with pytest.raises(NegbenchError, match="has lines 0 to 1, not 2"):
        compute_line(jobs, 2, here)
    first = json.loads((jobs / "cells.jsonl").read_text().splitlines()[0])
    (jobs / "cells.jsonl").write_text(json.dumps({**first, "hash": "0" * 64}))
    assert "sync them" in compute_line(jobs, 0, here).value


def test_a_cell_that_failed_is_told_and_then_handed_out_again(vector_flags, tmp_path, capsys, before_training):
    """A job that dies is repeated once."""
    command = command_of(vector_flags, tmp_path)
    jobs = tmp_path / "jobs"
    here = Trusted(tmp_path / "runs")

    def fail_or_die(run: Any) -> None:
        if run.config.strategy.name == "top-k":
            raise NegbenchError("mend this")
        raise Stopped(15)

    before_training(fail_or_die)
    assert negbench(command) == 75
    assert compute_line(jobs, 0, here).value == "mend this"
    with pytest.raises(Stopped):
        compute_line(jobs, 1, here)
    capsys.readouterr()
    assert negbench(command) == 75
    assert "for 0 to 0, then" in capsys.readouterr().err  # only the one that died is left
    (jobs / "cells.jsonl").write_text("\n" + (jobs / "cells.jsonl").read_text())
    with pytest.raises(Stopped):
        compute_line(jobs, 1, here)
    assert negbench(command) == 2
    error = capsys.readouterr().err
    assert "top-k seed 0: mend this" in error
    assert "in-batch seed 0: its job died, 2 times" in error
    assert "2 of 2 cells failed" in error
    assert state_of(tmp_path / "runs") == "FINISHED"
    before_training(lambda run: None)
    assert negbench(command) == 75
    tracker = Tracker.open(tmp_path / "runs")
    (line,) = restore(tracker)
    assert line.partition(" that")[0] == "copied the summary of c"
    assert list(restore(tracker)) == []
    assert [compute_line(jobs, number, here).kind for number in (0, 1)] == ["done", "done"]
    assert state_of(tmp_path / "runs") == "SCHEDULED"
    assert negbench(command) == 0
    assert state_of(tmp_path / "runs") == "FINISHED"


def test_trials_cannot_be_handed_out(tmp_path):
    message = "--executor jobs computes cells, and trials follow from each other"
    with pytest.raises(OptionError, match=message):
        api.study(Study(strategy="dqe", executor=f"jobs:{tmp_path}"))
    with pytest.raises(OptionError, match=message):
        api.compare(Compare(tuned=2, executor=f"jobs:{tmp_path}"))


@pytest.mark.parametrize(
    "options",
    [{"executor": "jobs:x", "workers": 2}, {"executor": "jobs"}, {"executor": "jobs:"}],
    ids=["workers", "no colon", "no folder"],
)
def test_jobs_take_a_folder_and_no_workers(options):
    with pytest.raises(OptionError, match="takes the folder, and neither"):
        api.compare(Compare(**options))


def task_of(runs: Path, uri: str) -> Any:
    """Return a task with only the fields that a line of cells.jsonl has."""
    planned = SimpleNamespace(hash="a" * 64, config=SimpleNamespace(model_dump=lambda mode: {}, plugins=()))
    return SimpleNamespace(planned=planned, runs=runs, uri=uri, tags={})


def test_a_password_is_not_handed_out(tmp_path):
    with pytest.raises(OptionError, match="--tracking-uri has a password"):
        list(Jobs(tmp_path).run(compute_task, [task_of(tmp_path, "http://me:secret@host")]))
    assert not list(tmp_path.iterdir())


def test_a_job_that_was_started_and_left_nothing_died(tmp_path):
    """It is handed out again, unless nothing is to be repeated."""
    task = task_of(tmp_path, "none")
    write_json(tmp_path / f"{'a' * 16}.json", {"starts": 1, "error": ""})
    with pytest.raises(PendingError):
        list(Jobs(tmp_path).run(compute_task, [task]))
    assert [event.value for event in Jobs(tmp_path, retries=0).run(compute_task, [task])] == ["its job died"]


# --- a folder from somebody else -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return an honest line of cells.jsonl."""
    folder = tmp_path_factory.mktemp("row")
    flags = [word for text in write_vectors(folder / "own") for word in ("--set", text)]
    assert negbench(command_of(flags, folder, "--tracking-uri", "none")) == 75
    return json.loads((folder / "jobs" / "cells.jsonl").read_text(encoding="utf-8").splitlines()[0])


def hand_out(folder: Path, row: object) -> Path:
    """Write a folder of jobs with one line: the text, or the row as JSON."""
    folder.mkdir(exist_ok=True)
    text = row if isinstance(row, str) else json.dumps(row) + "\n"
    (folder / "cells.jsonl").write_text(text, encoding="utf-8")
    return folder


def with_hash(text: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "hash": text}


DAMAGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "empty": lambda row: "",
    "no JSON": lambda row: "x\n",
    "a list": lambda row: "[]\n",
    "null": lambda row: "null\n",
    "an empty object": lambda row: "{}\n",
    "a cut line": lambda row: json.dumps(row)[:50],
    "deep": lambda row: "[" * 100_000,
    "a hash that is a number": with_hash(5),
    "a hash that is a path": with_hash("../../../x"),
    "a hash with a line end": with_hash("a" * 64 + "\n"),
    "a folder of its own": lambda row: {**row, "runs": "/elsewhere"},
    "a store of its own": lambda row: {**row, "uri": "sqlite:////elsewhere/x.db"},
    "a tag that is a number": lambda row: {**row, "tags": {"a": 1}},
    "an experiment that is a path": lambda row: {**row, "tags": {"experiment": "../x"}},
    "no configuration": lambda row: {**row, "config": None},
    "plug-ins that are a number": lambda row: {**row, "config": {**row["config"], "plugins": 5}},
    "a plug-in that is a number": lambda row: {**row, "config": {**row["config"], "plugins": [5]}},
    "an unknown key": lambda row: {**row, "config": {**row["config"], "x": 1}},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_line_is_one_line_and_writes_nothing(row, tmp_path, capsys, monkeypatch, damage):
    jobs = hand_out(tmp_path / "jobs", DAMAGED[damage](row))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["jobs", str(jobs), "0", "--runs-dir", str(tmp_path / "runs")])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("negbench: error: ")
    assert "cells.jsonl" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_line_imports_only_files_that_the_command_names(row, tmp_path, own_registry):
    (tmp_path / "mine").mkdir()
    plugin = tmp_path / "mine" / "mine.py"
    mark = plugin.with_suffix(".ran")
    leave_mark = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"
    plugin.write_text(leave_mark + PLUGIN.replace(ANSWER, "view.allowed"), encoding="utf-8")
    config = {**row["config"], "plugins": [str(plugin)], "strategy": {"name": "mine", "k": 3}}
    jobs = hand_out(tmp_path / "jobs", {**row, "config": config})
    runs = tmp_path / "runs"
    with pytest.raises(OptionError, match=r"line 0 wants to import a plug-in file: give --plugin mine\.py if"):
        compute_line(jobs, 0, Trusted(runs))
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit", encoding="utf-8")
    with pytest.raises(OptionError, match="wants to import"):
        compute_line(jobs, 0, Trusted(runs, [other]))
    assert not mark.exists()
    moved = plugin.rename(tmp_path / "mine.py")  # same name, another path
    compute_line(jobs, 0, Trusted(runs, [moved], "none"))
    assert moved.with_suffix(".ran").exists()


def test_jobs_of_a_plugin_file_name_it_in_their_line(vector_flags, tmp_path, capsys, own_registry):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.replace(ANSWER, "view.allowed"), encoding="utf-8")
    more = ["--strategies", "mine", "--plugin", str(plugin), "--tracking-uri", "none"]
    assert negbench(command_of(vector_flags, tmp_path, *more)) == 75
    flags = f"--runs-dir {tmp_path}/runs --plugin {plugin} --tracking-uri none"
    assert f"NUMBER {flags}`" in capsys.readouterr().err
    assert compute_line(tmp_path / "jobs", 0, Trusted(tmp_path / "runs", [plugin], "none")).kind == "done"


def test_a_line_whose_hash_is_of_another_run_computes_nothing(row, tmp_path):
    jobs = hand_out(tmp_path / "jobs", {**row, "config": {**row["config"], "seed": 7}})
    event = compute_line(jobs, 0, Trusted(tmp_path / "runs", (), "none"))
    assert "different code, data or weights" in event.value
    assert not (tmp_path / "runs").exists()


def test_a_damaged_note_is_named(row, tmp_path):
    jobs = hand_out(tmp_path / "jobs", row)
    (jobs / f"{row['hash'][:16]}.json").write_text('{"starts": "x", "error": null}', encoding="utf-8")
    with pytest.raises(NegbenchError, match=r"\.json is damaged \(starts: "):
        compute_line(jobs, 0, Trusted(tmp_path / "runs"))


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def write_killing_python(folder: Path) -> Path:
    """Write an interpreter whose first process is killed once a run has begun in `runs`; it notes that by `once`."""
    return write_script(
        folder / "python",
        f"""
if mkdir {folder}/once 2> /dev/null; then
    {sys.executable} "$@" & job=$!
    until ls {folder}/runs/*/config.json 2> /dev/null; do sleep 0.02; done
    kill -9 $job
else
    exec {sys.executable} "$@"
fi
""",
    )


PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
SLURM = PAGE.partition("## A comparison under SLURM")[2].partition("```sh\n")[2].partition("```")[0]
SBATCH = """
while :; do
    case $1 in
        --array=*) range=${1#--array=} ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
echo "sbatch $range" >> calls
last=${range%%%*}
last=${last#0-}
number=0
while [ "$number" -le "$last" ]; do
    SLURM_ARRAY_TASK_ID=$number sh "$@"
    number=$((number + 1))
done
"""  # a node of one core: one job of the array after the other


def run_slurm_loop(
    folder: Path, text: str, negbench_script: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the page's loop in a folder, with stand-ins for `negbench` and `sbatch`; both note their calls in `calls`."""
    write_script(folder / "bin" / "negbench", f'echo "negbench $1" >> calls\n{negbench_script}')
    write_script(folder / "bin" / "sbatch", SBATCH)
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, **environment, "PATH": path}
    return subprocess.run(["sh", "-c", text], cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", [0, 1], ids=["finished", "failed"])
def test_the_slurm_loop_of_the_page_hands_out_every_line_until_the_comparison_ends(tmp_path, end):
    """Two rounds, of three cells and of one; the loop ends with the code of the last call."""
    rounds = f"""
if [ "$1" = compare ]; then
    mkdir -p jobs
    if [ ! -e first ]; then touch first; printf 'a\nb\nc\n' > jobs/cells.jsonl; exit 75; fi
    if [ ! -e second ]; then touch second; echo d > jobs/cells.jsonl; exit 75; fi
    exit {end}
fi
"""
    done = run_slurm_loop(tmp_path, SLURM, rounds, PYTHON="echo")
    assert done.returncode == end, done.stderr
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    compare = "negbench compare"
    assert calls == ["negbench data"] * 2 + [compare, "sbatch 0-2%8", compare, "sbatch 0-0%8", compare]
    job = f"-m negbench.grid.jobs jobs {{}} --runs-dir {tmp_path}/runs"
    assert [line for line in done.stdout.splitlines() if "grid.jobs" in line] == [job.format(n) for n in (0, 1, 2, 0)]


@pytest.mark.slow
@pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="takes a minute: `make faults`")
def test_the_slurm_loop_of_the_page_computes_two_data_sets_although_a_job_is_killed(toy_root, tmp_path):
    """The page's text, with a toy backbone and data sets for its placeholders; the killed job's cell is repeated."""
    spec = Spec(world=2, twins=2, train_images=32, train_queries=24, val_images=16, val_queries=8)
    text = SLURM
    for name, toy in {
        "clip:weights=WEIGHTS": "tiny:weights=random",
        "fashioniq:root=DIR1": f"synthetic:root={toy_root}",
        "cirr:root=DIR2": f"synthetic:root={ensure(tmp_path / 'other', spec)}",
    }.items():
        assert name in text, name
        text = text.replace(name, toy)
    small = "--seeds 1 --lr fixed --epochs 5 --set train.batch_size=36 --name c --no-report"
    real = f'if [ "$1" = compare ]; then set -- "$@" {small}; fi\nexec {sys.executable} -m negbench "$@"'
    done = run_slurm_loop(tmp_path, text, real, PYTHON=str(write_killing_python(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "once").exists()
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    compare = "negbench compare"
    assert calls == ["negbench data"] * 2 + [compare, "sbatch 0-5%8", compare, "sbatch 0-0%8", compare]
    cells = read_json(tmp_path / "runs" / "c" / "comparison.json")["cells"]
    assert len({cell["run"] for cell in cells}) == 6  # three strategies, two data sets
    for cell in cells:
        assert (tmp_path / "runs" / cell["run"] / "result.json").exists(), cell["run"]


@pytest.mark.slow
@pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="takes half a minute: `make faults`")
def test_the_shell_loop_gives_the_runs_of_one_process_although_a_job_is_killed(vector_flags, tmp_path):
    """The first job is killed while it trains; the second one resumes its run."""
    flags = [*vector_flags, "--set", "train.epochs=150", "--tracking-uri", "none"]
    command = command_of(flags, tmp_path, "--strategies", "top-k")
    killing = write_killing_python(tmp_path)
    loop = ["sh", str(ROOT / "examples" / "jobs_loop.sh"), str(tmp_path / "jobs")]
    loop.append(f"--runs-dir {tmp_path}/runs --tracking-uri none")
    program = [sys.executable, "-m", "negbench"]
    environment = {**os.environ, "PYTHON": str(killing)}
    done = subprocess.run([*loop, *program, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "once").exists()
    assert negbench([*command_of(flags, tmp_path / "alone", "--strategies", "top-k"), "--executor", "pool"]) == 0
    (cell,) = read_json(tmp_path / "runs" / "c" / "comparison.json")["cells"]
    assert read_json(tmp_path / "alone" / "runs" / "c" / "comparison.json")["cells"] == [cell]
    of_jobs = read_json(tmp_path / "runs" / cell["run"] / "result.json")
    of_one_process = read_json(tmp_path / "alone" / "runs" / cell["run"] / "result.json")
    assert of_jobs["metrics"] == of_one_process["metrics"]
