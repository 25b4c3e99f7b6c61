"""The training loop: refresh, draw, train, score, checkpoint, epoch by epoch. Read `train` top to bottom.

One configuration gives one result: initial weights, batches, draws and dropout come from four streams of the seed, so
two strategies with one seed start from identical weights and see identical batches. On the CPU an
interrupted and resumed run gives bit-identical results.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from negbench.contracts import Loss, Strategy
from negbench.data.scene import Split, trained_state
from negbench.errors import NegbenchError, PausedError, out_of_memory
from negbench.loop import needs, observe, record
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import Checkpoints, TrainingParts, seeded_randomness, stream
from negbench.loop.clean import clean_queries
from negbench.loop.mining_task import listed_plane, offline_planes, planes_read
from negbench.loop.model_cache import ModelCache
from negbench.loop.objective import Batch, Objective, StepResult
from negbench.loop.optimizer import AdamW, with_temperature_rate
from negbench.loop.pools import define_pools
from negbench.loop.progress import Progress
from negbench.loop.schedule import Phase, phases_of, rate_schedule
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun, RecordPoint, State
from negbench.machine.signals import check_stopped, finishing, stopping
from negbench.machine.team import ALONE
from negbench.mining.mined import BatchPools, batch_statistics, distinct
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig
from negbench.store.runfolder import RunFolder

_WAITING = 2**20  # scores of batches whose statistics are computed together


def train(run: OpenRun, folder: RunFolder, record_point: RecordPoint) -> dict[str, Any]:
    """Train and score, with checkpoints after epochs; resume from an existing one; return result.json's contents.

    Args:
        run: opened; its backbone's weights are trained in place.
        folder: where checkpoint, metrics, ranks and weights go.
        record_point: called with (values by name, step, epoch) for each point of a curve.
    """
    config = run.config
    strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    parts = training_parts(run, strategy)
    run.check()
    with seeded_randomness(config.seed, run.precision.device):
        state = parts.restore(folder) or State()
        state.note_plan(run.step_plan)
        run.display.seconds.update(state.seconds)
        record_point = state.wrap_recorder(record_point)
        run.team.announce("weights")
        run.team.share_weights(run.backbone)
        now = ModelCache(run, parts.objective, state)
        phases = phases_of(strategy, config)
        regime_epochs = observe.regime_epochs(config, phases)
        now.expect_embedded(*_splits_to_embed(now, phases, regime_epochs))
        if state.step == 0:
            state.baselines = observe.score_untrained(now, record_point)
            observe.keep_curves(now, folder, "start")
        checkpoints = Checkpoints(parts, folder, state, run.display.seconds)
        progress = Progress(run, folder, state, config.train.epochs * steps_of_epoch(run), record_point)
        while state.epoch < config.train.epochs:
            phase = next(phase for phase in phases if state.epoch < phase.end)
            parts.objective.use_strategy(phase.strategy)
            resumed = state.order is not None  # within this epoch, which began before the checkpoint
            if state.epoch in phase.refreshes and not resumed:
                _refresh(now, parts, phase, folder, record_point)
            elif phase.strategy.scope == "batch":
                state.negatives = None
            if state.epoch in regime_epochs and not resumed:
                observe.note_regime(now, record_point)
            if _leaves_out(config, state.epoch) and not resumed:
                embeddings = now.embeddings(run.scene.train)
                state.clean = clean_queries(config, run.scene, embeddings, parts.objective.divisor, state.epoch)
            now.clear()
            # mined pairs stay fixed for their refresh interval; texts and other pairs are the epoch's
            keeps_pairs = run.scene.train.dataset.redraws and phase.strategy.scope == "corpus"
            pairs_epoch = state.interval_start if keeps_pairs else state.epoch
            parts.objective.use_epoch(run.scene.at_epoch(run.backbone, pairs_epoch, config), state.hardest_share)
            run.team.announce("epoch", phases.index(phase), pairs_epoch)
            batches = epoch_batches(run, parts.objective, state, parts.streams, strategy)
            loss = train_epoch(run, parts, state, batches, checkpoints, progress)
            record_point(_epoch_values(run, parts, state, loss), state.step, state.epoch)
            state.end_epoch()
            now.expect_embedded(*_splits_to_embed(now, phases, regime_epochs))
            if _is_scored(now):
                score(now, record_point)
            checkpoints.after_epoch()
        observe.note_regime(now, record_point)
        if config.eval.select != "last":
            run.backbone.load_state_dict(state.best_weights, strict=False)
            run.team.announce("weights")
            run.team.share_weights(run.backbone)
            now.clear()
        ranks = now.scores().ranks
        run.check()
        details = record.details(now, ranks, {**state.baselines, **observe.one_modality(now)})
        folder.write_metrics(state.points)
        folder.write_ranks(ranks.to_frame())
        folder.write_weights(trained_state(run.backbone), {"run": folder.run_id, "hash": run.hash})
        folder.write_result(details)
    return details


def training_parts(run: OpenRun, strategy: Strategy) -> TrainingParts:
    """Build objective, optimizer, learning-rate schedule and random streams for the first step."""
    config = run.config
    backbone = run.backbone
    scene = run.scene
    backbone.recompute(run.step_plan.recompute)
    loss: Loss = registry.make("losses", config.loss.name, **config.loss.options)
    alone = replace(scene, team=ALONE)  # each process of a run makes its own parts
    read = planes_read(strategy, config.mining, loss)
    offline = offline_planes(read, config, alone, run.display, run.precision.name)
    offline |= listed_plane(strategy, scene.train.dataset, run.precision.device)
    calls = TrainingCalls(backbone, config.seed, run.step_plan.micro_batch, run.team)
    objective = Objective(calls, strategy, loss, scene, config.mining, config.hybrid, offline)
    train = config.train
    groups = with_temperature_rate(
        backbone.parameter_groups(train.lr, train.weight_decay), backbone.temperature, train.temperature_rate
    )
    optimizer = AdamW([*groups, *objective.parameter_groups(train.lr)], betas=(train.beta1, train.beta2), eps=train.eps)
    schedule = rate_schedule(optimizer, train, steps_of_epoch(run))
    streams = {name: stream(config.seed, name) for name in ("batches", "draws")}
    return TrainingParts(objective, optimizer, schedule, run.precision.scaler, streams)


def _leaves_out(config: ResolvedConfig, epoch: int) -> bool:
    """Whether queries that look wrong are left out of an epoch (`train.clean_after`)."""
    return config.train.clean_after is not None and epoch >= config.train.clean_after


def _splits_to_embed(now: ModelCache, phases: Sequence[Phase], regime_epochs: Collection[int]) -> list[Split | None]:
    """Return the splits that are embedded between the last step and the next one: for the curve, a refresh or a card.

    Args:
        now: the model, before its first step or after an epoch.
        phases: of the run.
        regime_epochs: epochs before which the regime card is taken; it is also taken at the end.
    """
    scene = now.run.scene
    epoch = now.state.epoch
    phase = next((phase for phase in phases if epoch < phase.end), None)
    splits: list[Split | None] = []
    if now.state.step == 0:
        splits += [scene.val, scene.also]
    elif _is_scored(now):
        splits += [scene.val, scene.dev, scene.also]
    if phase is None or epoch in regime_epochs:
        splits += [scene.train, scene.val]
    elif epoch in phase.refreshes or _leaves_out(now.run.config, epoch):
        splits.append(scene.train)
    return splits


def _is_scored(now: ModelCache) -> bool:
    """Whether the model after the current number of epochs is scored for the curve."""
    config = now.run.config
    epoch = now.state.epoch
    return epoch % config.eval.every == 0 or epoch == config.train.epochs


# --- refresh and draw -------------------------------------------------------------------------------------------------


def _refresh(now: ModelCache, parts: TrainingParts, phase: Phase, folder: RunFolder, record_point: RecordPoint) -> None:
    """Define the pools of the interval that starts now, draw from them, and record the strategy's behaviour."""
    state = now.state
    after_warmup = phase.is_last and state.epoch > 0 and state.refresh == -1
    mined = define_pools(now, phase, folder, parts.streams["draws"])
    now.run.callbacks.refreshed(now, phase, mined)
    summary = {**mined.summary(), "distinct": distinct(mined.negatives, now.run.config.train.draws)}
    if phase.is_last:
        state.behaviour.append({"epoch": float(state.epoch), **summary})
    record_point({f"mining/{name}": value for name, value in summary.items()}, state.step, state.epoch)
    if after_warmup:
        observe.keep_curves(now, folder, "warm")


