"""What the two BLIP families share: text, identity, precision of the visual tower, seeded dropout, random weights."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from negbench.backbones._attributes import AttributeWeights, attribute_masks, words_of_wordpieces
from negbench.backbones._captions import (
    BUILT_IN,
    CaptionTokenizer,
    built_in_vocabulary,
    make_tokenizer,
    process_caption,
    read_vocabulary,
    vocabulary_file,
)
from negbench.backbones._hashing import count_parameters, key_sha256, module_sha256, tensors_sha256
from negbench.backbones._lavis import Layout, restore_positions, save_state
from negbench.backbones._preprocess import Preprocess
from negbench.backbones._weights import Advice, vocabulary_source
from negbench.contracts import Backbone, BackboneIdentity, SubQuery, TextBatch, check_option
from negbench.errors import WeightsError

if TYPE_CHECKING:
    from negbench.backbones._preprocess import Preprocess

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

INITIAL_STD = 0.02  # BERT's, and LAVIS's for the query tokens


@dataclass(frozen=True)
class Options:
    """Options that both families have, checked.

    Args:
        precision: in which the visual tower is computed (autocast); its output is float32.
        target_ratio: of the target padding, see `Preprocess`.
        attribute_weights: add DQE-CIR's colour and shape sub-queries.
        seed: of random weights, of the attribute weights' initial values, and of dropout.
    """

    precision: Precision = "fp32"
    target_ratio: float = 1.25
    attribute_weights: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("backbone.precision", self.precision, self.precision in get_args(Precision), "fp32, bf16 or fp16")
        check_option("backbone.target_ratio", self.target_ratio, self.target_ratio >= 1, ">= 1")


@dataclass(frozen=True)
class Origin:
    """Where a backbone's weights are from, for its identity.

    Args:
        weights: hub id, file name or "random:SEED".
        revision: hub revision, "local" or "".
        folder: where the files are; None for random weights.
        details: what else a result should carry.
    """

    weights: str
    revision: str
    folder: Path | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class BlipFamily(Backbone):
    """Shared half of `Blip2` and `Blip`. Subclasses build their parts under `torch.device("meta")`, then fill them.

    Attributes:
        vision_model: the visual tower.
        temp: the learned temperature.
        dropout_calls: how many dropout masks were drawn; kept with the weights, so that a resumed run goes on alike.
    """

    _name: str
    _tokens_per_image: int
    _composition: str
    _activation: str
    vision_model: nn.Module
    temp: nn.Parameter
    dropout_calls: Tensor
    attributes: AttributeWeights | None

    transform: Preprocess

    def __init__(self, image_size: int, embed_dim: int, options: Options) -> None:
        super().__init__()
        self.image_size = image_size
        self.transform = Preprocess(pad="target", target_ratio=options.target_ratio, size=image_size)
        self.embed_dim = embed_dim
        self.options = options
        self.attributes = None

    # --- completing a filled module ---------------------------------------------------------------------------------

    def _complete(self, tokenizer: CaptionTokenizer, origin: Origin, token_dim: int) -> None:
        """After the parameters are filled: tokenizer, sub-queries, what is frozen, and the hashes of it all."""
        self._tokenizer = tokenizer
        self.register_buffer("dropout_calls", torch.zeros((), dtype=torch.int64))
        if self.options.attribute_weights:
            generator = torch.Generator().manual_seed(self.options.seed)
            self.attributes = AttributeWeights(self.embed_dim, token_dim, generator)
        if self.frozen_images:
            self.vision_model.requires_grad_(False)
        self._origin = origin
        self._sha256 = module_sha256(self)
        self._frozen_sha256 = tensors_sha256(self.vision_model.named_parameters())
        self.eval()

    # --- images -----------------------------------------------------------------------------------------------------

    @property
    def feature_key(self) -> str:
        """Hash of the visual tower as loaded, the preprocessing and the tower's precision."""
        key: str = key_sha256(
            {
                "weights": self._frozen_sha256,
                "preprocessing": self.transform.description,
                "precision": self.options.precision,
            }
        )
        return key

    def _check_pixels(self, pixels: Tensor) -> None:
        # the EVA tower of transformers takes smaller images without a word: it slices its position embeddings
        if pixels.ndim != 4 or pixels.shape[1:] != (3, self.image_size, self.image_size):
            raise ValueError(f"want pixels [B, 3, {self.image_size}, {self.image_size}], got {list(pixels.shape)}")

    def _tower_precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Autocast of the tower: on or off by `precision`, whatever the caller's own autocast is."""
        enabled = self.options.precision != "fp32"
        dtype = _DTYPES[self.options.precision] if enabled else torch.bfloat16
        return torch.autocast(device.type, dtype=dtype, enabled=enabled)

    # --- text -------------------------------------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """B strings -> {"input_ids", "attention_mask"}: [B, max_txt_len] int64, after LAVIS's caption processor.

        With attribute weights also {"colour_mask", "shape_mask"}: [B, max_txt_len] bool.
        """
        batch: dict[str, Tensor] = self._tokenizer(texts)
        if self.attributes is not None:
            words = [words_of_wordpieces(row) for row in self._tokenizer.pieces(batch["input_ids"])]
            masks = attribute_masks(words, batch["input_ids"].shape[1])
            batch |= {f"{aspect}_mask": mask for aspect, mask in masks.items()}
        return batch

    def _tokens(self, text: TextBatch) -> dict[str, Tensor]:
        """Tokenised batch on the model's device."""
        batch = text if isinstance(text, Mapping) else self.tokenize(text)
        return {name: tensor.to(self.temp.device) for name, tensor in batch.items()}

    @staticmethod
    def _aspect_masks(tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name.removesuffix("_mask"): t for name, t in tokens.items() if name in ("colour_mask", "shape_mask")}

    # --- queries ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _composed(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Query embeddings [B, D] of unit norm, and the text's token features [B, S, C] that they were made with."""

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, L, C] and B texts -> [B, D], unit norm; any sub-queries are added."""
        tokens = self._tokens(text)
        query, words = self._composed(features, tokens)
        if self.attributes is None:
            return query
        subs = self.attributes(query, words, self._aspect_masks(tokens))
        combined: Tensor = self.attributes.combine(query, subs)
        return combined

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """DQE-CIR's colour and shape sub-queries (eq. 1) with `attribute_weights`, else none."""
        if self.attributes is None:
            return {}
        tokens = self._tokens(text)
        query, words = self._composed(features, tokens)
        subs: dict[str, SubQuery] = self.attributes(query, words, self._aspect_masks(tokens))
        return subs

    @property
    def temperature(self) -> Tensor:
        """LAVIS's `temp`, learned from 0.07 on; divides scores in training losses only."""
        return self.temp

    # --- modes ------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> BlipFamily:
        """Training mode, with dropout in the text side; a frozen tower stays in evaluation mode."""
        super().train(mode)
        if self.frozen_images:
            self.vision_model.eval()
        return self

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """In training, dropout masks come from this backbone's seed and count; the global generators stay as they are.

        transformers draws its dropout masks from the global generators and takes no other.
        """
        if not self.training:
            yield
            return
        device = self.temp.device
        # hashed: the CPU's generator looks at the lower 32 bits of a seed only
        digest = hashlib.sha256(f"{self.options.seed} {int(self.dropout_calls)}".encode()).digest()
        seed = int.from_bytes(digest[:8]) >> 1
        self.dropout_calls += 1
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield

    # --- identity and export ----------------------------------------------------------------------------------------

    @property
    def identity(self) -> BackboneIdentity:
        """Resolved identity; the hash is that of the weights as loaded."""
        return BackboneIdentity(
            name=self._name,
            weights=self._origin.weights,
            revision=self._origin.revision,
            sha256=self._sha256,
            parameters=count_parameters(self),
            trainable_parameters=count_parameters(self, trainable=True),
            embedding_dim=self.embed_dim,
            tokens_per_image=self._tokens_per_image,
            preprocessing=self.transform.description,
            composition=self._composition,
            activation=self._activation,
            details={
                "vision_precision": self.options.precision,
                "tokenizer": self._tokenizer.name,
                "tokenizer_sha256": key_sha256(self._tokenizer.bert.get_vocab()),
                "attribute_weights": self.options.attribute_weights,
                **self._origin.details,
            },
        )

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How parameter names translate into LAVIS's."""

    def to_lavis(self, path: Path) -> None:
        """Write the weights as they are now in LAVIS's format, which the authors' code and `lavis:FILE` read.

        Raises:
            WeightsError: with attribute weights, which that format has no place for.
        """
        if self.attributes is not None:
            raise WeightsError("a backbone with attribute_weights has no equivalent in LAVIS's format")
        save_state(self, self.layout, path)


