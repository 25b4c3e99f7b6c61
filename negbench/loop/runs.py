"""Plan (hash), open, claim and compute runs; a grid's cells take the same path as `negbench run`.

One configuration gives one result, so a run is identified by the hash of its resolved configuration, the code that can
change scores, the data and the frozen backbone. The process that computes it locks its folder; others wait for it.
"""

import math
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from negbench.contracts import Backbone
from negbench.data.features import feature_budget
from negbench.data.images import earlier_training, unfamiliar_images
from negbench.data.reading import StoredFeatures
from negbench.data.scene import DataCache, threads
from negbench.datasets.dataset import Dataset
from negbench.display import Display, log
from negbench.errors import NegbenchError, OptionError, PausedError, RunError
from negbench.loop import record
from negbench.loop.assemble_team import assemble_team, check_processes
from negbench.loop.clean import check_clean
from negbench.loop.fitting import fitting_plan
from negbench.loop.identity import modules_of, plugins_of, read_files
from negbench.loop.mining_task import check_listed, lists_of, planes_read
from negbench.loop.needs import check_room
from negbench.loop.objective import check_galleries, check_objective
from negbench.loop.precision import Precision
from negbench.loop.run_forecast import open_run_lines
from negbench.loop.schedule import check_batches
from negbench.loop.step_memory import step_memory
from negbench.loop.step_plan import StepPlan
from negbench.loop.train import train
from negbench.loop.types import Callbacks, OpenRun, PlannedRun, RecordPoint, run_stem
from negbench.machine import files
from negbench.machine.contents import digest, files_named_in, stamp
from negbench.machine.heap import keep_memory
from negbench.machine.signals import ending_of
from negbench.metrics.part_name import part_name
from negbench.plugins.registry import make_options, registry
from negbench.settings.config import ResolvedConfig, RunConfig, TrainConfig, is_score_file, resolve
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder, action_of, best_of, claim_folder
from negbench.store.tracking import RunLog, Tracker

DATA = DataCache()  # one per process: its runs share what the first one loaded

# --- a run before it is computed -----------------------------------------------------------------------------------


def plan_run(config: RunConfig, cache: DataCache, runs: Path | None = None) -> PlannedRun:
    """Resolve a configuration into a planned run, without loading the weights of a large backbone.

    Args:
        config: as read.
        cache: loads data and backbones.
        runs: a finished run in this folder spares making its data once more.

    Raises:
        NegbenchError: the configuration cannot run here, or data are missing.
    """
    full = resolve(config)
    options = config.dataset.options
    # one world for all seeds: tables name it; else they name the kind of world
    one_world = options.get("world") is not None or options.get("root") is not None
    if runs is not None:
        finished = _find_finished(full, cache, runs, "val" if one_world else "kind")
        if finished is not None:
            return finished
    splits = cache.splits(full)  # first: data are sooner put right than weights
    _check_parts(full, splits.train, cache)
    val = splits.val
    dataset = part_name(val.identity if one_world else val.kind, [splits.train, val])
    return PlannedRun(full, dataset, val.card, _contents(full, cache), _remarks(full, cache), socket.gethostname())


def _check_parts(full: ResolvedConfig, train: Dataset, cache: DataCache) -> None:
    """Raise NegbenchError if strategy, loss, backbone and train split do not fit each other."""
    backbone = cache.outline(full)
    loss = registry.make("losses", full.loss.name, **full.loss.options)
    strategy = registry.make("strategies", full.strategy.name, **full.strategy.options)
    check_objective(strategy, loss, full.hybrid, backbone, train, full.mining)
    check_galleries(strategy, train)
    check_batches(full.train, len(train.queries))
    check_clean(full, train)
    planes_read(strategy, full.mining, loss)
    check_listed(strategy, train)


