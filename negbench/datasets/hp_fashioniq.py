"""HP-FashionIQ: 3,050 choices by 61 people between two sets of five images; preference rate, accuracy, Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from negbench.datasets._preferences import FLAGGED, Judgement, PreferenceFormat, card_of
from negbench.datasets.card import DatasetCard

PAPER = "Kwak et al., QuRe, ICML 2025, sec. 4 and 5.3, eq. 8-9 (HP-FashionIQ)"

VALID = 2715  # table 1: 3,050, less 307 flagged, less 28 of these that fail the sanity check
SOURCE = Path("hp_fashioniq", "hpfiq.json")


@dataclass(frozen=True, eq=False)
class HPFashionIQ(PreferenceFormat):
    """HP-FashionIQ, on queries of FashionIQ's validation split (shirts and tops)."""

    parts: ClassVar[tuple[str, ...]] = ("all", "consistent")

    sources = (SOURCE,)
    published: ClassVar[DatasetCard] = card_of(
        "hp-fashioniq",
        source="https://github.com/jackwaky/QuRe (HP_FashionIQ/hpfiq.json); the images are FashionIQ's",
        citation=PAPER,
        parts=parts,
        main="all/preference_rate",  # QuRe table 4, by the released evaluation
    )

    @classmethod
    def filter_remarks(cls, judgements: Sequence[Judgement]) -> tuple[str, ...]:
        """QuRe's sanity check, and its flags, which the file lacks."""
        dropped = sum(not judgement.consistent for judgement in judgements)
        return (
            f"consistent/ drops {dropped:,} of {len(judgements):,} judgements by QuRe's sanity check (the set rated "
            "lower was preferred); all/ keeps them, as QuRe's released evaluation does",
            f"QuRe counts {VALID:,} valid queries: it also drops {FLAGGED} that participants flagged for modality "
            "redundancy, and the file does not hold the flags",
        )
