"""FashionIQ: dresses, shirts and tops with two relative captions per query; recall at 10 and 50 per category."""

from dataclasses import dataclass
from typing import Literal, Self

from negbench.benchmarks.fashioniq_files import CATEGORIES, METRICS, SPLITS, TEMPLATES, FashionIQFormat, FormatOptions
from negbench.contracts.card import Counts, DatasetCard
from negbench.files.reader import check_choice

PAPER = "Wu et al., Fashion IQ: A New Dataset Towards Retrieving Images by Natural Language Feedback, CVPR 2021"

# entries of the caption files, images of the split files, references and targets together
_ENTRIES = {"train": (5985, 5988, 6027), "val": (2017, 2038, 1961)}
_SPLIT_FILES = {"train": (11452, 19036, 16121), "val": (3817, 6346, 5373)}
_UNITED = (2628, 3089, 2902)  # protocol `val`, on val


@dataclass(frozen=True, kw_only=True)
class FashionIQOptions(FormatOptions):
    """Options of `FashionIQ`.

    Args:
        root: folder that holds `captions` and `image_splits`.
        protocol: gallery of val: `original` is the split file (3,817 / 6,346 / 5,373 images on val), `val`
            the union of references and targets (2,628 / 3,089 / 2,902), on which recall is higher.
    """

    protocol: Literal["original", "val"] = "original"

    def whole_split(self, split: str) -> bool:
        """Whether the split file is the gallery."""
        return super().whole_split(split) if split == "train" else self.protocol == "original"


@dataclass(frozen=True, eq=False)
class FashionIQ(FashionIQFormat):
    """FashionIQ under its original protocol or the smaller `val` gallery."""

    @classmethod
    def load(cls, options: FashionIQOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split, train or val (test has no published targets); errors as for `Dataset.load`."""
        check_choice("split", split, SPLITS)
        return cls.from_files(card(options, split), options, split, images)


def card(options: FashionIQOptions, split: str) -> DatasetCard:
    """Card of FashionIQ's split as read with these options."""
    entries = _ENTRIES[split]
    parts = entries if split == "train" else _UNITED  # every training target is one query's
    galleries = _SPLIT_FILES[split] if options.whole_split(split) else parts
    return DatasetCard(
        name="fashioniq",
        protocol=options.protocol,
        source="https://github.com/XiaoxiaoGuo/fashion-iq",
        licence="Community Data License Agreement (CDLA)",
        citation=PAPER,
        gallery=options.gallery_rule(split),
        exclude_reference=False,  # CLIP4Cir's and QuRe's evaluations keep it on FashionIQ
        text_template=TEMPLATES[options.caption_mode],
        metrics=METRICS,
        main="average/recall",
        expected={split: {name: Counts(*sizes) for name, *sizes in zip(CATEGORIES, entries, galleries, strict=True)}},
    )
