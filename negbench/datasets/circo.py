"""CIRCO: COCO photographs, 123,403 in the gallery, several ground truths per query; mAP at 5, 10, 25 and 50."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, Self

from negbench.contracts import Query, check_option
from negbench.datasets._read import Reader, find_root, first_file, get, list_files, quoted, strings, typed
from negbench.datasets.card import Counts, DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of, without_missing
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.average_precision import map_at_k
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import recall_at_k

PAPER = "Baldrati et al., Zero-Shot Composed Image Retrieval with Textual Inversion, ICCV 2023"

TextMode = Literal["caption", "shared_concept"]

SPLITS = ("val", "test")
GROUP = "all"
CUTOFFS = (5, 10, 25, 50)
ASPECT_CUTOFF = 10
SUBMITTED = 50  # ids per query that the test server takes
INFO = "image_info_unlabeled2017.json"
TREE = f"annotations/SPLIT.json, COCO2017_unlabeled/annotations/{INFO}, COCO2017_unlabeled/unlabeled2017/ID.jpg"
# the aspects of the authors' evaluation, in its order
ASPECTS = (
    "cardinality",
    "addition",
    "negation",
    "direct_addressing",
    "compare_change",
    "comparative_statement",
    "statement_with_conjunction",
    "spatial_relations_background",
    "viewpoint",
)
TEMPLATES: Mapping[TextMode, str] = {
    "caption": "the relative caption, stripped",
    "shared_concept": "'find CONCEPT but CAPTION'",
}

_CITATION = """@inproceedings{baldrati2023circo,
  title = {Zero-Shot Composed Image Retrieval with Textual Inversion},
  author = {Baldrati, Alberto and Agnolucci, Lorenzo and Bertini, Marco and Del Bimbo, Alberto},
  booktitle = {ICCV},
  year = {2023}
}"""

_QUERIES = {"val": 220, "test": 800}
_GALLERY = 123_403  # COCO 2017 unlabeled
_ID_BOUND = 10**12  # COCO's file names have twelve digits


@dataclass(frozen=True, eq=False)
class Circo(Dataset):
    """CIRCO over the unlabeled images of COCO 2017; an image's id is COCO's number as a string, without zeros."""

    @classmethod
    def load(
        cls,
        *,
        root: Path | None = None,
        split: str = "val",
        images: bool = True,
        allow_missing: bool = False,
        text: TextMode = "caption",
    ) -> Self:
        """Read one split of the published annotation files.

        The gallery is what `image_info_unlabeled2017.json` lists. With `images=False` and without that file it is only
        what the annotations name: enough to read the queries, not the benchmark (a remark and the protocol say so).

        Args:
            root: folder that holds `annotations` and `COCO2017_unlabeled`, or the one above it named `circo`; None
                takes NEGBENCH_DATA.
            split: val or test (whose ground truths are closed: see `submission`).
            images: whether the image files must be there; number 9761 is 000000009761.jpg in any folder.
            allow_missing: leave out what needs a missing image and mark the result partial, instead of DataError.
            text: `caption`, the relative caption alone (SEARLE), or `shared_concept`, "find CONCEPT but CAPTION"
                (MagicLens), on which mAP is higher.

        Raises:
            DataError: files or images missing, or not in the format.
            OptionError: an option with an unknown value.
        """
        check_option("split", split, split in SPLITS, "val or test (CIRCO has no training split)")
        check_option("text", text, text in TEMPLATES, f"one of {', '.join(TEMPLATES)}")
        marker = f"annotations/{split}.json"
        folder = find_root(root, name="circo", marker=marker, tree=TREE, source=card(text).source)
        reader, files = Reader(folder), list_files(folder)
        queries = _read_queries(reader, folder / marker, split, text)
        info = first_file(files, [INFO])
        if info is None and images:
            raise DataError(f"circo: there is no {INFO} below {folder}: it defines the gallery; expected: {TREE}")
        kind = card(text, whole=info is not None)
        ids = _named(queries) if info is None else _read_gallery(reader, info)
        _check_gallery(queries, set(ids), folder / marker)
        galleries: dict[str, Sequence[str]] = {GROUP: ids}
        remarks = kind.remarks(split, {GROUP: Counts(len(queries), len(ids))})
        if info is None:
            remarks += (f"there is no {INFO}: the gallery holds only the images that the annotations name",)
        found: ImageFiles | None = None
        missing: tuple[str, ...] = ()
        if images:
            found = ImageFiles.scan(folder, key=_number, files=files)
            missing = found.require(ids, allow_missing=allow_missing)
            queries, kept = without_missing(queries, galleries, set(missing))
            galleries = dict(kept)
        if not queries:
            raise DataError(f"circo {split}: no query is left below {folder} ({len(missing)} images missing)")
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
            remarks=remarks,
        )

    @classmethod
    def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
        """The mAP over all ground truths, recall of the target alone, and mAP@10 of every aspect that has a query."""
        values = {f"map_at_{k}": map_at_k(ranks.relevant_ranks, k) for k in CUTOFFS}
        values |= {f"recall_at_{k}": recall_at_k(ranks.target_rank, k) for k in CUTOFFS}
        aspects = ranks.aspects or ()
        known = {name for names in aspects for name in names}
        for aspect in (*(a for a in ASPECTS if a in known), *sorted(known.difference(ASPECTS))):
            rows = ranks.select([row for row, names in enumerate(aspects) if aspect in names])
            values[f"semantic/{aspect}/map_at_{ASPECT_CUTOFF}"] = map_at_k(rows.relevant_ranks, ASPECT_CUTOFF)
        return values

    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """The file of CIRCO's test server: the numbers of the 50 best images of every query.

        Args:
            score_block: as for `rank`.

        Returns:
            File name -> {query id: image numbers, best first, none twice}.

        Raises:
            DataError: only a part of the split or of the gallery is loaded.
        """
        self.check_submission()
        best = self.top(score_block, SUBMITTED).columns
        lists = {
            query.id: [int(self.images[column]) for column in row if column >= 0]
            for query, row in zip(self.queries, best.tolist(), strict=True)
        }
        return {f"circo-{self.split}.json": lists}

    def check_submission(self) -> None:
        """Raise DataError where only a part of the split or of the gallery is loaded."""
        problems = [
            f"{len(self.missing)} images are missing" if self.missing else "",
            f"only {self.part} is loaded" if self.part else "",
            f"there is no {INFO}" if self.card.gallery != card().gallery else "",
        ]
        if any(problems):
            lacking = " and ".join(filter(None, problems))
            raise DataError(f"circo {self.split}: a submission needs every query and image, but {lacking}")


def card(text: TextMode = "caption", *, whole: bool = True) -> DatasetCard:
    """Card of CIRCO as read with this text, over the whole gallery or over the images that the annotations name."""
    return DatasetCard(
        name="circo",
        protocol=text if whole else f"{text}-named-images",
        version="1",
        source="https://github.com/miccunifi/CIRCO",
        licence="CC BY-NC 4.0 (annotations); the images are COCO's",
        citation=_CITATION,
        gallery="COCO 2017 unlabeled" if whole else "images that the annotations name",
        exclude_reference=False,  # the authors' evaluation keeps it
        text_template=TEMPLATES[text],
        metrics=(
            *(f"map_at_{k}" for k in CUTOFFS),
            *(f"recall_at_{k}" for k in CUTOFFS),
            *(f"semantic/{aspect}/map_at_{ASPECT_CUTOFF}" for aspect in ASPECTS),
        ),
        main="map_at_5",
        expected={split: {GROUP: Counts(count, _GALLERY)} for split, count in _QUERIES.items()},
    )


# --- files -------------------------------------------------------------------------------------------------------


def _read_queries(reader: Reader, path: Path, split: str, text: TextMode) -> list[Query]:
    queries = []
    seen: dict[str, int] = {}
    for index, entry in enumerate(reader.entries(path)):
        query = _query(entry, f"{path}: entry {index}", split, text)
        if query.id in seen:
            raise DataError(f"{path}: query {query.id} is there twice (entries {seen[query.id]} and {index})")
        seen[query.id] = index
        queries.append(query)
    return queries


def _query(entry: Mapping[str, Any], where: str, split: str, text: TextMode) -> Query:
    caption = get(entry, "relative_caption", str, where)
    concept = get(entry, "shared_concept", str, where)
    target: str | None = None
    relevant: tuple[str, ...] = ()
    if split != "test" or "target_img_id" in entry:
        target = _id(get(entry, "target_img_id", int, where), f"{where}: key 'target_img_id'")
        listed = get(entry, "gt_img_ids", list, where)
        truths = [_id(value, f"{where}: key 'gt_img_ids'[{n}]") for n, value in enumerate(listed)]
        if target not in truths:
            raise DataError(f"{where}: key 'gt_img_ids': the target {target} is not among the ground truths")
        relevant = tuple(dict.fromkeys((target, *truths)))
        if len(relevant) != len(truths):
            raise DataError(f"{where}: key 'gt_img_ids': an image is there twice: {quoted(truths)}")
    return Query(
        id=str(get(entry, "id", int, where)),
        reference=_id(get(entry, "reference_img_id", int, where), f"{where}: key 'reference_img_id'"),
        text=caption.strip() if text == "caption" else f"find {concept.strip()} but {caption.strip()}",
        target=target,
        group=GROUP,
        relevant=relevant,
        captions=(caption, concept),
        aspects=_aspects(entry, where),
    )


def _aspects(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Semantic aspects, lower-case with underscores; the first release of the annotations has none."""
    if "semantic_aspects" not in entry:
        return ()
    inside = f"{where}: key 'semantic_aspects'"
    names = []
    for index, name in enumerate(strings(entry["semantic_aspects"], inside)):
        names.append("_".join(re.findall(r"[a-z0-9]+", name.lower())))
        if not names[-1]:
            raise DataError(f"{inside}[{index}]: {quoted(name)} is no name")
    return tuple(dict.fromkeys(names))


