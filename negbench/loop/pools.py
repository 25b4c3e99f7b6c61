"""Define a run's pools for an interval of epochs, draw all its negatives, and store both."""

from pathlib import Path

import torch

from negbench.loop.model_cache import ModelCache
from negbench.loop.schedule import Phase
from negbench.machine.files import delete
from negbench.mining.mine import mine
from negbench.mining.mined import Mined
from negbench.mining.pool_file import PoolFiles
from negbench.store.runfolder import RunFolder


def define_pools(now: ModelCache, phase: Phase, folder: RunFolder, generator: torch.Generator) -> Mined:
    """Define the pools of the interval that starts now, and draw all its negatives into the state.

    Args:
        now: the model that mines; its state receives the negatives.
        phase: the current one.
        folder: receives the pools and the statistics of a refresh.
        generator: random stream of the draws.
    """
    run = now.run
    state = now.state
    config = now.run.config
    epoch = state.epoch
    draws_per_epoch = config.train.draws
    end = next((later for later in phase.refreshes if later > epoch), phase.end)
    if phase.is_last:
        state.refresh += 1
        refresh_count = config.schedule.refresh_counts[state.refresh]
    else:
        refresh_count = phase.refreshes.index(epoch)
    draws_per_interval = (end - epoch) * draws_per_epoch
    if not config.mining.redraw:
        draws_per_interval = draws_per_epoch  # they serve all its epochs
    scene = now.scene_to_mine()
    queries = len(scene.train.dataset.queries)
    with run.display.stage("mine", total=queries, note=f"epoch {epoch + 1}") as advance:
        task = now.task(scene, phase.mined)
        mined = mine(
            task,
            phase.mined,
            refresh=refresh_count,
            draws=draws_per_interval,
            per_epoch=draws_per_epoch if config.mining.replacement else None,
            generator=generator,
            files=PoolFiles(
                written=_file(folder, state.refresh) if phase.is_last else None,
                previous=_file(folder, state.refresh - 1) if state.refresh > 0 else None,
            ),
            progress=advance,
        )
    state.negatives = mined.negatives
    state.interval_start = epoch
    if phase.is_last:
        folder.write_table(f"mining-{state.refresh:02d}", mined.table())
        # the next refresh is compared with this one, or in a resumed run with that of the checkpoint
        needed = {_file(folder, state.refresh), _file(folder, state.checkpointed)}
        for file in {*folder.path.glob("pools-*.bits")} - needed:
            delete(file)
    return mined


def _file(folder: RunFolder, refresh: int) -> Path:
    return folder.path / f"pools-{refresh:02d}.bits"
