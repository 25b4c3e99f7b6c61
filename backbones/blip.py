"""BLIP image-text model, fine-tuned whole: the text encoder attends to the reference image; one vector for an image.

The BLIP variant of QuRe, built from transformers' `BlipForImageTextRetrieval`: a query is the projected first token of
the text encoder over "[ENC] text [SEP]" with cross-attention to all reference tokens in every layer, a candidate the
projected [CLS] token of the visual tower, both normalised; the score is their dot product, the temperature divides in
training only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from negbench.backbones._blip import (
    BlipFamily,
    Options,
    Origin,
    Precision,
    Text,
    make_caption_tokenizer,
    randomise,
)
from negbench.backbones._captions import built_in_vocabulary, identity_caption, process_caption
from negbench.backbones._lavis import (
    LAYOUTS,
    BlipSizes,
    Layout,
    assign,
    blip_sizes,
    check_names,
    configured,
    load_state,
    read_checkpoint,
    read_config,
)
from negbench.backbones._weights import Advice, Source, hub_folder, parse_weights, read_pretrained
from negbench.contracts import DEFAULT_TEMPERATURE, TextBatch, check_option
from negbench.errors import OptionError, WeightsError

PAPER = "Li et al., BLIP, ICML 2022 (arXiv:2201.12086); as used by Kwak et al., QuRe, ICML 2025 (arXiv:2507.12416)"

ADVICE = Advice(
    backbone="blip",
    hub_id="Salesforce/blip-itm-base-coco",
    lavis_files="LAVIS's file (model.pth of QuRe with BLIP, github.com/jackwaky/QuRe: backbone.weights=lavis:FILE)",
)

Init = Literal["pretrained", "random"]
Size = Literal["toy", "base", "large"]
Captions = Literal["blip_caption", "as_is"]

_ADDED = ("[DEC]", "[ENC]")
_RANDOM_SIZES: dict[str, BlipSizes] = {
    "base": BlipSizes(),
    "large": BlipSizes(image_size=224, vit_hidden_size=1024, vit_layers=24, vit_heads=16, vit_intermediate_size=4096),
    "toy": BlipSizes(
        image_size=64,
        vit_hidden_size=32,
        vit_layers=2,
        vit_heads=2,
        vit_intermediate_size=64,
        text_hidden_size=32,
        text_layers=2,
        text_heads=2,
        text_intermediate_size=64,
        vocab_size=len(built_in_vocabulary()) + len(_ADDED),
        max_positions=64,
        embed_dim=32,
    ),
}


class Blip(BlipFamily):  # type: ignore[misc]  # mypy sees the folder as `backbones`
    """BLIP for composed image retrieval. Everything trains, the visual tower included, unless it is frozen on demand.

    QuRe's "large" has stochastic depth 0.1 in the tower during training; transformers' tower has none.

    Use `load`; the constructor leaves the parameters on the meta device.

    Attributes:
        sizes: of the model.
    """

    recommended: ClassVar[Mapping[str, float | int]] = {
        "lr": 5e-6,  # QuRe's values for BLIP-2: it publishes no others for BLIP
        "weight_decay": 0.05,
        "batch_size": 32,
        "epochs": 30,
    }
    _name = "blip"
    _tokens_per_image = 1
    _activation = "gelu"
    _composition = "text encoder with cross-attention to the image in every layer, first token ([ENC])"

    def __init__(
        self, sizes: BlipSizes, options: Options, *, freeze_images: bool = False, vision_eps: float = 1e-6
    ) -> None:
        super().__init__(sizes.image_size, sizes.embed_dim, options)
        self.sizes = sizes
        self.frozen_images = freeze_images
        with torch.device("meta"):
            model = _model(sizes, vision_eps)
            self.vision_model: nn.Module = model.vision_model
            self.text_encoder = model.text_encoder
            self.vision_proj = model.vision_proj
            self.text_proj = model.text_proj
            self.temp = nn.Parameter(torch.empty(()))

    @classmethod
    def load(
        cls,
        *,
        weights: str | None = None,
        config: dict[str, Any] | str | None = None,
        tokenizer: str | None = None,
        init: Init = "pretrained",
        size: Size = "base",
        captions: Captions = "blip_caption",
        freeze_images: bool = False,
        precision: Precision = "fp32",
        target_ratio: float = 1.25,
        attribute_weights: bool = False,
        seed: int = 0,
    ) -> Blip:
        """Backbone from published, own or random weights.

        Args:
            weights: "lavis:FILE" (a whole model, as QuRe publishes its own), a folder that transformers saved, its
                FILE.safetensors beside config.json, or a hub id, "ORG/NAME" or "ORG/NAME@REVISION". None: the hub's
                Salesforce/blip-itm-base-coco.
            config: sizes that tensors cannot tell, as a table or a JSON file: vit_heads, text_heads, max_txt_len
                (default: as published); other sizes may be repeated and are then checked. With init="random": any size
                of `BlipSizes`, over those of `size`.
            tokenizer: a vocab.txt or tokenizer folder. None: beside the weights, else bert-base-uncased of the hub;
                with init="random": a small vocabulary made in code.
            init: "pretrained", or "random" weights from `seed`.
            size: of random weights: "toy", "base" (ViT-B/16, 384 pixels) or "large" (ViT-L/16, 224 pixels).
            captions: LAVIS's processor "blip_caption", or "as_is": its configuration of BLIP "large" names none.
            freeze_images: keep the visual tower as it is, so that features are stored once.
            precision: of the visual tower.
            target_ratio: of the target padding.
            attribute_weights: DQE-CIR's colour and shape sub-queries.
            seed: of random weights, dropout and attribute weights.

        Raises:
            WeightsError: weights missing (with what to fetch and where to put it) or not fitting (with the keys).
            OptionError: an option out of range, or one that `init` has no use for.
        """
        check_option("backbone.init", init, init in get_args(Init), "pretrained or random")
        check_option("backbone.size", size, size in get_args(Size), "toy, base or large")
        check_option("backbone.captions", captions, captions in get_args(Captions), "blip_caption or as_is")
        options = Options(precision, target_ratio, attribute_weights, seed)
        given = read_config(config)
        if init == "random":
            check_option("backbone.weights", weights, weights is None, "left out with backbone.init=random")
            backbone, origin = cls._random(size, given, options, freeze_images)
        else:
            source = parse_weights(str(weights or ADVICE.hub_id), ADVICE)
            if source.kind == "lavis":
                backbone, origin = cls._from_lavis(source, given, options, freeze_images)
            elif given:
                raise OptionError("backbone.config is for lavis: weights; a folder or hub id has its own config.json")
            else:
                backbone, origin = cls._from_transformers(source, options, freeze_images)
        sizes = backbone.sizes
        text = Text(_ADDED, processor=process_caption if captions == "blip_caption" else identity_caption)
        tokens = make_caption_tokenizer(
            tokenizer, origin, text, ADVICE, rows=sizes.vocab_size, max_length=sizes.max_txt_len
        )
        tower = {key: getattr(sizes, key) for key in ("vit_layers", "vit_hidden_size", "vit_heads")}
        details = {**tower, "captions": captions, "freeze_images": freeze_images, **origin.details}
        backbone._complete(tokens, dataclasses.replace(origin, details=details), sizes.text_hidden_size)
        return backbone

    @classmethod
    def _random(
        cls, size: Size, config: Mapping[str, Any], options: Options, freeze_images: bool
    ) -> tuple[Blip, Origin]:
        backbone = cls(configured(_RANDOM_SIZES[size], config, told=""), options, freeze_images=freeze_images)
        randomise(backbone, options.seed)
        return backbone, Origin(f"random:{options.seed}", "", details={"size": size})

    @classmethod
    def _from_lavis(
        cls, source: Source, config: Mapping[str, Any], options: Options, freeze_images: bool
    ) -> tuple[Blip, Origin]:
        assert source.path is not None
        if source.tower is not None:
            raise WeightsError(f"blip has its visual tower in the model's own file: leave out tower={source.tower}")
        state = read_checkpoint(source.path)
        told = blip_sizes(state, source.path)
        dropped = check_names(cls(told.skeleton(), options), state, LAYOUTS["blip"], source.path)
        backbone = cls(configured(told, config, told=source.label), options, freeze_images=freeze_images)
        load_state(backbone, state, backbone.layout, source.path)
        return backbone, Origin(source.label, "local", source.path.parent, {"keys_left_out": len(dropped)})

    @classmethod
    def _from_transformers(cls, source: Source, options: Options, freeze_images: bool) -> tuple[Blip, Origin]:
        from transformers import BlipForImageTextRetrieval

        path = hub_folder(source, ADVICE) if source.path is None else source.path
        config, state = read_pretrained(BlipForImageTextRetrieval, path)
        sizes = _sizes_of_config(config, state)
        sizes.check(str(path))
        backbone = cls(sizes, options, freeze_images=freeze_images, vision_eps=config.vision_config.layer_norm_eps)
        tensors = {name: tensor for name, tensor in state.items() if not name.startswith("itm_head.")}
        tensors["temp"] = torch.tensor(DEFAULT_TEMPERATURE)  # transformers' class has none
        assign(backbone, tensors, path)
        revision = path.name if source.kind == "hub" else "local"
        return backbone, Origin(source.label, revision, path if path.is_dir() else path.parent)

    # --- forward ----------------------------------------------------------------------------------------------------

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, S, S] -> [B, 1 + patches, C] float32: the tower's tokens after its final norm; with gradients."""
        self._check_pixels(pixels)
        gradients = torch.is_grad_enabled() and not self.frozen_images
        with torch.set_grad_enabled(gradients), self._tower_precision(pixels.device):
            features: Tensor = self.vision_model(pixel_values=pixels).last_hidden_state
        return features.float()

    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, 1, D], unit norm: the projected [CLS] token."""
        return F.normalize(self.vision_proj(self._float(features)[:, :1]), dim=-1)

    def _composed(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        ids = tokens["input_ids"].clone()
        ids[:, 0] = self._tokenizer.bert.convert_tokens_to_ids("[ENC]")  # BLIP's mark of image-grounded text
        with self._dropout():
            hidden: Tensor = self.text_encoder(
                input_ids=ids, attention_mask=tokens["attention_mask"], encoder_hidden_states=self._float(features)
            ).last_hidden_state
        return F.normalize(self.text_proj(hidden[:, 0]), dim=-1), hidden

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D], unit norm: BLIP's own text embedding, the projected [CLS] without an image."""
        tokens = self._tokens(text)
        with self._dropout():
            hidden = self.text_encoder(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).last_hidden_state
        return F.normalize(self.text_proj(hidden[:, 0]), dim=-1)

    def _float(self, features: Tensor) -> Tensor:
        return features.to(self.vision_proj.weight.dtype)

    @property
    def layout(self) -> Layout:
        """How parameter names translate into LAVIS's."""
        return LAYOUTS["blip"]


