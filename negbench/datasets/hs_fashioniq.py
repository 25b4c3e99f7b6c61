"""HS-FashionIQ: people's Likert scores of sets of five images; Spearman, preference rates with ties counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from negbench.datasets import hp_fashioniq
from negbench.datasets._preferences import FLAGGED, Judgement, PreferenceFormat, card_of
from negbench.datasets.card import DatasetCard

PAPER = "CIRQRS, submission to ICLR 2025 (openreview.net, U42IGDU3q5), eq. 7-9, tables 2-3 (HS-FashionIQ)"

VALID = 2743  # 3,050 less 307 flagged; QuRe's sanity check is no part of CIRQRS
SOURCE = Path("hs_fashioniq", "hsfiq.json")


@dataclass(frozen=True, eq=False)
class HSFashionIQ(PreferenceFormat):
    """HS-FashionIQ: scores of sets by people, from `hsfiq.json`, or from `hpfiq.json` where there is none.

    CIRQRS published no file of its own that negbench knows of. HP-FashionIQ's holds what CIRQRS describes: Likert
    scores of two sets of five images and a choice, as many (3,050, of which 307 were flagged); that both are one
    collection is our reading. A file of your own goes into `hsfiq.json`, in the same format, with the keys
    `ref_img_paths`, `targ_img_paths`, `sentences`, `retrieved_set1`, `retrieved_set2` (`img_path`, `user_score`) and
    `preferred set`.
    """

    sources = (SOURCE, hp_fashioniq.SOURCE)
    published: ClassVar[DatasetCard] = card_of(
        "hs-fashioniq",
        source="https://openreview.net/forum?id=U42IGDU3q5; scores from https://github.com/jackwaky/QuRe "
        "(HP_FashionIQ/hpfiq.json); the images are FashionIQ's",
        citation=PAPER,
        parts=PreferenceFormat.parts,
        main="all/spearman",  # CIRQRS table 2
    )

    @classmethod
    def filter_remarks(cls, judgements: Sequence[Judgement]) -> tuple[str, ...]:
        """CIRQRS's flags, which the file lacks."""
        return (
            f"CIRQRS counts {VALID:,} valid queries: it drops {FLAGGED} that participants flagged, and the file does "
            f"not hold the flags; all/ is over all {len(judgements):,} judgements",
        )
