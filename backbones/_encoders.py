"""Published dual encoders for `negbench embed`: models of open_clip and transformers.

An encoder has `encode_image`, a list of RGB images -> [n, C], and `encode_text`, a list of strings -> [n, C]; callers
switch gradients off. Both return what the library itself computes, with its own preprocessing.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL.Image import Image
from torch import Tensor

from negbench.backbones._checkpoint import (
    ADAPTER,
    check_mergeable,
    choice_in,
    common_prefix,
    merge_adapter,
    without_adapter,
)
from negbench.backbones._open_clip import build, find, load_into, make_tokenizer, texts_seen
from negbench.backbones._preprocess import _eight_bit
from negbench.backbones._weights import WITHOUT_WEIGHTS, fetch, hub_name, loading, refuse
from negbench.contracts import TextsSeen
from negbench.errors import NegbenchError, OptionError, UnknownNameError, WeightsError
from negbench.machine.received import read_json_text

_MOST_TOKENS = 100_000  # a tokenizer's larger limit means none
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")  # the weights in a hub repository: configuration, vocabulary


class Encoder(Protocol):
    """A dual encoder, as returned by `load`."""

    def encode_image(self, images: Sequence[Image]) -> Tensor:
        """N RGB images -> [n, C] float32."""

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """N strings -> [n, C] float32."""


def rgb(image: Image) -> Image:
    """Convert an image of any mode to 8-bit RGB for an encoder, as `Preprocess` does.

    Transparency is dropped, 16-bit grey reduced to its upper byte; EXIF orientation is not applied.
    """
    return _eight_bit(image).convert("RGB")


def load(library: str, name: str, device: torch.device) -> Encoder:
    """Load a library's model in evaluation mode on `device`.

    Args:
        library: one of `LIBRARIES`.
        name: for open_clip MODEL, MODEL:PRETRAINED or a folder or file, then :OPTION=VALUE of model, weights
            and activation, which are backbone `clip`'s; for transformers a folder, or ORG/NAME[@REVISION] of the hub.
        device: device of the model.

    Raises:
        WeightsError: missing or unfitting weights, or a hub that cannot be reached; says what to download.
        OptionError: a model that does not encode both images and texts.
        UnknownNameError: a model, tag or option that does not exist.
    """
    return LIBRARIES[library](name, device)


# --- open_clip -----------------------------------------------------------------------------------------------------

_OPTIONS = ("model", "weights", "activation")


class _OpenClip:
    def __init__(self, model: Any, tokenizer: Any, transform: Callable[[Image], Tensor], device: torch.device) -> None:
        self._model = model.to(device)
        self._device = device
        self._tokenizer = tokenizer
        self._transform = transform

    def encode_image(self, images: Sequence[Image]) -> Tensor:
        pixels = torch.stack([self._transform(image) for image in images])
        return self._model.encode_image(pixels.to(self._device))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self._model.encode_text(self._tokenizer(list(texts)).to(self._device))

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        return texts_seen(self._tokenizer, texts)


def _open_clip(name: str, device: torch.device) -> Encoder:
    from open_clip import image_transform

    options = {"model": None, "weights": "openai", "activation": "auto"} | _open_clip_options(name)
    try:
        blueprint = find(options["model"], options["weights"], options["activation"])
        tokenizer = make_tokenizer(blueprint)
        model: Any = build(blueprint.config, 0)
        load_into(model, blueprint)
    except NegbenchError as error:  # an encoder has the same options by their plain names
        raise WeightsError(
            str(error).replace(f"; {WITHOUT_WEIGHTS}", "").replace("--set ", "").replace("backbone.", "")
        ) from error
    preprocessing = {"resize_mode": blueprint.resize, **blueprint.pixels}
    transform = image_transform(model.visual.image_size, is_train=False, **preprocessing)
    return _OpenClip(model, tokenizer, transform, device)


def _open_clip_options(name: str) -> dict[str, Any]:
    """Parse backbone `clip`'s options from MODEL[:PRETRAINED][:OPTION=VALUE...]; an existing path is the weights."""
    source, *more = re.split(r":(?=\w+=)", f":{name}")
    source = source.removeprefix(":")
    options: dict[str, Any] = {}
    if source and Path(source).expanduser().exists():
        options["weights"] = source
    else:
        model, _, weights = source.partition(":")
        if model:
            options["model"] = model
        if weights:
            options["weights"] = weights
    for option in more:
        key, _, value = option.partition("=")
        if key not in _OPTIONS:
            raise UnknownNameError("option", key, _OPTIONS)
        options[key] = value
    if not options:
        raise OptionError("name a model, e.g. open_clip:ViT-B-32:openai")
    if options.get("activation", "auto") not in ("auto", "quick_gelu", "gelu"):
        raise UnknownNameError("activation", options["activation"], ("quick_gelu", "gelu"))
    return options


