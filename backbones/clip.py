"""CLIP from open_clip, frozen or fine-tuned; reference and text embeddings composed by gated fusion, sum or combiner.

A candidate is the normalised image embedding; a query is the normalised fusion of the normalised embeddings of
reference and text; the score is their dot product. Frozen: image embeddings are stored, the fusion and the temperature
train (as CLIP4CIR's second stage; with the parameter-free sum that leaves the temperature, a zero-shot baseline).
Fine-tuned: both encoders train too, with a learning rate that is `gamma` times the others' (HyCoLe-HNM).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from negbench.backbones._attributes import ASPECTS, AttributeWeights, attribute_masks, words_of_clip_pieces
from negbench.backbones._fusion import FusionKind, make_fusion
from negbench.backbones._hashing import count_parameters, key_sha256, module_sha256
from negbench.backbones._open_clip import (
    Activation,
    Source,
    activation_of,
    build,
    final_norm,
    find,
    image_size,
    load_into,
    make_tokenizer,
    random_source,
    resized,
)
from negbench.backbones._preprocess import Pad, Preprocess
from negbench.contracts import Backbone, BackboneIdentity, SubQuery, TextBatch, check_option
from negbench.errors import OptionError

if TYPE_CHECKING:
    pass

PAPER = (
    "Radford et al., CLIP, ICML 2021 (arXiv:2103.00020); composed as by Wang et al., HyCoLe-HNM, Findings of EMNLP "
    "2022, eq. 2, or by Baldrati et al., CLIP4CIR, CVPR Workshops 2022"
)

Init = Literal["pretrained", "random"]
Size = Literal["toy", "model"]

GAMMA = 0.001  # HyCoLe's learning rate ratio of the encoders
MIN_TEMPERATURE = 0.01  # CLIP's bound


@dataclass(frozen=True)
class Options:
    """Options that do not say which weights, checked; the meaning of each stands at `Clip.load`."""

    fusion: FusionKind
    frozen: bool
    gamma: float | None
    grad_checkpointing: bool
    attribute_weights: bool
    seed: int

    def __post_init__(self) -> None:
        check_option("backbone.seed", self.seed, 0 <= self.seed < 2**32, "in 0..2^32-1")
        check_option("backbone.gamma", self.gamma, self.gamma is None or self.gamma > 0, "> 0")
        if self.frozen and (self.gamma is not None or self.grad_checkpointing):
            name = "gamma" if self.gamma is not None else "grad_checkpointing"
            raise OptionError(f"backbone.{name} is for fine-tuning: leave it out, or set backbone.frozen=false")


class Clip(Backbone):
    """CLIP for composed image retrieval. Built by `load`; see `Backbone` for the methods' shapes.

    Features are [B, 1, D], the image embedding before its normalisation; a candidate has one token. Fine-tuned batch
    normalisation (the ResNets') keeps its running statistics: a batch holds references and targets in separate passes.

    Attributes:
        clip: open_clip's module; its logit scale is the learned temperature.
        fusion: of the embeddings.
        attributes: DQE-CIR's sub-queries, or None.
        transform: picklable preprocessing.
    """

    recommended: ClassVar[Mapping[str, float | int]] = {
        "lr": 1e-4,  # HyCoLe-HNM
        "weight_decay": 0.01,
        "batch_size": 64,
        "epochs": 64,
    }

    transform: Preprocess

    def __init__(self, clip: Any, tokenizer: Any, source: Source, transform: Preprocess, options: Options) -> None:
        super().__init__()
        self.clip: Any = clip
        self.transform = transform
        self.options = options
        self.frozen_images = options.frozen
        self._tokenizer = tokenizer
        # CLIP's byte-pair pieces can be read back as words; tokenizers of the hub are used as they are
        self._pieces: Mapping[int, str] | None = getattr(tokenizer, "decoder", None)
        self.embed_dim = int(source.config["embed_dim"])
        generator = torch.Generator().manual_seed(options.seed)
        self.fusion = make_fusion(options.fusion, self.embed_dim, generator)
        self.attributes: AttributeWeights | None = None
        if options.attribute_weights:
            norm = final_norm(clip)
            if self._pieces is None or norm is None:
                raise OptionError(
                    f"backbone.attribute_weights: the text tower of {source.name} gives no token features of words"
                )
            self.attributes = AttributeWeights(self.embed_dim, norm.normalized_shape[0], generator)
        self._choose_trained()
        self._feature_key: str = key_sha256({"tower": module_sha256(clip.visual), "preprocessing": repr(transform)})
        self._identity = self._describe(source)
        self.eval()

    @classmethod
    def load(
        cls,
        *,
        model: str | None = None,
        weights: str | None = None,
        activation: Activation = "auto",
        init: Init = "pretrained",
        size: Size = "model",
        fusion: FusionKind = "gated",
        frozen: bool = True,
        gamma: float | None = None,
        grad_checkpointing: bool = False,
        pad: Pad = "target",
        target_ratio: float = 1.25,
        image_size: int | None = None,
        attribute_weights: bool = False,
        seed: int = 0,
    ) -> Clip:
        """Backbone from published, own or random weights.

        Args:
            model: any name that open_clip knows, "ViT-B/32" and its like included; None: ViT-B-32, or what the weights'
                own open_clip_config.json says.
            weights: a tag of open_clip ("openai", "laion2b_s34b_b79k", ...), "hf-hub:ORG/NAME[@REVISION]", a folder
                with open_clip_config.json, or a file of tensors (.safetensors, .pt). None: "openai".
            activation: "auto" takes what the weights were trained with, whatever the model's name says; a file of
                tensors may not tell, and then "quick_gelu" or "gelu" must be given.
            init: "pretrained", or "random" weights from `seed`.
            size: of random weights: that of `model`, or "toy".
            fusion: "gated" (HyCoLe eq. 2), "sum" or "combiner" (CLIP4CIR).
            frozen: keep both encoders as they are, so that image features are stored once.
            gamma: learning rate of the encoders over that of the rest, > 0; None: HyCoLe's 0.001. Fine-tuning only.
            grad_checkpointing: recompute the encoders' activations in the backward pass. Fine-tuning only.
            pad: of images, see `Preprocess`.
            target_ratio: of the target padding.
            image_size: pixels, of open_clip's own ViT; None: the model's.
            attribute_weights: add DQE-CIR's colour and shape sub-queries.
            seed: of random weights, and of the initial weights of fusion and sub-queries.

        Raises:
            WeightsError: weights missing (with what to fetch and where to put it) or not fitting (with the keys).
            OptionError: an option out of range, or one that the others leave no use for.
            UnknownNameError: a model, tag or fusion that does not exist.
        """
        check_option("backbone.init", init, init in get_args(Init), "pretrained or random")
        check_option("backbone.size", size, size in get_args(Size), "model or toy")
        check_option("backbone.activation", activation, activation in get_args(Activation), "auto, quick_gelu or gelu")
        options = Options(fusion, frozen, gamma, grad_checkpointing, attribute_weights, seed)
        if init == "random":
            check_option("backbone.weights", weights, weights is None, "left out with backbone.init=random")
            source = random_source(model, size == "toy", activation, seed)
        else:
            check_option("backbone.size", size, size == "model", "left out without backbone.init=random")
            source = find(model, weights or "openai", activation)
        return cls._from(source, options, pad, target_ratio, image_size)

    @classmethod
    def _from(cls, source: Source, options: Options, pad: Pad, target_ratio: float, size: int | None) -> Clip:
        tokenizer = make_tokenizer(source)
        clip = build(source.config, options.seed)
        if source.state is not None:
            load_into(clip, source.state, source.label)
        if size is not None and size != image_size(clip):
            clip = resized(clip, source.config, size)
        transform = Preprocess(
            pad, target_ratio, image_size(clip), mean=source.mean, std=source.std, interpolation=source.interpolation
        )
        return cls(clip, tokenizer, source, transform, options)

    def _choose_trained(self) -> None:
        """Which parameters train: the fusion and the temperature always, the encoders when fine-tuned."""
        self.clip.requires_grad_(not self.options.frozen)
        unused = [getattr(self.clip, "text_decoder", None), getattr(self.clip, "logit_bias", None)]  # CoCa's, SigLIP's
        for part in unused:
            if part is not None:
                part.requires_grad_(False)
        self.clip.logit_scale.requires_grad_(True)
        if self.options.grad_checkpointing:
            self.clip.set_grad_checkpointing(True)

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> BackboneIdentity:
        """Resolved identity, as loaded."""
        return self._identity

    @property
    def feature_key(self) -> str:
        """Hash of the visual tower as loaded and of the preprocessing."""
        return self._feature_key

    @property
    def temperature(self) -> Tensor:
        """Learned temperature, from that of the weights on (CLIP's is 0.01), at least 0.01.

        Where the bound holds the gradient is that of the value without it, so that the temperature can rise again.
        """
        free = torch.exp(-self.clip.logit_scale.reshape(()))
        return free + (free.clamp(min=MIN_TEMPERATURE) - free).detach()

    # --- images -----------------------------------------------------------------------------------------------------

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, size, size] -> [B, 1, D] float32; with gradients when fine-tuned."""
        with self._encoding():
            features: Tensor = self.clip.encode_image(pixels)
        return features.float()[:, None]

    def candidates(self, features: Tensor) -> Tensor:
        """[B, 1, D] -> [B, 1, D], unit norm."""
        return F.normalize(features.float(), dim=-1)

    # --- queries ----------------------------------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, context length]}, and for CLIP's own tokenizer "colour" and "shape" [B, context length] bool."""
        if not texts:
            ids = torch.zeros(0, int(self._tokenizer.context_length), dtype=torch.int64)
        else:
            ids = self._tokenizer(list(texts))
        if self._pieces is None:
            return {"ids": ids}
        words = [words_of_clip_pieces(self._pieces_of(row)) for row in ids.tolist()]
        # the masks in any case: backbones with and without `attribute_weights` can then share tokenised texts
        return {"ids": ids, **attribute_masks(words, ids.shape[1])}

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, 1, D] and B texts -> [B, D], unit norm; any sub-queries are added."""
        return self._combined(self._reference(features), self._tokens(text))

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D], unit norm: CLIP's own text embedding."""
        return self._text(self._tokens(text)["ids"])[0]

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts in the references' place and B modifications -> [B, D], unit norm."""
        return self._combined(self.text_queries(reference_text), self._tokens(modification))

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Colour and shape sub-queries with their weights; none unless loaded with `attribute_weights`."""
        return self._composed(self._reference(features), self._tokens(text))[1]

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """[R, 1, D] and P texts -> [R, P, D], unit norm; a text is encoded once, `chunk` bounds the pairs of a step."""
        return self._crossed(self._reference(features), self._tokens(text), chunk)

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """R texts in the references' place and P modifications -> [R, P, D], unit norm; as `cross_queries`."""
        return self._crossed(self.text_queries(reference_text), self._tokens(modification), chunk)

    def _reference(self, features: Tensor) -> Tensor:
        return self.candidates(features)[:, 0]

    def _combined(self, reference: Tensor, tokens: Mapping[str, Tensor]) -> Tensor:
        query, subs = self._composed(reference, tokens)
        return query if self.attributes is None else self.attributes.combine(query, subs)

    def _composed(self, reference: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, SubQuery]]:
        """Reference [B, D] of unit norm, fused with texts: the query [B, D], and its sub-queries."""
        embedding, words = self._text(tokens["ids"])
        query = F.normalize(self.fusion(reference, embedding).float(), dim=-1)
        if self.attributes is None:
            return query, {}
        return query, self.attributes(query, words, {aspect: tokens[aspect] for aspect in ASPECTS})

    def _crossed(self, reference: Tensor, tokens: Mapping[str, Tensor], chunk: int) -> Tensor:
        embedding, words = self._text(tokens["ids"])
        rows = max(1, chunk // max(1, embedding.shape[0]))
        query = F.normalize(self.fusion.cross(reference, embedding, chunk=rows).float(), dim=-1)
        if self.attributes is None:
            return query
        subs = self.attributes(query, words, {aspect: tokens[aspect] for aspect in ASPECTS})
        combined: Tensor = self.attributes.combine(query, subs)
        return combined

    def _text(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Text embeddings [B, D] of unit norm and, with attribute weights, token features [B, S, C] (else empty)."""
        caught: list[Tensor] = []
        norm = final_norm(self.clip) if self.attributes is not None else None
        hook = None if norm is None else norm.register_forward_hook(lambda module, given, output: caught.append(output))
        try:
            with self._encoding():
                embedding: Tensor = self.clip.encode_text(ids)
        finally:
            if hook is not None:
                hook.remove()
        words = caught[0].float() if caught else embedding.new_zeros(0)
        return F.normalize(embedding.float(), dim=-1), words

    def _encoding(self) -> torch.set_grad_enabled:
        """Gradients within the block: as outside it, but none through frozen encoders."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self.options.frozen)

    def _tokens(self, text: TextBatch) -> dict[str, Tensor]:
        batch = text if isinstance(text, Mapping) else self.tokenize(text)
        return {name: tensor.to(self.clip.logit_scale.device) for name, tensor in batch.items()}

    def _pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Byte-pair pieces of one text up to its end mark; the marks as `words_of_clip_pieces` knows them."""
        assert self._pieces is not None
        end = self._tokenizer.eot_token_id
        length = ids.index(end) if end in ids else len(ids)
        return ["<|startoftext|>", *(self._pieces[i] for i in ids[1:length]), "<|endoftext|>"]

    # --- training ---------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Clip:
        """Training mode; frozen encoders, and batch normalisation in any case, stay in evaluation mode."""
        super().train(mode)
        for part in self.clip.modules():
            if self.options.frozen or isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.training = False
        return self

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW groups, the new layers' first: matrices decay, vectors and scalars do not; encoders at lr * gamma."""
        ratio = GAMMA if self.options.gamma is None else self.options.gamma
        encoders = {id(p) for p in self._encoder_parameters()}
        groups = []
        for own, rate in ((False, lr), (True, lr * ratio)):
            trained = [p for p in self.parameters() if p.requires_grad and (id(p) in encoders) == own]
            groups.append({"params": [p for p in trained if p.ndim > 1], "lr": rate, "weight_decay": weight_decay})
            groups.append({"params": [p for p in trained if p.ndim <= 1], "lr": rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    def _encoder_parameters(self) -> Iterator[nn.Parameter]:
        """All of CLIP but the temperature, which is a new layer's learning rate's."""
        return (p for name, p in self.clip.named_parameters() if name != "logit_scale")

    def _describe(self, source: Source) -> BackboneIdentity:
        options = self.options
        training: dict[str, Any] = {"frozen": options.frozen}
        if not options.frozen:
            training |= {
                "gamma": GAMMA if options.gamma is None else options.gamma,
                "grad_checkpointing": options.grad_checkpointing,
            }
        return BackboneIdentity(
            name="clip",
            weights=source.label,
            revision=source.revision,
            sha256=module_sha256(self),
            parameters=count_parameters(self),
            trainable_parameters=count_parameters(self, trainable=True),
            embedding_dim=self.embed_dim,
            tokens_per_image=1,
            preprocessing=self.transform.description,
            composition=f"{options.fusion} fusion{' + attribute weights' if options.attribute_weights else ''}",
            activation=activation_of(self.clip),
            details={"model": source.name, **training, **source.details},
        )
