"""Claims, rescues and ends of trials in every storage, with an objective of a moment and workers that are killed."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from negbench.config import resolved
from negbench.errors import NegbenchError, OptionError, RunError
from negbench.files import DamagedError, read_json
from negbench.systems.system import load_config
from negbench.tuning.book import Book, Claim
from negbench.tuning.final import finished
from negbench.tuning.importance import importance
from negbench.tuning.space import Knob, Space, build_space
from negbench.tuning.spec import StudySpec
from negbench.tuning.storage import open_storage, storage_url
from negbench.tuning.trials import Job
from negbench.tuning.work import serve, work

BASE = load_config(flags={"strategy": {"name": "dqe"}})


def toy_space() -> Space:
    return Space((Knob("strategy.alpha", 0.2, 0.0, 0.4), Knob("train.num_negatives", 1, 1, 5)))


def toy_spec(space: Space | None = None, **changed: Any) -> StudySpec:
    spec = StudySpec.of(BASE, space or toy_space(), seeds=1, minimise=None, sampler="tpe", pruner="median")
    return dataclasses.replace(spec, **changed)


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


def toy_book(folder: Path, trials: int = 10, spec: StudySpec | None = None) -> Book:
    return Book(folder, "toy", spec or toy_spec(), storage_url(folder, None), trials)


def toy_job(folder: Path, url: str, trials: int, opens: Any) -> Job:
    """Of the study in `folder`, which is called toy."""
    return Job(folder.parent, "toy", toy_spec(), url, trials, "none", None, opens)


def claimed(book: Book) -> Claim:
    claim = book.claim()
    assert isinstance(claim, Claim)
    return claim


@pytest.mark.parametrize(
    "changes",
    [
        {"first_refresh": {}},
        {"epochs": "4"},
        {"base": []},
        {"space": {"knobs": 3}},
        {"claims": None},
        {"base": {"seed": -math.inf}},
    ],
)
def test_settings_of_another_form_are_damage(changes: dict[str, Any], tmp_path: Path) -> None:
    toy_book(tmp_path).study.set_user_attr("negbench", toy_spec().dump() | changes)
    with pytest.raises(DamagedError, match="is damaged"):
        Book(tmp_path, "toy", None, storage_url(tmp_path, None))


@pytest.mark.parametrize("noted", [{"runs": "a"}, {"seconds": "1"}, {"verdicts": []}, {"deaths": None}, {"error": 3}])
def test_notes_of_another_type_are_damage(noted: dict[str, Any], tmp_path: Path) -> None:
    book = toy_book(tmp_path)
    for key, value in noted.items():
        claimed(book).note(key, value)
    with pytest.raises(DamagedError, match=f"'{next(iter(noted))}' of trial 0 is no "):
        book.counts()


def test_a_finished_trial_without_its_value_is_damage(tmp_path: Path) -> None:
    book = toy_book(tmp_path)
    assert work(book, at_once, silent) == 10
    journal = tmp_path / "optuna.journal"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line.get("state") == TrialState.COMPLETE:
            line["values"] = None
    (tmp_path / ".optuna.journal.sums").unlink()
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DamagedError, match="trial 0 is finished and has no value"):
        toy_book(tmp_path).counts()


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
    assert len({json.dumps(point) for point in found[0]}) == 16  # every trial draws its own
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
    book = toy_book(tmp_path, 25, toy_spec(build_space(BASE)))
    work(book, lambda claim: [sum(float(v) for v in claim.point.values())], silent)
    assert len({json.dumps({k: str(d) for k, d in t.distributions.items()}) for t in book.frozen()}) == 1
    for trial in book.frozen():
        options = resolved(book.spec.space.config(BASE, trial.params, 0)).strategy.options
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
        claim.held.close()  # as if this process were gone
    assert len(died) == 5
    assert [t.user_attrs["error"] for t in book.frozen() if "error" in t.user_attrs] == ["its worker died 5 times"]
    assert book.counts() == {"finished": 2, "pruned": 0, "failed": 1, "lost": 4, "running": 0, "waiting": 0}


def test_a_trial_is_held_until_its_end(tmp_path: Path) -> None:
    book, other = toy_book(tmp_path, 1), toy_book(tmp_path, 1)
    claim = claimed(book)
    assert other.claim() == "wait"
    book.finish(claim, [0.5])
    assert other.claim() is None
    assert other.counts()["finished"] == 1


def test_a_worker_that_lost_its_hold_is_told_so(tmp_path: Path) -> None:
    book, said = toy_book(tmp_path, 2), list[str]()

    def objective(claim: Claim) -> Sequence[float]:
        if claim.number == 1:
            claim.held.close()
            other = toy_book(tmp_path, 2)
            taken = claimed(other)
            assert (taken.number, taken.point) == (2, claim.point)
            other.finish(taken, at_once(taken))
        return at_once(claim)

    work(book, objective, said.append)
    assert [t.state.name for t in book.frozen()] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "taken by another worker" in said[1]


def test_a_rescue_that_was_cut_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = toy_book(tmp_path, 3)
    work(toy_book(tmp_path, 1), at_once, silent)
    claim = claimed(book)
    claim.held.close()

    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(book.study, "enqueue_trial", killed)  # failed, and not yet queued again
        with pytest.raises(KeyboardInterrupt):
            book.claim()
    assert book.frozen()[1].state == TrialState.FAIL
    work(book, at_once, silent)
    none_lost_none_twice(book, 3, {1})


def test_a_line_too_deep_to_be_read_is_damage(tmp_path: Path) -> None:
    toy_book(tmp_path)
    (tmp_path / ".optuna.journal.sums").unlink()
    (tmp_path / "optuna.journal").write_text("[" * 100_000 + "\n")
    with pytest.raises(DamagedError, match="a line of it is no record"):
        toy_book(tmp_path)


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
    folder = tmp_path / "toy"
    book, url = toy_book(folder, 16), storage_url(folder, None)
    workers = start([toy_job(folder, url, 16, partial(slow, together=3))] * 3)
    hit = {kill_within_a_trial(workers, folder)}
    for worker in workers:
        worker.join()
    none_lost_none_twice(book, 16, hit)


@pytest.mark.slow
def test_kill_of_everything_and_the_same_again(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    url = storage_url(folder, None)
    work(toy_book(folder, 5), at_once, silent)
    hit = {kill_within_a_trial(start([toy_job(folder, url, 12, partial(slow, seconds=30.0))]), folder)}
    assert hit == {5}
    book = toy_book(folder, 12)
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
    folder = tmp_path / "toy"
    folder.mkdir()
    url = storage_url(folder, postgresql, workers=4)
    workers = start([toy_job(folder, url, 16, partial(slow, together=4))] * 4)  # at once, on an empty database
    until(lambda: len(list(folder.glob("ended-*"))) >= 4)
    assert len({path.read_text() for path in folder.glob("working-*")}) >= 3
    hit = {kill_within_a_trial(workers, folder), kill_within_a_trial(workers, folder)}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    none_lost_none_twice(Book(folder, "toy", None, url, 16), 16, hit)


@pytest.mark.postgresql
def test_a_hold_in_a_database_is_gone_with_its_connection(postgresql: str, tmp_path: Path) -> None:
    url = storage_url(tmp_path, postgresql)
    book, other = (Book(tmp_path, "held", toy_spec(), url, 2) for _ in range(2))
    mine, theirs = claimed(book), claimed(other)
    assert (mine.number, theirs.number) == (0, 1)
    assert book.claim() == "wait"  # both are held
    with sqlalchemy.create_engine(url).connect() as connection:
        holds = "from pg_locks where locktype = 'advisory'"
        broken = f"select pg_terminate_backend(pid) {holds} and pid in (select min(pid) {holds})"
        assert connection.execute(sqlalchemy.text(broken)).scalar()  # that of the first claim
    until(lambda: book.claim() != "wait", 5.0)
    assert [t.state.name for t in book.frozen()] == ["FAIL", "RUNNING", "RUNNING"]
    with pytest.raises(UpdateFinishedTrialError):
        book.finish(mine, [0.5])
    mine.held.close()  # a broken connection is closed in silence
    other.finish(theirs, [0.5])
    assert (tmp_path / "study.json").read_text().count("postgresql+psycopg") == 1


@pytest.mark.postgresql
def test_a_hold_in_a_database_keeps_no_transaction_open(postgresql: str, tmp_path: Path) -> None:
    storage, hold = open_storage(storage_url(tmp_path, postgresql), "idle", tmp_path)
    assert isinstance(storage, RDBStorage)
    with hold("trial"), sqlalchemy.create_engine(storage.url).connect() as connection:
        told = "select state from pg_stat_activity where pid in (select pid from pg_locks where locktype = 'advisory')"
        assert connection.execute(sqlalchemy.text(told)).scalars().all() == ["idle"]
        alive = "select count(*) from pg_locks where locktype = 'advisory'"
        assert connection.execute(sqlalchemy.text(alive)).scalar() == 1
        with pytest.raises(BlockingIOError), hold("trial", wait=False):
            pytest.fail("two hold it")


@pytest.mark.postgresql
def test_a_study_remembers_its_database_without_the_password(postgresql: str, tmp_path: Path) -> None:
    """The server of these tests trusts everybody, so that any password will do."""
    url = storage_url(tmp_path, postgresql.replace("negbench@", "negbench:hunter2@"))
    assert "hunter2" in url
    Book(tmp_path, "secret", toy_spec(), url, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    reopened = read_json(tmp_path / "study.json")["storage"]
    assert Book(tmp_path, "secret", None, reopened).spec == toy_spec()


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be opened") as error:
        Book(tmp_path, "toy", toy_spec(), storage_url(tmp_path, "postgresql://u:secret@127.0.0.1:9/d"), 3)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_importance_knows_the_knob_that_matters(tmp_path: Path) -> None:
    book = toy_book(tmp_path, 30, toy_spec(sampler="random"))
    assert importance(book) == {}
    work(book, lambda claim: [float(claim.point["strategy.alpha"])], silent)
    shares = importance(book)
    assert next(iter(shares)) == "strategy.alpha"
    assert shares["strategy.alpha"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(book) == shares
