"""What a run notes of the model while it trains: the regime card at each refresh and at the end, and score curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from negbench.config import ResolvedConfig, refresh_epochs
from negbench.contracts import Strategy
from negbench.datasets.dataset import QueryRanks
from negbench.mining import curves
from negbench.mining.mine import MiningTask
from negbench.mining.regime import regime
from negbench.mining.task import mining_task
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


def note_regime(loop: Loop, ranks: QueryRanks | None, task: MiningTask | None = None) -> None:
    """Take the card of the model as it is, for the log and for result.json.

    Args:
        loop: of the run that is trained.
        ranks: of the model as it is now on the scored split; None ranks it here.
        task: the train queries as the model sees them now; None embeds them here.
    """
    run, state = loop.run, loop.state
    with run.display.stage("regime", note=f"epoch {state.epoch}"):
        found = regime(
            task or mining_task(run.backbone, loop.mined_scene(), run.config.mining),
            ranks or evaluation.score(run.backbone, run.scene, run.scene.val),
        ).summary()
    state.regime.append({"epoch": float(state.epoch), **found})
    known = {f"regime/{name}": value for name, value in found.items() if not math.isnan(value)}
    loop.log(known, state.step, state.epoch)


def keep_curves(loop: Loop, moment: str) -> None:
    """Score curves of a sample of train queries, once for each of `curves.MOMENTS`; draws from no stream of the run.

    A study's trials, of which nothing is reported, keep none.
    """
    run, path = loop.run, loop.folder.path / curves.file_name(moment)
    if path.exists() or not (run.accelerator.is_main_process and run.config.eval.reported):
        return
    with run.display.stage("curves", note=moment):
        marked = loop.strategy if loop.strategy.scope == "corpus" else None
        task = loop.task(run.scene, marked)
        curves.score_curves(task, marked, refresh=max(loop.state.refresh, 0)).save(path)


def untrained(loop: Loop) -> dict[str, dict[str, float]]:
    """Metrics of the model before training, and of either modality alone under it."""
    run, val = loop.run, loop.run.scene.val
    with run.display.stage("evaluate", note="untrained"):
        ranks = {"untrained": evaluation.score(run.backbone, run.scene, val)}
        ranks |= evaluation.one_modality_ranks(run.backbone, run.scene, val)
    found = {name: val.dataset.summarise(r) for name, r in ranks.items()}
    loop.log({f"{run.scene.scored}/{name}": value for name, value in found["untrained"].items()}, 0, -1)
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
