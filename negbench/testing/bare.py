"""A backbone with nothing in it: a test or a benchmark that needs one or two methods writes those and no more."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from negbench.contracts import Backbone, BackboneIdentity, TextBatch


class BareBackbone(Backbone):
    """Every member that `Backbone` asks for is there and raises NotImplementedError."""

    @property
    def identity(self) -> BackboneIdentity:
        """Not there."""
        raise NotImplementedError

    @property
    def feature_key(self) -> str:
        """Not there."""
        raise NotImplementedError

    @property
    def temperature(self) -> Tensor:
        """Not there."""
        raise NotImplementedError

    def image_features(self, pixels: Tensor) -> Tensor:
        """Not there."""
        raise NotImplementedError

    def candidates(self, features: Tensor) -> Tensor:
        """Not there."""
        raise NotImplementedError

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Not there."""
        raise NotImplementedError

    def text_queries(self, text: TextBatch) -> Tensor:
        """Not there."""
        raise NotImplementedError

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Not there."""
        raise NotImplementedError