@dataclass(frozen=True)
class Text:
    """How a family reads text.

    Args:
        added: tokens that LAVIS adds to BERT's vocabulary; the last ones may lack a row of the embeddings if they are
            in `unused`.
        unused: of these, those that never occur.
        processor: of every caption.
    """

    added: tuple[str, ...]
    unused: tuple[str, ...] = ()
    processor: Callable[[str], str] = process_caption


def make_caption_tokenizer(
    given: str | None, origin: Origin, text: Text, advice: Advice, *, rows: int, max_length: int
) -> CaptionTokenizer:
    """Tokenizer of a backbone whose word embeddings have `rows` rows.

    Args:
        given: the option `tokenizer`; None takes the vocabulary beside the weights, else bert-base-uncased of the hub,
            and for random weights, of whatever size, the one made in code.
        origin: of the weights.
        text: of the family.
        advice: for error lines.
        rows: of the word embeddings.
        max_length: of every tokenised row.

    Raises:
        WeightsError: no vocabulary, or one that does not fit the embeddings.
    """
    if given is None and origin.folder is None:
        name, vocabulary = BUILT_IN, built_in_vocabulary()
    else:
        file = vocabulary_file(vocabulary_source(given, origin.folder, advice))
        name, vocabulary = file.name, read_vocabulary(file)
    tokenizer = make_tokenizer(vocabulary, added=text.added, max_length=max_length, processor=text.processor, name=name)
    least = len(tokenizer) - len(text.unused)
    # no row of random weights means anything yet: more of them than words do no harm
    if not least <= rows or (rows > len(tokenizer) and origin.folder is not None):
        raise WeightsError(
            f"the tokenizer {name} has {len(tokenizer)} tokens with {' and '.join(text.added)}, the weights have "
            f"embeddings for {rows}: give the vocabulary that they were trained with as backbone.tokenizer=FILE"
        )
    return tokenizer


