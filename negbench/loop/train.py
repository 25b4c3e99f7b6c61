"""The training loop: mine, train, score, checkpoint, epoch by epoch. Read `train` top to bottom.

One configuration gives one result: initial weights, batches, draws and dropout come from four streams of the seed, so
two strategies with one seed start from identical weights and see identical batches. On the CPU a run that was
interrupted and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import hashlib
import math
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from negbench import files
from negbench.api import make_loss, make_strategy
from negbench.config import RunConfig, code_version, config_hash, resolved
from negbench.contracts import Backbone, Strategy
from negbench.datasets.dataset import QueryRanks
from negbench.display import Display
from negbench.errors import NegbenchError, RunError
from negbench.loop.folder import RunFolder, find_run, new_folder
from negbench.loop.objective import Batch, Objective
from negbench.mining import curves
from negbench.mining.draws import splitmix
from negbench.mining.mine import Mined, MiningTask, mine
from negbench.ragged import Ragged
from negbench.scene import Scene, Split, carves_dev, dev_seed, device_of, load_backbone, prepare, threads
from negbench.scoring import evaluation
from negbench.tracking import Pruned, Tracker

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class RunResult:
    """A finished run: `metrics` of the reported split by name, in [0, 1]; `details` is all of result.json."""

    folder: RunFolder
    details: dict[str, Any]
    tracking_error: str | None = None  # why the MLflow store holds no full copy; `negbench export` writes it again

    @property
    def run_id(self) -> str:
        """Name of the run's folder, which `negbench run --resume`, `evaluate` and `report` take."""
        return self.folder.run_id

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def metrics(self) -> dict[str, float]:
        """Metric name -> value on the reported split, at the reported epoch."""
        return dict(self.details["metrics"])


class Scenes:
    """The last scene prepared, kept for the next run on the same data and frozen backbone."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._scene: Scene | None = None

    def get(self, config: RunConfig, backbone: Backbone, device: torch.device, display: Display) -> Scene:
        """The scene of this configuration; prepared now unless the last one fits."""
        carved = ""
        if carves_dev(config):
            carved = f"{config.eval.dev_fraction} {dev_seed(config)} {config.eval.reported}"
        # the backbone's options too: they may change how texts are tokenised
        sections = (config.dataset, config.backbone, config.compute)
        parts = (*(section.model_dump() for section in sections), backbone.feature_key, device, carved)
        key = " ".join(map(str, parts))
        if self._scene is None or key != self._key:
            self._scene, self._key = prepare(config, backbone, device, display), key
        return self._scene


# --- entry points ------------------------------------------------------------------------------------------------


def run_config(
    config: RunConfig,
    *,
    runs_dir: Path | None = None,
    tracking_uri: str | None = None,
    display: Display | None = None,
    scenes: Scenes | None = None,
    tags: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> RunResult:
    """Compute a run in a fresh folder.

    Args:
        config: as read; it is resolved here.
        runs_dir: default NEGBENCH_RUNS or ./runs.
        tracking_uri: MLflow store, default the sqlite file in `runs_dir`.
        display: progress; default none.
        scenes: shares data and features with the runs before it.
        tags: put on the MLflow run (a comparison's or a study's name).
        watch: told every point of a curve; what it raises ends the run, and `Pruned` does so without failing it.

    Raises:
        NegbenchError: a user's mistake, before anything is computed where that can be known.
    """
    opened = open_run(config, display or Display(), scenes or Scenes())
    root = files.runs_dir(runs_dir)
    path = str(new_folder(root, opened.name).path) if opened.accelerator.is_main_process else ""
    folder = RunFolder(Path(_from_main(opened.accelerator, path)))
    return compute_run(opened, folder, Tracker.open(root, tracking_uri), dict(tags or {}), watch)


def resume(
    name: str,
    *,
    runs_dir: Path | None = None,
    tracking_uri: str | None = None,
    display: Display | None = None,
    scenes: Scenes | None = None,
    tags: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> RunResult:
    """Go on with an interrupted or failed run from its last checkpoint, to the bits it would have had (on the CPU).

    Args:
        name: the run, by id or a part of it that only one has.
        runs_dir, tracking_uri, display, scenes, tags, watch: as `run_config`; `watch` is told new points only.

    Raises:
        RunError: no such run, one that is finished, or one whose code, data or weights have changed since.
    """
    root = files.runs_dir(runs_dir)
    folder = find_run(root, name)
    if folder.status == "finished":
        raise RunError(f"run {folder.run_id} is finished: there is nothing to resume")
    opened = open_run(folder.config, display or Display(), scenes or Scenes())
    if opened.hash != folder.manifest["hash"]:
        raise RunError(
            f"run {folder.run_id} cannot be resumed: code, data or weights have changed since (code "
            f"{folder.manifest['code']} then, {code_version()} now); run it again from the start"
        )
    return compute_run(opened, folder, Tracker.open(root, tracking_uri), dict(tags or {}), watch)


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run that is ready to be computed: its parts loaded, its hash known."""

    config: RunConfig  # resolved
    backbone: Backbone
    scene: Scene
    accelerator: Accelerator
    display: Display
    hash: str

    @property
    def name(self) -> str:
        """Folder name: the parts by name, the seed, the hash's beginning."""
        c = self.config
        dataset = c.dataset.name if "/" not in c.dataset.name else Path(c.dataset.name).stem
        return f"{c.strategy.name}-{c.loss.name}-{c.backbone.name}-{dataset}-s{c.seed}-{self.hash[:8]}"


