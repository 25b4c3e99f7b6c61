"""Parse `weights=` and locate the files it names: LAVIS files, transformers folders and files, hub ids."""

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from negbench.backbones._checkpoint import (
    ADAPTER_FILES,
    check_mergeable,
    check_trainers_folder,
    merge_adapter,
    one_checkpoint,
    options_of,
    read_by_transformers,
    without_adapter,
)
from negbench.errors import WeightsError
from negbench.machine.received import check_folder, check_safetensors, read_json_text

BERT = "google-bert/bert-base-uncased"  # whose vocabulary BLIP and BLIP-2 use

WITHOUT_WEIGHTS = (
    "to try a run without weights: --set backbone.init=random --set backbone.size=toy --set backbone.weights=null"
)

_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_CHECKPOINT_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".safetensors")
_PROCESSORS = ("processor_config.json", "preprocessor_config.json")  # of images; the first that has one counts
_SHOWN = 6  # names of one kind in an error


@dataclass(frozen=True)
class Advice:
    """What a backbone's errors tell the user to fetch.

    Args:
        backbone: registry key.
        hub_id: the default weights.
        lavis_files: description of the files that `lavis:` takes.
    """

    backbone: str
    hub_id: str
    lavis_files: str

    @property
    def fix(self) -> str:
        """The second half of every error line: what to fetch, where to put it, or how to do without."""
        return (
            f"fetch {self.hub_id} (`hf download {self.hub_id}`, or put its files into FOLDER: --set "
            f"backbone.weights=FOLDER) or {self.lavis_files}; {WITHOUT_WEIGHTS}"
        )


@dataclass(frozen=True)
class Source:
    """Location of weights.

    Args:
        kind: "lavis" (a checkpoint in LAVIS's format), "folder" (as transformers saves one) or "hub".
        path: the file or folder; None for "hub".
        tower: the separate visual tower of a "lavis" checkpoint.
        key: the state dict of a "lavis" checkpoint that holds several.
        prefix: of the names of a "lavis" checkpoint's tensors; None: found.
        hub_id: of "hub".
        revision: of "hub"; None is the newest.
    """

    kind: Literal["lavis", "folder", "hub"]
    path: Path | None = None
    tower: Path | None = None
    hub_id: str = ""
    revision: str | None = None
    key: str = ""
    prefix: str | None = None

    @property
    def label(self) -> str:
        """Hub id, or name of the file(s): what the identity calls these weights."""
        if self.path is None:
            return self.hub_id
        names = self.path.name + (f",key={self.key}" if self.key else "")
        names += f",prefix={self.prefix}" if self.prefix else ""
        names += f",tower={self.tower.name}" if self.tower else ""
        return f"lavis:{names}" if self.kind == "lavis" else names


def parse_weights(spec: str, advice: Advice) -> Source:
    """Read `weights=`: "lavis:FILE[,key=NAME][,prefix=NAME][,tower=FILE]", a folder, or ORG/NAME[@REVISION].

    Raises:
        WeightsError: a missing file or folder, or a text that is none of these.
    """
    if spec.startswith("lavis:"):
        model, options = options_of(spec.removeprefix("lavis:"))
        tower = options.get("tower")
        if not model or tower == "":
            raise WeightsError(
                f"backbone.weights {spec!r}: expected lavis:FILE[,key=NAME][,prefix=NAME] or lavis:FILE,tower=FILE"
            )
        return Source(
            "lavis",
            tower=None if tower is None else _find_file(tower, spec, advice),
            path=_find_file(model, spec, advice),
            key=options.get("key", ""),
            prefix=options.get("prefix"),
        )
    path = Path(spec).expanduser()
    if path.is_dir():
        return Source("folder", path)
    if path.suffix in _CHECKPOINT_SUFFIXES:
        raise WeightsError(
            f"backbone.weights {spec!r}: give a LAVIS checkpoint as lavis:{spec}, a transformers model as its folder"
        )
    hub = hub_name(spec)
    if hub is None:
        raise WeightsError(f"backbone.weights {spec!r}: there is no such file or folder; {advice.fix}")
    hub_id, revision = hub
    return Source("hub", hub_id=hub_id, revision=revision)


def files_of(source: Source, advice: Advice) -> tuple[Path, ...]:
    """Return all files that determine weights and pixels, without reading them; of transformers config.json is first.

    Files of the hub are fetched unless the cache has them. Raises WeightsError.
    """
    if source.kind == "lavis":
        return tuple(path for path in (source.path, source.tower) if path is not None)
    beside = ("*.json", "*.txt")
    revision = source.revision
    folder = source.path or fetch(source.hub_id, ["*.safetensors"], advice.fix, beside=beside, revision=revision).parent
    check_mergeable(folder)
    tensors = read_by_transformers(folder)
    if not (folder / "config.json").is_file() or not tensors:
        check_trainers_folder(folder)
        lacks = "model.safetensors" if (folder / "config.json").is_file() else "config.json"
        raise WeightsError(f"{folder} has no {lacks}: put those that were saved with the model there; {advice.fix}")
    processors = (folder / name for name in _PROCESSORS)
    beside_weights = (*processors, *(folder / name for name in ADAPTER_FILES))
    return (folder / "config.json", *tensors, *(file for file in beside_weights if file.is_file()))


