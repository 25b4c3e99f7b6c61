"""Which weights: the model that a folder or a file means, where it could mean several.

A folder may hold several checkpoints, one in shards, an adapter beside its base; a file may hold tensors behind the
prefix of a wrapper. What could mean two models is refused with their names; what is left out is said.
"""

import json
import logging
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from negbench.errors import WeightsError
from negbench.machine.received import read_json_text

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
ADAPTER = "adapter_config.json"  # of PEFT
ADAPTER_FILES = (ADAPTER, "adapter_model.safetensors", "adapter_model.bin")
MERGE = (
    "PeftModel.from_pretrained(AutoModel.from_pretrained(BASE), FOLDER).merge_and_unload().save_pretrained(OUT), with "
    "AutoModel of transformers and PeftModel of peft"
)

T = TypeVar("T")

_log = logging.getLogger("negbench")

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_INDEX = ".index.json"
_THEIRS = ("model.safetensors", "pytorch_model.bin")  # what transformers reads, the first that is there
# files of the same endings that trainers put beside the weights
_STATES = re.compile(r"(optim|sched|training_args|rng_state|random_states|scaler|trainer_state|adapter_model).*")
# what torch.compile, DistributedDataParallel, FSDP and checkpointing put inside a tensor's name
_INNER = re.compile(r"(?<=\.)(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OPTIONS = re.compile(r",(?=(?:key|prefix|tower)=)")
_SHOWN = 4  # names in an error


# --- what the user named -------------------------------------------------------------------------------------------


def options_of(spec: str) -> tuple[str, dict[str, str]]:
    """Split "PLACE,key=NAME,prefix=NAME" into the place and its options."""
    place, *options = _OPTIONS.split(spec)
    pairs = [option.partition("=") for option in options]
    return place, {key: value for key, _, value in pairs}


# --- the files of one model ----------------------------------------------------------------------------------------


def shards_of(file: Path) -> tuple[Path, ...]:
    """Return all shards of the checkpoint that a shard or an index of shards belongs to; else the file itself.

    Raises:
        WeightsError: a shard is missing, or an index that cannot be read.
    """
    found = _SHARD.fullmatch(file.name)
    if file.name.endswith(_INDEX):
        names = _names_of_index(file)
    elif found is not None:
        count = int(found["count"])
        parts = range(1, count + 1)
        names = [f"{found['stem']}-{number:05}-of-{found['count']}{found['suffix']}" for number in parts]
    else:
        return (file,)
    lost = [name for name in names if not (file.parent / name).is_file()]
    if lost:
        raise WeightsError(
            f"{file.parent} holds a checkpoint in {len(names)} shards and lacks {_some(lost)}: "
            "download the whole folder"
        )
    return tuple(file.parent / name for name in names)


def _names_of_index(index: Path) -> list[str]:
    try:
        held = json.loads(read_json_text(index))["weight_map"]
        return sorted({Path(str(name)).name for name in held.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} is no index of shards: {type(error).__name__}: {error}") from error


def checkpoints_in(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the checkpoints of a folder: the name of a file, or of a set of shards, -> its files.

    Files that a trainer saves beside its weights, such as the optimiser's state, and adapters are not among them.

    Raises:
        WeightsError: a shard is missing.
    """
    found = dict[str, tuple[Path, ...]]()
    for file in sorted(folder.iterdir()):
        if file.suffix not in SUFFIXES or _STATES.fullmatch(file.name) or not file.is_file():
            continue
        shard = _SHARD.fullmatch(file.name)
        name = file.name if shard is None else f"{shard['stem']}{shard['suffix']}"
        if name not in found:
            found[name] = shards_of(file)
    return found


def one_checkpoint(folder: Path, preferred: Sequence[str], ignored: Collection[str] = ()) -> tuple[Path, ...]:
    """Return the files of the one model that a folder holds.

    Args:
        folder: of the weights.
        preferred: names of one model in several formats, the first that is there is taken.
        ignored: names of the same model in another library's format, left alone beside a preferred one.

    Returns:
        A file, or the shards of one; none if the folder holds no weights.

    Raises:
        WeightsError: several models; an adapter; a folder of a training library that has to be converted.
    """
    check_adapter(folder)
    found = checkpoints_in(folder)
    chosen = next((name for name in preferred if name in found), None)
    if chosen is None and not found:
        check_trainers_folder(folder)
        return ()
    same = {chosen, *preferred, *ignored} if chosen is not None else set()
    others = [name for name in found if name not in same]
    if chosen is None and len(others) == 1:
        return found[others[0]]
    if others:
        names = [*others, *([chosen] if chosen is not None else [])]
        raise WeightsError(
            f"{folder} holds {len(names)} checkpoints ({', '.join(_sort_by_number(names))}): name one, "
            f"weights={folder / _sort_by_number(names)[-1]}"
        )
    assert chosen is not None
    return found[chosen]


def read_by_transformers(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors of a folder that transformers reads: one file, or its shards; none if there are none."""
    return checkpoints_in(folder).get(_THEIRS[0], ())


def choice_in(folder: Path) -> dict[str, Any]:
    """Say which weights of a transformers folder are read if it holds others; return what a run records of that.

    Raises:
        WeightsError: no weights, in a folder that a training library makes for itself.
    """
    found = checkpoints_in(folder)
    if not found:
        check_trainers_folder(folder)
    chosen: dict[str, Any] = {"weights_adapter": "merged"} if (folder / ADAPTER).is_file() else {}
    others = [name for name in found if name not in _THEIRS and not name.startswith("open_clip_")]
    if others and any(name in found for name in _THEIRS):
        read = next(name for name in _THEIRS if name in found)
        others = _sort_by_number(others)
        _log.warning("note: %s: %s is read, and not %s beside it", folder, read, _some(others))
        chosen["weights_not_read"] = others
    return chosen


def check_adapter(folder: Path) -> None:
    """Raise WeightsError if the folder holds an adapter of PEFT, whose changes of the model would not be read."""
    if (folder / ADAPTER).is_file():
        raise WeightsError(f"{folder} holds an adapter of PEFT ({ADAPTER}), which changes the model: merge it, {MERGE}")


def check_mergeable(folder: Path) -> None:
    """Raise WeightsError if a folder of transformers holds an adapter, and peft, which merges it, is missing."""
    if (folder / ADAPTER).is_file() and find_spec("peft") is None:
        raise WeightsError(
            f"{folder} holds an adapter of PEFT ({ADAPTER}), which changes the model: `pip install peft`, and it is "
            f"merged here; or merge it, {MERGE}"
        )


@contextmanager
def without_adapter(folder: Path) -> Iterator[Path]:
    """Yield a folder of the same files without the adapter, which transformers would load by rules of its own."""
    if not (folder / ADAPTER).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        for file in folder.iterdir():
            if file.is_file() and not file.name.startswith("adapter_"):
                (Path(place) / file.name).symlink_to(file.resolve())
        yield Path(place)


def merge_adapter(model: Any, folder: Path) -> Any:
    """Return the model with the adapter of its folder merged into its weights; unchanged if there is none.

    Raises:
        WeightsError: the adapter is not of this model: peft would leave out those of its tensors that do not fit.
    """
    if not (folder / ADAPTER).is_file():
        return model
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is missing, which is said below
        adapted = PeftModel.from_pretrained(model, str(folder))
        loaded = adapted.load_adapter(str(folder), "default")  # again, as only this call tells what did not fit
    if loaded.unexpected_keys:
        raise WeightsError(
            f"{folder}: its adapter is not of this model, which has no place for {_some(loaded.unexpected_keys)}: put "
            f"the adapter beside the model that it was trained on"
        )
    note = f"note: {folder}: its adapter ({ADAPTER}) is merged into the model by peft"
    if loaded.missing_keys:
        note += f"; it holds nothing for {_some(loaded.missing_keys)}, which stay as they are"
    _log.warning(note)
    return adapted.merge_and_unload()


def check_trainers_folder(folder: Path) -> None:
    """Raise WeightsError if a folder without weights is what a training library makes for itself."""
    if (folder / "zero_to_fp32.py").is_file() or any(folder.glob("**/*_states.pt")):
        raise WeightsError(
            f"{folder} is a folder of DeepSpeed, whose weights are in parts: `python zero_to_fp32.py . OUT` in it "
            "writes them as a checkpoint"
        )
    if any(folder.glob("**/*.distcp")):
        raise WeightsError(
            f"{folder} is a folder of torch.distributed.checkpoint (FSDP): `python -m "
            "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt` makes one file of it"
        )
    below = [path.parent.name for path in folder.glob("checkpoint-*/config.json")]
    if below:
        raise WeightsError(f"{folder} holds the folders {', '.join(_sort_by_number(below))} of a training: name one")


def _sort_by_number(names: Iterable[str]) -> list[str]:
    """Sort names by the numbers in them: epoch_2 before epoch_10."""

    def place(name: str) -> list[tuple[str, int]]:
        parts = re.findall(r"(\D*)(\d*)", name)
        return [(text, int(number or 0)) for text, number in parts]

    return sorted(names, key=place)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


# --- the names in a file -------------------------------------------------------------------------------------------


def without_inner_wrappers(state: Mapping[str, T]) -> dict[str, T]:
    """Drop what wrappers put inside tensors' names, unless two names would become one."""
    plain = {_INNER.sub("", name): value for name, value in state.items()}
    return plain if len(plain) == len(state) else dict(state)


@dataclass(frozen=True)
class Fit:
    """The tensors of a model, found in a file.

    Attributes:
        state: the tensors by the model's own names.
        prefix: what stood before each name in the file; "" if nothing.
        left_out: the first parts of the names of all other tensors.
    """

    state: dict[str, Any]
    prefix: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def details(self) -> dict[str, Any]:
        """What a run records: the dropped prefix, and what was left out."""
        if not self.prefix:
            return {}
        return {"weights_prefix": self.prefix, "weights_left_out": list(self.left_out)}


def fit(state: Mapping[str, Any], wanted: Collection[str], where: str, prefix: str | None = None) -> Fit:
    """Drop the prefix behind which a model's tensors stand in a file, and the tensors outside of it; say so.

    Args:
        state: tensors by name.
        wanted: names that the model has; some of them suffice, where its size is not known yet.
        where: the file, for errors and for the note.
        prefix: as the user gave it; None: the one behind which all wanted names stand, else most of them.

    Raises:
        WeightsError: all wanted names stand behind several prefixes; or none behind the one that was given.
    """
    counts = _leading(state, wanted)
    if prefix is not None:
        chosen = prefix if not prefix or prefix.endswith(".") else f"{prefix}."
        chosen = _INNER.sub("", chosen)  # as in the names
        if not counts[chosen]:
            raise WeightsError(f"{where}: no tensor of the model stands behind prefix={prefix}: {_begin(state)}")
    else:
        whole = prefixes_of(state, wanted)
        if len(whole) > 1:
            shown = ", ".join(name or "none" for name in whole)
            raise WeightsError(
                f"{where} holds {len(whole)} models, behind the prefixes {shown}: name the one to load, as "
                f"{where},prefix={whole[-1]}"
            )
        chosen = whole[0] if whole else common_prefix(state, wanted)
        if not whole and counts[chosen] <= counts[""]:
            chosen = ""
    if not chosen:
        return Fit(dict(state))
    inside = {name.removeprefix(chosen): value for name, value in state.items() if name.startswith(chosen)}
    outside = [name for name in state if not name.startswith(chosen)]
    left_out = tuple(dict.fromkeys(f"{name.split('.')[0]}.*" if "." in name else name for name in outside))
    text = f"note: {where}: the prefix {chosen} of the tensors' names is dropped"
    if left_out:
        text += f"; {len(outside)} tensors outside of it are left out: {_some(left_out)}"
    _log.warning(text)
    return Fit(inside, chosen, left_out)


def prefixes_of(state: Iterable[str], wanted: Collection[str]) -> list[str]:
    """Return the prefixes, "" included, behind which all wanted names stand."""
    return sorted(prefix for prefix, count in _leading(state, wanted).items() if count == len(set(wanted)))


def common_prefix(names: Collection[str], wanted: Collection[str]) -> str:
    """Return the prefix behind which most of the wanted names stand; "" if they stand behind none."""
    counts = _leading(names, wanted)
    return counts.most_common(1)[0][0] if counts else ""


def _leading(state: Iterable[str], wanted: Collection[str]) -> Counter[str]:
    """Count how many wanted names stand behind each prefix, "" included."""
    counts = Counter[str]()
    names = set(wanted)
    for name in state:
        parts = name.split(".")
        for place in range(len(parts)):
            if ".".join(parts[place:]) in names:
                counts["".join(f"{part}." for part in parts[:place])] += 1
    return counts


def _begin(state: Iterable[str]) -> str:
    begin = list(dict.fromkeys(f"{name.split('.')[0]}." for name in state))
    return f"its names begin with {_some(begin)}"
