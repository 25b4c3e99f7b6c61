"""How long a grid will take and how much disk: measured on the spot on a few steps, scores and mined queries.

Nothing is encoded for it. Features are random numbers of the right shape, which cost what real ones do; what is
measured on a sample is scaled to the counts of the run. An estimate is within about a factor of two on an idle machine.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.config import RunConfig
from negbench.contracts import Strategy, relevance
from negbench.datasets.dataset import Dataset
from negbench.features.store import PixelSource, read_image, store_of
from negbench.grid.compare import Cell, Parts
from negbench.loop.objective import Batch, Objective
from negbench.loop.train import stream, trained_state
from negbench.mining.mine import MiningTask, mine
from negbench.ragged import Ragged
from negbench.scene import FeatureSource, Scene, Split, device_of, threads
from negbench.scoring import evaluation

_ROWS = 256  # queries and images of a sample
_FLOPS = 2e9  # of a sampled score block: about 0.1 s of one core
_DISTINCT = 256  # random features that stand for all images
# what no sample shows: a run's folder and its checkpoints on disk; with an MLflow store its rows, plot and copies
_RUN_SECONDS, _EPOCH_SECONDS = 0.2, 0.02
_TRACKED_RUN_SECONDS, _TRACKED_EPOCH_SECONDS = 0.6, 0.01
_RUN_BYTES, _EPOCH_BYTES = 60_000, 1_500
_TRACKED_RUN_BYTES, _TRACKED_EPOCH_BYTES = 250_000, 10_000
_WORKER_SECONDS = 5.0  # a worker process imports torch and loads the data


@dataclass(frozen=True)
class Estimate:
    """What computing some cells takes.

    Attributes:
        seconds: until all are done, with the workers asked for, encoding included.
        workers: how many.
        disk_bytes: that the runs leave, and the copy in the default MLflow store.
        images: yet to encode.
        encode_seconds, feature_bytes: what they take; the bytes are not part of `disk_bytes`.
        by_cell: seconds of each cell alone.
    """

    seconds: float
    workers: int
    disk_bytes: float
    images: int
    encode_seconds: float
    feature_bytes: int
    by_cell: tuple[float, ...]

    def line(self) -> str:
        """One line for people."""
        work = f"about {_duration(self.seconds)} with {self.workers} worker{'s' * (self.workers > 1)}, "
        features = f"; of it {self.images:,} images to encode: {_duration(self.encode_seconds)}"
        features += f" and {_size(self.feature_bytes)} more in the cache"
        return work + _size(self.disk_bytes) + features * (self.images > 0)


def estimate(cells: Sequence[Cell], *, workers: int, tracked: bool = True, parts: Parts | None = None) -> Estimate:
    """Measure and add up.

    Args:
        cells: that are to be computed.
        workers: processes.
        tracked: whether an MLflow store in the runs folder keeps a copy of every run.
        parts: of `negbench.grid.compare.plan`, so that nothing is loaded twice.

    Raises:
        NegbenchError: data that cannot be read.
    """
    parts = parts or Parts()
    by_cell, disk, images, encode_seconds, feature_bytes = list[float](), 0.0, 0, 0.0, 0
    samples: dict[str, _Sample] = {}
    for cell in cells:
        key = f"{cell.data} {cell.config.train} {cell.config.eval} {cell.config.mining} {cell.config.hybrid}"
        with threads(cell.config.compute.threads), torch.random.fork_rng(devices=[]):
            if key not in samples:
                samples[key] = _Sample(cell.config, parts)
                lacking = samples[key].encoding()
                images += lacking[0]
                encode_seconds += lacking[1]
                feature_bytes += lacking[2]
            sample = samples[key]
            epochs = int(cell.config.train.epochs or 0)
            by_cell.append(sample.run_seconds(cell.config) + tracked * _tracked_seconds(epochs))
            copied, own = sample.run_bytes(cell.config)
            disk += copied + own + tracked * (copied + _TRACKED_RUN_BYTES + epochs * _TRACKED_EPOCH_BYTES)
    used = max(1, min(workers, len(by_cell), os.cpu_count() or 1))
    # the last cells of a grid leave workers idle: on average half a cell
    spread = sum(by_cell) / used + (max(by_cell, default=0.0) / 2 + _WORKER_SECONDS if workers > 1 else 0.0)
    return Estimate(spread + encode_seconds, workers, disk, images, encode_seconds, feature_bytes, tuple(by_cell))


def _tracked_seconds(epochs: int) -> float:
    return _TRACKED_RUN_SECONDS + epochs * _TRACKED_EPOCH_SECONDS


def _seconds(action: Callable[[], Any], times: int = 2) -> float:
    """The fastest of a few calls, after one that warms up."""
    action()
    found = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return min(found)


class _Sample:
    """What one data set and one backbone take; measured once, and once more for each kind of strategy and loss."""

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config = config
        self.train, self.val = parts.splits(config)
        started = time.perf_counter()
        self.backbone = parts.backbone(config)
        self.device = device_of(config)
        self.backbone.to(self.device)
        self.load_seconds = time.perf_counter() - started
        self.generator = torch.Generator().manual_seed(0)
        self.source = self._features()
        tokens = self.backbone.tokenize([q.text for q in self.val.queries[:_ROWS]])
        rows = torch.arange(min(_ROWS, len(self.val.queries)))
        self.scene = Scene(
            source=self.source,
            frozen=self.backbone.frozen_images,
            encoded=0,
            train=_split(self.train, {}),
            val=Split(self.val.with_queries(rows, "sample"), rows, rows, tokens),
            dev=None,
            backbone_key="",
            seconds=0.0,
        )
        scene, queries = self.scene, len(rows)
        self.per_query = _seconds(lambda: evaluation.embed_queries(self.backbone, scene, scene.val)) / queries
        self.candidates = evaluation.embed_candidates(self.backbone, scene, torch.arange(_ROWS))
        per_image = _seconds(lambda: evaluation.embed_candidates(self.backbone, scene, torch.arange(_ROWS)))
        self.per_image = per_image / _ROWS
        self.per_scored = self._ranking()
        self.weight_bytes = sum(t.numel() * t.element_size() for t in trained_state(self.backbone).values())
        self.checkpoint_seconds = _seconds(self._checkpoint, 1)
        self._steps: dict[str, float] = {}
        self._mined: dict[str, tuple[float, float]] = {}

    def _features(self) -> FeatureSource:
        """Random features of the store's shape; a fine-tuned backbone's pixels are decoded as in a run."""
        backbone, device = self.backbone, self.device
        if backbone.provides_features:
            ids = self.train.all_images
            given: Tensor = backbone.features_of(ids[:_DISTINCT]).to(device)
            return lambda rows: given[rows.to(device) % len(given)]
        if not backbone.frozen_images:
            assert self.train.files is not None
            paths = [self.train.files.path(image) for image in self.train.all_images[:_DISTINCT]]
            pixels = PixelSource(paths, backbone, device=device)
            return lambda rows: pixels[rows % len(paths)]
        self.store = store_of(backbone)
        table = torch.randn(_DISTINCT, *self.store.shape, generator=self.generator).to(device)
        return lambda rows: table[rows.to(device) % _DISTINCT]

    def encoding(self) -> tuple[int, float, int]:
        """Images that the feature store lacks, and the seconds and bytes that they take."""
        if self.backbone.provides_features or not self.backbone.frozen_images:
            return 0, 0.0, 0
        files = {i: part.files.path(i) for part in (self.val, self.train) for i in part.all_images if part.files}
        missing = self.store.missing(files)
        if not missing:
            return 0, 0.0, 0
        transform, size = self.backbone.transform, self.config.compute.encode_batch_size
        some = [files[image] for image in missing[: min(16, size)]]

        def encode() -> None:
            pixels = torch.stack([transform(read_image(path)) for path in some]).to(self.device)
            with torch.inference_mode():
                self.backbone.image_features(pixels)

        seconds = _seconds(encode, 1) / len(some) * len(missing)
        return len(missing), seconds, len(missing) * self.store.image_bytes

    def _ranking(self) -> float:
        """Seconds for each pair of query and image when a split is ranked."""
        group, columns = max(self.val.groups.items(), key=lambda item: len(item[1]))
        members = [i for i, query in enumerate(self.val.queries) if query.group == group]
        if not members:
            return 0.0
        cost = max(1, len(columns) * self.candidates.shape[1] * self.candidates.shape[2] * 2)
        part = self.val.with_queries(members[: max(16, min(1024, int(_FLOPS / cost)))], "sample")
        vectors = torch.randn(_ROWS, self.candidates.shape[2], generator=self.generator).to(self.device)

        def scores(rows: Tensor, found: Tensor) -> Tensor:
            chosen = self.candidates[found.to(self.device) % _ROWS]
            return relevance(vectors[rows.to(self.device) % _ROWS], chosen).cpu()

        return _seconds(lambda: part.rank(scores)) / (len(part.queries) * len(columns))

    def _checkpoint(self) -> None:
        """Weights and the optimiser's two moments, to memory."""
        state = trained_state(self.backbone)
        torch.save([state, state, state], io.BytesIO())

    # --- one run -------------------------------------------------------------------------------------------------

    def run_seconds(self, config: RunConfig) -> float:
        """Seconds of one run without an MLflow store."""
        epochs, batch = int(config.train.epochs or 0), int(config.train.batch_size or 0)
        strategy = make_strategy(config.strategy.name, **config.strategy.options)
        queries, images = len(self.train.queries), len(self.train.images)
        steps = epochs * math.ceil(queries / batch) * self._step(config, strategy)
        embedding = queries * self.per_query + images * self.per_image
        mining = 2 * embedding  # the score curves at the start and the end
        if strategy.scope == "corpus":
            refreshes = len(config.schedule.refresh_epochs or ())
            first = 0 in (config.schedule.refresh_epochs or ())
            pairs = sum(
                int((self.train.group_index == g).sum()) * len(c) for g, c in enumerate(self.train.groups.values())
            )
            mining += (refreshes + (not first)) * embedding + refreshes * pairs * self._mining(config, strategy)[0]
            mining += (not first) * embedding  # the score curves behind the warm-up
            mining += (not first) * pairs * self._mining(config, make_strategy("all-corpus"))[0]
        return steps + mining + self._scoring(config, epochs) + self.load_seconds + self._overhead(epochs)

    def _overhead(self, epochs: int) -> float:
        return _RUN_SECONDS + epochs * (_EPOCH_SECONDS + self.checkpoint_seconds)

    def _scoring(self, config: RunConfig, epochs: int) -> float:
        """The untrained model, the curve, the reported epoch, and each modality alone before and after."""
        queries, images = len(self.val.queries), len(self.val.images)
        pairs = sum(int((self.val.group_index == g).sum()) * len(c) for g, c in enumerate(self.val.groups.values()))
        once = queries * self.per_query + images * self.per_image + pairs * self.per_scored
        modalities = queries * self.per_query + 2 * images * self.per_image + 2 * pairs * self.per_scored
        chosen = config.eval.select != "last"
        points = 1 + math.ceil(epochs / config.eval.every) + chosen
        dev = config.eval.dev_fraction * len(self.train.queries) / max(1, queries) if config.eval.select == "dev" else 0
        return points * once * (1 + dev) + 2 * modalities

    def run_bytes(self, config: RunConfig) -> tuple[float, float]:
        """Bytes of one run's folder: of what an MLflow store copies (weights, ranks, small files), and of the rest.

        The rest is the pools of the last two refreshes, and each refresh's mining table.
        """
        copied = self.weight_bytes + 20 * len(self.val.queries)
        copied += _RUN_BYTES + _EPOCH_BYTES * int(config.train.epochs or 0)
        strategy = make_strategy(config.strategy.name, **config.strategy.options)
        if strategy.scope == "batch":
            return copied, 0.0
        refreshes = len(config.schedule.refresh_epochs or ())
        queries = len(self.train.queries)
        widest = max(len(columns) for columns in self.train.groups.values())
        pools = min(2, refreshes) * queries * math.ceil(widest / 8)
        return copied, pools + refreshes * queries * self._mining(config, strategy)[1]

    # --- kinds of strategies and losses ----------------------------------------------------------------------------

    def _step(self, config: RunConfig, strategy: Strategy) -> float:
        """Seconds of one training step; the same for all corpus strategies."""
        key = f"{strategy.scope} {strategy.corrupts} {config.loss}"
        if strategy.scope == "batch":
            key += config.strategy.name
        if key not in self._steps:
            self._steps[key] = self._measured_step(config, strategy)
        return self._steps[key]

    def _measured_step(self, config: RunConfig, strategy: Strategy) -> float:
        loss = make_loss(config.loss.name, **config.loss.options)
        # a copy: the backbone of `parts` keeps its initial weights
        before = {name: value.clone() for name, value in trained_state(self.backbone).items()}
        objective = Objective(self.backbone, strategy, loss, self.scene, config.mining, config.hybrid)
        groups = self.backbone.parameter_groups(float(config.train.lr or 0), float(config.train.weight_decay or 0))
        optimizer = torch.optim.AdamW(groups)
        count = min(int(config.train.batch_size or 0), len(self.train.queries))
        rows = torch.randperm(len(self.train.queries), generator=self.generator)[:count]
        negatives = None
        if strategy.scope == "corpus":
            shape = (count, int(config.train.num_negatives or 1))
            negatives = torch.randint(len(self.train.images), shape, generator=self.generator)
        tokens = self.backbone.tokenize([self.train.queries[row].text for row in rows.tolist()])
        half = self.device.type == "cuda" and config.train.precision in ("auto", "bf16")

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                result = objective(Batch(rows, negatives, tokens))
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
            float(result.loss.detach())  # waits for a GPU

        self.backbone.train()
        try:
            return _seconds(step, 3)
        finally:
            self.backbone.load_state_dict(before, strict=False)
            for parameter in self.backbone.parameters():
                parameter.grad = None

    def _mining(self, config: RunConfig, strategy: Strategy) -> tuple[float, float]:
        """Seconds for each pair of query and image, and bytes of the mining table for each query."""
        key = f"{strategy}"
        if key not in self._mined:
            self._mined[key] = self._measured_mining(config, strategy)
        return self._mined[key]

    def _measured_mining(self, config: RunConfig, strategy: Strategy) -> tuple[float, float]:
        widest = max(len(columns) for columns in self.train.groups.values())
        _, tokens, width = self.candidates.shape
        count = max(16, min(widest, int(2 * _FLOPS / (2 * _ROWS * tokens * width))))
        rows = min(_ROWS, len(self.train.queries))
        target = torch.arange(rows) % count
        boundaries = len(config.schedule.refresh_epochs or ()) + 1
        draws = max(1, int(config.train.epochs or 0) // boundaries) * int(config.train.num_negatives or 1)
        task = MiningTask(
            queries=torch.nn.functional.normalize(torch.randn(rows, width, generator=self.generator), dim=-1).to(
                self.device
            ),
            candidates=self.candidates[torch.arange(count) % _ROWS]
            + 0.1 * torch.randn(count, tokens, width, generator=self.generator).to(self.device),
            target=target,
            group=torch.zeros(rows, dtype=torch.int64),
            groups=[torch.arange(count)],
            relevant=Ragged.of([[column] for column in target.tolist()]),
        )

        def once() -> Any:
            return mine(task, strategy, refresh=0, draws=draws, generator=stream(0, "estimate"))

        seconds = _seconds(once, 1)
        table = io.BytesIO()
        once().frame().to_parquet(table)
        return seconds / (rows * count), len(table.getvalue()) / rows


def _split(dataset: Dataset, tokens: dict[str, Tensor]) -> Split:
    """A split whose features are whatever `_Sample.source` gives for a row."""
    return Split(dataset, torch.arange(len(dataset.images)), dataset.reference_index, tokens)


def _duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    """'3 MiB', '1.2 GiB'."""
    mebibytes = count / 2**20
    return f"{max(1, round(mebibytes)):,} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"
