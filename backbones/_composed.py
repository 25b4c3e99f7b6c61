"""Shared by all families: identity as loaded, texts on the device, sub-queries; for two towers also the fusion."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from negbench.backbones._attributes import AttributeWeights
from negbench.backbones._fusion import Fusion
from negbench.backbones._hashing import module_sha256
from negbench.backbones._preprocess import Preprocess
from negbench.contracts import (
    DEFAULT_TEMPERATURE,
    Backbone,
    BackboneIdentity,
    SubQuery,
    TextBatch,
    bound_below,
    check_option,
)

# types of options, with their ranges: the registry checks them
Init = Literal["pretrained", "random"]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range that every generator takes
TargetRatio = Annotated[float, Field(ge=1)]
SharedWidth = Annotated[int, Field(ge=8, le=1024)]
HiddenWidth = Annotated[int, Field(ge=0, le=65536)]
AttributeWeight = bool | PositiveFloat

BESIDE = ("weights", "tokenizer", "temperature")  # options that name files, and one that no feature depends on


def check_without_weights(weights: str | None) -> None:
    """Raise OptionError if weights are named although they are drawn."""
    check_option(
        "backbone.weights", weights, weights is None, "left out with backbone.init=random (--set backbone.weights=null)"
    )


def feature_settings(options: Any) -> dict[str, Any]:
    """Return the options that determine features, as an `Outline` has them: without those at their default.

    The contents of files count in place of their names.
    """
    settings = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in BESIDE and value != field.default:
            settings[field.name] = value
    return settings


MIN_TEMPERATURE = 0.01  # CLIP's bound
MAX_START = 10.0  # of a temperature: scores are cosines, so that a loss at 10 tells no negatives apart
StartTemperature = Annotated[float, Field(ge=MIN_TEMPERATURE, le=MAX_START)]


def about_temperature(start: Tensor, source: Literal["file", "default", "option"]) -> dict[str, Any]:
    """Return what an identity says of the temperature at the start: its value, and who chose it.

    Args:
        start: scalar.
        source: "file", that of the weights; "default", 0.07; "option", `backbone.temperature`.
    """
    return {"temperature": round(float(start.detach()), 6), "temperature_from": source}


class Composed(Backbone):
    """Base of backbones that compose a query from reference and text, and add any DQE-CIR sub-queries.

    A subclass sets `attributes`, `_feature_key` and, when it is complete, `_identity`; it implements `_compose`.

    Attributes:
        attributes: module of the sub-queries; None without.
    """

    attributes: AttributeWeights | None
    hashed_beside: ClassVar[Mapping[str, Tensor]] = {}  # tensors that identities of former versions held
    transform: Preprocess
    _identity: BackboneIdentity
    _feature_key: str

    @property
    def identity(self) -> BackboneIdentity:
        """Resolved identity; its hash is that of the weights as loaded."""
        return self._identity

    @property
    def feature_key(self) -> str:
        """Hash of what determines the stored features: frozen weights as loaded, and preprocessing."""
        return self._feature_key

    def _about(self, fusion: str, width: int, activation: str = "", tokens: int = 1) -> dict[str, Any]:
        """Return fields of `BackboneIdentity`, among them the parameters' current hash and counts."""
        attributes = "" if self.attributes is None else " + attribute weights"
        return {
            "embedding_dim": width,
            "tokens_per_image": tokens,
            "composition": fusion + attributes,
            "activation": activation,
            "sha256": module_sha256(self, self.hashed_beside),
            "parameters": sum(p.numel() for p in self.parameters()),
            "trainable_parameters": sum(p.numel() for p in self.parameters() if p.requires_grad),
        }

    @abstractmethod
    def _compose(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return queries [B, D] of unit norm without sub-queries, and the token features [B, S, C] of their texts.

        Token features are read only if there are sub-queries.
        """

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, L, C] and B texts -> [B, D], unit norm; any sub-queries are added."""
        tokens = self._tokens(text)
        return self._with_sub_queries(*self._compose(features, tokens), tokens)

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Colour and shape sub-queries (DQE-CIR eq. 1); none unless loaded with `attribute_weights`."""
        if self.attributes is None:
            return {}
        tokens = self._tokens(text)
        return self.attributes(*self._compose(features, tokens), tokens)

    def _frozen(self, tokens: Mapping[str, Tensor], pooled: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Return `frozen_text` of texts [B, C], with token features [B, S, C] if there are sub-queries."""
        if self.attributes is None:
            return {"pooled": pooled}
        masks = {name: value for name, value in tokens.items() if name != "ids"}
        return {"pooled": pooled, **masks, "words": words}

    def _with_sub_queries(self, query: Tensor, words: Tensor, tokens: Mapping[str, Tensor]) -> Tensor:
        if self.attributes is None:
            return query
        return self.attributes.combine(query, self.attributes(query, words, tokens))

    def _tokens(self, text: TextBatch) -> dict[str, Tensor]:
        """Tokenised batch on the model's device."""
        batch = text if isinstance(text, Mapping) else self.tokenize(text)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}


