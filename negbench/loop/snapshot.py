"""The model between two epochs, as mining, scoring and the records of a run look at it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from negbench.contracts import Strategy
from negbench.data.scene import Scene
from negbench.datasets.dataset import QueryRanks
from negbench.loop.objective import Objective
from negbench.loop.types import OpenRun, State
from negbench.mining.planes import planes_read
from negbench.mining.task import MiningTask, mining_task
from negbench.scoring import evaluation

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Scored:
    """A model on the scored split; `concentration` is the length of its queries' mean, 1 where all are the same."""

    ranks: QueryRanks
    metrics: dict[str, float]
    concentration: float


class Snapshot:
    """Per-model cache, cleared when the weights change.

    A refresh mines from, and the regime card looks at, the same embeddings of the train split; the card, the curve and
    the result read the same ranks.

    Args:
        run: whose backbone is looked at.
        objective: that it trains with.
        state: says the epoch.
    """

    def __init__(self, run: OpenRun, objective: Objective, state: State) -> None:
        self.run, self.objective, self.state = run, objective, state
        self._values: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Forget everything: the weights are about to change."""
        self._values.clear()

    def _once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._values:
            self._values[key] = make()
        found: Value = self._values[key]
        return found

    def mined_scene(self) -> Scene:
        """The scene whose pairs are mined. Other texts of an epoch do not change what is mined, other pairs do."""
        run = self.run
        if not run.scene.train.dataset.redraws:
            return run.scene
        return self._once("pairs", lambda: run.scene.at_epoch(run.backbone, self.state.epoch, run.config.seed))

    def task(self, scene: Scene, strategy: Strategy | None = None) -> MiningTask:
        """The train split as the model sees it now, with the planes that the strategy reads."""
        run, split = self.run, scene.train
        return mining_task(
            run.backbone,
            scene,
            run.config.mining,
            reads=() if strategy is None else planes_read(strategy, run.config.mining),
            offline=self.objective.offline,
            temperature=self.objective.divisor,
            found=self._once(("train", id(split)), lambda: evaluation.embed(run.backbone, scene, split)),
        )

    def scored(self) -> Scored:
        """The scored split's ranks."""
        run, scene = self.run, self.run.scene

        def make() -> Scored:
            with run.display.stage("evaluate", note=f"epoch {self.state.epoch}/{run.config.train.epochs}"):
                found = evaluation.embed(run.backbone, scene, scene.val)
                ranks = evaluation.rank(scene.val, found.queries, found.candidates)
                return Scored(ranks, scene.val.dataset.summarise(ranks), float(found.queries.mean(0).norm()))

        return self._once("scored", make)

    def dev(self) -> dict[str, float] | None:
        """Metrics of the dev part; None where there is none, or where it is what is scored anyway."""
        run, scene = self.run, self.run.scene
        if scene.dev is None or scene.dev is scene.val:
            return None
        dev = scene.dev

        def make() -> dict[str, float]:
            with run.display.stage("evaluate"):
                return evaluation.measure(run.backbone, scene, dev)

        return self._once("dev", make)
