"""open_clip's models: which architecture, weights, activation and preprocessing a `clip` backbone really has.

Weights trained with QuickGELU silently give other embeddings under GELU, and a state dict does not say which it needs.
So the source of the weights determines the activation; if it does not, the user has to give it.
"""

import copy
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from negbench.backbones._checkpoint import (
    SUFFIXES,
    Fit,
    check_adapter,
    check_trainers_folder,
    fit,
    one_checkpoint,
    options_of,
    prefixes_of,
    shards_of,
)
from negbench.backbones._lavis import read_checkpoint
from negbench.backbones._weights import WITHOUT_WEIGHTS, check_fit, fetch
from negbench.contracts import RowDropout, TextsSeen
from negbench.errors import OptionError, UnknownNameError, WeightsError
from negbench.machine.received import check_safetensors, is_torchscript, read_json_text

Activation = Literal["auto", "quick_gelu", "gelu"]

TOY: dict[str, Any] = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
DEFAULT_MODEL = "ViT-B-32"

_SUFFIX = "-quickgelu"
_HUB = "hf-hub:"
# of CLIP4Cir (github.com/ABaldrati/CLIP4Cir, src/combiner.py)
_COMBINER_KEYS = {"combiner_layer.weight", "text_projection_layer.weight", "image_projection_layer.weight"}
_CONFIG_FILE = "open_clip_config.json"
_WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
_THEIRS = ("model.safetensors", "pytorch_model.bin")  # the same weights in the format of transformers
_OPENAI_KEYS = {"input_resolution", "context_length", "vocab_size"}  # numbers that only OpenAI's own files hold


@dataclass(frozen=True)
class Blueprint:
    """Everything that a `clip` backbone is built from.

    Args:
        name: name of the architecture.
        config: of open_clip's model, `quick_gelu` resolved.
        label: hub id, file name or "random:SEED".
        revision: of the hub, "local" or "".
        files: of the weights, which `read_weights` reads; several are shards; none for random weights.
        key: the state dict of a file that holds several.
        prefix: of the tensors' names, as in `fit`.
        pixels: `mean`, `std` and `interpolation` of the preprocessing, where they are not CLIP's.
        details: for the identity.
        resize: of open_clip's own preprocessing: "shortest", "squash" or "longest".
    """

    name: str
    config: dict[str, Any]
    label: str
    revision: str
    files: tuple[Path, ...] = ()
    key: str = field(default="", kw_only=True)
    prefix: str | None = field(default=None, kw_only=True)
    pixels: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    resize: str = "shortest"


# --- finding -----------------------------------------------------------------------------------------------------


def random_blueprint(model: str | None, toy: bool, activation: Activation, seed: int) -> Blueprint:
    """Make a blueprint without weights: the toy size, or an architecture by name."""
    if toy and model is not None:
        raise OptionError(f"backbone.model {model!r}: leave it out with --set backbone.size=toy")
    name, config = ("toy", copy.deepcopy(TOY)) if toy else architecture(model or DEFAULT_MODEL)
    if activation != "auto":
        config["quick_gelu"] = activation == "quick_gelu"
    return Blueprint(name, config, f"random:{seed}", "")


def find(model: str | None, weights: str, activation: Activation) -> Blueprint:
    """Find the blueprint of `weights=`: "hf-hub:ORG/NAME[@REVISION]", a folder, a file, or open_clip's tag.

    After a folder or file may stand ",key=NAME", the state dict of a file that holds several, and ",prefix=NAME", what
    stands before its tensors' names.

    Raises:
        WeightsError: missing or unreadable weights.
        OptionError: an activation that neither weights nor option determine, or that contradicts the weights.
        UnknownNameError: an architecture or tag that open_clip does not know.
    """
    if weights.startswith(_HUB):
        return _of_hub(model, weights.removeprefix(_HUB), activation)
    source, options = options_of(weights)
    path = Path(source).expanduser()
    key = options.get("key", "")
    if path.is_dir():
        return replace(_of_folder(model, path, activation), key=key, prefix=options.get("prefix"))
    if path.suffix in SUFFIXES or path.is_file():
        return replace(_of_file(model, path, activation, key), key=key, prefix=options.get("prefix"))
    return _of_tag(model or DEFAULT_MODEL, weights, activation)


