"""Inspect a folder of the user's own data, and write a recipe and a strategy to start with."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.analysis.advice import AGES, TEMPERATURES
from negbench.campaign.forewarn import forewarnings, of_data
from negbench.data.images import with_features
from negbench.data.scene import DataCache, load_backbone
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError, printable
from negbench.files.image_files import is_picture
from negbench.files.reader import list_files
from negbench.files.row_files import CELLS, ENDINGS, SPLITS, read_rows
from negbench.files.triplet_files import TripletTable, has_columns, read_triplets, split_word
from negbench.files.vector_files import (
    NAMES,
    UNNAMED_INDEX,
    conversion,
    names_beside,
    numbered_columns,
    read_list,
    read_vectors,
)
from negbench.machine.files import cache_dir, sweep, write_text
from negbench.machine.received import npy_array, npz_arrays, open_parquet, open_regular, read_text
from negbench.own.audit import audit
from negbench.own.scored_split import open_split
from negbench.plugins.registry import registry
from negbench.settings.command_options import Audit
from negbench.settings.config import RunConfig, build_config, resolve
from negbench.settings.options import Compare

if TYPE_CHECKING:
    from negbench.contracts import Backbone
    from negbench.datasets.dataset import Dataset

RECIPE = "recipe.toml"
PLUGIN = "my_strategy.py"
_SEAL = "# written by `negbench init`, which rewrites this file as long as you do not edit it: "  # then a digest
_NAMES = {"images": "ids", "texts": "texts"}
_PANDAS = {".xlsx": "excel", ".xls": "excel", ".pkl": "pickle", ".feather": "feather", ".tsv": "csv", ".jsonl": "json"}
_READS = {".tsv": ", sep='\\t'", ".jsonl": ", lines=True"}
_SAVE = "to_json({!r}, orient='records', lines=True)"
_CONVERT = {  # what was seen, and the line that converts it
    ".arrow": "datasets.Dataset.from_file('{0}').to_json('{1}.jsonl')",
    **dict.fromkeys((".tar", ".tar.gz", ".tgz"), "tar xf {0}"),
    **{".zip": "unzip {0}", ".gz": "gunzip {0}", ".bz2": "bunzip2 {0}", ".zst": "unzstd {0}"},
}
# weights of a model, which are no embeddings
_MODELS = re.compile(r"(.*model.*|optim.*|sched.*|training_args|rng_state.*|epoch_.*|checkpoint.*)\.\w+", re.IGNORECASE)
_COUNTED = 100_000  # files looked at
_HEADER = 2**20  # bytes of a table's first line that are looked at
_COLUMNS_OF_NAMES = 2  # that a table of embeddings has at most beside a column for each number
_SHOWN = 3  # tables without triplets
_BESIDE_BATCH = [
    "in-batch", "in-batch+all-corpus", "in-batch+top-k", "in-batch+qure", "in-batch+cirqrs", "in-batch+dqe",
]  # fmt: skip
_SEEDS = 5
_READ_IT = f'read it before you add plugins = ["{PLUGIN}"]'
_NO_TRIPLETS = (
    f"no triplets: save a {', '.join(ENDINGS)} file with one row per query: reference and target (image names), text; "
    "name other columns with --columns text=NAME"
)


@dataclass
class FolderContents:
    """Contents of a folder.

    Attributes:
        folder: the folder.
        columns: names of the triplets' columns, if not the usual ones.
        allow_missing: whether images may be missing.
        images: number of image files by extension.
        triplets: the files of triplets, and what they hold together.
        vectors: 'images' or 'texts' -> a file of named embeddings.
        unused: other files of arrays, with the names of these, and files to convert, with the line that does it.
        present: a line for each thing found.
        missing: a line for each thing missing or wrong, with its remedy.
        warnings: a line for each reason why comparisons will say little (`forewarn`).
        window: strategy that draws from the likely best part of the ranking, where there are embeddings to rank.
    """

    folder: Path
    columns: str = ""
    allow_missing: bool = False
    images: Counter[str] = field(default_factory=Counter)
    triplets: tuple[tuple[Path, ...], TripletTable] | None = None
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
        """Path of the example strategy."""
        return self.folder / PLUGIN

    @property
    def trusted(self) -> bool:
        """Whether the example strategy is one that `write` made on this machine, or is still to be made."""
        return not self.plugin.exists() or _mark(self.plugin).exists()

    @property
    def comparable(self) -> bool:
        """Whether audits and comparisons can run: triplets, and images or embeddings of all that they name."""
        return not self.missing and self.triplets is not None


def inspect_folder(folder: Path, columns: str = "", allow_missing: bool = False) -> FolderContents:
    """Inspect a folder, and check that its files fit together as a run would.

    Raises:
        NegbenchError: no such folder.
    """
    scan = survey(folder, columns, allow_missing)
    _check(scan)
    return scan


def survey(folder: Path, columns: str = "", allow_missing: bool = False) -> FolderContents:
    """Inspect each file of a folder by itself; raise NegbenchError if there is no such folder.

    Args:
        folder: the folder to inspect.
        columns: names of the triplets' columns, as data set `triplets` takes them.
        allow_missing: as for the data set.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder}: no such folder")
    sweep(folder)  # what a killed `init` or `embed` left
    scan = FolderContents(folder.resolve(), columns, allow_missing)
    if not scan.trusted:
        scan.warnings.append(f"the recipe leaves out {PLUGIN}, which init did not write here: {_READ_IT}")
    files = [file for file in list_files(scan.folder)[:_COUNTED] if not file.name.startswith(".")]
    scan.images = Counter(file.suffix.lower() for file in files if is_picture(file))
    if scan.images:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in scan.images.most_common())
        scan.present.append(f"{scan.images.total():,} images ({kinds})")
    for file in files:
        line = _conversion(file)
        if line:
            scan.unused.append(line)
    _triplets(scan, files)
    for file in files:
        _vectors(scan, file)
        _unread_table(scan, file)
    return scan


