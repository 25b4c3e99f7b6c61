"""Checkpoints in LAVIS's format: reading, sizes from tensors, the key mapping, strict loading.

The names on the one side are those of LAVIS's `Blip2Qformer` family (Li et al., ICML 2023), as QuRe and SPRC publish
their models; on the other side those of `blip2.Blip2` and `blip.Blip`, which follow transformers. Authors load their
files with `strict=False`, and so a wrong visual tower passes unnoticed; here every key has to be accounted for.
"""

import dataclasses
import math
import pickle
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from negbench.backbones._checkpoint import Fit, fit, without_inner_wrappers
from negbench.backbones._weights import check_fit, refuse
from negbench.errors import OptionError, UnknownNameError, WeightsError
from negbench.machine.file_kinds import file_kind
from negbench.machine.received import check_safetensors, load_checkpoint

Tower = Literal["eva_clip_g", "clip_vit_L"]
State = dict[str, Tensor]

# Parts of a whole tower that LAVIS does not use: BLIP-2 reads the last but one block, before any final norm.
_UNUSED_OF_TOWER = {"eva_clip_g": re.compile(r"(norm|fc_norm|head)\..*"), "clip_vit_L": re.compile(r"ln_post\..*|proj")}
_BLOCKS = {"eva_clip_g": re.compile(r"blocks\.(\d+)\."), "clip_vit_L": re.compile(r"transformer\.resblocks\.(\d+)\.")}
_DEEPEST = 4  # levels of a checkpoint below which no state dict is looked for
_PUBLISHED_DEPTH = {("eva_clip_g", 1408): 39, ("clip_vit_L", 1024): 23}


# --- names -------------------------------------------------------------------------------------------------------

READS = ("_lavis.toml",)
_TABLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
_EVA_RULES = tuple(_TABLES["eva"].items())
_CLIP_RULES = tuple(_TABLES["clip"].items())
_QFORMER_RULES = tuple(_TABLES["qformer"].items())
_BLIP_RULES = (*_EVA_RULES, (r"vision_model\.post_layernorm\.", "visual_encoder.norm."))


