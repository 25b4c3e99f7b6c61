"""What a family of its own takes: a two-tower model of transformers in some fifty lines, through the whole suite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import SiglipConfig, SiglipModel

from negbench.backbones._composed import TwoTowers, bounded
from negbench.backbones._fusion import make_fusion, unit
from negbench.backbones._hashing import key_sha256, module_sha256
from negbench.backbones._preprocess import Preprocess
from negbench.contracts import BackboneIdentity
from negbench.testing import BackboneTestCase

LENGTH = 64


class Siglip(TwoTowers):
    """SigLIP with random weights of a toy size, frozen, under a gated fusion; reads letters."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        tower: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
        tower["num_hidden_layers"] = 2
        text = {**tower, "vocab_size": 128, "max_position_embeddings": LENGTH, "projection_size": 16}
        vision = {**tower, "image_size": 32, "patch_size": 16}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():  # random weights that tell inputs apart
                parameter.normal_(0.0, 0.3, generator=generator)
        self.transform = Preprocess(pad="square", size=32)
        self.fusion = make_fusion("gated", 16, generator)
        self.attributes = None
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.07)))
        self._feature_key = key_sha256(
            {"tower": module_sha256(self.model.vision_model), "pixels": repr(self.transform)}
        )
        self._identity = BackboneIdentity(
            name="siglip",
            weights=f"random:{seed}",
            revision="",
            embedding_dim=16,
            tokens_per_image=1,
            preprocessing=self.transform.description,
            composition="gated fusion",
            **self._measured(),
        )
        self.eval()

    @property
    def temperature(self) -> Tensor:
        return bounded(self.log_temperature.exp())

    @torch.no_grad()
    def image_features(self, pixels: Tensor) -> Tensor:
        return self.model.vision_model(pixels).pooler_output.float()[:, None]

    def candidates(self, features: Tensor) -> Tensor:
        return unit(features)

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        rows = [[ord(c) % 128 for c in text[:LENGTH].ljust(LENGTH)] for text in texts]
        return {"ids": torch.tensor(rows, dtype=torch.int64).reshape(-1, LENGTH)}

    def _reference(self, features: Tensor) -> Tensor:
        return unit(features[:, 0])

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            embedding = unit(self.model.text_model(tokens["ids"]).pooler_output)
        return embedding, embedding


class TestSiglip(BackboneTestCase):
    @pytest.fixture
    def make(self) -> Any:
        return Siglip