def _conversion(file: Path) -> str:
    """Return a file's name with the line that converts it; "" for one that needs none."""
    ending = file.suffix.lower()
    if ending in _PANDAS and ending not in ENDINGS:
        return f"{file.name}: {_reading(file)}.{_SAVE.format(f'{file.stem}.jsonl')}"
    if ending not in ENDINGS and not _MODELS.fullmatch(file.name):
        line = conversion(file)
        if line:
            return f"{file.name}: {line}"
    for end, line in _CONVERT.items():
        if file.name.lower().endswith(end):
            return f"{file.name}: {line.format(file.name, file.stem)}"
    return ""


def _reading(file: Path) -> str:
    ending = file.suffix.lower()
    return f"pandas.read_{_PANDAS.get(ending, ending[1:])}({file.name!r}{_READS.get(ending, '')})"


def _triplets(scan: FolderContents, files: Sequence[Path]) -> None:
    """Record the files of triplets, or what is wrong with every other table."""
    tables: dict[Path, TripletTable] = {}
    errors: dict[Path, str] = {}
    for file in files:
        if file.suffix.lower() in ENDINGS:
            try:
                tables[file] = read_triplets([file], scan.columns, [scan.folder])
            except NegbenchError as error:
                errors[file] = str(error)
    if not tables:
        scan.missing += _unreadable_tables(scan, files, errors)
        return
    mined = [file for file, table in tables.items() if {"negative", "negatives"} & {*table.columns}]
    candidates = [file for file in tables if file not in mined] or mined
    with _note_errors(scan):
        chosen = _choose_files(scan, {file: tables[file] for file in candidates})
        scan.triplets = chosen, read_triplets(chosen, scan.columns, [scan.folder])
    if scan.triplets is None:
        return
    chosen, table = scan.triplets
    scan.missing += _unreadable_splits(scan, [_split_of(scan, file, tables[file]) for file in chosen], errors)
    names = ", ".join(file.name for file in chosen)
    splits = Counter(row.split for row in table.rows if row.split)
    line = f"{names}: {len(table.rows):,} triplets"
    if splits:
        line += f" ({', '.join(f'{count:,} {name}' for name, count in splits.items())})"
    scan.present.append(line)
    for file in tables:
        if file not in chosen:
            why = "triplets with negatives, as `negbench mine` writes them" if file in mined else "triplets, too"
            scan.present.append(f"{file.name}: {why}, but the recipe uses {names}")