# --- transformers --------------------------------------------------------------------------------------------------


class _Transformers:
    def __init__(self, model: Any, processor: Any, device: torch.device) -> None:
        self._model = model.eval().to(device)
        self._processor = processor
        self._device = device
        text = getattr(model.config, "text_config", None)
        limits = [
            getattr(processor.tokenizer, "model_max_length", None),
            getattr(text, "max_position_embeddings", None),
        ]
        self._most = min((limit for limit in limits if limit and limit < _MOST_TOKENS), default=None)

    def encode_image(self, images: Sequence[Image]) -> Tensor:
        inputs = self._processor(images=list(images), return_tensors="pt").to(self._device)
        return self._pool(self._model.get_image_features(**inputs))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        inputs = self._tokens(texts, "longest")
        if "attention_mask" not in inputs or self._model.config.model_type.startswith("siglip"):
            inputs = self._tokens(texts, "max_length")  # padding that is attended to must be as in training
        return self._pool(self._model.get_text_features(**inputs.to(self._device)))

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        ids = self._tokens(texts, "max_length" if self._most else "longest")["input_ids"]
        if self._most is None:
            return TextsSeen(ids)
        whole = self._processor.tokenizer(list(texts), truncation=False)["input_ids"]
        longer = sum(len(tokens) > self._most for tokens in whole)
        return TextsSeen(ids, longer, self._most)

    def _tokens(self, texts: Sequence[str], padding: str) -> Any:
        limit = {} if self._most is None else {"truncation": True, "max_length": self._most}
        return self._processor(text=list(texts), padding=padding, return_tensors="pt", **limit)

    def _pool(self, output: Any) -> Tensor:
        """Return the projected pooled features: part of a tower's output from transformers 5 on, all of it before."""
        tensor: Tensor | None = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
        if tensor is None:
            raise OptionError(f"{type(self._model).__name__} returns no pooled features of images and texts")
        return tensor


def _transformers(name: str, device: torch.device) -> Encoder:
    from transformers import AutoModel, AutoProcessor

    folder = _folder("transformers", name, ["*.safetensors"])
    check_mergeable(folder)
    model_folder = _base_of_adapter(folder)
    choice_in(model_folder)
    offline: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with loading(), without_adapter(model_folder) as base:
        model, info = AutoModel.from_pretrained(base, dtype=torch.float32, output_loading_info=True, **offline)
        processor = AutoProcessor.from_pretrained(base, **offline)
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise OptionError(
            f"a {type(model).__name__} is not a dual encoder: it needs get_image_features and get_text_features, like "
            "CLIP and SigLIP"
        )
    prefix = common_prefix(info["unexpected_keys"], info["missing_keys"])
    what = f"the weights do not fit {type(model).__name__}"
    if prefix:
        what += f", as their names begin with the prefix {prefix}: save the model inside the wrapper, save_pretrained"
    refuse(what, missing=info["missing_keys"])
    model = merge_adapter(model, folder)
    if not (hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")):
        raise WeightsError(f"{folder} has no tokenizer or image processor: add the processor's files")
    return _Transformers(model, processor, device)


def _base_of_adapter(folder: Path) -> Path:
    """Return the folder of the model: the given one, or the one whose name stands in an adapter without its base."""
    adapter = folder / ADAPTER
    if not adapter.is_file() or (folder / "config.json").is_file():
        return folder
    base = None
    with loading(f"{adapter} "):
        base = json.loads(read_json_text(adapter)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise WeightsError(
            f"{folder} holds an adapter of PEFT and does not name its model: put the model's files there"
        )
    return _folder("transformers", base, ["*.safetensors"])


# --- both ----------------------------------------------------------------------------------------------------------


def _folder(library: str, name: str, patterns: Sequence[str]) -> Path:
    """Return the given folder, or a hub repository's folder from the local cache, fetched if missing."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    hub = hub_name(name)
    if hub is None:
        raise WeightsError("there is no such folder, and a name on the hub is ORG/NAME[@REVISION]")
    hub_id, revision = hub
    option = f" --revision {revision}" if revision else ""
    fix = f"`hf download {hub_id}{option}`, or put its files into FOLDER and give {library}:FOLDER"
    return fetch(hub_id, patterns, fix, beside=(*_BESIDE, "*.safetensors"), revision=revision).parent


LIBRARIES = {"open_clip": _open_clip, "transformers": _transformers}
