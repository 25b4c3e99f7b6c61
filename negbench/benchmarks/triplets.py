"""Your own triplets (reference, text, target) in tables of any form; recall at 1, 5, 10 and 50."""

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, NonNegativeInt

from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.stream import Stream
from negbench.errors import DataError, OptionError
from negbench.files.image_files import (
    COMMON,
    EXTENSIONS,
    ImageFiles,
    Spellings,
    check_names,
    is_picture,
    one_spelling,
    without_extension,
)
from negbench.files.picture_kinds import as_shown
from negbench.files.triplet_files import TripletRow, TripletTable, read_names, read_triplets
from negbench.machine.grouping import group_pairs
from negbench.metrics.metric import Metric, hits, precision
from negbench.metrics.query_ranks import QueryRanks

PAPER = "ours"

RECALLS = (1, 5, 10, 50)
CUTOFF = 10  # of mAP
GROUP = "all"
AVERAGE = "average"


MOST_GROUPS = 12  # with a column each in the results
_VALUES = {f"recall_at_{k}": (hits(k),) for k in RECALLS} | {f"map_at_{CUTOFF}": (precision(CUTOFF),)}


@dataclass(frozen=True, kw_only=True)
class TripletOptions(FolderOptions):
    """Options of `Triplets`.

    Args:
        root: folder of the images; None takes the file's own folder.
        file: .jsonl, .json, .csv, .tsv or .parquet; or several, as of one file per split.
        columns: the file's own names of these columns, as reference=ref,text=caption, paths in a row, as pair[1], or
            places, from 0, where the file has no header; paths=FILE:ID:PATH names a table of image paths by id.
        gallery: file with one image per line, or the .npz of the embeddings: added to every gallery of every split.
        val_fraction: share of the rows that becomes val; used where the file has no column `split`.
        seed: of the hash by which targets go to val.
        exclude_reference: whether a query's own reference is left out when ranking.
        as_shown: read pictures as viewers show them: turned as their EXIF says, transparent parts on white. Otherwise
            their pixels are read as they are stored.
    """

    file: Path | tuple[Path, ...] | None = None
    columns: str = ""
    gallery: Path | None = None
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: NonNegativeInt = 0
    exclude_reference: bool = False
    as_shown: bool = False