@dataclass(frozen=True)
class Layout:
    """Translation of one family's parameter names.

    Args:
        rules: (pattern of our name, replacement), the first that matches the name's beginning is applied; a name that
            none matches is the same on both sides.
        qkv: how the tower stores query, key and value: "split-bias" (EVA: one weight, no bias for the keys),
            "packed" (CLIP: one weight and one bias for three layers of ours) or "same".
        droppable: keys that a file may have but the model does not use.
    """

    rules: tuple[tuple[str, str], ...]
    qkv: Literal["split-bias", "packed", "same"]
    droppable: re.Pattern[str]

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the LAVIS keys of one of our tensors."""
        for pattern, replacement in self.rules:
            renamed = re.sub(rf"\A{pattern}", replacement, name)
            if renamed != name:
                name = renamed
                break
        if self.qkv == "split-bias" and name.endswith(".attn.qkv.bias"):
            stem = name.removesuffix("qkv.bias")
            return stem + "q_bias", stem + "v_bias"
        return (name,)

    def join(self, name: str, tensors: Sequence[Tensor]) -> Tensor:
        """Build our tensor from the tensors of its LAVIS keys."""
        if len(tensors) == 2:
            query, value = tensors
            return torch.cat([query, torch.zeros_like(query), value])
        tensor = tensors[0]
        layer = re.search(r"self_attn\.([qkv])_proj\.", name)
        if self.qkv == "packed" and layer is not None:
            query, key, value = tensor.chunk(3)
            return {"q": query, "k": key, "v": value}[layer[1]]
        return tensor


_QFORMER_DROPPABLE = re.compile(
    r"Qformer\.bert\.embeddings\.position_ids"  # a constant buffer
    r"|Qformer\.cls\.predictions\..*|itm_head\.(weight|bias)"  # heads that no retrieval score uses
    r"|prompt_tokens"  # SPRC: of its training loss only
)
# of training only, in BLIP's own checkpoints: momentum copies, queues and, after pretraining, the decoder
BLIP_TRAINING = re.compile(
    r"(visual_encoder|text_encoder|vision_proj|text_proj)_m\..*|\w+_queue|queue_ptr|text_decoder\..*"
)
# no score of a dual encoder reads these; position ids are constants
NAMED_IF_DROPPED = re.compile(
    rf"Qformer\.cls\.predictions\..*|itm_head\.(weight|bias)|prompt_tokens|{BLIP_TRAINING.pattern}"
)
_BLIP_DROPPABLE = re.compile(rf"text_encoder\.embeddings\.position_ids|itm_head\.(weight|bias)|{BLIP_TRAINING.pattern}")

LAYOUTS: dict[str, Layout] = {
    "eva_clip_g": Layout((*_EVA_RULES, *_QFORMER_RULES), "split-bias", _QFORMER_DROPPABLE),
    "clip_vit_L": Layout((*_CLIP_RULES, *_QFORMER_RULES), "packed", _QFORMER_DROPPABLE),
    "blip": Layout(_BLIP_RULES, "same", _BLIP_DROPPABLE),
}


# --- reading -----------------------------------------------------------------------------------------------------

# tensors that every model of the kind has, whatever its size
_BLIP_ANCHORS = {"text_encoder.embeddings.word_embeddings.weight", "vision_proj.weight", "text_proj.weight"}
_BLIP2_ANCHORS = {"query_tokens", "vision_proj.weight", "text_proj.weight"}
_TOWER_ANCHORS = {"cls_token", "class_embedding"}


def read_checkpoint(path: Path, key: str = "") -> State:
    """Read a .pth (tensors only, never executed) or .safetensors file as a state dict on the CPU, dtypes as stored.

    Wrappers are removed: {"model": ...} of LAVIS, {"epoch": ..., "ClassName": ...} of SPRC, and what they put inside
    names; what stands before all names is left to `fit`.

    Args:
        path: the file.
        key: which state dict of a file that holds several.

    Raises:
        WeightsError: an unreadable file, one with objects that `weights_only` refuses, or several state dicts.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            check_safetensors(path)
            return without_inner_wrappers(load_file(path))
        loaded = load_checkpoint(path)
    except pickle.UnpicklingError as error:
        _refuse_other_kind(path, error)
        match = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it holds a pickled object, {match[1]}" if match else "it is not a plain file of tensors"
        raise WeightsError(
            f"{path} is refused: {what} (torch.load with weights_only=True); save its state_dict() alone"
        ) from error
    except Exception as error:  # torch, zipfile and safetensors each have their own
        _refuse_other_kind(path, error)
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{path} cannot be read as a checkpoint: {why}") from error
    return without_inner_wrappers(_state_dict(loaded, path, key))


def _refuse_other_kind(path: Path, error: Exception) -> None:
    """Raise WeightsError if a file that cannot be read is one of another kind."""
    kind = file_kind(path)
    if kind is not None:
        raise WeightsError(f"{path} is no checkpoint but {kind}") from error


def _state_dict(loaded: object, path: Path, key: str) -> State:
    if _is_state(loaded) and not key:
        return dict(loaded)  # type: ignore[call-overload]
    inner = _states_of(loaded)
    if key in inner or (len(inner) == 1 and not key):
        name = key or next(iter(inner))
        for key_path, count in _unnamed_lists(loaded, "", 0):
            if not key and 2 * count >= len(inner[name]):  # as many as a model has
                raise WeightsError(
                    f"{path} holds the state dict {name}, and as {key_path} {count} tensors without names, an average "
                    f"it seems, which cannot be read: to load the first, give {path},key={name}"
                )
        return dict(inner[name])
    if inner:
        first = next(iter(inner))
        contents = f"{path} holds the state dicts {', '.join(inner)}"
        if key:
            contents += f", not {key}"
        raise WeightsError(f"{contents}: name the one to load, as {path},key={first}")
    kind = type(loaded).__name__
    if isinstance(loaded, Mapping):
        kind += f" with keys {', '.join(str(name) for name in list(loaded)[:5])}"
    raise WeightsError(f"{path} holds no state dict: expected named tensors, at the top or under 'model', got {kind}")