# --- train ------------------------------------------------------------------------------------------------------------


def steps_of_epoch(run: OpenRun) -> int:
    """Return the number of optimiser steps of an epoch."""
    return run.config.train.steps(len(run.scene.train.dataset.queries))


def train_epoch(
    run: OpenRun,
    parts: TrainingParts,
    state: State,
    batches: Iterator[Batch],
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> float:
    """Train one step per batch; return the mean loss over all queries of the epoch, even if it was resumed.

    Args:
        run: the run in training.
        parts: of the run.
        state: receives each step's loss, and the statistics of the batches.
        batches: of the rest of the epoch.
        checkpoints: get one after the step in which a signal comes or the time is up, and now and then in between.
        progress: shows each step.

    Raises:
        Stopped: after the step in which a signal comes or the time is up.
        NegbenchError: the mean is not finite.
        PausedError: memory is used up; the checkpoint has all steps before.
    """
    pools: list[BatchPools] = []  # of the latest batches, whose statistics are not computed yet

    def compute_statistics() -> None:
        state.statistics += batch_statistics(pools)
        pools.clear()
        state.hardest_share = parts.objective.hardest_share

    def save() -> None:
        compute_statistics()
        if checkpoints is not None and state.step > 0:
            checkpoints.save()

    run.backbone.train()
    if progress is not None:
        batches = progress.time_waiting(batches)
    note = f"epoch {state.epoch + 1}/{run.config.train.epochs}"
    with run.display.stage("train", total=steps_of_epoch(run), note=note) as advance, finishing():
        advance(len(state.losses))
        for batch in batches:
            try:
                result = train_step(run, parts, state, batch)
            except PausedError:
                save()
                raise
            _count_step(state, batch, result)
            if result.pools is not None:
                pools.append(result.pools)
                if len(pools) * result.pools.scores.numel() >= _WAITING:
                    compute_statistics()
            if progress is not None:
                progress.note_step(state.losses, len(batch.rows))
            advance(1)
            ending = stopping()
            if ending or (checkpoints is not None and checkpoints.due_within_epoch()):
                save()
            if ending:
                check_stopped()
        compute_statistics()
        if stopping():  # the last chance to save: leaving the block ends the process
            save()
    return _mean_loss(run, state)


def train_step(run: OpenRun, parts: TrainingParts, state: State, batch: Batch) -> StepResult:
    """Compute a batch's loss and gradients, and move the weights and the learning rate by one step.

    Raises:
        NegbenchError: the loss has no gradient.
        PausedError: memory is used up; weights, queue and random numbers are as before the step.
    """
    run.team.announce("step", batch, state.step)
    before = parts.moment()
    try:
        result = _gradients(run, parts, state, batch)
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error) is None:
            raise
        parts.go_back(before)
        raise needs.too_large_step(run, state) from error
    if run.config.train.max_grad_norm is not None:
        parts.scaler.unscale_(parts.optimizer)
        torch.nn.utils.clip_grad_norm_(parts.objective.parameters(), run.config.train.max_grad_norm)
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    run.callbacks.stepped(parts, state, batch)
    parts.schedule.step()
    return result