def _id(value: Any, where: str) -> str:
    number = typed(value, int, where)
    if not 0 <= number < _ID_BOUND:
        raise DataError(f"{where}: {quoted(number)} is no image number: want one of up to twelve digits")
    return str(number)


def _read_gallery(reader: Reader, path: Path) -> list[str]:
    data = typed(reader.json(path), dict, str(path))
    ids: dict[str, int] = {}
    for index, entry in enumerate(get(data, "images", list, str(path))):
        where = f"{path}: key 'images'[{index}]"
        name = _id(get(typed(entry, dict, where), "id", int, where), f"{where}: key 'id'")
        if name in ids:
            raise DataError(f"{path}: image {name} is there twice (entries {ids[name]} and {index})")
        ids[name] = index
    return list(ids)


def _named(queries: Sequence[Query]) -> list[str]:
    """Every image that the annotations name, in order of first appearance."""
    return list(dict.fromkeys(image for query in queries for image in (query.reference, *query.relevant)))


def _check_gallery(queries: Sequence[Query], gallery: set[str], path: Path) -> None:
    for index, query in enumerate(queries):
        for image in (query.reference, *query.relevant):
            if image not in gallery:
                raise DataError(f"{path}: entry {index}: image {image} of query {query.id} is not in {INFO}")


def _number(path: PurePath) -> str:
    """000000009761.jpg -> '9761'; any other name as it is."""
    return str(int(path.stem)) if path.stem.isascii() and path.stem.isdigit() and len(path.stem) <= 12 else path.stem
