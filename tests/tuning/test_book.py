"""Trials in every storage, with an instant objective and with workers that are killed."""

import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import optuna
import pytest
from optuna.trial import TrialState

from negbench.errors import NegbenchError, OptionError, RunError
from negbench.machine import received
from negbench.machine.files import write_json
from negbench.report.study import dashboard_command
from negbench.settings.options import Sampler
from negbench.systems.system import load_config
from negbench.tuning.book import Pruned, StudyStore, open_book, trial_folder
from negbench.tuning.final import completed_trials
from negbench.tuning.search_space import SearchRange, SearchSpace
from negbench.tuning.spec import StudySpec
from negbench.tuning.trials import Job, serve

BASE = load_config(flags={"strategy": {"name": "dqe"}})
ALPHA = "strategy.alpha"
DRAWN = "train.num_negatives"
SPACE = SearchSpace((SearchRange(ALPHA, 0.2, 0.0, 0.4), SearchRange(DRAWN, 1, 1, 5)))
GRID = SearchSpace(
    (SearchRange(ALPHA, 0.2, choices=(0.1, 0.2, 0.3, 0.4)), SearchRange(DRAWN, 1, choices=(1, 2, 3, 4, 5)))
)


def toy_spec(sampler: Any = "tpe", **settings: Any) -> StudySpec:
    space = GRID if sampler == "grid" else SPACE
    return dataclasses.replace(StudySpec.of(BASE, space, sampler=sampler), **settings)


def toy_value(point: dict[str, Any]) -> float:
    return 0.5 - (float(point[ALPHA]) - 0.1) ** 2 + 0.01 * float(point[DRAWN])


def at_once(trial: optuna.Trial) -> float:
    return toy_value(trial.params)


def in_steps(trial: optuna.Trial) -> float:
    """Report a value at every step, and stop when pruned."""
    for step in range(4):
        trial.report(toy_value(trial.params) * (step + 1) / 4, step)
        if trial.should_prune():
            raise Pruned
    return at_once(trial)


@dataclasses.dataclass(frozen=True)
class Slowly:
    """Objective that waits, so that a kill hits a worker within a trial, and records who computes what."""

    folder: Path
    seconds: float

    def __call__(self, trial: optuna.Trial) -> float:
        (self.folder / f"working-{trial.number}").write_text(str(os.getpid()))
        time.sleep(self.seconds)
        (self.folder / f"ended-{trial.number}").write_text(str(os.getpid()))
        return at_once(trial)


def slow(job: Job, *, together: int = 1, seconds: float = 0.2) -> Callable[[optuna.Trial], float]:
    """Return a slow objective once `together` workers are there, so that none finishes all before another starts."""
    (job.folder / f"here-{os.getpid()}").touch()
    until(lambda: len(list(job.folder.glob("here-*"))) >= together)
    return Slowly(job.folder, seconds)


def deadly(
    job: Job, *, at: Sequence[int], times: int = 1, objective: Callable[[optuna.Trial], float] = at_once
) -> Callable[[optuna.Trial], float]:
    """Return an objective that kills its worker (-9) `times` times in each of these trials."""

    def compute_and_die(trial: optuna.Trial) -> float:
        value = objective(trial)
        die_once(job.folder, trial.number, at, times)
        return value

    return compute_and_die


def die_once(folder: Path, number: int, at: Sequence[int], times: int = 1) -> None:
    """Kill this process in one of the trials `at`, unless it has died there `times` times."""
    if number not in at:
        return
    for death in range(times):
        mark = folder / f"died-{number}-{death}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def toy_book(folder: Path, trials: int = 10, spec: StudySpec | None = None) -> StudyStore:
    return StudyStore(folder, spec or toy_spec(), None, trials)


def finish_study(
    folder: Path, trials: int, spec: StudySpec | None = None, objective: Callable[[optuna.Trial], float] = at_once
) -> StudyStore:
    """Return a study whose trials are computed, by one worker that nothing interrupts."""
    book = toy_book(folder, trials, spec)
    book.work(objective, print)
    return book


def toy_job(folder: Path, trials: int, opens: Any, spec: StudySpec | None = None) -> Job:
    return Job(folder, spec or toy_spec(), None, trials, "none", opens)


