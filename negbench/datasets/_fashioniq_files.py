"""Read and score data in FashionIQ's file format; shared by every data set in that format."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from negbench.contracts import Query
from negbench.datasets._read import Reader, check_choice, get, image_id, quoted, strings, typed
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, columns_of
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.metric import Metric, hits
from negbench.metrics.query_ranks import QueryRanks

Protocol = Literal["original", "val"]
CaptionMode = Literal["joined", "comma"]
Corpus = Literal["targets", "images"]

CATEGORIES = ("dress", "shirt", "toptee")
SPLITS = ("train", "val")
RECALLS = (10, 50)
METRICS = (*(f"{name}/recall_at_{k}" for name in (*CATEGORIES, "average") for k in RECALLS), "average/recall")
TREE = (
    "captions/cap.CATEGORY.SPLIT.json, image_splits/split.CATEGORY.SPLIT.json, "
    "and the images as ID.jpg or ID.png in any folder"
)
TEMPLATES: Mapping[CaptionMode, str] = {
    "joined": "'Caption 0 and caption 1', each stripped of '.?, '",
    "comma": "'caption 0, caption 1.', each stripped of '.?, '",
}


@dataclass(frozen=True)
class FashionIQOptions:
    """Options of `FashionIQFormat.from_files`, documented in `FashionIQ.load`.

    Raises:
        OptionError: an unknown value, quoted.
    """

    split: str = "val"
    images: bool = True
    allow_missing: bool = False
    protocol: Protocol = "original"
    caption_mode: CaptionMode = "joined"
    corpus: Corpus = "targets"

    def __post_init__(self) -> None:
        check_choice("split", self.split, SPLITS)

    @property
    def gallery_rule(self) -> str:
        """Description of how a category's gallery is made."""
        if self.split == "train":
            return "distinct training targets" if self.corpus == "targets" else "all images of the split file"
        return "all images of the split file" if self.protocol == "original" else "references and targets of the split"

    @property
    def whole_split(self) -> bool:
        """Whether the split file is the gallery."""
        return self.corpus == "images" if self.split == "train" else self.protocol == "original"


