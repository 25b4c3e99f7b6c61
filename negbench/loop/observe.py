"""What a run notes of the model while it trains: the regime card at each refresh and at the end, and score curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from negbench.config import ResolvedConfig, refresh_epochs
from negbench.contracts import Strategy
from negbench.mining import curves
from negbench.mining.mined import Mined
from negbench.mining.regime import regime
from negbench.scoring import evaluation

if TYPE_CHECKING:
    from negbench.loop.train import Loop

MOVES_SCORES = False  # looks on


def card_epochs(config: ResolvedConfig) -> set[int]:
    """Epochs before which the regime card is taken, beside the end.

    The start and every refresh. Where nothing is redefined (batch strategies, all of the corpus) it is taken when a
    strategy with the default schedule would redefine its pools, so that runs can be laid side by side.
    """
    own = config.schedule.refresh_epochs
    return {0, *own} if any(own) else {0, *refresh_epochs(config.train.epochs, Strategy.n_def)}


def note_regime(loop: Loop) -> None:
    """Take the card of the model as it is, for the log and for result.json."""
    run, state = loop.run, loop.state
    scene = loop.mined_scene()

    def make() -> dict[str, float]:
        ranks = loop.scored().ranks
        with run.display.stage("regime", note=f"epoch {state.epoch}"):
            return regime(loop.task(scene, None), ranks).summary()

    found = loop.known.once("regime", make)
    state.regime.append({"epoch": float(state.epoch), **found})
    known = {f"regime/{name}": value for name, value in found.items() if not math.isnan(value)}
    loop.log(known, state.step, state.epoch)


def keep_curves(loop: Loop, moment: str, mined: Mined | None = None) -> None:
    """Score curves of a sample of train queries, once for each of `curves.MOMENTS`; draws from no stream of the run.

    A study's trials, of which nothing is reported, keep none.

    Args:
        loop: of the run.
        moment: which.
        mined: the pools that the strategy has just defined, if it has.
    """
    run, path = loop.run, loop.folder.path / curves.file_name(moment)
    if path.exists() or not (run.accelerator.is_main_process and run.config.eval.reported):
        return
    with run.display.stage("curves", note=moment):
        plain = loop.known.once("curves", lambda: curves.score_curves(loop.task(run.scene, None), None))
        if loop.strategy.scope == "corpus":
            refresh = max(loop.state.refresh, 0)
            task = loop.task(run.scene, loop.strategy if mined is None else None)
            plain = curves.marked(plain, task, loop.strategy, refresh=refresh, mined=mined)
        plain.save(path)


def untrained(loop: Loop) -> dict[str, dict[str, float]]:
    """Metrics of the model before training, and of either modality alone under it."""
    run, val = loop.run, loop.run.scene.val
    own = loop.scored().metrics

    def make() -> dict[str, dict[str, float]]:
        with run.display.stage("evaluate", note="untrained"):
            single = evaluation.one_modality_ranks(run.backbone, run.scene, val)
            return {name: val.dataset.summarise(ranks) for name, ranks in single.items()}

    found = {"untrained": own, **loop.known.once("one modality", make)}
    loop.log({f"{run.scene.scored}/{name}": value for name, value in own.items()}, 0, -1)
    return found


def baselines(loop: Loop) -> dict[str, dict[str, float]]:
    """What stands beside the result: the untrained model, and either modality alone before and after."""
    run, before, val = loop.run, loop.state.baselines, loop.run.scene.val
    with run.display.stage("evaluate", note="one modality"):
        single = evaluation.one_modality_ranks(run.backbone, run.scene, val)
    return {
        "untrained": before["untrained"],
        "untrained_image_only": before["image_only"],
        "untrained_text_only": before["text_only"],
        **{name: val.dataset.summarise(found) for name, found in single.items()},
    }
