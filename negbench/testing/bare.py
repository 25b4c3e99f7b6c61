"""Small parts of tests: a backbone with nothing in it, and the states of the global generators."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from negbench.contracts import Backbone, BackboneIdentity, TextBatch


def global_generators() -> tuple[Any, ...]:
    """Return the states of Python's, numpy's and torch's global generators, which no plug-in may move."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002


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