def points(book: StudyStore) -> list[dict[str, Any]]:
    return [trial.params for trial in book.frozen()]


def outcomes(book: StudyStore) -> list[tuple[dict[str, Any], TrialState, float | None]]:
    return [(trial.params, trial.state, trial.value) for trial in book.frozen()]


def test_a_study_keeps_its_settings_and_its_storage(tmp_path):
    folder = tmp_path / "toy"
    assert dashboard_command(toy_book(folder)) == f"optuna-dashboard --host 127.0.0.1 {folder / 'optuna.journal'}"
    with pytest.raises(RunError, match="was started with different sampler, seed; its trials"):
        toy_book(folder, spec=toy_spec("random", seed=3))
    with pytest.raises(RunError, match="was started with different storage"):
        StudyStore(folder, toy_spec(), f"sqlite:///{tmp_path}/s.db")
    base = {**toy_spec().base, "compute": {"device": "cpu", "threads": 4}}
    toy_book(folder, spec=toy_spec(base=base))  # another machine may use other compute settings
    write_json(folder / "study.json", {"storage": None, "spec": toy_spec().dump() | {"seed": "4"}})
    with pytest.raises(NegbenchError, match=r"cannot read .*study\.json.*; its content is as it was written"):
        StudyStore(folder, None)


def test_a_storage_by_url_serves_one_runs_folder(tmp_path):
    url = f"sqlite:///file:{tmp_path}/s.db?uri=true&password=hidden"
    book = StudyStore(tmp_path / "toy", toy_spec(), url, 3)
    assert book.work(at_once, print) == 3
    assert StudyStore(tmp_path / "toy", toy_spec(), url, 3).work(at_once, print) == 0
    (study,) = optuna.get_all_study_summaries(url)
    assert study.n_trials == 3
    assert "hidden" not in (tmp_path / "toy" / "study.json").read_text()
    assert dashboard_command(book) == f"optuna-dashboard --host 127.0.0.1 'sqlite:///file:{tmp_path}/s.db?uri=true'"
    with pytest.raises(RunError, match="has a study 'toy' of another runs folder") as error:
        StudyStore(tmp_path / "b" / "toy", toy_spec(), url, 3)
    assert "hidden" not in str(error.value)


def test_a_storage_that_cannot_be_opened_is_one_line(tmp_path):
    toy_book(tmp_path / "toy")
    (tmp_path / "toy" / "optuna.journal").write_text("[1\n{}\n")
    with pytest.raises(OptionError, match=r"optuna\.journal cannot be opened"):
        StudyStore(tmp_path / "toy", None)
    with pytest.raises(OptionError, match="cannot be opened") as error:
        StudyStore(tmp_path / "other", toy_spec(), "postgresql+psycopg://u:secret@127.0.0.1:9/d")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_storage_that_cannot_be_opened_is_named_without_its_password(tmp_path, monkeypatch):
    """What psycopg says of a password with an '@': it takes what follows for the host."""

    def refuse(*_: Any, **options: Any) -> None:
        raise ValueError("failed to resolve host 'hunter2@127.0.0.1'\nIs the server running?")

    monkeypatch.setattr(optuna.storages, "RDBStorage", refuse)
    with pytest.raises(OptionError) as error:
        StudyStore(tmp_path / "toy", toy_spec(), "postgresql+psycopg://alice:a@hunter2@127.0.0.1:9/d")
    assert str(error.value) == (
        "the study's storage postgresql+psycopg://alice@127.0.0.1:9/d cannot be opened "
        "(ValueError: failed to resolve host '***@127.0.0.1')"
    )


# --- trials ----------------------------------------------------------------------------------------------------------


def test_trial_0_is_the_default_and_the_number_is_kept(tmp_path):
    book = toy_book(tmp_path, 11)
    assert book.work(at_once, print) == 11
    assert points(book)[0] == {ALPHA: 0.2, DRAWN: 1}
    assert book.counts() == {"finished": 11, "pruned": 0, "failed": 0, "running": 0, "waiting": 0}
    assert toy_book(tmp_path, 11).work(at_once, print) == 0
    assert toy_book(tmp_path, 12).work(at_once, print) == 1  # a higher number continues it
    assert completed_trials(book)[0].value == max(map(toy_value, points(book)))
    assert points(finish_study(tmp_path / "straight", 12)) == points(book)
    assert points(finish_study(tmp_path / "other", 2, toy_spec(seed=7)))[1] != points(book)[1]


