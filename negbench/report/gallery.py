"""Galleries of what runs retrieve and drew: models are rebuilt from stored weights, images shrunk to thumbnails.

torch is imported only where a model is rebuilt: a page of runs that read no pixels needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from negbench.analysis.frame import first_run, shared_value
from negbench.display import Display
from negbench.errors import NegbenchError, RunError
from negbench.report.examples import Example, ImageRow, Pictures, Relation, Thumbnail
from negbench.report.figures import ChartData
from negbench.settings.config import ResolvedConfig, resolve
from negbench.store.runfolder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from negbench.contracts import Backbone
    from negbench.data.scene import DataCache, EncodedSplits, Split
    from negbench.datasets.dataset import Dataset

TOP = 6
_STRATEGIES = 5  # shown at most, in the order of the leader table
_SEED = 0


Pick = Mapping[int, str]  # best, worst and random queries of a split: row -> why it is shown


@dataclass(frozen=True, eq=False)
class View:
    """One run's results on the picked queries: [P, TOP] columns and scores on val and on train."""

    label: str
    val: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor] | None


@dataclass(eq=False)
class Gallery:
    """Examples of one (data set, backbone); `missing` says what could not be shown."""

    pictures: Pictures
    val: tuple[Example, ...] = ()
    train: tuple[Example, ...] = ()
    missing: list[str] = field(default_factory=list)


def gallery(data: ChartData, count: int) -> Gallery:
    """Build examples of `count` best, `count` worst and `count` random queries of the reported split and of train.

    The models are those of each strategy's first seed under the first loss it has, at most five strategies. Missing
    data and weights are listed in `missing` and raise nothing.
    """
    examples = Gallery(Pictures(f"image{data.suffix}-"))
    folders: dict[str, RunFolder] = {}
    for group in data.groups:
        if len(folders) < _STRATEGIES:
            folders.setdefault(shared_value(group, "strategy"), first_run(group).folder)
    configs = _resolve_configs(folders, examples.missing)
    if configs is None:
        return examples
    train_sets = {folder.manifest["dataset"]["train"] for folder in folders.values()}
    ranks = {label: folder.ranks().set_index("query")["target_rank"] for label, folder in folders.items()}
    val_pick = _pick(pd.DataFrame(ranks), count)
    draws: dict[str, pd.DataFrame] = {}
    for label, folder in folders.items():
        frame = _read_draws(folder)
        if frame is not None and len(train_sets) == 1:
            draws[label] = frame
    train_ranks = {label: frame.groupby("query")["target_rank"].last() for label, frame in draws.items()}
    train_pick = _pick(pd.DataFrame(train_ranks), count) if draws else None
    from negbench.data.scene import DataCache

    views = []
    cache = DataCache()
    split: Split | None = None
    for label, config in configs.items():
        try:
            view, scene = _view(label, folders[label], config, cache, val_pick, train_pick)
        except NegbenchError as error:
            examples.missing.append(f"{label}: {error}")
            continue
        views.append(view)
        split = scene.val
    if split is None:
        return examples
    examples.val = _examples(split.dataset, val_pick, views, "val", {}, ranks, examples.pictures)
    if train_pick is not None:
        dataset = scene.train.dataset
        examples.train = _examples(dataset, train_pick, views, "train", draws, train_ranks, examples.pictures)
    else:
        examples.missing.append("no drawn negatives: batch strategies, or runs trained on different data")
    return examples


def _resolve_configs(folders: Mapping[str, RunFolder], missing: list[str]) -> dict[str, ResolvedConfig] | None:
    """Return the configurations of runs that can be shown; None if their backbone reads no pictures.

    What cannot be shown is added to `missing`.
    """
    configs = dict[str, ResolvedConfig]()
    for label, folder in folders.items():
        try:
            if not folder.has_weights:
                raise RunError("no weights")
            folder.check_plugins()
            if not _reads_pictures(folder):
                missing.append("the backbone reads stored embeddings, so there are no images to show")
                return None
            configs[label] = resolve(folder.config)
        except NegbenchError as error:
            missing.append(f"{label}: {error}")
    return configs


def _reads_pictures(folder: RunFolder) -> bool:
    """Whether a backbone of the run reads image files; runs of earlier versions did not store it."""
    if "reads_pictures" in folder.manifest:
        return bool(folder.manifest["reads_pictures"])
    from negbench.data.images import reads_pixels

    return reads_pixels(resolve(folder.config))


def _pick(ranks: pd.DataFrame, count: int) -> Pick:
    """Pick rows by the target's mean rank over the runs (columns); ties are in a seeded order, not in file order."""
    rank = ranks.mean(axis=1)
    average = " on average" if len(ranks.columns) > 1 else ""
    order = np.random.default_rng(_SEED).permutation(len(rank))
    by_rank = order[np.argsort(rank.to_numpy()[order], kind="stable")].tolist()
    best = by_rank[:count]
    others = by_rank[count:]
    worst = others[::-1][:count]
    rest = [row for row in order.tolist() if row not in {*best, *worst}][:count]
    values = rank.to_numpy()
    why = {}
    for kind, rows in {"best": best, "worst": worst, "random": rest}.items():
        for row in rows:
            why[row] = f"{kind}: target at rank {values[row]:,.0f}{average}"
    return why


def _read_draws(folder: RunFolder) -> pd.DataFrame | None:
    """Read all refreshes' draws: query, epoch (from 1), negatives, scores, positive, target_rank; None without any."""
    frames = []
    epochs = [int(row["epoch"]) for row in folder.result["behaviour_by_refresh"]]
    columns = ["negatives", "scores", "positive", "target_rank"]
    for number, epoch in enumerate(epochs):
        name = f"mining-{number:02d}"
        if (folder.path / f"{name}.parquet").exists():
            frame = folder.table(name, columns)
            frames.append(frame.assign(query=range(len(frame)), epoch=epoch + 1))
    return pd.concat(frames, ignore_index=True) if frames else None


