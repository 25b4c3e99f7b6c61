"""Small random checkpoints in LAVIS's format, and an independent forward pass on plain tensors with LAVIS's names.

The forward pass is an oracle that shares no code with the backbones: it uses neither transformers nor torch.nn modules.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *"abcdefghijklmnopqrstuvwxyz,?'-/&$",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
    *("red", "blue", "dress", "shirt", "longer", "sleeves", "with", "and", "is", "##er", "mask"),
]
CAPTIONS = ["is RED and longer!", "blue dress", "with (longer) sleeves, and a zip", "shirt" + " and red" * 30]
LENGTH = 16  # max_txt_len of the small models
# sizes of the small models in transformers' format
HUB_VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
HUB_TEXT = {"hidden_size": 16, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 2}
HUB_TEXT |= {"max_position_embeddings": 40}


@dataclass
class Sizes:
    """Sizes of a small model; as many as possible differ from each other, so that mix-ups show."""

    tower: str = "eva_clip_g"
    grid: int = 2
    patch: int = 14
    vit: int = 24
    vit_layers: int = 3
    vit_heads: int = 3
    vit_mlp: int = 40
    tokens: int = 5
    width: int = 16
    layers: int = 4
    heads: int = 2
    mlp: int = 28
    freq: int = 2
    rows: int = len(VOCABULARY) + 1
    positions: int = 20
    embed: int = 12

    @property
    def pixels(self) -> int:
        return self.grid * self.patch


class _Weights:
    """Collect random tensors, large enough that every part of the model affects its output."""

    def __init__(self, seed: int) -> None:
        self.state: State = {}
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self.state[name] = torch.randn(shape, generator=self.generator) * scale

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        self.add(f"{name}.weight", outputs, inputs, scale=1.5 / math.sqrt(inputs))
        if bias:
            self.add(f"{name}.bias", outputs, scale=0.2)

    def norm(self, name: str, width: int) -> None:
        self.add(f"{name}.weight", width, scale=0.2)
        self.state[f"{name}.weight"] += 1
        self.add(f"{name}.bias", width, scale=0.2)


def eva_state(s: Sizes, seed: int = 1) -> State:
    w = _Weights(seed)
    w.add("cls_token", 1, 1, s.vit)
    w.add("pos_embed", 1, s.grid**2 + 1, s.vit, scale=0.5)
    w.add("patch_embed.proj.weight", s.vit, 3, s.patch, s.patch, scale=0.05)
    w.add("patch_embed.proj.bias", s.vit, scale=0.2)
    for n in range(s.vit_layers):
        b = f"blocks.{n}"
        w.norm(f"{b}.norm1", s.vit)
        w.add(f"{b}.attn.q_bias", s.vit, scale=0.3)
        w.add(f"{b}.attn.v_bias", s.vit, scale=0.3)
        w.linear(f"{b}.attn.qkv", 3 * s.vit, s.vit, bias=False)
        w.linear(f"{b}.attn.proj", s.vit, s.vit)
        w.norm(f"{b}.norm2", s.vit)
        w.linear(f"{b}.mlp.fc1", s.vit_mlp, s.vit)
        w.linear(f"{b}.mlp.fc2", s.vit, s.vit_mlp)
    return w.state


def clip_state(s: Sizes, seed: int = 1) -> State:
    w = _Weights(seed)
    w.add("class_embedding", s.vit)
    w.add("positional_embedding", s.grid**2 + 1, s.vit, scale=0.5)
    w.add("conv1.weight", s.vit, 3, s.patch, s.patch, scale=0.05)
    w.norm("ln_pre", s.vit)
    for n in range(s.vit_layers):
        b = f"transformer.resblocks.{n}"
        w.add(f"{b}.attn.in_proj_weight", 3 * s.vit, s.vit, scale=1.5 / math.sqrt(s.vit))
        w.add(f"{b}.attn.in_proj_bias", 3 * s.vit, scale=0.3)
        w.linear(f"{b}.attn.out_proj", s.vit, s.vit)
        w.norm(f"{b}.ln_1", s.vit)
        w.linear(f"{b}.mlp.c_fc", s.vit_mlp, s.vit)
        w.linear(f"{b}.mlp.c_proj", s.vit, s.vit_mlp)
        w.norm(f"{b}.ln_2", s.vit)
    return w.state


def tower_state(s: Sizes, seed: int = 1) -> State:
    return eva_state(s, seed) if s.tower == "eva_clip_g" else clip_state(s, seed)


def _bert_attention(w: _Weights, name: str, width: int, keys: int) -> None:
    for part, inputs in (("query", width), ("key", keys), ("value", keys)):
        w.linear(f"{name}.self.{part}", width, inputs)
    w.linear(f"{name}.output.dense", width, width)
    w.norm(f"{name}.output.LayerNorm", width)


def _feed_forward(w: _Weights, name: str, suffix: str, width: int, mlp: int) -> None:
    w.linear(f"{name}.intermediate{suffix}.dense", mlp, width)
    w.linear(f"{name}.output{suffix}.dense", width, mlp)
    w.norm(f"{name}.output{suffix}.LayerNorm", width)


def _embeddings(w: _Weights, name: str, s: Sizes) -> None:
    w.state[f"{name}.position_ids"] = torch.arange(s.positions)[None]
    w.add(f"{name}.word_embeddings.weight", s.rows, s.width)
    w.add(f"{name}.position_embeddings.weight", s.positions, s.width)
    w.norm(f"{name}.LayerNorm", s.width)


def qformer_state(s: Sizes, seed: int = 2) -> State:
    w = _Weights(seed)
    w.add("query_tokens", 1, s.tokens, s.width)
    w.state["temp"] = torch.tensor(0.0513)
    w.norm("ln_vision", s.vit)
    _embeddings(w, "Qformer.bert.embeddings", s)
    for n in range(s.layers):
        layer = f"Qformer.bert.encoder.layer.{n}"
        _bert_attention(w, f"{layer}.attention", s.width, s.width)
        if n % s.freq == 0:
            _bert_attention(w, f"{layer}.crossattention", s.width, s.vit)
        _feed_forward(w, layer, "", s.width, s.mlp)
        _feed_forward(w, layer, "_query", s.width, s.mlp)
    w.linear("Qformer.cls.predictions.transform.dense", s.width, s.width)
    w.norm("Qformer.cls.predictions.transform.LayerNorm", s.width)
    w.linear("Qformer.cls.predictions.decoder", s.rows, s.width)
    w.state["Qformer.cls.predictions.bias"] = w.state["Qformer.cls.predictions.decoder.bias"]
    w.linear("vision_proj", s.embed, s.width)
    w.linear("text_proj", s.embed, s.width)
    w.linear("itm_head", 2, s.width)
    return w.state


def blip2_state(s: Sizes) -> State:
    tower = {f"visual_encoder.{name}": tensor for name, tensor in tower_state(s).items()}
    return qformer_state(s) | tower


def blip_state(s: Sizes) -> State:
    w = _Weights(3)
    vision = eva_state(s)
    for n in range(s.vit_layers):
        del vision[f"blocks.{n}.attn.q_bias"], vision[f"blocks.{n}.attn.v_bias"]
        w.add(f"visual_encoder.blocks.{n}.attn.qkv.bias", 3 * s.vit, scale=0.3)
    w.norm("visual_encoder.norm", s.vit)
    _embeddings(w, "text_encoder.embeddings", s)
    for n in range(s.layers):
        layer = f"text_encoder.encoder.layer.{n}"
        _bert_attention(w, f"{layer}.attention", s.width, s.width)
        _bert_attention(w, f"{layer}.crossattention", s.width, s.vit)
        _feed_forward(w, layer, "", s.width, s.mlp)
    w.linear("vision_proj", s.embed, s.vit)
    w.linear("text_proj", s.embed, s.width)
    w.linear("itm_head", 2, s.width)
    w.state["temp"] = torch.tensor(0.0513)
    return {f"visual_encoder.{name}": tensor for name, tensor in vision.items()} | w.state


# --- the forward pass ----------------------------------------------------------------------------------------------


def linear(state: State, name: str, x: Tensor) -> Tensor:
    bias = state.get(f"{name}.bias")
    return x @ state[f"{name}.weight"].float().T + (0 if bias is None else bias.float())


def norm(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Compute attention head by head, with LAVIS's -10000 for masked keys."""
    width = q.shape[-1] // heads
    parts = []
    for h in range(heads):
        piece = slice(h * width, (h + 1) * width)
        scores = q[..., piece] @ k[..., piece].transpose(1, 2) / math.sqrt(width)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, :].float()) * -10000.0
        parts.append(scores.softmax(-1) @ v[..., piece])
    return torch.cat(parts, -1)


