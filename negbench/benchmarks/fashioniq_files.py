"""Read and score data in FashionIQ's file format; shared by every data set in that format."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, Self

from negbench.contracts import Query
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.errors import DataError, short_repr
from negbench.files.captions import join_captions, list_captions
from negbench.files.image_files import ImageFiles
from negbench.files.reader import Reader, check_type, get, image_id, strings
from negbench.metrics.metric import Metric, hits
from negbench.metrics.query_ranks import QueryRanks

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


@dataclass(frozen=True, kw_only=True)
class FormatOptions(FolderOptions):
    """Options of a data set in this format.

    Args:
        caption_mode: `joined` (as CLIP4Cir evaluates and QuRe trains) or `comma` (HyCoLe).
        corpus: mining corpus of train: each training target of the category once, or all images of its split file.
    """

    caption_mode: CaptionMode = "joined"
    corpus: Corpus = "targets"

    def whole_split(self, split: str) -> bool:
        """Whether the split file is the gallery."""
        return split != "train" or self.corpus == "images"

    def gallery_rule(self, split: str) -> str:
        """Describe how a category's gallery is made."""
        if self.whole_split(split):
            return "all images of the split file"
        return "distinct training targets" if split == "train" else "references and targets of the split"


@dataclass(frozen=True, eq=False)
class FashionIQFormat(Dataset):
    """A data set in FashionIQ's file format: one gallery group per category, recall at 10 and 50."""

    @classmethod
    def from_files(cls, card: DatasetCard, options: FormatOptions, split: str, images: bool) -> Self:
        """Read one split.

        Args:
            card: card of the data set; its text template and gallery rule should match the options.
            options: what to read.
            split, images: as for `Dataset.load`.

        Raises:
            DataError: files or images missing, or not in the format; one line with file, entry and key.
        """
        reader = Reader.find(options.root, card, marker=f"captions/cap.{CATEGORIES[0]}.{split}.json", tree=TREE)
        relevance = _relevance(reader, split)
        parts = {name: _read_category(reader, name, split, options, relevance.get(name)) for name in CATEGORIES}
        queries = [query for part_queries, _ in parts.values() for query in part_queries]
        names, groups = columns_of({name: gallery for name, (_, gallery) in parts.items()})
        data = cls(card, split, queries, names, groups, reader.content)
        files = ImageFiles.scan(reader.root, files=reader.files, tree=TREE) if images else None
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@10 and R@50 of every category that has a query, their means over categories, and the mean of the two.

        Raises:
            DataError: there is no query.
        """
        if not len(ranks):
            raise DataError("no query to summarise")
        metrics = {}
        for category, k in product(ranks.groups, RECALLS):
            metrics[f"{category}/recall_at_{k}"] = Metric((hits(k),), group=category)
        for k in RECALLS:
            metrics[f"average/recall_at_{k}"] = Metric((hits(k),), over="groups")
        metrics["average/recall"] = Metric(tuple(hits(k) for k in RECALLS), over="groups")
        return metrics


# --- files -------------------------------------------------------------------------------------------------------


def _read_category(
    reader: Reader, category: str, split: str, options: FormatOptions, relevance: list[Any] | None
) -> tuple[list[Query], list[str]]:
    """Read the queries and gallery of one category."""
    path = reader.root / "captions" / f"cap.{category}.{split}.json"
    queries = []
    for number, (where, entry) in enumerate(reader.entries(path)):
        queries.append(_query(entry, where, f"{category}-{split}-{number:05d}", category, options))
    if options.whole_split(split):
        gallery = reader.image_ids(reader.root / "image_splits" / f"split.{category}.{split}.json")
    elif split == "train":
        gallery = _drop_repeats(query.target for query in queries)
    else:
        gallery = _drop_repeats(chain.from_iterable((query.reference, query.target) for query in queries))
    if relevance is not None:
        queries = _with_relevance(queries, relevance, set(gallery), f"relevance of {category} {split}", path)
    texts = _attributes(reader, category, split) if split == "train" else {}
    if not texts:
        return queries, gallery
    described = []
    for query in queries:
        reference_text = texts.get(query.reference)
        target_text = texts.get(query.target or "")
        described.append(dataclasses.replace(query, reference_text=reference_text, target_text=target_text))
    return described, gallery


def _query(entry: Mapping[str, Any], where: str, name: str, category: str, options: FormatOptions) -> Query:
    """Return the query of an entry."""
    captions = strings(get(entry, "captions", list, where), f"{where}: key 'captions'")
    if len(captions) != 2:
        raise DataError(f"{where}: key 'captions': expected 2 captions, got {short_repr(list(captions))}")
    reference = image_id(get(entry, "candidate", str, where), f"{where}: key 'candidate'")
    target = image_id(get(entry, "target", str, where), f"{where}: key 'target'")
    text = list_captions(*captions) if options.caption_mode == "comma" else join_captions(*captions)
    return Query(name, reference, text, target, category, captions=captions)


def _relevance(reader: Reader, split: str) -> dict[str, list[Any]]:
    """Read category -> rows of `relevance.json`; empty if there is no such file or it lacks the split."""
    path = reader.first("relevance.json")
    if path is None:
        return {}
    of_split = check_type(reader.json(path), dict, str(path)).get(split, {})
    where = f"{path}: key '{split}'"
    relevance = {}
    for category, rows in check_type(of_split, dict, where).items():
        relevance[category] = check_type(rows, list, f"{where}: key {short_repr(category)}")
    return relevance


def _with_relevance(
    queries: list[Query], rows: list[Any], gallery: set[str], where: str, captions: Path
) -> list[Query]:
    """Return the queries with the relevant images of their rows that are in the gallery, the target first."""
    if len(rows) != len(queries):
        raise DataError(f"{where}: {len(rows)} rows in relevance.json for {len(queries)} entries of {captions.name}")
    filled = []
    for index, (query, row) in enumerate(zip(queries, rows, strict=True)):
        inside = [image for image in strings(row, f"{where}: row {index}") if image in gallery]
        filled.append(dataclasses.replace(query, relevant=tuple(_drop_repeats((query.target, *inside)))))
    return filled


def _attributes(reader: Reader, category: str, split: str) -> dict[str, str]:
    """Read image id -> 'is u1, u2, ..., up.' (distinct lower-case words; HyCoLe sec. 4.2.1), if it has any."""
    stem = f"asin2attr.{category}.{split}"
    path = reader.first(f"{stem}.new.json", f"{stem}.json")
    if path is None:
        return {}
    texts = {}
    for name, lists in check_type(reader.json(path), dict, str(path)).items():
        where = f"{path}: key {short_repr(name)}"
        parts = [strings(part, f"{where}[{index}]") for index, part in enumerate(check_type(lists, list, where))]
        words: dict[str, None] = {}
        for part in parts:
            words |= dict.fromkeys(word.strip().lower() for word in part if word.strip())
        if words:
            texts[name] = f"is {', '.join(words)}."
    return texts


def _drop_repeats(images: Iterable[str | None]) -> list[str]:
    return [image for image in dict.fromkeys(images) if image is not None]
