"""A data set without pictures: `synthetic`'s garments and queries as attributes only, for the backbone `vectors`.

An image is its id, which names its attributes and a number of its own: "dress-train-0-a31203-00017" has values 10 (a),
3, 1, 2, 0 and 3 of the attributes colour, sleeve, neckline, pattern, length and print, in the order of
`_garments.values`; "...-00017-12x0.7" also is in line 12, whose look has the weight 0.7. The backbone draws an image's
features from its id, so no file is read, rendered or encoded, and a training run takes about a second. Every option
changes one thing only: images keep their ids while the number of queries changes.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field

from negbench.benchmarks.fashioniq_files import TEMPLATES
from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.galleries import AttributeCodes
from negbench.errors import DataError, OptionError
from negbench.files.captions import join_captions
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.metric import Metric, hits, precision
from negbench.metrics.query_ranks import QueryRanks
from negbench.worlds import _synthesis, _wording
from negbench.worlds._garments import ATTRIBUTES, CATEGORIES, Attributes, codes_of, of_codes
from negbench.worlds._synthesis import GENERATOR, Spec, WorldPart, attribute_codes, fits_one, plan
from negbench.worlds._wording import attribute_words

PAPER = "ours; the garments of `synthetic`, with CIRCO's density of ground truths (ICCV 2023)"

GROUP = "dress"  # the only gallery, and the only category unless one has too few garments
RECALLS = (1, 5, 10, 50)
CUTOFF = 10  # of mAP
_SIZES = ("train_images", "train_queries", "val_images", "val_queries")

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID = re.compile(
    rf"(?P<category>{'|'.join(CATEGORIES)})-(train|val|dev)-\d+-(?P<codes>[0-9a-z]{{{len(ATTRIBUTES)}}})-\d+(?P<look>-\d+x0\.\d+)?"
)
_METRICS = {f"recall_at_{k}": Metric((hits(k),)) for k in RECALLS} | {f"map_at_{CUTOFF}": Metric((precision(CUTOFF),))}


def attributes_of(image: str) -> Attributes:
    """Return the attributes that an image id encodes.

    Raises:
        DataError: an id that is not of this data set.
    """
    match = _ID.fullmatch(image)
    try:
        if match is None:
            raise ValueError
        return of_codes(match["category"], [_DIGITS.index(digit) for digit in match["codes"]])
    except (IndexError, ValueError) as error:
        raise DataError(f"'{image}' is not an image of data set 'vectors': its id does not name attributes") from error


def look_of(image: str) -> tuple[str, float]:
    """Return the name of an id's line (with split and world) and the weight of its look; ("", 0.0) if it has none."""
    match = _ID.fullmatch(image)
    if match is None or match["look"] is None:
        return "", 0.0
    line, weight = match["look"].split("x")
    return image[: match.start("codes")] + line, float(weight)


@dataclass(frozen=True, kw_only=True)
class VectorWorldOptions(FolderOptions):
    """Options of `VectorWorld`.

    Args:
        root, allow_missing: for data sets with files; leave them out.
        world: number of the world, >= 0; None: 0, or in a run the run's seed.
        twins: mean number of relevant images per query, the target included; 1 .. a quarter of the images. They are
            alike but for their noise (see the backbone's `noise`).
        look: weight of what the garments of a line share besides their attributes, 0 .. 0.95. Above 0
            garments come in lines of two, three attributes apart, and a query turns one into the other. A score row
            then has two cliffs, below the right images and below the rest of their line; 0: no lines.
        wrong: share of the train queries whose annotated target is a random image instead, 0 .. 0.9.
        train_images: size of the mining corpus, at least 8. If one category has too few different garments (10,000
            images with twins of 1, 20,000 with 3), the world has three, and queries stay within theirs.
        train_queries: number of training queries, >= 1.
        val_images: size of the gallery, as `train_images`.
        val_queries: number of validation queries, >= 1.

    Raises:
        OptionError: an impossible value, or a folder is given.
    """

    world: int | None = None
    twins: float = 4.5
    look: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    wrong: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    train_images: int = 1000
    train_queries: int = 500
    val_images: int = 1000
    val_queries: int = 2000

    def __post_init__(self) -> None:
        check_option("root", self.root, self.root is None, "left out: data set 'vectors' reads no files")
        self.spec()

    def spec(self) -> Spec:
        """Return what determines the world, but for `look`. Raises OptionError for an impossible value."""
        sizes = (self.train_images, self.train_queries, self.val_images, self.val_queries)
        return Spec(self.world or 0, self.twins, *sizes)


