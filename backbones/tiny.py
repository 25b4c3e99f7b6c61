"""Small convolutional image encoder and word-level text encoder for the synthetic garments; weights shipped, CPU-sized.

The encoders are pretrained contrastively on pictures and descriptions of synthetic garments of other seeds than a data
set's (see `examples/pretrain_tiny.py`), and stay frozen. Trained on top: a projection of each side, the fusion, the
temperature and, optionally, the attribute weights.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from negbench.backbones._attributes import attribute_masks, make_attributes
from negbench.backbones._composed import AttributeWeight, Seed, StartTemperature, TwoTowers
from negbench.backbones._fusion import FusionKind, make_fusion, make_linear, unit
from negbench.backbones._hashing import module_sha256, tower_sha256
from negbench.backbones._preprocess import Preprocess
from negbench.backbones._weights import check_fit
from negbench.contracts import DEFAULT_TEMPERATURE, BackboneIdentity
from negbench.errors import WeightsError

PAPER = "ours; contrastive encoders after CLIP (ICML 2021), gated fusion after HyCoLe-HNM (EMNLP Findings 2022, eq. 2)"

SHIPPED = Path(__file__).with_name("tiny.safetensors")
SHIPPED_SHA256 = "e41b5fdb58ca71dd280c799b79b7fc5d612a23e634a75dd3b1fb7e2400636b99"
FORMAT = "negbench-tiny-1"
SIZE = 64  # pixels of a side
WIDTH = 64  # width of image features, token features and embeddings
BUCKETS = 512  # embeddings shared by the words that the vocabulary does not hold
MAX_WORDS = 64  # of one text; the rest is left out
TAPS = 3  # a token's feature sees its word and the two before it

_WORD = re.compile(r"[a-z0-9]+(?:[/'-][a-z0-9]+)*")


class ImageEncoder(nn.Module):
    """Four convolutions and one linear layer over the whole last map: [B, 3, SIZE, SIZE] -> [B, WIDTH]."""

    # (channels in, channels out, kernel); every stride is 2
    LAYERS: ClassVar = ((3, 16, 5), (16, 32, 3), (32, 64, 3), (64, 128, 3))

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(inputs, outputs, kernel, 2, kernel // 2) for inputs, outputs, kernel in self.LAYERS]
        self.layers = nn.ModuleList(layers)
        side = SIZE // 2 ** len(self.LAYERS)
        # over positions too: where the garment ends shows its length and sleeves
        self.output = nn.Linear(self.LAYERS[-1][1] * side * side, WIDTH)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, SIZE, SIZE] -> [B, WIDTH]."""
        maps = pixels.contiguous(memory_format=torch.channels_last)  # half the time on a CPU
        for layer in self.layers:
            maps = torch.relu(layer(maps))
        return self.output(maps.flatten(1))


class TextEncoder(nn.Module):
    """Sums of word embeddings over three neighbouring words, pooled by attention: no matrix product per token.

    A token's feature is relu(E_0[w_t] + E_1[w_(t-1)] + E_2[w_(t-2)]), so that "long sleeves" and "long skirt" differ.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, TAPS * WIDTH)
        self.attention = nn.Linear(WIDTH, 1)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Word ids [B, S], 0 where there is no word -> token features [B, S, WIDTH] and text embeddings [B, WIDTH]."""
        tokens = torch.zeros(*ids.shape, WIDTH, device=ids.device, dtype=self.output.weight.dtype)
        for tap, table in enumerate(torch.split(self.embedding.weight, WIDTH, dim=1)):
            tokens = tokens + F.embedding(F.pad(ids, (tap, 0))[:, : ids.shape[1]], table)
        tokens = torch.relu(tokens)
        logits = self.attention(tokens).squeeze(-1)
        # in the logits' own dtype: under autocast it is narrower than the tokens'
        logits = logits.masked_fill(ids == 0, torch.finfo(logits.dtype).min)
        return tokens, self.output(torch.einsum("bs,bsc->bc", logits.softmax(1), tokens))


class Encoders(nn.Module):
    """The frozen encoders, as the weights file holds them."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        super().__init__()
        self.vocabulary = tuple(vocabulary)
        with torch.random.fork_rng(devices=[]):  # weights are loaded, or drawn by `reset`
            self.image = ImageEncoder()
            self.text = TextEncoder(1 + len(vocabulary) + BUCKETS)

    def reset(self, generator: torch.Generator) -> None:
        """Draw all weights anew from `generator`; biases are zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)

    def word_ids(self, texts: Sequence[str]) -> tuple[Tensor, list[list[str]]]:
        """Ids [B, S] of the texts' words (0: no word), S the longest text's count, and the words themselves."""
        numbers = {word: index + 1 for index, word in enumerate(self.vocabulary)}
        words = [_WORD.findall(text.lower())[:MAX_WORDS] for text in texts]
        longest = max((len(row) for row in words), default=1)
        ids = torch.zeros(len(words), max(1, longest), dtype=torch.int64)
        for row, row_words in enumerate(words):
            for position, word in enumerate(row_words):
                if word in numbers:
                    ids[row, position] = numbers[word]
                else:
                    ids[row, position] = 1 + len(numbers) + zlib.crc32(word.encode()) % BUCKETS
        return ids, words


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a weights file. Raises WeightsError if it is missing or not of this kind."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise WeightsError(f"no weights at {path}: write them with `python examples/pretrain_tiny.py --out {path}`")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path} has format {metadata.get('format')!r}, expected {FORMAT!r}: "
            "write it with examples/pretrain_tiny.py"
        )
    return metadata


