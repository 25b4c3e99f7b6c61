"""Which weights: the model that a folder or a file means, where it could mean several.

A folder may hold several checkpoints, one in shards, an adapter beside its base; a file may hold tensors behind the
prefix of a wrapper. What could mean two models is refused with their names; a note names what is left out.
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
    """Split "SOURCE,key=NAME,prefix=NAME" into the source and its options."""
    source, *texts = _OPTIONS.split(spec)
    options = {}
    for text in texts:
        key, _, value = text.partition("=")
        options[key] = value
    return source, options


# --- the files of one model ----------------------------------------------------------------------------------------


def shards_of(file: Path) -> tuple[Path, ...]:
    """Return all shards of the checkpoint that a shard or an index of shards belongs to; else the file itself.

    Raises:
        WeightsError: a shard is missing, or an index that cannot be read.
    """
    shard = _SHARD.fullmatch(file.name)
    if file.name.endswith(_INDEX):
        names = _names_of_index(file)
    elif shard is not None:
        numbers = range(1, int(shard["count"]) + 1)
        names = [f"{shard['stem']}-{number:05}-of-{shard['count']}{shard['suffix']}" for number in numbers]
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
        files = json.loads(read_json_text(index))["weight_map"].values()
        return sorted({Path(str(file)).name for file in files})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} is no index of shards: {type(error).__name__}: {error}") from error


def checkpoints_in(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the checkpoints of a folder: the name of a file, or of a set of shards, -> its files.

    Files that a trainer saves beside its weights, such as the optimiser's state, and adapters are not among them.

    Raises:
        WeightsError: a shard is missing.
    """
    checkpoints = dict[str, tuple[Path, ...]]()
    for file in sorted(folder.iterdir()):
        if file.suffix not in SUFFIXES or _STATES.fullmatch(file.name) or not file.is_file():
            continue
        shard = _SHARD.fullmatch(file.name)
        name = file.name if shard is None else f"{shard['stem']}{shard['suffix']}"
        if name not in checkpoints:
            checkpoints[name] = shards_of(file)
    return checkpoints


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
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        check_trainers_folder(folder)
        return ()
    names = list(checkpoints)
    first = next((name for name in preferred if name in checkpoints), None)
    if first is not None:  # the other formats of this model do not count
        same = {*preferred, *ignored} - {first}
        names = [name for name in names if name not in same]
    if len(names) > 1:
        names = _sort_by_number(names)
        raise WeightsError(
            f"{folder} holds {len(names)} checkpoints ({', '.join(names)}): name one, weights={folder / names[-1]}"
        )
    return checkpoints[names[0]]


