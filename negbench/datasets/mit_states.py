"""MIT-States: objects in states, the query asks for another state; nouns unseen in training; recall at 1, 5 and 10."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from negbench.contracts import Query, check_option
from negbench.datasets._paths import relative_path, without_extension
from negbench.datasets._read import find_root, list_files, quoted
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
from negbench.datasets.image_files import EXTENSIONS, ImageFiles
from negbench.errors import DataError

PAPER = "Isola et al., Discovering States and Transformations in Image Collections, CVPR 2015; split of Vo et al., 2019"

RECALLS = (1, 5, 10)
TREE = "images/ADJECTIVE NOUN/*.jpg"
TEMPLATES: dict[Wording, str] = {
    "hycole": "'is not u, is v.', u and v the adjectives of source and target (HyCoLe's words for Fashion200K)",
    "tirg": "'v', the adjective of the target (TIRG)",
}
# the nouns that TIRG keeps for testing (google/tirg, datasets.py)
TEST_NOUNS = (
    "armor", "bracelet", "bush", "camera", "candy", "castle", "ceramic", "cheese", "clock", "clothes", "coffee",
    "fan", "fig", "fish", "foam", "forest", "fruit", "furniture", "garden", "gate", "glass", "horse", "island",
    "laptop", "lead", "lightning", "mirror", "orange", "paint", "persimmon", "plastic", "plate", "potato", "road",
    "rubber", "sand", "shell", "sky", "smoke", "steel", "stream", "table", "tea", "tomato", "vacuum", "wax", "wheel",
    "window", "wool",
)  # fmt: skip
UNSTATED = "adj"  # folder 'adj NOUN': images of the noun in no particular state

_CITATION = """@inproceedings{isola2015discovering,
  title = {Discovering States and Transformations in Image Collections},
  author = {Isola, Phillip and Lim, Joseph J. and Adelson, Edward H.},
  booktitle = {CVPR},
  year = {2015}
}"""


@dataclass(frozen=True, eq=False)
class MitStates(ClassDataset):
    """MIT-States under TIRG's protocol: every test image with every other adjective of its noun is a query, any image
    of (that adjective, noun) answers it, all images of test nouns are the gallery, and the reference is not ranked.
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
        """Read one split from the names of folders and files, which are all the annotation there is.

        Training pairs are two images of one noun in different states; `pairs` of them are drawn when the split is
        loaded, none is listed that is not drawn, and every epoch goes over the same ones. Image ids are
        'ADJECTIVE NOUN/FILE' without extension.

        Args:
            root: folder that holds `images`, or the one above it named `mit-states`; None takes NEGBENCH_DATA.
            split: train or test; val, which a run reports, is test: there is no other.
            images: whether image files must hold something; without it their names are enough.
            allow_missing: leave out empty image files and mark the result partial, instead of DataError.
            text: modification text from state u to v: `hycole` "is not u, is v.", `tirg` "v".
            pairs: training pairs to draw; left out, as many as there are images.
            seed: of that draw.

        Raises:
            DataError: images missing, or folders not named as above.
            OptionError: an option with an unknown value.
        """
        split = resolve_split(split)
        check_option("text", text, text in TEMPLATES, f"one of {', '.join(TEMPLATES)}")
        draw = Draw(pairs, seed)
        kind = card(text)
        folder = find_root(root, name=kind.name, marker="images", tree=TREE, source=kind.source) / "images"
        files = list_files(folder)
        labels = _labels(folder, files, split)
        content = hashlib.sha256(json.dumps(labels.images).encode()).hexdigest()
        found = ImageFiles.scan(folder, key=without_extension, files=files) if images else None
        missing = () if found is None else found.require(labels.images, allow_missing=allow_missing)
        labels = labels.without(missing)
        source = Source(kind, folder, split, content, labels, found, missing)
        if split == "test":
            return cls.of(source, _test_queries(labels, text))
        queries = draw.queries(labels, _families, lambda before, after: modification(before, after, text))
        return cls.of(source, queries, draw.part(queries))


def card(text: Wording = "hycole") -> DatasetCard:
    """Card of MIT-States with these texts."""
    return DatasetCard(
        name="mit-states",
        protocol="tirg",
        version="1",
        source="http://web.mit.edu/phillipi/Public/states_and_transformations/index.html",
        licence="none is stated with the data",
        citation=_CITATION,
        gallery="all images of the split's nouns; every image of the target's adjective and noun is correct; "
        "val is test",
        exclude_reference=True,  # TIRG scores the query's own image below all others
        text_template=TEMPLATES[text],
        metrics=metrics_of(RECALLS),
        main="average",
    )


def modification(source: str, target: str, text: Wording) -> str:
    """Text that turns one 'adjective noun' into the other.

    Example:
        >>> modification("ripe tomato", "sliced tomato", "hycole"), modification("ripe tomato", "sliced tomato", "tirg")
        ('is not ripe, is sliced.', 'sliced')
    """
    old, new = source.split()[0], target.split()[0]
    return new if text == "tirg" else f"is not {old}, is {new}."


# --- files -------------------------------------------------------------------------------------------------------


def _labels(folder: Path, files: list[Path], split: str) -> Labels:
    """Images of the split's nouns, sorted by class and name."""
    found: dict[str, str] = {}
    for path in files:
        inside = path.relative_to(folder)
        if len(inside.parts) != 2 or " " not in inside.parts[0] or path.suffix.lower() not in EXTENSIONS:
            continue
        words = inside.parts[0].split()
        if len(words) != 2:
            raise DataError(
                f"{folder}: folder {quoted(inside.parts[0])} is not named ADJECTIVE NOUN: rename or remove it"
            )
        adjective, noun = words
        if adjective != UNSTATED and (noun in TEST_NOUNS) == (split == "test"):
            image = without_extension(relative_path(inside.as_posix(), str(folder)))
            found[image] = f"{adjective} {noun}"
    return Labels(list(found), list(found.values()))


# --- queries -----------------------------------------------------------------------------------------------------


def _families(caption: str) -> list[tuple[str, str]]:
    adjective, noun = caption.split()
    return [(noun, adjective)]


def _test_queries(labels: Labels, text: Wording) -> list[Query]:
    """Every image with every other state of its noun; the first image of the class stands for the target."""
    states: dict[str, list[str]] = {}
    for caption in labels.of_class:
        states.setdefault(caption.split()[1], []).append(caption)
    queries: list[Query] = []
    for image, before in zip(labels.images, labels.captions, strict=True):
        for after in states[before.split()[1]]:
            if after != before:
                target = labels.of_class[after][0]
                queries.append(
                    Query(
                        id=f"test-{len(queries):06d}",
                        reference=image,
                        text=modification(before, after, text),
                        target=target,
                        group=GROUP,
                        relevant=labels.relevant(target, after),
                        captions=(before, after),
                    )
                )
    return queries