def _states_of(loaded: object) -> dict[str, Mapping[str, Tensor]]:
    """Return the state dicts of a checkpoint by the keys that lead to them: `state_dict`, `ema.module`.

    Those within other parts count if they hold the same model as a state dict at the top: half of their tensors are
    called as some of its are. An average of the weights is kept so; an optimiser's state is none.
    """
    if not isinstance(loaded, Mapping):
        return {}
    states = {str(key): value for key, value in loaded.items() if _is_state(value)}
    ends: set[str] = set()
    for state in states.values():
        ends.update(_end(name) for name in state)
    for key_path, state in _deeper_states(loaded, "", 0):
        alike = [name for name in state if "." in name and (not states or _end(name) in ends)]
        if 2 * len(alike) >= len(state):
            states[key_path] = state
    return states


def _deeper_states(parts: Mapping[Any, Any], key_path: str, depth: int) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield the state dicts below the first level of a checkpoint, and the keys that lead to each."""
    for key, value in parts.items():
        if not isinstance(key, str) or not isinstance(value, Mapping):
            continue
        if not _is_state(value):
            if depth < _DEEPEST:
                yield from _deeper_states(value, f"{key_path}{key}.", depth + 1)
        elif depth:
            yield key_path + key, value


def _unnamed_lists(parts: object, key_path: str, depth: int) -> Iterator[tuple[str, int]]:
    """Yield the lists of tensors in a checkpoint by the keys that lead to them, such as `ema.shadow_params`."""
    if not isinstance(parts, Mapping) or depth > _DEEPEST:
        return
    for key, value in parts.items():
        if isinstance(value, list | tuple) and value and all(isinstance(part, Tensor) for part in value):
            yield f"{key_path}{key}", len(value)
        yield from _unnamed_lists(value, f"{key_path}{key}.", depth + 1)


def _end(name: str) -> str:
    """Return the last two parts of a tensor's name, which no wrapper changes."""
    return ".".join(name.split(".")[-2:])


def _is_state(value: object) -> bool:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return bool(pairs) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in pairs)


def tower_of(names: Iterable[str]) -> Tower | None:
    """Return which visual tower these names, without prefix, belong to."""
    for name in names:
        if name == "cls_token" or name.startswith("blocks."):
            return "eva_clip_g"
        if name == "class_embedding" or name.startswith("transformer.resblocks."):
            return "clip_vit_L"
    return None


def read_tower(path: Path, depth: int | None) -> State:
    """Read a tower's own file (eva_vit_g.pth, clip_vit_L.pth) with the model's keys, cut to the blocks in use.

    BLIP-2 reads the features of the last but one block. So of a file with the whole tower (more blocks than the 39 of
    EVA ViT-g or the 23 of CLIP ViT-L; at other widths: one with the final norm or head) the last block, norm and head
    are left out, and nothing else.

    Args:
        path: the file.
        depth: number of blocks to use, if the configuration gives it.

    Raises:
        WeightsError: not a tower, or fewer blocks than `depth`.
    """
    state = read_checkpoint(path)
    state = fit(state, _TOWER_ANCHORS & {name.rpartition(".")[2] for name in state}, str(path)).state
    tower = tower_of(state)
    if tower is None:
        raise WeightsError(
            f"{path} is not a visual tower: it has neither blocks. (EVA) nor transformer.resblocks. (CLIP)"
        )
    pattern = _BLOCKS[tower]
    unused = _UNUSED_OF_TOWER[tower]
    blocks = _count(state, pattern.pattern)
    if depth is None:
        cls = state.get(LAYOUTS[tower].keys(_CLS)[0].removeprefix("visual_encoder."))
        published = None if cls is None else _PUBLISHED_DEPTH.get((tower, cls.shape[-1]))
        whole = any(unused.fullmatch(key) for key in state)
        if published:
            depth = min(blocks, published)
        elif whole:
            depth = blocks - 1
        else:
            depth = blocks
    if not 0 < depth <= blocks:
        raise WeightsError(f"{path} has {blocks} blocks, config asks for vit_layers {depth}")
    used = {}
    for key, tensor in state.items():
        block = pattern.match(key)
        is_cut = block is not None and int(block[1]) >= depth
        if not is_cut and not unused.fullmatch(key):
            used[f"visual_encoder.{key}"] = tensor
    return used