@dataclass(frozen=True, eq=False)
class VectorWorld(Dataset):
    """Garments as attributes; an image is relevant to a query exactly when all its attributes are the target's."""

    has_images: ClassVar[bool] = False
    exchangeable: ClassVar[bool] = True
    generates_dev: ClassVar[bool] = True
    fixed: ClassVar = (_synthesis.FIXED, _wording.FIXED)

    @classmethod
    def load(cls, options: VectorWorldOptions, split: str = "val", images: bool = False) -> Self:
        """Make one split, train, val or dev; nothing is read or written.

        Raises:
            OptionError: another split, or images are asked for.
        """
        check_option("split", split, split in ("train", "val", "dev"), "train, val or dev (there is no test split)")
        if images:
            raise OptionError(
                "data set 'vectors' has no images to encode: use --backbone vectors or --dataset synthetic"
            )
        spec = options.spec()
        look = options.look
        planned = spec
        if split == "dev":
            planned = replace(spec, val_queries=max(spec.val_queries, DEV_QUERIES))
        names: list[str] = []
        queries: list[Query] = []
        for part in _parts(planned, split, in_lines=look > 0):
            part_names = []
            for number, attributes in enumerate(part.attributes):
                code = "".join(_DIGITS[code] for code in codes_of(attributes))
                part_names.append(f"{part.category}-{split}-{spec.world}-{code}-{number:05}")
            if look:
                part_names = [f"{name}-{line}x{look}" for name, line in zip(part_names, part.lines, strict=True)]
            names += part_names
            queries += _queries(replace(part, images=part_names), len(queries))
        if split == "train":
            queries = _mislabel(queries, names, options)
        content = hashlib.sha256("\n".join([*names, *map(repr, queries)]).encode()).hexdigest()
        ids, groups = columns_of({GROUP: names})
        return cls(card(spec, look, options.wrong), split, queries, ids, groups, content)

    @classmethod
    def made_card(cls, options: VectorWorldOptions) -> DatasetCard:
        """Return the card of the world that these options name."""
        return card(options.spec(), options.look, options.wrong)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10 and 50 of the annotated target, and mAP@10 over all relevant images."""
        return dict(_METRICS)

    @cached_property
    def attribute_codes(self) -> AttributeCodes:
        """The attributes that the images' ids name."""
        return attribute_codes(self.queries, self.images, {image: attributes_of(image) for image in self.all_images})


def card(spec: Spec, look: float = 0.0, wrong: float = 0.0) -> DatasetCard:
    """Card of the world made from `spec`, in lines of that look, with that share of wrong targets."""
    dials = f"-look{look:g}" if look else ""
    if wrong:
        dials += f"-wrong{wrong:g}"
    return DatasetCard(
        name="vectors",
        protocol=f"twins{spec.twins:g}-{'x'.join(map(str, spec.sizes))}{dials}",
        version=str(GENERATOR),
        source="made when it is loaded",
        licence="Apache-2.0",
        gallery="all images of the split",
        exclude_reference=False,  # as `synthetic`: a reference is never relevant
        text_template=TEMPLATES["joined"],
        metrics=tuple(_METRICS),
        main="recall_at_10",
        world=str(spec.world),
    )


def _parts(spec: Spec, split: str, *, in_lines: bool) -> Iterator[WorldPart]:
    """Plan a split in one category, or in equal shares of all where one has too few garments for either split."""
    categories = (GROUP,) if fits_one(spec, GROUP) else CATEGORIES
    count = len(categories)
    for number, category in enumerate(categories):
        later = count - 1 - number  # of an indivisible number the first categories get one more
        share = {name: (getattr(spec, name) + later) // count for name in _SIZES}
        yield plan(replace(spec, **share), split, category, in_lines=in_lines)


def _queries(part: WorldPart, start: int) -> Iterator[Query]:
    """Number the queries of a part from `start`; on train they have descriptions of reference and target (HyCoLe)."""
    rows = zip(part.queries, part.captions, part.relevant(), strict=True)
    for number, ((reference, target), captions, relevant) in enumerate(rows, start):
        query = Query(
            f"{part.split}-{number:05}",
            part.images[reference],
            join_captions(*captions),
            part.images[target],
            GROUP,
            tuple(relevant),
            captions,
        )
        if part.split == "train":
            query = replace(
                query,
                reference_text=_description(part.attributes[reference]),
                target_text=_description(part.attributes[target]),
            )
        yield query


def _mislabel(queries: list[Query], images: list[str], options: VectorWorldOptions) -> list[Query]:
    """Give the share `wrong` of the queries a random target that does not answer them; what does stays relevant."""
    order = random.Random(f"wrong {options.spec().world}")
    result = list(queries)
    for row in order.sample(range(len(queries)), round(options.wrong * len(queries))):
        query = queries[row]
        wrong = order.choice(images)
        while wrong in (*query.relevant, query.reference):
            wrong = order.choice(images)
        text = _description(attributes_of(wrong))
        result[row] = replace(query, target=wrong, relevant=(wrong, *query.relevant), target_text=text)
    return result


def _description(attributes: Attributes) -> str:
    """Return 'is u1, u2, ..., up.' of all attribute words, as HyCoLe makes it (sec. 4.2.1)."""
    words = [word for group in attribute_words(attributes) for word in group]
    return f"is {', '.join(words)}."
