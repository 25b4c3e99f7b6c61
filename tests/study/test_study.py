"""Studies: what is searched, claims and rescues in every storage, trials on the dev part only, their MLflow copies."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.tracking import MlflowClient
from optuna.trial import TrialState

from negbench import scene as scene
from negbench.cli.main import run as negbench
from negbench.cli.study import read_plan
from negbench.config import RunConfig, load_config, resolved
from negbench.contracts import Strategy, tunable
from negbench.errors import NegbenchError, OptionError, RunError
from negbench.loop import train as engine
from negbench.report.page import write_page
from negbench.report.study import interpolated, study_page
from negbench.study import space as spaces
from negbench.study.book import Book, Claim, StudySpec, storage_url
from negbench.study.final import finished, front, table
from negbench.study.importance import importance
from negbench.study.leases import FolderLeases, is_gone, this_process
from negbench.study.space import Knob, Space, build_space
from negbench.study.trials import Tracking, first_refresh, make_spec
from negbench.study.work import Job, open_study, run_study, serve, work
from negbench.tracking import Pruned, default_uri

# --- the space -----------------------------------------------------------------------------------------------------


def base_of(strategy: str, *sets: str) -> RunConfig:
    return load_config(flags={"strategy": {"name": strategy}}, sets=sets)


def knobs_of(space: Space) -> dict[str, Any]:
    return {knob.key: knob.choices or (knob.low, knob.high, knob.log) for knob in space.knobs}


SCHEDULE = {
    "schedule.n_def": (2, 3, 4, 6, 12),
    "schedule.warmup": (1, 4, False),
    "train.num_negatives": (1, 5, False),
}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("dqe", {"strategy.alpha": (0.0, 0.4, False), "strategy.beta-alpha": (0.1, 1.0, False), **SCHEDULE}),
        ("qure", {"strategy.variant": ("paper", "release"), **SCHEDULE}),
        ("cirqrs", {"strategy.n_neg": (10, 500, True), **SCHEDULE, "schedule.n_def": (2, 3, 4, 5, 12)}),
        ("top-k", {"strategy.k": (10, 1000, True), **SCHEDULE}),
        ("all-corpus", {"train.num_negatives": (1, 5, False)}),
    ],
)
def test_the_space_of_a_strategy(strategy: str, expected: dict[str, Any]) -> None:
    space = build_space(base_of(strategy))
    assert knobs_of(space) == expected


@pytest.mark.parametrize("strategy", ["dqe", "qure", "cirqrs", "top-k", "after-target", "all-corpus"])
@pytest.mark.parametrize("epochs", [2, 4, 7, 12, 30, 50])
def test_trial_0_is_the_default(strategy: str, epochs: int) -> None:
    base = base_of(strategy, f"train.epochs={epochs}")
    space = build_space(base)
    assert resolved(space.config(base, space.default, 0, closed=False)) == resolved(base)


def test_every_number_of_definitions_gives_another_schedule() -> None:
    for epochs in (4, 7, 12, 30, 50):
        base = base_of("qure", f"train.epochs={epochs}")
        choices = knobs_of(build_space(base))["schedule.n_def"]
        listed = [tuple(resolved(base_of("qure", f"train.epochs={epochs}", f"schedule.n_def={n}")).schedule
                        .refresh_epochs) for n in choices]  # fmt: skip
        assert len(set(listed)) == len(choices)
        assert 6 in choices


def test_a_band_is_what_the_strategy_declares() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Free(Strategy):
        low: float = tunable(0.2, low=0.0, high=0.4)
        high: float = tunable(0.8, low=0.5, high=1.0)

        def pool(self, view: Any) -> Any: ...

    class Bound(Free):
        band = ("low", "high")

    assert spaces.band_of(Free, {"low": 0.2, "high": 0.8}) is None
    assert spaces.band_of(Bound, {"low": 0.2, "high": 0.8}) == spaces.Band("low", "high", 1.0)
    assert spaces.band_of(Bound, {"low": 0.2, "high": 1.5}) == spaces.Band("low", "high", 1.5)


def test_start_and_width_become_the_band() -> None:
    base = base_of("dqe")
    space = build_space(base)

    def band(start: float, width: float) -> tuple[float, float]:
        options = space.config(base, {"strategy.alpha": start, "strategy.beta-alpha": width}, 0).strategy.options
        return options["alpha"], options["beta"]

    assert band(0.1, 0.3) == (0.1, 0.4)
    assert band(0.4, 0.9) == (0.4, 1.0)  # cut where the field's own range ends
    fixed = base_of("dqe", "strategy.alpha=0.3")
    narrow = build_space(fixed, fix=["strategy.alpha"])
    assert "strategy.alpha" not in knobs_of(narrow)
    assert narrow.config(fixed, {"strategy.beta-alpha": 0.25}, 0).strategy.options["beta"] == 0.55
    assert set(knobs_of(build_space(base, fix=["strategy.beta"]))) == {"strategy.alpha", *SCHEDULE}


def test_ranges_from_the_command_line() -> None:
    space = build_space(
        base_of("dqe"),
        search=["strategy.alpha=0:0.5", "schedule.warmup=1/12|1/6", "train.lr=1e-4:1e-2:log"],
        fix=["schedule.n_def"],
    )
    found = knobs_of(space)
    assert found["strategy.alpha"] == (0.0, 0.5, False)
    assert found["schedule.warmup"] == (1, 2)
    assert found["train.lr"] == (1e-4, 1e-2, True)
    assert "schedule.n_def" not in found
    assert isinstance(space.knobs[0].low, float)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("strategy.beta=0.5:1", "is searched as its distance from strategy.alpha"),
        ("strategy.alhpa=0:1", "did you mean 'strategy.alpha'"),
        ("strategy.alpha=0.5", "want KEY=low:high"),
        ("strategy.alpha=0.4:0.1", "want low < high"),
        ("train.lr=0:1:log", "low > 0 on a log scale"),
        ("train.num_negatives=1.5:3.5", "want whole numbers"),
        ("strategy.scale=absolute:minmax", "a range needs two numbers"),
        ("train.num_negatives=1|1", "names a value twice"),
        ("train.epochs=2:12", "cannot be searched"),
        ("eval.every=1:3", "cannot be searched"),
        ("seed=1:3", "cannot be searched"),
        ("dataset.name=a|b", "cannot be searched"),
        ("strategy.alpha=-0.5:0.3", "alpha must be >= 0 and below beta"),
    ],
)
def test_ranges_that_cannot_be(search: str, message: str) -> None:
    with pytest.raises(NegbenchError, match=message) as error:
        build_space(base_of("dqe"), search=[search])
    assert "\n" not in str(error.value)


def test_at_most_five_knobs_unless_forced() -> None:
    with pytest.raises(OptionError, match=r"6 knobs .* are more than 5"):
        build_space(base_of("dqe"), search=["train.lr=1e-4:1e-2:log"])
    assert len(build_space(base_of("dqe"), search=["train.lr=1e-4:1e-2:log"], force=True).knobs) == 6
    with pytest.raises(OptionError, match="has nothing left to tune"):
        build_space(base_of("in-batch"))


def test_a_range_without_the_default_starts_at_its_nearest_end() -> None:
    space = build_space(base_of("dqe"), search=["strategy.alpha=0.3:0.4"])
    assert space.default["strategy.alpha"] == 0.3


def test_a_grid_lists_every_combination_once_and_the_default_first() -> None:
    base = base_of("qure")
    space = build_space(base, search=["train.num_negatives=1|3"], fix=["schedule.n_def", "schedule.warmup"], grid=True)
    assert space.points[0] == {"strategy.variant": "paper", "train.num_negatives": 1}
    assert len(space.points) == 4
    assert len({json.dumps(point) for point in space.points}) == 4
    with pytest.raises(OptionError, match=r"a grid needs listed values for strategy\.alpha"):
        build_space(base_of("dqe"), grid=True)


def spec_of(base: RunConfig, **changed: Any) -> StudySpec:
    options = {"seeds": 1, "minimise": None, "sampler": "tpe", "pruner": "median"}
    space = changed.pop("space", None) or build_space(base)
    return make_spec(base, space, **{**options, **changed})


def test_a_spec_survives_json() -> None:
    points = [{"strategy.alpha": a, "strategy.beta": 1 - a} for a in (0.2, 0.3)]
    for spec in (spec_of(base_of("dqe")), spec_of(base_of("dqe"), space=build_space(base_of("dqe"), points=points))):
        assert StudySpec.load(json.loads(json.dumps(spec.dump()))) == spec


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampler": "tpo"}, "did you mean 'tpe'"),
        ({"pruner": "mean"}, "did you mean 'median'"),
        ({"minimise": "seconds"}, "did you mean 'mining-seconds'"),
        ({"minimise": "mining-seconds", "sampler": "cmaes"}, "knows one objective only"),
    ],
)
def test_specs_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(NegbenchError, match=message):
        spec_of(base_of("dqe"), **changed)


# --- storage, with an objective of a moment --------------------------------------------------------------------------


def toy_space() -> Space:
    return Space((Knob("strategy.alpha", 0.2, 0.0, 0.4), Knob("train.num_negatives", 1, 1, 5)))


def toy_spec(**changed: Any) -> StudySpec:
    return dataclasses.replace(spec_of(base_of("dqe"), space=toy_space()), **changed)


def toy_value(point: dict[str, Any]) -> float:
    return 0.5 - (float(point["strategy.alpha"]) - 0.1) ** 2 + 0.01 * float(point["train.num_negatives"])


def at_once(claim: Claim) -> Sequence[float]:
    return [toy_value(claim.point)]


@dataclasses.dataclass(frozen=True)
class Slowly:
    """Waits, so that a kill finds a worker within a trial; tells who computes what."""

    folder: Path
    seconds: float

    def __call__(self, claim: Claim) -> Sequence[float]:
        (self.folder / f"working-{claim.number}").write_text(str(os.getpid()))
        time.sleep(self.seconds)
        (self.folder / f"ended-{claim.number}").write_text(str(os.getpid()))
        return [toy_value(claim.point)]


def slow(job: Job, *, together: int = 1, seconds: float = 0.2) -> Callable[[Claim], Sequence[float]]:
    """Opens when so many workers are there, so that none has done all before another one starts."""
    (job.folder / f"here-{os.getpid()}").touch()
    until(lambda: len(list(job.folder.glob("here-*"))) >= together)
    return Slowly(job.folder, seconds)


def silent(text: str) -> None:
    pass


def toy_book(folder: Path, trials: int = 10, spec: StudySpec | None = None, **options: Any) -> Book:
    return Book(folder, "toy", spec or toy_spec(), storage_url(folder, None), trials, **options)


def toy_job(folder: Path, url: str, trials: int, opens: Any) -> Job:
    return Job(folder, "toy", toy_spec(), url, trials, Tracking(folder, "none", "toy", None), opens)


def test_trial_0_is_computed_first_and_the_number_is_kept(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 12)
    assert work(book, at_once, silent) == 12
    first = book.frozen()[0]
    assert first.params == {"strategy.alpha": 0.2, "train.num_negatives": 1}
    assert book.counts()["finished"] == 12
    assert work(toy_book(tmp_path, 12), at_once, silent) == 0
    assert work(toy_book(tmp_path, 15), at_once, silent) == 3  # a higher number goes on
    assert finished(book)[0].values[0] == max(toy_value(t.params) for t in book.frozen())


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_one_worker_and_one_seed_give_the_same_trials_twice(tmp_path: Path, sampler: str) -> None:
    found = []
    for name in ("a", "b"):
        book = toy_book(tmp_path / name, 16, toy_spec(sampler=sampler))
        work(book, at_once, silent)
        found.append([t.params for t in book.frozen()])
    assert found[0] == found[1]
    other = toy_book(tmp_path / "c", 16, toy_spec(sampler=sampler, seed=7))
    work(other, at_once, silent)
    assert [t.params for t in other.frozen()][1:] != found[0][1:]


def test_a_study_that_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    straight = toy_book(tmp_path / "straight", 16)
    work(straight, at_once, silent)
    work(toy_book(tmp_path / "halves", 7), at_once, silent)
    halves = toy_book(tmp_path / "halves", 16)
    work(halves, at_once, silent)
    assert [t.params for t in halves.frozen()] == [t.params for t in straight.frozen()]


def test_ranges_are_the_same_in_every_trial(tmp_path: Path) -> None:
    base = base_of("dqe")
    book = toy_book(tmp_path, 25, spec_of(base))
    work(book, lambda claim: [sum(float(v) for v in claim.point.values())], silent)
    assert len({json.dumps({k: str(d) for k, d in t.distributions.items()}) for t in book.frozen()}) == 1
    for trial in book.frozen():
        options = resolved(book.spec.space.config(base, trial.params, 0)).strategy.options
        assert 0 <= options["alpha"] < options["beta"] <= 1


def test_a_study_keeps_its_settings(tmp_path: Path) -> None:
    toy_book(tmp_path)
    with pytest.raises(RunError, match="was started with another sampler, seed, and its trials"):
        toy_book(tmp_path, spec=toy_spec(sampler="random", seed=3))
    base = {**toy_spec().base, "compute": {"device": "cpu", "threads": 4}}
    toy_book(tmp_path, spec=toy_spec(base=base))  # another machine may compute in its own way
    with pytest.raises(RunError, match="there is no study 'other'"):
        Book(tmp_path, "other", None, storage_url(tmp_path, None))


def test_sqlite_is_refused_for_several_workers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    with pytest.raises(OptionError, match="its one lock on the whole file makes them fail"):
        storage_url(tmp_path, url, workers=2)
    book = Book(tmp_path, "toy", toy_spec(), storage_url(tmp_path, url, workers=1), 4)
    assert work(book, at_once, silent) == 4
    for given in ("mysql://a/b", "file.db"):
        with pytest.raises(OptionError, match="want postgresql://"):
            storage_url(tmp_path, given)
    assert storage_url(tmp_path, "postgresql://u:p@h/d") == "postgresql+psycopg://u:p@h/d"


def test_a_failing_trial_counts_and_is_not_queued_again(tmp_path: Path) -> None:
    def objective(claim: Claim) -> Sequence[float]:
        if claim.number in (2, 3):
            raise ValueError("odd") if claim.number == 2 else NegbenchError("mend this")
        return at_once(claim)

    said: list[str] = []
    book = toy_book(tmp_path, 6)
    work(book, objective, said.append)
    assert book.counts() == {"finished": 4, "pruned": 0, "failed": 2, "lost": 0, "running": 0, "waiting": 0}
    assert [t.user_attrs["error"] for t in book.frozen() if t.state == TrialState.FAIL] == [
        "ValueError: odd",
        "mend this",
    ]
    assert any(text.startswith("trial 3: FAILED: mend this") for text in said)


def test_a_default_that_fails_stops_the_study(tmp_path: Path) -> None:
    def objective(claim: Claim) -> Sequence[float]:
        raise NegbenchError("mend this")

    with pytest.raises(NegbenchError, match="trial 0, the default, failed: mend this"):
        work(toy_book(tmp_path), objective, silent)


def test_an_interrupted_trial_is_queued_again(tmp_path: Path) -> None:
    def objective(claim: Claim) -> Sequence[float]:
        if claim.number == 3:
            raise KeyboardInterrupt
        return at_once(claim)

    book = toy_book(tmp_path, 6)
    with pytest.raises(KeyboardInterrupt):
        work(book, objective, silent)
    assert book.counts()["lost"] == 1
    work(book, at_once, silent)
    assert book.counts() == {"finished": 6, "pruned": 0, "failed": 0, "lost": 1, "running": 0, "waiting": 0}
    assert book.frozen()[4].user_attrs["retry_of"] == 3
    assert book.frozen()[4].params == book.frozen()[3].params


def test_a_trial_that_kills_its_worker_each_time_is_given_up(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 3)
    died = []
    while True:
        claim = book.claim()
        if claim is None:
            break
        assert isinstance(claim, Claim)
        if claim.number == 0 or claim.point != died[0] if died else claim.number == 0:
            book.finish(claim, at_once(claim))
            continue
        died.append(claim.point)
        book.leases.drop(claim.number)  # as if this process were gone
    assert len(died) == 5
    assert book.counts() == {"finished": 2, "pruned": 0, "failed": 1, "lost": 4, "running": 0, "waiting": 0}


def test_a_lease_that_is_not_renewed_runs_out(tmp_path: Path) -> None:
    leases = FolderLeases(tmp_path, grace=0.2)
    leases.write(3)
    assert not leases.dead(3)
    assert leases.dead(4)  # none was ever taken
    held = json.loads((tmp_path / "leases" / "3.json").read_text())
    (tmp_path / "leases" / "3.json").write_text(json.dumps({**held, "host": "elsewhere"}))
    assert not leases.dead(3)  # nobody here can know more than its age
    time.sleep(0.3)
    assert leases.dead(3)
    leases.write(3)
    assert not leases.dead(3)


def test_a_process_is_known_to_be_gone() -> None:
    assert not is_gone(this_process())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = {**this_process(), "pid": child.pid}
    assert is_gone(known)  # another process with a pid that was once a worker's
    assert not is_gone({**known, "host": "elsewhere"})
    child.kill()
    time.sleep(0.1)
    assert is_gone({**this_process(), "pid": child.pid})  # dead, and not waited for
    child.wait()


def test_leases_are_renewed_while_a_trial_is_computed(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 1, beat=0.05, grace=0.3)
    claim = book.claim()
    assert isinstance(claim, Claim)
    path = tmp_path / "leases" / f"{claim.number}.json"
    before = path.stat().st_mtime_ns
    with book.computing(claim):
        time.sleep(0.5)
        assert path.stat().st_mtime_ns > before
        assert not book.leases.dead(claim.number)
        assert toy_book(tmp_path, 1).claim() == "wait"
    book.finish(claim, [0.5])
    assert not path.exists()


def test_a_worker_that_comes_back_too_late_is_told_so(tmp_path: Path) -> None:
    book, said = toy_book(tmp_path, 2), list[str]()

    def objective(claim: Claim) -> Sequence[float]:
        if claim.number == 1:
            book.leases.drop(1)
            other = toy_book(tmp_path, 2)
            taken = other.claim()
            assert isinstance(taken, Claim)
            assert taken.number == 2
            other.finish(taken, at_once(taken))
        return at_once(claim)

    work(book, objective, said.append)
    assert [t.state.name for t in book.frozen()] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "taken by another worker" in said[1]


def test_a_torn_line_of_the_journal_is_cut_off(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 5)
    work(book, at_once, silent)
    journal = tmp_path / "optuna.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"wor')
    again = toy_book(tmp_path, 8)
    assert work(again, at_once, silent) == 3
    assert work(toy_book(tmp_path, 9), at_once, silent) == 1
    assert journal.read_bytes().startswith(whole)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def serve_toy(job: Job) -> None:
    serve(job, silent)


def start(jobs: Sequence[Job]) -> list[Any]:
    """Worker processes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=serve_toy, args=(job,), daemon=True) for job in jobs]
    for process in processes:
        process.start()
    return processes


