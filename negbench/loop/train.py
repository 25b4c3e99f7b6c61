"""The training loop: mine, train, score, checkpoint, epoch by epoch. Read `train` top to bottom.

One configuration gives one result: initial weights, batches, draws and dropout come from four streams of the seed, so
two strategies with one seed start from identical weights and see identical batches. On the CPU a run that was
interrupted and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from negbench.contracts import Loss, Strategy
from negbench.data.scene import Scene, trained_state
from negbench.datasets.dataset import QueryRanks
from negbench.errors import NegbenchError
from negbench.loop import observe, record
from negbench.loop.accelerator import prepared
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import Log, Moving, State, own_randomness, stream
from negbench.loop.known import Known
from negbench.loop.memory import check_one_process
from negbench.loop.objective import Batch, Objective, StepResult
from negbench.loop.optimizer import AdamW
from negbench.loop.pools import define_pools
from negbench.loop.schedule import Stage, cosine, stages_of
from negbench.mining.planes import offline_planes, planes_read
from negbench.mining.task import MiningTask, mining_task
from negbench.registry import registry
from negbench.runfolder import RunFolder
from negbench.scoring import evaluation

if TYPE_CHECKING:
    from negbench.loop.runs import OpenRun


@dataclass(frozen=True, eq=False)
class Together:
    """What the runs of a stack share; `known` is of the model whose turn it is."""

    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    known: Known = field(default_factory=Known)


def train(run: OpenRun, folder: RunFolder, log: Log) -> dict[str, Any]:
    """Train and score; returns what result.json holds. Checkpoints after every epoch, resumes from one that is there.

    Args:
        run: ready; its backbone's weights are trained in place.
        folder: where checkpoint, metrics, ranks and weights go.
        log: called with (values by name, step, epoch) for each point of a curve.
    """
    with closing(course(run, folder, log)) as epochs:
        while True:
            try:
                loop = next(epochs)
            except StopIteration as end:
                return dict(end.value)
            loop.train_epoch()


def course(
    run: OpenRun, folder: RunFolder, log: Log, together: Together | None = None
) -> Generator[Loop, None, dict[str, Any]]:
    """All of `train` but the epochs themselves: stops where one is due, for whoever trains it; arguments as `train`.

    Args:
        together: the run is one of a stack, which keeps no checkpoints.
    """
    config, backbone, scene = run.config, run.backbone, run.scene
    epochs, main = config.train.epochs, run.accelerator.is_main_process
    strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    loss: Loss = registry.make("losses", config.loss.name, **config.loss.options)
    # before a checkpoint is read: the plane "initial" is of the weights as loaded
    offline = offline_planes(planes_read(strategy, config.mining), config, backbone, scene, run.display)
    objective = Objective(backbone, strategy, loss, scene, config.mining, config.hybrid, offline)
    check_one_process(strategy, run.accelerator.num_processes)
    model: Any = objective
    if together is not None:
        optimizer, schedule = together.optimizer, together.schedule
    else:
        groups = backbone.parameter_groups(config.train.lr, config.train.weight_decay)
        optimizer = AdamW([*groups, *objective.parameter_groups(config.train.lr)])
        schedule = cosine(optimizer, config, math.ceil(len(scene.train.dataset.queries) / config.train.batch_size))
        # the schedule is not prepared: accelerate would step it once per process, and it counts batches
        model, optimizer = prepared(run.accelerator, objective, optimizer)
    streams = {name: stream(config.seed, name) for name in ("batches", "draws")}
    moving = Moving(objective, optimizer, schedule, streams)
    with nullcontext() if together is not None else own_randomness(config.seed, run.accelerator.device):
        state = State() if together is not None else moving.restore(folder) or State()
        run.display.seconds.update(state.seconds)
        known = Known() if together is None else together.known
        loop = Loop(run, folder, state.noting(log), strategy, model, moving, state, known)
        if state.epoch == 0:
            state.baselines = observe.untrained(loop)
            observe.keep_curves(loop, "start")
        while state.epoch < epochs:
            loop.begin_epoch()
            yield loop
            state.epoch += 1
            if state.epoch % config.eval.every == 0 or state.epoch == epochs:
                loop.score()
            if main and together is None:
                state.seconds = dict(run.display.seconds)
                moving.save(folder, state)
        observe.note_regime(loop)
        observe.keep_curves(loop, "end")
        if config.eval.select != "last":
            backbone.load_state_dict(state.best_weights, strict=False)
            with run.display.stage("evaluate"):
                ranks = evaluation.score(backbone, scene, scene.val)
        else:
            ranks = loop.scored().ranks
        details = record.details(run, objective, state, ranks, observe.baselines(loop))
        if main:
            folder.write_metrics(state.points)
            folder.write_ranks(ranks.to_frame())
            folder.write_weights(trained_state(backbone), {"run": folder.run_id, "hash": run.hash})
            folder.write_result(details)
    return details


@dataclass(frozen=True, eq=False)
class Scored:
    """A model on the scored split; `concentration` is the length of its queries' mean, 1 where all are the same."""

    ranks: QueryRanks
    metrics: dict[str, float]
    concentration: float


