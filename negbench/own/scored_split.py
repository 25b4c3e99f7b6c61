"""What an audit looks at and `mine` mines: strategies with their settings, and a split scored by one model."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from negbench.contracts import HoldsFeatures, PlaneName, Strategy
from negbench.data.images import unfamiliar_images, with_features
from negbench.data.scene import DataCache, EncodedSplits, Splits, device_of, open_scene, threads
from negbench.datasets.dataset import Dataset, QueryRanks
from negbench.display import Display, notes
from negbench.errors import DataError, OptionError
from negbench.grid.axes import label, section_values
from negbench.loop.checkpoint import stream
from negbench.loop.mining_task import listed_plane, mining_task, offline_planes
from negbench.loop.precision import Precision
from negbench.loop.remarks import idle_exclusions
from negbench.machine.files import runs_dir
from negbench.mining.task import MiningTask
from negbench.plugins.registry import option_defaults, registry
from negbench.scoring.scorers import load_weights
from negbench.settings.command_options import ScoredSplitOptions
from negbench.settings.config import ResolvedConfig, build_config, resolve
from negbench.settings.layers import layers_of
from negbench.store.runfolder import RunFolder, find_run
from negbench.systems.system import with_system


@dataclass(frozen=True, eq=False)
class ScoredSplit:
    """A split scored by one model.

    Attributes:
        config: its backbone, data set, mining options and batch size apply.
        model: "untrained", or the run.
        scene: holds the split as `train`, whichever it is.
        task: mining task of the sampled queries.
        rows: [Q] int64, which queries of the data set these are.
        val: the run's ranks on its scored split, if its train split is audited; else None.
        remarks: caveats about the model and these images.
    """

    config: ResolvedConfig
    model: str
    scene: EncodedSplits
    task: MiningTask
    rows: Tensor
    val: QueryRanks | None = None
    remarks: tuple[str, ...] = ()

    @property
    def dataset(self) -> Dataset:
        """The split's queries and images."""
        return self.scene.train.dataset

    def task_of(self, strategy: Strategy) -> MiningTask:
        """Return the task with the negatives that the strategy's file, or the data, list."""
        listed = listed_plane(strategy, self.dataset, self.task.queries.device)
        planes = {name: plane.shard(self.rows) for name, plane in listed.items()}
        return replace(self.task, planes={**self.task.planes, **planes})


def configure(
    options: ScoredSplitOptions, strategies: Any
) -> tuple[ResolvedConfig, dict[str, Strategy], RunFolder | None]:
    """Return the strategies' common configuration, the strategies by label, and the run whose weights are used.

    Reports the parts of a recipe's system that the backbone or the data set does not support.

    Args:
        options: model, data set and seed.
        strategies: names, tables or text as `negbench.grid.axes.plugin_sections` takes them; None: the run's, or all
            corpus strategies.

    Raises:
        NegbenchError: a user's mistake, such as a batch strategy.
    """
    recipe, *flags = layers_of(options)
    recipe.pop("seed", None)  # the seed of its runs, not of the audit
    folder = None
    base: dict[str, Any] = {"seed": options.seed}
    if options.run is not None:
        folder = find_run(runs_dir(options.runs_dir), options.run)
        folder.check_plugins()
        base = folder.config.model_dump(mode="json")

    layers: list[dict[str, Any]] = [{}]  # the run's own strategy
    if strategies is not None or folder is None:
        names = "all" if strategies is None else strategies
        layers = [{"strategy": section} for section in section_values("strategy", names, [recipe, *flags])]
    if strategies is None and folder is None:
        layers = [layer for layer in layers if registry.make("strategies", layer["strategy"]["name"]).scope == "corpus"]

    cache = DataCache()
    configs = []
    unsupported: list[str] = []
    for layer in layers:
        settings, remarks = with_system([base, recipe, *flags, layer], cache)
        configs.append(resolve(build_config([settings])))
        unsupported += remarks
    notes(dict.fromkeys(unsupported))

    by_label: dict[str, Strategy] = {}
    for config in configs:
        section = config.strategy
        defaults = option_defaults(registry.get("strategies", section.name))
        name = label({"name": section.name, **section.options}, defaults)
        if name in by_label:
            raise OptionError(f"--strategy names {name} twice")
        by_label[name] = registry.make("strategies", section.name, **section.options)
        if by_label[name].scope != "corpus":
            raise OptionError(f"strategy {name} chooses among the members of a batch: it cannot be mined ahead")
    return configs[0], by_label, folder


def open_split(
    config: ResolvedConfig,
    split: str,
    display: Display,
    run: RunFolder | None = None,
    reads: Collection[PlaneName] = (),
    *,
    queries: int = 0,
    seed: int = 0,
) -> ScoredSplit:
    """Load data and model, encode what the feature store lacks, embed.

    Args:
        config: resolved.
        split: split of the queries and the corpus.
        display: shows the stages.
        run: finished run whose trained weights are used; None leaves the backbone untrained.
        reads: planes that the strategies need (`planes_read`).
        queries: how many queries to sample; 0: all of them.
        seed: of the sample.

    Raises:
        DataError: queries lack a target, or files are missing.
        OptionError: an exclusion of `mining` leaves out no image.
        NegbenchError: the weights do not fit.
    """
    cache = DataCache()
    with threads(config.compute.threads):
        device = device_of(config)
        backbone = cache.backbone(config)
        backbone.to(device)
        backbone.precision = Precision.of(config).name if run is None else run.precision
        backbone.set_least_temperature(config.train.temperature_least)
        dataset = cache.dataset(config.dataset, split, images=not isinstance(backbone, HoldsFeatures))
        dataset = with_features(dataset, backbone, config)
        if any(query.target is None for query in dataset.queries):
            raise DataError(f"{dataset.identity}: split {split} has queries without a target: choose another --split")
        for setting, why in idle_exclusions(config.mining, dataset):
            raise OptionError(f"{setting}: {why}")
        with display.stage("prepare"):
            scene = open_scene(config, Splits(dataset, None, dataset), backbone, device, display)
        offline = offline_planes(reads, config, scene, display, backbone.precision)
        if run is not None:
            load_weights(backbone, run)
        with display.stage("evaluate", note="audit"):
            task = mining_task(backbone, scene, config.mining, reads=reads, offline=offline)
        count = min(queries or len(dataset.queries), len(dataset.queries))
        rows = torch.randperm(len(dataset.queries), generator=generator_of(seed, "sample"))[:count].sort().values
    model = "untrained"
    val = None
    if run is not None:
        model = run.run_id
        if split == "train" and run.config.dataset == config.dataset:
            val = QueryRanks.from_frame(run.ranks())
    remarks = (*dataset.remarks, *unfamiliar_images(config, backbone))
    return ScoredSplit(config, model, scene, task.shard(rows), rows, val, remarks)


def generator_of(seed: int, purpose: str) -> torch.Generator:
    """Return the random stream of one purpose (sample, draws) under a seed."""
    return stream(seed, f"audit {purpose}")
