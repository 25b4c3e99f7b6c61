"""Inspects a folder of the user's own data, and writes a recipe and a strategy to begin with."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.config import build_config
from negbench.data.scene import Scenes
from negbench.datasets._read import list_files
from negbench.datasets._triplet_files import REQUIRED, TripletTable, read_triplets
from negbench.datasets.image_files import EXTENSIONS
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.files import atomic_write
from negbench.options import Compare
from negbench.own.forewarn import forewarnings, of_data
from negbench.registry import registry

if TYPE_CHECKING:
    from negbench.datasets.dataset import Dataset

RECIPE, PLUGIN = "recipe.toml", "my_strategy.py"
_SEAL = (
    "# made by `negbench init`, which makes it anew as long as you leave it as it is: "  # and the digest of the rest
)
_TABLES = (".jsonl", ".csv")
_NAMES = {"images": "ids", "texts": "texts"}
_COUNTED = 100_000  # files looked at
_LEFT_OUT = "leave them out with --allow-missing (allow_missing=True), which marks the result partial"

NO_TRIPLETS = "triplets: a .jsonl or .csv file with a row a query: reference and target (names of images), text"

_SKELETON = '''"""My strategy: images that score below the target by less than `margin`.

Change `pool`: it sees the scores of a block of queries and says which images may be drawn for each.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench import ScoreView, Strategy, tunable

PAPER = "mine"


@dataclass(frozen=True)
class MyStrategy(Strategy):
    """Pool: s+ - margin < s < s+, s+ the target's score."""

    key = "my-strategy"
    margin: float = tunable(0.2, low=0.05, high=0.5)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool: what may be drawn. `view.scores` [B, N], any sign, higher is better; `view.allowed` [B, N]."""
        gap = view.positive[:, None] - view.scores
        return view.allowed & (gap > 0) & (gap < self.margin)
'''


@dataclass
class Found:
    """What lies in a folder.

    Attributes:
        folder: that was looked at.
        columns: names of the columns of the triplets, where they are not the usual ones.
        images: image files by ending.
        triplets: the file of triplets, and what it holds.
        vectors: 'images' or 'texts' -> a file of embeddings with names, and the key of its vectors.
        present: a line for each thing that was found.
        missing: a line for each thing that is not there, or not right, with the mend.
        warnings: a line for each reason why comparisons will say little (`forewarn`).
    """

    folder: Path
    columns: str = ""
    images: Counter[str] = field(default_factory=Counter)
    triplets: tuple[Path, TripletTable] | None = None
    vectors: dict[str, tuple[Path, str]] = field(default_factory=dict)
    present: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    train: int = 0  # queries
    val: int = 0

    @property
    def comparable(self) -> bool:
        """Whether audits and comparisons can run: triplets, and images or embeddings of all that they name."""
        return not self.missing and self.triplets is not None


def look(folder: Path, columns: str = "") -> Found:
    """Read what lies in a folder, and check that it fits together as a run would.

    Raises:
        NegbenchError: no such folder.
    """
    found = survey(folder, columns)
    _check(found)
    return found


def survey(folder: Path, columns: str = "") -> Found:
    """What lies in a folder, each file by itself. Raises NegbenchError where there is no such folder.

    Args:
        folder: to be inspected.
        columns: names of the columns of the triplets, as data set `triplets` takes them.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder}: there is no such folder")
    found = Found(folder.resolve(), columns)
    files = [file for file in list_files(found.folder)[:_COUNTED] if not file.name.startswith(".")]
    found.images = Counter(file.suffix.lower() for file in files if file.suffix.lower() in EXTENSIONS)
    if found.images:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in found.images.most_common())
        found.present.append(f"{found.images.total():,} images ({kinds})")
    for file in files:
        _table(found, file)
    for file in files:
        _vectors(found, file)
    return found


def _table(found: Found, file: Path) -> None:
    """A file of triplets, if it is one."""
    if file.suffix.lower() not in _TABLES:
        return
    columns = _columns(file) | ({part.partition("=")[0].strip() for part in found.columns.split(",")} - {""})
    there = [name for name in REQUIRED if name in columns]
    if len(there) < 2 and not {"caption", "candidate", "query"} & set(columns):
        return
    if len(there) < len(REQUIRED):
        lacking = [name for name in REQUIRED if name not in columns]
        named = ",".join(f"{name}=NAME" for name in lacking)
        found.missing.append(
            f"{file.name} lacks the column {', '.join(lacking)} (it has {', '.join(sorted(columns)[:8])}): want "
            f"reference, text, target; name others with --columns {named}"
        )
        return
    if found.triplets is not None:
        found.present.append(f"{file.name}: triplets, too; the recipe takes {found.triplets[0].name}")
        return
    try:
        table = read_triplets(file, found.columns)
    except NegbenchError as error:
        found.missing.append(str(error))
        return
    found.triplets = file, table
    splits = Counter(row.split for row in table.rows if row.split)
    parts = ", ".join(f"{count:,} {name}" for name, count in splits.items())
    found.present.append(f"{file.name}: {len(table.rows):,} triplets" + f" ({parts})" * bool(parts))


