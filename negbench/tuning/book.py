"""A study in its storage: Optuna computes the trials, and a trial whose worker died is queued again.

A worker locks the trial that it computes; however the worker ends, the kernel releases the lock. A running trial whose
lock is free goes back into the queue under its own number: samplers and pruners depend on the number, so a killed study
tries the same points. A failed trial stays running in Optuna, which lets no ended one be computed again; it is noted as
failed, and queued when the command is run again. One worker at a time asks for a trial, under the study's lock, so that
no more are computed than asked for. The locks are files in the study's folder, which all its workers share.
"""

import copy
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, StringConstraints, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from negbench.analysis.words import settings_text
from negbench.errors import NegbenchError, OptionError, RunError, printable_json, short_repr, without_secrets
from negbench.grid.comparison import check_name
from negbench.grid.executors import Notify
from negbench.machine import files
from negbench.machine.received import check_database, check_text, read_bytes
from negbench.machine.signals import Stopped, check_stopped
from negbench.tuning.spec import SeededSampler, StudySpec, pruner_of

MAX_DEATHS = 5  # a trial whose worker dies this often is taken as the cause, and fails
_POLL = 0.5  # seconds between polls while other workers compute the last trials

SCORE = "score"  # note of a trial whose value is in per cent: its score, in [0, 1]

Objective = Callable[[optuna.Trial], float]


# what a storage raises that fails; a trial that it interrupts is queued again, as that of a dead worker
_FAULTS = (optuna.exceptions.StorageInternalError, SQLAlchemyError)


class _Unanswered(BaseException):
    """Carries one of `_FAULTS` past Optuna, which would count it as a failed trial."""


class Pruned(BaseException):
    """Raised to stop a trial early. Not an Exception, so that its run counts as interrupted, not as failed."""


def trial_folder(number: int) -> str:
    """Return a trial's folder, relative to the study's folder."""
    return f"trials/trial-{number:04d}"


class _Failed(BaseException):
    """Carries a failure past Optuna, which would end the trial for good."""


class _Journal(JournalFileBackend):
    """A journal that cuts an incomplete last line, left by a full disk or a power cut, before it writes another."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines; under Optuna's own lock, no worker is in the middle of one."""
        lock = JournalFileSymlinkLock(self._file_path)
        lock.acquire()
        try:
            with Path(self._file_path).open("rb+") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read() not in (b"", b"\n"):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
        finally:
            lock.release()
        super().append_logs(logs)


