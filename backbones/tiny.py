"""Small convolutional image encoder and word-level text encoder for the synthetic garments; weights shipped, CPU-sized.

The encoders are pretrained contrastively on pictures and descriptions of synthetic garments of other seeds than a data
set's (see `_tiny_pretrain`), and stay frozen. Trained on top: a projection of each side, the fusion, the temperature
and, on demand, the attribute weights.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from negbench.backbones._attributes import ASPECTS, AttributeWeights, attribute_masks
from negbench.backbones._fusion import FusionKind, make_fusion, make_linear
from negbench.backbones._hashing import count_parameters, key_sha256, module_sha256
from negbench.backbones._preprocess import Preprocess
from negbench.contracts import DEFAULT_TEMPERATURE, Backbone, BackboneIdentity, SubQuery, TextBatch, check_option
from negbench.errors import WeightsError

if TYPE_CHECKING:
    pass

PAPER = "ours; contrastive encoders after CLIP (ICML 2021), gated fusion after HyCoLe-HNM (EMNLP Findings 2022, eq. 2)"

SHIPPED = Path(__file__).with_name("tiny.safetensors")
FORMAT = "negbench-tiny-1"
SIZE = 64  # pixels of a side
WIDTH = 64  # width of image features, token features and embeddings
BUCKETS = 512  # embeddings shared by the words that the vocabulary does not hold
MAX_WORDS = 64  # of one text; the rest is left out
TAPS = 3  # a token's feature sees its word and the two before it
MIN_TEMPERATURE = 0.01  # CLIP's bound

_WORD = re.compile(r"[a-z0-9]+(?:[/'-][a-z0-9]+)*")


class ImageEncoder(nn.Module):
    """Four convolutions and one linear layer over the whole last map: [B, 3, SIZE, SIZE] -> [B, WIDTH]."""

    # (channels in, channels out, kernel); every stride is 2
    LAYERS: ClassVar = ((3, 16, 5), (16, 32, 3), (32, 64, 3), (64, 128, 3))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, 2, kernel // 2, device="meta").to_empty(device="cpu")
            for inputs, outputs, kernel in self.LAYERS
        )
        side = SIZE // 2 ** len(self.LAYERS)
        # over positions too: lengths and sleeves are told by where the garment ends
        self.output = nn.Linear(self.LAYERS[-1][1] * side * side, WIDTH, device="meta").to_empty(device="cpu")

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, SIZE, SIZE] -> [B, WIDTH]."""
        maps = pixels.contiguous(memory_format=torch.channels_last)  # half the time on a CPU
        for layer in self.layers:
            maps = torch.relu(layer(maps))
        embedding: Tensor = self.output(maps.flatten(1))
        return embedding


class TextEncoder(nn.Module):
    """Sums of word embeddings over three neighbouring words, pooled by attention: no matrix product per token.

    A token's feature is relu(E_0[w_t] + E_1[w_(t-1)] + E_2[w_(t-2)]), so that "long sleeves" and "long skirt" differ.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, TAPS * WIDTH, device="meta").to_empty(device="cpu")
        self.attention = nn.Linear(WIDTH, 1, device="meta").to_empty(device="cpu")
        self.output = nn.Linear(WIDTH, WIDTH, device="meta").to_empty(device="cpu")

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Word ids [B, S], 0 where there is no word -> token features [B, S, WIDTH] and text embeddings [B, WIDTH]."""
        tokens = torch.zeros(*ids.shape, WIDTH, device=ids.device, dtype=self.output.weight.dtype)
        for tap, table in enumerate(torch.split(self.embedding.weight, WIDTH, dim=1)):
            shifted = F.pad(ids, (tap, 0))[:, : ids.shape[1]]
            tokens = tokens + F.embedding(shifted, table)
        tokens = torch.relu(tokens)
        logits = self.attention(tokens).squeeze(-1)
        logits = logits.masked_fill(ids == 0, torch.finfo(logits.dtype).min)
        pooled = torch.einsum("bs,bsc->bc", logits.softmax(1), tokens)
        return tokens, self.output(pooled)