def _unreadable_tables(scan: FolderContents, files: Sequence[Path], errors: Mapping[Path, str]) -> list[str]:
    """Say what is wrong with the tables of a folder in which none can be read as triplets."""
    # a table with the columns is the one meant; only its rows are wrong
    meant = [why for file, why in errors.items() if has_columns(file, scan.columns)]
    lines = meant or list(errors.values())
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more tables"]
    if not meant:
        lines = lines + _joins(files)
    return lines or ["; ".join([_NO_TRIPLETS, *scan.unused])]


def _unreadable_splits(scan: FolderContents, splits: Sequence[str | None], errors: Mapping[Path, str]) -> list[str]:
    """Return the errors of files whose names are those of splits that the files of triplets lack.

    Otherwise a split would be made of the files that can be read.
    """
    if None in splits:
        return []
    roles = {_role(split) for split in splits}
    lines = []
    for file, why in errors.items():
        word = split_word(file.relative_to(scan.folder))
        if word not in (None, "test") and _role(word) not in roles:
            lines.append(why)
    return lines


def _joins(files: Sequence[Path]) -> list[str]:
    """Name the first two tables that share a column, with the line that joins them."""
    columns: dict[Path, set[str]] = {}
    for file in files:
        if file.suffix.lower() in ENDINGS:
            with suppress(NegbenchError):
                rows = read_rows(file)
                columns[file] = {*rows[0].values} if rows else set()
    for first, second in combinations(columns, 2):
        common = sorted(columns[first] & columns[second])
        if common and columns[first] != columns[second]:
            column = common[0]
            line = f"{_reading(first)}.merge({_reading(second)}, on={column!r}).{_SAVE.format('joined.jsonl')}"
            return [f"{first.name} and {second.name} share the column {column!r}: if one completes the other, {line}"]
    return []


def _split_of(scan: FolderContents, file: Path, table: TripletTable) -> str | None:
    """Return the one split that a file holds: by its column, or else by its name."""
    if "split=" in scan.columns or "split" in table.columns:
        if len(table.splits) != 1 or table.splits[0] not in SPLITS:
            return None
        return table.splits[0]
    return split_word(file.relative_to(scan.folder))


def _role(split: str | None) -> str | None:
    """Return train, test or None as it is; every other name means val."""
    return split if split in (None, "train", "test") else "val"


def _choose_files(scan: FolderContents, tables: Mapping[Path, TripletTable]) -> tuple[Path, ...]:
    """Choose the files that are splits by their names, if one is train, or else the first that is whole.

    Several files of a split are taken together if each of their kinds (dress, shirt, ...) has the same splits.

    Raises:
        DataError: several files of a split otherwise; names two.
    """
    splits: dict[Path, str] = {}
    for file, table in tables.items():
        split = _split_of(scan, file, table)
        if split:
            splits[file] = split
    if "train" not in splits.values():
        whole = next((file for file in tables if file not in splits), next(iter(tables)))
        return (whole,)
    splits_of_kind: dict[str, set[str]] = {}
    for file, split in splits.items():
        kind = re.sub(rf"{split}|-\d+-of-\d+", "", file.relative_to(scan.folder).as_posix(), flags=re.IGNORECASE)
        splits_of_kind.setdefault(kind, set()).add(split)
    if len({frozenset(kind_splits) for kind_splits in splits_of_kind.values()}) > 1:
        first: dict[str, Path] = {}
        for file, split in splits.items():
            if first.setdefault(split, file) != file:
                raise DataError(f"{first[split]} and {file} both name the split {split}: move one away")
    return tuple(splits)


