"""Tell what runs take: time a step, a refresh and a scoring of each kind of run, and count how often each occurs.

This is known before any run has finished. Only backbones that hold their features are timed: for others,
weights would have to be loaded and images encoded first. Nothing is stored, and loading the data is not counted.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from itertools import islice, pairwise

import torch

from negbench.contracts import HoldsFeatures, Strategy
from negbench.data.scene import DataCache, threads
from negbench.display import Display, log
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import TrainingParts, own_randomness
from negbench.loop.model_cache import ModelCache
from negbench.loop.objective import Batch
from negbench.loop.observe import regime_epochs
from negbench.loop.runs import open_run
from negbench.loop.schedule import Phase, phases_of
from negbench.loop.train import train_epoch, training_parts
from negbench.loop.types import OpenRun, PlannedRun, State
from negbench.mining.mine import mine
from negbench.mining.mined import Mined
from negbench.mining.regime import regime
from negbench.plugins.registry import registry

MOVES_SCORES = False  # only estimates

_QUERIES = 512  # of a timed refresh, at most
_STEPS = 4
_STORED = 0.3  # seconds that a run's files and their copy in MLflow take
_WORLDS = {"dataset": {"world"}, "backbone": {"world"}}


class RunTimer:
    """Tells the seconds that runs take; what several runs have in common is timed once."""

    def __init__(self, cache: DataCache) -> None:
        self._scenes, self._known = cache, dict[Hashable, float]()

    def seconds(self, planned: PlannedRun) -> float:
        """Return what a run takes on an idle core; 0 if it cannot be timed."""
        config = planned.config
        backbones = (config.backbone, *config.mining.backbones)
        if not all(issubclass(registry.get("backbones", section.name), HoldsFeatures) for section in backbones):
            return 0.0
        try:
            with threads(config.compute.threads), own_randomness(config.seed, torch.device("cpu")):
                return self._seconds(planned)
        except Exception:  # whatever a plug-in raises: its own run reports it
            log.debug("%s is not timed", config.strategy.name, exc_info=True)
            return 0.0

    def _seconds(self, planned: PlannedRun) -> float:
        config = planned.config
        splits = self._scenes.splits(planned.config)
        parts = _PartTimer(planned, self._scenes)
        queries = len(splits.train.queries)
        epochs = config.train.epochs
        chosen = config.eval.select
        data = (config.model_dump_json(include={"dataset", "backbone"}, exclude=_WORLDS), queries)
        named = config.model_dump_json(include={"loss", "mining", "hybrid"})
        rules = (named, config.train.draws, config.train.batch_size)

        def once(what: str, *key: Hashable, of: tuple[Phase, ...] = ()) -> float:
            if (what, key) not in self._known:
                self._known[what, key] = getattr(parts, what)(*of)
            return self._known[what, key]

        phases = phases_of(parts.strategy, config)
        regime_at = regime_epochs(config, phases)
        scored = {*range(0, epochs, config.eval.every), epochs}
        curves = config.eval.reported * (1 + any(config.schedule.refresh_epochs[:1]))  # as long as a regime card
        rankings = len(scored | regime_at) + 4 * config.eval.reported + (chosen != "last")  # four by one modality alone
        if chosen == "dev" and config.eval.reported:
            rankings += len(scored) - 1
        also = len(scored) * len(splits.also.queries) / len(splits.val.queries) if splits.also else 0
        total = _STORED + (len(regime_at) + 1 + curves) * once("regime_card", data)
        total += (rankings + also) * once("scoring", data, len(splits.val.queries))
        for phase, begin in zip(phases, [0, *(phase.end for phase in phases[:-1])], strict=True):
            if phase.refreshes:
                total += len(phase.refreshes) * once("refresh", data, rules, repr(phase.mined), of=(phase,))
            total += (phase.end - begin) * once("epoch", data, rules, repr(phase.strategy), of=(phase,))
        return total


class _PartTimer:
    """Times parts of a run, which is opened for the first of them."""

    def __init__(self, planned: PlannedRun, cache: DataCache) -> None:
        self._planned, self._scenes, named = planned, cache, planned.config.strategy
        self.strategy: Strategy = registry.make("strategies", named.name, **named.options)

    @cached_property
    def _opened(self) -> tuple[OpenRun, TrainingParts, ModelCache]:
        run = open_run(self._planned, Display(), self._scenes)
        parts = training_parts(run, self.strategy)
        return run, parts, ModelCache(run, parts.objective, State())

    def _least(self, action: Callable[[], object]) -> float:
        """Return the seconds of the faster of two calls: the first may compile, or fill caches."""
        run, _, now = self._opened
        on_core = run.precision.device.type == "cpu" and run.config.compute.threads == 1
        clock = time.process_time if on_core else time.perf_counter  # as if idle, however busy the core is now
        times = [clock()]
        for _ in range(2):
            now.clear()
            action()
            times.append(clock())
        return min(after - before for before, after in pairwise(times))

    def scoring(self) -> float:
        return self._least(self._opened[2].scored)

    def regime_card(self) -> float:
        run, _, now = self._opened
        return self._least(lambda: regime(now.task(run.scene)))

    def _mining(self, phase: Phase) -> Callable[[], Mined]:
        run, parts, now = self._opened
        task = now.task(run.scene, phase.mined)
        draws = run.config.train.draws
        per_epoch = draws if run.config.mining.replacement else None
        part = task.shard(torch.arange(min(_QUERIES, len(task.queries))))
        epochs = -(-phase.end // len(phase.refreshes)) if run.config.mining.redraw else 1

        def mine_part() -> Mined:
            generator = parts.streams["draws"]
            return mine(part, phase.mined, refresh=0, generator=generator, draws=draws * epochs, per_epoch=per_epoch)

        return mine_part

    def refresh(self, phase: Phase) -> float:
        queries = len(self._opened[0].scene.train.dataset.queries)
        return self._least(self._mining(phase)) * max(1.0, queries / _QUERIES)

    def epoch(self, phase: Phase) -> float:
        run, parts, now = self._opened
        queries = len(run.scene.train.dataset.queries)
        parts.objective.use_strategy(phase.strategy)
        if phase.refreshes:
            mined = self._mining(phase)().negatives
            now.state.negatives = mined[torch.arange(queries) % len(mined)]

        def batches() -> Iterator[Batch]:
            now.state.forget_steps()
            parts.objective.use_epoch(run.scene.at_epoch(run.backbone, 0, run.config))
            return epoch_batches(run, parts.objective, now.state, parts.streams, self.strategy)

        steps = list(islice(batches(), _STEPS))

        def train() -> None:
            now.state.forget_steps()
            train_epoch(run, parts, now.state, iter(steps))

        taken = self._least(train)
        return self._least(batches) + taken * run.config.train.steps(queries) / len(steps)
