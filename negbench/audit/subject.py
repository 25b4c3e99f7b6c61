"""What is audited: a split as one model sees it, a sample of its queries, and a judge of what looks like the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from negbench.config import PluginConfig, ResolvedConfig
from negbench.contracts import check_option
from negbench.datasets.dataset import Dataset, QueryRanks
from negbench.display import Display
from negbench.errors import DataError
from negbench.loop.checkpoint import stream
from negbench.mining.mine import MiningTask
from negbench.mining.task import mining_task
from negbench.runfolder import RunFolder
from negbench.scene import Scene, Scenes, Splits, device_of, load_backbone, open_scene, threads
from negbench.scoring import evaluation
from negbench.scoring.scorers import load_weights


@dataclass(frozen=True)
class AuditOptions:
    """What is looked at.

    Args:
        queries: how many queries, drawn at random; 0 takes all.
        draws: negatives drawn for each query, at least 2 (one has no diversity).
        refresh: 0-based count of the refresh that strategies with a schedule (cirqrs) are told.
        curves: queries whose score curve is kept.
        seed: of the sample, the draws and the batches.

    Raises:
        OptionError: a value out of range.
    """

    queries: int = 1000
    draws: int = 10
    refresh: int = 0
    curves: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("--queries", self.queries, self.queries == 0 or self.queries >= 2, "0 (all) or at least 2")
        check_option("--draws", self.draws, self.draws >= 2, "at least 2")
        for name in ("refresh", "curves", "seed"):
            check_option(f"--{name}", getattr(self, name), getattr(self, name) >= 0, "at least 0")

    def generator(self, purpose: str) -> torch.Generator:
        """The stream of one purpose under `seed`."""
        return stream(self.seed, f"audit {purpose}")


@dataclass(frozen=True, eq=False)
class Subject:
    """A split as one model sees it.

    Attributes:
        config: its backbone, data set, mining and batch size count.
        model: "untrained", or the run.
        scene: whose `train` is the split, whichever it is.
        task: of the sampled queries.
        rows: [Q] int64, which queries of the data set these are.
        images: [N, D] unit-norm mean candidate token of every image, on the CPU.
        val: the run's ranks on the split that it was scored on, where its train split is audited; else None.
    """

    config: ResolvedConfig
    model: str
    scene: Scene
    task: MiningTask
    rows: Tensor
    images: Tensor
    val: QueryRanks | None = None

    @property
    def dataset(self) -> Dataset:
        """The split's queries and images."""
        return self.scene.train.dataset


def open_subject(
    config: ResolvedConfig,
    split: str,
    options: AuditOptions,
    display: Display,
    run: RunFolder | None = None,
    scenes: Scenes | None = None,
) -> Subject:
    """Load data and model, encode what the feature store lacks, embed.

    Args:
        config: resolved.
        split: whose queries and corpus.
        options: how many queries.
        display: shows the stages.
        run: takes its trained weights; None leaves the backbone untrained.
        scenes: shares what was loaded before.

    Raises:
        DataError: queries without a target, or files that are missing.
        NegbenchError: weights that do not fit.
    """
    scenes = scenes or Scenes()
    with threads(config.compute.threads):
        device = device_of(config)
        backbone = scenes.backbone(config)
        if run is not None:
            load_weights(backbone, run)
        backbone.to(device)
        dataset = scenes.dataset(config.dataset, split, images=not backbone.provides_features)
        if any(query.target is None for query in dataset.queries):
            raise DataError(f"{dataset.identity}: split {split} has queries without a target: choose another --split")
        with display.stage("prepare"):
            scene = open_scene(config, Splits(dataset, None, dataset), backbone, device, display)
        with display.stage("evaluate", note="audit"):
            task = mining_task(backbone, scene, config.mining)
        count = min(options.queries or len(dataset.queries), len(dataset.queries))
        order = torch.randperm(len(dataset.queries), generator=options.generator("sample"))
        rows = order[:count].sort().values
        images = functional.normalize(task.candidates.mean(1), dim=-1).cpu()
    own = run is not None and split == "train" and run.config.dataset == config.dataset
    return Subject(
        config,
        model="untrained" if run is None else run.run_id,
        scene=scene,
        task=task.shard(rows),
        rows=rows,
        images=images,
        val=QueryRanks.from_frame(run.ranks()) if run is not None and own else None,
    )


@dataclass(frozen=True, eq=False)
class Judge:
    """Who says that an image is as good as the target: cosine to it above a threshold.

    Attributes:
        name: as printed.
        images: [N, D] unit-norm embeddings of the data set's images.
        threshold: cosine above which an image counts as a false negative.
    """

    name: str
    images: Tensor
    threshold: float

    def wrong(self, targets: Tensor, images: Tensor) -> Tensor:
        """[b, n] bool from columns: targets [b], images [n] or [b, n]; a target is never wrong to itself."""
        mine = self.images[targets]
        if images.ndim == 1:
            cosine, same = mine @ self.images[images].T, targets[:, None] == images[None, :]
        else:
            cosine = torch.einsum("bd,bnd->bn", mine, self.images[images])
            same = targets[:, None] == images
        return (cosine > self.threshold) & ~same


def open_judge(judge: PluginConfig, threshold: float, subject: Subject, display: Display) -> Judge:
    """Embed the subject's images with another backbone.

    Raises:
        OptionError: a threshold outside -1..1.
        NegbenchError: a backbone that cannot be loaded.
    """
    check_option("--threshold", threshold, -1 <= threshold <= 1, "a cosine, -1 to 1")
    config, dataset = subject.config, subject.dataset
    with threads(config.compute.threads):
        device = device_of(config)
        backbone = load_backbone(judge, config.seed).to(device)
        with display.stage("prepare"):
            scene = open_scene(config, Splits(dataset, None, dataset), backbone, device, display)
        with display.stage("evaluate", note="judge"):
            tokens = evaluation.embed_candidates(backbone, scene, scene.train.images)
    images = functional.normalize(tokens.mean(1), dim=-1).cpu()
    options = "".join(f":{key}={value}" for key, value in judge.options.items())
    return Judge(f"{judge.name}{options} > {threshold:g}", images, threshold)