def architecture(model: str) -> tuple[str, dict[str, Any]]:
    """open_clip's name and configuration of a model; OpenAI's spelling ("ViT-B/32", "ViT-L/14@336px") is read too."""
    from open_clip import list_models
    from open_clip.factory import get_model_config

    name = model.replace("/", "-").replace("@336px", "-336")
    if name not in list_models():
        raise UnknownNameError("model", model, list_models(), where="open_clip")
    return name, get_model_config(name)


def _of_tag(model: str, tag: str, activation: Activation) -> Blueprint:
    from open_clip import pretrained

    name, config = architecture(model)
    plain = name.removesuffix(_SUFFIX)
    name_of_tag = name if pretrained.is_pretrained_cfg(name, tag) else plain
    published = pretrained.get_pretrained_cfg(name_of_tag, tag)
    if not published:
        tags = {*pretrained.list_pretrained_tags_by_model(name), *pretrained.list_pretrained_tags_by_model(plain)}
        raise UnknownNameError("weights", tag, tags, where=f"open_clip's {name} (nor is there such a file)")
    _, published_config = architecture(name_of_tag)
    quick = bool(published.get("quick_gelu") or published_config.get("quick_gelu"))
    if name.endswith(_SUFFIX) and not quick:
        raise OptionError(
            f"backbone.model {model!r}: the weights {tag} were trained with gelu: --set backbone.model={plain}"
        )
    config["quick_gelu"] = _is_quick(activation, quick, f"{plain} {tag}")
    if quick and not name.endswith(_SUFFIX) and _has_twin(name):
        name += _SUFFIX
    hub_id, _, filename = published["hf_hub"].rpartition("/")
    names = [str(Path(filename).with_suffix(".safetensors")), filename] if filename else list(_WEIGHT_FILES)
    options = f"--set backbone.model={name} --set backbone.activation={'quick_gelu' if quick else 'gelu'}"
    fix = f"`hf download {hub_id} {names[0]}`, or put the file anywhere and give --set backbone.weights=FILE {options}"
    file = fetch(hub_id, names, f"{fix}; {WITHOUT_WEIGHTS}")
    return Blueprint(
        name,
        config,
        label=hub_id,
        revision=file.parent.name,
        files=(file,),
        pixels=_pixels(published),
        details={"tag": tag},
        resize=_resize(published),
    )


def _of_file(model: str | None, path: Path, activation: Activation, key: str) -> Blueprint:
    if not path.is_file():
        raise WeightsError(f"backbone.weights: there is no file {path}; {WITHOUT_WEIGHTS}")
    files = shards_of(path)
    beside = path.parent / _CONFIG_FILE
    if model is None and beside.is_file():
        return _read_blueprint(beside, files, activation, path.name)
    if model is None:
        raise OptionError(f"backbone.weights {path}: name its architecture, e.g. --set backbone.model=ViT-B/32")
    name, config = architecture(model)
    quick = None if _has_twin(name) else bool(config.get("quick_gelu"))
    last_parts: set[str] = set()
    for file in files:
        last_parts.update(tensor.rpartition(".")[2] for tensor in _names(file, key))
    if last_parts >= _OPENAI_KEYS:
        quick = True
    config["quick_gelu"] = _is_quick(activation, quick, str(path))
    return Blueprint(name, config, path.name, "local", files)


def _of_folder(model: str | None, folder: Path, activation: Activation) -> Blueprint:
    if model is not None:
        raise OptionError(f"backbone.model {model!r}: leave it out, {folder} has its own {_CONFIG_FILE}")
    if not (folder / _CONFIG_FILE).is_file():
        check_adapter(folder)
        check_trainers_folder(folder)
        fix = "or encode with `negbench embed --encoder transformers:FOLDER` and train with --backbone precomputed"
        raise WeightsError(f"{folder} has no {_CONFIG_FILE}: put the one that was saved with the weights there, {fix}")
    files = one_checkpoint(folder, _WEIGHT_FILES, _THEIRS)
    if not files:
        raise WeightsError(f"{folder} has no weights: put {_WEIGHT_FILES[0]} there")
    return _read_blueprint(folder / _CONFIG_FILE, files, activation, folder.name)


def _of_hub(model: str | None, weights: str, activation: Activation) -> Blueprint:
    hub_id, _, revision = weights.partition("@")
    fix = f"`hf download {hub_id}`, or put its files into FOLDER: --set backbone.weights=FOLDER; {WITHOUT_WEIGHTS}"
    config = fetch(hub_id, [_CONFIG_FILE], fix, revision=revision or None)
    fetch(hub_id, _WEIGHT_FILES, fix, revision=revision or None)
    blueprint = _of_folder(model, config.parent, activation)
    return replace(blueprint, name=hub_id, label=hub_id, revision=config.parent.name)


