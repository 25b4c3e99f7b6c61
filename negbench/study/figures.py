"""What optuna draws of a study, as plotly figures; and the importance of each knob."""

from __future__ import annotations

import warnings
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from negbench.study.book import Book

_FEWEST = 4  # finished trials below which an importance says nothing
_IMPORTANCE_SEED = 0  # of the forest: the same study gives the same numbers


def importance(book: Book) -> dict[str, float]:
    """Share of the variance of recall over the searched space that each knob explains alone (fANOVA), summing to 1.

    Hutter, Hoos, Leyton-Brown: An efficient approach for assessing hyperparameter importance, ICML 2014. From finished
    trials; empty below four of them, or where recall did not vary.
    """
    done = [trial for trial in book.frozen() if trial.state == TrialState.COMPLETE]
    if len(done) < _FEWEST or len({trial.values[0] for trial in done}) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_IMPORTANCE_SEED)
    found: dict[str, float] = optuna.importance.get_param_importances(book.study, evaluator=evaluator, target=_recall)
    return found


def figures(book: Book) -> dict[str, Any]:
    """Title -> plotly figure: history, importance, the band's plane, parallel coordinates, the front."""
    done = [trial for trial in book.frozen() if trial.state == TrialState.COMPLETE]
    if not done:
        return {}
    single = book.spec.minimise is None
    named: dict[str, Any] = {"target": _recall, "target_name": "recall on the dev part"}
    draw = optuna.visualization
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental parts, and pairs of knobs with too few trials to interpolate
        found["History"] = draw.plot_optimization_history(book.study, **named)
        if single:
            found["Recall by epoch"] = draw.plot_intermediate_values(book.study)
        shares = importance(book)
        if shares:
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_IMPORTANCE_SEED)
            found["Importance"] = draw.plot_param_importances(book.study, evaluator=evaluator, **named)
        pair = plane(book, shares)
        if pair and len(done) >= _FEWEST:
            found["Plane of the band" if _band(book) else "Plane of two knobs"] = draw.plot_contour(
                book.study, params=list(pair), **named
            )
        found["Parallel coordinates"] = draw.plot_parallel_coordinate(book.study, **named)
        if not single:
            names = ["recall on the dev part", str(book.spec.minimise)]
            found["Pareto front"] = draw.plot_pareto_front(book.study, target_names=names)
    for title, figure in found.items():
        figure.update_layout(title=title)
    return found


def plane(book: Book, shares: dict[str, float]) -> tuple[str, str] | None:
    """The two knobs of the contour: start and width of the band, else the two that matter most."""
    if band := _band(book):
        return band
    first = [*shares, *(knob.key for knob in book.spec.space.knobs if knob.key not in shares)]
    return (first[0], first[1]) if len(first) > 1 else None


def _band(book: Book) -> tuple[str, str] | None:
    space = book.spec.space
    keys = {knob.key for knob in space.knobs}
    for start, width in [(f"strategy.{space.band.start}", space.band.key)] if space.band else []:
        if {start, width} <= keys:
            return start, width
    return None


def _recall(trial: FrozenTrial) -> float:
    return float(trial.values[0])
