"""Fashion200K: product photographs whose captions differ in one word; recall at 1, 10 and 50, in TIRG's form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar, Self

from negbench.contracts import Query, check_option
from negbench.datasets._paths import relative_path, without_extension
from negbench.datasets._read import Reader, find_root, list_files, quoted
from negbench.datasets._tirg import (
    GROUP,
    ClassDataset,
    Draw,
    Labels,
    Source,
    Wording,
    metrics_of,
    resolve_split,
)
from negbench.datasets.card import DatasetCard
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError

PAPER = "Han et al., Automatic Spatially-aware Fashion Concept Discovery, ICCV 2017; queries by Vo et al., CVPR 2019"

RECALLS = (1, 10, 50)
QUERIES = "test_queries.txt"
TREE = f"labels/*SPLIT*.txt, {QUERIES} (from google/tirg), and the cropped images of women.tar.gz as women/..."
TEMPLATES: dict[Wording, str] = {
    "hycole": "'is not u, is v.', u and v the first word that only the source or the target caption has (HyCoLe)",
    "tirg": "'replace u with v', u and v the first word that only the source or the target caption has (TIRG)",
}

_CITATION = """@inproceedings{han2017automatic,
  title = {Automatic Spatially-aware Fashion Concept Discovery},
  author = {Han, Xintong and Wu, Zuxuan and Huang, Phoenix X. and Zhang, Xiao and Zhu, Menglong and Li, Yuan
            and Zhao, Yang and Davis, Larry S.},
  booktitle = {ICCV},
  year = {2017}
}"""


@dataclass(frozen=True, eq=False)
class Fashion200K(ClassDataset):
    """Fashion200K under TIRG's protocol: all test images are the gallery, every image with the target's caption counts
    as the target, and the reference is not ranked.
    """

    cutoffs: ClassVar[tuple[int, ...]] = RECALLS

    @classmethod
    def load(
        cls,
        *,
        root: Path | None = None,
        split: str = "val",
        images: bool = True,
        allow_missing: bool = False,
        text: Wording = "hycole",
        pairs: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Read one split of the published label files.

        Training pairs are two images whose captions differ in one word. There are tens of millions; `pairs` of them are
        drawn when the split is loaded, none is listed that is not drawn, and every epoch goes over the same ones.
        Image ids are the paths of the label files without extension.

        Args:
            root: folder that holds `labels`, or the one above it named `fashion200k`; None takes NEGBENCH_DATA.
            split: train or test; val, which a run reports, is test: nothing else is published.
            images: whether the image files must be there.
            allow_missing: leave out what needs a missing image and mark the result partial, instead of DataError.
            text: modification text of u -> v: `hycole` "is not u, is v.", `tirg` "replace u with v".
            pairs: training pairs to draw; left out, as many as there are images.
            seed: of that draw.

        Raises:
            DataError: files or images missing, or not in the format.
            OptionError: an option with an unknown value.
        """
        split = resolve_split(split)
        check_option("text", text, text in TEMPLATES, f"one of {', '.join(TEMPLATES)}")
        draw = Draw(pairs, seed)
        kind = card(text)
        folder = find_root(root, name=kind.name, marker="labels", tree=TREE, source=kind.source)
        reader = Reader(folder)
        labels, remarks = _read_labels(reader, split)
        named = _read_queries(reader, labels) if split == "test" else []
        found = _scan(folder, labels.images) if images else None
        missing = () if found is None else found.require(labels.images, allow_missing=allow_missing)
        labels = labels.without(missing)
        source = Source(kind, folder, split, reader.content, labels, found, missing, remarks)
        if split == "test":
            return cls.of(source, _test_queries(labels, named, text))
        queries = draw.queries(labels, families, lambda before, after: modification(before, after, text))
        return cls.of(source, queries, draw.part(queries))


def card(text: Wording = "hycole") -> DatasetCard:
    """Card of Fashion200K with these texts."""
    return DatasetCard(
        name="fashion200k",
        protocol="tirg",
        version="1",
        source="https://github.com/xthan/fashion-200k",
        licence="Apache-2.0 (labels); the images are the shops'",
        citation=_CITATION,
        gallery="all images of the split's label files; every image with the target's caption is correct; val is test",
        exclude_reference=True,  # TIRG scores the query's own image below all others
        text_template=TEMPLATES[text],
        metrics=metrics_of(RECALLS),
        main="average",
    )


def changed_words(source: str, target: str) -> tuple[str, str]:
    """The first word of each caption that the other does not have; its last word where it has no such word (as TIRG).

    Example:
        >>> changed_words("black biker jacket", "blue biker jacket")
        ('black', 'blue')
    """

    def first(words: list[str], others: list[str]) -> str:
        return next((word for word in words if word not in others), words[-1])

    before, after = source.split(), target.split()
    return first(before, after), first(after, before)


