"""Tell what runs take: time a step, a refresh and a scoring of each kind of run, and count how often each occurs.

This is known before any run has finished. Only backbones that hold their features are timed: for others,
weights would have to be loaded and images encoded first. Nothing is stored, and loading the data is not counted.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice, pairwise

import torch

from negbench.contracts import HoldsFeatures, Strategy
from negbench.data.scene import DataCache, Splits, threads
from negbench.display import Display, log
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import TrainingParts, seeded_randomness
from negbench.loop.model_cache import ModelCache
from negbench.loop.objective import Batch
from negbench.loop.observe import regime_epochs
from negbench.loop.runs import open_run
from negbench.loop.schedule import Phase, phases_of
from negbench.loop.train import train_epoch, training_parts
from negbench.loop.types import OpenRun, PlannedRun, State
from negbench.mining.mine import mine
from negbench.mining.mined import Mined
from negbench.mining.regime import Regime, regime
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # only estimates

_QUERIES = 512  # of a timed refresh, at most
_STEPS = 4
_STORED = 0.3  # seconds that a run's files and their copy in MLflow take
_WORLDS = {"dataset": {"world"}, "backbone": {"world"}}


class RunTimer:
    """Tells the seconds that runs take; what several runs have in common is timed once."""

    def __init__(self, cache: DataCache) -> None:
        self._cache = cache
        self._seconds_of = dict[Hashable, float]()

    def seconds(self, planned: PlannedRun) -> float:
        """Return what a run takes on an idle core; 0 if it cannot be timed."""
        config = planned.config
        backbones = (config.backbone, *config.mining.backbones)
        if not all(issubclass(registry.get("backbones", section.name), HoldsFeatures) for section in backbones):
            return 0.0
        try:
            with threads(config.compute.threads), seeded_randomness(config.seed, torch.device("cpu")):
                return self._seconds(planned)
        except Exception:  # whatever a plug-in raises: its own run reports it
            log.debug("%s is not timed", config.strategy.name, exc_info=True)
            return 0.0

    def _seconds(self, planned: PlannedRun) -> float:
        config = planned.config
        splits = self._cache.splits(config)
        parts = _PartTimer(planned, self._cache)
        phases = phases_of(parts.strategy, config)
        data = (config.model_dump_json(include={"dataset", "backbone"}, exclude=_WORLDS), len(splits.train.queries))
        settings = config.model_dump_json(include={"loss", "mining", "hybrid"})
        rules = (settings, config.train.draws, config.train.batch_size)

        def time_once(measure: Callable[[], float], *key: Hashable) -> float:
            if key not in self._seconds_of:
                self._seconds_of[key] = measure()
            return self._seconds_of[key]

        total = _STORED
        total += _count_regime_cards(config, phases) * time_once(parts.regime_card, "regime_card", data)
        scoring = time_once(parts.scoring, "scoring", data, len(splits.val.queries))
        total += _count_rankings(config, phases, splits) * scoring
        begin = 0
        for phase in phases:
            if phase.refreshes:
                refresh = time_once(partial(parts.refresh, phase), "refresh", data, rules, repr(phase.mined))
                total += len(phase.refreshes) * refresh
            epoch = time_once(partial(parts.epoch, phase), "epoch", data, rules, repr(phase.strategy))
            total += (phase.end - begin) * epoch
            begin = phase.end
        return total


def _count_regime_cards(config: ResolvedConfig, phases: Sequence[Phase]) -> int:
    """Return the number of a run's regime cards, and of its score curves, each of which takes as long."""
    count = len(regime_epochs(config, phases)) + 1  # the last at the end
    if config.eval.reported:
        count += 1  # the curves at the start
        if any(config.schedule.refresh_epochs[:1]):
            count += 1  # and those after the warm-up
    return count


def _count_rankings(config: ResolvedConfig, phases: Sequence[Phase], splits: Splits) -> float:
    """Return how often a run ranks the scored split; other splits count by their queries."""
    epochs = config.train.epochs
    on_curve = {*range(0, epochs, config.eval.every), epochs}
    rankings: float = len(on_curve | regime_epochs(config, phases))
    if config.eval.select != "last":
        rankings += 1
    if config.eval.reported:
        rankings += 4  # by one modality alone
        if config.eval.select == "dev":
            rankings += len(on_curve) - 1
    if splits.also:
        rankings += len(on_curve) * len(splits.also.queries) / len(splits.val.queries)
    return rankings


class _PartTimer:
    """Times parts of a run, which is opened for the first of them."""

    def __init__(self, planned: PlannedRun, cache: DataCache) -> None:
        section = planned.config.strategy
        self._planned = planned
        self._cache = cache
        self.strategy: Strategy = registry.make("strategies", section.name, **section.options)

    @cached_property
    def _run(self) -> OpenRun:
        return open_run(self._planned, Display(), self._cache)

    @cached_property
    def _training(self) -> TrainingParts:
        return training_parts(self._run, self.strategy)

    @cached_property
    def _now(self) -> ModelCache:
        return ModelCache(self._run, self._training.objective, State())

    def _least(self, action: Callable[[], object]) -> float:
        """Return the seconds of the faster of two calls: the first may compile, or fill caches."""
        run = self._run
        now = self._now
        on_core = run.precision.device.type == "cpu" and run.config.compute.threads == 1
        clock = time.process_time if on_core else time.perf_counter  # as if idle, however busy the core is now
        times = [clock()]
        for _ in range(2):
            now.clear()
            action()
            times.append(clock())
        return min(after - before for before, after in pairwise(times))

    def scoring(self) -> float:
        return self._least(self._now.scores)

    def regime_card(self) -> float:
        def take_regime_card() -> Regime:
            return regime(self._now.task(self._run.scene))

        return self._least(take_regime_card)

    def _mining(self, phase: Phase) -> Callable[[], Mined]:
        run = self._run
        task = self._now.task(run.scene, phase.mined)
        draws = run.config.train.draws
        per_epoch = draws if run.config.mining.replacement else None
        part = task.shard(torch.arange(min(_QUERIES, len(task.queries))))
        epochs = -(-phase.end // len(phase.refreshes)) if run.config.mining.redraw else 1

        def mine_part() -> Mined:
            generator = self._training.streams["draws"]
            return mine(part, phase.mined, refresh=0, generator=generator, draws=draws * epochs, per_epoch=per_epoch)

        return mine_part

    def refresh(self, phase: Phase) -> float:
        queries = len(self._run.scene.train.dataset.queries)
        return self._least(self._mining(phase)) * max(1.0, queries / _QUERIES)

    def epoch(self, phase: Phase) -> float:
        run = self._run
        parts = self._training
        now = self._now
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

        step = self._least(train) / len(steps)
        return self._least(batches) + step * run.config.train.steps(queries)