def read_blip2(path: Path, tower: Path | None, depth: int | None, key: str = "", prefix: str | None = None) -> Fit:
    """Read the state dict `key` of a BLIP-2 model, with its visual tower from `tower` if that is a separate file.

    `prefix` is that of the names, as in `fit`.

    Raises:
        WeightsError: no tower, or two of them; or no Q-Former.
    """
    model = fit(read_checkpoint(path, key), _BLIP2_ANCHORS, str(path), prefix)
    state = model.state
    if not any(name.startswith("Qformer.") for name in state):
        raise WeightsError(
            f"{path} is not a LAVIS BLIP-2 checkpoint: no key starts with 'Qformer.'; "
            f"it has {_list_keys(list(state)[:5])}"
        )
    has_tower = any(name.startswith("visual_encoder.") for name in state)
    if has_tower and tower is not None:
        raise WeightsError(f"{path} has its own visual_encoder: leave out tower={tower}")
    if not has_tower and tower is None:
        raise WeightsError(
            f"{path} has no visual_encoder: give the tower's file too, lavis:{path},tower=FILE (eva_vit_g.pth or "
            "clip_vit_L.pth)"
        )
    return model if tower is None else replace(model, state={**state, **read_tower(tower, depth)})


def read_blip(path: Path, key: str = "", prefix: str | None = None) -> Fit:
    """Read the state dict `key` of a BLIP model; `prefix` is that of the names, as in `fit`."""
    return fit(read_checkpoint(path, key), _BLIP_ANCHORS, str(path), prefix)


# --- sizes -------------------------------------------------------------------------------------------------------


_TOWER_BLOCK = r"(?:visual_encoder\.(?:blocks|transformer\.resblocks)|vision_model\.encoder\.layers)\.(\d+)\."
_TEXT_LAYER = r"(?:Qformer\.bert|qformer|text_encoder)\.encoder\.layer\.(\d+)\."
_CLS = "vision_model.embeddings.class_embedding"
_POSITIONS = "vision_model.embeddings.position_embedding"


def _from_tensor(default: int, tensor: str = "", dim: int = 0, *, count: str = "") -> Any:
    """Declare a size: its published value, and the tensor dimension (in our names) or numbering that gives it."""
    return dataclasses.field(default=default, metadata={"tensor": tensor, "dim": dim, "count": count})