def act(name: str, x: Tensor) -> Tensor:
    if name == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def patches(weight: Tensor, pixels: Tensor) -> Tensor:
    return F.conv2d(pixels, weight.float(), stride=weight.shape[-1]).flatten(2).transpose(1, 2)


def eva_tower(state: State, pixels: Tensor, s: Sizes) -> Tensor:
    p = "visual_encoder."
    x = patches(state[p + "patch_embed.proj.weight"], pixels) + state[p + "patch_embed.proj.bias"].float()
    x = torch.cat([state[p + "cls_token"].expand(len(x), -1, -1), x], 1) + state[p + "pos_embed"]
    for n in range(s.vit_layers):
        b = f"{p}blocks.{n}"
        y = norm(state, f"{b}.norm1", x, 1e-6) @ state[f"{b}.attn.qkv.weight"].float().T
        if f"{b}.attn.q_bias" in state:
            q_bias = state[f"{b}.attn.q_bias"]
            v_bias = state[f"{b}.attn.v_bias"]
            y = y + torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
        else:
            y = y + state[f"{b}.attn.qkv.bias"]
        x = x + linear(state, f"{b}.attn.proj", attention(*y.chunk(3, -1), s.vit_heads))
        y = act("gelu", linear(state, f"{b}.mlp.fc1", norm(state, f"{b}.norm2", x, 1e-6)))
        x = x + linear(state, f"{b}.mlp.fc2", y)
    return x