def _vectors(scan: FolderContents, file: Path) -> None:
    """Record a file of named embeddings, of images or of texts."""
    if file.suffix not in (".npz", ".npy", ".parquet"):
        return
    try:
        keys = _keys(file)
    except Exception:  # whatever a damaged file raises: it is not one of ours
        return
    role = next((role for role, names in _NAMES.items() if keys & {*NAMES[names]}), None)
    table = file.suffix == ".parquet" and len(keys) != 2 and "features" not in keys
    if role is None or len(keys) == 1 or table:
        if not table:
            content = f"has {', '.join(sorted(keys)[:9])}" if keys else _nameless(file)
            scan.unused.append(f"{file.name} {content}")
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


def _unread_table(scan: FolderContents, file: Path) -> None:
    """Record a table of embeddings in cells, or of pictures within cells, with the line that converts it."""
    if file.suffix.lower() in CELLS and len(_number_columns(file)) > 1:
        scan.unused.append(f"{file.name}: {conversion(file)}")
    if file.suffix.lower() != ".parquet":
        return
    for column in _columns_of_pictures(file):
        write = "open(f'{k}.png', 'wb').write(cell['bytes'])"
        cells = f"enumerate(pandas.read_parquet({file.name!r})[{column!r}])"
        scan.unused.append(f"{file.name} has pictures in its column {column!r}: for k, cell in {cells}: {write}")


def _number_columns(file: Path) -> list[str]:
    """Return the columns of a .csv or .tsv that are one vector, a column for each number; none if it has much else."""
    with open_regular(file) as opened:
        first = opened.readline(_HEADER).decode("utf-8-sig", errors="replace")
    columns = [name.strip().strip('"') for name in re.split(r"[,;\t|]", first)]
    numbered = numbered_columns(dict.fromkeys(columns, "f4"))
    return numbered if len(columns) - len(numbered) <= _COLUMNS_OF_NAMES else []


def _columns_of_pictures(file: Path) -> list[str]:
    """Return the columns of a .parquet whose cells hold a file's bytes, as data sets of the hub keep pictures."""
    import pyarrow

    try:
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
    except (NegbenchError, OSError, pyarrow.ArrowException):
        return []
    columns = []
    for column in schema:
        if pyarrow.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            columns.append(column.name)
    return columns


def _nameless(file: Path) -> str:
    """Say that a .npy file lacks its names, and which list beside it may hold them."""
    rows = len(npy_array(file))
    text = f"({rows:,} vectors) has no names: list them in {file.stem}.txt, one a line"
    for candidate in sorted(file.parent.iterdir()):
        if candidate.suffix not in (".txt", ".json") or not candidate.is_file():
            continue
        with suppress(NegbenchError):
            if len(read_list(candidate)) == rows:
                command = f"cp {shell(candidate)} {shell(file.with_suffix(candidate.suffix))}"
                return f"{text}; {candidate.name} has as many lines: if these are the names, {command}"
    return text


def _keys(file: Path) -> set[str]:
    """Return the names of the arrays in a file of embeddings; a .npy file holds those that its own name says."""
    if file.suffix == ".parquet":
        import pyarrow

        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
        types = {field.name: field.type for field in schema}
        numeric = {name: "f4" for name, kind in types.items() if pyarrow.types.is_primitive(kind)}
        numbered = numbered_columns(numeric)
        names = [name for name in types if name not in numbered]
        if numbered:
            names.append("features")
        return {"ids" if name == UNNAMED_INDEX else name for name in names}
    if file.suffix == ".npz":
        with npz_arrays(file) as arrays:
            return {*arrays.files}
    if not names_beside(file).is_file():
        return set()
    return {"texts" if "text" in file.stem.lower() else "ids", "features"}