@dataclass(frozen=True)
class Sizes:
    """Sizes of both families; `text` is the name prefix of the text side's sizes."""

    text: ClassVar[str]
    image_size: int = 224
    patch_size: int = _from_tensor(16, "vision_model.embeddings.patch_embedding.weight", 2)
    vit_hidden_size: int = _from_tensor(768, _CLS, -1)
    vit_layers: int = _from_tensor(12, count=_TOWER_BLOCK)
    vit_heads: int = 12
    vit_intermediate_size: int = _from_tensor(3072, "vision_model.encoder.layers.0.mlp.fc1.weight")
    max_positions: int = 512
    max_txt_len: int = 32

    def side(self, part: str) -> dict[str, Any]:
        """Return the sizes of one side, "vit" or `text`, by transformers' names."""
        names = {name: f"{part}_{name}" for name in ("hidden_size", "intermediate_size")}
        names |= {"num_hidden_layers": f"{part}_layers", "num_attention_heads": f"{part}_heads"}
        if part == "vit":
            names |= {name: name for name in ("image_size", "patch_size")}
        else:
            names |= {"max_position_embeddings": "max_positions", "encoder_hidden_size": "vit_hidden_size"}
            names |= {"vocab_size": "vocab_size"}
        return {theirs: getattr(self, ours) for theirs, ours in names.items()}

    @property
    def layout(self) -> Layout:
        """Translation of the model's parameter names into LAVIS's."""
        return LAYOUTS[getattr(self, "tower", "blip")]

    def skeleton(self) -> Self:
        """Return default sizes for a model with the same tensor names, whatever its other sizes are."""
        naming = ("tower", "vit_layers", f"{self.text}_layers", "cross_attention_freq")
        return type(self)(**{name: getattr(self, name) for name in naming if hasattr(self, name)})

    def check(self, where: str) -> None:
        """Raise WeightsError unless heads divide widths, patches the image, and texts fit the positions."""
        for part in ("vit", self.text):
            heads = getattr(self, f"{part}_heads")
            width = getattr(self, f"{part}_hidden_size")
            if heads < 1 or width % heads:
                raise WeightsError(
                    f"{where}: {part}_heads {heads} does not divide {part}_hidden_size {width}; the tensors do not "
                    f'show the number of heads: give backbone.config={{"{part}_heads": ...}}'
                )
        if self.patch_size < 1 or self.image_size < 1 or self.image_size % self.patch_size:
            raise WeightsError(f"{where}: patch_size {self.patch_size} does not divide image_size {self.image_size}")
        if not 2 <= self.max_txt_len <= self.max_positions:
            raise WeightsError(f"{where}: max_txt_len must be 2..{self.max_positions}, got {self.max_txt_len}")


@dataclass(frozen=True)
class Blip2Sizes(Sizes):
    """Sizes of a BLIP-2 model; the defaults are the published ones (EVA ViT-g, Q-Former on BERT base)."""

    text = "qformer"
    tower: Tower = "eva_clip_g"
    patch_size: int = _from_tensor(14, "vision_model.embeddings.patch_embedding.weight", 2)
    vit_hidden_size: int = _from_tensor(1408, _CLS, -1)
    vit_layers: int = _from_tensor(39, count=_TOWER_BLOCK)
    vit_heads: int = 16
    vit_intermediate_size: int = _from_tensor(6144, "vision_model.encoder.layers.0.mlp.fc1.weight")
    num_query_tokens: int = _from_tensor(32, "query_tokens", 1)
    qformer_hidden_size: int = _from_tensor(768, "query_tokens", 2)
    qformer_layers: int = _from_tensor(12, count=_TEXT_LAYER)
    qformer_heads: int = 12
    qformer_intermediate_size: int = _from_tensor(3072, "qformer.encoder.layer.0.intermediate_query.dense.weight")
    cross_attention_freq: int = 2
    vocab_size: int = _from_tensor(30523, "word_embeddings.weight")
    max_positions: int = _from_tensor(512, "position_embeddings.weight")
    embed_dim: int = _from_tensor(256, "vision_projection.weight")


@dataclass(frozen=True)
class BlipSizes(Sizes):
    """Sizes of a BLIP image-text model; the defaults are those of "base" (ViT-B/16 at 384 pixels, BERT base)."""

    text = "text"
    image_size: int = 384
    text_hidden_size: int = _from_tensor(768, "text_encoder.embeddings.word_embeddings.weight", 1)
    text_layers: int = _from_tensor(12, count=_TEXT_LAYER)
    text_heads: int = 12
    text_intermediate_size: int = _from_tensor(3072, "text_encoder.encoder.layer.0.intermediate.dense.weight")
    vocab_size: int = _from_tensor(30524, "text_encoder.embeddings.word_embeddings.weight")
    max_positions: int = _from_tensor(512, "text_encoder.embeddings.position_embeddings.weight")
    embed_dim: int = _from_tensor(256, "vision_proj.weight")
    max_txt_len: int = 35


def toy_sides(*parts: str) -> dict[str, Any]:
    """Return small sizes of these sides, and of the embeddings, as fields of `Sizes`."""
    sizes = {"embed_dim": 32}
    for part in parts:
        sizes |= {f"{part}_hidden_size": 32, f"{part}_layers": 2, f"{part}_heads": 2, f"{part}_intermediate_size": 64}
    return sizes


