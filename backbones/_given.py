"""Base of backbones that train projections and a fusion on top of given features."""

import torch
from PIL.Image import Image
from torch import Tensor, nn

from negbench.backbones._composed import TwoTowers
from negbench.backbones._fusion import FusionKind, make_fusion, make_linear, unit
from negbench.contracts import DEFAULT_TEMPERATURE
from negbench.errors import NegbenchError


class GivenFeatures(TwoTowers):
    """Features given by id, several rows per image, with a trained projection of each side and a trained fusion.

    From an image's L rows x and a text's row y, n() making unit norm: candidates n(W_i x_l); query n(fusion(n(mean over
    l of W_i x_l), n(W_t y))). A subclass implements `features_of`, `tokenize` and `_text`.

    Args:
        inputs: widths C of the images' and the texts' features.
        width: D of the shared space. A projection between equal widths begins as the identity, any other as an
            orthogonal map.
        fusion: "gated" or "sum".
        generator: the initial weights' only source of randomness.
        hidden: width of the fusion's hidden layer; 0 for none.
        temperature: at the start.
    """

    text_table: Tensor  # frozen vectors of texts

    def __init__(
        self,
        inputs: tuple[int, int],
        width: int,
        fusion: FusionKind,
        generator: torch.Generator,
        *,
        hidden: int = 0,
        temperature: float = DEFAULT_TEMPERATURE,
    ) -> None:
        super().__init__()
        self.image_projection = _projection(inputs[0], width, generator)
        self.text_projection = _projection(inputs[1], width, generator)
        self.fusion = make_fusion(fusion, width, generator, "sum", hidden)
        self.attributes = None
        self.start_details = self.start_temperature(temperature)

    def preprocess(self, image: Image) -> Tensor:
        """Raise NegbenchError: there is no image encoder."""
        raise NegbenchError(f"backbone '{self.identity.name}' has no image encoder: it takes features by id")

    def image_features(self, pixels: Tensor) -> Tensor:
        """Raise NegbenchError: there is no image encoder."""
        raise NegbenchError(f"backbone '{self.identity.name}' has no image encoder: use features_of(ids)")

    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, L, D], unit norm."""
        return unit(self.image_projection(features.float()))

    def _reference(self, features: Tensor) -> Tensor:
        return unit(self.image_projection(features.float()).mean(1))


def _projection(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Make a linear map that keeps the geometry as far as the widths allow: untrained scores then mean something."""
    layer: nn.Linear = make_linear(inputs, outputs, generator, bias=False)
    if inputs == outputs:
        nn.init.eye_(layer.weight)
    else:
        nn.init.orthogonal_(layer.weight, generator=generator)
    return layer
