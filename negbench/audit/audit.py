"""What strategies would draw, without any training: false negatives, hardness, diversity, fallbacks, score curves.

A strategy is applied to the scores of one model, untrained or a run's, over a sample of the train queries. Whether an
image is a false negative is known where the data set knows more relevant images than the target; elsewhere a judge, any
backbone, calls an image one where it looks like the target.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from negbench.api import make_strategy
from negbench.config import PluginConfig, RunConfig
from negbench.contracts import Backbone, ScoreView, Strategy, check_option, relevance
from negbench.datasets.dataset import Dataset
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.files import atomic_write, read_json, write_json
from negbench.loop.folder import RunFolder
from negbench.loop.train import mining_task
from negbench.mining.mine import MiningTask, batch_statistics, mine
from negbench.scene import Scene, device_of, load_backbone, load_split, prepare_split, threads
from negbench.scoring import evaluation
from negbench.scoring.scorers import load_weights

if TYPE_CHECKING:
    import pandas as pd

    from negbench.grid.compare import Cell

_BLOCK = 256  # queries judged at once
_GRID_QUERIES = 500  # a comparison's audit: a second a strategy at most
_CURVE_POINTS = 2000  # of one score curve; more ranks than that are thinned out


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


@dataclass(frozen=True)
class AuditRow:
    """What one strategy would do; means over queries, NaN where nothing is known or there is no such thing.

    Attributes:
        strategy: its label.
        scope: corpus, or batch: used whole, in simulated batches, its target slot alone.
        queries: that were sampled.
        pool_size, pool_size_median: images in a query's pool, after the fallback.
        band_start, band_mean, band_end: rank percentile of the pool among the allowed images, 0 the highest-scored.
        false_negative_rate_pool: share of the pool that the data set knows to be relevant.
        false_negative_rate_draws: the same of the draws.
        judged_rate_pool, judged_rate_draws: the same by the judge.
        hardness: mean over the draws of s+ - s-; small or negative is hard.
        diversity: 1 - mean cosine between the drawn negatives of a query, all pairs, in the audited model's own
            embeddings (an image's is the normalised mean of its candidate tokens); 0 where all draws look the same.
        fallback_below, fallback_any: queries whose empty pool fell back to the nearest image below the target, or to
            any; batch strategies: `empty` rows of the batches, which then have no negative at all.
    """

    strategy: str
    scope: str
    queries: int
    pool_size: float
    pool_size_median: float
    band_start: float
    band_mean: float
    band_end: float
    false_negative_rate_pool: float
    false_negative_rate_draws: float
    judged_rate_pool: float
    judged_rate_draws: float
    hardness: float
    diversity: float
    fallback_below: float
    fallback_any: float
    empty: float


@dataclass(frozen=True)
class Curve:
    """Scores of one query's corpus in descending order, and where the pools lie; ranks count from 1.

    `ranks` and `scores` are thinned out to at most 2,000 points. `pools`: strategy -> (first rank, last rank, size).
    """

    query: str
    text: str
    target_rank: int
    target_score: float
    relevant_ranks: list[int]
    ranks: list[int]
    scores: list[float]
    pools: dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Audit:
    """An audit of one model on one split."""

    backbone: str
    dataset: str  # identity
    model: str  # "untrained", or the run
    truth: bool  # whether the data set knows more relevant images than the target
    judge: str  # "" or the judge with its threshold
    options: AuditOptions
    rows: list[AuditRow]
    curves: list[Curve]
    remarks: list[str]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def frame(self) -> pd.DataFrame:
        """One row a strategy, with what was audited."""
        import pandas as pd

        head = {"backbone": self.backbone, "dataset": self.dataset, "model": self.model, "judge": self.judge}
        return pd.DataFrame([head | asdict(row) for row in self.rows])


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


# --- the subject ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subject:
    """A split as one model sees it.

    Attributes:
        config: resolved; its backbone, data set, mining and batch size count.
        dataset: the split.
        model: "untrained", or the run.
        task: of the sampled queries.
        rows: [Q] int64, which queries of the data set these are.
        images: [N, D] unit-norm mean candidate token of every image, on the CPU.
    """

    config: RunConfig
    dataset: Dataset
    model: str
    task: MiningTask
    rows: Tensor
    images: Tensor


def open_subject(
    config: RunConfig, split: str, options: AuditOptions, display: Display, run: RunFolder | None = None
) -> Subject:
    """Load data and model, encode what the feature store lacks, embed.

    Args:
        config: resolved.
        split: whose queries and corpus.
        options: how many queries.
        display: shows the stages.
        run: takes its trained weights; None leaves the backbone untrained.

    Raises:
        DataError: queries without a target, or files that are missing.
        NegbenchError: weights that do not fit.
    """
    with threads(config.compute.threads):
        device = device_of(config)
        backbone = load_backbone(config.backbone, config.seed)
        if run is not None:
            load_weights(backbone, run)
        backbone.to(device)
        dataset = load_split(config.dataset, split, images=not backbone.provides_features)
        if any(query.target is None for query in dataset.queries):
            raise DataError(f"{dataset.identity}: split {split} has queries without a target: choose another --split")
        scene = _scene(config, dataset, backbone, device, display)
        with display.stage("evaluate", note="audit"):
            task = mining_task(backbone, scene, config)
        count = min(options.queries or len(dataset.queries), len(dataset.queries))
        order = torch.randperm(len(dataset.queries), generator=_generator(options, "sample"))
        rows = order[:count].sort().values
        images = functional.normalize(task.candidates.mean(1), dim=-1).cpu()
    return Subject(config, dataset, "untrained" if run is None else run.run_id, task.shard(rows), rows, images)


def _scene(config: RunConfig, dataset: Dataset, backbone: Backbone, device: torch.device, display: Display) -> Scene:
    """The split as train split of a scene, which is what mining looks at."""
    with display.stage("prepare"):
        split, features = prepare_split(config, dataset, backbone, device, display)
    return Scene(
        source=features.source,
        frozen=features.frozen,
        encoded=features.encoded,
        train=split,
        val=split,
        dev=None,
        backbone_key=backbone.feature_key,
        seconds=0.0,
    )


def open_judge(judge: PluginConfig, threshold: float, subject: Subject, display: Display) -> Judge:
    """Embed the subject's images with another backbone.

    Raises:
        OptionError: a threshold outside -1..1.
        NegbenchError: a backbone that cannot be loaded.
    """
    check_option("--threshold", threshold, -1 <= threshold <= 1, "a cosine, -1 to 1")
    config = subject.config
    with threads(config.compute.threads):
        device = device_of(config)
        backbone = load_backbone(judge, config.seed).to(device)
        scene = _scene(config, subject.dataset, backbone, device, display)
        with display.stage("evaluate", note="judge"):
            tokens = evaluation.embed_candidates(backbone, scene, scene.train.images)
    images = functional.normalize(tokens.mean(1), dim=-1).cpu()
    options = "".join(f":{key}={value}" for key, value in judge.options.items())
    return Judge(f"{judge.name}{options} > {threshold:g}", images, threshold)


def _generator(options: AuditOptions, purpose: str) -> torch.Generator:
    from negbench.loop.train import stream

    return stream(options.seed, f"audit {purpose}")


# --- the audit ---------------------------------------------------------------------------------------------------


def audit(
    subject: Subject,
    strategies: Mapping[str, Strategy],
    options: AuditOptions,
    *,
    judge: Judge | None = None,
    skip_oracles: bool = False,
) -> Audit:
    """Apply strategies to a subject.

    Args:
        subject: of `open_subject`, with the same options.
        strategies: label -> strategy, either scope.
        options: draws, refresh, curves, seed.
        judge: adds the judged rates.
        skip_oracles: leave out, with a remark, the oracles where there is no ground truth, instead of OptionError.

    Raises:
        OptionError: an oracle without ground truth.
        NegbenchError: a strategy that breaks its contract.
    """
    truth = subject.task.relevant is not None
    rows, remarks = [], []
    pools: dict[str, NDArray[np.uint8]] = {}
    with threads(subject.config.compute.threads), tempfile.TemporaryDirectory() as folder:
        for number, (label, strategy) in enumerate(strategies.items()):
            try:
                if strategy.scope == "corpus":
                    file = Path(folder) / f"{number}.bits"
                    rows.append(_corpus_row(subject, label, strategy, options, judge, file))
                    pools[label] = np.load(file)
                else:
                    rows.append(_batch_row(subject, label, strategy, options, judge))
            except OptionError as error:
                if truth or not skip_oracles or not strategy.reads_truth:
                    raise
                remarks.append(f"left out {label}: {error}")
        curves = _curves(subject, pools, options)
    return Audit(
        backbone=subject.config.backbone.name,
        dataset=subject.dataset.identity,
        model=subject.model,
        truth=truth,
        judge="" if judge is None else judge.name,
        options=options,
        rows=rows,
        curves=curves,
        remarks=remarks,
    )


def _corpus_row(
    subject: Subject, label: str, strategy: Strategy, options: AuditOptions, judge: Judge | None, file: Path
) -> AuditRow:
    task = subject.task
    mined = mine(
        task,
        strategy,
        refresh=options.refresh,
        draws=options.draws,
        generator=_generator(options, "draws"),
        pools=file,
    )
    summary = mined.summary()
    judged_pool = judged_draws = math.nan
    if judge is not None:
        judged_pool = _judged_pools(task, np.load(file), judge)
        judged_draws = float(judge.wrong(task.target, mined.negatives).double().mean())
    names = ("pool_size", "pool_size_median", "band_start", "band_mean", "band_end", "hardness")
    rates = ("false_negative_rate_pool", "false_negative_rate_draws", "fallback_below", "fallback_any")
    return AuditRow(
        strategy=label,
        scope="corpus",
        queries=len(task.queries),
        judged_rate_pool=judged_pool,
        judged_rate_draws=judged_draws,
        diversity=float(diversity(subject.images[mined.negatives]).mean()),
        empty=math.nan,
        **{name: summary[name] for name in (*names, *rates)},
    )


def diversity(drawn: Tensor, used: Tensor | None = None) -> Tensor:
    """1 - mean cosine over all pairs of a query's negatives.

    Args:
        drawn: [Q, M, D] unit-norm embeddings.
        used: [Q, M] bool, which of them there are; default all.

    Returns:
        [Q] float64; NaN for a query with fewer than two.
    """
    weight = torch.ones(drawn.shape[:2]) if used is None else used
    weight = weight.to(torch.float64)
    count = weight.sum(1)
    total = torch.einsum("qm,qmd->qd", weight, drawn.double())
    norms = (weight * drawn.double().square().sum(-1)).sum(1)
    pairs = (total.square().sum(1) - norms) / (count * (count - 1))
    return torch.where(count > 1, 1 - pairs, torch.nan)


def _blocks(task: MiningTask) -> Iterator[tuple[Tensor, Tensor]]:
    """([b] rows of the task, [n] columns of their corpus)."""
    for group, columns in enumerate(task.groups):
        for rows in torch.split((task.group == group).nonzero()[:, 0], _BLOCK):
            if len(rows):
                yield rows, columns


def _pool_rows(bits: NDArray[np.uint8], rows: Tensor, width: int) -> Tensor:
    """[b, width] bool from the packed pools of `mine`."""
    return torch.from_numpy(np.unpackbits(bits[rows.numpy()], axis=1, count=width).astype(bool))


def _judged_pools(task: MiningTask, bits: NDArray[np.uint8], judge: Judge) -> float:
    """Mean over queries of the share of the pool that the judge calls wrong."""
    shares = []
    for rows, columns in _blocks(task):
        pool = _pool_rows(bits, rows, len(columns))
        wrong = judge.wrong(task.target[rows], columns)
        shares.append((pool & wrong).sum(1).double() / pool.sum(1))
    return float(torch.cat(shares).mean())


def _batch_row(
    subject: Subject, label: str, strategy: Strategy, options: AuditOptions, judge: Judge | None
) -> AuditRow:
    """The sampled queries in random batches of the run's size; a last one with a single query is left out."""
    task, size = subject.task, int(subject.config.train.batch_size or 2)
    order = torch.randperm(len(task.queries), generator=_generator(options, "batches"))
    found: list[dict[str, float]] = []
    sizes, spread = list[Tensor](), list[Tensor]()
    judged = ("judged_rate_pool", "judged_rate_draws")
    for rows in order.split(size):
        if len(rows) < 2:
            continue
        view, known = _batch_view(task, rows, options.refresh, oracle=strategy.reads_truth)
        pool = strategy.pool(view).cpu()
        values = batch_statistics(view, pool.to(view.scores.device), known)
        weights = pool.double()
        targets = task.target[rows]
        wrong = None if judge is None else judge.wrong(targets, targets).double()
        values["filled"] = len(rows) - values["empty"]
        found.append(values | {name: _share(wrong, w) for name, w in zip(judged, (weights > 0, weights), strict=True)})
        sizes.append((weights > 0).sum(1))
        members = subject.images[targets][None].expand(len(rows), -1, -1)
        spread.append(diversity(members, weights > 0))
    nan = math.nan
    names = ("pool_size", "false_negative_rate_pool", "false_negative_rate_draws", "hardness")
    return AuditRow(
        strategy=label,
        scope="batch",
        queries=sum(len(part) for part in sizes),
        pool_size_median=float(np.median(torch.cat(sizes).numpy())),
        diversity=float(torch.cat(spread).nanmean()),
        empty=sum(values["empty"] for values in found),
        **{name: _weighted(found, name) for name in (*names, *judged)},
        **dict.fromkeys(("band_start", "band_mean", "band_end", "fallback_below", "fallback_any"), nan),
    )


def _weighted(batches: Sequence[Mapping[str, float]], name: str) -> float:
    """Mean over the queries of all batches that have a negative; NaN where none has."""
    filled = sum(batch["filled"] for batch in batches)
    return sum(batch[name] * batch["filled"] for batch in batches if batch["filled"]) / filled if filled else math.nan


def _share(wrong: Tensor | None, weights: Tensor) -> float:
    """Mean over the rows that hold anything of the share of the weight [b, b] that is wrong; NaN where unknown."""
    if wrong is None:
        return math.nan
    filled = weights[weights.sum(1) > 0].double()
    return float(((filled * wrong[weights.sum(1) > 0]).sum(1) / filled.sum(1)).mean())


def _batch_view(task: MiningTask, rows: Tensor, refresh: int, *, oracle: bool) -> tuple[ScoreView, Tensor | None]:
    """The batch's own [B, B] scores of targets, and which are known to be relevant."""
    device = task.queries.device
    targets = task.target[rows]
    scores = relevance(task.queries[rows.to(device)].float(), task.candidates[targets.to(device)].float())
    known = None
    if task.relevant is not None:
        everyone = torch.arange(len(task.candidates))
        known = task.relevant.select(rows).mask(everyone, len(everyone))[:, targets].to(device)
    allowed = (targets[:, None] != targets[None, :]).to(device)
    own = torch.arange(len(rows), device=device)
    return ScoreView(scores, own, allowed, refresh, known if oracle else None), known


# --- score curves ------------------------------------------------------------------------------------------------


def _curves(subject: Subject, pools: Mapping[str, NDArray[np.uint8]], options: AuditOptions) -> list[Curve]:
    task = subject.task
    order = torch.randperm(len(task.queries), generator=_generator(options, "curves"))
    return [_curve(subject, int(row), pools) for row in order[: options.curves].sort().values]


def _curve(subject: Subject, row: int, pools: Mapping[str, NDArray[np.uint8]]) -> Curve:
    from negbench.metrics.ranks import descending

    task, device = subject.task, subject.task.queries.device
    columns = task.groups[int(task.group[row])]
    scores = relevance(task.queries[row : row + 1].float(), task.candidates[columns.to(device)].float()).cpu()
    ranked = descending(scores)[0]
    rank = torch.empty_like(ranked)
    rank[ranked] = torch.arange(1, len(ranked) + 1)
    place = {int(column): position for position, column in enumerate(columns.tolist())}
    target = place[int(task.target[row])]
    known = [] if task.relevant is None else [place[c] for c in task.relevant.row(row).tolist() if c in place]
    spans = {}
    for label, bits in pools.items():
        inside = rank[_pool_rows(bits, torch.tensor([row]), len(columns))[0]]
        spans[label] = (int(inside.min()), int(inside.max()), len(inside))
    shown = torch.linspace(0, len(ranked) - 1, min(len(ranked), _CURVE_POINTS)).round().long().unique()
    query = subject.dataset.queries[int(subject.rows[row])]
    return Curve(
        query=query.id,
        text=query.text,
        target_rank=int(rank[target]),
        target_score=round(float(scores[0, target]), 6),
        relevant_ranks=sorted(int(rank[position]) for position in known if position != target),
        ranks=(shown + 1).tolist(),
        scores=[round(float(value), 6) for value in scores[0, ranked[shown]]],
        pools=spans,
    )


def write_curves(audit: Audit, path: Path) -> Path:
    """Draw the score curves as PNG: one column a query, the pools as bars below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = audit.curves
    figure = Figure(figsize=(1.5 + 4.2 * len(curves), 3.4 + 0.22 * len(audit.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [3.0, 0.4 + 0.22 * len(audit.rows)]
    panels = figure.subplots(2, len(curves), sharex="col", squeeze=False, height_ratios=heights)
    for column, curve in enumerate(curves):
        top, bottom = panels[0][column], panels[1][column]
        top.plot(curve.ranks, curve.scores, color="#1f5fa8", linewidth=1.2)
        top.axvline(curve.target_rank, color="#2e8b57", linewidth=1)
        top.plot([curve.target_rank], [curve.target_score], "o", color="#2e8b57", markersize=5, label="target")
        lookup = np.interp(curve.relevant_ranks, curve.ranks, curve.scores)
        if len(curve.relevant_ranks):
            top.plot(curve.relevant_ranks, lookup, "x", color="#c0392b", markersize=4, label="known relevant")
        text = curve.text if len(curve.text) <= 48 else curve.text[:47] + "…"
        title = f"{curve.query}\n{text}".replace("$", r"\$")  # no mathematics
        top.set(xscale="log", title=title)
        top.title.set_fontsize(8)
        if column == 0:
            top.set_ylabel("score")
            top.legend(frameon=False, fontsize=7)
        for place, (first, last, _) in enumerate(curve.pools.values()):
            bottom.broken_barh([(first, max(last - first, 0.02 * first))], (place - 0.35, 0.7), color="#c05a2e")
        bottom.set(xlabel="rank", yticks=range(len(curve.pools)), yticklabels=list(curve.pools) if column == 0 else [])
        bottom.tick_params(axis="y", labelsize=7)
        bottom.invert_yaxis()
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return path


def write_audits(audits: Sequence[Audit], folder: Path, key: str = "") -> list[Path]:
    """audit.csv (one row a strategy) and audit.json ({"key", "audits": [...]}, with the score curves).

    Returns:
        The two paths.
    """
    import pandas as pd

    table = folder / "audit.csv"
    with atomic_write(table) as file:
        file.write(pd.concat([found.frame() for found in audits]).to_csv(index=False))
    write_json(folder / "audit.json", {"key": key, "audits": [found.plain() for found in audits]})
    return [table, folder / "audit.json"]


# --- of a comparison ---------------------------------------------------------------------------------------------


def audit_cells(cells: Sequence[Cell], folder: Path, display: Display) -> list[str]:
    """Audit a grid's strategies on the untrained model, once for each backbone and data set, into the grid's folder.

    An audit of the same cells that lies there already is kept. A backbone or data set that cannot be audited costs a
    remark and no more.

    Args:
        cells: of a comparison.
        folder: where audit.csv and audit.json go.
        display: shows the stages.

    Returns:
        Remarks, one line each.
    """
    subjects: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        subjects.setdefault((cell.labels["backbone"], cell.labels["dataset"]), []).append(cell)
    key = hashlib.sha256(" ".join(sorted(cell.hash for cell in cells)).encode()).hexdigest()
    if (folder / "audit.json").exists() and read_json(folder / "audit.json")["key"] == key:
        return []
    found, remarks = list[Audit](), list[str]()
    for members in subjects.values():
        first = members[0].config
        options = AuditOptions(queries=_GRID_QUERIES, seed=first.seed)
        chosen = {cell.labels["strategy"]: cell.config.strategy for cell in members}
        strategies = {label: make_strategy(plugin.name, **plugin.options) for label, plugin in chosen.items()}
        try:
            subject = open_subject(first, "train", options, display)
            done = audit(subject, strategies, options, skip_oracles=True)
        except NegbenchError as error:
            remarks.append(str(error))
            continue
        found.append(replace(done, backbone=members[0].labels["backbone"]))
        remarks += done.remarks
    if found:
        write_audits(found, folder, key)
    return remarks
