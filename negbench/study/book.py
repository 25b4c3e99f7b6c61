"""A study in its storage: who computes which trial, what became of it, and rescues from workers that died.

Every claim is made under the study's mutex, so that no point is computed twice and none beyond the number asked for; a
trial whose worker is gone is failed there and queued again, exactly once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import optuna
import sqlalchemy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from negbench import files
from negbench.errors import OptionError, RunError, UnknownNameError
from negbench.study.leases import BEAT, GRACE, FolderLeases, Leases, is_gone, renewed, this_process
from negbench.study.space import Band, Knob, Space
from negbench.tracking import Pruned

SAMPLERS = ("tpe", "gp", "random", "grid", "cmaes")
PRUNERS = ("median", "hyperband", "none")
MINIMISE = ("mining-seconds", "false-negative-rate")
MAX_DEATHS = 5  # a point whose worker dies that often is taken for the reason, and not queued again
_STARTUP = 10  # random trials before a model of the objective is trusted
_UNPRUNED = 5  # trials that must have finished before any is pruned

Wait = Literal["wait"]


@dataclass(frozen=True)
class StudySpec:
    """All that decides which trials a study makes, but for how many.

    Attributes:
        base: RunConfig as read.
        space: knobs.
        seeds: every trial is the mean over these.
        minimise: a second objective (one of MINIMISE), or None.
        sampler: one of SAMPLERS.
        pruner: one of PRUNERS.
        seed: of the sampler.
        first_refresh: earliest epoch of the space at which pools depend on scores; no trial is pruned before it.
        epochs: of a run.
        code: version of the code that moves its runs' scores.
    """

    base: dict[str, Any]
    space: Space
    seeds: tuple[int, ...]
    minimise: str | None
    sampler: str
    pruner: str
    seed: int
    first_refresh: int
    epochs: int
    code: str

    def __post_init__(self) -> None:
        for what, value, known in (("sampler", self.sampler, SAMPLERS), ("pruner", self.pruner, PRUNERS)):
            if value not in known:
                raise UnknownNameError(what, value, known)
        if self.minimise is not None and self.minimise not in MINIMISE:
            raise UnknownNameError("objective", self.minimise, MINIMISE, where="--minimise")
        if self.minimise is not None and self.sampler == "cmaes":
            raise OptionError("--sampler cmaes knows one objective only: leave out --minimise, or take tpe")

    @property
    def prunes(self) -> bool:
        """Two objectives cannot be pruned, and listed points are not: a table needs every cell."""
        return self.pruner != "none" and self.minimise is None and not self.space.points

    def dump(self) -> dict[str, Any]:
        """As JSON can hold it."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return value

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> StudySpec:
        """From what `dump` gave."""
        space = value["space"]
        knobs = tuple(Knob(**{**knob, "choices": tuple(knob["choices"])}) for knob in space["knobs"])
        band = Band(**space["band"]) if space["band"] else None
        read = Space(knobs, band, tuple(space["points"]))
        return cls(**{**value, "space": read, "seeds": tuple(value["seeds"])})

    def shared(self) -> dict[str, Any]:
        """What all machines of a study must agree on: not where they compute, nor where their files lie."""
        value = self.dump()
        base = {key: section for key, section in value["base"].items() if key != "compute"}
        base["dataset"] = {key: option for key, option in base["dataset"].items() if key != "root"}
        base["plugins"] = [Path(path).name for path in base["plugins"]]
        return {**value, "base": base}

    @property
    def digest(self) -> str:
        """The same settings give the same name, whatever the code's version."""
        told = {key: value for key, value in self.shared().items() if key != "code"}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


# --- storage -----------------------------------------------------------------------------------------------------


