"""How much each knob matters, from a study's finished trials."""

from __future__ import annotations

import warnings

import optuna
from optuna.trial import FrozenTrial, TrialState

from negbench.tuning.book import Book

_FEWEST = 4  # finished trials below which an importance says nothing
_SEED = 0  # of the forest: the same study gives the same numbers


def importance(book: Book) -> dict[str, float]:
    """Share of the variance of recall over the searched space that each knob explains alone, most first, summing to 1.

    fANOVA (Hutter, Hoos, Leyton-Brown: An efficient approach for assessing hyperparameter importance, ICML 2014), a
    random forest fitted to the finished trials: with a few dozen of them it ranks knobs and measures nothing exactly.

    Returns:
        Empty with fewer than four finished trials, or where recall did not vary.
    """
    done = [trial for trial in book.frozen() if trial.state == TrialState.COMPLETE]
    if len(done) < _FEWEST or len({trial.values[0] for trial in done}) == 1:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_SEED)
        shares: dict[str, float] = optuna.importance.get_param_importances(
            book.study, evaluator=evaluator, target=_recall
        )
    return shares


def _recall(trial: FrozenTrial) -> float:
    return float(trial.values[0])