def _check(scan: FolderContents) -> None:
    """Load what was found as a run would; record as missing whatever is absent or does not fit."""
    _check_files(scan)
    if scan.missing:
        return
    margin = float(Compare.model_fields["margin"].default) / 100
    stored_images = scan.images.total()
    config = build_config(
        [{"dataset": dataset_of(scan), "backbone": {"name": "precomputed", **_backbone(scan)}, "strategy": "in-batch"}]
    )
    parts = []
    with _note_errors(scan):
        backbone = load_backbone(config.backbone, 0) if scan.vectors else None
        for split in ("train", "val"):
            with _note_errors(scan):
                data = load_split(scan, split, images=not scan.vectors)
                parts.append(_usable_part(scan, data, config, backbone))
    if scan.missing:
        return
    train, val = parts
    scan.train = len(train.queries)
    scan.val = len(val.queries)
    if scan.vectors:
        with _note_errors(scan):
            names, _ = read_vectors(scan.vectors["images"], "ids")
            stored_images = len(names)
            options = Audit()
            scored = open_split(resolve(config), "train", Display(), queries=options.queries, seed=options.seed)
            scan.window = audit(scored, {}, options).window
    scan.present.append(f"{scan.train:,} train and {scan.val:,} val queries, {len(val.images):,} images in val")
    if scan.vectors:
        scan.warnings += forewarnings([config], margin, Display(), DataCache(), stored_images)
        return
    scan.warnings += of_data(train, val, margin, {"gallery": None}, stored_images)
    flags = ""
    if scan.columns:
        flags += f" --columns {shlex.quote(scan.columns)}"
    if scan.allow_missing:
        flags += " --allow-missing"
    scan.present += [f"not read: {line}" for line in scan.unused]
    scan.present.append(
        f"no embeddings: `negbench embed {shell(scan.folder)}{flags} --encoder ...` makes them with your own encoder"
    )


def _check_files(scan: FolderContents) -> None:
    """Record as missing that there are neither images nor embeddings, or embeddings of one of the two only."""
    unused = f"; {'; '.join(scan.unused)}" if scan.unused else ""
    if not scan.images and not scan.vectors:
        scan.missing.append(
            "no images (.jpg, .png, .webp), nor embeddings of images and of texts (.npz with ids and features, texts "
            f"and features{unused})"
        )
    if len(scan.vectors) == 1 and not scan.missing:
        ((role, file),) = scan.vectors.items()
        lacking = "texts" if role == "images" else "images"
        scan.missing.append(
            f"no embeddings of {lacking}: save them beside {file.name}, e.g. "
            f"np.savez('{lacking}.npz', {_NAMES[lacking]}=names, features=vectors){unused}"
        )


@contextmanager
def _note_errors(scan: FolderContents) -> Iterator[None]:
    """Record an error of this block as missing, so that others are found in the same call."""
    try:
        yield
    except NegbenchError as error:
        scan.missing.append(str(error))


def _usable_part(scan: FolderContents, data: Dataset, config: RunConfig, backbone: Backbone | None) -> Dataset:
    """Return what a run uses of a split. Raises NegbenchError for pictures or embeddings that it cannot."""
    if backbone is not None:
        with _note_errors(scan):
            data = with_features(data, backbone, config)
        backbone.tokenize([query.text for query in data.queries])
        return data
    if data.files is None:
        return data
    bad = data.files.undecodable(data.all_images)
    if bad:
        examples = ", ".join(f"{data.files.path(image)} ({why})" for image, why in list(bad.items())[:_SHOWN])
        more = ", ..." if len(bad) > _SHOWN else ""
        raise DataError(
            f"{len(bad):,} of {len(data.all_images):,} images cannot be decoded: {examples}{more}{data.naming(bad)}; "
            "mend them, or leave them out with --allow-missing"
        )
    return data


def load_split(scan: FolderContents, split: str, *, images: bool, **options: Any) -> Dataset:
    """Load one split of the triplets as a run does; raise NegbenchError as it would, also for missing images."""
    section = dataset_of(scan)
    dataset: Dataset = registry.make(
        "datasets", section.pop("name"), **section, root=scan.folder, split=split, images=images, **options
    )
    return dataset


