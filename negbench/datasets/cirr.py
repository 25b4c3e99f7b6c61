"""CIRR: photographs in groups of six look-alikes; recall over the split and within the group, no reference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from negbench.contracts import Query, check_option
from negbench.datasets._read import (
    DATA_VARIABLE,
    Reader,
    find_root,
    get,
    image_id,
    list_files,
    quoted,
    strings,
    typed,
)
from negbench.datasets.card import Counts, DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of, without_missing
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import recall_at_k

PAPER = "Liu et al., Image Retrieval on Real-life Images with Pre-trained Vision-and-Language Models, ICCV 2021"

Corpus = Literal["images", "targets"]

SPLITS = ("train", "val", "test1")
VERSION = "rc2"  # of the annotation files; part of their names
GROUP = "all"
RECALLS = (1, 5, 10, 50)
SUBSET_RECALLS = (1, 2, 3)
SUBMITTED, SUBSET_SUBMITTED = 50, 3  # ids per query that the test server takes
GROUP_SIZE = 6
TREE = (
    f"captions/cap.{VERSION}.SPLIT.json, image_splits/split.{VERSION}.SPLIT.json, and the images as "
    "train/0/ID.png ... train/99/ID.png (or train/ID.png), dev/ID.png, test1/ID.png, below img_raw or not"
)
IMAGE_FOLDERS = ("img_raw", "train", "dev", "test1")

_CITATION = """@inproceedings{liu2021cirr,
  title = {Image Retrieval on Real-life Images with Pre-trained Vision-and-Language Models},
  author = {Liu, Zheyuan and Rodriguez-Opazo, Cristian and Teney, Damien and Gould, Stephen},
  booktitle = {ICCV},
  year = {2021}
}"""

# entries of the caption files; images of the split files (the paper's table 2 has 4,184 val pairs, which its authors
# correct to 4,181, and 2,316 test images, of which split.rc2.test1.json holds 2,315)
_SIZES = {"train": Counts(28225, 16939), "val": Counts(4181, 2297), "test1": Counts(4148, 2315)}


@dataclass(frozen=True, eq=False)
class Cirr(Dataset):
    """CIRR, version rc2."""

    @classmethod
    def load(
        cls,
        *,
        root: Path | None = None,
        split: str = "val",
        images: bool = True,
        allow_missing: bool = False,
        corpus: Corpus = "images",
    ) -> Self:
        """Read one split of the published annotation files.

        The gallery is the split file, whole and alone. A query's subset is its image group without the reference: five
        images, so that chance is 20 % at 1. Images are found by id anywhere below `root`, in both trees that are in
        circulation.

        Args:
            root: folder that holds `captions` and `image_splits`, or the one above it when that one is named `cirr`;
                None takes NEGBENCH_DATA.
            split: train, val or test1 (whose targets are closed: see `submission`).
            images: whether the image files must be there.
            allow_missing: leave out what needs a missing image and mark the result partial, instead of DataError.
            corpus: mining corpus of train: all images of the split file, or each training target once (the groups then
                hold only what is in the corpus).

        Raises:
            DataError: files or images missing, or not in the format.
            OptionError: an option with an unknown value.
        """
        check_option("split", split, split in SPLITS, f"one of {', '.join(SPLITS)}")
        check_option("corpus", corpus, corpus in ("images", "targets"), "images or targets")
        kind = card(split, corpus)
        marker = f"captions/cap.{VERSION}.{split}.json"
        folder = find_root(root, name=kind.name, marker=marker, tree=TREE, source=kind.source)
        reader = Reader(folder)
        places = _read_split(reader, folder / "image_splits" / f"split.{VERSION}.{split}.json")
        queries = _read_queries(reader, folder / marker, split, places)
        ids: Sequence[str] = list(places)
        if split == "train" and corpus == "targets":
            ids = list(dict.fromkeys(query.target for query in queries if query.target is not None))
        galleries: dict[str, Sequence[str]] = {GROUP: ids}
        counts = {GROUP: Counts(len(queries), len(ids))}
        found: ImageFiles | None = None
        missing: tuple[str, ...] = ()
        if images:
            found = ImageFiles.scan(folder, files=_files(folder, root))
            needed = dict.fromkeys([*ids, *(query.reference for query in queries)])
            missing = _missing(found, needed, places, allow_missing)
            queries, kept = without_missing(queries, galleries, set(missing))
            galleries = dict(kept)
        if not queries:
            raise DataError(f"cirr {split}: no query is left below {folder} ({len(missing)} images missing)")
        names, groups = columns_of(galleries)
        return cls(
            card=kind,
            split=split,
            queries=queries,
            images=names,
            groups=groups,
            content=reader.content,
            files=found,
            missing=missing,
            remarks=kind.remarks(split, counts),
        )

    @classmethod
    def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
        """R@1, 5, 10 and 50, subset R@1, 2 and 3, and `average`, the mean of R@5 and subset R@1."""
        if ranks.subset_rank is None:
            raise DataError("these ranks hold no ranks within image groups: they are not CIRR's")
        values = {f"recall_at_{k}": recall_at_k(ranks.target_rank, k) for k in RECALLS}
        values |= {f"subset_recall_at_{k}": recall_at_k(ranks.subset_rank, k) for k in SUBSET_RECALLS}
        values["average"] = (values["recall_at_5"] + values["subset_recall_at_1"]) / 2
        return values

    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """The two files of CIRR's test server: the 50 best images of every query, and the 3 best of its group.

        Args:
            score_block: as for `rank`.

        Returns:
            File name -> {"version", "metric", query id: image ids, best first}; the reference is in no list.

        Raises:
            DataError: only a part of the split is loaded, which the server would not take.
        """
        self.check_submission()
        files = {}
        for metric, k in (("recall", SUBMITTED), ("recall_subset", SUBSET_SUBMITTED)):
            best = self.top(score_block, k, within_subset=metric == "recall_subset").columns
            lists = {
                query.id: [self.images[column] for column in row if column >= 0]
                for query, row in zip(self.queries, best.tolist(), strict=True)
            }
            files[f"cirr-{self.split}-{metric}.json"] = {"version": VERSION, "metric": metric, **lists}
        return files

    def check_submission(self) -> None:
        """Raise DataError where only a part of the split is loaded."""
        if self.missing or self.part:
            lacking = f"{len(self.missing)} images are missing" if self.missing else f"only {self.part} is loaded"
            raise DataError(f"cirr {self.split}: a submission needs every query and image, but {lacking}")


def card(split: str, corpus: Corpus = "images") -> DatasetCard:
    """Card of CIRR's split; on train the gallery is the mining corpus."""
    of_targets = split == "train" and corpus == "targets"
    return DatasetCard(
        name="cirr",
        protocol=VERSION,
        version="1",
        source="https://github.com/Cuberick-Orion/CIRR (branch cirr_dataset)",
        licence="MIT (annotations); the images are NLVR2's, under its terms",
        citation=_CITATION,
        gallery="distinct training targets" if of_targets else "all images of the split file",
        exclude_reference=True,
        text_template="the caption, stripped",
        metrics=(
            *(f"recall_at_{k}" for k in RECALLS),
            *(f"subset_recall_at_{k}" for k in SUBSET_RECALLS),
            "average",
        ),
        main="average",
        expected={} if of_targets else {split: {GROUP: _SIZES[split]}},
    )


