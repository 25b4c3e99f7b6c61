"""Results of a study: the best trials, the importance of options, and the best trial's point on fresh seeds."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from negbench.analysis.deciding import open_strategies
from negbench.analysis.verdicts import Rules
from negbench.campaign.driver import Course, Done, Round
from negbench.campaign.seeds import look_by_look
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.grid.cells import Cell, plan_cells
from negbench.grid.comparison import FINAL, ComparisonFolder, check_name
from negbench.loop.runs import DATA
from negbench.settings.config import resolve
from negbench.tuning.book import StudyStore
from negbench.tuning.spec import StudySpec

_SEED = 0  # of fANOVA's random forest and of the draws, so that the same study gives the same tables
_DRAWS = 10  # of the trials, with replacement; more than one that turns the order of the options hides it
FEWEST = 10  # with fewer finished trials, an importance means nothing


# --- trials ------------------------------------------------------------------------------------------------------


def completed_trials(book: StudyStore) -> list[FrozenTrial]:
    """Return the completed trials, best recall on the dev part first."""
    done = [trial for trial in book.frozen() if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: (-trial.values[0], trial.number))


def is_default(book: StudyStore, trial: FrozenTrial) -> bool:
    """Whether a trial's point is the default; trial 0 is not if the default lies outside a range."""
    space = book.spec.space
    base = book.spec.config
    at_point = space.config(base, trial.params, 0, closed=False)
    at_default = space.config(base, {}, 0, closed=False)
    return resolve(at_point).identity() == resolve(at_default).identity()


def epochs_of(book: StudyStore, trial: FrozenTrial) -> int | None:
    """Return the epochs that a trial trained, of all its seeds; None before the first scored one."""
    if trial.state == TrialState.COMPLETE:
        return resolve(book.spec.config).train.epochs * len(book.spec.seeds)
    return None if trial.last_step is None else trial.last_step + 1


def importance(book: StudyStore) -> dict[str, float]:
    """Return each searched option's own share of the variance of recall over the space, largest first, summing to 1.

    Optuna's fANOVA (Hutter, Hoos, Leyton-Brown: An efficient approach for assessing hyperparameter importance, ICML
    2014): with a few dozen trials it ranks options, but its numbers are not precise.

    Returns:
        Empty with fewer than ten finished trials, where recall did not vary, or where the order depends on which of the
        trials there are.
    """
    done = sorted(completed_trials(book), key=lambda trial: trial.number)  # the order of the rows moves the forest
    if len(done) < FEWEST:
        return {}
    shares = _fanova(done)
    if not shares:
        return {}
    generator = np.random.default_rng(_SEED)
    other_orders = 0
    for _ in range(_DRAWS):
        drawn = [done[index] for index in generator.integers(len(done), size=len(done))]
        if list(_fanova(drawn)) != list(shares):
            other_orders += 1
        if other_orders > 1:
            return {}
    return shares


def _fanova(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Return fANOVA's shares; none where recall does not vary."""
    if len({trial.value for trial in trials}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(trials)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_SEED)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


# --- the best beside the default ---------------------------------------------------------------------------------


def best_and_default(book: StudyStore, fresh: Sequence[int], rules: Rules) -> Course:
    """Ask for the best trial's point and the default on fresh seeds, on the whole train split, scored on val.

    Args:
        book: a study with a finished trial.
        fresh: seeds that no trial used; with looks, those of the first look.
        rules: how they are compared; with looks, seeds are added until the difference is decided.

    Returns:
        No outcomes if the default is itself the best; else those of the comparison `final_name`.

    Raises:
        NegbenchError: no trial is finished.
        OptionError: something of another kind has the comparison's name.
    """
    best = next(iter(completed_trials(book)), None)
    if best is None:
        raise NegbenchError(f"study '{book.name}' has no finished trial")
    runs = book.folder.parent
    folder = ComparisonFolder(runs / final_name(book.name), {"kind": "final"})
    check_name(folder.path, "final")
    if is_default(book, best):
        return Done(folder)
    points = {"default": {}, "best": best.params}
    first = Round(folder, final_cells(book.spec, points, runs, fresh))
    return (yield from look_by_look(first, rules.looks, open_strategies(folder, rules)))


def final_cells(spec: StudySpec, points: Mapping[str, dict[str, Any]], runs: Path, seeds: Sequence[int]) -> list[Cell]:
    """Plan the runs of points, name -> values of searched options, on the whole train split."""
    configs = []
    columns = []
    for name, point in points.items():
        for seed in seeds:
            configs.append(spec.space.config(spec.config, point, seed, closed=False))
            columns.append({"strategy": f"{spec.config.strategy.name} {name}"})
    return plan_cells(configs, runs, Display(), DATA, columns)


def final_name(study: str) -> str:
    """Return the name of the comparison of a study's best trial with the default."""
    return f"{study}{FINAL}"