def dataset_of(scan: FolderContents) -> dict[str, Any]:
    """Return the recipe's section [dataset]."""
    assert scan.triplets is not None
    paths, _ = scan.triplets
    files = [str(path) for path in paths]
    section: dict[str, Any] = {"name": "triplets", "file": files[0] if len(files) == 1 else files}
    if scan.columns:
        section["columns"] = scan.columns
    if scan.allow_missing:
        section["allow_missing"] = True
    return section


def _backbone(scan: FolderContents) -> dict[str, Any]:
    """Return the options of `precomputed`."""
    return {role: str(file) for role, file in scan.vectors.items()}


# --- files -------------------------------------------------------------------------------------------------------


def write(scan: FolderContents) -> list[Path]:
    """Write the recipe, and a strategy to edit if there is none; return the files written.

    A recipe that `write` made and nobody has edited is rewritten: with embeddings, once they exist.

    Raises:
        OptionError: the user has edited the recipe.
    """
    target = scan.folder / RECIPE
    plugin = scan.plugin
    if target.exists() and not _is_untouched(read_text(target, errors="replace")):
        hint = ""
        if scan.vectors:
            settings = ", ".join(f"{name} = {toml(value)}" for name, value in _backbone(scan).items())
            hint = f"set name = {toml('precomputed')}, {settings} in its [backbone], or "
        raise OptionError(f"{target} already exists and was edited after `negbench init` wrote it: {hint}rename it")
    text = recipe(scan)
    texts = {target: f"{_SEAL}{_digest(text)}\n{text}"}
    if not plugin.exists():
        texts |= {_mark(plugin): f"{plugin}\n", plugin: _fill("my_strategy.j2")}
    for path, content in texts.items():
        write_text(path, content)
    return [path for path in texts if path.parent == scan.folder]


def _mark(plugin: Path) -> Path:
    """Return the file, outside the folder, that notes that `write` made this plug-in."""
    return cache_dir() / "init" / _digest(str(plugin))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_untouched(text: str) -> bool:
    """Whether a recipe is unchanged since `write` made it."""
    seal, _, content = text.partition("\n")
    return seal == f"{_SEAL}{_digest(content)}"


def recipe(scan: FolderContents) -> str:
    """Return the recipe as text."""
    assert scan.triplets is not None
    _, table = scan.triplets
    backbone: Any = registry.get("backbones", "precomputed" if scan.vectors else "tiny")
    return _fill(
        "recipe.toml.j2",
        folder=scan.folder,
        lines=map(printable, [*scan.present, *scan.warnings]),
        name=printable(scan.folder.name),
        trusted=scan.trusted,
        window=scan.window,
        strategies=[*_BESIDE_BATCH, "in-batch+my-strategy"] if scan.trusted else _BESIDE_BATCH,
        seeds=_SEEDS,
        recipe=printable(shell(scan.folder / RECIPE)),
        temperatures=TEMPERATURES,
        ages=AGES,
        dataset=dataset_of(scan),
        vectors=scan.vectors,
        backbone=_backbone(scan),
        split=not table.divided,
        batch_size=next((size for size in (64, 32, 16, 8, 4, 2) if 4 * size <= scan.train), 2),
        lr=float(backbone.recommended["lr"]),
    )


def _fill(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["toml"] = toml
    return environment.get_template(template).render(values)


def toml(value: Any) -> str:
    """Format a value as TOML: true, false, a string, or an array of these."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    plain = value if isinstance(value, bool) else str(value)
    text = json.dumps(plain, ensure_ascii=False)  # a TOML basic string has the same syntax
    return text.replace("\x7f", "\\u007f")  # except for this character


def commands(scan: FolderContents) -> list[str]:
    """Return the commands to run next, in order; whether to mine, the answer of the comparison says."""
    recipe_flag = f"--recipe {shell(scan.folder / RECIPE)}"
    strategies = "qure,top-k,my-strategy" if scan.trusted else "qure,top-k"
    return [f"negbench audit {recipe_flag} --strategy {strategies}", f"negbench compare {recipe_flag} --name first"]


def shell(path: Path) -> str:
    """Quote a path for a shell."""
    return shlex.quote(str(path))