class StudyStore:
    """A study in its storage; every worker opens one.

    Args:
        folder: folder of the study; its name is the study's name.
        spec: settings; None reads those of study.json, for reading only.
        storage: database URL for Optuna; None uses a journal file in the folder, whatever study.json names.
        trials: number of trials to compute.

    Raises:
        RunError: study.json has other settings, or is missing where the storage has the study; to read, its storage is
            elsewhere and not given, or lacks the study.
        OptionError: the storage cannot be opened.
    """

    def __init__(self, folder: Path, spec: StudySpec | None, storage: str | None = None, trials: int = 0) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        check_name(folder, "study")
        self.folder = folder
        self.name = folder.name
        self.trials = trials
        if spec is not None:
            files.seal(folder)
        with self.hold(), self.answering():
            self.spec, self.url = self._check_settings(spec, storage)
            if spec is None and storage is None and not Path(self.url).is_file():
                raise RunError(f"study '{self.name}' has no trials: {self.url} is missing")
            self._storage = _open_storage(self.url)
            if not (folder / "study.json").exists():
                self._write_settings(storage)
            self.study = self._load_study() if spec is None else self._create_study()

    def _write_settings(self, storage: str | None) -> None:
        """Write study.json, without passwords; a study of this name in the storage must not be another one."""
        if self.name in optuna.get_all_study_names(self._storage):
            shown_url = without_secrets(self.url)
            raise RunError(f"{shown_url} has a study '{self.name}' of another runs folder: give another --name")
        printable_url = storage and without_secrets(storage)
        files.write_json(self.folder / "study.json", {"storage": printable_url, "spec": self.spec.dump()})

    def _load_study(self) -> optuna.Study:
        try:
            return optuna.load_study(
                study_name=self.name,
                storage=self._storage,
                sampler=SeededSampler(self.spec),
                pruner=pruner_of(self.spec),
            )
        except KeyError as error:
            raise RunError(f"{without_secrets(self.url)} has no study '{self.name}'") from error

    def _create_study(self) -> optuna.Study:
        """Create the study, unless the storage has it, and queue the points that are not sampled."""
        study = optuna.create_study(
            study_name=self.name,
            storage=self._storage,
            sampler=SeededSampler(self.spec),
            pruner=pruner_of(self.spec),
            direction="maximize",
            load_if_exists=True,
        )
        for point in self.spec.queued_points[: self.trials]:  # the default first
            study.enqueue_trial(point, skip_if_exists=True)
        return study

    def _check_settings(self, spec: StudySpec | None, storage: str | None) -> tuple[StudySpec, str]:
        """Return settings and storage URL; those given must agree with study.json."""
        path = self.folder / "study.json"
        journal = str(self.folder.absolute() / "optuna.journal")
        if spec is not None and not path.exists():
            return spec, storage or journal
        document = files.read_json(path, "delete it, not the journal, and rerun the command that wrote it")
        with files.intact(path):
            stored_spec = StudySpec.load(document["spec"])
            stored_url = document["storage"]
        if spec is None:  # a stored file must never choose code to load, nor a server to connect to
            if stored_url and not storage:
                raise RunError(
                    f"study '{self.name}' keeps its trials in {stored_url}, which is opened only if you name it: "
                    "give negbench.load(..., storage=URL)"
                )
            return replace(stored_spec, base={**stored_spec.base, "plugins": []}), storage or journal
        stored = {**stored_spec.shared_settings(), "storage": stored_url}
        settings = {**spec.shared_settings(), "storage": storage and without_secrets(storage)}
        differing = [key for key in settings if settings[key] != stored.get(key)]
        if differing:
            raise RunError(
                f"study '{self.name}' was started with different {', '.join(differing)}; its trials would not be "
                "comparable: give another --name"
            )
        return spec, storage or journal

    def hold(self, name: str = ".", *, wait: bool = True) -> AbstractContextManager[None]:
        """Lock a folder of the study; BlockingIOError where another worker has it and `wait` is False."""
        return files.lock_file(self.folder / name / ".lock", wait=wait)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise RunError, in one line and without secrets, if the storage fails in this block."""
        try:
            yield
        except (*_FAULTS, _Unanswered) as error:
            shown_url = without_secrets(self.url)
            reason = _reason(error.__cause__ or error, self.url)
            raise RunError(
                f"the study's storage {shown_url} fails ({reason}): rerun the command when it answers"
            ) from error

    def frozen(self) -> list[FrozenTrial]:
        """Return all trials, in order of number; one that is noted as failed as FAIL."""
        with self.answering():
            return [_read_trial(trial) for trial in self.study.get_trials(deepcopy=False)]

    def counts(self) -> dict[str, int]:
        """Count the finished, pruned, failed, running and waiting trials."""
        words = {TrialState.COMPLETE: "finished", TrialState.FAIL: "failed"}
        counts = dict.fromkeys(("finished", "pruned", "failed", "running", "waiting"), 0)
        for trial in self.frozen():
            counts[words.get(trial.state, trial.state.name.lower())] += 1
        return counts

    # --- computing ------------------------------------------------------------------------------------------------

    def work(self, objective: Objective, notify: Notify) -> int:
        """Compute trials until the study has as many as requested; return how many this worker computed.

        Args:
            objective: returns the value of a trial whose `params` are set; raises `Pruned` to stop it early.
            notify: called with a line about each trial.

        Raises:
            NegbenchError: the default itself (trial 0) cannot be computed, or the storage fails.
        """
        computed = 0
        while True:
            check_stopped()
            with self.answering(), ExitStack() as turn:
                turn.enter_context(self.hold())
                self._requeue_dead(notify)
                number = self._next()
                if isinstance(number, int):
                    self._compute(number, objective, turn, notify)
                    computed += 1
            if number is None:
                return computed
            if number == "wait":
                time.sleep(_POLL)

    def _next(self) -> int | Literal["wait"] | None:
        """Return the next trial's number; "wait" while others compute the last ones, None when all are done."""
        trials = self.frozen()
        waiting = [trial.number for trial in trials if trial.state == TrialState.WAITING]
        if waiting or len(trials) < self.trials:
            return waiting[0] if waiting else len(trials)
        return "wait" if any(trial.state == TrialState.RUNNING for trial in trials) else None

    def _requeue_dead(self, notify: Notify) -> None:
        """Queue again every trial whose worker died. The caller holds the study's lock."""
        running = [trial.number for trial in self.frozen() if trial.state == TrialState.RUNNING]
        for number in running:
            try:
                with self.hold(trial_folder(number), wait=False):
                    trial = self.frozen()[number]  # it may just have ended
            except BlockingIOError:  # its worker lives
                continue
            if trial.state != TrialState.RUNNING:
                continue
            deaths = trial.user_attrs.get("deaths", 0) + 1
            self._note(trial, deaths=deaths)
            if deaths < MAX_DEATHS:
                self._queue(trial)
                notify(f"trial {trial.number}: its worker died; queued again")
            else:
                self._fail(trial, NegbenchError(f"its worker died {MAX_DEATHS} times"))

    def requeue_failed(self) -> list[int]:
        """Queue every failed trial again, and return their numbers; one whose workers died gets one more try."""
        with self.hold():
            failed = [trial for trial in self.frozen() if trial.state == TrialState.FAIL]
            for trial in failed:
                self._note(trial, error="")
                self._queue(trial)
        return [trial.number for trial in failed]

    def _queue(self, trial: FrozenTrial) -> None:
        self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    def _note(self, trial: FrozenTrial, **attributes: Any) -> None:
        for name, value in attributes.items():
            self._storage.set_trial_user_attr(trial._trial_id, name, value)

    def _fail(self, trial: FrozenTrial, error: Exception) -> None:
        """Note why a trial failed; raise that if it is the default."""
        if isinstance(error, NegbenchError):
            self._note(trial, error=str(error))
            if trial.number == 0:
                raise NegbenchError(f"trial 0, the default, failed: {error}") from error
        else:
            self._note(trial, error=f"{type(error).__name__}: {error}")
            if trial.number == 0:
                raise error

    def _compute(self, number: int, objective: Objective, turn: ExitStack, notify: Notify) -> None:
        """Let Optuna compute one trial; `turn` is closed as soon as the trial is sampled and locked."""

        def sample_and_compute(trial: optuna.Trial) -> float:
            lock_of_trial.enter_context(self.hold(trial_folder(number)))
            for searched in self.spec.space.ranges:
                searched.suggest(trial)
            turn.close()
            return objective(trial)

        with ExitStack() as lock_of_trial:
            try:
                self.study.optimize(partial(_evaluate, sample_and_compute), n_trials=1)
            except _Failed as failure:
                turn.close()
                self._fail(self.frozen()[number], failure.args[0])
            except BaseException as error:  # Ctrl-C, a signal
                turn.close()
                trial = self.frozen()[number]
                if trial.state == TrialState.RUNNING:
                    self._queue(trial)
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise error.__cause__ from None
                raise
        notify(f"trial {number}: {_describe(self.frozen()[number])}")