@dataclass(frozen=True, eq=False)
class Triplets(Dataset):
    """Queries from one file. A group's gallery is every image that its rows of the split name, plus `gallery`."""

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

    @classmethod
    def load(cls, options: TripletOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split of a file; arguments and errors as for `Dataset.load`.

        Columns: reference, text, target (required); relevant (every image that answers the query), negatives (or
        negative: what strategy `listed` draws, in the galleries of train only), judged_wrong (images
        known not to answer it; judged_wrong_visual, _textual and _composed where the kind is known; in no gallery by
        themselves), wordings (the text in other words), group (queries of a
        group share a gallery), split and id (names the query), where the file has them. An image is named by its path
        below `root` or below the file's folder, or by its file name, with or without extension, anywhere below `root`;
        by its number where a single name is that number with zeros before it.

        A split is a name in the column `split`, or else in the file's name; validation, valid and dev are val where no
        other is. Without these, and for train without val, whole targets go to val by a hash of target and seed: about
        `val_fraction` of them, and the same ones when rows are added.
        """
        gallery = options.gallery
        root = options.root
        exclude = options.exclude_reference
        if not options.file:
            raise OptionError(
                "file must be given: name FILE.jsonl (.csv) instead of triplets, or --set dataset.file=FILE.jsonl"
            )
        files = options.file if isinstance(options.file, tuple) else (options.file,)
        folders = list(dict.fromkeys(file.parent for file in files))
        if root is not None:
            folders.insert(0, root)
        table = read_triplets(files, options.columns, folders)
        name = ", ".join(file.name for file in files)
        rows, part = _rows_of_split(table, split, options.val_fraction, options.seed, name)
        added: list[str] = []
        content = table.content
        if gallery is not None:
            added, gallery_content = read_names(gallery)
            added = one_spelling(added, _names_in(table))
            content = hashlib.sha256(f"{content} {gallery_content}".encode()).hexdigest()
        queries = [_query(row, split, exclude) for row in rows]
        more = any(len(query.relevant) > 1 for query in queries)
        galleries = _galleries(queries, added, mined=split == "train")
        reserved = {GROUP, AVERAGE} & galleries.keys()
        if reserved and _in_results(galleries):
            raise DataError(
                f"{name}: group {reserved.pop()!r} has the name of a column of the results (rows without a group are "
                f"in {GROUP!r}): rename it, or give a group to every row"
            )
        data_card = card(exclude, with_gallery=gallery is not None, with_relevant=more, groups=galleries.keys())
        remarks = tuple(f"{name}: {remark}" for remark in _remarks(table, rows, split))
        names, groups = columns_of(galleries)
        data = cls(data_card, split, queries, names, groups, content, remarks=remarks, part=part, spelled=table.spelled)
        if not images:
            return data.loaded(None, files[0], allow_missing=options.allow_missing)
        image_files = _find_images(names, folders)
        if options.as_shown:
            image_files = replace(image_files, paths=as_shown(image_files.paths))
        return data.loaded(image_files, files[0], allow_missing=options.allow_missing, as_shown=options.as_shown)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10 and 50 of the target; mAP@10 too where one of these queries has more than one relevant image.

        Over all queries; where the file names groups, at most 12, also of each group, and the mean of the groups.
        """
        return _metrics_of(ranks.groups, bool((ranks.relevant_ranks.lengths > 1).any()))


def _metrics_of(groups: Collection[str], with_relevant: bool) -> dict[str, Metric]:
    """Return the metrics of the results, where there are these groups."""
    values = {name: value for name, value in _VALUES.items() if with_relevant or not name.startswith("map")}
    metrics = {name: Metric(value) for name, value in values.items()}
    if not _in_results(groups):
        return metrics
    for group in groups:
        for name, value in values.items():
            metrics[f"{group}/{name}"] = Metric(value, group=group)
    for name, value in values.items():
        metrics[f"{AVERAGE}/{name}"] = Metric(value, over="groups")
    return metrics


def _in_results(groups: Collection[str]) -> bool:
    """Whether the groups have columns of their own in the results."""
    return set(groups) != {GROUP} and len(groups) <= MOST_GROUPS


def card(
    exclude_reference: bool = False,
    *,
    with_gallery: bool = False,
    with_relevant: bool = False,
    groups: Collection[str] = (GROUP,),
) -> DatasetCard:
    """Card of a file that is read with these options."""
    gallery = "all images that the group's rows of the split name"
    if with_gallery:
        gallery += ", and the gallery file"
    return DatasetCard(
        name="triplets",
        protocol="file",
        source="the user's own file",
        gallery=gallery,
        exclude_reference=exclude_reference,
        text_template="as written, stripped",
        metrics=tuple(_metrics_of(groups, with_relevant)),
        main="recall_at_10",
    )


# --- rows --------------------------------------------------------------------------------------------------------


def _remarks(table: TripletTable, rows: Sequence[TripletRow], split: str) -> list[str]:
    """List likely mistakes in the file."""
    remarks = []
    if table.unread:
        remarks.append(f"unused columns: {', '.join(map(repr, table.unread))}")
    unread_splits = Counter(row.split for row in table.rows if row.split not in (None, "train", "val", "test", split))
    if unread_splits:
        names = ", ".join(f"{name!r} ({count:,})" for name, count in unread_splits.items())
        count = unread_splits.total()
        remarks.append(f"{count:,} of {len(table.rows):,} triplets are in none of train, val and test: {names}")
    distinct = {(row.reference, row.text, row.target, row.group) for row in rows}
    if len(distinct) < len(rows):
        remarks.append(f"{len(rows) - len(distinct):,} of {len(rows):,} {split} triplets are duplicates")
    to_themselves = sum(row.reference == row.target for row in rows)
    if to_themselves:
        remarks.append(f"in {to_themselves:,} {split} triplets the target is the reference itself")
    return remarks


def _names_in(table: TripletTable) -> list[str]:
    """Return the images that the rows of a table name."""
    names = []
    for row in table.rows:
        names += [row.reference, row.target, *row.relevant, *row.negatives]
    return names


def _rows_of_split(
    table: TripletTable, split: str, fraction: float, seed: int, file: str
) -> tuple[list[TripletRow], str]:
    """Return the rows of a split, and how they were chosen if the file does not say."""
    if split not in table.splits:
        has = ", ".join(map(repr, table.splits))
        fault = f"{file}: no row of split {split!r}: it has {has}, as its column 'split' or the file's name says"
        check_option("split", split, not table.divided, f"train or val ({file} has no column 'split')")
        raise DataError(f'{fault}; rename one, or name a file of {split}, too: --set dataset.file=\'["FILE", "FILE"]\'')
    undivided = [row for row in table.rows if row.split is None]
    if split not in ("train", "val") or not undivided:
        return [row for row in table.rows if row.split == split], ""
    in_val = _val_targets({row.target for row in undivided}, fraction, seed, file)
    rows = [row for row in undivided if (row.target in in_val) == (split == "val")]
    return rows, f"{split} of a split by a hash of target and seed {seed}: {fraction} to val"


def _val_targets(targets: Set[str], fraction: float, seed: int, file: str) -> set[str]:
    """Choose the targets that go to val, each by its own hash; of several, at least one goes and one stays."""
    if len(targets) < 2:
        raise DataError(f"{file}: all rows have the same target, so that none can be val: add a column 'split'")
    hashes = {target: Stream(seed, "val", target).raw() for target in targets}
    first, *_, last = sorted(targets, key=lambda target: hashes[target])
    in_val = {target for target in targets if hashes[target] < fraction * 2**64}
    return in_val.union([first]).difference([last])


def _query(row: TripletRow, split: str, exclude_reference: bool) -> Query:
    if exclude_reference and row.reference == row.target:
        raise DataError(f"{row.where}, column 'target': is the reference, which exclude_reference leaves out")
    name = f"{split}-{row.number}" if row.id is None else row.id
    relevant = tuple(dict.fromkeys((row.target, *row.relevant))) if row.relevant else ()
    query = Query(name, row.reference, row.text, row.target, row.group or GROUP, relevant, row.captions)
    return replace(query, negatives=row.negatives, wrong=row.wrong, wordings=row.wordings)


def _galleries(queries: Sequence[Query], added: Sequence[str], *, mined: bool) -> dict[str, list[str]]:
    """Return group -> images that its queries name, in order of appearance, then those of the gallery file."""
    pairs: list[tuple[str, str]] = []
    for query in queries:
        images = [query.reference, str(query.target), *query.relevant]
        if mined:
            images += query.negatives
        pairs += [(query.group, image) for image in images]
    return {group: list(dict.fromkeys([*names, *added])) for group, names in group_pairs(pairs).items()}


# --- images ------------------------------------------------------------------------------------------------------


def _find_images(names: Sequence[str], folders: Sequence[Path]) -> ImageFiles:
    """Find files by path below one of the folders; plain names and numbers also anywhere below the first.

    Names that differ from a file's in spelling alone (`Spellings`) are found below the first folder.
    """
    paths: dict[str, tuple[Path, ...]] = {}
    for name in names:
        endings = [""] if is_picture(name) else [*COMMON, *sorted(EXTENSIONS.difference(COMMON))]
        for folder, ending in product(folders, endings):
            path = folder / f"{name}{ending}"
            if os.path.isfile(path):  # noqa: PTH113 - names of any length
                paths[name] = (path,)
                break
    elsewhere = [name for name in names if name not in paths]
    if elsewhere:
        by_name = ImageFiles.scan(folders[0]).paths
        by_path = ImageFiles.scan(folders[0], key=without_extension).paths
        name_spellings = Spellings(by_name)
        path_spellings = Spellings(by_path)
        for name in elsewhere:
            if "/" in name:
                match = path_spellings.find(name)
                if match and match.count("/") == name.count("/"):
                    paths[name] = by_path[match]
            else:
                match = name_spellings.find(name)
                if match:
                    paths[name] = by_name[match]
    check_names(paths, [files[0] for files in paths.values()])
    return ImageFiles(folders[0], paths)
