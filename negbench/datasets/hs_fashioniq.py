"""HS-FashionIQ: people's Likert scores of sets of five images; Spearman, preference rates with ties counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from negbench.datasets import hp_fashioniq
from negbench.datasets._preferences import (
    EXPECTED,
    FLAGGED,
    TEMPLATE,
    Judgement,
    PreferenceFormat,
    PreferenceSource,
    metrics_of,
)
from negbench.datasets.card import DatasetCard

PAPER = "CIRQRS eq. 7-9, tables 2-3 (HS-FashionIQ)"

VALID = 2743  # 3,050 less 307 flagged; QuRe's sanity check is no part of CIRQRS
SOURCE = PreferenceSource("hs_fashioniq", "hsfiq.json")

_CITATION = """@misc{cirqrs2024,
  title = {{CIRQRS}: Evaluating Query Relevance Score in Composed Image Retrieval},
  howpublished = {Submission to ICLR 2025},
  url = {https://openreview.net/forum?id=U42IGDU3q5},
  year = {2024}
}"""


@dataclass(frozen=True, eq=False)
class HSFashionIQ(PreferenceFormat):
    """HS-FashionIQ: scores of sets by people, from its own file or from the scores that HP-FashionIQ holds."""

    @classmethod
    def load(
        cls, *, root: Path | None = None, split: str = "val", images: bool = True, allow_missing: bool = False
    ) -> Self:
        """Read `hsfiq.json`, or `hpfiq.json` where there is none (a remark then says so).

        CIRQRS published no file of its own that negbench knows of. HP-FashionIQ's holds what CIRQRS describes: Likert
        scores of two sets of five images and a choice, as many (3,050, of which 307 were flagged); that both are one
        collection is our reading. A file of your own goes into `hsfiq.json`, in the same format, with the keys
        `ref_img_paths`, `targ_img_paths`, `sentences`, `retrieved_set1`, `retrieved_set2` (`img_path`, `user_score`)
        and `preferred set`.

        Args:
            root: folder that holds the file, or the one above it named `hs_fashioniq` (for `hpfiq.json`:
                `hp_fashioniq`); None takes NEGBENCH_DATA.
            split: val.
            images: whether the image files must be there: FashionIQ's, in any folder below that of the file, or below
                `fashioniq` beside it.
            allow_missing: leave out judgements that name a missing image and mark the result partial, instead of
                DataError.

        Raises:
            DataError: the file or images missing, or not in the format.
            OptionError: another split.
        """
        sources = (SOURCE, hp_fashioniq.SOURCE)
        return cls.from_files(root, card(), sources, split=split, images=images, allow_missing=allow_missing)

    @classmethod
    def filter_remarks(cls, judgements: Sequence[Judgement]) -> tuple[str, ...]:
        """CIRQRS's flags, which the file lacks."""
        return (
            f"CIRQRS counts {VALID:,} valid queries: it drops {FLAGGED} that participants flagged, and the file does "
            f"not hold the flags; all/ is over all {len(judgements):,} judgements",
        )


def card() -> DatasetCard:
    """Card of HS-FashionIQ."""
    return DatasetCard(
        name="hs-fashioniq",
        protocol="sets-of-5",
        version="1",
        source="https://openreview.net/forum?id=U42IGDU3q5; scores from https://github.com/jackwaky/QuRe "
        "(HP_FashionIQ/hpfiq.json); the images are FashionIQ's",
        licence="none is stated with the file; the images are FashionIQ's",
        citation=_CITATION,
        gallery="two sets of five images per judgement",
        exclude_reference=False,  # no set holds its query's reference
        text_template=TEMPLATE,
        metrics=metrics_of(HSFashionIQ.parts),
        main="all/spearman",  # CIRQRS table 2
        expected=EXPECTED,
    )