def open_run(config: RunConfig, display: Display, scenes: Scenes) -> OpenRun:
    """Resolve the configuration, load the backbone with the seed's initial weights, prepare or share the scene."""
    full = resolved(config)
    accelerator = _accelerator(full)
    backbone = load_backbone(full.backbone, full.seed)
    backbone.to(accelerator.device)
    with display.stage("prepare"):
        scene = scenes.get(full, backbone, accelerator.device, display)
    return OpenRun(full, backbone, scene, accelerator, display, config_hash(full, data=scene.identity))


def _from_main(accelerator: Accelerator, value: str) -> str:
    """The main process's value, in every process."""
    from accelerate.utils import broadcast_object_list

    values = [value]
    broadcast_object_list(values)
    return values[0]


def compute_run(
    opened: OpenRun, folder: RunFolder, tracker: Tracker, tags: dict[str, str], watch: Watch | None = None
) -> RunResult:
    """Compute an opened run in its folder, new or interrupted; the arguments are those of `run_config`.

    Raises RunError where another process computes in that folder.
    """
    if not opened.accelerator.is_main_process:  # the main process writes for all
        with threads(opened.config.compute.threads):
            return RunResult(folder, train(opened, folder, lambda values, step, epoch: None))
    with folder.lock():
        if folder.status == "new":
            folder.write_manifest(_manifest(opened))
        (folder.path / "error.txt").unlink(missing_ok=True)
        with (
            threads(opened.config.compute.threads),
            tracker.run(folder, opened.config.flat(), {**_tags(opened), **tags}) as live,
            opened.display.live(folder.run_id),
        ):

            def log(values: Mapping[str, float], step: int, epoch: int) -> None:
                folder.append_metrics({"step": step, "epoch": epoch, **values})
                live.metrics(values, step)
                if watch is not None and epoch >= 0:
                    watch(epoch, values)

            try:
                details = train(opened, folder, log)
            except NegbenchError as error:
                folder.write_error(str(error))
                raise
            except Pruned:
                raise  # given up on purpose: no error, and it can be resumed
            except Exception as error:
                folder.write_error(f"{type(error).__name__}: {error}")
                raise
            live.artifacts(details)
    return RunResult(folder, details, tracking_error=live.error)


# --- the loop ----------------------------------------------------------------------------------------------------


@dataclass
class State:
    """All that moves while a run trains, and so all that a checkpoint holds beside the weights."""

    epoch: int = 0  # the next one
    refresh: int = -1  # -1: the warm-up pool
    interval_start: int = 0
    negatives: Tensor | None = None  # [Q, epochs of the interval * num_negatives] columns
    step: int = 0
    negatives_seen: int = 0
    best: float = -math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    behaviour: list[dict[str, float]] = field(default_factory=list)  # one summary per refresh (or epoch, batch scope)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    generators: dict[str, Tensor] = field(default_factory=dict)