class Encoders(nn.Module):
    """The frozen part: what the weights file holds."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        super().__init__()
        self.vocabulary = tuple(vocabulary)
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
        known = {word: index + 1 for index, word in enumerate(self.vocabulary)}
        words = [_WORD.findall(text.lower())[:MAX_WORDS] for text in texts]
        ids = torch.zeros(len(words), max((len(row) for row in words), default=1) or 1, dtype=torch.int64)
        for row, found in enumerate(words):
            for position, word in enumerate(found):
                bucket = 1 + len(known) + zlib.crc32(word.encode()) % BUCKETS
                ids[row, position] = known.get(word, bucket)
        return ids, words


def read_metadata(path: Path) -> dict[str, str]:
    """What a weights file says of itself. Raises WeightsError where it is missing or not of this kind."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise WeightsError(
            f"no weights at {path}: write them with `python -m negbench.backbones._tiny_pretrain --out {path}`"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(f"{path} is no safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path} has format {metadata.get('format')!r}, want {FORMAT!r}: write it anew with _tiny_pretrain"
        )
    return metadata


def load_encoders(path: Path) -> Encoders:
    """Encoders of a weights file, in float32. Raises WeightsError where they do not fit."""
    from safetensors.torch import load_file

    encoders = Encoders(json.loads(read_metadata(path)["vocabulary"]))
    found, wanted = load_file(path), encoders.state_dict()
    wrong = sorted(set(found) ^ set(wanted)) or [n for n in wanted if found[n].shape != wanted[n].shape]
    if wrong:
        raise WeightsError(
            f"{path} does not fit the tiny backbone: {', '.join(wrong)} missing, unknown or of another shape"
        )
    encoders.load_state_dict(found)
    return encoders