def load_encoders(path: Path) -> Encoders:
    """Load the encoders of a weights file, in float32. Raises WeightsError if they do not fit."""
    from safetensors.torch import load_file

    metadata = read_metadata(path)
    try:
        encoders = Encoders([str(word) for word in json.loads(metadata["vocabulary"])])
    except (KeyError, ValueError, TypeError) as error:
        raise WeightsError(f"{path} has no vocabulary: write it with examples/pretrain_tiny.py") from error
    state = load_file(path)
    check_fit(f"{path} does not fit the tiny backbone", state, encoders.state_dict())
    encoders.load_state_dict(state)
    return encoders


@dataclass(frozen=True, kw_only=True)
class TinyOptions:
    """Options of `Tiny`.

    Args:
        weights: weights of the frozen encoders: "shipped", "random" (drawn from the run's seed), or a file that
            `examples/pretrain_tiny.py` wrote.
        fusion: "gated" (HyCoLe eq. 2; near the sum of both sides at first) or "sum".
        attribute_weights: add weighted colour and shape sub-queries to the query (DQE-CIR eq. 1); a number > 0 is
            their initial weight, true is 0.1.
        temperature: of the loss at the start, 0.01 .. 10; it is learned from there.
    """

    weights: str = "shipped"
    fusion: FusionKind = "gated"
    attribute_weights: AttributeWeight = False
    temperature: StartTemperature = DEFAULT_TEMPERATURE


class Tiny(TwoTowers):
    """Frozen tiny encoders, trained projections and fusion. Built by `load`; see `Backbone` for the methods' shapes.

    Features are [B, 1, WIDTH] and a candidate has one token. Any text works: words that the pretraining never saw share
    512 untrained embeddings.
    """

    # chosen on a fifth of the synthetic train queries, left out of training: bradley-terry with random negatives has
    # its best R@10 at 3e-3 (43.3 %; 41.0 at 1e-3, 41.5 at 1e-2), in-batch info-nce gains two points more at 1e-2
    recommended: ClassVar = {"lr": 3e-3, "epochs": 12, "batch_size": 64, "weight_decay": 0.01}

    def __init__(self, options: TinyOptions, seed: int) -> None:
        super().__init__()
        encoders, weights = _encoders_of(options.weights, seed)
        generator = torch.Generator().manual_seed(seed)
        self.transform = Preprocess(pad="square", size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear")
        self.encoders = encoders.requires_grad_(False)
        self.project_image = _near_identity(generator)
        self.project_text = _near_identity(generator)
        self.fusion = make_fusion(options.fusion, WIDTH, generator, "sum")
        self.learned_from = () if weights.startswith("random:") else ("synthetic",)
        self.attributes = make_attributes(options.attribute_weights, WIDTH, WIDTH, generator)
        start_details = self.start_temperature(options.temperature)
        self._feature_key = tower_sha256(self.encoders, self.transform)
        about = self._about(f"{options.fusion} fusion", WIDTH, "relu")
        hashed = module_sha256(self.encoders)
        about |= {"details": {"encoders_sha256": hashed, "vocabulary": len(self.encoders.vocabulary), **start_details}}
        about |= {"revision": "local" if self.learned_from else "", "preprocessing": self.transform.description}
        self._identity = BackboneIdentity("tiny", weights, **about)

    @classmethod
    def load(cls, options: TinyOptions, seed: Seed = 0) -> Self:
        """Read or draw the encoders, and draw the initial weights of everything that is trained from `seed`.

        Raises:
            WeightsError: the file is missing or does not fit.
        """
        return cls(options, seed)

    @torch.no_grad()
    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, 64, 64] -> [B, 1, WIDTH] float32, without gradient."""
        return self.encoders.image(pixels).float()[:, None]

    def candidates(self, features: Tensor) -> Tensor:
        """[B, 1, WIDTH] -> [B, 1, WIDTH], unit norm."""
        return unit(self.project_image(features.float()))

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, S] word ids, "colour": [B, S] bool, "shape": [B, S] bool: which words name an attribute}."""
        ids, words = self.encoders.word_ids(texts)
        # always with masks, so that backbones with and without `attribute_weights` can share tokenised texts
        return {"ids": ids, **attribute_masks(words, ids.shape[1])}

    def _reference(self, features: Tensor) -> Tensor:
        return self.candidates(features)[:, 0]

    @torch.no_grad()
    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{"pooled": [B, WIDTH]}; with attribute weights also their masks and "words" [B, S, WIDTH]."""
        words, pooled = self.encoders.text(tokens["ids"])
        return self._frozen(tokens, pooled, words)

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        frozen = tokens if "pooled" in tokens else self.frozen_text(tokens)
        return unit(self.project_text(frozen["pooled"])), frozen.get("words", frozen["pooled"])


def _encoders_of(weights: str, seed: int) -> tuple[Encoders, str]:
    """Return the encoders that the option `weights` names, and their name for the identity."""
    if weights == "random":
        encoders = Encoders(())
        # a stream of its own, so that the trained part is the same for every choice of `weights`
        encoders.reset(torch.Generator().manual_seed(2**32 + seed))
        return encoders, f"random:{seed}"
    path = SHIPPED if weights == "shipped" else Path(weights)
    if path == SHIPPED and not (path.is_file() and sha256(path.read_bytes()).hexdigest() == SHIPPED_SHA256):
        raise WeightsError(f"{path} is not the file that negbench ships: reinstall negbench")
    return load_encoders(path), "shipped" if weights == "shipped" else path.name


def _near_identity(generator: torch.Generator) -> nn.Linear:
    """Make a linear layer that starts close to the identity: the pretrained sides are aligned already."""
    layer: nn.Linear = make_linear(WIDTH, WIDTH, generator)
    with torch.no_grad():
        layer.weight.mul_(0.1).add_(torch.eye(WIDTH))
    return layer