def _columns(file: Path) -> set[str]:
    """Column names of the first row; none where the file cannot be read."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            first = next((line for line in lines if line.strip()), "")
        if file.suffix == ".csv":
            return {name.strip().strip('"') for name in re.split("[,;\t]", first)}
        entry = json.loads(first)
        return set(entry) if isinstance(entry, dict) else set()
    except (OSError, ValueError, RecursionError):
        return set()


def _vectors(found: Found, file: Path) -> None:
    """Embeddings with names, of images or of texts."""
    if file.suffix != ".npz":
        return
    names, keys = _keys(file)
    role = next((role for role, wanted in _NAMES.items() if wanted in names), None)
    if role is None or not keys:
        return
    if role in found.vectors:
        found.present.append(f"{file.name}: embeddings of {role}, too; the recipe takes {found.vectors[role][0].name}")
        return
    key = "features" if "features" in keys else min(keys)
    found.vectors[role] = file, key
    found.present.append(f"{file.name}: embeddings of {role}" + f" ('{key}')" * (key != "features"))


def _keys(file: Path) -> tuple[set[str], set[str]]:
    """Names of what names the rows, and of everything else, in a file of vectors."""
    known = set(_NAMES.values())
    try:
        with np.load(file, allow_pickle=False) as arrays:
            keys = set(arrays.files)
    except Exception:  # whatever a damaged file does: it is none of ours
        return set(), set()
    return keys & known, keys - known


def _check(found: Found) -> None:
    """Load what was found as a run would; what does not fit is missing, and so is what is not there."""
    if found.triplets is None and not found.missing:  # a file of triplets that cannot be read says why
        found.missing.append(NO_TRIPLETS)
    if not found.images and not found.vectors:
        found.missing.append(
            "images (.jpg, .png, .webp), or embeddings of images and of texts (.npz with ids and features, texts and "
            "features)"
        )
    if len(found.vectors) == 1:
        (there,) = found.vectors
        lacking = "texts" if there == "images" else "images"
        found.missing.append(
            f"embeddings of {lacking}: save them beside {found.vectors[there][0].name}, e.g. "
            f"np.savez('{lacking}.npz', {_NAMES[lacking]}=names, features=vectors)"
        )
    if found.missing:
        return
    assert found.triplets is not None
    margin, stored = float(Compare.model_fields["margin"].default) / 100, found.images.total()
    try:
        train, val = (load_split(found, split, images=not found.vectors) for split in ("train", "val"))
        found.train, found.val = len(train.queries), len(val.queries)
        if found.vectors:
            backbone = registry.make("backbones", "precomputed", **_backbone(found))
            for each in (train, val):
                backbone.features_of(each.images)
                backbone.tokenize([query.text for query in each.queries])
            with np.load(found.vectors["images"][0], allow_pickle=False) as arrays:
                stored = len(arrays["ids"])
    except NegbenchError as error:
        found.missing.append(str(error))
        return
    found.present.append(f"{found.train:,} train and {found.val:,} val queries, {len(val.images):,} images in val")
    if found.vectors:
        own = {"dataset": _dataset(found), "backbone": {"name": "precomputed", **_backbone(found)}}
        config = build_config([{**own, "strategy": "in-batch"}])
        found.warnings += forewarnings([config], margin, Display(), Scenes(), stored)
    else:
        found.warnings += of_data(train, val, margin, {"gallery": None}, stored)
        columns = f" --columns {shlex.quote(found.columns)}" * bool(found.columns)
        found.present.append(
            f"no embeddings: `negbench embed {shell(found.folder)}{columns} --encoder ...` makes them by an encoder of "
            "yours"
        )


def load_split(found: Found, split: str, *, images: bool, **options: Any) -> Dataset:
    """One split of the triplets, as a run loads it. Raises NegbenchError where it would, of missing images, too."""
    section = _dataset(found)
    file = Path(section["file"])
    try:
        dataset: Dataset = registry.make(
            "datasets", section.pop("name"), **section, root=found.folder, split=split, images=images, **options
        )
    except DataError as error:
        text = str(error).replace(_LEFT_OUT, f"take their rows out of {file.name}")  # there is no such option here
        raise DataError(text) from error
    if not dataset.queries:
        raise DataError(f"{file.name}: there is no query in split {split}")
    return dataset


def _dataset(found: Found) -> dict[str, Any]:
    """The recipe's section."""
    assert found.triplets is not None
    columns = {"columns": found.columns} if found.columns else {}
    return {"name": "triplets", "file": str(found.triplets[0]), **columns}