def clip_tower(state: State, pixels: Tensor, s: Sizes) -> Tensor:
    p = "visual_encoder."
    x = patches(state[p + "conv1.weight"], pixels)
    x = torch.cat([state[p + "class_embedding"].expand(len(x), 1, -1), x], 1) + state[p + "positional_embedding"]
    x = norm(state, p + "ln_pre", x, 1e-5)
    for n in range(s.vit_layers):
        b = f"{p}transformer.resblocks.{n}"
        y = norm(state, f"{b}.ln_1", x, 1e-5) @ state[f"{b}.attn.in_proj_weight"].T + state[f"{b}.attn.in_proj_bias"]
        x = x + linear(state, f"{b}.attn.out_proj", attention(*y.chunk(3, -1), s.vit_heads))
        y = act("quick_gelu", linear(state, f"{b}.mlp.c_fc", norm(state, f"{b}.ln_2", x, 1e-5)))
        x = x + linear(state, f"{b}.mlp.c_proj", y)
    return x


def tower(state: State, pixels: Tensor, s: Sizes) -> Tensor:
    if s.tower == "eva_clip_g":
        return eva_tower(state, pixels, s)
    return clip_tower(state, pixels, s)


def bert_attention(state: State, name: str, x: Tensor, keys: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    q = linear(state, f"{name}.self.query", x)
    k = linear(state, f"{name}.self.key", keys)
    v = linear(state, f"{name}.self.value", keys)
    mixed = linear(state, f"{name}.output.dense", attention(q, k, v, heads, mask))
    return norm(state, f"{name}.output.LayerNorm", mixed + x, 1e-12)


def feed_forward(state: State, layer: str, suffix: str, x: Tensor) -> Tensor:
    inner = act("gelu", linear(state, f"{layer}.intermediate{suffix}.dense", x))
    y = linear(state, f"{layer}.output{suffix}.dense", inner)
    return norm(state, f"{layer}.output{suffix}.LayerNorm", y + x, 1e-12)


def qformer(
    state: State, x: Tensor, s: Sizes, mask: Tensor | None = None, images: Tensor | None = None, query_length: int = 0
) -> Tensor:
    """Compute LAVIS's Q-Former: positions before `query_length` attend to the image and have their own feed-forward."""
    x = norm(state, "Qformer.bert.embeddings.LayerNorm", x, 1e-12)
    for n in range(s.layers):
        layer = f"Qformer.bert.encoder.layer.{n}"
        x = bert_attention(state, f"{layer}.attention", x, x, s.heads, mask)
        first = x[:, :query_length]
        rest = x[:, query_length:]
        if query_length and n % s.freq == 0:
            first = bert_attention(state, f"{layer}.crossattention", first, images, s.heads, None)
        x = torch.cat([feed_forward(state, layer, "_query", first), feed_forward(state, layer, "", rest)], 1)
    return x


def words(state: State, ids: Tensor, name: str = "Qformer.bert.embeddings") -> Tensor:
    """Return word plus position embeddings; text positions start at 0, even after query tokens."""
    return state[f"{name}.word_embeddings.weight"][ids] + state[f"{name}.position_embeddings.weight"][: ids.shape[1]]


def vision(state: State, features: Tensor) -> Tensor:
    return norm(state, "ln_vision", features, 1e-5)


def blip2_candidates(state: State, features: Tensor, s: Sizes) -> Tensor:
    learned = state["query_tokens"].expand(len(features), -1, -1)
    hidden = qformer(state, learned, s, None, vision(state, features), s.tokens)
    return F.normalize(linear(state, "vision_proj", hidden), dim=-1)


def with_tokens(mask: Tensor, s: Sizes) -> Tensor:
    """Return the text's mask with ones for the query tokens in front."""
    return torch.cat([torch.ones(len(mask), s.tokens, dtype=mask.dtype), mask], 1)


def blip2_fused(state: State, features: Tensor, ids: Tensor, mask: Tensor, s: Sizes) -> Tensor:
    x = torch.cat([state["query_tokens"].expand(len(features), -1, -1), words(state, ids)], 1)
    return qformer(state, x, s, with_tokens(mask, s), vision(state, features), s.tokens)


def blip2_queries(state: State, features: Tensor, ids: Tensor, mask: Tensor, s: Sizes) -> Tensor:
    hidden = blip2_fused(state, features, ids, mask, s)[:, : s.tokens]
    return F.normalize(linear(state, "text_proj", hidden).mean(1), dim=-1)


def sprc_queries(state: State, features: Tensor, ids: Tensor, mask: Tensor, s: Sizes) -> Tensor:
    """Compute SPRC's queries: fuse image and text, then read the text after the fused tokens, without an image."""
    fused = blip2_fused(state, features, ids, mask, s)[:, : s.tokens]
    whole = with_tokens(mask, s)
    hidden = qformer(state, torch.cat([fused, words(state, ids)], 1), s, whole)
    return F.normalize(linear(state, "text_proj", hidden[:, s.tokens]), dim=-1)


def blip2_texts(state: State, ids: Tensor, mask: Tensor, s: Sizes) -> Tensor:
    return F.normalize(linear(state, "text_proj", qformer(state, words(state, ids), s, mask)[:, 0]), dim=-1)


def blip_text_hidden(state: State, ids: Tensor, mask: Tensor, s: Sizes, images: Tensor | None) -> Tensor:
    name = "text_encoder.embeddings"
    x = norm(state, f"{name}.LayerNorm", words(state, ids, name=name), 1e-12)
    for n in range(s.layers):
        layer = f"text_encoder.encoder.layer.{n}"
        x = bert_attention(state, f"{layer}.attention", x, x, s.heads, mask)
        if images is not None:
            x = bert_attention(state, f"{layer}.crossattention", x, images, s.heads, None)
        x = feed_forward(state, layer, "", x)
    return x


def blip_features(state: State, pixels: Tensor, s: Sizes) -> Tensor:
    return norm(state, "visual_encoder.norm", eva_tower(state, pixels, s), 1e-6)


def blip_queries(state: State, features: Tensor, ids: Tensor, mask: Tensor, s: Sizes) -> Tensor:
    ids = ids.clone()
    ids[:, 0] = s.rows - 1  # [ENC]
    return F.normalize(linear(state, "text_proj", blip_text_hidden(state, ids, mask, s, features)[:, 0]), dim=-1)


# --- fixtures ------------------------------------------------------------------------------------------------------


class World:
    """A small model with its state dict, inputs and outputs."""

    def __init__(self, lavis: Any, sizes: Sizes, state: State, model: Any) -> None:
        self.lavis = lavis
        self.sizes = sizes
        self.state = state
        self.model = model
        self.pixels = lavis.pixels(sizes)
        self.tokens = model.tokenize(CAPTIONS)
        self.ids = self.tokens["input_ids"]
        self.mask = self.tokens["attention_mask"]
        with torch.no_grad():
            self.features = model.image_features(self.pixels)
            self.queries = model.queries(self.features, CAPTIONS)
            self.candidates = model.candidates(self.features)


class Lavis:
    """The functions of this file as attributes, and methods that save checkpoints."""

    captions = CAPTIONS
    vocabulary = VOCABULARY

    def __getattr__(self, name: str) -> Any:
        return globals()[name]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")

    def save(self, state: object, name: str = "model.pth") -> Path:
        path = self.folder / name
        torch.save(state, path)
        return path

    @staticmethod
    def hub(name: str, folder: Path, vision: Mapping[str, Any] = {}, text: Mapping[str, Any] = {}) -> Any:
        """Save a small BLIP or BLIP-2 of transformers with large random weights in the published format."""
        import transformers as hf

        if name == "blip":
            ends = {"bos_token_id": None, "eos_token_id": None, "sep_token_id": None}
            text = {**HUB_TEXT, **ends, "vocab_size": len(VOCABULARY) + 2, "encoder_hidden_size": 24, **text}
            vision = {**HUB_VISION, "image_size": 32, "patch_size": 16, **vision}
            config = hf.BlipConfig(vision_config=vision, text_config=text, image_text_hidden_size=12)
            kind = hf.BlipForImageTextRetrieval
        else:
            vision = {**HUB_VISION, "image_size": 28, **vision}
            text = {**HUB_TEXT, "vocab_size": len(VOCABULARY) + 1, "use_qformer_text_input": True, **text}
            language = {"model_type": "opt", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
            language |= {"vocab_size": 8, "word_embed_proj_dim": 8, "ffn_dim": 8}
            parts = {"vision_config": vision, "qformer_config": text, "text_config": language}
            config = hf.Blip2Config(**parts, num_query_tokens=5, image_text_hidden_size=12)
            kind = hf.Blip2ForImageTextRetrieval
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = kind(config).eval()
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
        return model

    @staticmethod
    def config(s: Sizes, side: str = "qformer") -> dict[str, int]:
        """Return the configuration of BLIP-2, or of BLIP, whose other side is `text`."""
        return {"vit_heads": s.vit_heads, f"{side}_heads": s.heads, "max_txt_len": LENGTH}

    @staticmethod
    def pixels(s: Sizes, count: int = len(CAPTIONS), seed: int = 5) -> Tensor:
        return torch.randn(count, 3, s.pixels, s.pixels, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def lavis(tmp_path: Path) -> Lavis:
    return Lavis(tmp_path)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, str]:
    """Go offline with an empty hub cache, and register a toy CLIP with either activation; return the two names."""
    import open_clip
    from huggingface_hub import constants

    from negbench.backbones import _open_clip

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    plain, quick = "ViT-Toy", "ViT-Toy-quickgelu"
    for name in (plain, quick):
        config = {**copy.deepcopy(_open_clip.TOY), "quick_gelu": name == quick}
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, config)
    return plain, quick
