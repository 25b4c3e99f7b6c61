"""Your own triplets (reference, text, target) as .jsonl or .csv; recall at 1, 5, 10 and 50."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, NonNegativeInt

from negbench.contracts import Query, check_option
from negbench.datasets._triplet_files import TripletRow, TripletTable, read_names, read_triplets
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.image_files import EXTENSIONS, ImageFiles
from negbench.errors import DataError, OptionError
from negbench.metrics.metric import Metric, hits, precision
from negbench.metrics.query_ranks import QueryRanks

PAPER = "ours"

RECALLS = (1, 5, 10, 50)
CUTOFF = 10  # of mAP
GROUP = "all"


MOST_GROUPS = 12  # with a column each in the results
_VALUES = {f"recall_at_{k}": (hits(k),) for k in RECALLS} | {f"map_at_{CUTOFF}": (precision(CUTOFF),)}


@dataclass(frozen=True, kw_only=True)
class TripletOptions(FolderOptions):
    """Options of `Triplets`.

    Args:
        root: folder of the images; None takes the file's own folder.
        file: .jsonl (a Hugging Face data set writes one with `to_json`) or .csv.
        columns: the file's own names of these columns, as reference=ref,text=caption.
        gallery: file with one image per line, or the .npz of the embeddings: added to every gallery of every split.
        val_fraction: share of the rows that becomes val; used where the file has no column `split`.
        seed: of the order in which targets go to val.
        exclude_reference: whether a query's own reference is left out when ranking.
    """

    file: Path | None = None
    columns: str = ""
    gallery: Path | None = None
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: NonNegativeInt = 0
    exclude_reference: bool = False


@dataclass(frozen=True, eq=False)
class Triplets(Dataset):
    """Queries from one file. A group's gallery is every image that its rows of the split name, plus `gallery`."""

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".csv")

    @classmethod
    def load(cls, options: TripletOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split of a file; arguments and errors as for `Dataset.load`.

        Columns: reference, text, target (required); relevant (every image that answers the query), group (queries of a
        group share a gallery) and split, where the file has them. An image is named by its path below `root` or below
        the file's folder, or by its file name, with or without extension, anywhere below `root`.

        A split is a name in the column `split`; for a file without one, train or val: whole targets, in a seeded order,
        go to val until it holds `val_fraction` of the rows.
        """
        file, gallery, root = options.file, options.gallery, options.root
        if file is None:
            raise OptionError(
                "file must be given: name FILE.jsonl (.csv) instead of triplets, or --set dataset.file=FILE.jsonl"
            )
        table = read_triplets(file, options.columns)
        rows, part = _of_split(table, split, options.val_fraction, options.seed, file)
        added, content = list[str](), table.content
        if gallery is not None:
            added, of_gallery = read_names(gallery)
            content = hashlib.sha256(f"{content} {of_gallery}".encode()).hexdigest()
        queries = [_query(row, split, options.exclude_reference) for row in rows]
        more = any(len(query.relevant) > 1 for query in queries)
        galleries = _galleries(queries, added)
        kind = card(
            options.exclude_reference, with_gallery=gallery is not None, with_relevant=more, groups=galleries.keys()
        )
        remarks = tuple(f"{file.name}: {remark}" for remark in _remarks(table, rows, split))
        names, groups = columns_of(galleries)
        data = cls(kind, split, queries, names, groups, content, remarks=remarks, part=part)
        home = file.parent
        files = _find_images(names, [home] if root is None else [root, home]) if images else None
        return data.loaded(files, file, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10 and 50 of the target; mAP@10 too where one of these queries has more than one relevant image.

        Over all queries; where the file names groups, at most 12, also of each group, and the mean of the groups.
        """
        return _metrics_of(ranks.groups, bool((ranks.relevant_ranks.lengths > 1).any()))


def _metrics_of(groups: Collection[str], with_relevant: bool) -> dict[str, Metric]:
    values = {name: value for name, value in _VALUES.items() if with_relevant or not name.startswith("map")}
    declared = {name: Metric(value) for name, value in values.items()}
    if _in_results(groups):
        declared |= {f"{group}/{name}": Metric(values[name], group=group) for group in groups for name in values}
        declared |= {f"average/{name}": Metric(value, over="groups") for name, value in values.items()}
    return declared


def _in_results(groups: Collection[str]) -> bool:
    return set(groups) != {GROUP} and len(groups) <= MOST_GROUPS


def card(
    exclude_reference: bool = False,
    *,
    with_gallery: bool = False,
    with_relevant: bool = False,
    groups: Collection[str] = (GROUP,),
) -> DatasetCard:
    """Card of a file that is read with these options."""
    return DatasetCard(
        name="triplets",
        protocol="file",
        source="the user's own file",
        gallery="all images that the group's rows of the split name" + (", and the gallery file" * with_gallery),
        exclude_reference=exclude_reference,
        text_template="as written, stripped",
        metrics=tuple(_metrics_of(groups, with_relevant)),
        main="recall_at_10",
    )


# --- rows --------------------------------------------------------------------------------------------------------


def _remarks(table: TripletTable, rows: Sequence[TripletRow], split: str) -> list[str]:
    """List likely mistakes in the file."""
    distinct = {(row.reference, row.text, row.target, row.group) for row in rows}
    own = sum(row.reference == row.target for row in rows)
    remarks = [f"unused columns: {', '.join(map(repr, table.unread))}"] if table.unread else []
    other = Counter(row.split for row in table.rows if row.split not in (None, "train", "val", "test", split))
    if other:
        names = ", ".join(f"{name!r} ({count:,})" for name, count in other.items())
        remarks.append(f"{other.total():,} of {len(table.rows):,} triplets are in none of train, val and test: {names}")
    if len(distinct) < len(rows):
        remarks.append(f"{len(rows) - len(distinct):,} of {len(rows):,} {split} triplets are duplicates")
    return [*remarks, f"in {own:,} {split} triplets the target is the reference itself"] if own else remarks


def _of_split(table: TripletTable, split: str, fraction: float, seed: int, file: Path) -> tuple[list[TripletRow], str]:
    """Return the rows of a split, and how they were chosen if the file does not say."""
    names = list(dict.fromkeys(row.split for row in table.rows if row.split is not None))
    if names:
        lacking = next((row for row in table.rows if row.split is None), None)
        if lacking is not None:
            raise DataError(f"{lacking.where}, column 'split' is missing: other rows have one")
        if split not in names:
            raise DataError(f"{file}: no row of split {split!r}: it has {', '.join(map(repr, names))}")
        return [row for row in table.rows if row.split == split], ""
    check_option("split", split, split in ("train", "val"), f"train or val ({file.name} has no column 'split')")
    in_val = _val_targets(table.rows, fraction, seed, file)
    rows = [row for row in table.rows if (row.target in in_val) == (split == "val")]
    return rows, f"{split} of a split by target: {fraction} to val, seed {seed}"


def _val_targets(rows: Sequence[TripletRow], fraction: float, seed: int, file: Path) -> set[str]:
    """Choose the targets that go to val, with all their rows."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.target] = counts.get(row.target, 0) + 1
    targets = sorted(counts)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen: set[str] = set()
    taken, quota = 0, round(fraction * len(rows))
    for position in order:
        if taken < quota:
            chosen.add(targets[position])
            taken += counts[targets[position]]
    if not chosen or len(chosen) == len(targets):
        raise DataError(
            f"{file}: {len(rows)} rows with {len(targets)} targets are too few to split off {fraction} for val: "
            "add a column 'split'"
        )
    return chosen


def _query(row: TripletRow, split: str, exclude_reference: bool) -> Query:
    if exclude_reference and row.reference == row.target:
        raise DataError(f"{row.where}, column 'target': is the reference, which exclude_reference leaves out")
    return Query(
        id=f"{split}-{row.number}",
        reference=row.reference,
        text=row.text,
        target=row.target,
        group=row.group or GROUP,
        relevant=tuple(dict.fromkeys((row.target, *row.relevant))) if row.relevant else (),
        captions=(row.text,),
    )


def _galleries(queries: Sequence[Query], added: Sequence[str]) -> dict[str, list[str]]:
    """Group -> images that its queries name, in order of appearance, then those of the gallery file."""
    by_group: dict[str, dict[str, None]] = {}
    for query in queries:
        named = [query.reference, *([query.target] if query.target else []), *query.relevant]
        by_group.setdefault(query.group, {}).update(dict.fromkeys(named))
    return {group: list(dict.fromkeys([*names, *added])) for group, names in by_group.items()}


# --- images ------------------------------------------------------------------------------------------------------


def _find_images(names: Sequence[str], folders: Sequence[Path]) -> ImageFiles:
    """Find files by path below one of the folders; plain names also anywhere below the first."""
    paths: dict[str, tuple[Path, ...]] = {}
    for name in names:
        ends = [""] if _has_extension(name) else sorted(EXTENSIONS)
        direct = next((path for folder in folders for end in ends if _is_file(path := folder / f"{name}{end}")), None)
        if direct is not None:
            paths[name] = (direct,)
    elsewhere = [name for name in names if name not in paths and "/" not in name]
    if elsewhere:
        indexed = ImageFiles.scan(folders[0]).paths
        for name in elsewhere:
            known = indexed.get(Path(name).stem if _has_extension(name) else name)
            if known:
                paths[name] = known
    return ImageFiles(folders[0], paths)


def _has_extension(name: str) -> bool:
    return Path(name).suffix.lower() in EXTENSIONS


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for a file
        return False
