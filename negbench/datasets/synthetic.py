"""Rendered garments in FashionIQ's layout with every relevant image known; built on first use, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Self

from negbench.contracts import check_option
from negbench.datasets._fashioniq_files import (
    CATEGORIES,
    METRICS,
    TEMPLATES,
    CaptionMode,
    Corpus,
    FashionIQFormat,
    FashionIQOptions,
)
from negbench.datasets._synthesis import GENERATOR, SPLITS, Manifest, Spec, check, ensure
from negbench.datasets.card import DatasetCard
from negbench.errors import OptionError
from negbench.machine.files import cache_dir
from negbench.metrics.metric import Metric, precision
from negbench.metrics.query_ranks import QueryRanks

__all__ = ["Manifest", "Spec", "Synthetic"]

PAPER = "ours; in the format of Fashion IQ (Wu et al., CVPR 2021), with CIRCO's density of ground truths (ICCV 2023)"

_CUTOFF = 10  # of mAP


@dataclass(frozen=True, eq=False)
class Synthetic(FashionIQFormat):
    """Rendered garments; an image is relevant to a query exactly when all its attributes are the target's."""

    exchangeable: ClassVar[bool] = True

    @classmethod
    def load(
        cls,
        *,
        root: Path | None = None,
        split: str = "val",
        images: bool = True,
        allow_missing: bool = False,
        caption_mode: CaptionMode = "joined",
        corpus: Corpus = "images",
        world: int | None = None,
        twins: float | None = None,
        train_images: int | None = None,
        train_queries: int | None = None,
        val_images: int | None = None,
        val_queries: int | None = None,
    ) -> Self:
        """Read one split; without `root` the data set is built under the cache when first needed.

        The last six options are those of `Spec`; if left out, they take Spec's default, or the value at `root`.
        `images` and `allow_missing` are `Dataset.load`'s.

        Args:
            root: folder that was built earlier (`synthetic-...` in a cache); None takes or builds the one that the
                options name, in the cache (NEGBENCH_CACHE, else ~/.cache/negbench).
            split: train or val.
            caption_mode: as `FashionIQ.load`'s.
            corpus: mining corpus of train: all images of the category, or each training target once.
            world: number of the world; None: 0, or the run's seed in a run without `root`.
            twins: mean number of relevant images per query.
            train_images: of each category.
            train_queries: of each category.
            val_images: of each category.
            val_queries: of each category.

        Raises:
            DataError: the folder is not a synthetic data set, is damaged, or cannot be written.
            OptionError: an unknown or impossible value, or one that contradicts the folder at `root`.
        """
        check_option("split", split, split in SPLITS, "train or val (there is no test split)")
        options = FashionIQOptions(split, images, allow_missing, "original", caption_mode, corpus)
        wishes = {
            "world": world,
            "twins": twins,
            "train_images": train_images,
            "train_queries": train_queries,
            "val_images": val_images,
            "val_queries": val_queries,
        }
        folder, spec = _find(root, {name: value for name, value in wishes.items() if value is not None})
        return cls.from_files(folder, card(spec, options), options)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """FashionIQ's recalls of the annotated target, and mAP@10 over all relevant images, each also averaged."""
        value = (precision(_CUTOFF),)
        each = {f"{name}/map_at_{_CUTOFF}": Metric(value, group=name) for name in ranks.groups}
        return super().metrics(ranks) | each | {f"average/map_at_{_CUTOFF}": Metric(value, over="groups")}


def card(spec: Spec, options: FashionIQOptions) -> DatasetCard:
    """Card of the data set made from `spec`, as read with these options."""
    sizes = (spec.train_images, spec.train_queries, spec.val_images, spec.val_queries)
    usual = (Spec.train_images, Spec.train_queries, Spec.val_images, Spec.val_queries)
    marks = "" if sizes == usual else f"-{'x'.join(map(str, sizes))}"
    precisions = tuple(f"{name}/map_at_{_CUTOFF}" for name in (*CATEGORIES, "average"))
    return DatasetCard(
        name="synthetic",
        protocol=f"twins{spec.twins:g}{marks}",
        version=str(GENERATOR),
        source="drawn and rendered on first use",
        licence="Apache-2.0",
        citation="",
        gallery=options.gallery_rule,
        exclude_reference=False,  # as FashionIQ; a reference is never relevant: at least one attribute differs
        text_template=TEMPLATES[options.caption_mode],
        metrics=(*METRICS, *precisions),
        main="average/recall",
        world=str(spec.world),
    )


def _find(root: Path | None, wishes: Mapping[str, int | float]) -> tuple[Path, Spec]:
    """Return the folder to read and the Spec it was made from."""
    if root is None:
        folder = ensure(cache_dir(), Spec(**wishes))  # type: ignore[arg-type]  # each wish has its field's type
        return folder, check(folder).spec
    spec = check(root).spec
    for name, wish in wishes.items():
        has = asdict(spec)[name]
        if wish != has:
            raise OptionError(f"{name} = {wish!r}, but the data set at {root} has {has!r}: leave one of the two out")
    return root, spec
