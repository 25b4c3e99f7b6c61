"""FashionIQ: dresses, shirts and tops with two relative captions per query; recall at 10 and 50 per category."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from negbench.datasets._fashioniq_files import (
    CATEGORIES,
    METRICS,
    TEMPLATES,
    CaptionMode,
    Corpus,
    FashionIQFormat,
    FashionIQOptions,
    Protocol,
)
from negbench.datasets.card import Counts, DatasetCard

PAPER = "Wu et al., Fashion IQ: A New Dataset Towards Retrieving Images by Natural Language Feedback, CVPR 2021"

# entries of the caption files, images of the split files, references and targets together
_ENTRIES = {"train": (5985, 5988, 6027), "val": (2017, 2038, 1961)}
_SPLIT_FILES = {"train": (11452, 19036, 16121), "val": (3817, 6346, 5373)}
_UNITED = (2628, 3089, 2902)  # protocol `val`, on val


@dataclass(frozen=True, eq=False)
class FashionIQ(FashionIQFormat):
    """FashionIQ under its original protocol or the smaller `val` gallery."""

    @classmethod
    def load(
        cls,
        *,
        root: Path | None = None,
        split: str = "val",
        images: bool = True,
        allow_missing: bool = False,
        protocol: Protocol = "original",
        caption_mode: CaptionMode = "joined",
        corpus: Corpus = "targets",
    ) -> Self:
        """Read one split of the published annotation files; `images` and `allow_missing` are `Dataset.load`'s.

        Args:
            root: folder that holds `captions` and `image_splits`.
            split: train or val (test has no published targets).
            protocol: gallery of val: `original` is the split file (3,817 / 6,346 / 5,373 images on val), `val`
                the union of references and targets (2,628 / 3,089 / 2,902), on which recall is higher.
            caption_mode: `joined` (as CLIP4Cir evaluates and QuRe trains) or `comma` (HyCoLe).
            corpus: mining corpus of train: each training target of the category once, or all images of its split file.
        """
        options = FashionIQOptions(split, images, allow_missing, protocol, caption_mode, corpus)
        return cls.from_files(root, card(options), options)


def card(options: FashionIQOptions) -> DatasetCard:
    """Card of FashionIQ as read with these options."""
    return DatasetCard(
        name="fashioniq",
        protocol=options.protocol,
        version="1",
        source="https://github.com/XiaoxiaoGuo/fashion-iq",
        licence="Community Data License Agreement (CDLA)",
        citation=PAPER,
        gallery=options.gallery_rule,
        exclude_reference=False,  # CLIP4Cir's and QuRe's evaluations keep it on FashionIQ
        text_template=TEMPLATES[options.caption_mode],
        metrics=METRICS,
        main="average/recall",
        expected={options.split: _published(options)},
    )


def _published(options: FashionIQOptions) -> dict[str, Counts]:
    entries = _ENTRIES[options.split]
    parts = entries if options.split == "train" else _UNITED  # every training target is one query's
    galleries = _SPLIT_FILES[options.split] if options.whole_split else parts
    return {
        category: Counts(count, gallery)
        for category, count, gallery in zip(CATEGORIES, entries, galleries, strict=True)
    }
