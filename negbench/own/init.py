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

from negbench.checks.audit import audit
from negbench.checks.forewarn import forewarnings, of_data
from negbench.checks.subject import open_subject
from negbench.data.scene import Scenes
from negbench.datasets._read import list_files
from negbench.datasets._triplet_files import TripletTable, read_triplets
from negbench.datasets.image_files import EXTENSIONS
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError, printable
from negbench.machine.files import atomic_write, cache_dir, sweep
from negbench.plugins.registry import registry
from negbench.settings.command_options import Audit
from negbench.settings.config import build_config, resolved
from negbench.settings.options import Compare

if TYPE_CHECKING:
    from negbench.datasets.dataset import Dataset

RECIPE, PLUGIN = "recipe.toml", "my_strategy.py"
_SEAL = "# written by `negbench init`, which rewrites this file as long as you do not edit it: "  # then a digest
_TABLES = (".jsonl", ".csv")
_NAMES = {"images": "ids", "texts": "texts"}
_COUNTED = 100_000  # files looked at
_LEFT_OUT = "leave them out with --allow-missing (allow_missing=True), which marks the result partial"
_READ_IT = f'read it before you add plugins = ["{PLUGIN}"]'
_NO_TRIPLETS = (
    "no triplets: save a .jsonl or .csv file with one row per query: reference and target (image names), text; name "
    "other columns with --columns text=NAME"
)


@dataclass
class Scan:
    """Contents of a folder.

    Attributes:
        folder: the folder.
        columns: names of the triplets' columns, if not the usual ones.
        images: number of image files by extension.
        triplets: the file of triplets, and its table.
        vectors: 'images' or 'texts' -> a file of named embeddings.
        unused: other files of arrays, with the names of these.
        present: a line for each thing found.
        missing: a line for each thing missing or wrong, with its remedy.
        warnings: a line for each reason why comparisons will say little (`forewarn`).
        window: strategy that draws from the likely best place in the ranking, where there are embeddings to rank.
    """

    folder: Path
    columns: str = ""
    images: Counter[str] = field(default_factory=Counter)
    triplets: tuple[Path, TripletTable] | None = None
    vectors: dict[str, Path] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    window: str = ""
    train: int = 0  # queries
    val: int = 0

    @property
    def plugin(self) -> Path:
        """Place of the example strategy."""
        return self.folder / PLUGIN

    @property
    def trusted(self) -> bool:
        """Whether the example strategy is one that `write` made on this machine, or is still to be made."""
        return not self.plugin.exists() or _mark(self.plugin).exists()

    @property
    def comparable(self) -> bool:
        """Whether audits and comparisons can run: triplets, and images or embeddings of all that they name."""
        return not self.missing and self.triplets is not None


def inspect_folder(folder: Path, columns: str = "") -> Scan:
    """Inspect a folder, and check that its files fit together as a run would.

    Raises:
        NegbenchError: no such folder.
    """
    scan = survey(folder, columns)
    _check(scan)
    return scan


