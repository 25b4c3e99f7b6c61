"""A study in its storage: who computes which trial, what became of it, and rescues from workers that died.

A worker holds the lock of the trial that it computes; the lock goes with the worker, however that ends. A trial that
runs and whose lock is free is failed, and queued again exactly once. Trials are asked for and ended under the study's
own lock, so that no point is computed twice and none beyond the number asked for.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from negbench import files
from negbench.errors import RunError, without_secrets
from negbench.files import DamagedError
from negbench.tracking import Pruned
from negbench.tuning.spec import StudySpec, distributions, pruner_of, sampler_of
from negbench.tuning.storage import open_storage, storage_url

_NOTED: dict[str, type] = {  # what is kept beside a trial
    "error": str,
    "runs": list,
    "seconds": float,
    "verdicts": dict,
    "deaths": int,
    "config": dict,
}
MAX_DEATHS = 5  # a point whose worker dies that often is taken for the reason, and not queued again

Wait = Literal["wait"]


def trial_folder(number: int) -> str:
    """Folder of a trial in the study's folder, and the name of its lock."""
    return f"trials/trial-{number:04d}"


@dataclass(frozen=True, eq=False)
class Claim:
    """A trial that this worker is to compute; it holds the trial as long as `held` is open.

    What the methods raise as UpdateFinishedTrialError: another worker has taken the trial over, because the connection
    that held its lock broke. Its result is not wanted any more.
    """

    trial: optuna.Trial
    spec: StudySpec
    held: ExitStack

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
        self.trial.set_user_attr(key, value)

    def report(self, step: int, value: float, *, prunable: bool) -> None:
        """The objective so far.

        Raises:
            Pruned: the trial is not worth going on with; only where `prunable`.
        """
        if self.spec.minimise is not None:
            return
        self.trial.report(value, step)
        if prunable and self.spec.prunes and self.trial.should_prune():
            raise Pruned(f"at step {step}")


class Book:
    """A study in its storage; every worker of it opens one.

    Args:
        folder: of the study.
        name: of the study in the storage.
        spec: settings; None takes those that the storage holds.
        url: of `storage_url`.
        trials: how many to make.
        on_lost: told the attributes of a trial whose worker died.

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
        on_lost: Callable[[Mapping[str, Any]], None] = lambda attributes: None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.name, self.url, self.trials = folder, name, url, trials
        self._on_lost = on_lost
        self._storage, self.hold = open_storage(url, name, folder)
        with self.hold():
            self.spec = self._agreed(spec)
            directions = (optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(seed=0),  # replaced for each trial
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
        known = optuna.get_all_study_names(self._storage)
        if self.name not in known:
            if spec is None:
                raise RunError(f"there is no study '{self.name}' in {without_secrets(self.url)}")
            return spec
        with self._records():
            stored = optuna.load_study(study_name=self.name, storage=self._storage).user_attrs.get("negbench")
        if stored is None:
            raise RunError(f"study '{self.name}' in {without_secrets(self.url)} is not negbench's: give another --name")
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
        """What the storage holds is taken apart in this block; DamagedError where it is not as negbench writes it."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            place, problem = without_secrets(self.url), f"{type(error).__name__}: {error}"
            raise DamagedError(f"{place} is damaged ({problem}): put back a copy, or give another --name") from error

    # --- trials ---------------------------------------------------------------------------------------------------

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
        """How many trials are finished, pruned, failed, lost (queued again), running, waiting."""
        found = dict.fromkeys(("finished", "pruned", "failed", "lost", "running", "waiting"), 0)
        for trial in self.frozen():
            found[_state(trial)] += 1
        return found

    def claim(self) -> Claim | Wait | None:
        """A trial to compute; "wait" while others compute the last ones, None when all is done."""
        with self.hold():
            self._rescue()
            trials, points = self.frozen(), self.spec.space.points[: self.trials]
            waiting = [trial.number for trial in trials if trial.state == TrialState.WAITING]
            if not waiting:
                open_points = [point for point in points if point not in map(_asked, trials)]
                taken = sum(_state(trial) != "lost" for trial in trials)
                if taken >= self.trials or (points and not open_points):
                    return "wait" if any(trial.state == TrialState.RUNNING for trial in trials) else None
                if open_points or not trials:
                    self.study.enqueue_trial(open_points[0] if open_points else self.spec.space.default)
            # a waiting trial is taken first; it is sampled too where its worker was killed before all was sampled
            self.study.sampler = sampler_of(self.spec, waiting[0] if waiting else len(trials))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                trial = self.study.ask(fixed_distributions=distributions(self.spec))
            held = ExitStack()
            held.enter_context(self.hold(trial_folder(trial.number), wait=False))
        return Claim(trial, self.spec, held)

    def _rescue(self) -> None:
        """Fail the trials whose worker is gone, and queue each of them again once. Under the study's lock.

        In two steps, either of which can be repeated: a worker that is killed in between loses nothing.
        """
        for trial in self.frozen():
            if trial.state == TrialState.RUNNING and self._is_dead(trial.number):
                if trial.user_attrs.get("deaths", 0) + 1 == MAX_DEATHS:
                    told = f"its worker died {MAX_DEATHS} times"
                    self._storage.set_trial_user_attr(trial._trial_id, "error", told)
                self.study.tell(trial.number, state=TrialState.FAIL)
                self._on_lost(trial.user_attrs)
        trials = self.frozen()
        again = {trial.user_attrs.get("retry_of") for trial in trials}
        for trial in trials:
            if _state(trial) == "lost" and trial.number not in again:
                deaths = trial.user_attrs.get("deaths", 0) + ("given_back" not in trial.user_attrs)
                self.study.enqueue_trial(_asked(trial), user_attrs={"retry_of": trial.number, "deaths": deaths})

    def _is_dead(self, number: int) -> bool:
        try:
            with self.hold(trial_folder(number), wait=False):
                return True
        except BlockingIOError:
            return False

    # --- ends -----------------------------------------------------------------------------------------------------

    def finish(self, claim: Claim, values: Sequence[float]) -> None:
        """The trial's objectives."""
        self._tell(claim, TrialState.COMPLETE, values)

    def prune(self, claim: Claim) -> None:
        """The trial was stopped early; the last value reported stands for it."""
        self._tell(claim, TrialState.PRUNED)

    def fail(self, claim: Claim, error: str) -> None:
        """The trial cannot be computed, and is not queued again."""
        claim.note("error", error)
        self._tell(claim, TrialState.FAIL)

    def give_back(self, claim: Claim) -> None:
        """This worker stops (Ctrl-C): the trial is to be queued again."""
        with contextlib.suppress(UpdateFinishedTrialError):
            claim.note("given_back", True)
            self._tell(claim, TrialState.FAIL)

    def _tell(self, claim: Claim, state: TrialState, values: Sequence[float] | None = None) -> None:
        with self.hold():
            if self.frozen()[claim.number].state != TrialState.RUNNING:
                raise UpdateFinishedTrialError
            self.study.tell(claim.trial, values, state=state)


def _state(trial: FrozenTrial) -> str:
    """A trial that failed without having said why lost its worker."""
    if trial.state == TrialState.FAIL:
        return "failed" if "error" in trial.user_attrs else "lost"
    return "finished" if trial.state == TrialState.COMPLETE else str(trial.state.name.lower())


def _asked(trial: FrozenTrial) -> dict[str, Any]:
    """What the trial was queued with, and what was sampled of the rest before its worker died."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


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