AnySizes = TypeVar("AnySizes", bound=Sizes)


def _sizes_of(base: AnySizes, state: State, layout: Layout, where: Path | str) -> AnySizes:
    """Return `base` with the sizes that a state dict's tensors give.

    A size whose tensor is missing stays unchanged: `check_names` reports the key.
    """
    by_field: dict[str, int] = {}
    for field in dataclasses.fields(base):
        tensor = state.get(layout.keys(field.metadata.get("tensor", ""))[0])
        if tensor is not None and -tensor.ndim <= field.metadata["dim"] < tensor.ndim:
            by_field[field.name] = tensor.shape[field.metadata["dim"]]
        elif field.metadata.get("count"):
            by_field[field.name] = _count(state, field.metadata["count"])
    for name in (_POSITIONS, f"{_POSITIONS}.weight"):
        positions = state.get(layout.keys(name)[0])
        if positions is not None and positions.ndim > 1:
            side = math.isqrt(positions.shape[-2] - 1)
            if side * side != positions.shape[-2] - 1:
                raise WeightsError(
                    f"{where}: {layout.keys(name)[0]} has {positions.shape[-2]} positions, which is not a square of "
                    "patches plus one"
                )
            by_field["image_size"] = side * by_field.get("patch_size", base.patch_size)
    sizes = dataclasses.replace(base, **by_field)
    if isinstance(sizes, Blip2Sizes):
        crossing = sorted(_numbers(state, rf"{_TEXT_LAYER}crossattention\."))  # layers, the first of which is 0
        freq = crossing[1] if len(crossing) > 1 else max(sizes.qformer_layers, 1)
        sizes = dataclasses.replace(sizes, cross_attention_freq=freq)
    return sizes


def blip2_sizes(state: State, path: Path) -> Blip2Sizes:
    """Read the sizes from the tensors of LAVIS's BLIP-2; heads and max_txt_len as published."""
    tower_keys = [key.removeprefix("visual_encoder.") for key in state if key.startswith("visual_encoder.")]
    tower = tower_of(tower_keys)
    if tower is None:
        raise WeightsError(
            f"{path}: its visual_encoder is neither EVA (blocks.) nor CLIP (transformer.resblocks.): "
            f"{_list_keys(sorted(tower_keys)[:5])}"
        )
    return _sizes_of(Blip2Sizes(tower=tower), state, LAYOUTS[tower], path)