class TwoTowers(Composed):
    """Base of backbones that fuse one reference embedding and one text embedding of width D into a query.

    A subclass implements `_reference`, `_text` and the rest of `Backbone`.

    Attributes:
        fusion: fusion of the embeddings; a text may replace the image (HyCoLe's text composition).
        log_temperature: log of the learned temperature (`start_temperature`).
    """

    least_temperature = MIN_TEMPERATURE
    fusion: Fusion
    log_temperature: nn.Parameter

    def start_temperature(self, start: float) -> dict[str, Any]:
        """Create `log_temperature`; return what the identity says of it."""
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))
        return about_temperature(torch.tensor(start), "default" if start == DEFAULT_TEMPERATURE else "option")

    @property
    def temperature(self) -> Tensor:
        """Learned temperature; see `bound_below`."""
        return bound_below(self.log_temperature.exp(), self.least_temperature)

    @abstractmethod
    def _reference(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, D], unit norm: the fusion's input for an image."""

    @abstractmethod
    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Text embeddings [B, D] of unit norm, and token features [B, S, C] (anything without `attributes`)."""

    def _rate(self, name: str) -> float:
        """Return a parameter's learning rate relative to the run's."""
        return 1.0

    def _compose(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        embedding, words = self._text(tokens)
        return self.fusion(self._reference(features), embedding), words

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D], unit norm: the text's own embedding, without fusion or sub-queries."""
        return self._text(self._tokens(text))[0]

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts in the references' place and B modifications -> [B, D], unit norm."""
        tokens = self._tokens(modification)
        embedding, words = self._text(tokens)
        return self._with_sub_queries(self.fusion(self.text_queries(reference_text), embedding), words, tokens)

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """[R, L, C] and P texts -> [R, P, D], unit norm; each side is embedded once, `chunk` pairs fused at a time."""
        return self._cross(self._reference(features), text, chunk)

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """R texts in the references' place and P modifications -> [R, P, D], unit norm; as `cross_queries`."""
        return self._cross(self.text_queries(reference_text), modification, chunk)

    def _cross(self, reference: Tensor, text: TextBatch, chunk: int) -> Tensor:
        tokens = self._tokens(text)
        embedding, words = self._text(tokens)
        rows = max(1, chunk // max(1, embedding.shape[0]))
        return self._with_sub_queries(self.fusion.cross(reference, embedding, chunk=rows), words, tokens)

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW groups by learning rate, the highest first: matrices decay; biases and scalars do not."""
        trained = [(p, self._rate(name)) for name, p in self.named_parameters() if p.requires_grad]
        groups = []
        for rate in sorted({rate for _, rate in trained}, reverse=True):
            matrices = [p for p, p_rate in trained if p_rate == rate and p.ndim > 1]
            others = [p for p, p_rate in trained if p_rate == rate and p.ndim <= 1]
            groups.append({"params": matrices, "lr": lr * rate, "weight_decay": weight_decay})
            groups.append({"params": others, "lr": lr * rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]