def storage_url(folder: Path, given: str | None, workers: int = 1) -> str:
    """Where the trials lie: the journal in the study's folder, or a database.

    Raises:
        OptionError: sqlite for several workers, or a database of another kind than the two that were tried.
    """
    if given is None:
        return str(folder / "optuna.journal")
    kind, sign, rest = given.partition("://")
    if not sign:
        raise OptionError(f"--storage {given!r}: want postgresql://USER@HOST/DATABASE, or nothing for a journal file")
    if kind.partition("+")[0] in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if kind != "sqlite":
        raise OptionError(f"--storage {kind}://...: want postgresql://USER@HOST/DATABASE or sqlite:///FILE")
    if workers > 1:
        raise OptionError(
            "--storage sqlite://... with several workers: its one lock on the whole file makes them fail ('database is "
            "locked'), and over a network it loses writes; leave --storage out for a journal file, or take postgresql://"
        )
    return given


@dataclass(frozen=True)
class _KernelLock:
    """Lock of a journal file that the kernel lets go of when its process dies; optuna's own then blocks for 30 s.

    What a killed writer left of a line is cut off, before the next line would be glued to it.
    """

    path: Path
    _held: list[IO[Any]] = field(default_factory=list)

    def acquire(self) -> bool:
        """Wait for it."""
        import fcntl

        file = self.path.with_name(f".{self.path.name}.lock").open("a")
        fcntl.flock(file, fcntl.LOCK_EX)
        self._held.append(file)
        self._mend()
        return True

    def release(self) -> None:
        """Let go."""
        self._held.pop().close()

    def _mend(self) -> None:
        with self.path.open("rb+") as journal:
            size = journal.seek(0, os.SEEK_END)
            if size == 0:
                return
            journal.seek(size - 1)
            if journal.read(1) != b"\n":
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)


@dataclass(frozen=True)
class _DatabaseLeases:
    """Leases as attributes of the trials; their age is told by the database's clock."""

    storage: Any  # RDBStorage
    study: str
    ids: dict[int, int] = field(default_factory=dict)  # trial number -> id
    grace: float = GRACE

    def mutex(self) -> AbstractContextManager[None]:
        return _advisory_lock(self.storage.engine, self.study)

    def write(self, trial: int) -> None:
        self.storage.set_trial_user_attr(self._id(trial), "lease", {**this_process(), "time": self._now()})

    def dead(self, trial: int) -> bool:
        held = self.storage.get_trial(self._id(trial)).user_attrs.get("lease")
        return held is None or is_gone(held) or self._now() - float(held["time"]) > self.grace

    def drop(self, trial: int) -> None:
        """It stays with the trial, as a record of who computed it."""

    def _id(self, trial: int) -> int:
        if trial not in self.ids:
            study = self.storage.get_study_id_from_name(self.study)
            self.ids[trial] = self.storage.get_trial_id_from_study_id_trial_number(study, trial)
        return self.ids[trial]

    def _now(self) -> float:
        with self.storage.engine.connect() as connection:
            return float(connection.execute(sqlalchemy.text("select extract(epoch from clock_timestamp())")).scalar())


@contextlib.contextmanager
def _advisory_lock(engine: Any, name: str) -> Iterator[None]:
    """PostgreSQL's lock on a number of ours; the server lets go of it when the connection breaks."""
    key = int.from_bytes(hashlib.sha256(f"negbench {name}".encode()).digest()[:8], "big", signed=True)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("select pg_advisory_lock(:key)"), {"key": key})
        try:
            yield
        finally:
            connection.execute(sqlalchemy.text("select pg_advisory_unlock(:key)"), {"key": key})


