"""Inspect a folder of the user's own data, and write a recipe and a strategy to start with."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.data.scene import Scenes
from negbench.datasets._read import list_files
from negbench.datasets._triplet_files import TripletTable, read_triplets
from negbench.datasets.image_files import EXTENSIONS
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.machine.files import atomic_write
from negbench.own.forewarn import forewarnings, of_data
from negbench.plugins.registry import registry
from negbench.settings.config import build_config
from negbench.settings.options import Compare

if TYPE_CHECKING:
    from negbench.datasets.dataset import Dataset

RECIPE, PLUGIN = "recipe.toml", "my_strategy.py"
_SEAL = "# written by `negbench init`, which rewrites this file as long as you do not edit it: "  # then a digest
_TABLES = (".jsonl", ".csv")
_NAMES = {"images": "ids", "texts": "texts"}
_COUNTED = 100_000  # files looked at
_LEFT_OUT = "leave them out with --allow-missing (allow_missing=True), which marks the result partial"
_NO_TRIPLETS = (
    "triplets: a .jsonl or .csv file with one row per query: reference and target (image names), text; name other "
    "columns with --columns text=NAME"
)


@dataclass
class Found:
    """Contents of a folder.

    Attributes:
        folder: the folder.
        columns: names of the triplets' columns, if not the usual ones.
        images: number of image files by extension.
        triplets: the file of triplets, and its table.
        vectors: 'images' or 'texts' -> a file of named embeddings.
        present: a line for each thing found.
        missing: a line for each thing missing or wrong, with its remedy.
        warnings: a line for each reason why comparisons will say little (`forewarn`).
    """

    folder: Path
    columns: str = ""
    images: Counter[str] = field(default_factory=Counter)
    triplets: tuple[Path, TripletTable] | None = None
    vectors: dict[str, Path] = field(default_factory=dict)
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
    """Inspect a folder, and check that its files fit together as a run would.

    Raises:
        NegbenchError: no such folder.
    """
    found = survey(folder, columns)
    _check(found)
    return found


def survey(folder: Path, columns: str = "") -> Found:
    """Inspect each file of a folder by itself; raise NegbenchError if there is no such folder.

    Args:
        folder: the folder to inspect.
        columns: names of the triplets' columns, as data set `triplets` takes them.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder}: no such folder")
    found = Found(folder.resolve(), columns)
    files = [file for file in list_files(found.folder)[:_COUNTED] if not file.name.startswith(".")]
    found.images = Counter(file.suffix.lower() for file in files if file.suffix.lower() in EXTENSIONS)
    if found.images:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in found.images.most_common())
        found.present.append(f"{found.images.total():,} images ({kinds})")
    unread = [problem for file in files if (problem := _table(found, file))]
    if found.triplets is None:
        found.missing += unread or [_NO_TRIPLETS]
    for file in files:
        _vectors(found, file)
    return found


def _table(found: Found, file: Path) -> str:
    """Record a file of triplets, if it is one; return what is wrong with any other table."""
    if file.suffix.lower() not in _TABLES:
        return ""
    try:
        table = read_triplets(file, found.columns)
    except NegbenchError as error:
        return str(error)
    if found.triplets is not None:
        found.present.append(f"{file.name}: triplets, too; the recipe uses {found.triplets[0].name}")
        return ""
    found.triplets = file, table
    splits = Counter(row.split for row in table.rows if row.split)
    parts = ", ".join(f"{count:,} {name}" for name, count in splits.items())
    found.present.append(f"{file.name}: {len(table.rows):,} triplets" + f" ({parts})" * bool(parts))
    return ""


def _vectors(found: Found, file: Path) -> None:
    """Record a file of named embeddings, of images or of texts."""
    if file.suffix != ".npz":
        return
    try:
        with np.load(file, allow_pickle=False) as arrays:
            keys = set(arrays.files)
    except Exception:  # whatever a damaged file raises: it is not one of ours
        return
    role = next((role for role, names in _NAMES.items() if names in keys), None)
    if role is None or len(keys) == 1:
        return
    if role in found.vectors:
        found.present.append(f"{file.name}: embeddings of {role}, too; the recipe uses {found.vectors[role].name}")
        return
    found.vectors[role] = file
    found.present.append(f"{file.name}: embeddings of {role}")


