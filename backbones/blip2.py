"""BLIP-2's Q-Former on frozen image features: reference and text compose a query; an image has 32 tokens.

The model of QuRe, CIRQRS and, with `pooling="text"`, SPRC, built from transformers' public classes: EVA ViT-g
(`Blip2VisionModel`) or CLIP ViT-L (`CLIPVisionModel`), `Blip2QFormerModel`, two embeddings, two projections. With q the
learned query tokens, w the text's word and position embeddings and v = ln_vision(tower(image)):

- candidate: normalise(vision_projection(qformer(q; v))), one embedding for each query token;
- query: normalise(mean over tokens of text_projection(qformer([q; w]; v)[query positions]));
- score: dot product (QuRe eq. 1), max over the candidate's tokens (BLIP-2); the temperature divides in training only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from negbench.backbones._blip import BlipFamily, BlipTemperature, FamilyOptions
from negbench.backbones._captions import built_in_vocabulary
from negbench.backbones._checkpoint import Fit
from negbench.backbones._composed import AttributeWeight, Seed, TargetRatio
from negbench.backbones._fusion import unit
from negbench.backbones._lavis import Blip2Sizes, blip2_sizes, read_blip2, toy_sides
from negbench.backbones._weights import Advice, Source
from negbench.contracts import RowDropout, TextBatch, computing, current_rows

PAPER = (
    "Li et al., BLIP-2, ICML 2023 (arXiv:2301.12597); as used by Kwak et al., QuRe, ICML 2025 (arXiv:2507.12416), "
    "and with pooling=text by Bai et al., SPRC, ICLR 2024 (arXiv:2310.05473)"
)

Size = Literal["toy", "vit_l", "vit_g"]

_ATTENTION = "negbench_rows"  # our attention's name in transformers
_POOLINGS = {"query": "mean of the query tokens", "text": "first text token of a second pass (SPRC)"}
_TOY_SIDES = toy_sides("vit", "qformer")
_ROWS = len(built_in_vocabulary()) + 1  # "[DEC]"
_TOY = Blip2Sizes(image_size=56, num_query_tokens=8, vocab_size=_ROWS, max_positions=32, **_TOY_SIDES)
_VIT_L = Blip2Sizes(tower="clip_vit_L", vit_hidden_size=1024, vit_layers=23, vit_intermediate_size=4096)


@dataclass(frozen=True, kw_only=True)
class Blip2Options(FamilyOptions):
    """Options of `Blip2`.

    Args:
        weights: "lavis:FILE,tower=FILE" (LAVIS's blip2_pretrained*.pth, which holds the temperature, with the tower's
            own file), "lavis:FILE" (a whole model: fine-tuned, as QuRe and SPRC publish theirs), a folder that
            transformers saved, or a hub id, "ORG/NAME" or "ORG/NAME@REVISION". None: the hub's
            Salesforce/blip2-itm-vit-g, which holds no temperature.
        config: as a table: vit_heads, qformer_heads, max_txt_len (default: as published), which tensors do not
            determine; other sizes may be repeated and are then checked. With init="random": any size of `Blip2Sizes`,
            overriding `size`.
        size: size of random weights: "toy", "vit_l" (CLIP ViT-L) or "vit_g" (EVA ViT-g).
        pooling: "query": mean over the projected query tokens (QuRe); "text": the text's first token after a second
            pass over the fused tokens and the text (SPRC).
    """

    size: Size = "vit_g"
    pooling: Literal["query", "text"] = "query"
    target_ratio: TargetRatio = 1.25
    attribute_weights: AttributeWeight = False
    temperature: BlipTemperature | None = None


class Blip2(BlipFamily):
    """BLIP-2 for composed image retrieval. The visual tower is frozen; everything else trains, including ln_vision.

    Use `load`; the constructor leaves the parameters on the meta device.

    Attributes:
        ln_vision: applied to stored features; its eps is LAVIS's 1e-5 unless a folder's configuration differs.
        query_tokens: [1, Q, H].
    """

    advice = Advice(
        backbone="blip2",
        hub_id="Salesforce/blip2-itm-vit-g",
        lavis_files=(
            "LAVIS's files (blip2_pretrained_vitL.pth with clip_vit_L.pth, or blip2_pretrained.pth with eva_vit_g.pth, "
            "of github.com/salesforce/LAVIS: --set backbone.weights=lavis:FILE,tower=FILE; or a fine-tuned whole "
            "model, as model.pth of github.com/jackwaky/QuRe: --set backbone.weights=lavis:FILE)"
        ),
    )
    published = Blip2Sizes()
    random_sizes: ClassVar = {"toy": _TOY, "vit_l": _VIT_L, "vit_g": published}
    published_files: ClassVar = {"blip2_pretrained_vitL.pth": _VIT_L}
    their_class = "Blip2ForImageTextRetrieval"
    # "[DEC]" starts generated text and never occurs here, so weights without a row for it (30522) work as well
    added_tokens = ("[DEC]",)
    unused_tokens = 1
    renamed_prefixes = (("vision_model.post_layernorm.", "ln_vision."), ("embeddings.", ""))

    options: Blip2Options

    def __init__(self, sizes: Blip2Sizes, options: Blip2Options, seed: int, config: Any = None) -> None:
        super().__init__(sizes, options, seed)
        width = sizes.qformer_hidden_size
        with torch.device("meta"):
            self.vision_model = _tower(sizes, config)
            # LAVIS's 1e-5, which transformers' converted files do not hold: they say 1e-6 for the whole tower
            eps = self.vision_model.config.layer_norm_eps
            self.ln_vision = nn.LayerNorm(sizes.vit_hidden_size, eps=1e-5 if eps == 1e-6 else eps)
            self.query_tokens = nn.Parameter(torch.empty(1, sizes.num_query_tokens, width))
            self.word_embeddings = nn.Embedding(sizes.vocab_size, width, padding_idx=0)
            self.position_embeddings = nn.Embedding(sizes.max_positions, width)
            self.qformer = _qformer(sizes, config)
            self.vision_projection = nn.Linear(width, sizes.embed_dim)
            self.text_projection = nn.Linear(width, sizes.embed_dim)
            self.temp = nn.Parameter(torch.empty(()))

    @classmethod
    def load(cls, options: Blip2Options, seed: Seed = 0) -> Self:
        """Load published, own or random weights; `seed` gives random weights and attribute weights."""
        return cls.load_weights(options, seed)

    @staticmethod
    def _read_lavis(source: Source, config: Mapping[str, Any]) -> tuple[Fit, Blip2Sizes]:
        assert source.path is not None
        depth = config.get("vit_layers")
        depth = depth if isinstance(depth, int) else None
        fit = read_blip2(source.path, source.tower, depth, source.key, source.prefix)
        return fit, blip2_sizes(fit.state, source.path)

    @classmethod
    def _tuning_of(cls, source: Source) -> str:
        """See `BlipFamily`: LAVIS publishes what it pretrained without the frozen tower."""
        if source.kind != "lavis" or source.tower is not None:
            return ""
        return (
            "they hold their own visual tower, so they are fine-tuned, as QuRe's and SPRC's on FashionIQ or CIRR, "
            "unknown on which data set"
        )

    def _character(self) -> tuple[str, int, dict[str, Any]]:
        composition = f"Q-Former over image features and text, {_POOLINGS[self.options.pooling]}"
        about = {"tower": self.sizes.tower, "pooling": self.options.pooling}
        return composition, self.sizes.num_query_tokens, about

    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, Q, D], unit norm: one embedding for each of the Q query tokens."""
        learned = self.query_tokens.expand(features.shape[0], -1, -1)
        hidden = self.qformer(query_embeds=learned, encoder_hidden_states=self._vision(features)).last_hidden_state
        return unit(self.vision_projection(hidden))

    def _compose(self, features: Tensor, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        count = self.sizes.num_query_tokens
        hidden = self._fuse(features, tokens)
        if self.options.pooling == "query":
            return unit(self.text_projection(hidden[:, :count]).mean(1)), hidden[:, count:]
        # SPRC: its Q-Former without an image sends every position through the text's feed-forward layers
        rows = current_rows()
        with computing(None if rows is None else rows.again(1)):
            hidden = self.qformer(
                query_embeds=torch.cat([hidden[:, :count], self._words(tokens)], dim=1),
                query_length=0,
                attention_mask=self._mask(tokens),
            ).last_hidden_state
        return unit(self.text_projection(hidden[:, count])), hidden[:, count:]

    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D], unit norm: BLIP-2's own text embedding, the projected [CLS] of the text alone."""
        tokens = self._tokens(text)
        hidden = self.qformer(
            query_embeds=self._words(tokens), query_length=0, attention_mask=tokens["attention_mask"]
        ).last_hidden_state
        return unit(self.text_projection(hidden[:, 0]))

    def _fuse(self, features: Tensor, tokens: Mapping[str, Tensor]) -> Tensor:
        """[B, Q + S, H]: the Q-Former over query tokens and text; the query positions alone attend to the image."""
        learned = self.query_tokens.expand(features.shape[0], -1, -1)
        return self.qformer(
            query_embeds=torch.cat([learned, self._words(tokens)], dim=1),
            # without it, transformers would treat all positions as query tokens
            query_length=self.sizes.num_query_tokens,
            attention_mask=self._mask(tokens),
            encoder_hidden_states=self._vision(features),
        ).last_hidden_state

    def _vision(self, features: Tensor) -> Tensor:
        return self.ln_vision(features.to(self.ln_vision.weight.dtype))

    def _words(self, tokens: Mapping[str, Tensor]) -> Tensor:
        ids = tokens["input_ids"]
        # text positions start at 0, whatever precedes the text; query tokens have none
        return self.word_embeddings(ids) + self.position_embeddings.weight[: ids.shape[1]]

    def _mask(self, tokens: Mapping[str, Tensor]) -> Tensor:
        mask = tokens["attention_mask"]
        return torch.cat([mask.new_ones(mask.shape[0], self.sizes.num_query_tokens), mask], dim=1)


