"""MIT-States: objects in states, the query asks for another state; nouns unseen in training; recall at 1, 5 and 10."""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from negbench.benchmarks._tirg import ClassDataset, Labels, Language, recalls, resolve_split
from negbench.contracts import Query
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import FolderOptions
from negbench.errors import DataError, short_repr
from negbench.files.image_files import ImageFiles, is_picture, relative_path, without_extension
from negbench.files.reader import Reader
from negbench.machine.grouping import group_pairs
from negbench.metrics.metric import Metric, by_answers
from negbench.metrics.query_ranks import QueryRanks

PAPER = "Isola et al., Discovering States and Transformations in Image Collections, CVPR 2015; split of Vo et al., 2019"

Weighting = Literal["query", "pair"]

RECALLS = (1, 5, 10)
TREE = "images/ADJECTIVE NOUN/*.jpg"
READS = ("mit_states.toml",)
TEST_NOUNS = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))["test_nouns"]
UNSTATED = "adj"  # folder 'adj NOUN': images of the noun in no particular state


@dataclass(frozen=True, kw_only=True)
class MitStatesOptions(FolderOptions):
    """Options of `MitStates`.

    Args:
        root: folder that holds `images`.
        allow_missing: leave out images whose file is empty.
        weighting: the main metric and the protocol: `query` counts a query once (TIRG), `pair` as often as the
            class that it asks for has images (HyCoLe, whose test samples are pairs of images). Both are reported.
    """

    weighting: Weighting = "query"


@dataclass(frozen=True, eq=False)
class MitStates(ClassDataset):
    """MIT-States under TIRG's protocol: every test image with every other adjective of its noun is a query, any image
    of (that adjective, noun) answers it, all images of test nouns are the gallery, and the reference is not ranked.
    """

    @classmethod
    def load(cls, options: MitStatesOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split from the names of folders and files, which are all the annotation there is.

        A training pair is two images of one noun in different states; every epoch draws as many as there are images
        (`at_epoch`), without listing the others. Image ids are 'ADJECTIVE NOUN/FILE' without extension. Splits are
        train and test; val, which a run reports, means test: there is no other. Without `images` names are enough.
        """
        split = resolve_split(split)
        kind = card(options.weighting)
        reader = Reader(Reader.find(options.root, kind, marker="images", tree=TREE).root / "images")
        labels = _labels(reader, split)
        files = ImageFiles.scan(reader.root, key=without_extension, files=reader.files, tree=TREE) if images else None
        return cls.of_labels(kind, split, labels, LANGUAGE, _test_queries, files, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Recalls and `average` with equal weights for queries, and as `pair/...` with equal ones for image pairs."""
        return _METRICS


_BY_QUERY = recalls(RECALLS)
_METRICS = dict(_BY_QUERY)
for _name, _metric in _BY_QUERY.items():
    _METRICS[f"pair/{_name}"] = Metric(tuple(by_answers(values) for values in _metric.per_query))


def card(weighting: Weighting = "query") -> DatasetCard:
    """Card of MIT-States with this main metric."""
    return DatasetCard(
        name="mit-states",
        protocol="tirg" if weighting == "query" else "hycole",
        source="http://web.mit.edu/phillipi/Public/states_and_transformations/index.html",
        licence="none is stated with the data",
        citation=PAPER,
        gallery="all images of the split's nouns; every image of the target's adjective and noun is correct; "
        "val is test",
        exclude_reference=True,  # TIRG scores the query's own image below all others
        text_template="'is not u, is v.', u and v the adjectives of source and target (HyCoLe)",
        metrics=tuple(_METRICS),
        main="average" if weighting == "query" else "pair/average",
    )


def modification(source: str, target: str) -> str:
    """Return the text that turns one 'adjective noun' into the other, in HyCoLe's wording.

    Example:
        >>> modification("ripe tomato", "sliced tomato")
        'is not ripe, is sliced.'
    """
    return f"is not {source.split()[0]}, is {target.split()[0]}."


# --- files -------------------------------------------------------------------------------------------------------


def _labels(reader: Reader, split: str) -> Labels:
    """Read the images of the split's nouns, sorted by class and name."""
    captions: dict[str, str] = {}
    folder = reader.root
    for path in reader.files:
        inside = path.relative_to(folder)
        name = inside.parts[0]
        if len(inside.parts) != 2 or " " not in name or not is_picture(path):
            continue
        words = name.split()
        if len(words) != 2:
            raise DataError(f"{folder}: folder {short_repr(name)} is not named ADJECTIVE NOUN: rename or move it")
        adjective, noun = words
        if adjective != UNSTATED and (noun in TEST_NOUNS) == (split == "test"):
            image = without_extension(relative_path(inside.as_posix(), str(folder)))
            captions[image] = f"{adjective} {noun}"
    content = hashlib.sha256(json.dumps(list(captions)).encode()).hexdigest()
    return Labels(list(captions), list(captions.values()), folder=folder, content=content)


# --- queries -----------------------------------------------------------------------------------------------------


def _families(caption: str) -> list[tuple[str, str]]:
    adjective, noun = caption.split()
    return [(noun, adjective)]


LANGUAGE = Language(_families, modification, "{}.".format)


def _test_queries(labels: Labels) -> list[Query]:
    """Pair every image with every other state of its noun; the first image of that class is the target."""
    states = group_pairs((caption.split()[1], caption) for caption in labels.of_class)
    queries: list[Query] = []
    for image, before in zip(labels.images, labels.captions, strict=True):
        _, noun = before.split()
        for after in states[noun]:
            if after != before:
                name = f"test-{len(queries):06d}"
                target = labels.of_class[after][0]
                queries.append(labels.query(name, (image, target), (before, after), LANGUAGE))
    return queries