def test_a_trial_draws_like_optunas_sampler_with_the_trials_seed(tmp_path):
    book = finish_study(tmp_path, 4, toy_spec("random", seed=7))
    seed = int.from_bytes(hashlib.sha256(b"7/3").digest()[:4], "big")
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    for searched in SPACE.ranges:
        searched.suggest(trial)
    assert points(book)[3] == trial.params


def test_a_failed_trial_is_computed_again_by_a_rerun(tmp_path):
    straight = finish_study(tmp_path / "straight", 6)
    broken = True
    folder = tmp_path / "toy"

    def objective(trial: optuna.Trial) -> float:
        if broken and trial.number == 2:
            raise ValueError("odd")
        if broken and trial.number == 3:
            raise NegbenchError("mend this")
        if broken and trial.number == 4:
            return math.nan
        return at_once(trial)

    lines: list[str] = []
    book = toy_book(folder, 6)
    book.work(objective, lines.append)
    assert book.counts() == {"finished": 3, "pruned": 0, "failed": 3, "running": 0, "waiting": 0}
    errors = [trial.user_attrs.get("error") for trial in book.frozen() if trial.state == TrialState.FAIL]
    assert errors == ["ValueError: odd", "mend this", "its value is not a number"]
    assert lines[3].startswith("trial 3: FAILED: mend this (alpha=")
    assert lines[4].startswith("trial 4: FAILED: its value is not a number")
    assert toy_book(folder, 6).work(objective, print) == 0  # a worker of the same command
    broken = False
    rerun = toy_book(folder, 6)
    assert rerun.requeue_failed() == [2, 3, 4]
    assert rerun.counts()["waiting"] == 3
    assert rerun.work(objective, print) == 3
    assert rerun.counts()["finished"] == 6
    assert outcomes(rerun) == outcomes(straight)


def test_a_default_that_fails_stops_the_study_until_it_is_computed(tmp_path):
    def fail(error: Exception, trial: optuna.Trial) -> float:
        raise error

    with pytest.raises(NegbenchError, match="trial 0, the default, failed: mend this"):
        toy_book(tmp_path / "a").work(partial(fail, NegbenchError("mend this")), print)
    with pytest.raises(ValueError, match=r"^odd$"):  # a bug, with its traceback
        toy_book(tmp_path / "b").work(partial(fail, ValueError("odd")), print)
    for name in "ab":
        book = toy_book(tmp_path / name)
        assert book.requeue_failed() == [0], name
        assert book.work(at_once, print) == 10, name
        assert book.frozen()[0].value == toy_value(SPACE.default), name


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_a_journal_cut_anywhere_gives_the_same_study(sampler, tmp_path):
    """By a full disk or a power cut: at random bytes, at a line's end, and without the last line feed alone."""
    folder = tmp_path / "toy"
    spec = toy_spec(sampler)
    straight = finish_study(folder, 6, spec)
    journal = folder / "optuna.journal"
    whole = journal.read_bytes()
    chance = random.Random(0)
    want = outcomes(straight)
    cuts = [0, len(whole) - 10, len(whole) - 1, len(whole)]
    cuts += [chance.randrange(len(whole)) for _ in range(4)]
    for cut in cuts:
        journal.write_bytes(whole[:cut])
        finish_study(folder, 6, spec)
        assert outcomes(toy_book(folder, 6, spec)) == want, cut


def test_a_line_that_a_worker_left_incomplete_is_not_glued_to_another_workers(tmp_path):
    first = toy_book(tmp_path, 4)
    second = toy_book(tmp_path, 4)
    with (tmp_path / "optuna.journal").open("ab") as file:
        file.write(b'{"op_code": 8, "trial_id')
    second.work(at_once, print)
    assert first.counts()["finished"] == 4


