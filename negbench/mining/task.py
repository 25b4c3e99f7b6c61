"""The train split as a model sees it, ready to be mined."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from negbench.config import MiningConfig
from negbench.contracts import Backbone, PlaneName
from negbench.data.scene import Scene
from negbench.mining.filters import Filters
from negbench.mining.mine import MiningTask
from negbench.mining.planes import Plane, live_planes, selected
from negbench.scoring import evaluation


def mining_task(
    backbone: Backbone,
    scene: Scene,
    mining: MiningConfig,
    *,
    reads: Collection[PlaneName] = (),
    offline: Mapping[str, Plane] | None = None,
    temperature: float | None = None,
    found: evaluation.Embeddings | None = None,
) -> MiningTask:
    """Embed the scene's train split with the backbone as it is now, and leave out what the run never draws.

    Args:
        backbone: scores.
        scene: its train split.
        mining: what is never drawn, and filters; their planes are among `reads` or `offline` with the strategy's.
        reads: planes that the task has to hold (`planes_read`).
        offline: those of them that were made before (`offline_planes`).
        temperature: that of the loss; None takes the backbone's.
        found: the train split's embeddings, where they are known.
    """
    found = found or evaluation.embed(backbone, scene, scene.train)
    dataset = scene.train.dataset
    return MiningTask(
        queries=found.queries,
        candidates=found.candidates,
        target=dataset.target_columns,
        group=dataset.group_index,
        groups=list(dataset.groups.values()),
        excluded=scene.train.excluded(mining),
        relevant=dataset.relevant,
        temperature=float(backbone.temperature.detach()) if temperature is None else temperature,
        filters=Filters.of(mining),
        planes={**live_planes(reads, backbone, scene, found.candidates), **selected(offline or {}, reads)},
    )