def _gradients(run: OpenRun, parts: TrainingParts, state: State, batch: Batch) -> StepResult:
    """Compute a step's loss and the gradients of the parameters."""
    with run.backbone.autocast():
        result: StepResult = parts.objective(batch, state.step)
    if not result.loss.requires_grad:
        raise NegbenchError(f"loss '{run.config.loss.name}' returned a number without a gradient: nothing is learned")
    parts.objective.zero_grad()
    parts.objective.calls.backward(parts.scaler.scale(result.loss), list(parts.objective.parameters()))
    return result


def _count_step(state: State, batch: Batch, result: StepResult) -> None:
    """Add a step to the state: its loss, its negatives, and the statistics of those that its queries share."""
    state.losses.append(result.loss.detach() * len(batch.rows))
    state.step += 1
    state.negatives_seen += result.negative_count
    if result.shared is not None:
        state.statistics += shared_statistics(result.shared)


def _mean_loss(run: OpenRun, state: State) -> float:
    """Return the mean loss over the queries of the epoch; raise NegbenchError if it is not finite."""
    queries = min(len(run.scene.train.dataset.queries), steps_of_epoch(run) * run.config.train.batch_size)
    losses = torch.stack([loss.to(run.precision.device) for loss in state.losses])
    mean = float(losses.sum()) / queries
    if not math.isfinite(mean):
        raise NegbenchError(
            f"the loss is {mean} in epoch {state.epoch + 1}: --set train.lr={run.config.train.lr / 10:g}, "
            "or --set train.max_grad_norm=1"
        )
    return mean


