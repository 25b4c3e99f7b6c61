"""Planes: additional scores of every query and image, besides those of the model in training.

A strategy, or a false-negative filter of `mining`, names the planes that it reads; only these are computed. Three come
from the current model (`live_planes`, `batch_planes`), three are made once per run: "guide" and "judge"
(`offline_planes`), from another backbone (or the run's own, as loaded) or a TREC run file of scores, and "listed"
(`listed_plane`), from the data or the strategy's own file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from negbench.contracts import Calls, QueryInputs, relevance
from negbench.metrics.ragged import Ragged
from negbench.scoring.tiles import Corpus, tiled_relevance


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
        row = torch.arange(len(rows)).repeat_interleave(part.columns.lengths)
        scores[row, part.columns.values] = part.scores
        return scores[:, columns.cpu()].to(self.device)

    def shard(self, rows: Tensor) -> TablePlane:
        """Return the plane of these queries; it copies their scores."""
        entries = Ragged(torch.arange(len(self.scores)), self.columns.offsets).select(rows)
        columns = Ragged(self.columns.values[entries.values], entries.offsets)
        return replace(self, columns=columns, scores=self.scores[entries.values])


def images_of(candidates: Tensor) -> Tensor:
    """Reduce [N, T, D] candidate tokens to [N, D], each image's normalised mean."""
    return functional.normalize(candidates.mean(1), dim=-1)


@torch.no_grad()
def batch_planes(names: Collection[str], calls: Calls, inputs: QueryInputs, tokens: Tensor) -> dict[str, Tensor]:
    """Compute the same planes for a batch against images, its own targets first: [B, C] each.

    Args:
        names: planes; offline ones are ignored.
        calls: of the backbone in training.
        inputs: the batch's references and texts.
        tokens: [C, T, D] tokens of the images.
    """
    planes = dict[str, Tensor]()
    images = images_of(tokens) if {"target", "reference"} & {*names} else tokens
    if "target" in names:
        planes["target"] = relevance(images[: len(inputs.rows)], images[:, None])
    if "reference" in names:
        references = calls.candidates(inputs.features, inputs.pictures)
        planes["reference"] = relevance(images_of(references), images[:, None])
    if "text" in names:
        planes["text"] = relevance(calls.text_queries(inputs.tokens, inputs.rows, "modification"), tokens)
    return planes