def _tower(sizes: Blip2Sizes, saved: Any) -> Any:
    """Make the visual tower, whose last_hidden_state holds the tokens before any final norm.

    Args:
        sizes: of the model.
        saved: configuration that transformers saved with the weights, if any: it counts.
    """
    from transformers import Blip2VisionConfig, Blip2VisionModel, CLIPVisionConfig, CLIPVisionModel

    config: Any
    model: Any
    if sizes.tower == "eva_clip_g":
        model = Blip2VisionModel
        config = Blip2VisionConfig(**sizes.side("vit"), hidden_act="gelu", layer_norm_eps=1e-6)
    else:
        model = CLIPVisionModel
        config = CLIPVisionConfig(**sizes.side("vit"), hidden_act="quick_gelu", layer_norm_eps=1e-5)
    tower = model(saved.vision_config if saved else config)
    # EVA's is ln_vision, which trains and so is outside the frozen tower; CLIP's affects the pooled output only
    tower.post_layernorm = nn.Identity()
    return tower


def _qformer(sizes: Blip2Sizes, saved: Any) -> nn.Module:
    from transformers import Blip2QFormerConfig, Blip2QFormerModel

    # by default transformers leaves out the feed-forward layers for text
    more = {"cross_attention_frequency": sizes.cross_attention_freq, "use_qformer_text_input": True}
    config = Blip2QFormerConfig(**sizes.side("qformer"), **more)
    qformer = Blip2QFormerModel(saved.qformer_config if saved else config)
    attend_by_rows(qformer)
    return qformer


def attend_by_rows(qformer: Any) -> None:
    """Let a Q-Former's attentions drop probabilities by rows, which none of transformers' own functions can."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    from transformers.models.blip_2.modeling_blip_2 import Blip2QFormerMultiHeadAttention

    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    qformer.set_attn_implementation(_ATTENTION)
    for module in qformer.modules():
        if isinstance(module, Blip2QFormerMultiHeadAttention):
            module.dropout = RowDropout(module.attention_dropout)
            module.attention_dropout = 0.0


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of transformers' kind: query [B, H, Q, D], key and value [B, H, K, D] -> [B, Q, H, D].

    Where a mask is drawn it is that of rows, so all probabilities are written out; elsewhere torch's fast kernels.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not module.dropout.training or module.dropout.p == 0:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scores = query @ key.transpose(-1, -2) * options["scaling"]
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    probabilities = module.dropout(scores.softmax(-1))
    return (probabilities.to(value.dtype) @ value).transpose(1, 2).contiguous(), None