def _epoch_values(run: OpenRun, parts: TrainingParts, state: State, loss: float) -> dict[str, float]:
    """Return a trained epoch's values for the curves; store a batch strategy's behaviour in the state too."""
    values = {
        "train/loss": loss,
        "train/lr": float(parts.schedule.get_last_lr()[0]),
        "train/temperature": parts.objective.divisor,
    }
    if not math.isnan(parts.objective.hardest_share):
        values["train/hardest_share"] = parts.objective.hardest_share
    scalars = parts.objective.scalars
    values |= {f"train/temperature_{term}": value for term, value in scalars.temperatures().items()}
    if scalars.bias is not None:
        values["train/bias"] = float(scalars.bias.detach())
    if state.clean is not None:
        values["train/clean_share"] = float(state.clean.float().mean())
    if state.statistics:
        behaviour = batch_behaviour(state.statistics)
        if state.negatives is None:
            state.behaviour.append({"epoch": float(state.epoch), **behaviour})
        elif state.behaviour:  # of the draws that a refresh made: of the latest epoch that used them
            state.behaviour[-1] |= behaviour
        values |= {f"mining/{name}": value for name, value in behaviour.items()}
    return values


def shared_statistics(shared: Tensor) -> list[tuple[int, dict[str, float]]]:
    """Return the share of false negatives among those that a batch's queries share (`StepResult.shared`)."""
    negatives, false = shared.sum(0).tolist()
    if negatives == 0:
        return []
    return [(int(negatives), {"false_negative_rate_shared": false / negatives})]


def batch_behaviour(statistics: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Average over an epoch's batches, weighted by their rows; NaN if no batch has the statistic."""
    means = {}
    _, first_batch = statistics[0]
    for name in first_batch:
        with_value = [(rows, batch[name]) for rows, batch in statistics if not math.isnan(batch[name])]
        count = sum(rows for rows, _ in with_value)
        if name == "pool_size":  # a batch without negatives has pools of size 0, but no hardness and no rates
            count = sum(rows for rows, _ in statistics)
        total = sum(rows * value for rows, value in with_value)
        means[name] = total / count if count else math.nan
    return means


# --- score ------------------------------------------------------------------------------------------------------------


def score(now: ModelCache, record_point: RecordPoint) -> None:
    """Score val, the dev part and `eval.also` for the curve; keep the best weights if an epoch is selected."""
    run = now.run
    state = now.state
    scene = now.run.scene
    scores = now.scores()
    values = {f"{scene.scored_split}/{name}": value for name, value in scores.metrics.items()}
    values[f"{scene.scored_split}/query_concentration"] = scores.concentration
    selecting = scores.metrics
    dev = now.dev()
    if dev is not None:
        selecting = dev
        values |= {f"dev/{name}": value for name, value in dev.items()}
    values |= now.also()
    main = selecting[scene.val.dataset.card.main]
    if run.config.eval.select != "last" and main > state.best:
        state.best = main
        state.best_epoch = state.epoch
        state.best_weights = {name: weight.detach().clone() for name, weight in trained_state(run.backbone).items()}
    record_point(values, state.step, state.epoch - 1)
