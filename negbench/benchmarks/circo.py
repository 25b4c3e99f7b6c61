"""CIRCO: COCO photographs, 123,403 in the gallery, several ground truths per query; mAP at 5, 10, 25 and 50."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, Self

from negbench.contracts import Query, check_option
from negbench.contracts.card import Counts, DatasetCard
from negbench.datasets.dataset import FolderOptions, ScoreBlock, columns_of
from negbench.datasets.submission import HasTestServer, submittable
from negbench.errors import DataError, short_repr
from negbench.files.image_files import ImageFiles
from negbench.files.reader import Reader, check_type, get, once
from negbench.metrics.metric import Metric, hits, precision
from negbench.metrics.query_ranks import QueryRanks

PAPER = "Baldrati et al., Zero-Shot Composed Image Retrieval with Textual Inversion, ICCV 2023"

SPLITS = ("val", "test")
GROUP = "all"
CUTOFFS = (5, 10, 25, 50)
SUBMITTED = 50  # ids per query that the test server takes
INFO = "image_info_unlabeled2017.json"
TREE = f"annotations/SPLIT.json, COCO2017_unlabeled/annotations/{INFO}, COCO2017_unlabeled/unlabeled2017/ID.jpg"

_QUERIES = {"val": 220, "test": 800}
_GALLERY = 123_403  # COCO 2017 unlabeled
_ID_BOUND = 10**12  # COCO's file names have twelve digits


_METRICS = {f"map_at_{k}": Metric((precision(k),)) for k in CUTOFFS}
_METRICS |= {f"recall_at_{k}": Metric((hits(k),)) for k in CUTOFFS}


@dataclass(frozen=True, kw_only=True)
class CircoOptions(FolderOptions):
    """Options of `Circo`.

    Args:
        root: folder that holds `annotations` and `COCO2017_unlabeled`.
        text: the relative `caption` alone (SEARLE), or what both images show and then the caption (`concept`:
            MegaPairs' template, after MagicLens), with which published scores are higher.
    """

    text: Literal["caption", "concept"] = "caption"


_TEMPLATES = {"caption": "the relative caption, stripped", "concept": "Find a picture that also CONCEPT, but CAPTION"}


def card(options: CircoOptions) -> DatasetCard:
    """Card of CIRCO as read with these options."""
    return DatasetCard(
        name="circo",
        protocol=options.text,
        source="https://github.com/miccunifi/CIRCO",
        licence="CC BY-NC 4.0 (annotations); the images are COCO's",
        citation=PAPER,
        gallery="COCO 2017 unlabeled",
        exclude_reference=False,  # the authors' evaluation keeps it
        text_template=_TEMPLATES[options.text],
        metrics=tuple(_METRICS),
        main="map_at_5",
        expected={split: {GROUP: Counts(count, _GALLERY)} for split, count in _QUERIES.items()},
    )


@dataclass(frozen=True, eq=False)
class Circo(HasTestServer):
    """CIRCO over the unlabeled images of COCO 2017; an image's id is COCO's number as a string, without zeros."""

    @classmethod
    def load(cls, options: CircoOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split of the published annotation files; arguments and errors as for `Dataset.load`.

        The gallery is what `image_info_unlabeled2017.json` lists. Image number 9761 is 000000009761.jpg in any folder
        below `root`, which holds `annotations` and `COCO2017_unlabeled`. Splits are val and test (whose ground truths
        are closed: see `submission`).
        """
        check_option("split", split, split in SPLITS, "val or test (CIRCO has no training split)")
        marker = f"annotations/{split}.json"
        reader = Reader.find(options.root, card(options), marker=marker, tree=TREE)
        info = reader.first(INFO)
        if info is None:
            raise DataError(f"circo: there is no {INFO} below {reader.root}: it defines the gallery; expected: {TREE}")
        ids = _read_gallery(reader, info)
        make = partial(_query, split=split, gallery=set(ids), with_concept=options.text == "concept")
        queries = reader.queries(reader.root / marker, "query", make)
        data = cls(card(options), split, queries, *columns_of({GROUP: ids}), reader.content)
        files = ImageFiles.scan(reader.root, key=_number, files=reader.files, tree=TREE) if images else None
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """The mAP over all ground truths, and recall of the target alone."""
        return _METRICS

    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """Return the file for CIRCO's test server: the numbers of the 50 best images of every query.

        Returns:
            File name -> {query id: image numbers, best first, none twice}.
        """
        submittable(self)
        lists = self.ids_of(self.top(score_block, SUBMITTED))
        numbers = {query: [int(image) for image in ids] for query, ids in lists.items()}
        return {f"circo-{self.split}.json": numbers}


# --- files -------------------------------------------------------------------------------------------------------


def _query(where: str, entry: Mapping[str, Any], split: str, gallery: AbstractSet[str], with_concept: bool) -> Query:
    """Return the query of an entry; raise DataError unless its images are in the gallery."""
    caption = get(entry, "relative_caption", str, where)
    concept = get(entry, "shared_concept", str, where)
    target: str | None = None
    relevant: tuple[str, ...] = ()
    if split != "test" or "target_img_id" in entry:
        target = _id(get(entry, "target_img_id", int, where), f"{where}: key 'target_img_id'")
        values = get(entry, "gt_img_ids", list, where)
        truths = [_id(value, f"{where}: key 'gt_img_ids'[{number}]") for number, value in enumerate(values)]
        if target not in truths:
            raise DataError(f"{where}: key 'gt_img_ids': the target {target} is not among the ground truths")
        relevant = tuple(dict.fromkeys((target, *truths)))
        if len(relevant) != len(truths):
            raise DataError(f"{where}: key 'gt_img_ids': an image occurs twice: {short_repr(truths)}")
    name = str(get(entry, "id", int, where))
    reference = _id(get(entry, "reference_img_id", int, where), f"{where}: key 'reference_img_id'")
    outside = next((image for image in (reference, *relevant) if image not in gallery), None)
    if outside is not None:
        raise DataError(f"{where}: image {outside} of query {name} is not in {INFO}")
    text = caption.strip()
    if with_concept:
        text = f"Find a picture that also {concept.strip()}, but {text}"
    return Query(name, reference, text, target, GROUP, relevant, (caption, concept))


def _id(value: Any, where: str) -> str:
    number = check_type(value, int, where)
    if not 0 <= number < _ID_BOUND:
        raise DataError(f"{where}: {short_repr(number)} is not an image number: expected up to twelve digits")
    return str(number)


def _read_gallery(reader: Reader, path: Path) -> list[str]:
    ids = []
    for index, entry in enumerate(get(check_type(reader.json(path), dict, str(path)), "images", list, str(path))):
        where = f"{path}: key 'images'[{index}]"
        ids.append(_id(get(check_type(entry, dict, where), "id", int, where), f"{where}: key 'id'"))
    return once(ids, "image", path)


def _number(path: PurePath) -> str:
    """Return '9761' for 000000009761.jpg; any other name as it is."""
    name = path.stem
    is_number = name.isascii() and name.isdigit() and len(name) <= 12
    return str(int(name)) if is_number else name
