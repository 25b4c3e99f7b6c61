"""Planes: additional scores of every query and image, besides those of the model in training.

A strategy, or a false-negative filter of `mining`, names the planes that it reads; only these are computed. Three come
from the current model (`live_planes`, `batch_planes`), three are made once per run: "guide" and "judge"
(`offline_planes`), from another backbone (or the run's own, as loaded) or a TREC run file of scores, and "listed"
(`listed_plane`), from the data or the strategy's own file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from negbench.contracts import Backbone, Calls, PlaneName, QueryInputs, Strategy, check_option, relevance
from negbench.data.scene import EncodedSplits, Splits, device_of, load_backbone, open_scene
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, OptionError
from negbench.metrics.fixed import GIVEN, OFFLINE
from negbench.metrics.ragged import Ragged
from negbench.mining.composite import Composite
from negbench.mining.filters import Filters
from negbench.mining.lists import read_lists
from negbench.scoring import evaluation
from negbench.scoring.rankings import read_trec
from negbench.scoring.tiles import Corpus, tiled_relevance
from negbench.settings.config import SCORE_FILES, MiningConfig, PluginConfig, ResolvedConfig, is_score_file
from negbench.settings.layers import plugin_section

if TYPE_CHECKING:
    from negbench.display import Display


class Plane(ABC):
    """Scores of Q queries and N images."""

    @abstractmethod
    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return [b, n] float32 scores of queries [b] and images [n]; NaN where there is no score."""

    @abstractmethod
    def shard(self, rows: Tensor) -> Plane:
        """Return the plane of these queries only, in this order."""


@dataclass(frozen=True, eq=False)
class EmbeddedPlane(Plane):
    """Relevance of `queries` [Q, D] to `candidates` [N, T, D]; both unit norm, on one device."""

    queries: Tensor
    candidates: Tensor

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Compute scores in the fixed tiles of mining: the same numbers for any split of the queries."""
        return tiled_relevance(self.queries[rows.to(self.queries.device)], Corpus.of(self.candidates, columns.cpu()))

    def shard(self, rows: Tensor) -> EmbeddedPlane:
        """Return the plane of these queries; it shares the candidates."""
        return replace(self, queries=self.queries[rows.to(self.queries.device)])


@dataclass(frozen=True, eq=False)
class TablePlane(Plane):
    """Stored scores: row i of `columns` lists the images scored for query i, `scores` their flat scores; N in all."""

    columns: Ragged
    scores: Tensor
    images: int
    device: torch.device

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the stored scores; NaN where the file holds none."""
        part = self.shard(rows.cpu())
        scores = torch.full((len(rows), self.images), torch.nan)
        scores[torch.arange(len(rows)).repeat_interleave(part.columns.lengths), part.columns.values] = part.scores
        return scores[:, columns.cpu()].to(self.device)

    def shard(self, rows: Tensor) -> TablePlane:
        """Return the plane of these queries; it copies their scores."""
        places = Ragged(torch.arange(len(self.scores)), self.columns.offsets).select(rows)
        return replace(
            self, columns=Ragged(self.columns.values[places.values], places.offsets), scores=self.scores[places.values]
        )


def images_of(candidates: Tensor) -> Tensor:
    """Reduce [N, T, D] candidate tokens to [N, D], each image's normalised mean."""
    return functional.normalize(candidates.mean(1), dim=-1)


# --- under the current model ---------------------------------------------------------------------------------------


def live_planes(
    names: Collection[str], backbone: Backbone, scene: EncodedSplits, embeddings: evaluation.Embeddings
) -> dict[str, EmbeddedPlane]:
    """Compute the planes among `names` that use the current model, on the train split with these embeddings."""
    made, split, candidates = dict[str, EmbeddedPlane](), scene.train, embeddings.candidates
    images = images_of(candidates) if {"target", "reference"} & {*names} else candidates
    if "target" in names:
        targets = split.dataset.target_columns.to(images.device)
        made["target"] = EmbeddedPlane(images[targets], images[:, None])
    if "reference" in names:
        references = evaluation.references_of(backbone, scene, split, embeddings)
        made["reference"] = EmbeddedPlane(references, images[:, None])
    if "text" in names:
        made["text"] = EmbeddedPlane(evaluation.embed_texts(backbone, scene, split), candidates)
    return made


@torch.no_grad()
def batch_planes(names: Collection[str], calls: Calls, inputs: QueryInputs, tokens: Tensor) -> dict[str, Tensor]:
    """Compute the same planes for a batch against images, its own targets first: [B, C] each.

    Args:
        names: planes; offline ones are ignored.
        calls: of the backbone in training.
        inputs: the batch's references and texts.
        tokens: [C, T, D] tokens of the images.
    """
    made = dict[str, Tensor]()
    images = images_of(tokens) if {"target", "reference"} & {*names} else tokens
    if "target" in names:
        made["target"] = relevance(images[: len(inputs.rows)], images[:, None])
    if "reference" in names:
        references = calls.candidates(inputs.features, inputs.pictures)
        made["reference"] = relevance(images_of(references), images[:, None])
    if "text" in names:
        made["text"] = relevance(calls.text_queries(inputs.tokens, inputs.rows, "modification"), tokens)
    return made


# --- made once a run -----------------------------------------------------------------------------------------------