def _model(sizes: BlipSizes, vision_eps: float) -> Any:
    from transformers import BlipConfig, BlipForImageTextRetrieval

    vision = {
        "hidden_size": sizes.vit_hidden_size,
        "intermediate_size": sizes.vit_intermediate_size,
        "num_hidden_layers": sizes.vit_layers,
        "num_attention_heads": sizes.vit_heads,
        "image_size": sizes.image_size,
        "patch_size": sizes.patch_size,
        "layer_norm_eps": vision_eps,  # LAVIS 1e-6, transformers' default 1e-5
    }
    text = {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.text_hidden_size,
        "encoder_hidden_size": sizes.vit_hidden_size,
        "intermediate_size": sizes.text_intermediate_size,
        "num_hidden_layers": sizes.text_layers,
        "num_attention_heads": sizes.text_heads,  # transformers' default 8 is not LAVIS's 12
        "max_position_embeddings": sizes.max_positions,
        "hidden_dropout_prob": 0.1,  # transformers' default is 0
        "attention_probs_dropout_prob": 0.1,
        # ids of generation, which is not done here
        "bos_token_id": None,
        "eos_token_id": None,
        "sep_token_id": None,
    }
    return BlipForImageTextRetrieval(
        BlipConfig(vision_config=vision, text_config=text, image_text_hidden_size=sizes.embed_dim)
    )


def _sizes_of_config(config: Any, state: Mapping[str, Tensor]) -> BlipSizes:
    vision, text = config.vision_config, config.text_config
    return BlipSizes(
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        vit_hidden_size=vision.hidden_size,
        vit_layers=vision.num_hidden_layers,
        vit_heads=vision.num_attention_heads,
        vit_intermediate_size=vision.intermediate_size,
        text_hidden_size=text.hidden_size,
        text_layers=text.num_hidden_layers,
        text_heads=text.num_attention_heads,
        text_intermediate_size=text.intermediate_size,
        vocab_size=state["text_encoder.embeddings.word_embeddings.weight"].shape[0],
        max_positions=text.max_position_embeddings,
        embed_dim=config.image_text_hidden_size,
        max_txt_len=min(35, text.max_position_embeddings),
    )