def _find_finished(full: ResolvedConfig, cache: DataCache, runs: Path, label: str) -> PlannedRun | None:
    """Plan a run on generated data from the record of a finished one, which spares generating them.

    Its hash shows that code and data are those of the record.

    Args:
        full: resolved configuration.
        cache: loads backbones.
        runs: folder of the finished runs.
        label: what of the recorded data tables print.

    Returns:
        The planned run; None if there is no such record, or if the data are read from files.
    """
    kind: type[Dataset] = registry.get("datasets", full.dataset.name)
    card = kind.made_card(make_options(kind, full.dataset.options, full.dataset.name))
    if card is None:  # the data are read
        return None
    settings = full.model_dump(mode="json", exclude={"compute", "plugins"})
    for file in sorted(runs.glob(f"{run_stem(full)}-*/result.json")):
        with suppress(NegbenchError):  # the record of another run, damaged
            about = _read_manifest(file.parent, stamp(file.with_name("config.json")))
            if settings.items() <= about["config"].items():
                recorded = about["dataset"]
                no_pictures = ""  # data that are made have no image files
                data = _contents(full, cache, [recorded["train"], recorded["val"], no_pictures])
                planned = PlannedRun(full, recorded[label], card, data, _remarks(full, cache), socket.gethostname())
                if planned.hash == about["hash"]:
                    return planned
    return None


def _remarks(full: ResolvedConfig, cache: DataCache) -> tuple[str, ...]:
    """Return caveats on the weights that a run starts from."""
    outline = cache.outline(full)
    return (*unfamiliar_images(full, outline), *earlier_training(full, outline))


@lru_cache(maxsize=4096)
def _read_manifest(folder: Path, _stamp: tuple[int, ...]) -> dict[str, Any]:
    return RunFolder(folder).manifest


def _contents(config: ResolvedConfig, cache: DataCache, identities: Sequence[str] = ()) -> str:
    """Identify what a run reads, by the contents of its files as they are now.

    Args:
        config: of the run.
        cache: loads data and backbones.
        identities: of train, of val and of their pictures, for data that are made and have no files; none: the data
            are read.
    """
    beside_data = [cache.outline(config).key]
    for with_backbone in _with_other_backbones(config):
        outline = cache.outline(with_backbone)
        beside_data.append(f"{outline.key} {outline.weights}")
    beside_data += [_digest(path) for path in _mining_files(config)]
    beside_data.append(digest(read_files(config), files.cache_dir()))
    if identities:
        return " ".join([*identities, *beside_data])
    splits = cache.splits(config)
    parts = [splits.identity, splits.pictures(), *beside_data]
    rule: Any = registry.get("strategies", config.strategy.name)
    if rule.reads_truth and splits.train.wrong_digest:
        parts.append(splits.train.wrong_digest)
    return " ".join(parts)


def depends_on_files(config: ResolvedConfig, cache: DataCache) -> bool:
    """Whether a run depends on files that do not come with negbench: data, weights, scores, lists, a plug-in's code."""
    for plugin in plugins_of(config):
        if plugin.origin != "built-in":
            return True
    for section in (config.dataset, config.eval.also):
        if section is not None:
            kind: type[Dataset] = registry.get("datasets", section.name)
            if kind.made_card(make_options(kind, section.options, section.name)) is None:
                return True
    for with_backbone in (config, *_with_other_backbones(config)):
        if files_named_in(with_backbone.backbone.options.values()) or cache.outline(with_backbone).files:
            return True
    return bool(_mining_files(config))


def _with_other_backbones(config: ResolvedConfig) -> list[ResolvedConfig]:
    """Return the configuration with each backbone that is a guide or a judge in place of its own."""
    configs = []
    for backbone in config.mining.backbones:
        configs.append(config.model_copy(update={"backbone": config.other_backbone(backbone)}))
    return configs


def _mining_files(config: ResolvedConfig) -> list[Path]:
    """Return the files of scores and of negatives that a run reads."""
    paths = [Path(text) for text in (config.mining.guide, config.mining.judge) if text and is_score_file(text)]
    lists = lists_of(registry.make("strategies", config.strategy.name, **config.strategy.options))
    if lists is not None:
        paths.append(lists)
    return paths


def _digest(path: Path) -> str:
    try:
        return files.sha256_of(path)
    except OSError as error:
        raise NegbenchError(f"mining: file {path}: {error.strerror or error}") from error