# --- files -------------------------------------------------------------------------------------------------------


def _read_split(reader: Reader, path: Path) -> dict[str, str]:
    """Image id -> where the split file puts it, relative to the images' root."""
    places = {}
    for name, value in typed(reader.json(path), dict, str(path)).items():
        where = f"{path}: key {quoted(name)}"
        place = PurePosixPath(typed(value, str, where))
        if place.is_absolute() or ".." in place.parts or "\\" in value or not value.isprintable():
            raise DataError(f"{where}: {quoted(value)} is no path below the images' folder")
        places[image_id(name, where)] = str(place)
    return places


def _read_queries(reader: Reader, path: Path, split: str, places: Mapping[str, str]) -> list[Query]:
    queries = []
    seen: dict[str, int] = {}
    for index, entry in enumerate(reader.entries(path)):
        where = f"{path}: entry {index}"
        query = _query(entry, where, split)
        if query.id in seen:
            raise DataError(f"{where}: pairid {query.id} is there twice (entries {seen[query.id]} and {index})")
        seen[query.id] = index
        _check_gallery(query, split, places, where)
        queries.append(query)
    return queries


def _query(entry: Mapping[str, Any], where: str, split: str) -> Query:
    closed = split == "test1" and "target_hard" not in entry
    caption = get(entry, "caption", str, where)
    reference = image_id(get(entry, "reference", str, where), f"{where}: key 'reference'")
    group = get(entry, "img_set", dict, where)
    inside = f"{where}: key 'img_set'"
    members = strings(get(group, "members", list, inside), f"{inside}: key 'members'")
    return Query(
        id=str(get(entry, "pairid", int, where)),
        reference=reference,
        text=caption.strip(),
        target=None if closed else image_id(get(entry, "target_hard", str, where), f"{where}: key 'target_hard'"),
        group=GROUP,
        captions=(caption,),
        subset=tuple(member for member in dict.fromkeys(members) if member != reference),
    )