Log = Callable[[Mapping[str, float], int, int], None]  # values, step, epoch
Watch = Callable[[int, Mapping[str, float]], None]  # 0-based epoch, values by name


def train(opened: OpenRun, folder: RunFolder, log: Log) -> dict[str, Any]:
    """Train and score; returns what result.json holds. Checkpoints after every epoch, resumes from one that is there.

    Args:
        opened: a run that is ready; its backbone's weights are trained in place.
        folder: where checkpoint, metrics, ranks and weights go.
        log: called with (values by name, step, epoch) for each point of a curve.
    """
    config, backbone, scene, display = opened.config, opened.backbone, opened.scene, opened.display
    epochs, size, every = int(config.train.epochs or 0), int(config.train.batch_size or 0), config.eval.every
    strategy = make_strategy(config.strategy.name, **config.strategy.options)
    loss = make_loss(config.loss.name, **config.loss.options)
    objective = Objective(backbone, strategy, loss, scene, config.mining, config.hybrid)
    groups = backbone.parameter_groups(float(config.train.lr or 0), float(config.train.weight_decay or 0))
    optimizer = torch.optim.AdamW(groups + objective.parameter_groups(float(config.train.lr or 0)))
    schedule = _cosine(optimizer, config, math.ceil(len(scene.train.dataset.queries) / size))
    # the schedule is not prepared: accelerate would step it once per process, and it counts batches
    model, optimizer = opened.accelerator.prepare(objective, optimizer)
    streams = {name: stream(config.seed, name) for name in ("batches", "draws")}
    with _own_randomness(config.seed, opened.accelerator.device):
        state = _restore(folder, objective, optimizer, schedule, streams) or State()
        display.seconds.update(state.seconds)
        if opened.accelerator.is_main_process:
            folder.truncate_metrics(state.epoch)
        if state.epoch == 0:
            state.baselines = _untrained(opened, log)
            _keep_curves(opened, strategy, state, folder, "start")
        ranks: QueryRanks | None = None
        while state.epoch < epochs:
            epoch = state.epoch
            if strategy.scope == "corpus" and epoch in _boundaries(config):
                if epoch > 0 and state.refresh == -1:
                    _keep_curves(opened, strategy, state, folder, "warm")
                _refresh(opened, strategy, state, streams["draws"], folder, log)
            _train_epoch(opened, objective, model, optimizer, schedule, streams, state, log)
            state.epoch = epoch + 1
            if state.epoch % every == 0 or state.epoch == epochs:
                ranks = _score(opened, state, log)
            if opened.accelerator.is_main_process:
                _save(folder, objective, optimizer, schedule, streams, state, display)
        _keep_curves(opened, strategy, state, folder, "end")
        if config.eval.select != "last":
            backbone.load_state_dict(state.best_weights, strict=False)
        if config.eval.select != "last" or ranks is None:  # None: resumed after the last epoch's checkpoint
            with display.stage("evaluate"):
                ranks = evaluation.score(backbone, scene, scene.val)
        details = _details(opened, objective, state, ranks)
        if opened.accelerator.is_main_process:
            folder.write_ranks(ranks.to_frame())
            folder.write_weights(trained_state(backbone), {"run": folder.run_id, "hash": opened.hash})
            folder.write_result(details)
    return details


def _refresh(
    opened: OpenRun, strategy: Strategy, state: State, generator: torch.Generator, folder: RunFolder, log: Log
) -> None:
    """Define the pools of the interval that starts now, and draw all its negatives."""
    config, scene = opened.config, opened.scene
    epoch, bounds = state.epoch, _boundaries(config)
    end = min((b for b in bounds if b > epoch), default=int(config.train.epochs or 0))
    warming = epoch not in (config.schedule.refresh_epochs or ())
    state.refresh += 0 if warming else 1
    main = opened.accelerator.is_main_process  # every process mines the same negatives; one keeps the pools
    used = make_strategy("all-corpus") if warming else strategy
    with opened.display.stage("mine", total=len(scene.train.dataset.queries), note=f"epoch {epoch + 1}") as advance:
        task = mining_task(opened.backbone, scene, config)
        mined = mine(
            task,
            used,
            refresh=max(state.refresh, 0),
            draws=(end - epoch) * int(config.train.num_negatives or 1),
            generator=generator,
            per_epoch=config.train.num_negatives if config.mining.replacement else None,
            previous=_pools_file(folder, state.refresh - 1) if state.refresh > 0 and main else None,
            pools=_pools_file(folder, state.refresh) if main and not warming else None,
            progress=advance,
        )
    state.negatives, state.interval_start = mined.negatives, epoch
    summary = mined.summary()
    if mined.stale:
        state.remarks.append(f"epoch {epoch}: the refresh left every pool as it was")
    if not warming:
        state.behaviour.append({"epoch": float(epoch), **summary})
        if main:
            _write_mined(folder, state.refresh, mined)
    log({f"mining/{name}": value for name, value in summary.items()}, state.step, epoch)


