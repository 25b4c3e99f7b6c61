"""Fashion200K: product photographs whose captions differ in one word; recall at 1, 10 and 50, in TIRG's form."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import ClassVar, Self

from negbench.benchmarks._tirg import ClassDataset, Labels, Language, recalls, resolve_split
from negbench.contracts import Query
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import FolderOptions
from negbench.errors import DataError, short_repr
from negbench.files.image_files import ImageFiles, relative_path, without_extension
from negbench.files.reader import Reader

PAPER = "Han et al., Automatic Spatially-aware Fashion Concept Discovery, ICCV 2017; queries by Vo et al., CVPR 2019"

RECALLS = (1, 10, 50)
QUERIES = "test_queries.txt"
TREE = f"labels/*SPLIT*.txt, {QUERIES} (from google/tirg), and the cropped images of women.tar.gz as women/..."

CARD = DatasetCard(
    name="fashion200k",
    protocol="tirg",
    source="https://github.com/xthan/fashion-200k",
    licence="Apache-2.0 (labels); the images are the shops'",
    citation=PAPER,
    gallery="all images of the split's label files; every image with the target's caption is correct; val is test",
    exclude_reference=True,  # TIRG scores the query's own image below all others
    text_template="'is not u, is v.', u and v the first word that only the source or the target caption has (HyCoLe)",
    metrics=tuple(recalls(RECALLS)),
    main="average",
)


@dataclass(frozen=True, eq=False)
class Fashion200K(ClassDataset):
    """Fashion200K under TIRG's protocol: all test images are the gallery, every image with the target's caption counts
    as the target, and the reference is not ranked.

    HyCoLe's 30,960 queries over 3,356 images are not published: its gallery is not TIRG's, so its numbers (protocol
    `hycole`) are not comparable to any run here.
    """

    cutoffs: ClassVar[tuple[int, ...]] = RECALLS

    @classmethod
    def load(cls, options: FolderOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split of the published label files; arguments and errors as for `Dataset.load`.

        A training pair is two images of one category whose captions' sets of words differ in exactly one (HyCoLe). Of
        tens of millions, every epoch draws as many as there are images (`at_epoch`), without listing the others. Image
        ids are the paths of the label files without extension; `root` holds `labels`. Splits are train and test; val,
        which a run reports, means test: nothing else is published.
        """
        split = resolve_split(split)
        reader = Reader.find(options.root, CARD, marker="labels", tree=TREE)
        labels = _read_labels(reader, split)
        tests = partial(_test_queries, pairs=_read_queries(reader, labels) if split == "test" else [])
        files = _scan(reader, labels.images) if images else None
        labels = dataclasses.replace(labels, folder=reader.root, content=reader.content)
        return cls.of_labels(CARD, split, labels, LANGUAGE, tests, files, allow_missing=options.allow_missing)


def changed_words(source: str, target: str) -> tuple[str, str]:
    """Return each caption's first word that the other lacks, or its last word if it has no such word (as TIRG).

    Example:
        >>> changed_words("black biker jacket", "blue biker jacket")
        ('black', 'blue')
    """

    def first(words: list[str], others: list[str]) -> str:
        return next((word for word in words if word not in others), words[-1])

    before = source.split()
    after = target.split()
    return first(before, after), first(after, before)


def modification(source: str, target: str) -> str:
    """Return the text that turns one caption into the other, in HyCoLe's wording.

    Example:
        >>> modification("black jacket", "blue jacket")
        'is not black, is blue.'
    """
    old, new = changed_words(source, target)
    return f"is not {old}, is {new}."


def description(caption: str) -> str:
    """Return HyCoLe's privileged text, made of a caption's words.

    Example:
        >>> description("green seamed a-line dress")
        'is green, seamed, a-line, dress.'
    """
    return f"is {', '.join(caption.split())}."


def families(caption: str) -> list[tuple[str, str]]:
    """Return (set of the other words, the word taken out) for every word of a caption.

    Example:
        >>> families("black a-line a-line")
        [('a-line', 'black'), ('black', 'a-line')]
    """
    words = list(dict.fromkeys(caption.split()))
    return [(" ".join(sorted({*words} - {word})), word) for word in words]


LANGUAGE = Language(families, modification, description)


# --- files -------------------------------------------------------------------------------------------------------


def _read_labels(reader: Reader, split: str) -> Labels:
    """Read images, captions and categories of a split's label files, with remarks on oddities."""
    folder = reader.root / "labels"
    paths = []
    for path in sorted(folder.glob("*")):
        if split in path.name and path.name != QUERIES and path.is_file():
            paths.append(path)
    if not paths:
        raise DataError(f"{folder} has no file with '{split}' in its name: put the label files there")
    captions: dict[str, str] = {}
    repeated = 0
    conflicting = 0
    lines: list[tuple[str, str]] = []
    for path in paths:
        lines += reader.lines(path)
    for where, line in lines:
        fields = line.split("\t")
        if len(fields) != 3:
            raise DataError(f"{where}: expected path, score and caption separated by tabs, got {short_repr(line)}")
        image_path, _, caption = fields
        image = without_extension(relative_path(image_path, where))
        caption = caption.strip()
        if not caption:
            raise DataError(f"{where}: image '{image}' has an empty caption")
        repeated += image in captions
        conflicting += captions.setdefault(image, caption) != caption
    kinds = ["/".join(image.split("/")[:-1][:2]) for image in captions]  # women/dresses/casual/51/51_0: women/dresses
    remark = f"{split}: {repeated:,} lines repeat an image, {conflicting:,} with another caption: the first counts"
    return Labels(list(captions), list(captions.values()), kinds, remarks=(remark,) if repeated else ())


def _read_queries(reader: Reader, labels: Labels) -> list[tuple[str, str, str, str]]:
    """Read every test query as (source, its caption, target, its caption)."""
    caption_of = dict(zip(labels.images, labels.captions, strict=True))
    queries = []
    for where, line in reader.lines(reader.root / QUERIES):
        fields = line.split()
        if len(fields) != 2:
            raise DataError(f"{where}: expected source path and target path, got {short_repr(line)}")
        source, target = (without_extension(relative_path(field, where)) for field in fields)
        for what, image in (("source", source), ("target", target)):
            if image not in caption_of:
                raise DataError(
                    f"{where}: {what} {short_repr(image)} is not in any test label file: "
                    "the files do not belong together"
                )
        if source == target:
            raise DataError(f"{where}: source and target are the same image {short_repr(source)}")
        queries.append((source, caption_of[source], target, caption_of[target]))
    return queries


def _scan(reader: Reader, ids: Sequence[str]) -> ImageFiles:
    """Index image files by their path in the label files, wherever the image tree begins below the folder."""
    tops = {image.split("/", 1)[0] for image in ids}

    def key(path: PurePath) -> str:
        start = next((index for index, part in enumerate(path.parts) if part in tops), 0)
        return without_extension(PurePath(*path.parts[start:]))

    return ImageFiles.scan(reader.root, key=key, files=reader.files, tree=TREE)


# --- queries -----------------------------------------------------------------------------------------------------


def _test_queries(labels: Labels, pairs: list[tuple[str, str, str, str]]) -> list[Query]:
    """Make the queries whose source exists and for which an image with the target's caption exists."""
    images = set(labels.images)
    queries = []
    for number, (source, before, target, after) in enumerate(pairs):
        if target not in images:  # only if images are missing: another of its class replaces it
            target = next((image for image in labels.of_class.get(after, ()) if image != source), "")
        if source in images and target:
            queries.append(labels.query(f"test-{number:05d}", (source, target), (before, after), LANGUAGE))
    return queries