def open_run(
    run: RunConfig | PlannedRun,
    display: Display,
    cache: DataCache,
    runs: Path | None = None,
    precision: str | None = None,
) -> OpenRun:
    """Plan a run, also one that is planned, and refuse it if it has changed; then encode its data, or share them.

    Args:
        run: as read, or planned.
        display: progress.
        cache: loads data and backbones.
        runs: a run that was started in this folder is opened in its own precision, whatever "auto" means here.
        precision: that the run was started in, if the caller knows it.
    """
    display.seconds.clear()  # count this run's seconds only
    keep_memory()
    with display.stage("prepare"):
        # plan again also what is planned: since then, or on this machine, files or code may be others
        planned = plan_run(run.config if isinstance(run, PlannedRun) else run, cache)
        if isinstance(run, PlannedRun) and planned.hash != run.hash:
            raise _changed_error(run, cache)

        def check() -> None:
            if _contents(planned.config, cache) != planned.data:
                raise _changed_error(planned, cache)

        if precision is None and runs is not None:
            precision = started_precision(planned, runs)
        computing = Precision.of(planned.config, precision)
        check_processes(planned.config.compute.processes, computing.device)
        backbone = cache.backbone(planned.config).to(computing.device)
        backbone.precision = computing.name
        _bound_temperature(backbone, planned.config.train)
        step_plan = StepPlan.of(planned.config, backbone, started={})
        splits = cache.splits(planned.config)
        scene = cache.scene(planned.config, splits, backbone, computing.device, display)
        opened = OpenRun(
            config=planned.config,
            dataset=planned.dataset,
            card=planned.card,
            data=planned.data,
            remarks=(*planned.remarks, *scene.unseen),
            host=planned.host,
            splits=splits,
            backbone=backbone,
            scene=scene,
            display=display,
            check=check,
            precision=computing,
            step_plan=step_plan,
        )
        return replace(opened, step_plan=fitting_plan(opened))


def _bound_temperature(backbone: Backbone, train: TrainConfig) -> None:
    """Set the backbone's `least_temperature`; raise OptionError if its temperature starts below it."""
    least = train.temperature_least
    backbone.set_least_temperature(None)  # the run before may have set another
    start = float(backbone.temperature.detach())
    if least is not None and start < least and not math.isclose(start, least, rel_tol=1e-6):
        raise OptionError(
            f"train.temperature_least = {least} is above the temperature at the start, {start:.4g}: set "
            "backbone.temperature, too, or a lower bound"
        )
    backbone.set_least_temperature(least)


def started_precision(planned: PlannedRun, runs: Path) -> str | None:
    """Return the precision of a run that this folder holds, finished or to be resumed; None if it holds none."""
    folder = best_of(runs, planned.hash)
    if folder is None or action_of(folder) == "anew":
        return None
    precision: str | None = folder.manifest.get("started", {}).get("precision")
    return precision


def _changed_error(run: PlannedRun, cache: DataCache) -> RunError:
    """Say why this run is not the one that was planned."""
    host = socket.gethostname()
    config = run.config
    if host != run.host:
        return RunError(f"node {host} has different code, data or weights than the planning machine: sync them")
    paths = {*_mining_files(config), *read_files(config).values(), *modules_of(config).values()}
    for with_backbone in (config, *_with_other_backbones(config)):
        paths |= {*cache.files(with_backbone)}
    last = max(paths, key=_change_time)
    return RunError(f"{last} changed after the run was planned: nothing of it is stored; rerun the command")


def _change_time(path: Path) -> int:
    """Return the time of the last change of a file's inode; -1 if there is none."""
    status = stamp(path)
    return status[2] if status else -1


# --- computing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunContext:
    """Environment that computes and stores runs.

    Args:
        runs: folder of the runs.
        tracker: MLflow store.
        cache: shares data, backbone and features with earlier runs.
        display: progress; default none.
        tags: put on the MLflow run (a comparison's or a study's name).
        callbacks: callbacks of every run's training.
    """

    runs: Path
    tracker: Tracker
    cache: DataCache = field(default_factory=DataCache)
    display: Display = field(default_factory=Display)
    tags: Mapping[str, str] = field(default_factory=dict)
    callbacks: Callbacks = field(default_factory=Callbacks)

    @classmethod
    def open(cls, runs_dir: Path | None = None, tracking_uri: str | None = None) -> Self:
        """Open folder and store.

        Args:
            runs_dir: default: NEGBENCH_RUNS, or ./runs.
            tracking_uri: the MLflow store; default: the folder's sqlite file; "none": none.
        """
        root = files.runs_dir(runs_dir)
        return cls(root, Tracker.open(root, tracking_uri))