def _open_storage(url: str) -> BaseStorage:
    """Open a storage: the absolute path of a journal, whose lock is a link to it, or a database URL."""
    if "://" in url:
        check_database(url)
    else:
        _check_journal(Path(url))
    try:
        if "://" not in url:
            return JournalStorage(_Journal(url))
        if not url.startswith(("postgresql", "mysql")):
            return optuna.storages.get_storage(url)
        patience = {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}  # for a server that does not answer
        return optuna.storages.RDBStorage(url, engine_kwargs=patience)
    except Exception as error:  # whatever the journal's reader and the database's driver raise
        shown_url = without_secrets(url)
        raise OptionError(f"the study's storage {shown_url} cannot be opened ({_reason(error, url)})") from error


def _check_journal(path: Path) -> None:
    """Raise NegbenchError unless a journal, which Optuna is about to read, is a regular file that fits into memory."""
    files.check_inside(path)
    if path.exists():
        check_text(path, read_bytes(path), rows=True)


def _reason(error: BaseException, url: str) -> str:
    """Return an error's class and the first line of its text, without secrets."""
    text = str(getattr(error, "orig", error))  # of SQLAlchemy, the driver's
    first_line = text.split("\n")[0]
    return f"{type(error).__name__}: {without_secrets(first_line, url)}"