class Tiny(Backbone):
    """Frozen tiny encoders, trained projections and fusion. Built by `load`; see `Backbone` for the methods' shapes.

    Features are [B, 1, WIDTH] and a candidate has one token. Any text works: words that the pretraining never saw share
    512 untrained embeddings.
    """

    # chosen on a fifth of the synthetic train queries, left out of training: bradley-terry with random negatives has
    # its best R@10 at 3e-3 (43.3 %; 41.0 at 1e-3, 41.5 at 1e-2), in-batch info-nce gains two points more at 1e-2
    recommended: ClassVar[Mapping[str, float | int]] = {
        "lr": 3e-3,
        "epochs": 12,
        "batch_size": 64,
        "weight_decay": 0.01,
    }

    transform: Preprocess

    def __init__(self, encoders: Encoders, weights: str, fusion: str, seed: int, attribute_weights: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.transform = Preprocess(pad="square", size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear")
        self.encoders = encoders.requires_grad_(False)
        self.project_image = _near_identity(generator)
        self.project_text = _near_identity(generator)
        self.fusion = make_fusion(fusion, WIDTH, generator)
        self.attributes = AttributeWeights(WIDTH, WIDTH, generator) if attribute_weights else None
        self.log_temperature = nn.Parameter(torch.tensor(math.log(DEFAULT_TEMPERATURE)))
        self._feature_key: str = key_sha256(
            {
                "backbone": "tiny",
                "image_encoder": module_sha256(self.encoders.image),
                "preprocessing": repr(self.transform),
                "precision": "float32",
            }
        )
        self._identity = self._describe(weights, fusion)

    @classmethod
    def load(
        cls,
        *,
        weights: str = "shipped",
        fusion: FusionKind = "gated",
        seed: int = 0,
        attribute_weights: bool = False,
    ) -> Self:
        """Build the backbone.

        Args:
            weights: of the frozen encoders: "shipped", "random" (drawn from `seed`), or a file of `_tiny_pretrain`.
            fusion: "gated" (HyCoLe eq. 2), "sum" or "combiner" (CLIP4CIR).
            seed: of the initial weights of all that is trained, >= 0.
            attribute_weights: add weighted colour and shape sub-queries to the query (DQE-CIR eq. 1).

        Raises:
            WeightsError: the file is missing or does not fit.
            UnknownNameError: another fusion.
            OptionError: a negative seed.
        """
        check_option("seed", seed, 0 <= seed < 2**32, "in 0..2^32-1")
        if weights == "random":
            encoders = Encoders(())
            # another stream than the trained part's, which so is the same for every choice of `weights`
            encoders.reset(torch.Generator().manual_seed(2**32 + seed))
            name = f"random:{seed}"
        elif weights == "shipped":
            encoders, name = load_encoders(SHIPPED), "shipped"
        else:
            encoders, name = load_encoders(Path(weights)), Path(weights).name
        return cls(encoders, name, fusion, seed, attribute_weights)

    @property
    def identity(self) -> BackboneIdentity:
        """Resolved identity, as loaded."""
        return self._identity

    @property
    def feature_key(self) -> str:
        """Hash of the image encoder's weights, the preprocessing and the precision."""
        return self._feature_key

    @property
    def temperature(self) -> Tensor:
        """Learned temperature, at least 0.01 (CLIP's bound)."""
        return self.log_temperature.exp().clamp(min=MIN_TEMPERATURE)

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, 64, 64] -> [B, 1, WIDTH], without gradient."""
        with torch.no_grad():
            features: Tensor = self.encoders.image(pixels)
        return features[:, None]

    def candidates(self, features: Tensor) -> Tensor:
        """[B, 1, WIDTH] -> [B, 1, WIDTH], unit norm."""
        return F.normalize(self.project_image(features), dim=-1)

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, 1, WIDTH] and B texts -> [B, WIDTH], unit norm."""
        tokens = self._tokens(text)
        query, subs = self._composed(self._reference(features), tokens)
        return query if self.attributes is None else self.attributes.combine(query, subs)

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, WIDTH], unit norm: the projected text, without fusion or sub-queries."""
        return self._text(self._tokens(text))[1]

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Colour and shape sub-queries with their weights; none unless loaded with `attribute_weights`."""
        return self._composed(self._reference(features), self._tokens(text))[1]

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """[R, 1, WIDTH] and P texts -> [R, P, WIDTH], unit norm; `chunk` bounds the pairs of one step."""
        return self._crossed(self._reference(features), text, chunk)

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts in the references' place and B modifications -> [B, WIDTH], unit norm."""
        query, subs = self._composed(self.text_queries(reference_text), self._tokens(modification))
        return query if self.attributes is None else self.attributes.combine(query, subs)

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """R texts in the references' place and P modifications -> [R, P, WIDTH], unit norm; `chunk` as above."""
        return self._crossed(self.text_queries(reference_text), modification, chunk)

    def _crossed(self, reference: Tensor, text: TextBatch, chunk: int) -> Tensor:
        tokens = self._tokens(text)
        token_features, embedding = self._text(tokens)
        count = max(1, chunk // max(1, embedding.shape[0]))
        query = F.normalize(self.fusion.cross(reference, embedding, chunk=count), dim=-1)
        if self.attributes is None:
            return query
        combined: Tensor = self.attributes.combine(query, self.attributes(query, token_features, tokens))
        return combined

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, S] word ids, "colour": [B, S] bool, "shape": [B, S] bool: which words name an attribute}."""
        ids, words = self.encoders.word_ids(texts)
        # the masks in any case: backbones with and without `attribute_weights` can then share tokenised texts
        return {"ids": ids, **attribute_masks(words, ids.shape[1])}

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Two AdamW groups: matrices decay; biases, temperature and attribute weights do not."""
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        ]

    def _tokens(self, text: TextBatch) -> Mapping[str, Tensor]:
        if isinstance(text, Mapping):
            return text
        return {name: tensor.to(self.log_temperature.device) for name, tensor in self.tokenize(text).items()}

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Frozen token features [B, S, WIDTH] and projected text embeddings [B, WIDTH], unit norm."""
        with torch.no_grad():
            features, pooled = self.encoders.text(tokens["ids"])
        return features, F.normalize(self.project_text(pooled), dim=-1)

    def _reference(self, features: Tensor) -> Tensor:
        return F.normalize(self.project_image(features[:, 0]), dim=-1)

    def _composed(self, reference: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, SubQuery]]:
        """Reference [B, WIDTH] of unit norm, fused with texts: the query [B, WIDTH], and its sub-queries."""
        token_features, embedding = self._text(tokens)
        query = F.normalize(self.fusion(reference, embedding), dim=-1)
        if self.attributes is None:
            return query, {}
        return query, self.attributes(query, token_features, {aspect: tokens[aspect] for aspect in ASPECTS})

    def _describe(self, weights: str, fusion: str) -> BackboneIdentity:
        return BackboneIdentity(
            name="tiny",
            weights=weights,
            revision="" if weights.startswith("random:") else "local",
            sha256=module_sha256(self),
            parameters=count_parameters(self),
            trainable_parameters=count_parameters(self, trainable=True),
            embedding_dim=WIDTH,
            tokens_per_image=1,
            preprocessing=self.transform.description,
            composition=f"{fusion} fusion{' + attribute weights' if self.attributes is not None else ''}",
            activation="relu",
            details={"encoders_sha256": module_sha256(self.encoders), "vocabulary": len(self.encoders.vocabulary)},
        )


def _near_identity(generator: torch.Generator) -> nn.Linear:
    """Linear layer that starts close to the identity: the pretrained sides are aligned already."""
    layer: nn.Linear = make_linear(WIDTH, WIDTH, generator)
    with torch.no_grad():
        layer.weight.mul_(0.1).add_(torch.eye(WIDTH))
    return layer