def mining_task(backbone: Backbone, scene: Scene, config: RunConfig) -> MiningTask:
    """The train split as the current model sees it."""
    found = evaluation.embed(backbone, scene, scene.train)
    dataset = scene.train.dataset
    excluded = None
    if config.mining.exclude_reference or config.mining.exclude_relevant:
        known = dataset.relevant if config.mining.exclude_relevant else None
        rows: list[list[int]] = [[] if known is None else known.row(i).tolist() for i in range(len(dataset.queries))]
        if config.mining.exclude_reference:
            for row, column in zip(rows, dataset.reference_columns.tolist(), strict=True):
                row.extend([column] if column >= 0 else [])
        excluded = Ragged.of(rows)
    return MiningTask(
        queries=found.queries,
        candidates=found.candidates,
        target=dataset.target_columns,
        group=dataset.group_index,
        groups=list(dataset.groups.values()),
        excluded=excluded,
        relevant=dataset.relevant,
    )


def _keep_curves(opened: OpenRun, strategy: Strategy, state: State, folder: RunFolder, moment: str) -> None:
    """Score curves of a sample of train queries, once per moment, for the report; draws from no stream of the run.

    A study's trials, of which nothing is reported, keep none.
    """
    path = folder.path / curves.file_name(moment)
    if path.exists() or not (opened.accelerator.is_main_process and opened.config.eval.reported):
        return
    with opened.display.stage("curves", note=moment):
        task = mining_task(opened.backbone, opened.scene, opened.config)
        marked = strategy if strategy.scope == "corpus" else None
        curves.score_curves(task, marked, refresh=max(state.refresh, 0)).save(path)


def _train_epoch(
    opened: OpenRun,
    objective: Objective,
    model: Any,
    optimizer: torch.optim.Optimizer,
    schedule: LambdaLR,
    streams: Mapping[str, torch.Generator],
    state: State,
    log: Log,
) -> None:
    """One pass over the train queries in the epoch's order."""
    config, scene = opened.config, opened.scene
    tokens = _epoch_tokens(opened, state.epoch)
    order = torch.randperm(len(scene.train.dataset.queries), generator=streams["batches"])
    draws = _draws_of(state, config)
    kept = config.train.num_negatives if draws is None else None  # of each pool of a batch strategy
    base = torch.randint(2**63 - 1, (1,), generator=streams["draws"]) if kept else None
    losses, totals, steps = [], dict[str, float](), 0
    opened.backbone.train()
    chunks = order.split(int(config.train.batch_size or 0))
    with opened.display.stage(
        "train", total=len(chunks), note=f"epoch {state.epoch + 1}/{config.train.epochs}"
    ) as advance:
        for chunk in chunks:
            rows = _shard(chunk, opened.accelerator)
            batch = Batch(
                rows=rows,
                negatives=None if draws is None else draws[rows],
                tokens={name: value[rows] for name, value in tokens.items()},
                kept=kept,
                seed=None if base is None else splitmix(base, rows),
            )
            with opened.accelerator.autocast():
                result = model(batch)
            optimizer.zero_grad()
            opened.accelerator.backward(result.loss)
            if config.train.max_grad_norm is not None:
                opened.accelerator.clip_grad_norm_(model.parameters(), config.train.max_grad_norm)
            optimizer.step()
            schedule.step()
            losses.append(result.loss.detach())
            state.step += 1
            state.negatives_seen += result.negatives * opened.accelerator.num_processes
            if result.statistics:
                steps += 1
                for name, value in result.statistics.items():
                    totals[name] = totals.get(name, 0.0) + (0.0 if math.isnan(value) else value)
            advance(1)
    mean = float(opened.accelerator.gather(torch.stack(losses)).mean())
    if not math.isfinite(mean):
        raise NegbenchError(f"the loss is {mean} in epoch {state.epoch + 1}: lower train.lr or set train.max_grad_norm")
    values: dict[str, float] = {
        "train/loss": mean,
        "train/lr": float(schedule.get_last_lr()[0]),
        "train/temperature": float(opened.backbone.temperature.detach()),
        **{f"train/temperature_{term}": value for term, value in objective.temperatures.values().items()},
    }
    if steps:
        behaviour = {name: total / steps for name, total in totals.items()}
        if scene.train.dataset.relevant is None:
            behaviour.update(false_negative_rate_pool=math.nan, false_negative_rate_draws=math.nan)
        state.behaviour.append({"epoch": float(state.epoch), **behaviour})
        values.update({f"mining/{name}": value for name, value in behaviour.items()})
    log(values, state.step, state.epoch)