def _open_storage(url: str, name: str, folder: Path, grace: float) -> tuple[Any, Leases]:
    """The storage, made if absent, and the leases that go with it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if url.startswith("postgresql"):
            engine = sqlalchemy.create_engine(url)
            with _advisory_lock(engine, "tables"):  # two workers that make the tables at once fail
                storage = optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
            engine.dispose()
            return storage, _DatabaseLeases(storage, name, grace=grace)
        if url.startswith("sqlite"):
            return optuna.storages.RDBStorage(url), FolderLeases(folder, grace)
    except ImportError as error:
        raise OptionError("--storage postgresql://... needs psycopg: pip install 'negbench[postgresql]'") from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise OptionError(f"--storage {url.partition('://')[0]}://...: cannot be opened: {reason}") from error
    journal = Path(url)
    lock: Any = _KernelLock(journal)
    backend = JournalFileBackend(str(journal), lock_obj=lock)
    return optuna.storages.JournalStorage(backend), FolderLeases(folder, grace)


# --- samplers and pruners ----------------------------------------------------------------------------------------


def sampler_options(spec: StudySpec) -> dict[str, Any]:
    """What the sampler is called with, beside its seed; written out, so that no other version's defaults take over."""
    return {
        "tpe": {"multivariate": True, "constant_liar": True, "n_startup_trials": _STARTUP, "n_ei_candidates": 24},
        "gp": {"n_startup_trials": _STARTUP, "deterministic_objective": False},
        "cmaes": {"n_startup_trials": _STARTUP, "consider_pruned_trials": False},
    }.get(spec.sampler, {})


def _sampler(spec: StudySpec, trial: int) -> Any:
    """A sampler for one trial, seeded by the study's seed and the trial's number.

    A worker's number is no part of it: a study that was stopped goes on with the numbers it would have drawn, and two
    workers never draw the same ones.
    """
    seed = int.from_bytes(hashlib.sha256(f"{spec.seed}/{trial}".encode()).digest()[:4], "big")
    known = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler, "cmaes": optuna.samplers.CmaEsSampler}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made = known.get(spec.sampler, optuna.samplers.RandomSampler)(seed=seed, **sampler_options(spec))
    return made


def pruner_options(spec: StudySpec) -> dict[str, Any]:
    """What the pruner is called with."""
    steps = spec.epochs * len(spec.seeds)
    if not spec.prunes:
        return {}
    return {
        "median": {"n_startup_trials": _UNPRUNED, "n_warmup_steps": spec.first_refresh, "interval_steps": 1},
        "hyperband": {
            "min_resource": min(spec.first_refresh + 1, steps),
            "max_resource": steps,
            "reduction_factor": 3,
        },
    }[spec.pruner]


def _pruner(spec: StudySpec) -> Any:
    known: dict[str, Any] = {"median": optuna.pruners.MedianPruner, "hyperband": optuna.pruners.HyperbandPruner}
    return known[spec.pruner](**pruner_options(spec)) if spec.prunes else optuna.pruners.NopPruner()