def _check(found: Found) -> None:
    """Load what was found as a run would; record as missing whatever is absent or does not fit."""
    if not found.images and not found.vectors:
        found.missing.append(
            "images (.jpg, .png, .webp), or embeddings of images and of texts (.npz with ids and features, texts and "
            "features)"
        )
    if len(found.vectors) == 1:
        (there,) = found.vectors
        lacking = "texts" if there == "images" else "images"
        found.missing.append(
            f"embeddings of {lacking}: save them beside {found.vectors[there].name}, e.g. "
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
            with np.load(found.vectors["images"], allow_pickle=False) as arrays:
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
            f"no embeddings: `negbench embed {shell(found.folder)}{columns} --encoder ...` makes them with your own "
            "encoder"
        )


def load_split(found: Found, split: str, *, images: bool, **options: Any) -> Dataset:
    """Load one split of the triplets as a run does; raise NegbenchError as it would, also for missing images."""
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
        raise DataError(f"{file.name}: split {split} has no queries")
    return dataset


def _dataset(found: Found) -> dict[str, Any]:
    """Return the recipe's section [dataset]."""
    assert found.triplets is not None
    columns = {"columns": found.columns} if found.columns else {}
    return {"name": "triplets", "file": str(found.triplets[0]), **columns}


def _backbone(found: Found) -> dict[str, Any]:
    """Return the options of `precomputed`."""
    return {role: str(file) for role, file in found.vectors.items()}


# --- files -------------------------------------------------------------------------------------------------------


def write(found: Found) -> list[Path]:
    """Write the recipe, and a strategy to edit if there is none; return the files written.

    A recipe that `write` made and nobody has edited is rewritten: with embeddings, once they exist.

    Raises:
        OptionError: the user has edited the recipe.
    """
    target, plugin, text = found.folder / RECIPE, found.folder / PLUGIN, recipe(found)
    if target.exists() and not _untouched(target.read_text(encoding="utf-8", errors="replace")):
        backbone = ", ".join(f"{name} = {toml(value)}" for name, value in _backbone(found).items())
        use = f"set name = {toml('precomputed')}, {backbone} in its [backbone], or " * bool(backbone)
        raise OptionError(f"{target} already exists and was edited after `negbench init` wrote it: {use}rename it")
    texts = {target: f"{_SEAL}{_digest(text)}\n{text}"}
    if not plugin.exists():
        texts[plugin] = _filled("my_strategy.j2")
    for path, content in texts.items():
        with atomic_write(path) as file:
            file.write(content)
    return list(texts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _untouched(text: str) -> bool:
    """Whether a recipe is unchanged since `write` made it."""
    seal, _, rest = text.partition("\n")
    return seal == f"{_SEAL}{_digest(rest)}"


def recipe(found: Found) -> str:
    """Return the recipe as text."""
    assert found.triplets is not None
    backbone: Any = registry.get("backbones", "precomputed" if found.vectors else "tiny")
    return _filled(
        "recipe.toml.j2",
        folder=found.folder,
        lines=[*found.present, *found.warnings],
        dataset=_dataset(found),
        vectors=found.vectors,
        backbone=_backbone(found),
        split=any(row.split for row in found.triplets[1].rows),
        batch_size=next((size for size in (64, 32, 16, 8, 4, 2) if 4 * size <= found.train), 2),
        lr=float(backbone.recommended["lr"]),
    )


def _filled(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    place = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=place, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["toml"] = toml
    return environment.get_template(template).render(values)


def toml(value: Any) -> str:
    """Format a value as a TOML string."""
    return json.dumps(str(value), ensure_ascii=False)  # a TOML basic string has the same syntax


def commands(found: Found) -> list[str]:
    """Return the commands to run next, in order."""
    folder = shell(found.folder)
    own = f"--recipe {folder}/{RECIPE}"
    return [
        f"negbench audit {own} --strategy qure,top-k,my-strategy",
        f"negbench compare {own} --name first",
        f"negbench mine {own} --strategy qure --draws 5 --out {folder}/negatives.parquet",
    ]


def shell(path: Path) -> str:
    """Quote a path for a shell."""
    return shlex.quote(str(path))