def _read_blueprint(config_file: Path, weights: tuple[Path, ...], activation: Activation, label: str) -> Blueprint:
    """Make a blueprint from open_clip_config.json."""
    try:
        stored = json.loads(read_json_text(config_file))
        config = dict(stored["model_cfg"])
        preprocessing = stored.get("preprocess_cfg") or {}
        pixels = _pixels(preprocessing)
        resize = _resize(preprocessing)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise WeightsError(f"{config_file} is not a configuration of open_clip: {why}") from error
    config["quick_gelu"] = _is_quick(activation, bool(config.get("quick_gelu")), label)
    return Blueprint(label, config, label, "local", weights, pixels, resize=resize)


def _pixels(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Mean, std and interpolation where open_clip's preprocessing names them."""
    settings = {key: tuple(preprocess[key]) for key in ("mean", "std") if preprocess.get(key) is not None}
    if preprocess.get("interpolation") in ("bicubic", "bilinear"):
        settings["interpolation"] = preprocess["interpolation"]
    return settings


def _resize(preprocess: Mapping[str, Any]) -> str:
    return str(preprocess.get("resize_mode") or "shortest")


def _has_twin(name: str) -> bool:
    """Whether open_clip has the architecture with both activations, so that its plain name is ambiguous."""
    from open_clip import list_models

    return f"{name}{_SUFFIX}" in list_models()


def _is_quick(activation: Activation, of_weights: bool | None, what: str) -> bool:
    """Whether the activation is QuickGELU: from the weights, or if they do not say, the option. Raises OptionError."""
    if of_weights is None:
        if activation == "auto":
            raise OptionError(
                f"backbone.weights {what} does not state its activation: --set backbone.activation=quick_gelu (weights "
                "of OpenAI, DFN or MetaCLIP and what was fine-tuned from them) or =gelu (most of LAION and DataComp)"
            )
        return activation == "quick_gelu"
    right = "quick_gelu" if of_weights else "gelu"
    if activation not in ("auto", right):
        raise OptionError(f"backbone.activation {activation!r}: {what} was trained with {right}: leave the option out")
    return of_weights


# --- reading and building ----------------------------------------------------------------------------------------


def read_state(path: Path, key: str = "") -> dict[str, Tensor]:
    """Read the tensors of a checkpoint; see `read_checkpoint`. Raises WeightsError for an archive of code, too."""
    if path.suffix != ".safetensors" and path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if is_torchscript(archive.namelist()):
                model, hub_id = _openai_model(path.stem)
                raise WeightsError(
                    f"{path} is a TorchScript archive, which runs code when it is read: fetch the same weights as "
                    f"tensors, for OpenAI's {model} `hf download {hub_id} open_clip_model.safetensors`, and give --set "
                    f"backbone.weights=openai --set backbone.model={model}"
                )
    state = read_checkpoint(path, key)
    for prefix in prefixes_of(state, _COMBINER_KEYS):
        if all(name.startswith(prefix) for name in state):
            raise WeightsError(
                f"{path} is CLIP4Cir's Combiner, a network on top of CLIP that backbone 'clip' does not have: give the "
                "fine-tuned CLIP that is published beside it, and train the fusion here (backbone.fusion)"
            )
    return state


def _openai_model(stem: str) -> tuple[str, str]:
    """Return open_clip's name of the model of an OpenAI file, and the hub id of its tensors; ViT-B-32's if unknown."""
    from open_clip.pretrained import get_pretrained_cfg

    for name in (stem, stem.removesuffix("px"), DEFAULT_MODEL):
        published = get_pretrained_cfg(name, "openai")
        if published:
            return name, str(published["hf_hub"]).rstrip("/")
    raise AssertionError(f"open_clip knows no OpenAI weights of {DEFAULT_MODEL}")


def read_weights(blueprint: Blueprint) -> dict[str, Tensor]:
    """Read the tensors of a blueprint's files. Raises WeightsError, also if two shards hold the same tensor."""
    state = dict[str, Tensor]()
    for file in blueprint.files:
        part = read_state(file, blueprint.key)
        twice = sorted(state.keys() & part.keys())
        if twice:
            raise WeightsError(f"{file} holds {twice[0]}, as another shard does: download the whole folder again")
        state |= part
    return state


def _names(path: Path, key: str) -> Iterable[str]:
    """Return the names of a checkpoint's tensors; only names are read from safetensors. Raises WeightsError."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return read_state(path, key)
    try:
        check_safetensors(path)
        with safe_open(path, "pt") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read as a checkpoint: {error}") from error


def build(config: dict[str, Any], seed: int) -> nn.Module:
    """Build open_clip's module with random weights from `seed`; the global generators stay unchanged.

    `make_tokenizer` must know the text tower of `config`.
    """
    import open_clip

    config = copy.deepcopy(config)
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    cls = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = cls(**config).eval()
    if "timm_model_name" in config["vision_cfg"]:
        _drop_paths_by_rows(model)
    return model


def _drop_paths_by_rows(model: nn.Module) -> None:
    """Replace timm's stochastic depth, which draws from torch's generators."""
    from timm.layers.drop import DropPath

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, DropPath) and child.drop_prob:
                setattr(parent, name, RowDropPath(child.drop_prob))


class RowDropPath(nn.Module):
    """Stochastic depth by rows: a residual branch is left out of a row with probability p, else divided by 1 - p."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout = RowDropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, ...]."""
        return x * self.dropout(x.new_ones(len(x), *(1 for _ in x.shape[1:])))


def load_into(model: nn.Module, blueprint: Blueprint) -> Fit:
    """Fill `model` with the weights of a blueprint, strictly; return what was dropped of the tensors' names.

    Two differences are accepted: OpenAI's three plain numbers, and a logit scale of shape [1] or [].

    Raises:
        WeightsError: names every key that is missing, unexpected or of another shape.
    """
    from open_clip.model import convert_to_custom_text_state_dict

    model_state = model.state_dict()
    where = ", ".join(str(file) for file in blueprint.files)
    state = read_weights(blueprint)
    # before open_clip gave the text tower a part of its own
    older_names = {name.removeprefix("text.") for name in model_state}
    names = older_names if prefixes_of(state, older_names) else model_state.keys()
    in_file = fit(state, names, where, blueprint.prefix)
    state = in_file.state
    if state.keys() >= _OPENAI_KEYS:
        state = {name: tensor for name, tensor in state.items() if name not in _OPENAI_KEYS}
    if "positional_embedding" in state and "positional_embedding" not in model_state:
        state = convert_to_custom_text_state_dict(state)
    if "logit_scale" in state and state["logit_scale"].numel() == 1:
        state["logit_scale"] = state["logit_scale"].reshape(model_state["logit_scale"].shape)
    behind = f", behind the prefix {in_file.prefix}," if in_file.prefix else ""
    check_fit(f"{where}{behind} does not fit its architecture", state, model_state)
    model.load_state_dict(state)
    return in_file


def side_of(model: Any) -> int:
    """Return the side of an image in pixels. Raises WeightsError if the tower's images are not square."""
    size: Any = model.visual.image_size
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise WeightsError(f"the visual tower expects {height} x {width} pixels: only square images are supported")
    return int(height)


def make_tokenizer(blueprint: Blueprint) -> Any:
    """Make CLIP's tokenizer: texts -> [B, context length] int64.

    Raises:
        OptionError: a model whose text tower is not CLIP's (CoCa, SigLIP and others with a tokenizer of the hub).
    """
    config = blueprint.config
    text = config["text_cfg"]
    if "multimodal_cfg" in config or text.get("hf_tokenizer_name") or text.get("hf_model_name"):
        raise OptionError(
            f"backbone.model {blueprint.name!r} has no CLIP text tower: encode with `negbench embed --encoder "
            "transformers:NAME`, and train with --backbone precomputed"
        )
    options = text.get("tokenizer_kwargs") or {}
    return _byte_pairs(text.get("context_length", 77), tuple(sorted(options.items())))


def texts_seen(tokenizer: Any, texts: Sequence[str]) -> TextsSeen:
    """Return what a model with this tokenizer sees of texts."""
    limit = int(tokenizer.context_length)
    longer = sum(len(tokenizer.encode(text)) + 2 > limit for text in texts)  # start and end come on top
    return TextsSeen(tokenizer(list(texts)), longer, limit)


@cache
def _byte_pairs(length: int, options: tuple[tuple[str, str], ...]) -> Any:
    """Make and cache CLIP's own tokenizer, which reads its vocabulary anew for every instance."""
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(context_length=length, **dict(options))


def final_norm(model: Any) -> nn.LayerNorm:
    """Return the layer whose output is the text's token features."""
    return getattr(model, "text", model).ln_final