def _score(opened: OpenRun, state: State, log: Log) -> QueryRanks:
    """Score val for the curve and, where an epoch is to be chosen, the part it is chosen on."""
    config, scene = opened.config, opened.scene
    with opened.display.stage("evaluate", note=f"epoch {state.epoch}/{config.train.epochs}"):
        found = evaluation.embed(opened.backbone, scene, scene.val)
        ranks = evaluation.rank(scene.val, found.queries, found.candidates)
        metrics = scene.val.dataset.summarise(ranks)
        values = {f"{scene.scored}/{name}": value for name, value in metrics.items()}
        spread = float(found.queries.mean(0).norm())
        values[f"{scene.scored}/query_concentration"] = spread
        if spread > 0.98 and not any("collapsed" in remark for remark in state.remarks):
            state.remarks.append(f"epoch {state.epoch}: collapsed, all queries point the same way ({spread:.3f})")
        chosen = metrics
        if scene.dev is not None and scene.dev is not scene.val:
            chosen = scene.dev.dataset.summarise(evaluation.score(opened.backbone, scene, scene.dev))
            values.update({f"dev/{name}": value for name, value in chosen.items()})
    main = chosen[scene.val.dataset.card.main]
    if config.eval.select != "last" and main > state.best:
        state.best, state.best_epoch = main, state.epoch
        state.best_weights = {k: v.detach().clone() for k, v in trained_state(opened.backbone).items()}
    log(values, state.step, state.epoch - 1)
    return ranks


def _untrained(opened: OpenRun, log: Log) -> dict[str, dict[str, float]]:
    """Metrics of the model before training, and of either modality alone under it."""
    val = opened.scene.val
    with opened.display.stage("evaluate", note="untrained"):
        ranks = {"untrained": evaluation.score(opened.backbone, opened.scene, val)}
        ranks |= evaluation.one_modality_ranks(opened.backbone, opened.scene, val)
    found = {name: val.dataset.summarise(r) for name, r in ranks.items()}
    log({f"{opened.scene.scored}/{name}": value for name, value in found["untrained"].items()}, 0, -1)
    return found


# --- parts -------------------------------------------------------------------------------------------------------