def survey(folder: Path, columns: str = "") -> Scan:
    """Inspect each file of a folder by itself; raise NegbenchError if there is no such folder.

    Args:
        folder: the folder to inspect.
        columns: names of the triplets' columns, as data set `triplets` takes them.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder}: no such folder")
    sweep(folder)  # what a killed `init` or `embed` left
    scan = Scan(folder.resolve(), columns)
    if not scan.trusted:
        scan.warnings.append(f"the recipe leaves out {PLUGIN}, which init did not write here: {_READ_IT}")
    files = [file for file in list_files(scan.folder)[:_COUNTED] if not file.name.startswith(".")]
    scan.images = Counter(file.suffix.lower() for file in files if file.suffix.lower() in EXTENSIONS)
    if scan.images:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in scan.images.most_common())
        scan.present.append(f"{scan.images.total():,} images ({kinds})")
    unread = [problem for file in files if (problem := _table(scan, file))]
    if scan.triplets is None:
        scan.missing += unread or [_NO_TRIPLETS]
    for file in files:
        _vectors(scan, file)
    return scan


def _table(scan: Scan, file: Path) -> str:
    """Record a file of triplets, if it is one; return what is wrong with any other table."""
    if file.suffix.lower() not in _TABLES:
        return ""
    try:
        table = read_triplets(file, scan.columns)
    except NegbenchError as error:
        return str(error)
    if scan.triplets is not None:
        scan.present.append(f"{file.name}: triplets, too, but the recipe uses {scan.triplets[0].name}")
        return ""
    scan.triplets = file, table
    splits = Counter(row.split for row in table.rows if row.split)
    parts = ", ".join(f"{count:,} {name}" for name, count in splits.items())
    scan.present.append(f"{file.name}: {len(table.rows):,} triplets" + f" ({parts})" * bool(parts))
    return ""


def _vectors(scan: Scan, file: Path) -> None:
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
        scan.unused.append(f"{file.name} has {', '.join(sorted(keys)[:9])}")
        return
    if role == "images" and "text" in file.stem.lower():
        scan.missing.append(
            f"{file.name}: its names are 'ids', which are images'; of texts save np.savez('{file.name}', texts=names, "
            "features=vectors)"
        )
        return
    if role in scan.vectors:
        scan.present.append(f"{file.name}: embeddings of {role}, too, but the recipe uses {scan.vectors[role].name}")
        return
    scan.vectors[role] = file
    scan.present.append(f"{file.name}: embeddings of {role}")


def _check(scan: Scan) -> None:
    """Load what was found as a run would; record as missing whatever is absent or does not fit."""
    unused = f"; {'; '.join(scan.unused)}" * bool(scan.unused)
    if not scan.images and not scan.vectors:
        scan.missing.append(
            "no images (.jpg, .png, .webp), nor embeddings of images and of texts (.npz with ids and features, texts "
            f"and features{unused})"
        )
    if len(scan.vectors) == 1 and not scan.missing:
        (there,) = scan.vectors
        lacking = "texts" if there == "images" else "images"
        scan.missing.append(
            f"no embeddings of {lacking}: save them beside {scan.vectors[there].name}, e.g. "
            f"np.savez('{lacking}.npz', {_NAMES[lacking]}=names, features=vectors){unused}"
        )
    if scan.missing:
        return
    assert scan.triplets is not None
    margin, stored = float(Compare.model_fields["margin"].default) / 100, scan.images.total()
    try:
        train, val = (load_split(scan, split, images=not scan.vectors) for split in ("train", "val"))
        scan.train, scan.val = len(train.queries), len(val.queries)
        if scan.vectors:
            backbone = registry.make("backbones", "precomputed", **_backbone(scan))
            for each in (train, val):
                backbone.features_of(each.images)
                backbone.tokenize([query.text for query in each.queries])
            with np.load(scan.vectors["images"], allow_pickle=False) as arrays:
                stored = len(arrays["ids"])
            own = {"dataset": _dataset(scan), "backbone": {"name": "precomputed", **_backbone(scan)}}
            config = build_config([{**own, "strategy": "in-batch"}])
            scan.window = audit(open_subject(resolved(config), "train", Audit(), Display()), {}, Audit()).window
    except NegbenchError as error:
        scan.missing.append(str(error))
        return
    scan.present.append(f"{scan.train:,} train and {scan.val:,} val queries, {len(val.images):,} images in val")
    if scan.vectors:
        scan.warnings += forewarnings([config], margin, Display(), Scenes(), stored)
    else:
        scan.warnings += of_data(train, val, margin, {"gallery": None}, stored)
        columns = f" --columns {shlex.quote(scan.columns)}" * bool(scan.columns)
        scan.present.append(
            f"no embeddings: `negbench embed {shell(scan.folder)}{columns} --encoder ...` makes them with your own "
            "encoder"
        )


def load_split(scan: Scan, split: str, *, images: bool, **options: Any) -> Dataset:
    """Load one split of the triplets as a run does; raise NegbenchError as it would, also for missing images."""
    section = _dataset(scan)
    file = Path(section["file"])
    try:
        dataset: Dataset = registry.make(
            "datasets", section.pop("name"), **section, root=scan.folder, split=split, images=images, **options
        )
    except DataError as error:
        text = str(error).replace(_LEFT_OUT, f"take their rows out of {file.name}")  # there is no such option here
        raise DataError(text) from error
    if not dataset.queries:
        raise DataError(f"{file.name}: split {split} has no queries")
    return dataset


def _dataset(scan: Scan) -> dict[str, Any]:
    """Return the recipe's section [dataset]."""
    assert scan.triplets is not None
    columns = {"columns": scan.columns} if scan.columns else {}
    return {"name": "triplets", "file": str(scan.triplets[0]), **columns}