def _evaluate(objective: Objective, trial: optuna.Trial) -> float:
    """Call the objective, and translate its exceptions for Optuna."""
    try:
        value = objective(trial)
        if math.isnan(value):
            raise NegbenchError("its value is not a number")
        return value
    except Pruned as error:
        raise optuna.TrialPruned from error
    except KeyboardInterrupt as error:  # Optuna would count it as a failed trial
        raise Stopped(signal.SIGINT) from error
    except _FAULTS as error:
        raise _Unanswered from error
    except Exception as error:
        raise _Failed(error) from error


_PlainName = Annotated[str, StringConstraints(pattern=r"^[^\W_][\w.+=@-]*$")]


class _Notes(BaseModel):
    """What workers note about a trial, as somebody else's storage must hold it, too."""

    error: str = ""
    deaths: int = 0
    seconds: float = 0.0
    score: float | None = None
    runs: list[_PlainName] = []
    pruned: int | None = None


def _read_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as commands read it: FAIL if it is noted as failed; its notes without control characters.

    Its value is its score in [0, 1]; the storage has per cent, but for objectives and versions that note no score.

    Raises:
        RunError: its notes have the wrong type, or name runs elsewhere.
    """
    try:
        _Notes.model_validate(trial.user_attrs)
        if trial.state == TrialState.COMPLETE and not isinstance(trial.value, int | float):
            raise ValueError(f"its value is {short_repr(trial.value)}")
    except ValueError as error:
        key = ""
        flaw = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            flaw = first["msg"]
        raise RunError(f"trial {trial.number} of the study's storage is damaged ({key} {flaw})") from error
    notes = printable_json(trial.user_attrs)
    is_failed = trial.state == TrialState.RUNNING and bool(trial.user_attrs.get("error"))
    has_score = trial.state == TrialState.COMPLETE and notes.get(SCORE) is not None
    if is_failed or has_score or notes != trial.user_attrs:
        trial = copy.copy(trial)
        trial.user_attrs = notes
    if has_score:
        trial.values = [notes[SCORE]]
    if is_failed:
        trial.state = TrialState.FAIL
    return trial


def _describe(trial: FrozenTrial) -> str:
    """Describe a trial's result in one line."""
    point = settings_text(trial.params)
    if trial.state == TrialState.FAIL:
        return f"FAILED: {trial.user_attrs['error']} ({point})"
    if trial.state == TrialState.PRUNED:
        return f"pruned at step {trial.last_step} ({point})"
    return f"{trial.value:.4f} ({point})"


def open_book(runs: Path, name: str, storage: str | None = None) -> StudyStore:
    """Open a study of the runs folder for reading; arguments as for `StudyStore`.

    Raises:
        NegbenchError: no such study, or a storage that cannot be opened.
    """
    if not (runs / name / "study.json").exists():
        names = sorted(path.parent.name for path in runs.glob("*/study.json"))
        raise RunError(f"no study '{name}' in {runs}; known: {', '.join(names) or 'none'}")
    return StudyStore(runs / name, None, storage)