def stream(seed: int, purpose: str) -> torch.Generator:
    """The generator of one purpose under a run's seed; streams of different purposes are independent."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws from the global generator: seed it for the run and give it back as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(stream(seed, "dropout").initial_seed())
        yield


def _accelerator(config: RunConfig) -> Accelerator:
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    precision = config.train.precision
    on_gpu = device_of(config).type == "cuda"
    if precision == "auto":
        precision = "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp32"
    AcceleratorState._reset_state()  # a process may compute runs of different precision
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # a loss need not use every trained part
    mixed = "no" if precision == "fp32" else precision
    return Accelerator(cpu=not on_gpu, mixed_precision=mixed, kwargs_handlers=[unused])


def _cosine(optimizer: torch.optim.Optimizer, config: RunConfig, steps_per_epoch: int) -> LambdaLR:
    """Linear rise over `lr_warmup_epochs`, then half a cosine from lr to lr * min_lr_ratio over the remaining steps."""
    total = int(config.train.epochs or 0) * steps_per_epoch
    rise = round(config.train.lr_warmup_epochs * steps_per_epoch)
    floor = config.train.min_lr_ratio

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / max(1, total - rise))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _boundaries(config: RunConfig) -> list[int]:
    """Epochs before which negatives are drawn: the start and every refresh."""
    return sorted({0, *(config.schedule.refresh_epochs or ())})


def _draws_of(state: State, config: RunConfig) -> Tensor | None:
    if state.negatives is None:
        return None
    count = int(config.train.num_negatives or 1)
    start = (state.epoch - state.interval_start) * count
    return state.negatives[:, start : start + count]


def _epoch_tokens(opened: OpenRun, epoch: int) -> dict[str, Tensor]:
    """Tokens of the epoch's texts; tokenised again only where they are not the fixed ones."""
    split: Split = opened.scene.train
    texts = split.dataset.texts(epoch, opened.config.seed)
    if all(text == query.text for text, query in zip(texts, split.dataset.queries, strict=True)):
        return split.tokens
    return opened.backbone.tokenize(texts)


