"""Rendered garments in FashionIQ's layout with every relevant image known; built on first use, the same everywhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from negbench.benchmarks.fashioniq_files import CATEGORIES, METRICS, TEMPLATES, Corpus, FashionIQFormat, FormatOptions
from negbench.contracts import check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.galleries import AttributeCodes
from negbench.errors import OptionError
from negbench.machine.files import cache_dir
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.metric import Metric, precision
from negbench.metrics.query_ranks import QueryRanks
from negbench.worlds import _garments, _rendering, _synthesis, _wording
from negbench.worlds._garments import Attributes
from negbench.worlds._synthesis import GENERATOR, SPLITS, Spec, attribute_codes, check, ensure, garments_of

__all__ = ["Spec", "Synthetic"]

PAPER = "ours; in the format of Fashion IQ (Wu et al., CVPR 2021), with CIRCO's density of ground truths (ICCV 2023)"

_CUTOFF = 10  # of mAP
_DEV_WORLDS = 2**63  # added to a world's number: above all seeds


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(FormatOptions):
    """Options of `Synthetic`; the last six are those of `Spec`, None takes Spec's default, or the value at `root`.

    Args:
        root: folder that was built earlier (`synthetic-...` in a cache); None takes or builds the one that the
            options name, in the cache (NEGBENCH_CACHE, else ~/.cache/negbench).
        corpus: mining corpus of train: all images of the category, or each training target once.
        world: number of the world; None: 0, or the run's seed in a run without `root`.
        twins: mean number of relevant images per query.
        train_images: of each category.
        train_queries: of each category.
        val_images: of each category.
        val_queries: of each category.

    Raises:
        OptionError: an impossible value.
    """

    corpus: Corpus = "images"
    world: int | None = None
    twins: float | None = None
    train_images: int | None = None
    train_queries: int | None = None
    val_images: int | None = None
    val_queries: int | None = None

    def __post_init__(self) -> None:
        self.spec(Spec())

    @property
    def set_values(self) -> dict[str, Any]:
        """The options of `Spec` that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(Spec)}
        return {name: value for name, value in values.items() if value is not None}

    def spec(self, base: Spec) -> Spec:
        """Return `base` with the options that are set. Raises OptionError for an impossible value."""
        return replace(base, **self.set_values)


@dataclass(frozen=True, eq=False)
class Synthetic(FashionIQFormat):
    """Rendered garments; an image is relevant to a query exactly when all its attributes are the target's.

    Args:
        garments: image id -> its attributes.
    """

    exchangeable: ClassVar[bool] = True
    generates_dev: ClassVar[bool] = True
    fixed: ClassVar = (_synthesis.FIXED, _wording.FIXED, _garments.FIXED, _rendering.FIXED)

    garments: Mapping[str, Attributes] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, options: SyntheticOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split, train, val or dev; without `root` the data set is built under the cache when first needed.

        As worlds differ only in what is drawn, dev is the val split of a world of its own.

        Raises:
            DataError: the folder is not a synthetic data set, is damaged, or cannot be written.
            OptionError: another split, or an option that contradicts the folder at `root`.
        """
        check_option("split", split, split in (*SPLITS, "dev"), "train, val or dev (there is no test split)")
        folder, spec = _find(options)
        if split == "dev":
            split = "val"
            spec = replace(
                spec,
                world=spec.world + _DEV_WORLDS,
                train_images=max(8, math.ceil(4 * spec.twins)),  # the fewest that a Spec allows
                train_queries=1,
                val_queries=max(spec.val_queries, math.ceil(DEV_QUERIES / len(CATEGORIES))),
            )
            folder = ensure(cache_dir(), spec)
        data = cls.from_files(card(spec, options, split), replace(options, root=folder), split, images)
        return replace(data, garments=garments_of(folder))

    @cached_property
    def attribute_codes(self) -> AttributeCodes:
        """The attributes of the garments drawn."""
        return attribute_codes(self.queries, self.images, self.garments)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """FashionIQ's recalls of the annotated target, and mAP@10 over all relevant images, each also averaged."""
        value = (precision(_CUTOFF),)
        metrics = super().metrics(ranks)
        for name in ranks.groups:
            metrics[f"{name}/map_at_{_CUTOFF}"] = Metric(value, group=name)
        metrics[f"average/map_at_{_CUTOFF}"] = Metric(value, over="groups")
        return metrics


def card(spec: Spec, options: FormatOptions, split: str) -> DatasetCard:
    """Card of a split of the data set made from `spec`, as read with these options."""
    marks = "" if spec.sizes == Spec().sizes else f"-{'x'.join(map(str, spec.sizes))}"
    return DatasetCard(
        name="synthetic",
        protocol=f"twins{spec.twins:g}{marks}",
        version=str(GENERATOR),
        source="drawn and rendered on first use",
        licence="Apache-2.0",
        gallery=options.gallery_rule(split),
        exclude_reference=False,  # as FashionIQ; a reference is never relevant: at least one attribute differs
        text_template=TEMPLATES[options.caption_mode],
        metrics=(*METRICS, *(f"{name}/map_at_{_CUTOFF}" for name in (*CATEGORIES, "average"))),
        main="average/recall",
        world=str(spec.world),
    )


def _find(options: SyntheticOptions) -> tuple[Path, Spec]:
    """Return the folder to read and the Spec it was made from."""
    if options.root is None:
        folder = ensure(cache_dir(), options.spec(Spec()))
        return folder, check(folder)
    spec = check(options.root)
    for name, value in options.set_values.items():
        value_at_root = getattr(spec, name)
        if value != value_at_root:
            raise OptionError(
                f"{name} = {value!r}, but the data set at {options.root} has {value_at_root!r}: "
                "leave one of the two out"
            )
    return options.root, spec