def test_an_interrupted_trial_goes_on_under_its_number(tmp_path):
    straight = finish_study(tmp_path / "straight", 6)
    begun: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        begun.append(trial.number)
        if begun.count(3) <= 7 and trial.number == 3:
            raise KeyboardInterrupt
        return at_once(trial)

    book = toy_book(tmp_path / "halves", 6)
    for interruption in range(7):  # more often than a worker may die
        with pytest.raises(KeyboardInterrupt):
            book.work(objective, print)
        assert book.counts()["waiting"] == 1, f"interruption {interruption}"
    book.work(objective, print)
    assert book.counts()["finished"] == 6
    assert points(book) == points(straight)
    assert "deaths" not in book.frozen()[3].user_attrs


def test_a_trial_is_held_until_its_end(tmp_path):
    book = toy_book(tmp_path, 2)
    other = toy_book(tmp_path, 2)

    def objective(trial: optuna.Trial) -> float:
        with pytest.raises(BlockingIOError), other.hold(trial_folder(trial.number), wait=False):
            pytest.fail("two hold it")
        return at_once(trial)

    assert book.work(objective, print) == 2
    assert other.work(objective, print) == 0


# --- kills -----------------------------------------------------------------------------------------------------------


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def start(jobs: Sequence[Job]) -> list[Any]:
    """Start a worker process for each job."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=serve, args=(job, print), daemon=True) for job in jobs]
    for process in processes:
        process.start()
    return processes


def rerun(job: Job) -> int:
    """Run one worker after another until one finishes; return how many were killed."""
    for killed in range(20):
        (process,) = start([job])
        process.join()
        if process.exitcode == 0:
            return killed
        assert process.exitcode == -signal.SIGKILL, f"killed at trial {killed}"
    raise AssertionError("it never ends")


@pytest.mark.parametrize(  # random: test_workers_of_a_journal
    ("sampler", "pruner"),
    [("tpe", "median"), ("tpe", "hyperband"), ("gp", "none"), ("cmaes", "none"), ("grid", "none")],
)
def test_a_killed_study_tries_the_same_points(sampler, pruner, tmp_path, monkeypatch):
    """A study killed (-9) in trials, while sampling, or before a trial's end tries the points of an unkilled one."""
    objective = at_once if pruner == "none" else in_steps
    short = {**BASE.model_dump(), "train": {"epochs": 4}}
    spec = toy_spec(sampler, pruner=pruner, base=short)
    straight = finish_study(tmp_path / "straight", 12, spec, objective)
    folder = tmp_path / "toy"
    real = SearchRange.suggest

    def suggest(searched: SearchRange, trial: optuna.Trial) -> Any:
        if searched.key == DRAWN:  # the other option is already stored
            die_once(folder, 100 + trial.number, (110,))  # past the ten random trials of tpe and gp
        return real(searched, trial)

    monkeypatch.setattr(SearchRange, "suggest", suggest)
    toy_book(folder, 12, spec)
    job = toy_job(folder, 12, partial(deadly, at=(0, 3, 4, 11), objective=objective), spec)
    pruned = {trial.number for trial in straight.frozen() if trial.state == TrialState.PRUNED}
    assert rerun(job) == 1 + len({0, 3, 4, 11} - pruned)
    killed = toy_book(folder, 12, spec)
    assert outcomes(killed) == outcomes(straight)
    assert bool(pruned) == (pruner != "none")
    assert len({json.dumps(point) for point in points(killed)}) == 12  # every trial has its own point


def test_a_trial_that_kills_its_worker_each_time_is_given_up(tmp_path):
    folder = tmp_path / "toy"
    book = toy_book(folder, 3)
    assert rerun(toy_job(folder, 3, partial(deadly, at=(1,), times=9))) == 5
    assert [t.user_attrs.get("error") for t in book.frozen()] == [None, "its worker died 5 times", None]
    assert book.counts() == {"finished": 2, "pruned": 0, "failed": 1, "running": 0, "waiting": 0}
    assert book.requeue_failed() == [1]  # another try
    assert rerun(toy_job(folder, 3, partial(deadly, at=(1,), times=6))) == 1
    assert (book.counts()["failed"], book.frozen()[1].user_attrs["deaths"]) == (1, 6)
    with pytest.raises(AssertionError):
        rerun(toy_job(tmp_path / "zero", 3, partial(deadly, at=(0,), times=9)))  # the last worker fails, unkilled
    assert toy_book(tmp_path / "zero", 3).requeue_failed() == [0]