def randomise(module: nn.Module, seed: int) -> None:
    """Fill a module on the meta device with random weights, from `seed` alone.

    Layer norms are 1 and 0, biases 0, `temp` 0.07. Everything else is N(0, s): s is 0.02 for embeddings and query
    tokens, and 0.02 sqrt(768 / inputs) for linear layers and convolutions, BERT's deviation at BERT's width, so that a
    narrow model is not deaf to its inputs. The Q-Former's feed-forward layers for query tokens start as copies of those
    for text, as in LAVIS. (transformers' own initial weights would not do: its query tokens are zeros, so that all
    candidate tokens of an image agree, and its towers' deviation is 1e-10.)
    """
    module.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    parts = list(module.named_modules())
    norms = {f"{name}.weight" for name, part in parts if isinstance(part, nn.LayerNorm)}
    layers = {f"{name}.weight" for name, part in parts if isinstance(part, nn.Linear | nn.Conv2d)}
    with torch.no_grad():
        named = dict(sorted(module.named_parameters()))
        for name, parameter in named.items():
            if name in norms:
                parameter.fill_(1.0)
            elif name == "temp":
                parameter.fill_(0.07)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                scale = math.sqrt(768 / parameter[0].numel()) if name in layers else 1.0
                parameter.normal_(0.0, INITIAL_STD * scale, generator=generator)
        for name, parameter in named.items():
            if "_query." in name:
                parameter.copy_(named[name.replace("_query.", ".")])
    restore_positions(module)