def kill_within_a_trial(processes: list[Any], folder: Path) -> int:
    """kill -9 for one of the processes while it computes, and out of the list with it; the trial that it hits."""

    def at_work() -> list[tuple[int, int]]:
        found = [(int(path.name.partition("-")[2]), int(path.read_text() or 0)) for path in folder.glob("working-*")]
        return [(number, pid) for number, pid in found if not (folder / f"ended-{number}").exists()]

    alive = {process.pid: process for process in processes}
    until(lambda: any(pid in alive for _, pid in at_work()))
    pid = next(pid for _, pid in at_work() if pid in alive)
    os.kill(pid, signal.SIGKILL)
    alive[pid].join()
    processes.remove(alive[pid])
    return max((number for number, owner in at_work() if owner == pid), default=-1)


def none_lost_none_twice(book: Book, trials: int, hit: set[int]) -> None:
    counts = book.counts()
    assert (counts["finished"], counts["running"], counts["waiting"], counts["failed"]) == (trials, 0, 0, 0)
    frozen = book.frozen()
    lost = [t.number for t in frozen if t.state == TrialState.FAIL]
    assert hit - {-1} <= set(lost)  # -1: it was hit between two trials
    again = [t.user_attrs["retry_of"] for t in frozen if "retry_of" in t.user_attrs]
    assert sorted(again) == lost  # each once
    for trial in frozen:
        if "retry_of" in trial.user_attrs:
            lost_point = frozen[trial.user_attrs["retry_of"]].params  # not all of it, if hit while it was sampled
            assert lost_point.items() <= trial.params.items()
    points = [json.dumps(t.params, sort_keys=True) for t in frozen if t.state == TrialState.COMPLETE]
    assert len(set(points)) == len(points)