def _distribution(knob: Knob) -> BaseDistribution:
    if knob.choices:
        return CategoricalDistribution(knob.choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return FloatDistribution(knob.low, knob.high, log=knob.log)


# --- the study ---------------------------------------------------------------------------------------------------


class Superseded(Exception):
    """The trial was taken from this worker, which had not renewed its lease in time; its result is not wanted."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A trial that this worker is to compute."""

    trial: optuna.Trial
    spec: StudySpec

    @property
    def number(self) -> int:
        """Of the trial, from 0."""
        return int(self.trial.number)

    @property
    def point(self) -> dict[str, Any]:
        """Knob -> value."""
        return dict(self.trial.params)

    def note(self, key: str, value: Any) -> None:
        """Keep something beside the trial."""
        with _unless_superseded():
            self.trial.set_user_attr(key, value)

    def report(self, step: int, value: float, *, prunable: bool) -> None:
        """The objective so far.

        Raises:
            Pruned: the trial is not worth going on with; only where `prunable`.
            Superseded: see there.
        """
        if self.spec.minimise is not None:
            return
        with _unless_superseded():
            self.trial.report(value, step)
        if prunable and self.spec.prunes and self.trial.should_prune():
            raise Pruned(f"at step {step}")


@contextlib.contextmanager
def _unless_superseded() -> Iterator[None]:
    try:
        yield
    except UpdateFinishedTrialError as error:
        raise Superseded from error


class Book:
    """A study in its storage; every worker of it opens one.

    Args:
        folder: of the study.
        name: of the study in the storage.
        spec: settings; None takes those that the storage holds.
        url: of `storage_url`.
        trials: how many to make.
        on_lost: told the attributes of a trial whose worker died.
        beat, grace: seconds, see `negbench.study.leases`.

    Raises:
        RunError: a study of that name with other settings or another version of the code, or none where spec is None.
        OptionError: a storage that cannot be opened, or a sampler that is not installed.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        spec: StudySpec | None,
        url: str,
        trials: int = 0,
        *,
        on_lost: Callable[[Mapping[str, Any]], None] | None = None,
        beat: float = BEAT,
        grace: float = GRACE,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.name, self.url, self.trials = folder, name, url, trials
        self._on_lost = on_lost or (lambda attributes: None)
        self._beat = beat
        self._storage, self.leases = _open_storage(url, name, folder, grace)
        with self.leases.mutex():
            self.spec = self._agreed(spec)
            directions = (optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(seed=0),  # replaced for each trial
                pruner=_pruner(self.spec),
                directions=directions[: 1 if self.spec.minimise is None else 2],
                load_if_exists=True,
            )
            if "negbench" not in self.study.user_attrs:
                self.study.set_user_attr("negbench", self.spec.dump())
        files.write_json(folder / "study.json", {"name": name, "storage": shown_url(url), "spec": self.spec.dump()})
        self._distributions = {knob.key: _distribution(knob) for knob in self.spec.space.knobs}

    def _agreed(self, spec: StudySpec | None) -> StudySpec:
        """This machine's settings, which must agree with the stored ones; those where none are given."""
        known = optuna.get_all_study_names(self._storage)
        if self.name not in known:
            if spec is None:
                raise RunError(f"there is no study '{self.name}' in {shown_url(self.url)}")
            return spec
        stored = optuna.load_study(study_name=self.name, storage=self._storage).user_attrs.get("negbench")
        if stored is None:
            raise RunError(f"study '{self.name}' in {shown_url(self.url)} is not negbench's: give another --name")
        if spec is None:
            return StudySpec.load(stored)
        theirs, mine = StudySpec.load(stored).shared(), spec.shared()
        if differing := [key for key in mine if mine[key] != theirs.get(key)]:
            raise RunError(
                f"study '{self.name}' was started with another {', '.join(differing)}, and its trials would not be "
                "comparable: give another --name"
            )
        return spec

    # --- trials ---------------------------------------------------------------------------------------------------

    def frozen(self) -> list[FrozenTrial]:
        """All trials, in order of number."""
        found: list[FrozenTrial] = self.study.get_trials(deepcopy=False)
        return found

    def counts(self) -> dict[str, int]:
        """How many trials are finished, pruned, failed, lost (queued again), running, waiting."""
        found = dict.fromkeys(("finished", "pruned", "failed", "lost", "running", "waiting"), 0)
        for trial in self.frozen():
            found[_state(trial)] += 1
        return found

    def claim(self) -> Claim | Wait | None:
        """A trial to compute; "wait" while others compute the last ones, None when all is done."""
        with self.leases.mutex():
            self._rescue()
            trials = self.frozen()
            states = [trial.state for trial in trials]
            if TrialState.WAITING not in states:
                open_points = [p for p in self.spec.space.points[: self.trials] if not _has(trials, p)]
                taken = sum(_state(trial) != "lost" for trial in trials)
                if taken >= self.trials or (self.spec.space.points and not open_points):
                    return "wait" if TrialState.RUNNING in states else None
                if open_points or not trials:
                    self.study.enqueue_trial(open_points[0] if open_points else self.spec.space.default)
            # a waiting trial is taken first; it is sampled too where its worker was killed before all was sampled
            number = next((trial.number for trial in trials if trial.state == TrialState.WAITING), len(trials))
            self.study.sampler = _sampler(self.spec, number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                trial = self.study.ask(fixed_distributions=self._distributions)
            self.leases.write(trial.number)
        return Claim(trial, self.spec)

    def _rescue(self) -> None:
        """Fail the trials whose worker is gone, and queue each of them again once. Under the mutex.

        In two steps, either of which can be repeated: a worker that is killed in between loses nothing.
        """
        for trial in self.frozen():
            if trial.state == TrialState.RUNNING and self.leases.dead(trial.number):
                self.study.tell(trial.number, state=TrialState.FAIL)
                self.leases.drop(trial.number)
                self._on_lost(trial.user_attrs)
        trials = self.frozen()
        again = {trial.user_attrs.get("retry_of") for trial in trials}
        for trial in trials:
            if _state(trial) == "lost" and trial.number not in again:
                point = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
                deaths = trial.user_attrs.get("deaths", 0) + ("given_back" not in trial.user_attrs)
                self.study.enqueue_trial(point, user_attrs={"retry_of": trial.number, "deaths": deaths})

    def computing(self, claim: Claim) -> AbstractContextManager[None]:
        """Renews the claim's lease while the block runs."""
        return renewed(lambda: self.leases.write(claim.number), self._beat)

    # --- ends -----------------------------------------------------------------------------------------------------

    def finish(self, claim: Claim, values: Sequence[float]) -> None:
        """The trial's objectives. Raises Superseded."""
        self._tell(claim, TrialState.COMPLETE, values)

    def prune(self, claim: Claim) -> None:
        """The trial was stopped early; the last value reported stands for it. Raises Superseded."""
        self._tell(claim, TrialState.PRUNED)

    def fail(self, claim: Claim, error: str) -> None:
        """The trial cannot be computed, and is not queued again. Raises Superseded."""
        claim.note("error", error)
        self._tell(claim, TrialState.FAIL)

    def give_back(self, claim: Claim) -> None:
        """This worker stops (Ctrl-C): the trial is queued again."""
        with contextlib.suppress(Superseded):
            claim.note("given_back", True)
            self._tell(claim, TrialState.FAIL)
        with self.leases.mutex():
            self._rescue()

    def _tell(self, claim: Claim, state: TrialState, values: Sequence[float] | None = None) -> None:
        with self.leases.mutex():
            if self.study.get_trials(deepcopy=False)[claim.number].state != TrialState.RUNNING:
                raise Superseded
            self.study.tell(claim.trial, values, state=state)
            self.leases.drop(claim.number)


def _state(trial: FrozenTrial) -> str:
    """A trial that failed without having said why lost its worker; one that did so too often has failed."""
    if trial.state == TrialState.FAIL:
        noted = trial.user_attrs
        lost = "error" not in noted and ("given_back" in noted or noted.get("deaths", 0) < MAX_DEATHS - 1)
        return "lost" if lost else "failed"
    return {
        TrialState.COMPLETE: "finished",
        TrialState.PRUNED: "pruned",
        TrialState.RUNNING: "running",
        TrialState.WAITING: "waiting",
    }[trial.state]


def _has(trials: Sequence[FrozenTrial], point: Mapping[str, Any]) -> bool:
    """Whether a listed point was taken up."""
    return any({**trial.system_attrs.get("fixed_params", {}), **trial.params} == dict(point) for trial in trials)


def shown_url(url: str) -> str:
    """The storage without its password, which PGPASSWORD or ~/.pgpass can give as well."""
    if "://" not in url:
        return url
    return sqlalchemy.make_url(url).set(password=None).render_as_string(hide_password=False)


def open_book(runs: Path, name: str) -> Book:
    """A study of the runs folder, to read.

    Raises:
        NegbenchError: no such study, or a database that cannot be reached.
    """
    folder = runs / name
    if not (folder / "study.json").exists():
        known = sorted(path.parent.name for path in runs.glob("*/study.json"))
        raise RunError(f"there is no study '{name}' in {runs}: known are {', '.join(known) or 'none'}")
    note = files.read_json(folder / "study.json")
    url = note["storage"] if "://" in note["storage"] else storage_url(folder, None)
    return Book(folder, note["name"], None, url)