def compute_or_reuse(config: RunConfig | PlannedRun, context: RunContext) -> RunResult:
    """Compute a run, resume it if it was interrupted, or read its result if it is finished.

    Args:
        config: as read; or the run, if it is planned.
        context: computes and stores the run.

    Raises:
        NegbenchError: a user's mistake, where possible before anything is computed.
    """
    run = replace(open_run(config, context.display, context.cache, context.runs), callbacks=context.callbacks)
    check_room(run, context.runs)
    for line in open_run_lines(run):
        log.info("%s", line)
    with claim_folder(context.runs, run.name, run.hash, partial(record.manifest, run)) as (folder, action):
        if action == "reuse":
            lacking = None if "experiment" in context.tags else context.tracker.copy_lacking(folder)
            return RunResult(folder, folder.result, tracking_error=lacking, reused=True)
        if action == "resume":  # "auto" may have meant something else on the machine that started it
            started = folder.manifest.get("started", {})
            precision = Precision.of(run.config, started.get("precision"))
            run = in_precision(run, precision, context.cache, context.display)
            step_plan = StepPlan.of(run.config, run.backbone, {**vars(run.step_plan), **started})
            run = replace(run, step_plan=step_plan)
        hold_features(run)
        return compute_run(run, folder, context)


def in_precision(run: OpenRun, precision: Precision, cache: DataCache, display: Display) -> OpenRun:
    """Return a run that computes in this precision, its stored features included."""
    if precision.name == run.precision.name:
        return run
    run.backbone.precision = precision.name
    scene = cache.scene(run.config, run.splits, run.backbone, precision.device, display)
    return replace(run, precision=precision, scene=scene)


def hold_features(run: OpenRun) -> None:
    """Hold as many stored features on the run's device as its steps leave room for; say so where some are read."""
    source = run.scene.source
    if not isinstance(source, StoredFeatures):
        return
    gibibytes = run.config.compute.feature_memory_gib
    if gibibytes is not None:
        budget = int(gibibytes * 2**30)
    elif source.device.type == "cuda":
        step_bytes = step_memory(run, run.step_plan)
        budget = feature_budget(source.device, source.held_bytes, sum(step_bytes.values()))
    else:
        budget = feature_budget(source.device)
    source.hold(budget)
    if not source.in_memory or source.device.type == "cuda":
        log.info("%s", source)


def compute_run(run: OpenRun, folder: RunFolder, context: RunContext) -> RunResult:
    """Compute or resume an opened run in its folder, whose lock the caller holds; see `compute_or_reuse`."""
    with (
        threads(run.config.compute.threads),
        _recording(run, folder, context) as (record_point, live),
        run.display.live(folder.run_id),
        assemble_team(run, folder) as team,
    ):
        details = train(run.in_team(team), folder, record_point)
        live.artifacts(details)
    return RunResult(folder, details, tracking_error=live.error)


@contextmanager
def _recording(run: OpenRun, folder: RunFolder, context: RunContext) -> Iterator[tuple[RecordPoint, RunLog]]:
    """Yield what records the points of a run's curves, and the run's MLflow copy.

    A failure of the block is written to error.txt.
    """
    (folder.path / "error.txt").unlink(missing_ok=True)
    with context.tracker.run(folder, run.config.flat(), {**record.tags(run), **context.tags}) as live:

        def record_point(values: Mapping[str, float], step: int, epoch: int) -> None:
            live.metrics(values, step)
            run.callbacks.point(values, step, epoch)

        try:
            yield record_point, live
        except PausedError:
            raise  # interrupted, not failed
        except NegbenchError as error:
            with suppress(NegbenchError):  # on a full disk the first message counts
                folder.write_error(str(error))
            raise
        except Exception as error:
            ending = ending_of(error)
            if ending is not None:
                raise ending from None  # interrupted, not failed
            folder.write_error(f"{type(error).__name__}: {error}")
            raise