@pytest.mark.slow
def test_dead_workers_of_a_journal(tmp_path: Path) -> None:
    url = storage_url(tmp_path, None)
    book = toy_book(tmp_path, 16)
    workers = start([toy_job(tmp_path, url, 16, partial(slow, together=3))] * 3)
    hit = {kill_within_a_trial(workers, tmp_path)}
    for worker in workers:
        worker.join()
    none_lost_none_twice(book, 16, hit)


@pytest.mark.slow
def test_kill_of_everything_and_the_same_again(tmp_path: Path) -> None:
    url = storage_url(tmp_path, None)
    work(toy_book(tmp_path, 5), at_once, silent)
    hit = {kill_within_a_trial(start([toy_job(tmp_path, url, 12, partial(slow, seconds=30.0))]), tmp_path)}
    assert hit == {5}
    book = toy_book(tmp_path, 12)
    work(book, at_once, silent)
    none_lost_none_twice(book, 12, hit)


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """URL of a private server, started for these tests and stopped after them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    programs = found[-1].parent if found else None
    if programs is None:
        pytest.skip("no PostgreSQL server program (`make system` installs it)")
    if os.getuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    home = Path(tempfile.mkdtemp(prefix="negbench-postgresql-"))  # pytest's folders are closed to other users
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    prefix = ["runuser", "-u", user, "--"] if os.getuid() == 0 else []
    if os.getuid() == 0:
        shutil.chown(home, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [*prefix, str(programs / program), *arguments], cwd=home, check=True, stdout=subprocess.DEVNULL, timeout=60
        )

    call("initdb", "-D", str(home / "data"), "-U", "negbench", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c fsync=off"
    call("pg_ctl", "-D", str(home / "data"), "-l", str(home / "log"), "-w", "-o", options, "start")
    try:
        yield f"postgresql://negbench@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-D", str(home / "data"), "-m", "immediate", "stop")
        shutil.rmtree(home)


@pytest.mark.postgresql
@pytest.mark.slow
def test_four_workers_on_postgresql_two_of_them_killed(postgresql: str, tmp_path: Path) -> None:
    url = storage_url(tmp_path, postgresql, workers=4)
    workers = start([toy_job(tmp_path, url, 40, partial(slow, together=4))] * 4)  # at once, on an empty database
    until(lambda: len(list(tmp_path.glob("ended-*"))) >= 8)
    assert len({path.read_text() for path in tmp_path.glob("working-*")}) >= 3
    hit = {kill_within_a_trial(workers, tmp_path), kill_within_a_trial(workers, tmp_path)}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    none_lost_none_twice(Book(tmp_path, "toy", None, url, 40), 40, hit)


@pytest.mark.postgresql
def test_leases_in_a_database_run_out_by_its_clock(postgresql: str, tmp_path: Path) -> None:
    url = storage_url(tmp_path, postgresql)
    book = Book(tmp_path, "leases", toy_spec(), url, 3, grace=0.3)
    claim = book.claim()
    assert isinstance(claim, Claim)
    assert not book.leases.dead(claim.number)
    stored = book._storage.get_trial(claim.trial._trial_id).user_attrs["lease"]
    book._storage.set_trial_user_attr(claim.trial._trial_id, "lease", {**stored, "host": "elsewhere"})
    assert not book.leases.dead(claim.number)
    time.sleep(0.4)
    assert book.leases.dead(claim.number)
    assert (tmp_path / "study.json").read_text().count("postgresql+psycopg") == 1


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be opened") as error:
        Book(tmp_path, "toy", toy_spec(), storage_url(tmp_path, "postgresql://u:secret@127.0.0.1:9/d"), 3)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


# --- trials of the engine --------------------------------------------------------------------------------------------


DEV = ("eval.dev_fraction=0.3",)


def toy_study(
    toy_sets: list[str], runs: Path, *, trials: int = 3, strategy: str = "dqe", uri: str = "none", **changed: Any
) -> Book:
    base = base_of(strategy, *toy_sets, *DEV)
    spec = spec_of(base, **changed)
    book, job = open_study(runs, "s", spec, trials=trials, storage=None, workers=1, tracking_uri=uri)
    run_study(job, 1, silent)
    return book


def test_the_reported_split_is_never_touched(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = scene.load_split

    def watched(config: Any, split: str, **options: Any) -> Any:
        asked.append(split)
        return real(config, split, **options)

    monkeypatch.setattr(scene, "load_split", watched)
    book = toy_study(toy_sets, tmp_path, trials=2)
    assert asked == ["train"]  # once for all trials, and nothing else
    (run,) = book.frozen()[0].user_attrs["runs"]
    folder = engine.RunFolder(tmp_path / "s" / "cells" / run)
    assert not [name for point in folder.metrics() for name in point if name.startswith("val/")]
    assert folder.manifest["dataset"]["scored"] == "dev"
    train = {q.id for q in real(folder.config.dataset, "train", images=False).queries}
    assert set(folder.ranks()["query"]) < train


def test_all_trials_and_seeds_share_the_dev_part(toy_sets: list[str], tmp_path: Path) -> None:
    book = toy_study(toy_sets, tmp_path, trials=2, seeds=2, pruner="none")
    runs = [engine.RunFolder(tmp_path / "s" / "cells" / r) for t in book.frozen() for r in t.user_attrs["runs"]]
    assert len(runs) == 4
    assert len({tuple(run.ranks()["query"]) for run in runs}) == 1
    for trial in book.frozen():
        values = [
            engine.RunFolder(tmp_path / "s" / "cells" / r).result["metrics"]["average/recall"]
            for r in trial.user_attrs["runs"]
        ]
        assert trial.values == pytest.approx([np.mean(values)])
    assert sorted({run.config.seed for run in runs}) == [0, 1]


def test_images_are_encoded_once(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    prepared: list[int] = []
    real = scene.prepare

    def watched(*arguments: Any) -> Any:
        found = real(*arguments)
        prepared.append(found.encoded)
        return found

    monkeypatch.setattr(engine, "prepare", watched)
    toy_study(toy_sets, tmp_path / "runs", trials=3)
    assert len(prepared) == 1
    assert prepared[0] == 3 * 32


def test_the_same_study_twice_gives_the_same_values(toy_sets: list[str], tmp_path: Path) -> None:
    found = [toy_study(toy_sets, tmp_path / name, trials=4).frozen() for name in ("a", "b")]
    assert [t.params for t in found[0]] == [t.params for t in found[1]]
    assert [t.values for t in found[0]] == [t.values for t in found[1]]
    assert [t.intermediate_values for t in found[0]] == [t.intermediate_values for t in found[1]]


def test_trials_keep_no_weights(toy_sets: list[str], tmp_path: Path) -> None:
    toy_study(toy_sets, tmp_path, trials=2)
    assert list((tmp_path / "s" / "cells").glob("*/result.json"))
    assert not list((tmp_path / "s" / "cells").glob("*/model.safetensors"))


def test_nothing_is_pruned_before_its_first_refresh(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    asked: list[tuple[int, int]] = []

    def always(self: Any) -> bool:
        trial = self._get_latest_trial()
        asked.append((trial.number, trial.last_step))
        return trial.number > 0

    monkeypatch.setattr(optuna.trial.Trial, "should_prune", always)
    book = toy_study([*toy_sets, "train.epochs=6"], tmp_path, trials=6)
    base = RunConfig.model_validate(book.spec.base)
    firsts = {t.number: first_refresh(book.spec.space.config(base, t.params, 0)) for t in book.frozen()}
    assert len(set(firsts.values())) > 1
    for number, step in asked:
        assert step >= firsts[number]
    for trial in book.frozen()[1:]:
        assert trial.state == TrialState.PRUNED
        assert trial.last_step == firsts[trial.number]  # stopped within the epoch that condemned it
    assert book.spec.first_refresh <= min(firsts.values())


def test_a_killed_trial_goes_on_from_its_checkpoint(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = toy_study(toy_sets, tmp_path / "straight", trials=1)
    real, epochs = engine._train_epoch, []

    def interrupted(*arguments: Any) -> None:
        epochs.append(1)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(engine, "_train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy_study(toy_sets, tmp_path / "halves", trials=1)
    book = toy_study(toy_sets, tmp_path / "halves", trials=1)
    assert len(epochs) == 3 + 2
    (lost, again) = book.frozen()
    assert lost.state == TrialState.FAIL
    assert again.values == straight.frozen()[0].values
    assert again.intermediate_values == straight.frozen()[0].intermediate_values


def test_two_objectives_give_a_front_and_prune_nothing(toy_sets: list[str], tmp_path: Path) -> None:
    book = toy_study(toy_sets, tmp_path, trials=5, minimise="false-negative-rate")
    assert book.counts()["finished"] == 5
    best = front(book)
    values = [t.values for t in book.frozen()]
    for trial in book.frozen():
        beaten = any(v[0] >= trial.values[0] and v[1] <= trial.values[1] and v != trial.values for v in values)
        assert (trial.number in {t.number for t in best}) == (not beaten)
    assert {t.number for t in best} == {t.number for t in book.study.best_trials}  # optuna's own
    for trial in book.frozen():
        (run,) = trial.user_attrs["runs"]
        details = engine.RunFolder(tmp_path / "s" / "cells" / run).result
        assert trial.values[1] == details["behaviour"]["false_negative_rate_draws"]


def test_listed_points_are_tested_against_the_default(toy_sets: list[str], tmp_path: Path) -> None:
    base = base_of("dqe", *toy_sets, *DEV)
    points = [{"strategy.alpha": a, "strategy.beta": b} for a, b in ((0.3, 0.7), (0.2, 0.8), (0.0, 0.3))]
    space = build_space(base, points=points)
    book = toy_study(toy_sets, tmp_path, trials=3, seeds=2, space=space)
    assert [t.params["strategy.alpha"] for t in book.frozen()] == [0.2, 0.3, 0.0]  # the default first
    rows = table(book)
    assert [row.test is None for row in rows] == [True, False, False]
    for row in rows:
        assert row.summary.mean == pytest.approx(book.frozen()[row.trial].values[0])
        assert row.summary.interval.low <= row.summary.mean <= row.summary.interval.high
        assert row.summary.seeds == 2
    for row in rows[1:]:
        assert row.test is not None
        assert row.test.difference == pytest.approx(row.summary.mean - rows[0].summary.mean)
    assert table(book) == rows


def mlflow_runs(runs: Path, name: str) -> list[Any]:
    client = MlflowClient(default_uri(runs))
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_mlflow_statuses_and_curves(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    real = engine.train

    def failing(cell: Any, folder: Any, log: Any) -> Any:
        if cell.config.strategy.options["alpha"] != 0.2 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise NegbenchError("mend this")
        return real(cell, folder, log)

    monkeypatch.setattr(engine, "train", failing)
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda self: self.number == 2)
    book = toy_study(toy_sets, tmp_path, trials=4, uri=default_uri(tmp_path))
    found = mlflow_runs(tmp_path, "s")
    (parent,) = [run for run in found if run.data.tags["negbench.kind"] == "study"]
    trials = {int(run.data.tags["trial"]): run for run in found if run.data.tags["negbench.kind"] == "trial"}
    assert {n: run.info.status for n, run in trials.items()} == {0: "FINISHED", 1: "FAILED", 2: "KILLED", 3: "FINISHED"}
    assert [t.state.name for t in book.frozen()] == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    for number, run in trials.items():
        frozen = book.frozen()[number]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params["strategy.beta-alpha"] == str(frozen.params["strategy.beta-alpha"])
        points = MlflowClient(default_uri(tmp_path)).get_metric_history(run.info.run_id, "dev/average/recall")
        assert {p.step - 1: p.value for p in points} == frozen.intermediate_values
    assert trials[3].data.metrics["objective/recall"] == book.frozen()[3].values[0]


# --- the command -----------------------------------------------------------------------------------------------------


def command(toy_sets: list[str], runs: Path, *more: str) -> list[str]:
    sets = [part for text in (*toy_sets, *DEV) for part in ("--set", text)]
    return ["study", "--strategy", "dqe", *sets, "--runs-dir", str(runs), "--name", "s", *more]


def test_the_command_from_start_to_test(
    toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(toy_sets, tmp_path, "--trials", "6", "--final-seeds", "2")
    assert negbench(arguments) == 0
    out = capsys.readouterr().out
    assert "val stays closed" in out
    assert "sampler tpe(multivariate=True, constant_liar=True" in out
    assert f"optuna-dashboard {tmp_path / 's' / 'optuna.journal'}" in out.replace("\n", "")
    book = Book(tmp_path / "s", "s", None, storage_url(tmp_path / "s", None), 6)
    counts = book.counts()
    assert counts["finished"] + counts["pruned"] == 6
    best = finished(book)[0]
    if best.number != 0:
        final = json.loads((tmp_path / "s" / "final.json").read_text())
        assert final["seeds"] == [1, 2]
        runs = json.loads((tmp_path / "s-final" / "comparison.json").read_text())["cells"]
        assert sorted((row["strategy"], row["seed"]) for row in runs) == [
            ("dqe best", 1), ("dqe best", 2), ("dqe default", 1), ("dqe default", 2),
        ]  # fmt: skip
        values = {}
        for row in runs:
            details = engine.RunFolder(tmp_path / row["run"]).result
            values.setdefault(row["strategy"], []).append(details["metrics"]["average/recall"])
        assert final["best"]["mean"] == pytest.approx(np.mean(values["dqe best"]))
        assert final["test"]["difference"] == pytest.approx(
            np.mean(values["dqe best"]) - np.mean(values["dqe default"])
        )
    (parent,) = [run for run in mlflow_runs(tmp_path, "s") if run.data.tags["negbench.kind"] == "study"]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["pruner"].startswith("median(n_startup_trials=5")
    assert parent.data.metrics["trials/finished"] == counts["finished"]
    assert parent.data.metrics["best/recall"] == best.values[0]
    assert negbench(arguments) == 0  # again: nothing is computed, the same is said
    assert " trial " not in capsys.readouterr().out.split("best")[0].split("pruner")[1]
    page = tmp_path / "s" / "report" / "index.html"
    before = page.read_text(encoding="utf-8")
    assert negbench(["report", "s", "--runs-dir", str(tmp_path)]) == 0
    assert page.read_text(encoding="utf-8") == before
    assert {path.stem for path in page.parent.glob("figures/*.png")} >= {"history"}
    logged = {a.path for a in MlflowClient(default_uri(tmp_path)).list_artifacts(parent.info.run_id)}
    assert {"history.png", "trials.csv"} <= logged


def test_the_page_draws_what_was_found(tmp_path: Path) -> None:
    page = study_page(toy_book_of_dqe(tmp_path))
    parts = {part.key: part for section in page.sections for part in section.parts if hasattr(part, "key")}
    assert {"history", "importance", "plane", "parallel", "trials"} <= set(parts)
    history = {series.name: series for series in parts["history"].panels[0].series}
    assert list(history["best so far"].y) == sorted(history["best so far"].y)
    assert history["best so far"].y[-1] == max(history["finished"].y)
    line = next(s for s in parts["parallel"].panels[0].series if s.name == "best quarter")
    assert len(line.x) == len(parts["parallel"].panels[0].x_ticks) == 6
    assert all(0 <= y <= 1 for s in parts["parallel"].panels[0].series for y in s.y)
    assert write_page(tmp_path / "report", page)[0].exists()


def toy_book_of_dqe(folder: Path) -> Book:
    book = toy_book(folder, 16, spec_of(base_of("dqe"), pruner="none"))
    work(book, lambda claim: [0.5 - (float(claim.point["strategy.alpha"]) - 0.1) ** 2], silent)
    return book


def test_between_trials_recall_is_interpolated() -> None:
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    grid = interpolated(corners, 3 * corners[:, 0] - corners[:, 1])
    middles = (np.arange(8) + 0.5) / 8
    assert grid == pytest.approx(3 * middles[None, :] - middles[:, None])
    assert np.isnan(interpolated(np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.4, 0.4]]), np.ones(4))).all()


@pytest.mark.slow
def test_kill_of_the_command_loses_the_running_trials_only(toy_sets: list[str], tmp_path: Path) -> None:
    arguments = command(toy_sets, tmp_path, "--trials", "6", "--workers", "2", "--final-seeds", "0", "--pruner", "none")
    process = subprocess.Popen(
        [sys.executable, "-m", "negbench", *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "trial" in line and line.startswith("[2/"):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    book = Book(tmp_path / "s", "s", None, storage_url(tmp_path / "s", None), 6)
    before = {t.number: t.values for t in book.frozen() if t.state == TrialState.COMPLETE}
    running = {t.number for t in book.frozen() if t.state == TrialState.RUNNING}
    assert len(before) >= 2
    assert negbench(arguments) == 0
    assert {n: v for n, v in ((t.number, t.values) for t in book.frozen()) if n in before} == before
    none_lost_none_twice(book, 6, running)
    copies = {int(r.data.tags["trial"]): r.info.status for r in mlflow_runs(tmp_path, "s") if "trial" in r.data.tags}
    states = {t.number: t.state.name for t in book.frozen() if "mlflow" in t.user_attrs}
    assert {n: copies[n] for n in states} == {
        n: {"COMPLETE": "FINISHED", "FAIL": "FAILED"}[state] for n, state in states.items()
    }


def test_importance_knows_the_knob_that_matters(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 30, toy_spec(sampler="random"))
    assert importance(book) == {}
    work(book, lambda claim: [float(claim.point["strategy.alpha"])], silent)
    shares = importance(book)
    assert next(iter(shares)) == "strategy.alpha"
    assert shares["strategy.alpha"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(book) == shares


def test_recipes_are_overridden_by_flags_and_checked(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[strategy]\nname = "dqe"\n[study]\nseeds = 3\nfix = ["schedule.n_def=3"]\ntrials = 5\n')
    plan = read_plan({}, {"trials": 9}, recipe, [])
    assert (plan.trials, plan.spec.seeds, plan.final_seeds) == (9, (0, 1, 2), 3)
    assert plan.base.schedule.n_def == 3
    assert plan.base.eval.dev_fraction == 0.2
    recipe.write_text('[strategy]\nname = "dqe"\n[study]\nseed = 3\n')
    with pytest.raises(NegbenchError, match=r"did you mean 'study\.seeds'"):
        read_plan({}, {}, recipe, [])
    recipe.write_text('[strategy]\nname = "qure"\n[study]\npoints = [{"schedule.n_def" = 3}, {"schedule.n_def" = 6}]\n')
    plan = read_plan({}, {}, recipe, [])
    assert (plan.trials, plan.spec.sampler, plan.final_seeds) == (2, "grid", 0)
    with pytest.raises(OptionError, match="lists all that is computed"):
        read_plan({}, {"search": ["strategy.alpha=0:1"]}, recipe, [])


RECIPES = Path(__file__).parents[2] / "runs" / "recipes"


@pytest.mark.parametrize(
    ("recipe", "epochs", "expected"),
    [
        ("band-table", 12, [(0.2, 0.8), (0.3, 0.7), (0.25, 0.75), (0.15, 0.85), (0.1, 0.9)]),
        ("n-def-table", 12, [(6,), (3,), (12,)]),
        ("warm-up-table", 12, [(2,), (1,)]),
        ("warm-up-table", 36, [(6,), (3,)]),
        ("negatives-table", 12, [(1,), (3,), (5,)]),
    ],
)
def test_the_tables_hold_the_published_rows(recipe: str, epochs: int, expected: list[Any]) -> None:
    plan = read_plan({}, {}, RECIPES / f"{recipe}.toml", [f"train.epochs={epochs}"])
    assert [tuple(point.values()) for point in plan.spec.space.points] == expected
    assert plan.spec.seeds == (0, 1, 2)
    for point in plan.spec.space.points:
        resolved(plan.spec.space.config(plan.base, point, 0))


def test_a_table_is_printed_and_logged(toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for text in (*toy_sets, *DEV) for part in ("--set", text)]
    recipe = ["--recipe", str(RECIPES / "negatives-table.toml"), "--seeds", "2", "--name", "t"]
    assert negbench(["study", *recipe, *sets, "--runs-dir", str(tmp_path)]) == 0
    assert "95 % interval" in capsys.readouterr().out
    book = Book(tmp_path / "t", "t", None, storage_url(tmp_path / "t", None))
    rows = table(book)
    assert [row.point["train.num_negatives"] for row in rows] == [1, 3, 5]
    written = pd.read_csv(tmp_path / "t" / "report" / "tables" / "points.csv")
    assert written["recall %"].tolist() == [round(100 * row.summary.mean, 2) for row in rows]
    logged = {r.data.tags["trial"]: r for r in mlflow_runs(tmp_path, "t") if r.data.tags["negbench.kind"] == "summary"}
    for row in rows:
        assert logged[str(row.trial)].data.metrics["interval/low"] == row.summary.interval.low
        assert logged[str(row.trial)].data.metrics["mean/recall"] == row.summary.mean


def test_pruned_is_not_an_error_of_a_run(toy_sets: list[str], tmp_path: Path) -> None:
    def watch(epoch: int, values: Any) -> None:
        if epoch == 1:
            raise Pruned

    with pytest.raises(Pruned):
        engine.run_config(base_of("qure", *toy_sets), runs_dir=tmp_path, watch=watch)
    (folder,) = (engine.RunFolder(p) for p in tmp_path.glob("qure-*"))
    assert folder.status == "interrupted"
    assert mlflow_runs(tmp_path, "negbench")[0].info.status == "KILLED"
    resumed = engine.resume("qure", runs_dir=tmp_path)
    straight = engine.run_config(base_of("qure", *toy_sets), runs_dir=tmp_path / "straight", tracking_uri="none")
    assert resumed.metrics == straight.metrics


def test_a_closed_val_cannot_be_selected_on() -> None:
    with pytest.raises(OptionError, match="chooses on the reported split"):
        resolved(base_of("qure", "eval.reported=false", "eval.select=val"))
