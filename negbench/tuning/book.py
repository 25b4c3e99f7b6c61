"""A study in its storage: Optuna computes its trials, and a trial whose worker died is queued again.

A worker holds the lock of the trial that it computes; however the worker ends, the lock is released. A trial that is
marked as running and whose lock is free goes back into the queue under its own number: samplers and pruners depend on
the number, so a killed study tries the same points. One worker at a time asks for a trial, under the study's lock, so
that no point is computed twice and none beyond the number asked for.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from negbench import files
from negbench.errors import NegbenchError, RunError, without_secrets
from negbench.files import DamagedError
from negbench.grid.comparison import check_place
from negbench.signals import Stopped
from negbench.tracking import Pruned
from negbench.tuning.spec import SeededSampler, StudySpec, pruner_of
from negbench.tuning.storage import open_storage, storage_url

_NOTED: dict[str, type] = {"error": str, "runs": list, "seconds": float, "deaths": int, "config": dict}  # of a trial
MAX_DEATHS = 5  # a trial whose worker dies that often is taken for the cause, and fails
_POLL = 0.5  # seconds between two looks while other workers compute the last trials

Objective = Callable[[optuna.Trial], Sequence[float]]
Report = Callable[[str], None]


def trial_folder(number: int) -> str:
    """Folder of a trial in the study's folder, and the name of its lock."""
    return f"trials/trial-{number:04d}"


class Book:
    """A study in its storage; every worker of it opens one.

    Args:
        folder: of the study.
        name: of the study in the storage.
        spec: settings; None takes those that the storage holds.
        url: of `storage_url`.
        trials: how many to make.

    Raises:
        RunError: a study of that name with other settings or another version of the code, or none where spec is None.
        OptionError: a storage that cannot be opened, or a sampler that is not installed.
    """

    def __init__(self, folder: Path, name: str, spec: StudySpec | None, url: str, trials: int = 0) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        check_place(folder, "study")
        self.folder, self.name, self.url, self.trials = folder, name, url, trials
        self._storage, self.hold = open_storage(url, name, folder)
        with self.hold():
            self.spec = self._agreed(spec)
            directions = (optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                sampler=SeededSampler(self.spec),
                pruner=pruner_of(self.spec),
                directions=directions[: 1 if self.spec.minimise is None else 2],
                load_if_exists=True,
            )
            if "negbench" not in self.study.user_attrs:
                self.study.set_user_attr("negbench", self.spec.dump())
        files.write_json(
            folder / "study.json", {"name": name, "storage": without_secrets(url), "spec": self.spec.dump()}
        )

    def _agreed(self, spec: StudySpec | None) -> StudySpec:
        """This machine's settings, which must agree with the stored ones; those where none are given."""
        place = without_secrets(self.url)
        if self.name not in optuna.get_all_study_names(self._storage):
            if spec is None:
                raise RunError(f"there is no study '{self.name}' in {place}")
            return spec
        with self._records():
            stored = optuna.load_study(study_name=self.name, storage=self._storage).user_attrs.get("negbench")
        if stored is None:
            raise RunError(f"study '{self.name}' in {place} is not negbench's: give another --name")
        with self._records():
            kept = StudySpec.load(stored)
        if spec is None:
            return kept
        theirs, mine = kept.shared(), spec.shared()
        if differing := [key for key in mine if mine[key] != theirs.get(key)]:
            raise RunError(
                f"study '{self.name}' was started with another {', '.join(differing)}, and its trials would not be "
                "comparable: give another --name"
            )
        return spec

    @contextlib.contextmanager
    def _records(self) -> Iterator[None]:
        """Read what the storage holds in this block; DamagedError where it is not as negbench writes it."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            place, problem = without_secrets(self.url), f"{type(error).__name__}: {error}".split("\n")[0]
            raise DamagedError(f"{place} is damaged ({problem}): put back a copy, or give another --name") from error

    def frozen(self) -> list[FrozenTrial]:
        """All trials, in order of number.

        Raises:
            DamagedError: a finished trial without its values, or what is noted of a trial has another type.
        """
        found: list[FrozenTrial] = self.study.get_trials(deepcopy=False)
        objectives = len(self.study.directions)
        with self._records():
            for trial in found:
                if trial.state == TrialState.COMPLETE and len(trial.values or ()) != objectives:
                    raise ValueError(f"trial {trial.number} is finished and has no value")
                for key, kind in _NOTED.items():
                    if not isinstance(trial.user_attrs.get(key, kind()), kind):
                        raise ValueError(f"'{key}' of trial {trial.number} is no {kind.__name__}")
        return found

    def counts(self) -> dict[str, int]:
        """How many trials are finished, pruned, failed, running, waiting."""
        words = {TrialState.COMPLETE: "finished", TrialState.FAIL: "failed"}
        found = dict.fromkeys(("finished", "pruned", "failed", "running", "waiting"), 0)
        for trial in self.frozen():
            found[words.get(trial.state, trial.state.name.lower())] += 1
        return found

    # --- computing ------------------------------------------------------------------------------------------------

    def work(self, objective: Objective, report: Report) -> int:
        """Compute trials until the study has all that are asked for; returns how many this worker made.

        Args:
            objective: values of a trial whose `params` are set; raises `Pruned` to give it up.
            report: called with a line about each trial.

        Raises:
            NegbenchError: the default itself (trial 0) cannot be computed.
        """
        made = 0
        while True:
            with ExitStack() as turn:
                turn.enter_context(self.hold())
                self._requeue_dead(report)
                number = self._next()
                if isinstance(number, int):
                    self._compute(number, objective, turn, report)
                    made += 1
            if number is None:
                return made
            if number == "wait":
                time.sleep(_POLL)

    def _next(self) -> int | Literal["wait"] | None:
        """Number of the next trial; "wait" while others compute the last ones, None when all is done."""
        trials, points = self.frozen(), self.spec.space.points
        waiting = [trial.number for trial in trials if trial.state == TrialState.WAITING]
        if waiting:
            return waiting[0]
        number = len(trials)
        if number < min(self.trials, len(points) or self.trials):
            if points or number == 0:
                self.study.enqueue_trial(points[number] if points else self.spec.space.default)
            return number
        return "wait" if any(trial.state == TrialState.RUNNING for trial in trials) else None

    def _requeue_dead(self, report: Report) -> None:
        """Queue every trial whose worker is gone again. Under the study's lock."""
        for trial in self.frozen():
            if trial.state != TrialState.RUNNING or not self._is_dead(trial.number):
                continue
            deaths = trial.user_attrs.get("deaths", 0) + 1
            self._storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
            if deaths < MAX_DEATHS:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
                report(f"trial {trial.number}: its worker died; queued again")
            else:
                self._storage.set_trial_user_attr(trial._trial_id, "error", f"its worker died {MAX_DEATHS} times")
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _is_dead(self, number: int) -> bool:
        """Whether a trial is running and nobody holds it."""
        try:
            with self.hold(trial_folder(number), wait=False):
                return self.frozen()[number].state == TrialState.RUNNING  # it may just have ended
        except BlockingIOError:
            return False

    def _compute(self, number: int, objective: Objective, turn: ExitStack, report: Report) -> None:
        """Let Optuna compute one trial; `turn` is ended as soon as the trial is sampled and held."""

        def held_objective(trial: optuna.Trial) -> Sequence[float]:
            held.enter_context(self.hold(trial_folder(number), wait=False))
            for knob in self.spec.space.knobs:
                knob.suggest(trial)
            turn.close()
            return _evaluated(objective, trial)

        with ExitStack() as held:
            try:
                self.study.optimize(held_objective, n_trials=1, catch=(Exception,) if number else ())
            except NegbenchError as error:
                if number > 0:
                    raise
                raise NegbenchError(f"trial 0, the default, failed: {error}") from error
            except ValueError:  # Optuna's, about a trial that is finished
                if self.frozen()[number].state not in (TrialState.COMPLETE, TrialState.PRUNED):
                    raise
                report(f"trial {number}: finished by another worker, because this one lost its connection")
                return
            except BaseException as error:  # Ctrl-C, a signal
                turn.close()
                self._put_back(number)
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise error.__cause__ from None
                raise
        report(f"trial {number}: {_told(self.frozen()[number])}")

    def _put_back(self, number: int) -> None:
        """Queue a trial again that this worker leaves."""
        trials = self.frozen()
        if number < len(trials) and trials[number].state == TrialState.RUNNING:
            self._storage.set_trial_state_values(trials[number]._trial_id, TrialState.WAITING)