# --- models ------------------------------------------------------------------------------------------------------


def _view(
    label: str, folder: RunFolder, config: ResolvedConfig, cache: DataCache, val: Pick, train: Pick | None
) -> tuple[View, EncodedSplits]:
    """Rebuild the run's model and rank the picked queries' images; also returns its scene."""
    from negbench.data.scene import device_of
    from negbench.scoring.scorers import load_weights

    device = device_of(config)
    backbone = cache.backbone(config).to(device)
    backbone.precision = folder.precision
    scene = cache.scene(config, cache.splits(config), backbone, device, Display())
    load_weights(backbone, folder)
    best = _top(backbone, scene, scene.val, val)
    return View(label, best, None if train is None else _top(backbone, scene, scene.train, train)), scene


def _top(backbone: Backbone, scene: EncodedSplits, split: Split, rows: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Return the best images of these queries of a split, with their scores."""
    import torch

    from negbench.scoring import evaluation

    index = torch.tensor(list(rows), dtype=torch.int64)
    tokens = {name: value[index] for name, value in split.tokens.items()}
    dataset = split.dataset.with_queries(index, "shown")
    part = replace(split, dataset=dataset, references=split.references[index], tokens=tokens)
    embeddings = evaluation.embed(backbone, scene, part)
    top = evaluation.top_k(part, embeddings.queries, embeddings.candidates, TOP)
    return top.columns, top.scores


# --- examples ----------------------------------------------------------------------------------------------------


def _examples(
    dataset: Dataset,
    pick: Pick,
    views: Sequence[View],
    split: str,
    draws: Mapping[str, pd.DataFrame],
    ranks: Mapping[str, pd.Series[Any]],
    pictures: Pictures,
) -> tuple[Example, ...]:
    """Build the examples of the picked queries of a split.

    Args:
        dataset: the split's queries and images.
        pick: the queries.
        views: of the runs.
        split: `val` or `train`.
        draws: run's label -> its draws.
        ranks: run's label -> rank of each query's target.
        pictures: of the page.
    """

    def thumb(image: str, caption: str, relation: Relation) -> Thumbnail:
        key = pictures.add(f"{split}/{image}", partial(dataset.open_image, image))
        return Thumbnail(image, key, caption, relation)

    examples = []
    for position, (row, why) in enumerate(pick.items()):
        query = dataset.queries[row]
        strips = []
        for view in views:
            top = view.val if split == "val" else view.train
            if top is None:
                continue
            columns, scores = top
            images = []
            for column, score in zip(columns[position].tolist(), scores[position].tolist(), strict=True):
                if column >= 0:
                    relation = _relation(dataset, row, column)
                    images.append(thumb(dataset.images[column], f"{score:.2f}{_word(relation)}", relation))
            rank = None
            if view.label in ranks:
                rank = ranks[view.label].get(query.id if split == "val" else row)
            remark = ""
            if rank is not None:
                remark = f"target at rank {int(rank):,}"
                if split == "train":
                    remark += " at the last refresh"
            strips.append(ImageRow(f"{view.label}: top {len(images)}", tuple(images), remark))
            if view.label in draws:
                strips.append(_row_of_draws(dataset, row, view.label, draws[view.label], thumb))
        title = f"query {query.id} of {split}, {query.group or 'all images'}"
        reference = thumb(query.reference, "reference", "reference")
        target = thumb(str(query.target or query.relevant[0]), "target", "target")
        examples.append(Example(title, why, query.text, reference, target, tuple(strips)))
    return tuple(examples)


def _row_of_draws(dataset: Dataset, row: int, label: str, draws: pd.DataFrame, thumb: Any) -> ImageRow:
    """Show at most TOP negatives drawn for a query, spread over the epochs, with their scores when mined."""
    refreshes = draws[draws["query"] == row].sort_values("epoch")
    negatives = []
    for epoch, columns, scores in zip(refreshes["epoch"], refreshes["negatives"], refreshes["scores"], strict=True):
        for column, score in zip(columns, scores, strict=True):
            negatives.append((int(epoch), int(column), float(score)))
    indices = np.unique(np.linspace(0, len(negatives) - 1, min(TOP, len(negatives))).round().astype(int))
    images = []
    for index in indices:
        epoch, column, score = negatives[index]
        relation = _relation(dataset, row, column)
        word = " false negative" if relation == "relevant" else _word(relation)
        images.append(thumb(dataset.images[column], f"{score:.2f}{word}, pool of epoch {epoch}", relation))
    positive = float(refreshes["positive"].iloc[-1])
    remark = f"{len(negatives):,} in all; the target scored {positive:.2f} at the last refresh"
    return ImageRow(f"{label}: negatives drawn", tuple(images), remark)


def _relation(dataset: Dataset, row: int, column: int) -> Relation:
    """Return what an image is to a query; "unknown" where only the target is annotated."""
    if column == int(dataset.target_columns[row]):
        return "target"
    answers = dataset.answers.row(row).tolist() if dataset.answers is not None else []
    if column in answers:
        return "relevant"
    if dataset.images[column] == dataset.queries[row].reference:
        return "reference"
    return "other" if len(answers) > 1 else "unknown"


def _word(relation: Relation) -> str:
    return {"target": " target", "relevant": " relevant", "reference": " reference"}.get(relation, "")
