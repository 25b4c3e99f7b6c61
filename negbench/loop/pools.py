"""Pools of a run while it trains: defined for an interval of epochs, all its negatives drawn, and written down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from negbench.loop.schedule import Stage
from negbench.mining.mine import mine
from negbench.mining.mined import Mined

if TYPE_CHECKING:
    from negbench.loop.train import Loop


def define_pools(loop: Loop, stage: Stage) -> Mined:
    """Define the pools of the interval that starts now, and draw all its negatives.

    Args:
        loop: of the run; its state takes the negatives.
        stage: that of the epoch.
    """
    run, state, config = loop.run, loop.state, loop.run.config
    epoch, count = state.epoch, int(config.train.num_negatives or 1)
    end = next((b for b in stage.refreshes if b > epoch), stage.end)
    state.refresh += 1 if stage.kept else 0
    main = run.accelerator.is_main_process  # every process mines the same negatives; one keeps the pools
    scene = loop.mined_scene()
    queries = len(scene.train.dataset.queries)
    with run.display.stage("mine", total=queries, note=f"epoch {epoch + 1}") as advance:
        task = loop.task(scene, stage.mined)
        mined = mine(
            task,
            stage.mined,
            refresh=state.refresh if stage.kept else stage.refreshes.index(epoch),
            draws=(end - epoch) * count,
            per_epoch=count if config.mining.replacement else None,
            generator=loop.moving.streams["draws"],
            previous=_file(loop, state.refresh - 1) if state.refresh > 0 and main else None,
            pools=_file(loop, state.refresh) if main and stage.kept else None,
            progress=advance,
        )
    state.negatives, state.interval_start = mined.negatives, epoch
    summary = mined.summary()
    if stage.kept:
        state.behaviour.append({"epoch": float(epoch), **summary})
        if main:
            _write(loop, mined)
    loop.log({f"mining/{name}": value for name, value in summary.items()}, state.step, epoch)
    return mined


def _file(loop: Loop, refresh: int) -> Path:
    return loop.folder.path / f"pools-{refresh:02d}.bits"


def _write(loop: Loop, mined: Mined) -> None:
    """Per-query mining statistics; pools older than the last refresh are not needed any more."""
    loop.folder.write_table(f"mining-{loop.state.refresh:02d}", mined.table())
    if loop.state.refresh > 1:
        _file(loop, loop.state.refresh - 2).unlink(missing_ok=True)