def read_by_transformers(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors of a folder that transformers reads: one file, or its shards; none if there are none."""
    return checkpoints_in(folder).get(_THEIRS[0], ())


def choice_in(folder: Path) -> dict[str, Any]:
    """Say which weights of a transformers folder are read if it holds others; return what a run records of that.

    Raises:
        WeightsError: no weights, in a folder that a training library makes for itself.
    """
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        check_trainers_folder(folder)
    record: dict[str, Any] = {}
    if (folder / ADAPTER).is_file():
        record["weights_adapter"] = "merged"
    read = next((name for name in _THEIRS if name in checkpoints), None)
    others = [name for name in checkpoints if name not in _THEIRS and not name.startswith("open_clip_")]
    if others and read is not None:
        others = _sort_by_number(others)
        _log.warning("note: %s: %s is read, and not %s beside it", folder, read, _some(others))
        record["weights_not_read"] = others
    return record


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
    with tempfile.TemporaryDirectory() as temporary:
        for file in folder.iterdir():
            if file.is_file() and not file.name.startswith("adapter_"):
                (Path(temporary) / file.name).symlink_to(file.resolve())
        yield Path(temporary)


def merge_adapter(model: Any, folder: Path) -> Any:
    """Return the model with the adapter of its folder merged into its weights; unchanged if there is none.

    Raises:
        WeightsError: the adapter is not of this model: peft would leave out those of its tensors that do not fit.
    """
    if not (folder / ADAPTER).is_file():
        return model
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing tensors, which the error or note below names
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

    def sort_key(name: str) -> list[tuple[str, int]]:
        parts = re.findall(r"(\D*)(\d*)", name)
        return [(text, int(number or 0)) for text, number in parts]

    return sorted(names, key=sort_key)


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"


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


def fit(state: Mapping[str, Any], model_names: Collection[str], where: str, prefix: str | None = None) -> Fit:
    """Drop the prefix behind which a model's tensors stand in a file, and the tensors outside of it; log a note.

    Args:
        state: tensors by name.
        model_names: that the model has; some of them suffice, where its size is not known yet.
        where: the file, for errors and for the note.
        prefix: as the user gave it; None: the one behind which all these names stand, else most of them.

    Raises:
        WeightsError: all names stand behind several prefixes; or none behind the one that was given.
    """
    if prefix is None:
        prefix = _find_prefix(state, model_names, where)
    else:
        as_given = prefix
        if prefix and not prefix.endswith("."):
            prefix += "."
        prefix = _INNER.sub("", prefix)  # as in the names
        if not _count_prefixes(state, model_names)[prefix]:
            raise WeightsError(f"{where}: no tensor of the model stands behind prefix={as_given}: {_begin(state)}")
    if not prefix:
        return Fit(dict(state))
    inside = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    outside = [name for name in state if not name.startswith(prefix)]
    left_out = tuple(dict.fromkeys(_first_part(name) for name in outside))
    text = f"note: {where}: the prefix {prefix} of the tensors' names is dropped"
    if left_out:
        text += f"; {len(outside)} tensors outside of it are left out: {_some(left_out)}"
    _log.warning(text)
    return Fit(inside, prefix, left_out)


def _first_part(name: str) -> str:
    """Return "visual.*" of "visual.proj.weight"; a name without parts as it is."""
    first, dot, _ = name.partition(".")
    return f"{first}.*" if dot else name


def _find_prefix(state: Mapping[str, Any], model_names: Collection[str], where: str) -> str:
    """Return the prefix behind which all names of the model stand, else most of them; "" rather than another.

    Raises:
        WeightsError: all names stand behind several prefixes.
    """
    complete = prefixes_of(state, model_names)
    if len(complete) > 1:
        prefixes = ", ".join(prefix or "none" for prefix in complete)
        raise WeightsError(
            f"{where} holds {len(complete)} models, behind the prefixes {prefixes}: name the one to load, as "
            f"{where},prefix={complete[-1]}"
        )
    if complete:
        return complete[0]
    prefix = common_prefix(state, model_names)
    counts = _count_prefixes(state, model_names)
    return prefix if counts[prefix] > counts[""] else ""


def prefixes_of(state: Iterable[str], model_names: Collection[str]) -> list[str]:
    """Return the prefixes, "" included, behind which all names of the model stand."""
    counts = _count_prefixes(state, model_names)
    return sorted(prefix for prefix, count in counts.items() if count == len(set(model_names)))


def common_prefix(names: Collection[str], model_names: Collection[str]) -> str:
    """Return the prefix behind which most names of the model stand; "" if they stand behind none."""
    counts = _count_prefixes(names, model_names)
    return counts.most_common(1)[0][0] if counts else ""


def _count_prefixes(state: Iterable[str], model_names: Collection[str]) -> Counter[str]:
    """Count how many names of the model stand behind each prefix, "" included."""
    counts = Counter[str]()
    names = set(model_names)
    for name in state:
        parts = name.split(".")
        for depth in range(len(parts)):
            if ".".join(parts[depth:]) in names:
                counts["".join(f"{part}." for part in parts[:depth])] += 1
    return counts


def _begin(state: Iterable[str]) -> str:
    begin = list(dict.fromkeys(f"{name.split('.')[0]}." for name in state))
    return f"its names begin with {_some(begin)}"
