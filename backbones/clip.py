"""CLIP from open_clip, frozen or fine-tuned; reference and text embeddings composed by gated fusion or sum.

A candidate is the normalised image embedding; a query is the normalised fusion of the normalised embeddings of
reference and text; the score is their dot product. Optionally each side has a linear projection before the norm
(HyCoLe-HNM). Frozen: CLIP's image embeddings are stored; projections, fusion and temperature train (as in CLIP4CIR's
second stage; with only the parameter-free sum just the temperature trains, a zero-shot baseline). Fine-tuned: both
encoders train too, with `gamma` times the learning rate of the rest (HyCoLe-HNM).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from negbench.backbones import _composed, _open_clip
from negbench.backbones._attributes import attribute_masks, make_attributes, words_of_clip_pieces
from negbench.backbones._composed import AttributeWeight, Init, Seed, StartTemperature, TargetRatio, TwoTowers
from negbench.backbones._fusion import FusionKind, make_fusion, make_linear, unit
from negbench.backbones._hashing import tower_sha256
from negbench.backbones._open_clip import Activation, Blueprint
from negbench.backbones._preprocess import Pad, Preprocess
from negbench.contracts import BackboneIdentity, Outline, TextsSeen, bound_below, by_rows, check_option
from negbench.errors import OptionError, WeightsError

PAPER = (
    "Radford et al., CLIP, ICML 2021 (arXiv:2103.00020); composed as by Wang et al., HyCoLe-HNM, Findings of EMNLP "
    "2022, eq. 2, or by Baldrati et al., CLIP4CIR, CVPR Workshops 2022"
)

Size = Literal["toy", "model"]

GAMMA = 0.001  # HyCoLe's learning rate ratio of the encoders


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """Options of `Clip`.

    Args:
        model: any name that open_clip knows, "ViT-B/32" and its like included; None: ViT-B-32, or what the weights'
            own open_clip_config.json says.
        weights: a tag of open_clip ("openai", "laion2b_s34b_b79k", ...), "hf-hub:ORG/NAME[@REVISION]", a folder
            with open_clip_config.json, or a file of tensors (.safetensors, .pt; "FILE,key=NAME" if it holds several
            state dicts, "FILE,prefix=NAME" if several models by other prefixes of names). None: "openai".
        activation: "auto" takes what the weights were trained with, whatever the model's name says; if a file of
            tensors does not determine it, give "quick_gelu" or "gelu".
        init: "pretrained", or "random" weights from the run's seed.
        size: size of random weights: "model", that of `model`, or "toy".
        fusion: "gated" (HyCoLe eq. 2; Xavier-uniform weights, as the paper names no other) or "sum".
        projection: width d of HyCoLe's linear layers after the encoders, one for images and one for texts, trained
            at the full rate (the paper does not print d); true takes CLIP's own width. Bias and Xavier-uniform
            weights are ours: the paper does not mention them. False: none, CLIP's embeddings unchanged.
        frozen: freeze both encoders, so that image features are stored once; "images": freeze the image encoder alone,
            and train the text encoder, as CLIP4CIR's first stage can.
        gamma: learning rate of the encoders relative to the rest, >= 0; None: HyCoLe's 0.001. Fine-tuning only.
        pad: padding of images as in CIR models, see `Preprocess`; `resize_mode` of the weights is ignored.
        target_ratio: aspect ratio of the target padding.
        attribute_weights: add DQE-CIR's colour and shape sub-queries; a number > 0 is their initial weight, true
            is 0.1.
        temperature: of the loss at the start, 0.01 .. 10; it is learned from there. None: that of the weights,
            CLIP's 0.01.

    Raises:
        OptionError: an option that has no use with the others.
    """

    model: str | None = None
    weights: str | None = None
    activation: Activation = "auto"
    init: Init = "pretrained"
    size: Size = "model"
    fusion: FusionKind = "gated"
    projection: bool | PositiveInt = False
    frozen: bool | Literal["images"] = True
    gamma: NonNegativeFloat | None = None
    pad: Pad = "target"
    target_ratio: TargetRatio = 1.25
    attribute_weights: AttributeWeight = False
    temperature: StartTemperature | None = None

    def __post_init__(self) -> None:
        if self.init == "random":
            _composed.check_without_weights(self.weights)
        else:
            check_option("backbone.size", self.size, self.size == "model", "left out without backbone.init=random")
        if self.frozen is True and self.gamma is not None:
            raise OptionError("backbone.gamma is for fine-tuning: leave it out, or --set backbone.frozen=false")

    def blueprint(self, seed: int) -> Blueprint:
        """Find the weights, or what they are drawn for; raise as `Clip.load`."""
        if self.init == "random":
            return _open_clip.random_blueprint(self.model, self.size == "toy", self.activation, seed)
        return _open_clip.find(self.model, self.weights or "openai", self.activation)

    @property
    def ratio(self) -> float:
        """Learning rate of the encoders relative to the rest."""
        return GAMMA if self.gamma is None else self.gamma


class Clip(TwoTowers):
    """CLIP for composed image retrieval. Built by `load`; see `Backbone` for the methods' shapes.

    Features are [B, 1, C], CLIP's image embedding before any normalisation; a candidate has one token. Fine-tuned batch
    normalisation (in ResNets) keeps its running statistics: references and targets of a batch pass separately.

    Attributes:
        clip: open_clip's module; its logit scale is the learned temperature.
        project_image: HyCoLe's projection of image embeddings, or the identity.
        project_text: the same for texts.
        options: as loaded.
    """

    # the learning rate is HyCoLe-HNM's
    recommended: ClassVar = {"lr": 1e-4, "weight_decay": 0.01, "batch_size": 64, "epochs": 64}

    def __init__(self, options: ClipOptions, seed: int, blueprint: Blueprint | None = None) -> None:
        blueprint = blueprint or options.blueprint(seed)
        tokenizer = _open_clip.make_tokenizer(blueprint)
        clip = _open_clip.build(blueprint.config, seed)
        dropped = _open_clip.load_into(clip, blueprint).details if blueprint.files else {}
        super().__init__()
        self.clip: Any = clip
        self.transform = Preprocess(options.pad, options.target_ratio, _open_clip.side_of(clip), **blueprint.pixels)
        self.options = options
        self.frozen_images = bool(options.frozen)
        self._tokenizer = tokenizer
        self._pieces: Mapping[int, str] = tokenizer.decoder  # byte pairs, read back as words
        encoded = int(blueprint.config["embed_dim"])
        width = encoded if isinstance(options.projection, bool) else options.projection
        generator = torch.Generator().manual_seed(seed)
        self.fusion = make_fusion(options.fusion, width, generator)
        token_width = _open_clip.final_norm(clip).normalized_shape[0]
        self.attributes = make_attributes(options.attribute_weights, width, token_width, generator)
        if options.projection is False:
            self.project_image: nn.Module = nn.Identity()
            self.project_text: nn.Module = nn.Identity()
        else:
            self.project_image = make_linear(encoded, width, generator)
            self.project_text = make_linear(encoded, width, generator)
        self.clip.requires_grad_(options.frozen is not True)  # the fusion and the temperature always train
        self.clip.visual.requires_grad_(not options.frozen)
        self.clip.logit_scale.requires_grad_(True)
        # the whole of it, and the tokenizer's settings: texts are frozen too
        self._feature_key = tower_sha256(clip, self.transform, blueprint.config)
        activation = "quick_gelu" if blueprint.config.get("quick_gelu") else "gelu"
        start_details = self._start(options.temperature, of_file=bool(blueprint.files))  # no feature depends on it
        about = self._about(f"{options.fusion} fusion", width, activation)
        details = {"model": blueprint.name, "frozen": options.frozen}
        if options.projection is not False:
            details["projection"] = options.projection
        if options.frozen is not True:
            details["gamma"] = options.ratio
        about["details"] = {**details, **blueprint.details, **dropped, **start_details}
        about |= {"revision": blueprint.revision, "preprocessing": self.transform.description}
        self._identity = BackboneIdentity("clip", blueprint.label, **about)
        by_rows(self)
        self.eval()

    @classmethod
    def load(cls, options: ClipOptions, seed: Seed = 0) -> Self:
        """Load published, own or random weights; `seed` gives those of fusion and sub-queries, too.

        Raises:
            WeightsError: weights missing (with what to fetch and where to put it) or not fitting (with the keys).
            OptionError: an option that does not fit the weights.
            UnknownNameError: a model or tag that does not exist.
        """
        return cls(options, seed)

    @classmethod
    def skeleton(cls, options: ClipOptions, seed: int) -> Self:
        """See `BuildsWithoutWeights`."""
        try:
            blueprint = options.blueprint(seed)
        except WeightsError:  # not here
            blueprint = _open_clip.random_blueprint(options.model, False, options.activation, seed)
        with torch.device("meta"):
            return cls(options, seed, replace(blueprint, files=()))

    @classmethod
    def freezes(cls, options: ClipOptions) -> bool:
        """See `Backbone.freezes`."""
        return bool(options.frozen)

    @classmethod
    def outline(cls, options: ClipOptions, seed: int) -> Outline:
        """See `Outlines`; weights that do not fit are detected only when loaded."""
        blueprint = options.blueprint(seed)
        _open_clip.make_tokenizer(blueprint)  # raises
        settings = {
            **_composed.feature_settings(options),
            "config": blueprint.config,
            "pixels": blueprint.pixels,
            "key": blueprint.key,
            "prefix": blueprint.prefix,
        }
        if not blueprint.files:
            return Outline(cls, "clip", bool(options.frozen), settings={**settings, "seed": seed})
        return Outline(cls, "clip", bool(options.frozen), files=blueprint.files, settings=settings)

    def _start(self, temperature: float | None, *, of_file: bool) -> dict[str, Any]:
        """Set CLIP's logit scale if a temperature is given; return what the identity says of it."""
        if self.clip.logit_scale.is_meta:  # a skeleton
            return {}
        if temperature is not None:
            nn.init.constant_(self.clip.logit_scale, -math.log(temperature))
            return _composed.about_temperature(self.temperature, "option")
        return _composed.about_temperature(self.temperature, "file" if of_file else "default")

    @property
    def temperature(self) -> Tensor:
        """Learned temperature, initially that of the weights (CLIP's is 0.01); see `bound_below`."""
        return bound_below(torch.exp(-self.clip.logit_scale.reshape(())), self.least_temperature)

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, size, size] -> [B, 1, C] float32; with gradients when the image encoder is fine-tuned."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.options.frozen):
            return self.clip.encode_image(pixels).float()[:, None]

    def candidates(self, features: Tensor) -> Tensor:
        """[B, 1, C] -> [B, 1, D], unit norm."""
        return unit(self.project_image(features.float()))

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """{"ids": [B, context length] int64, "colour" and "shape": [B, context length] bool}."""
        if not texts:
            ids = torch.zeros(0, int(self._tokenizer.context_length), dtype=torch.int64)
        else:
            ids = self._tokenizer(list(texts))
        words = [words_of_clip_pieces(self._pieces_of(row)) for row in ids.tolist()]
        # always with masks, so that backbones with and without `attribute_weights` can share tokenised texts
        return {"ids": ids, **attribute_masks(words, ids.shape[1])}

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        """See `SeesTexts`: CLIP reads a fixed number of byte-pair pieces, start and end included."""
        return _open_clip.texts_seen(self._tokenizer, texts)

    def _reference(self, features: Tensor) -> Tensor:
        return self.candidates(features)[:, 0]

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For frozen encoders {"pooled": [B, C]}; with attribute weights also their masks and "words" [B, S, C]."""
        return self._frozen(tokens, *self._encode_tokens(tokens)) if self.options.frozen is True else dict(tokens)

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if "pooled" in tokens:
            embedding = tokens["pooled"]
            words = tokens.get("words", tokens["pooled"])
        else:
            embedding, words = self._encode_tokens(tokens)
        return unit(self.project_text(embedding)), words

    def _encode_tokens(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Text embeddings [B, C] and token features [B, S, C] (the embeddings without attribute weights), float32."""
        norm = _open_clip.final_norm(self.clip)
        outputs = list[Tensor]()

        def keep_output(module: nn.Module, inputs: object, output: Tensor) -> None:
            outputs.append(output)

        hook = norm.register_forward_hook(keep_output)
        try:
            # without gradients if both encoders are frozen
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.options.frozen is not True):
                embedding: Tensor = self.clip.encode_text(tokens["ids"])
        finally:
            hook.remove()
        embedding = embedding.float()
        words = embedding if self.attributes is None else outputs[0].float()
        return embedding, words

    def _pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Return one text's byte-pair pieces up to its end mark, with marks as `words_of_clip_pieces` expects them."""
        end = self._tokenizer.eot_token_id
        length = ids.index(end) if end in ids else len(ids)
        pieces = [self._pieces[piece_id] for piece_id in ids[1:length]]
        return ["<|startoftext|>", *pieces, "<|endoftext|>"]

    def train(self, mode: bool = True) -> Self:
        """Set training mode; frozen encoders and all batch normalisation stay in evaluation mode."""
        super().train(mode)
        if self.options.frozen is True:
            self.clip.eval()
        elif self.options.frozen:
            self.clip.visual.eval()
        for part in self.clip.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.training = False
        return self

    @property
    def recomputes(self) -> bool:
        """Whether an encoder trains."""
        return self.options.frozen is not True

    def recompute(self, on: bool) -> None:
        """Switch open_clip's checkpoints after each block of both encoders on or off; its ResNets have none."""
        if on and not self.recomputes:
            super().recompute(on)
        self.clip.set_grad_checkpointing(on)

    def _rate(self, name: str) -> float:
        """Return gamma for the encoders, 1 for the rest; CLIP's temperature counts as the rest."""
        return self.options.ratio if name.startswith("clip.") and name != "clip.logit_scale" else 1.0