def _backbone(scan: Scan) -> dict[str, Any]:
    """Return the options of `precomputed`."""
    return {role: str(file) for role, file in scan.vectors.items()}


# --- files -------------------------------------------------------------------------------------------------------


def write(scan: Scan) -> list[Path]:
    """Write the recipe, and a strategy to edit if there is none; return the files written.

    A recipe that `write` made and nobody has edited is rewritten: with embeddings, once they exist.

    Raises:
        OptionError: the user has edited the recipe.
    """
    target, plugin = scan.folder / RECIPE, scan.plugin
    if target.exists() and not _untouched(target.read_text(encoding="utf-8", errors="replace")):
        backbone = ", ".join(f"{name} = {toml(value)}" for name, value in _backbone(scan).items())
        use = f"set name = {toml('precomputed')}, {backbone} in its [backbone], or " * bool(backbone)
        raise OptionError(f"{target} already exists and was edited after `negbench init` wrote it: {use}rename it")
    text = recipe(scan)
    texts = {target: f"{_SEAL}{_digest(text)}\n{text}"}
    if not plugin.exists():
        texts |= {_mark(plugin): f"{plugin}\n", plugin: _filled("my_strategy.j2")}
    for path, content in texts.items():
        with atomic_write(path) as file:
            file.write(content)
    return [path for path in texts if path.parent == scan.folder]


def _mark(plugin: Path) -> Path:
    """Return the file, outside the folder, that notes that `write` made this plug-in."""
    return cache_dir() / "init" / _digest(str(plugin))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _untouched(text: str) -> bool:
    """Whether a recipe is unchanged since `write` made it."""
    seal, _, rest = text.partition("\n")
    return seal == f"{_SEAL}{_digest(rest)}"


def recipe(scan: Scan) -> str:
    """Return the recipe as text."""
    assert scan.triplets is not None
    backbone: Any = registry.get("backbones", "precomputed" if scan.vectors else "tiny")
    return _filled(
        "recipe.toml.j2",
        folder=scan.folder,
        lines=map(printable, [*scan.present, *scan.warnings]),
        name=printable(scan.folder.name),
        trusted=scan.trusted,
        window=scan.window,
        dataset=_dataset(scan),
        vectors=scan.vectors,
        backbone=_backbone(scan),
        split=any(row.split for row in scan.triplets[1].rows),
        batch_size=next((size for size in (64, 32, 16, 8, 4, 2) if 4 * size <= scan.train), 2),
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
    text = json.dumps(str(value), ensure_ascii=False)  # a TOML basic string has the same syntax
    return text.replace("\x7f", "\\u007f")  # except for this character


def commands(scan: Scan) -> list[str]:
    """Return the commands to run next, in order."""
    folder = shell(scan.folder)
    own, mine = f"--recipe {folder}/{RECIPE}", ",my-strategy" * scan.trusted
    return [
        f"negbench audit {own} --strategy qure,top-k{mine}",
        f"negbench compare {own} --name first",
        f"negbench mine {own} --strategy qure --draws 5 --out {folder}/negatives.parquet",
    ]


def shell(path: Path) -> str:
    """Quote a path for a shell."""
    return shlex.quote(str(path))
