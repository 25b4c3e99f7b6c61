"""The train split as a model sees it, ready to be mined."""

from __future__ import annotations

from negbench.config import MiningConfig
from negbench.contracts import Backbone
from negbench.mining.mine import MiningTask
from negbench.scene import Scene
from negbench.scoring import evaluation


def mining_task(backbone: Backbone, scene: Scene, mining: MiningConfig) -> MiningTask:
    """Embed the scene's train split with the backbone as it is now, and leave out what the run never draws."""
    found = evaluation.embed(backbone, scene, scene.train)
    dataset = scene.train.dataset
    return MiningTask(
        queries=found.queries,
        candidates=found.candidates,
        target=dataset.target_columns,
        group=dataset.group_index,
        groups=list(dataset.groups.values()),
        excluded=scene.train.excluded(mining),
        relevant=dataset.relevant,
    )