def _shard(rows: Tensor, accelerator: Accelerator) -> Tensor:
    """This process's share of a batch. Shares are equal: what is left over (fewer rows than processes) is left out."""
    count = accelerator.num_processes
    if len(rows) < count:
        raise NegbenchError(f"a batch of {len(rows)} queries cannot be shared by {count} processes: use fewer of them")
    return rows[: len(rows) // count * count][accelerator.process_index :: count]


def trained_state(backbone: Backbone) -> dict[str, Tensor]:
    """Parameters that train, and buffers: what differs between runs of one backbone."""
    trained = {name: p.detach() for name, p in backbone.named_parameters() if p.requires_grad}
    persistent = backbone.state_dict().keys()
    return trained | {name: b for name, b in backbone.named_buffers() if name in persistent}


def _pools_file(folder: RunFolder, refresh: int) -> Path:
    return folder.path / f"pools-{refresh:02d}.bits"


def _write_mined(folder: RunFolder, refresh: int, mined: Mined) -> None:
    """Per-query mining statistics of a refresh; pools older than the last refresh are not needed any more."""
    with files.atomic_write(folder.path / f"mining-{refresh:02d}.parquet", "wb") as file:
        mined.frame().to_parquet(file, index=False)
    if refresh > 1:
        _pools_file(folder, refresh - 2).unlink(missing_ok=True)


# --- checkpoints -------------------------------------------------------------------------------------------------


def _save(
    folder: RunFolder,
    objective: Objective,
    optimizer: Any,
    schedule: LambdaLR,
    streams: Mapping[str, torch.Generator],
    state: State,
    display: Display,
) -> None:
    state.seconds = dict(display.seconds)
    state.generators = {name: generator.get_state() for name, generator in streams.items()}
    state.generators["global"] = torch.get_rng_state()
    if torch.cuda.is_available():
        state.generators["cuda"] = torch.cuda.get_rng_state()
    folder.write_checkpoint(
        {
            "state": vars(state),
            "weights": trained_state(objective.backbone),
            "temperatures": objective.temperatures.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
        }
    )


def _restore(
    folder: RunFolder, objective: Objective, optimizer: Any, schedule: LambdaLR, streams: Mapping[str, torch.Generator]
) -> State | None:
    saved = folder.checkpoint()
    if saved is None:
        return None
    objective.backbone.load_state_dict(saved["weights"], strict=False)
    objective.temperatures.load_state_dict(saved["temperatures"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    state = State(**saved["state"])
    for name, generator in streams.items():
        generator.set_state(state.generators[name])
    torch.set_rng_state(state.generators["global"])
    if torch.cuda.is_available() and "cuda" in state.generators:
        torch.cuda.set_rng_state(state.generators["cuda"])
    return state


# --- what a run leaves -------------------------------------------------------------------------------------------


def _manifest(opened: OpenRun) -> dict[str, Any]:
    """config.json: everything that identifies the run, known before it starts."""
    scene = opened.scene
    identity = opened.backbone.identity
    return {
        "config": opened.config.model_dump(mode="json"),
        "hash": opened.hash,
        "code": code_version(),
        "dataset": {
            "train": scene.train.dataset.identity,
            "val": scene.val.dataset.identity,
            "scored": scene.scored,
            "gallery": {name: len(columns) for name, columns in scene.val.dataset.groups.items()},
            "corpus": {name: len(columns) for name, columns in scene.train.dataset.groups.items()},
            "train_queries": len(scene.train.dataset.queries),
            "val_queries": len(scene.val.dataset.queries),
            "text_template": scene.val.dataset.card.text_template,
            "exclude_reference": scene.val.dataset.card.exclude_reference,
            **{name: getattr(scene.val.dataset.card, name) for name in ("source", "licence", "citation")},
            "partial": scene.train.dataset.partial or scene.val.dataset.partial,
            "remarks": [*scene.train.dataset.remarks, *scene.val.dataset.remarks],
        },
        "backbone": {**vars(identity), "details": dict(identity.details)},
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    packages = ("negbench", "torch", "transformers", "open_clip_torch", "accelerate", "mlflow", "optuna", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _tags(opened: OpenRun) -> dict[str, str]:
    """What identifies a run among others, repeated on every MLflow run."""
    c, identity = opened.config, opened.backbone.identity
    galleries = opened.scene.val.dataset.groups.items()
    return {
        **{f"version.{name}": number for name, number in _versions().items()},
        "backbone.weights": identity.weights,
        "backbone.sha256": identity.sha256,
        "backbone.parameters": str(identity.parameters),
        "backbone.preprocessing": identity.preprocessing,
        "gallery": ", ".join(f"{name} {len(columns)}" for name, columns in galleries),
        "code": code_version(),
        "strategy": c.strategy.name,
        "loss": c.loss.name,
        "backbone": c.backbone.name,
        "dataset": opened.scene.val.dataset.identity,
        "seed": str(c.seed),
        "hash": opened.hash,
    }


def _details(opened: OpenRun, objective: Objective, state: State, ranks: QueryRanks) -> dict[str, Any]:
    """result.json: metrics, behaviour of the strategy, cost."""
    scene, config = opened.scene, opened.config
    with opened.display.stage("evaluate", note="one modality"):
        single = evaluation.one_modality_ranks(opened.backbone, scene, scene.val)
    baselines = {
        "untrained": state.baselines["untrained"],
        "untrained_image_only": state.baselines["image_only"],
        "untrained_text_only": state.baselines["text_only"],
        **{name: scene.val.dataset.summarise(found) for name, found in single.items()},
    }
    return {
        "metrics": scene.val.dataset.summarise(ranks),
        "main_metric": scene.val.dataset.card.main,
        "baselines": baselines,
        "reported_epoch": config.train.epochs if config.eval.select == "last" else state.best_epoch,
        "selected_on": config.eval.select,
        "behaviour": _mean_behaviour(state.behaviour),
        "behaviour_by_refresh": state.behaviour,
        "refresh_epochs": list(config.schedule.refresh_epochs or ()),
        "temperatures": {"backbone": float(opened.backbone.temperature.detach()), **objective.temperatures.values()},
        "draws": {"per_query": config.train.num_negatives, "replacement": config.mining.replacement},
        "steps": state.step,
        "negatives_seen": state.negatives_seen,
        "seconds": {name: round(value, 3) for name, value in opened.display.seconds.items()},
        "images_encoded": scene.encoded,
        "peak_memory_mib": peak_memory_mib(),
        "remarks": state.remarks,
    }


def _mean_behaviour(behaviour: list[dict[str, float]]) -> dict[str, float]:
    """Means over the refreshes (batch strategies: over the epochs); NaN where nothing is known."""
    names = dict.fromkeys(name for row in behaviour for name in row if name != "epoch")
    return {
        name: float(torch.tensor([row.get(name, math.nan) for row in behaviour], dtype=torch.float64).nanmean())
        for name in names
    }


def peak_memory_mib() -> dict[str, float]:
    """Highest resident memory of this process so far, and of the GPU, in MiB."""
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if torch.cuda.is_available():
        peak["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return {name: round(value, 1) for name, value in peak.items()}