@dataclass(frozen=True, eq=False)
class Loop:
    """The steps of `train`, on the one `state` that they move."""

    run: OpenRun
    folder: RunFolder
    log: Log
    strategy: Strategy
    model: Any  # the objective, wrapped by accelerate where there are several processes
    moving: Moving
    state: State
    known: Known = field(default_factory=Known)

    # --- negatives ---------------------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> list[Stage]:
        """All of the run."""
        return stages_of(self.strategy, self.run.config)

    @property
    def stage(self) -> Stage:
        """That of the epoch."""
        return next(stage for stage in self.stages if self.state.epoch < stage.end)

    def begin_epoch(self) -> None:
        """Take up the epoch's strategy, and define pools where that is due."""
        stage, state = self.stage, self.state
        self.moving.objective.take(stage.strategy)
        if stage.strategy.scope == "batch":
            state.negatives = None
        if state.epoch in stage.refreshes:
            warm = stage.kept and state.epoch > 0 and state.refresh == -1
            mined = define_pools(self, stage)
            observe.note_regime(self)
            if warm:  # pools of other pairs than the run's own say nothing of these
                observe.keep_curves(self, "warm", None if self.run.scene.train.dataset.redraws else mined)
        elif state.epoch in observe.card_epochs(self.run.config):
            observe.note_regime(self)

    def mined_scene(self) -> Scene:
        """Other texts of an epoch do not change what is mined, other pairs do."""
        run, state = self.run, self.state
        if not run.scene.train.dataset.redraws:
            return run.scene
        return self.known.once("pairs", lambda: run.scene.at_epoch(run.backbone, state.epoch, run.config.seed))

    def task(self, scene: Scene, strategy: Strategy | None) -> MiningTask:
        """The train split as the model sees it now, with the planes that the strategy reads."""
        run, objective, split = self.run, self.moving.objective, scene.train
        return mining_task(
            run.backbone,
            scene,
            run.config.mining,
            reads=() if strategy is None else planes_read(strategy, run.config.mining),
            offline=objective.offline,
            temperature=objective.divisor,
            found=self.known.once(("train", id(split)), lambda: evaluation.embed(run.backbone, scene, split)),
        )

    # --- training ----------------------------------------------------------------------------------------------------

    def train_epoch(self) -> None:
        """One pass over the train queries in the epoch's order."""
        self.known.forget()
        run, state, config = self.run, self.state, self.run.config
        scene = self._scene()
        self.moving.objective.see(scene)
        batches, count = epoch_batches(self, self.stage.strategy, scene), len(scene.train.dataset.queries)
        losses, found = list[Tensor](), list[dict[str, float]]()
        run.backbone.train()
        note = f"epoch {state.epoch + 1}/{config.train.epochs}"
        with run.display.stage("train", total=-(-count // config.train.batch_size), note=note) as advance:
            for batch in batches:
                result = self._step(batch)
                losses.append(result.loss.detach())
                state.step += 1
                state.negatives_seen += result.negatives * run.accelerator.num_processes
                if result.statistics:
                    found.append(result.statistics)
                advance(1)
        self.log_epoch(float(run.accelerator.gather(torch.stack(losses)).mean()), found)

    def log_epoch(self, mean: float, found: list[dict[str, float]]) -> None:
        """Points of an epoch that was trained: the mean of its losses, and the statistics of its batches.

        Raises:
            NegbenchError: the loss is not finite.
        """
        run, state = self.run, self.state
        if not math.isfinite(mean):
            raise NegbenchError(
                f"the loss is {mean} in epoch {state.epoch + 1}: lower train.lr or set train.max_grad_norm"
            )
        values = {
            "train/loss": mean,
            "train/lr": float(self.moving.schedule.get_last_lr()[0]),
            "train/temperature": float(run.backbone.temperature.detach()),
        }
        own_temperatures = self.moving.objective.temperatures.values()
        values |= {f"train/temperature_{term}": value for term, value in own_temperatures.items()}
        self.log(values | self._batch_behaviour(found), state.step, state.epoch)

    def _step(self, batch: Batch) -> StepResult:
        run, optimizer = self.run, self.moving.optimizer
        with run.accelerator.autocast():
            result: StepResult = self.model(batch)
        if not result.loss.requires_grad:
            raise NegbenchError(
                f"loss '{run.config.loss.name}' returned a number without a gradient: nothing is learned"
            )
        optimizer.zero_grad()
        run.accelerator.backward(result.loss)
        if run.config.train.max_grad_norm is not None:
            run.accelerator.clip_grad_norm_(self.model.parameters(), run.config.train.max_grad_norm)
        optimizer.step()
        self.moving.schedule.step()
        return result

    def _batch_behaviour(self, found: list[dict[str, float]]) -> dict[str, float]:
        """Means over the epoch's batches of what a batch strategy did, kept and named for the log.

        A batch without a value counts as 0; what no batch has a value of is unknown.
        """
        if not found:
            return {}
        behaviour = {}
        for name in found[0]:
            known = [batch[name] for batch in found if not math.isnan(batch[name])]
            behaviour[name] = sum(known) / len(found) if known else math.nan
        self.state.behaviour.append({"epoch": float(self.state.epoch), **behaviour})
        return {f"mining/{name}": value for name, value in behaviour.items()}

    def draws(self) -> Tensor | None:
        """[Q, num_negatives] columns of this epoch; None for a batch strategy."""
        state, count = self.state, int(self.run.config.train.num_negatives or 1)
        start = (state.epoch - state.interval_start) * count
        return None if state.negatives is None else state.negatives[:, start : start + count]

    def _scene(self) -> Scene:
        """The scene of this epoch's texts and pairs; pairs stay for an interval where negatives were mined for them."""
        run, state, data = self.run, self.state, self.run.scene.train.dataset
        kept = data.redraws and self.stage.strategy.scope == "corpus"
        return run.scene.at_epoch(run.backbone, state.interval_start if kept else state.epoch, run.config.seed)

    # --- scoring -----------------------------------------------------------------------------------------------------

    def scored(self) -> Scored:
        """The scored split's ranks of the model as it is now."""
        run, scene = self.run, self.run.scene

        def make() -> Scored:
            with run.display.stage("evaluate", note=f"epoch {self.state.epoch}/{run.config.train.epochs}"):
                found = evaluation.embed(run.backbone, scene, scene.val)
                ranks = evaluation.rank(scene.val, found.queries, found.candidates)
                return Scored(ranks, scene.val.dataset.summarise(ranks), float(found.queries.mean(0).norm()))

        return self.known.once("scored", make)

    def score(self) -> None:
        """Score val for the curve and, where an epoch is to be chosen, the part it is chosen on."""
        run, state, scene = self.run, self.state, self.run.scene
        found = self.scored()
        values = {f"{scene.scored}/{name}": value for name, value in found.metrics.items()}
        values[f"{scene.scored}/query_concentration"] = found.concentration
        more = self.known.once("also", self._score_more)
        chosen = more.get("dev", found.metrics)
        values |= {f"{name}/{measure}": value for name, metrics in more.items() for measure, value in metrics.items()}
        main = chosen[scene.val.dataset.card.main]
        if run.config.eval.select != "last" and main > state.best:
            state.best, state.best_epoch = main, state.epoch
            state.best_weights = {k: v.detach().clone() for k, v in trained_state(run.backbone).items()}
        self.log(values, state.step, state.epoch - 1)

    def _score_more(self) -> dict[str, dict[str, float]]:
        """Metrics of the part that an epoch is chosen on, "dev", and of the further benchmarks."""
        run, scene = self.run, self.run.scene
        dev = {} if scene.dev is None or scene.dev is scene.val else {"dev": scene.dev}
        with run.display.stage("evaluate"):
            return {
                name: evaluation.measure(run.backbone, scene, split) for name, split in {**dev, **scene.also}.items()
            }