def blip_sizes(state: State, path: Path) -> BlipSizes:
    """Read the sizes from the tensors of LAVIS's BLIP; heads (the ViT's: width / 64) and max_txt_len as published."""
    if not any(key.startswith("text_encoder.") for key in state):
        raise WeightsError(
            f"{path} is not a LAVIS BLIP checkpoint: no key starts with 'text_encoder.'; "
            f"it has {_list_keys(list(state)[:5])}"
        )
    sizes = _sizes_of(BlipSizes(), state, LAYOUTS["blip"], path)
    return dataclasses.replace(sizes, vit_heads=sizes.vit_hidden_size // 64)


def sizes_of_pretrained(base: AnySizes, config: Any, tensors: State, where: str) -> AnySizes:
    """Return the sizes of a model that transformers saved.

    Args:
        base: of the family, as published.
        config: of transformers; only it knows the numbers of heads.
        tensors: in our names.
        where: for error lines.

    Raises:
        WeightsError: impossible sizes.
    """
    sizes = _sizes_of(base, tensors, Layout((), "same", re.compile("")), where)
    text = config.qformer_config if base.text == "qformer" else config.text_config
    heads = {"vit_heads": config.vision_config.num_attention_heads, f"{base.text}_heads": text.num_attention_heads}
    sizes = dataclasses.replace(sizes, max_txt_len=min(base.max_txt_len, sizes.max_positions), **heads)
    sizes.check(where)
    return sizes


def _numbers(state: State, pattern: str) -> set[int]:
    """Return the numbers that the pattern's group has in tensors' names."""
    matches = [re.match(pattern, key) for key in state]
    return {int(match[1]) for match in matches if match is not None}


def _count(state: State, pattern: str) -> int:
    """Return how many layers a state dict has, by the numbers in tensors' names."""
    return max(_numbers(state, pattern), default=-1) + 1


# keys of config= that tensors do not determine
_NOT_IN_TENSORS = frozenset({"vit_heads", "qformer_heads", "text_heads", "max_txt_len"})


def apply_config(sizes: AnySizes, config: Mapping[str, Any], *, source: str) -> AnySizes:
    """Return `sizes` with the values of `config=`.

    Args:
        sizes: as read from tensors, or as built in.
        config: keys are the sizes' names.
        source: name of the file whose tensors gave `sizes`: then a key may only repeat their values, except for heads
            and max_txt_len. Empty if nothing fixes them.

    Raises:
        UnknownNameError: a key that is no size.
        OptionError: a value of the wrong type.
        WeightsError: a value that the tensors contradict, or an impossible one.
    """
    current = {field.name: getattr(sizes, field.name) for field in dataclasses.fields(sizes)}
    for key, value in config.items():
        if key not in current:
            raise UnknownNameError("key", key, current, where="backbone.config")
        if key == "tower":
            if value not in get_args(Tower):
                raise OptionError(f"backbone.config tower must be {' or '.join(get_args(Tower))}, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"backbone.config {key} must be a whole number >= 1, got {value!r}")
        if source and key not in _NOT_IN_TENSORS and value != current[key]:
            raise WeightsError(f"backbone.config says {key} {value}, but the tensors of {source} say {current[key]}")
    result = dataclasses.replace(sizes, **config)
    result.check(source or "backbone.config")
    return result


# --- loading ------------------------------------------------------------------------------------------


def check_names(module: nn.Module, state: State, layout: Layout, path: Path) -> list[str]:
    """Check that a LAVIS state dict has a module's tensors by name, before sizes, which missing tensors leave open.

    Args:
        module: its parameters are exactly what the file has to hold; their shapes do not matter.
        state: from `read_blip2` or `read_checkpoint`.
        layout: the names.
        path: for the error line.

    Returns:
        Keys of the file that are left out, all of them among `layout.droppable`.

    Raises:
        WeightsError: naming every missing and every unexpected key.
    """
    expected: set[str] = set()
    for name, _ in module.named_parameters():
        expected.update(layout.keys(name))
    surplus = sorted(set(state) - expected)
    unexpected = [key for key in surplus if not layout.droppable.fullmatch(key)]
    refuse(f"{path} does not fit the model", missing=expected - set(state), unexpected=unexpected)
    return surplus


def load_state(module: nn.Module, state: State, layout: Layout, path: Path) -> None:
    """Fill a module on the meta device with a LAVIS state dict that passed `check_names`, upcast to float32.

    Raises:
        WeightsError: naming every tensor of the wrong shape.
    """
    tensors = {}
    for name, _ in module.named_parameters():
        parts = [state[key] for key in layout.keys(name)]
        tensors[name] = layout.join(name, parts)
    assign(module, tensors, path)


def assign(module: nn.Module, tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Give a module on the meta device its parameters, as float32; names must match, shapes are checked.

    Raises:
        WeightsError: naming every tensor of the wrong shape.
    """
    check_fit(f"{path} does not fit the model", tensors, dict(module.named_parameters()))
    # clone: a chunk of a packed tensor would keep all of it, and two parameters must not share memory
    fresh = {name: tensor.detach().to(torch.float32, copy=True).contiguous() for name, tensor in tensors.items()}
    module.load_state_dict(fresh, strict=False, assign=True)
    restore_positions(module)


def restore_positions(module: nn.Module) -> None:
    """Fill transformers' constant position_ids buffers, which the meta device left empty and no checkpoint holds."""
    for part in module.modules():
        ids = part._buffers.get("position_ids")
        if ids is not None:
            part.register_buffer("position_ids", torch.arange(ids.shape[-1]).expand((1, -1)), persistent=False)


def _list_keys(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "no key"