def kill_within_a_trial(processes: list[Any], folder: Path) -> int:
    """Kill (-9) one process while it computes, drop it from the list, and return the trial that was hit."""

    def begun_trials() -> list[tuple[int, int]]:
        """Return the number of each trial that has begun and not ended, and the process that computes it."""
        trials = []
        for path in folder.glob("working-*"):
            number = int(path.name.removeprefix("working-"))
            if not (folder / f"ended-{number}").exists():
                trials.append((number, int(path.read_text() or 0)))
        return trials

    alive = {process.pid: process for process in processes}

    def working_process() -> int | None:
        return next((pid for _, pid in begun_trials() if pid in alive), None)

    until(lambda: working_process() is not None)
    pid = working_process()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    alive[pid].join()
    processes.remove(alive[pid])
    return max((number for number, owner in begun_trials() if owner == pid), default=-1)


@pytest.mark.slow
def test_workers_of_a_journal_of_which_one_is_killed(tmp_path):
    """With a random sampler, whose points do not depend on other trials, they try the points of one worker."""
    folder = tmp_path / "toy"
    spec = toy_spec("random")
    book = toy_book(folder, 9, spec)
    workers = start([toy_job(folder, 9, partial(slow, together=3), spec)] * 3)
    hit = {kill_within_a_trial(workers, folder)}
    for number, worker in enumerate(workers):
        worker.join()
        assert worker.exitcode == 0, f"worker {number}"
    assert book.counts() == {"finished": 9, "pruned": 0, "failed": 0, "running": 0, "waiting": 0}
    assert len({json.dumps(point, sort_keys=True) for point in points(book)}) == 9
    died = {trial.number for trial in book.frozen() if "deaths" in trial.user_attrs}
    assert died >= hit - {-1}  # -1: it was hit between two trials
    assert points(book) == points(finish_study(tmp_path / "straight", 9, spec))


def test_reading_opens_no_storage_that_the_reader_did_not_name(tmp_path, subtests):
    """A received study.json may name any database or file; only the journal beside it is read."""
    folder = tmp_path / "toy"
    elsewhere = tmp_path / "elsewhere"
    finish_study(folder, 2)
    study_file = json.loads((folder / "study.json").read_text())
    for storage in (f"sqlite:///{elsewhere}", str(elsewhere), "postgresql://localhost:1/x"):
        with subtests.test(storage=storage):
            write_json(folder / "study.json", {**study_file, "storage": storage})
            with pytest.raises(RunError, match="which is opened only if you name it"):
                open_book(tmp_path, "toy")
            assert not elsewhere.exists()
    url = f"sqlite:///{elsewhere}"
    write_json(folder / "study.json", {**study_file, "storage": url})
    with pytest.raises(RunError, match="has no study 'toy'"):
        open_book(tmp_path, "toy", url)
    assert optuna.get_all_study_names(url) == []
    write_json(folder / "study.json", study_file)
    assert len(open_book(tmp_path, "toy").frozen()) == 2
    (folder / "optuna.journal").unlink()
    with pytest.raises(RunError, match=r"has no trials: .* is missing"):
        open_book(tmp_path, "toy")


# --- samplers and pruners --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [name for name in get_args(Sampler) if name != "grid"])
def test_the_documented_trial_is_the_first_that_the_model_draws(sampler, tmp_path, subtests):
    """Against the points of the random sampler, also where the pruner leaves fewer finished trials than ten."""
    for pruner in ("none", "median", "hyperband"):
        with subtests.test(pruner=pruner):
            book = draw_points(tmp_path / pruner, sampler, pruner)
            at_random = points(draw_points(tmp_path / pruner, "random", pruner))
            by_model = [number for number, point in enumerate(points(book)) if point != at_random[number]]
            assert by_model == ([10, 11, 12] if sampler in ("tpe", "gp", "cmaes") else [])
            finished = [trial for trial in book.frozen()[:10] if trial.state == TrialState.COMPLETE]
            assert (len(finished) < 10) == (pruner != "none")


