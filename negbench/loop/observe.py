"""Observe the model during training: the regime card at refreshes and at the end, and score curves."""

import math
from collections.abc import Iterable

from negbench.contracts import Strategy
from negbench.loop.model_cache import ModelCache
from negbench.loop.schedule import Phase
from negbench.loop.types import RecordPoint
from negbench.metrics.score_curves import ScoreCurves, file_name
from negbench.mining import curves
from negbench.mining.regime import regime
from negbench.scoring import evaluation
from negbench.settings.config import ResolvedConfig, refresh_epochs
from negbench.store.runfolder import RunFolder

MOVES_SCORES = False  # only observes


_REGIME_CARDS = 7  # of a run before its end: one and the ranks it needs cost more than a refresh


def regime_epochs(config: ResolvedConfig, phases: Iterable[Phase]) -> set[int]:
    """Return the epochs before which the regime card is taken; it is also taken at the end.

    These are the start and every refresh, or evenly spaced ones of more than _REGIME_CARDS. A run that never redefines
    its pools (batch strategies, the whole corpus) uses the refreshes of the default schedule, so that runs can be
    compared. A trial, which is not reported, has one at the start.
    """
    if not config.eval.reported:
        return {0}
    refreshes = {*config.schedule.refresh_epochs}.union(*(phase.refreshes for phase in phases))
    if not any(refreshes):
        refreshes = {*refresh_epochs(config.train.epochs, Strategy.n_def)}
    epochs = sorted({0, *refreshes})
    last = len(epochs) - 1
    count = min(len(epochs), _REGIME_CARDS)
    return {epochs[round(last * number / max(1, count - 1))] for number in range(count)}


def note_regime(now: ModelCache, record_point: RecordPoint) -> None:
    """Take the regime card of the current model, for the curves and for result.json."""
    state = now.state
    ranks = now.scores().ranks
    note = f"epoch {state.epoch}"

    def take_regime_card() -> dict[str, float]:
        return regime(now.task(now.scene_to_mine()), ranks).summary()

    numbers = now.once("regime", take_regime_card, "regime", note)
    state.regime.append({"epoch": float(state.epoch), **numbers})
    point = {f"regime/{name}": value for name, value in numbers.items() if not math.isnan(value)}
    record_point(point, state.step, state.epoch)


def keep_curves(now: ModelCache, folder: RunFolder, moment: str) -> None:
    """Save score curves of sampled train queries, at the "start" and after the warm-up ("warm").

    Draws from no random stream of the run. Saves nothing for a study's trials, which are not reported.
    """
    run = now.run
    path = folder.path / file_name(moment)
    if not path.exists() and run.config.eval.reported:

        def compute_curves() -> ScoreCurves:
            return curves.score_curves(now.task(run.scene))

        now.once("curves", compute_curves, "curves", moment).save(path)


def one_modality(now: ModelCache) -> dict[str, dict[str, float]]:
    """Return metrics of the reference image alone and of the text alone under the current model; none for a trial."""
    if not now.run.config.eval.reported:
        return {}
    run = now.run
    val = now.run.scene.val

    def make() -> dict[str, dict[str, float]]:
        ranks = evaluation.one_modality_ranks(run.backbone, run.scene, val, now.embeddings(val))
        return {name: val.dataset.summarise(query_ranks) for name, query_ranks in ranks.items()}

    return now.once("one modality", make, "evaluate", "one modality")


def score_untrained(now: ModelCache, record_point: RecordPoint) -> dict[str, dict[str, float]]:
    """Return metrics of the untrained model, for whole queries and for either modality alone."""
    scores = now.scores()
    data = now.run.scene.val.dataset
    values = {f"{now.run.scene.scored_split}/{name}": value for name, value in scores.metrics.items()}
    record_point(values | now.also(), 0, -1)
    alone = {f"untrained_{name}": metrics for name, metrics in one_modality(now).items()}
    mistakes = {name: value for name, value in data.summarise_mistakes(scores.ranks).items() if not math.isnan(value)}
    return {"untrained": scores.metrics | mistakes, **alone}