def modification(source: str, target: str, text: Wording) -> str:
    """Text that turns one caption into the other.

    Example:
        >>> modification("black jacket", "blue jacket", "hycole"), modification("black jacket", "blue jacket", "tirg")
        ('is not black, is blue.', 'replace black with blue')
    """
    old, new = changed_words(source, target)
    return f"replace {old} with {new}" if text == "tirg" else f"is not {old}, is {new}."


def families(caption: str) -> list[tuple[str, str]]:
    """(the other words in their order, the word taken out) for every word of a caption.

    Example:
        >>> families("black biker jacket")[:2]
        [('biker jacket', 'black'), ('black jacket', 'biker')]
    """
    words = caption.split()
    return [(" ".join(words[:place] + words[place + 1 :]), word) for place, word in enumerate(words)]


# --- files -------------------------------------------------------------------------------------------------------


def _read_labels(reader: Reader, split: str) -> tuple[Labels, tuple[str, ...]]:
    """Images and captions of every label file of a split, and what is odd about them."""
    folder = reader.root / "labels"
    paths = [p for p in sorted(folder.glob("*")) if split in p.name and p.name != QUERIES and p.is_file()]
    if not paths:
        raise DataError(f"{folder} has no file with '{split}' in its name: put the label files there")
    captions: dict[str, str] = {}
    repeated, conflicting = 0, 0
    for path in paths:
        for where, line in _lines(reader, path):
            fields = line.split("\t")
            if len(fields) != 3:
                raise DataError(f"{where}: want path, score and caption between tabs, got {quoted(line)}")
            image = without_extension(relative_path(fields[0], where))
            caption = fields[2].strip()
            if not caption:
                raise DataError(f"{where}: image '{image}' has an empty caption")
            if image in captions:
                repeated += 1
                conflicting += captions[image] != caption
            else:
                captions[image] = caption
    labels = Labels(list(captions), list(captions.values()))
    if not repeated:
        return labels, ()
    remark = f"{split}: {repeated:,} lines label an image again, {conflicting:,} of them otherwise: the first counts"
    return labels, (remark,)


def _read_queries(reader: Reader, labels: Labels) -> list[tuple[str, str, str, str]]:
    """(source, its caption, target, its caption) of every test query."""
    path = reader.root / QUERIES
    caption_of = dict(zip(labels.images, labels.captions, strict=True))
    found = []
    for where, line in _lines(reader, path):
        fields = line.split()
        if len(fields) != 2:
            raise DataError(f"{where}: want source path and target path, got {quoted(line)}")
        source, target = (without_extension(relative_path(field, where)) for field in fields)
        for what, image in (("source", source), ("target", target)):
            if image not in caption_of:
                raise DataError(
                    f"{where}: {what} {quoted(image)} is in no test label file: the files do not belong together"
                )
        if source == target:
            raise DataError(f"{where}: source and target are the same image {quoted(source)}")
        found.append((source, caption_of[source], target, caption_of[target]))
    return found


def _lines(reader: Reader, path: Path) -> Iterable[tuple[str, str]]:
    """(place, line) of every line of a text file that is not blank."""
    for number, line in enumerate(reader.text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}: line {number}", line.rstrip("\r")


def _scan(folder: Path, ids: list[str]) -> ImageFiles:
    """Files by the path of the label files, wherever the tree of images begins below the folder."""
    tops = {image.split("/", 1)[0] for image in ids}

    def key(path: PurePath) -> str:
        start = next((place for place, part in enumerate(path.parts) if part in tops), 0)
        return without_extension(PurePath(*path.parts[start:]))

    return ImageFiles.scan(folder, key=key, files=list_files(folder))


# --- queries -----------------------------------------------------------------------------------------------------


def _test_queries(labels: Labels, named: list[tuple[str, str, str, str]], text: Wording) -> list[Query]:
    """The queries whose source is there and for which an image with the target's caption is."""
    there = set(labels.images)
    queries = []
    for number, (source, before, target, after) in enumerate(named):
        if target not in there:  # only where images are missing: another of its class stands in
            target = next((image for image in labels.of_class.get(after, ()) if image != source), "")
        if source not in there or not target:
            continue
        queries.append(
            Query(
                id=f"test-{number:05d}",
                reference=source,
                text=modification(before, after, text),
                target=target,
                group=GROUP,
                relevant=labels.relevant(target, after),
                captions=(before, after),
            )
        )
    return queries
