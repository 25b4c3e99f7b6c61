"""Random features for the data set `vectors` instead of encoded ones: a world whose every property is an option.

Every value of every attribute has a random unit vector e in R^C, C = `dim`. With weights w_a = decay^a, a = 0 .. 5 over
colour, sleeve, neckline, pattern, length and print, scaled to unit length together, token l of an image is::

    x_l = sum_a w_a e(a, value) + noise * g_l / sqrt(C)          g_l ~ N(0, I), of the image's id alone

so the tokens of an image are separate noisy views of its attributes, and no two images are equal, not even twins.
In worlds of three categories the sum of the second and third is sqrt(1 - 0.5^2) times itself plus 0.5 times a random
unit vector of the category. Where the data set's garments come in lines, the sum is sqrt(1 - look^2) times itself plus
look times a random unit vector of the line. A text is the sum over the phrases in it that name a value of w_a t(a,
value), where the cosine of t and e is `alignment`. Words that name no value (hints such as "darker", or what the
captions never say) have vectors of their own. All of this is frozen. Trained on top: a projection of each side, the
fusion with any hidden layer, the temperature and, optionally, DQE-CIR's attribute weights (`_given.GivenFeatures`).
"""

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from negbench.backbones._attributes import attribute_masks, make_attributes
from negbench.backbones._composed import AttributeWeight, HiddenWidth, Seed, SharedWidth, StartTemperature
from negbench.backbones._fusion import FusionKind, unit
from negbench.backbones._given import GivenFeatures
from negbench.backbones._hashing import key_sha256
from negbench.contracts import DEFAULT_TEMPERATURE, BackboneIdentity
from negbench.errors import DataError
from negbench.worlds._garments import ATTRIBUTES, CATEGORIES, codes_of, values
from negbench.worlds._wording import VOCABULARY, phrases, words
from negbench.worlds.vectors import attributes_of, look_of

PAPER = "ours"

MAX_TOKENS = 32  # BLIP-2's number of queries


@dataclass(frozen=True)
class EncoderNumbers:
    """Which vectors words and categories have.

    Args:
        buckets: vectors shared by the words that no caption holds.
        category: weight of the vector of the second and third category, in worlds that have them.
    """

    buckets: int = 64
    category: float = 0.5


FIXED = EncoderNumbers()

