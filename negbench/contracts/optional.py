"""What only some backbones can do. A backbone has such a method or has not; it need not inherit anything for it.

`isinstance(backbone, ComposesTexts)` asks. Shapes as in `negbench.contracts.backbone`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from negbench.contracts.backbone import Backbone, TextBatch


@runtime_checkable
class HoldsFeatures(Protocol):
    """Encodes no pixels: it holds the features of every image by id."""

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len, L, C]."""


@runtime_checkable
class FreezesTexts(Protocol):
    """Part of what it makes of a text is changed by no training, and can be computed once."""

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What stands for tokenised texts once that part is computed; its rows are passed as `text`, as tokens are.

        Like the features, it is shared by all backbones of one `feature_key` and the same options.
        """


@dataclass(frozen=True)
class SubQuery:
    """A query's part for one aspect of its text, such as its colours (DQE-CIR eq. 1).

    Args:
        embeddings: [B, D], unit norm; the zero vector where the text has no word of the aspect.
        weight: scalar >= 0, learned: how much the part adds to the query, and its loss to the total (eq. 8).
        present: [B] bool, which texts have such a word.
    """

    embeddings: Tensor
    weight: Tensor
    present: Tensor


@runtime_checkable
class HasSubQueries(Protocol):
    """Scores aspects of a text by themselves (DQE-CIR)."""

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Aspect name -> sub-query of the B queries (DQE-CIR eq. 1); empty where it was loaded without."""


@runtime_checkable
class ComposesTexts(Protocol):
    """Its fusion works on embeddings, so a text can stand in the reference image's place (HyCoLe's hybrid terms)."""

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts that describe the references and B modifications -> [B, D], unit norm."""

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """Every reference text with every modification: R and P texts -> [R, P, D], `chunk` pairs at a time."""


@runtime_checkable
class CrossesQueries(Protocol):
    """Fuses every reference with every text at less cost than `queries` on all pairs."""

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """[R, L, C] and P texts -> [R, P, D], `chunk` pairs at a time."""


def cross_queries(backbone: Backbone, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
    """Every reference with every text: [R, L, C] and P texts -> [R, P, D], for negatives of all slots.

    Runs `queries` on all R * P pairs, `chunk` at a time, unless the backbone `CrossesQueries` itself.
    """
    if isinstance(backbone, CrossesQueries):
        return backbone.cross_queries(features, text, chunk=chunk)
    tokens = text if isinstance(text, Mapping) else backbone.tokenize(text)
    count = len(next(iter(tokens.values())))
    rows = torch.arange(len(features), device=features.device).repeat_interleave(count)
    columns = torch.arange(count, device=features.device).repeat(len(features))
    parts = [
        backbone.queries(features[r], {name: t[c] for name, t in tokens.items()})
        for r, c in zip(rows.split(chunk), columns.split(chunk), strict=True)
    ]
    return torch.cat(parts).reshape(len(features), count, -1)
