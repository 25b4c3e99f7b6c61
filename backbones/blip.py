"""BLIP image-text model, fine-tuned as a whole: the text encoder attends to the reference; one vector per image.

The BLIP variant of QuRe, built from transformers' `BlipForImageTextRetrieval`: a query is the projected first token of
the text encoder over "[ENC] text [SEP]" with cross-attention to all reference tokens in every layer, a candidate the
projected [CLS] token of the visual tower, both normalised; the score is their dot product, the temperature divides in
training only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from negbench.backbones._blip import BlipFamily, BlipTemperature, FamilyOptions, Origin
from negbench.backbones._captions import built_in_vocabulary
from negbench.backbones._checkpoint import Fit
from negbench.backbones._composed import AttributeWeight, Seed, TargetRatio
from negbench.backbones._fusion import unit
from negbench.backbones._lavis import BlipSizes, blip_sizes, read_blip, toy_sides
from negbench.backbones._weights import Advice, Source
from negbench.contracts import TextBatch
from negbench.errors import WeightsError

PAPER = "Li et al., BLIP, ICML 2022 (arXiv:2201.12086); as used by Kwak et al., QuRe, ICML 2025 (arXiv:2507.12416)"

Size = Literal["toy", "base", "large"]

_ADDED = ("[DEC]", "[ENC]")
_ROWS = len(built_in_vocabulary()) + len(_ADDED)
_TOY = BlipSizes(image_size=64, vocab_size=_ROWS, max_positions=64, **toy_sides("vit", "text"))
_LARGE = BlipSizes(image_size=224, vit_hidden_size=1024, vit_layers=24, vit_heads=16, vit_intermediate_size=4096)


@dataclass(frozen=True, kw_only=True)
class BlipOptions(FamilyOptions):
    """Options of `Blip`.

    Args:
        config: as a table: vit_heads, text_heads, max_txt_len (default: as published), which tensors do not determine;
            other sizes may be repeated and are then checked. With init="random": any size of `BlipSizes`, overriding
            `size`.
        size: size of random weights: "toy", "base" (ViT-B/16, 384 pixels) or "large" (ViT-L/16, 224 pixels).
        captions: "blip_caption", LAVIS's processor, or "as_is", none, as QuRe's code reads them with BLIP "large".
        freeze_images: freeze the visual tower, so that features are stored once.
        frozen: "images" freezes the visual tower and its projection, so that the text side alone trains.
    """

    size: Size = "base"
    captions: Literal["blip_caption", "as_is"] = "blip_caption"
    freeze_images: bool = False
    frozen: Literal["images"] | None = None
    target_ratio: TargetRatio = 1.25
    attribute_weights: AttributeWeight = False
    temperature: BlipTemperature | None = None

    @property
    def images_frozen(self) -> bool:
        """Whether the visual tower is frozen."""
        return self.freeze_images or self.frozen == "images"


class Blip(BlipFamily):
    """BLIP for composed image retrieval. Everything trains, including the visual tower unless it is frozen by option.

    QuRe's "large" has stochastic depth 0.1 in the tower during training; transformers' tower has none.

    Use `load`; the constructor leaves the parameters on the meta device.
    """

    advice = Advice(
        backbone="blip",
        hub_id="Salesforce/blip-itm-base-coco",
        lavis_files=(
            "BLIP's own file (model_large.pth of github.com/salesforce/BLIP: --set backbone.weights=lavis:FILE; or a "
            "fine-tuned one, as model.pth of github.com/jackwaky/QuRe)"
        ),
    )
    published = BlipSizes()
    random_sizes: ClassVar = {"toy": _TOY, "base": published, "large": _LARGE}
    published_files: ClassVar = {"model_large.pth": _LARGE}
    their_class = "BlipForImageTextRetrieval"
    added_tokens = _ADDED

    def __init__(self, sizes: BlipSizes, options: BlipOptions, seed: int, config: Any = None) -> None:
        super().__init__(sizes, options, seed)
        with torch.device("meta"):
            model = _model(sizes, config)
            self.vision_model = model.vision_model
            self.text_encoder = model.text_encoder
            self.vision_proj = model.vision_proj
            self.text_proj = model.text_proj
            self.temp = nn.Parameter(torch.empty(()))

    @classmethod
    def load(cls, options: BlipOptions, seed: Seed = 0) -> Self:
        """Load published, own or random weights; `seed` gives random weights and attribute weights."""
        return cls.load_weights(options, seed)

    def _complete(self, origin: Origin) -> None:
        """Finish construction as the family does; with frozen="images" the images' projection is frozen, too."""
        if self.options.frozen == "images":
            self.vision_proj.requires_grad_(False)
        super()._complete(origin)

    @staticmethod
    def _read_lavis(source: Source, config: Mapping[str, Any]) -> tuple[Fit, BlipSizes]:
        if source.tower is not None:
            raise WeightsError(f"blip has its visual tower in the model's own file: leave out tower={source.tower}")
        assert source.path is not None
        fit = read_blip(source.path, source.key, source.prefix)
        return fit, blip_sizes(fit.state, source.path)

    def _character(self) -> tuple[str, int, dict[str, Any]]:
        composition = "text encoder with cross-attention to the image in every layer, first token ([ENC])"
        return composition, 1, {"captions": self.options.captions, "freeze_images": self.frozen_images}

    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, 1, D], unit norm: the projected [CLS] token."""
        return unit(self.vision_proj(features[:, :1].float()))

    def _compose(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        ids = tokens["input_ids"].clone()
        ids[:, 0] = self._tokenizer.bert.convert_tokens_to_ids("[ENC]")  # BLIP's mark of image-grounded text
        return self._read(ids, tokens["attention_mask"], features.float())

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D], unit norm: BLIP's own text embedding, the projected [CLS] without an image."""
        tokens = self._tokens(text)
        return self._read(tokens["input_ids"], tokens["attention_mask"], None)[0]

    def _read(self, ids: Tensor, mask: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden: Tensor = self.text_encoder(
            input_ids=ids, attention_mask=mask, encoder_hidden_states=image
        ).last_hidden_state
        return unit(self.text_proj(hidden[:, 0])), hidden


def _model(sizes: BlipSizes, config: Any) -> Any:
    from transformers import BlipConfig, BlipForImageTextRetrieval

    if config is None:
        vision = sizes.side("vit") | {"layer_norm_eps": 1e-6}  # LAVIS 1e-6, transformers' default 1e-5
        # without token ids for generation, which is not used
        text = sizes.side("text") | dict.fromkeys(("bos_token_id", "eos_token_id", "sep_token_id"))
        config = BlipConfig(vision_config=vision, text_config=text, image_text_hidden_size=sizes.embed_dim)
    # transformers' default is 0, and what it saves does not say how the model was trained
    config.text_config.hidden_dropout_prob = config.text_config.attention_probs_dropout_prob = 0.1
    return BlipForImageTextRetrieval(config)