_PHRASES = phrases()
_LONGEST = max(len(phrase) for phrase in _PHRASES)
_NUMBER = {phrase: 2 + index for index, phrase in enumerate(_PHRASES)}  # 0: no token, 1: a text that says nothing
_AT_A_TIME = 1024  # images: six vectors each are much


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Options of `Vectors`.

    Args:
        dim: width of features and embeddings, 8 .. 1024. The narrower, the more the 31 values of the attributes
            overlap.
        tokens: tokens per image, 1 .. 32, each with noise of its own; an image's score is the maximum over them.
        noise: length of an image's own random part relative to its attributes, 0 .. 10: it distinguishes the target
            from its twins, and hides the attributes. At 0 twins are equal, and a target at best ties with them.
        decay: weight of each attribute over that of the one before (colour, sleeve, neckline, pattern, length, print),
            above 0, at most 1: at 0.9 all count alike, at 0.5 colour is strong and a print is faint, as in clothes.
        alignment: cosine of the text's and the images' vector of a value, 0 .. 1: how well untrained encoders agree.
        hidden: capacity: width of the hidden layer beside the fusion, 0 (none) .. 65536.
        fusion: "gated" (HyCoLe eq. 2; near the sum of both sides at first) or "sum".
        attribute_weights: add weighted colour and shape sub-queries to the query (DQE-CIR eq. 1); a number > 0 is
            their initial weight, true is 0.1.
        world: seed of the frozen part, every vector of a value, a phrase and an image, >= 0; None: 0, or in a run
            the world of its data set.
        temperature: of the loss at the start, 0.01 .. 10; it is learned from there.
    """

    dim: SharedWidth = 64
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 4
    noise: Annotated[float, Field(ge=0, le=10)] = 0.7
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    alignment: Annotated[float, Field(ge=0, le=1)] = 0.3
    hidden: HiddenWidth = 0
    fusion: FusionKind = "sum"
    attribute_weights: AttributeWeight = False
    world: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    temperature: StartTemperature = DEFAULT_TEMPERATURE


class Vectors(GivenFeatures):
    """Drawn features, trained projections and fusion. Build it with `load`.

    Features are [B, tokens, dim] and a candidate has as many tokens.
    """

    recommended: ClassVar = {"lr": 3e-3, "epochs": 20, "batch_size": 64, "weight_decay": 0.01}
    fixed: ClassVar = (FIXED,)

    def __init__(self, options: VectorOptions, seed: int) -> None:
        dim = options.dim
        hidden = options.hidden
        world = options.world or 0
        generator = torch.Generator().manual_seed(seed)
        super().__init__((dim, dim), dim, options.fusion, generator, hidden=hidden, temperature=options.temperature)
        self.attributes = make_attributes(options.attribute_weights, dim, dim, generator)
        self.options = options
        self.world = world
        self._values, table = _encoders(options, torch.Generator().manual_seed(world))
        self.register_buffer("text_table", table, persistent=False)
        frozen = {"dim": dim, "tokens": options.tokens, "noise": options.noise, "world": world}
        frozen |= {"decay": options.decay, "alignment": options.alignment}
        self._feature_key = key_sha256({"backbone": "vectors", **frozen})
        fusion = f"{options.fusion} fusion" + (f" + {hidden} hidden" if hidden else "")
        about = self._about(fusion, dim, "relu" if hidden else "", options.tokens)
        about |= {"revision": "", "preprocessing": "none: features drawn by id"}
        about["details"] = {**frozen, **self.start_details}
        self._identity = BackboneIdentity("vectors", f"random:{world}", **about)

    @classmethod
    def load(cls, options: VectorOptions, seed: Seed = 0) -> Self:
        """Draw the frozen part from the world, and the initial weights of everything that is trained from `seed`."""
        return cls(options, seed)

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len(ids), tokens, dim] float32 on the CPU, each a function of its id and the frozen part alone.

        Raises:
            DataError: an id of another data set.
        """
        try:
            garments = [attributes_of(image) for image in ids]
        except DataError as error:
            raise DataError(f"{error}; backbone 'vectors' works only with --dataset vectors") from error
        codes = torch.tensor([codes_of(garment) for garment in garments], dtype=torch.int64)
        codes = codes.reshape(-1, len(ATTRIBUTES))
        attribute = torch.arange(len(ATTRIBUTES))
        looks = [look_of(image) for image in ids]
        # other categories lie apart, and so do lines, by a vector of their own
        dim = self._values.shape[-1]
        categories = {garment.category for garment in garments} - {CATEGORIES[0]}
        of_category = {category: unit(self._vector(category)) for category in categories}
        of_line = {line: self._vector(line) for line, weight in {*looks} if weight}
        none = torch.zeros(dim)
        features = torch.empty(len(ids), self.options.tokens, dim)
        for tokens, image in zip(features, ids, strict=True):
            torch.randn(tokens.shape, generator=self._generator(image), out=tokens)
        for first in range(0, len(ids), _AT_A_TIME):
            rows = slice(first, first + _AT_A_TIME)
            signal = self._values[attribute, codes[rows]].sum(1)
            if of_category:
                vectors = torch.stack([of_category.get(garment.category, none) for garment in garments[rows]])
                signal = (1 - FIXED.category**2) ** 0.5 * signal + FIXED.category * vectors
            if of_line:
                weight = torch.tensor([weight for _, weight in looks[rows]])[:, None]
                vectors = unit(torch.stack([of_line.get(line, none) for line, _ in looks[rows]]))
                signal = (1 - weight**2).sqrt() * signal + weight * vectors
            features[rows].mul_(self.options.noise / math.sqrt(dim)).add_(signal[:, None])
        return features

    def _vector(self, name: str) -> Tensor:
        """Draw the vector of a category or a line, the same for one world."""
        return torch.randn(self._values.shape[-1], generator=self._generator(name))

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self.world} {name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, S] phrases, "colour": [B, S] bool, "shape": [B, S] bool: which name an attribute}."""
        token_lists = [_phrases_of(text) or [((), 1)] for text in texts]
        longest = max((len(tokens) for tokens in token_lists), default=1)
        ids = torch.zeros(len(token_lists), longest, dtype=torch.int64)
        compounds = []
        for row, tokens in enumerate(token_lists):
            ids[row, : len(tokens)] = torch.tensor([number for _, number in tokens])
            compounds.append(["-".join(phrase) or None for phrase, _ in tokens])  # a hyphen separates the words
        return {"ids": ids, **attribute_masks(compounds, ids.shape[1])}

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{"pooled": [B, C]}; with attribute weights also their masks and "words" [B, S, C]."""
        words = self.text_table[tokens["ids"]]
        return self._frozen(tokens, words.sum(1), words)

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        frozen = tokens if "pooled" in tokens else self.frozen_text(tokens)
        return unit(self.text_projection(frozen["pooled"])), frozen.get("words", frozen["pooled"])


def _phrases_of(text: str) -> list[tuple[tuple[str, ...], int]]:
    """Split a text into known phrases, longest first from the left, with their numbers; joining words are dropped."""
    rest = tuple(words(text))
    tokens = []
    while rest:
        length = next((n for n in range(_LONGEST, 0, -1) if rest[:n] in _NUMBER), None)
        if length is not None:
            phrase = rest[:length]
            tokens.append((phrase, _NUMBER[phrase]))
            rest = rest[length:]
            continue
        word = rest[0]
        if word not in VOCABULARY:
            tokens.append(((word,), 2 + len(_NUMBER) + zlib.crc32(word.encode()) % FIXED.buckets))
        rest = rest[1:]
    return tokens


def _encoders(options: VectorOptions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the frozen vectors: [attributes, values, dim] of images, [n, dim] of a text's tokens."""
    dim = options.dim
    alignment = options.alignment
    weights = options.decay ** torch.arange(len(ATTRIBUTES), dtype=torch.float32)
    weights = weights / weights.norm()
    choices = {name: values(CATEGORIES[0], name) for name in ATTRIBUTES}
    most_values = max(len(names) for names in choices.values())
    shape = (len(ATTRIBUTES), most_values, dim)
    images = unit(torch.randn(shape, generator=generator))
    other = unit(torch.randn(shape, generator=generator))
    # the part orthogonal to the image's vector, so that the cosine is `alignment`
    other = unit(other - (other * images).sum(-1, keepdim=True) * images)
    texts = weights[:, None, None] * (alignment * images + math.sqrt(1 - alignment**2) * other)
    size = 2 + len(_PHRASES) + FIXED.buckets
    table = unit(torch.randn(size, dim, generator=generator)) / math.sqrt(len(ATTRIBUTES))
    table[0] = 0
    for phrase, number in _NUMBER.items():
        meaning = _PHRASES[phrase]
        if meaning is not None:
            attribute, value = meaning
            table[number] = texts[ATTRIBUTES.index(attribute), choices[attribute].index(value)]
    return weights[:, None, None] * images, table
