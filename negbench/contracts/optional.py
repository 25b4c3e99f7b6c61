"""What only some backbones can do. A backbone has such a method or has not; it need not inherit anything for it.

`isinstance(backbone, ComposesTexts)` asks. Shapes as in `negbench.contracts.backbone`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from negbench.contracts.backbone import Backbone, TextBatch


@dataclass(frozen=True)
class Outline:
    """What planning asks of a backbone. Neither its weights nor a library of models need be loaded for it.

    Args:
        kind: its class, whose methods say what it can do.
        name: registry key.
        frozen_images, learned_from: as in `Backbone`.
        files: whose contents are its weights.
        settings: plain values of all else that determines `image_features`.
        weights: hash of all its weights, where `files` do not say what they are.
    """

    kind: type
    name: str
    frozen_images: bool = True
    learned_from: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""

    @classmethod
    def of(cls, backbone: Backbone | Outline) -> Outline:
        """That of a backbone that is loaded; an outline as it is."""
        if isinstance(backbone, Outline):
            return backbone
        return cls(
            kind=type(backbone),
            name=backbone.identity.name,
            frozen_images=backbone.frozen_images,
            learned_from=backbone.learned_from,
            settings={"features": backbone.feature_key},
            weights=backbone.identity.sha256,
        )

    @property
    def key(self) -> str:
        """SHA-256 (hex) of `settings`."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()


@runtime_checkable
class Outlines(Protocol):
    """Its weights are large: it says what planning asks without reading them. The others are loaded for it."""

    @classmethod
    def outline(cls, options: Mapping[str, Any]) -> Outline:
        """That of what `load` makes of these options, all of them given.

        Raises:
            NegbenchError: options out of range, or files that are not there.
        """


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