def _backbone(found: Found) -> dict[str, Any]:
    """Options of `precomputed`."""
    options: dict[str, Any] = {}
    for role, (file, key) in found.vectors.items():
        options[role] = str(file)
        if key != "features":
            options[f"{role[:-1]}_key"] = key
    return options


# --- files -------------------------------------------------------------------------------------------------------


def write(found: Found) -> list[Path]:
    """Write the recipe, and a strategy to change where there is none; returns the files that were written.

    A recipe that `write` made and nobody has changed since is made anew: of embeddings, once they are there.

    Raises:
        OptionError: a recipe of the user's own is there.
    """
    target, plugin, text = found.folder / RECIPE, found.folder / PLUGIN, recipe(found)
    if target.exists() and not _untouched(target.read_text(encoding="utf-8", errors="replace")):
        backbone = ", ".join(f"{name} = {toml(value)}" for name, value in _backbone(found).items())
        use = f"put into its [backbone] name = {toml('precomputed')}, {backbone}; or " * bool(backbone)
        raise OptionError(f"{target} is there already, and is not as `negbench init` wrote it: {use}rename it")
    texts = {target: f"{_SEAL}{_digest(text)}\n{text}"} | ({} if plugin.exists() else {plugin: _SKELETON})
    for path, content in texts.items():
        with atomic_write(path) as file:
            file.write(content)
    return list(texts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _untouched(text: str) -> bool:
    """Whether a recipe is as `write` made it."""
    seal, _, rest = text.partition("\n")
    return seal == f"{_SEAL}{_digest(rest)}"


def recipe(found: Found) -> str:
    """The recipe as text."""
    assert found.triplets is not None
    table = found.triplets[1]
    split = any(row.split for row in table.rows)
    size = next((size for size in (64, 32, 16, 8, 4, 2) if 4 * size <= found.train), 2)
    lines = [
        f"# {found.folder.name}:",
        *(f"# - {line}" for line in [*found.present, *found.warnings]),
        "# A line that begins with '#' shows a default, or another choice. `negbench list KIND NAME` explains options.",
        "",
        f"plugins = [{toml(PLUGIN)}] # Python files with strategies, losses, ... of your own",
        "",
        "[dataset]",
        *(f"{name} = {toml(value)}" for name, value in _dataset(found).items()),
    ]
    if not found.vectors:
        lines.append(f"root = {toml(found.folder)} # where the images lie")
    if not split:
        lines.append("# val_fraction = 0.2 # the file has no column `split`: this share of its targets becomes val")
    gallery = '"gallery.txt" # a file with one image a line'
    if found.vectors:
        gallery = f"{toml(found.vectors['images'][0])} # all images that have embeddings"
    lines += [
        f"# gallery = {gallery}: rank these, too, not only those that val names",
        "# exclude_reference = true # leave a query's own reference out of its ranking",
        "",
        "[backbone]",
    ]
    if found.vectors:
        lines += ['name = "precomputed" # projections and a fusion are trained on top of your embeddings']
        lines += [f"{name} = {toml(value)}" for name, value in _backbone(found).items()]
    else:
        lines += [
            "# `tiny` ships with negbench and is quick, but learned from garments: for the first hour, not for results",
            'name = "tiny"',
            '# name = "clip"',
            '# weights = "openai" # where a hub can be reached, or a file',
        ]
    lines += [
        "",
        "[train]",
        "epochs = 10",
        f"batch_size = {size}",
        f"lr = {_rate(found)} # the backbone's default",
        "",
        "[compare] # read by `negbench compare` alone",
        'strategies = ["in-batch", "all-corpus", "top-k", "qure", "cirqrs", "dqe", "my-strategy"]',
        "seeds = 5",
        "# " * (not found.vectors) + 'lr = "grid" # first choose the rate of each strategy, on a part of train',
    ]
    return "\n".join(lines) + "\n"


def _rate(found: Found) -> float:
    """Learning rate of the recipe's backbone."""
    cls: Any = registry.get("backbones", "precomputed" if found.vectors else "tiny")
    return float(cls.recommended["lr"])


def toml(value: Any) -> str:
    """A string as TOML writes it."""
    return json.dumps(str(value), ensure_ascii=False)  # a TOML basic string is written alike


def commands(found: Found) -> list[str]:
    """What to do next, in this order."""
    folder = shell(found.folder)
    own = f"--recipe {folder}/{RECIPE}"
    return [
        f"negbench audit {own} --strategy qure,top-k,my-strategy",
        f"negbench compare {own} --name first",
        f"negbench mine {own} --strategy qure --draws 5 --out {folder}/negatives.parquet",
    ]


def shell(path: Path) -> str:
    """A path as a shell reads it."""
    return shlex.quote(str(path))