def _check_gallery(query: Query, split: str, places: Mapping[str, str], where: str) -> None:
    """Target, reference and group are in the gallery, and the target is in the group."""
    split_file = f"split.{VERSION}.{split}.json"
    for what, image in (("target", query.target), ("reference", query.reference)):
        if image is not None and image not in places:
            raise DataError(
                f"{where}: {what} '{image}' of query {query.id} is not in the gallery {split_file}: the two files do "
                "not belong together"
            )
    if split == "train":  # groups are not part of training; a dev part takes what there is of them
        return
    if len(query.subset) != GROUP_SIZE - 1:
        raise DataError(
            f"{where}: key 'img_set': want {GROUP_SIZE} distinct members, the reference '{query.reference}' among "
            f"them, got {len(query.subset)} others"
        )
    outside = [member for member in query.subset if member not in places]
    if outside:
        raise DataError(f"{where}: key 'img_set': member {quoted(outside[0])} is not in the gallery {split_file}")
    if query.target is not None and query.target not in query.subset:
        raise DataError(f"{where}: target '{query.target}' of query {query.id} is not in its image group")


def _files(folder: Path, root: Path | None) -> list[Path]:
    """Files below the folder, and below the image folders beside it where the root that was given is its parent.

    CLIP4Cir's tree has `cirr` (annotations), `train`, `dev` and `test1` side by side.
    """
    files = list_files(folder)
    given = Path(os.environ.get(DATA_VARIABLE, "")) if root is None else root
    if folder != given:
        for name in IMAGE_FOLDERS:
            if (given / name).is_dir():
                files += list_files(given / name)
    return files


def _missing(
    found: ImageFiles, needed: Iterable[str], places: Mapping[str, str], allow_missing: bool
) -> tuple[str, ...]:
    """Ids without a usable file; DataError with the expected tree and the first mismatch unless `allow_missing`."""
    needed = list(needed)
    bad = found.missing(needed)
    if bad and not allow_missing:
        first, why = next(iter(bad.items()))
        raise DataError(
            f"{len(bad):,} of {len(needed):,} images are missing below {found.root}; first mismatch: {places[first]} "
            f"({why}; any folder will do, the name counts); expected: {TREE}; put them there, or leave them out with "
            "--allow-missing (allow_missing=True), which marks the result partial"
        )
    return tuple(bad)