def draw_points(folder: Path, sampler: Any, pruner: str) -> StudyStore:
    """Return a finished study of 13 trials in a folder named for the sampler."""
    base = {**BASE.model_dump(), "train": {"epochs": 4}}
    spec = toy_spec(sampler, pruner=pruner, base=base, space=SPACE)
    return finish_study(folder / sampler, 13, spec, in_steps)


@pytest.mark.parametrize("pruner", ["none", "median", "hyperband"])
def test_a_grid_has_no_pruner(pruner):
    assert StudySpec.of(BASE, GRID, sampler="grid", pruner=pruner).pruner == "none"


# --- storages of others ------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return the journal of a finished study, `s`."""
    book = StudyStore(tmp_path / "s", toy_spec(), trials=2)
    book.work(at_once, lambda line: None)
    return tmp_path / "s" / "optuna.journal"


def _insert(journal: Path, line: Any) -> None:
    """Write a line before the one that ends trial 1, after which Optuna ignores what is noted about it."""
    lines = journal.read_text(encoding="utf-8").splitlines()
    ends = [index for index, text in enumerate(lines) if '"op_code":6' in text and '"trial_id":1' in text]
    lines.insert(ends[-1], json.dumps(line))
    journal.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _note(name: str, value: Any) -> dict[str, Any]:
    """Return a line of a journal that notes something about trial 1."""
    return {"op_code": 8, "worker_id": "x", "trial_id": 1, "user_attr": {name: value}}


STRANGE: dict[str, tuple[Any, str]] = {
    "a number": (5, "cannot be opened"),
    "another operation": ({"op_code": 99}, "cannot be opened"),
    "runs elsewhere": (_note("runs", ["../../x"]), r"trial 1 .* is damaged \(runs.0 "),
    "runs that are a number": (_note("runs", 5), r"trial 1 .* is damaged \(runs "),
    "seconds that are a text": (_note("seconds", "long"), r"trial 1 .* is damaged \(seconds "),
    "deaths that are a list": (_note("deaths", []), r"trial 1 .* is damaged \(deaths "),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_line_of_a_strange_journal_is_an_error_of_one_line(journal, case):
    line, text = STRANGE[case]
    _insert(journal, line)
    with pytest.raises(NegbenchError, match=text) as caught:
        open_book(journal.parents[1], "s").frozen()
    assert "\n" not in str(caught.value)


def test_notes_of_a_strange_journal_hold_no_control_characters(journal):
    _insert(journal, _note("error", "\x1b[31mred"))
    assert open_book(journal.parents[1], "s").frozen()[1].user_attrs["error"] == " [31mred"


def _swap(journal: Path, kind: str) -> None:
    """Put something else where the journal was."""
    journal.unlink()
    if kind == "FIFO":
        os.mkfifo(journal)
    elif kind == "device":
        journal.symlink_to("/dev/zero")
    else:
        (journal.parents[2] / "outside").write_text("", encoding="utf-8")
        journal.symlink_to(journal.parents[2] / "outside")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("FIFO", "named pipe"), ("device", "leads out of"), ("link out of the runs folder", "leads out of")],
)
def test_a_journal_is_a_regular_file_of_its_folder(tmp_path, kind, text):
    runs = tmp_path / "runs"
    StudyStore(runs / "s", toy_spec(), trials=1).work(at_once, lambda line: None)
    _swap(runs / "s" / "optuna.journal", kind)
    with pytest.raises(NegbenchError, match=text):
        StudyStore(runs / "s", toy_spec(), trials=2)


def test_a_journal_that_fills_the_memory_is_not_read(journal, monkeypatch):
    with journal.open("a", encoding="utf-8") as file:
        file.write(f"[{','.join(['[]'] * 400_000)}]\n")
    monkeypatch.setattr(received, "free_memory", lambda: 2**25)
    with pytest.raises(NegbenchError, match="more than half of the 32 MiB"):
        open_book(journal.parents[1], "s")


@pytest.mark.parametrize(("content", "text"), [(None, "named pipe"), (b"x" * 200, "is no SQLite database")])
def test_a_database_is_a_regular_file_of_sqlite(tmp_path, content, text):
    path = tmp_path / "o.db"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(NegbenchError, match=text):
        StudyStore(tmp_path / "s", toy_spec(), f"sqlite:///{path}", trials=1)