@dataclass(frozen=True, eq=False)
class FashionIQFormat(Dataset):
    """A data set in FashionIQ's file format: one gallery group per category, recall at 10 and 50."""

    @classmethod
    def from_files(cls, root: Path | None, card: DatasetCard, options: FashionIQOptions) -> Self:
        """Read one split.

        Args:
            root: folder of the files, or its parent; None takes NEGBENCH_DATA.
            card: card of the data set; its text template and gallery rule should match the options.
            options: what to read.

        Raises:
            DataError: files or images missing, or not in the format; one line with file, entry and key.
        """
        reader = Reader.find(root, card, marker=f"captions/cap.{CATEGORIES[0]}.{options.split}.json", tree=TREE)
        relevance = _relevance(reader, options)
        parts = {name: _read_category(reader, name, options, relevance.get(name)) for name in CATEGORIES}
        queries = [query for own, _ in parts.values() for query in own]
        images, groups = columns_of({name: gallery for name, (_, gallery) in parts.items()})
        data = cls(card, options.split, queries, images, groups, reader.content)
        files = ImageFiles.scan(reader.root, files=reader.files, tree=TREE) if options.images else None
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@10 and R@50 of every category that has a query, their means over categories, and the mean of the two.

        Raises:
            DataError: there is no query.
        """
        if not len(ranks):
            raise DataError("no query to summarise")
        each = {f"{c}/recall_at_{k}": Metric((hits(k),), group=c) for c in ranks.groups for k in RECALLS}
        means = {f"average/recall_at_{k}": Metric((hits(k),), over="groups") for k in RECALLS}
        return each | means | {"average/recall": Metric(tuple(hits(k) for k in RECALLS), over="groups")}


def joined(first: str, second: str) -> str:
    """'First and second', as CLIP4Cir and QuRe evaluate (and QuRe trains).

    Example:
        >>> joined("is Darker.", " has no sleeves")
        'Is darker and has no sleeves'
    """
    return f"{first.strip('.?, ').capitalize()} and {second.strip('.?, ')}"


def listed(first: str, second: str) -> str:
    """'first, second.', as HyCoLe trains and evaluates (Wang et al., Findings of EMNLP 2022, sec. 4.2.1).

    Example:
        >>> listed("is Darker.", " has no sleeves")
        'is Darker, has no sleeves.'
    """
    return f"{first.strip('.?, ')}, {second.strip('.?, ')}."


# --- files -------------------------------------------------------------------------------------------------------


def _read_category(
    reader: Reader, category: str, options: FashionIQOptions, relevance: list[Any] | None
) -> tuple[list[Query], list[str]]:
    """Read the queries and gallery of one category."""
    split = options.split
    path = reader.root / "captions" / f"cap.{category}.{split}.json"
    entries = enumerate(reader.entries(path))
    queries = [_query(entry, where, f"{category}-{split}-{n:05d}", category, options) for n, (where, entry) in entries]
    if options.whole_split:
        split_path = reader.root / "image_splits" / f"split.{category}.{split}.json"
        gallery = reader.image_ids(split_path)
    elif split == "train":
        gallery = _distinct(query.target for query in queries)
    else:
        gallery = _distinct(image for query in queries for image in (query.reference, query.target))
    if relevance is not None:
        queries = _with_relevance(queries, relevance, set(gallery), f"relevance of {category} {split}", path)
    if split == "train" and (texts := _attributes(reader, category, split)):
        queries = [
            dataclasses.replace(q, reference_text=texts.get(q.reference), target_text=texts.get(q.target or ""))
            for q in queries
        ]
    return queries, gallery


def _query(entry: Mapping[str, Any], where: str, name: str, category: str, options: FashionIQOptions) -> Query:
    captions = strings(get(entry, "captions", list, where), f"{where}: key 'captions'")
    if len(captions) != 2:
        raise DataError(f"{where}: key 'captions': expected 2 captions, got {quoted(list(captions))}")
    return Query(
        id=name,
        reference=image_id(get(entry, "candidate", str, where), f"{where}: key 'candidate'"),
        text=(listed if options.caption_mode == "comma" else joined)(*captions),
        target=image_id(get(entry, "target", str, where), f"{where}: key 'target'"),
        group=category,
        captions=captions,
    )


def _relevance(reader: Reader, options: FashionIQOptions) -> dict[str, list[Any]]:
    """Read category -> rows of `relevance.json`; empty if there is no such file or it lacks the split."""
    path = reader.first("relevance.json")
    if path is None:
        return {}
    of_split = typed(reader.json(path), dict, str(path)).get(options.split, {})
    where = f"{path}: key '{options.split}'"
    return {c: typed(rows, list, f"{where}: key {quoted(c)}") for c, rows in typed(of_split, dict, where).items()}


def _with_relevance(
    queries: list[Query], rows: list[Any], gallery: set[str], where: str, captions: Path
) -> list[Query]:
    if len(rows) != len(queries):
        raise DataError(f"{where}: {len(rows)} rows in relevance.json for {len(queries)} entries of {captions.name}")
    filled = []
    for index, (query, row) in enumerate(zip(queries, rows, strict=True)):
        inside = [image for image in strings(row, f"{where}: row {index}") if image in gallery]
        filled.append(dataclasses.replace(query, relevant=tuple(_distinct((query.target, *inside)))))
    return filled


def _attributes(reader: Reader, category: str, split: str) -> dict[str, str]:
    """Read image id -> 'is u1, u2, ..., up.' (distinct lower-case words; HyCoLe sec. 4.2.1), if it has any."""
    stem = f"asin2attr.{category}.{split}"
    path = reader.first(f"{stem}.new.json", f"{stem}.json")
    texts = {}
    for name, lists in {} if path is None else typed(reader.json(path), dict, str(path)).items():
        where = f"{path}: key {quoted(name)}"
        parts = [strings(part, f"{where}[{index}]") for index, part in enumerate(typed(lists, list, where))]
        words = dict.fromkeys(word.strip().lower() for part in parts for word in part if word.strip())
        if words:
            texts[name] = f"is {', '.join(words)}."
    return texts


def _distinct(images: Iterable[str | None]) -> list[str]:
    return [image for image in dict.fromkeys(images) if image is not None]
