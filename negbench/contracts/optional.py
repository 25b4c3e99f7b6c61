"""Optional capabilities of backbones: define the methods to have one; nothing needs to be inherited.

Test with `isinstance(backbone, ComposesTexts)`. Shapes as in `negbench.contracts.backbone`.
"""

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
    """What planning needs to know of a backbone, without loading its weights or a model library.

    Args:
        kind: the backbone's class, whose methods define its capabilities.
        name: registry key.
        frozen_images, learned_from, fine_tuned: as in `Backbone`.
        files: files whose contents determine the weights.
        settings: all other values that determine `image_features`, as plain values.
        weights: hash of all weights, if `files` do not determine them.
    """

    kind: type
    name: str
    frozen_images: bool = True
    learned_from: tuple[str, ...] = ()
    fine_tuned: str = ""
    files: tuple[Path, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = ""

    @classmethod
    def of(cls, backbone: "Backbone | Outline") -> "Outline":
        """Return the outline of a loaded backbone, or an outline unchanged."""
        if isinstance(backbone, Outline):
            return backbone
        identity = backbone.identity
        settings = {"features": backbone.feature_key}
        return cls(
            type(backbone),
            identity.name,
            backbone.frozen_images,
            backbone.learned_from,
            backbone.fine_tuned,
            settings=settings,
            weights=identity.sha256,
        )

    @property
    def key(self) -> str:
        """SHA-256 (hex) of `settings`."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()


@runtime_checkable
class Outlines(Protocol):
    """A backbone with large weights that gives its outline without reading them; planning loads all others."""

    @classmethod
    def outline(cls, options: Any, seed: int) -> Outline:
        """Return the outline of the backbone that `load` builds from these options and this seed.

        Raises:
            NegbenchError: options out of range, or missing files.
        """


@runtime_checkable
class BuildsWithoutWeights(Protocol):
    """A backbone that can be built without reading its weights, so that planning knows the memory of its steps."""

    @classmethod
    def skeleton(cls, options: Any, seed: int) -> Backbone:
        """Return the backbone of these options with its parameters on torch's meta device, which has no numbers.

        Sizes are those of the files, of which only headers are read; of weights that are missing, as published.

        Raises:
            NegbenchError: options out of range.
        """


@runtime_checkable
class HoldsFeatures(Protocol):
    """A backbone that encodes no pixels but holds the features of every image by id."""

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len(ids), L, C]."""


@runtime_checkable
class ListsFeatures(HoldsFeatures, Protocol):
    """One that says which images it has features of, so that others can be left out (`allow_missing`)."""

    def lacking(self, ids: Sequence[str]) -> list[str]:
        """Return the ids without features, in order."""


@dataclass(frozen=True)
class TextsSeen:
    """What a text encoder sees of some texts.

    Args:
        rows: [n, K], what it computes their vectors from: equal rows give equal vectors.
        longer: number of texts of which it reads the beginning only.
        limit: tokens that it reads; 0: any number.
    """

    rows: Tensor
    longer: int = 0
    limit: int = 0


@runtime_checkable
class SeesTexts(Protocol):
    """A backbone that tells what it sees of texts, so that those it cannot tell apart are counted."""

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        """Return what its text encoder sees of texts."""


@runtime_checkable
class FreezesTexts(Protocol):
    """A backbone with a frozen part of its text encoding, which can be computed once."""

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the frozen part for tokenised texts; its rows can be passed as `text`, like tokens.

        Like the features, it is shared by all backbones with the same `feature_key` and options.
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
    """A backbone that scores aspects of a text separately (DQE-CIR)."""

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Return aspect name -> sub-query of the B queries (DQE-CIR eq. 1); empty if loaded without sub-queries."""


@runtime_checkable
class ComposesTexts(Protocol):
    """A backbone whose fusion works on embeddings: a text can replace the reference image (HyCoLe's hybrid terms)."""

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts that describe the references and B modifications -> [B, D], unit norm."""

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """Every reference text with every modification: R and P texts -> [R, P, D], `chunk` pairs at a time."""