def planes_read(strategy: Strategy, mining: MiningConfig) -> frozenset[PlaneName]:
    """Return the planes that a run's strategy and filters read.

    Raises:
        OptionError: a guide or a judge is read, and `mining` names none.
    """
    own = frozenset(strategy.reads)
    read = own | frozenset(Filters.of(mining).reads)
    for name in GIVEN:
        if name in read and getattr(mining, name) is None:
            raise OptionError(
                f"{type(strategy).__name__ if name in own else 'a mining filter'} reads the plane '{name}', but the "
                "run has none: "
                f"--set mining.{name}=BACKBONE (as for --backbone), or a TREC run file ({', '.join(SCORE_FILES)})"
            )
    return read


def offline_planes(
    names: Collection[str], config: ResolvedConfig, scene: EncodedSplits, display: Display, precision: str = "fp32"
) -> dict[str, Plane]:
    """Compute the planes among `names` that stay fixed while a run trains.

    Args:
        names: planes; those of the current model are ignored.
        config: names guide and judge, and says how to encode for them.
        scene: its train split is scored, with texts and pairs as annotated.
        display: shows the stages.
        precision: what other backbones compute in: the run's.

    Raises:
        DataError: the data set redraws its pairs in each epoch, so no score can be kept; or a file does not fit the
            data set.
        NegbenchError: a backbone cannot be loaded, or a file cannot be read.
    """
    names = [name for name in GIVEN if name in names]
    if names:
        _check_stays(scene.train.dataset, names[0])
    planes = dict[str, Plane]()
    for name in names:
        text = str(getattr(config.mining, name))
        planes[name] = _given(text, config, scene, display, name == "judge", precision)
    return planes


def listed_plane(strategy: Strategy, dataset: Dataset, device: torch.device) -> dict[str, Plane]:
    """Return the plane "listed" of a data set's queries, if the strategy reads it.

    Raises:
        DataError: there is no list, the file does not fit the data set, or the data set redraws its pairs.
    """
    if "listed" not in strategy.reads:
        return {}
    check_listed(strategy, dataset)
    file, column_of = lists_of(strategy), dataset.column_of
    lists = [[column_of[name] for name in query.negatives if name in column_of] for query in dataset.queries]
    lists = lists if file is None else read_lists(file, dataset)
    columns = Ragged.of(lists)
    return {"listed": TablePlane(columns, torch.ones(len(columns.values)), len(dataset.images), device)}


def check_listed(strategy: Strategy, dataset: Dataset) -> None:
    """Raise DataError if the strategy reads lists, and there are none, or none that stay."""
    if "listed" in strategy.reads:
        _check_stays(dataset, "listed")
        known = dataset.column_of.keys()
        if lists_of(strategy) is None and all(known.isdisjoint(query.negatives) for query in dataset.queries):
            raise DataError(
                f"{dataset.identity} lists no negatives among its images: name a column of train's that does, as "
                "--columns negatives=NAME, or a file, as strategy listed:file=NEGATIVES.parquet"
            )


def lists_of(strategy: Strategy) -> Path | None:
    """Return the file of negatives, option `file` of the strategy or of its part that reads the plane "listed".

    Raises:
        OptionError: two parts name two files.
    """
    parts = strategy.members if isinstance(strategy, Composite) else (strategy,)
    files = {getattr(part, "file", None) for part in parts if "listed" in part.reads}
    check_option("file", sorted(map(str, files)), len(files) < 2, "the same in both parts")
    return next(iter(files), None)


def _check_stays(dataset: Dataset, name: str) -> None:
    if dataset.redraws:
        raise DataError(
            f"{dataset.card.name} draws new pairs in each epoch, but plane '{name}' is computed once: "
            "use a strategy and mining filters that read none of " + ", ".join(OFFLINE)
        )


def _given(
    text: str, config: ResolvedConfig, scene: EncodedSplits, display: Display, judges: bool, precision: str
) -> Plane:
    """Return scores from a file, or from a backbone: of composed queries or (`judges`) of target images."""
    device, dataset = device_of(config), scene.train.dataset
    if is_score_file(text):
        return _table(Path(text), dataset, device)
    named = config.other_backbone(PluginConfig(**plugin_section("backbones", text)))
    other = load_backbone(named, config.seed).to(device)
    other.precision = precision
    with display.stage("prepare"):
        own = open_scene(config, Splits(dataset, None, dataset), other, device, display)
    with display.stage("evaluate", note="judge" if judges else "guide"):
        if not judges:
            embeddings = evaluation.embed(other, own, own.train)
            return EmbeddedPlane(embeddings.queries, embeddings.candidates)
        images = images_of(evaluation.embed_candidates(other, own, own.train.images))
        return EmbeddedPlane(images[dataset.target_columns.to(images.device)], images[:, None])


def _table(path: Path, dataset: Dataset, device: torch.device) -> TablePlane:
    stored = read_trec(path)
    rows = [stored.get(query.id, {}) for query in dataset.queries]
    if not any(rows):
        raise DataError(f"{path} scores no query of {dataset.identity}: is it for another data set or split?")
    unknown: Sequence[str] = [image for row in rows for image in row if image not in dataset.column_of]
    if unknown:
        raise DataError(f"{path} scores images that {dataset.identity} does not have, such as {unknown[0]!r}")
    columns = Ragged.of([[dataset.column_of[image] for image in row] for row in rows])
    return TablePlane(columns, torch.tensor([s for row in rows for s in row.values()]), len(dataset.images), device)