def _evaluated(objective: Objective, trial: optuna.Trial) -> Sequence[float]:
    """The objective with its endings in Optuna's words."""
    try:
        return objective(trial)
    except Pruned as error:
        raise optuna.TrialPruned(str(error)) from error
    except KeyboardInterrupt as error:  # Optuna would take it for a failure of the trial
        raise Stopped(signal.SIGINT) from error
    except UpdateFinishedTrialError:
        raise
    except Exception as error:
        trial.set_user_attr(
            "error", str(error) if isinstance(error, NegbenchError) else f"{type(error).__name__}: {error}"
        )
        raise


def _told(trial: FrozenTrial) -> str:
    """What became of a trial, in a line."""
    short = {key.split(".")[-1]: f"{v:.4g}" if isinstance(v, float) else v for key, v in trial.params.items()}
    point = ", ".join(f"{key}={value}" for key, value in short.items())
    if trial.state == TrialState.FAIL:
        return f"FAILED: {trial.user_attrs.get('error', 'its value is no number')} ({point})"
    if trial.state == TrialState.PRUNED:
        return f"pruned at step {trial.last_step} ({point})"
    return f"{' '.join(f'{value:.4f}' for value in trial.values)} ({point})"


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
    with files.intact(folder / "study.json"):
        title, storage = str(note["name"]), str(note["storage"])
    return Book(folder, title, None, storage if "://" in storage else storage_url(folder, None))