def hub_name(spec: str) -> tuple[str, str | None] | None:
    """Parse ORG/NAME[@REVISION] into (id, revision); None if `spec` is not a hub name."""
    hub = None if spec.startswith((".", "/", "~")) else _HUB_ID.fullmatch(spec)
    return None if hub is None else (hub["id"], hub["revision"])


def _find_file(name: str, spec: str, advice: Advice) -> Path:
    """Return the file of this name, or the only one of a folder of this name. Raises WeightsError."""
    path = Path(name).expanduser()
    if path.is_dir():
        files = one_checkpoint(path, ())
        if len(files) == 1:
            return files[0]
    if not path.is_file():
        raise WeightsError(f"backbone.weights {spec!r}: there is no file {path}; {advice.fix}")
    return path


def refuse(what: str, **problems: Iterable[str]) -> None:
    """Raise a WeightsError that begins with `what` and lists the tensors of each kind, unless there is none."""
    parts = []
    for kind, tensors in problems.items():
        names = sorted(tensors)
        if names:
            parts.append(f"{kind.replace('_', ' ')} {_shorten(names)}")
    if parts:
        raise WeightsError(f"{what}: {'; '.join(parts)}")


def _shorten(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN:
        return ", ".join(names)
    begin = dict.fromkeys(f"{name.split('.')[0]}.*" for name in names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more of {', '.join(list(begin)[:_SHOWN])}"


def check_fit(what: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a WeightsError that begins with `what` unless names and shapes of tensors agree."""
    wrong_shape = []
    for name in expected.keys() & state.keys():
        shape = list(state[name].shape)
        expected_shape = list(expected[name].shape)
        if shape != expected_shape:
            wrong_shape.append(f"{name} {shape} for {expected_shape}")
    missing = expected.keys() - state.keys()
    unexpected = state.keys() - expected.keys()
    refuse(what, missing=missing, unexpected=unexpected, wrong_shape=wrong_shape)


def fetch(
    hub_id: str, names: Sequence[str], fix: str, *, beside: Sequence[str] = (), revision: str | None = None
) -> Path:
    """Return a file of a hub repository, in a folder with its companions.

    The local cache is tried first, so that nothing waits for a missing or unwanted network.

    Args:
        hub_id: ORG/NAME.
        names: patterns, the preferred one first; the first that the repository has is taken.
        fix: second half of the error line: what to download, and where to put it.
        beside: patterns of files that are fetched with it.
        revision: None is the newest.

    Raises:
        WeightsError: not in the cache, and cannot be fetched (no network, HF_HUB_OFFLINE, no such id or revision).
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        cached = _first_file(snapshot_download(hub_id, revision=revision, local_files_only=True), names)
    except Exception:  # hub errors share no base class: httpx, OSError, ValueError, bare Exception
        cached = None
    if cached is not None:
        return cached
    why = "HF_HUB_OFFLINE is set"
    try:
        if not constants.HF_HUB_OFFLINE:
            # one plain request first: the download itself would go on retrying where there is no network
            info = HfApi().model_info(hub_id, revision=revision, timeout=10)
            files = [file.rfilename for file in info.siblings or ()]
            why = f"it has no {' or '.join(names)}"
            pattern = next((name for name in names if fnmatch.filter(files, name)), None)
            if pattern is not None:
                folder = snapshot_download(hub_id, revision=revision, allow_patterns=[pattern, *beside])
                file = _first_file(folder, [pattern])
                if file is not None:
                    return file
    except Exception as error:
        why = f"{type(error).__name__}: {(str(error).splitlines() or ['?'])[0]}"
    name = hub_id + (f"@{revision}" if revision else "")
    raise WeightsError(f"{names[0]} of {name} is not cached and could not be downloaded ({why}): {fix}")


def _first_file(folder: str, patterns: Sequence[str]) -> Path | None:
    """Return the first file of a folder by the first pattern that any matches; None if none does."""
    for pattern in patterns:
        for file in sorted(Path(folder).glob(pattern)):
            return file
    return None


def vocabulary_source(tokenizer: str | None, beside: Path | None, advice: Advice) -> Path:
    """Find the vocabulary's file or folder: `tokenizer=`, else beside the weights, else the hub's bert-base-uncased.

    Raises:
        WeightsError: none of the three.
    """
    if tokenizer is not None:
        return Path(tokenizer).expanduser()
    if beside is not None and any((beside / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return beside
    folder = beside or "FOLDER"
    fix = f"{advice.backbone} needs a tokenizer: put this file into {folder}, or give --set backbone.tokenizer=FILE"
    try:
        return fetch("bert-base-uncased", ["vocab.txt"], fix)
    except WeightsError:
        return fetch(BERT, ["vocab.txt"], fix)


def read_pretrained(model_class: Any, folder: Path) -> tuple[Any, dict[str, Tensor]]:
    """Load what transformers saved, strictly and with its own class; return configuration and float32 state dict.

    Args:
        model_class: of transformers.
        folder: of config.json and safetensors.

    Raises:
        WeightsError: a file unreadable, another kind of model, or keys that do not fit.
    """
    want = model_class.config_class.model_type
    with loading(f"{folder} "):
        check_folder(folder)
        kind = json.loads(read_json_text(folder / "config.json")).get("model_type")
        if kind != want:
            raise WeightsError(f"{folder} holds a model of type {kind}, expected {want}")
        how = {"dtype": torch.float32, "local_files_only": True, "use_safetensors": True, "output_loading_info": True}
        with without_adapter(folder) as base:
            # `refuse` lists mismatched sizes with all the others
            model, info = model_class.from_pretrained(base, ignore_mismatched_sizes=True, **how)
    refuse(
        f"{folder} does not fit {model_class.__name__}",
        missing=info["missing_keys"],
        unexpected=(key for key in info["unexpected_keys"] if not key.endswith(("position_ids", "logit_scale"))),
        wrong_shape=(str(mismatch[0]) for mismatch in info["mismatched_keys"]),
    )
    model = merge_adapter(model, folder)
    return model.config, dict(model.state_dict())


def tensor_in(folder: Path, name: str) -> Tensor | None:
    """Return the tensor of this name in a folder's safetensors; None if there is none. Raises WeightsError."""
    from safetensors import safe_open

    for file in read_by_transformers(folder):
        with loading(f"{file} "), safe_open(file, "pt") as opened:
            if name in opened.keys():  # noqa: SIM118 -- it is no mapping
                return opened.get_tensor(name)
    return None


def shapes_in(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors, on the meta device: only the files' headers are read.

    Raises:
        WeightsError: unreadable.
    """
    from safetensors import safe_open

    shapes: dict[str, Tensor] = {}
    with loading(f"{folder} "):
        for path in read_by_transformers(folder):
            check_safetensors(path)
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 -- it is no mapping
                    shapes[name] = torch.empty(file.get_slice(name).get_shape(), device="meta")
    return shapes


def read_pixels(folder: Path, side: int) -> dict[str, Any]:
    """Read the image processor that transformers saved with a model: `mean`, `std`, `interpolation` of `Preprocess`.

    Args:
        folder: of the weights; without a processor nothing is returned.
        side: of the model's images, in pixels.

    Raises:
        WeightsError: unreadable, or a setting that the preprocessing here does not have.
    """
    stored: dict[str, Any] = {}
    for name in reversed(_PROCESSORS):
        file = folder / name
        if not file.is_file():
            continue
        with loading(f"{file} "):
            settings = json.loads(read_json_text(file))
            if settings.get("image_processor"):
                stored = settings["image_processor"]
            elif name != _PROCESSORS[0]:
                stored = settings
    filters = {2: "bilinear", 3: "bicubic"}
    sizes = (side, {"height": side, "width": side}, {"shortest_edge": side})
    possible: dict[str, tuple[Any, ...]] = {"do_resize": (True,), "do_rescale": (True,), "rescale_factor": (1 / 255,)}
    possible |= {"resample": (*filters,), "size": sizes}
    odd = [f"{key} {stored[key]}" for key, values in possible.items() if key in stored and stored[key] not in values]
    if odd:
        raise WeightsError(
            f"{folder}: its image processor asks for {', '.join(odd)}: images here are resized to {side} pixels, "
            "bicubic or bilinear, and scaled by 1/255: change the file if the model was trained so"
        )
    if not stored.get("do_normalize", True):
        stored |= {"image_mean": (0.0,) * 3, "image_std": (1.0,) * 3}
    pixels = {key: tuple(stored[f"image_{key}"]) for key in ("mean", "std") if f"image_{key}" in stored}
    return pixels | {"interpolation": filters[stored.get("resample", 3)]}


@contextmanager
def loading(what: str = "") -> Iterator[None]:
    """Silence transformers (our own error names the keys that differ) and protect the global generators.

    Its exceptions become a WeightsError that begins with `what`.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except (ImportError, WeightsError):
        raise
    except Exception as error:  # libraries raise anything if files are missing or do not fit
        raise WeightsError(f"{what}cannot be loaded: {(str(error).splitlines() or ['?'])[0]}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
