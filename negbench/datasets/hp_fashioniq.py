"""HP-FashionIQ: 3,050 choices by 61 people between two sets of five images; preference rate, accuracy, Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

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

PAPER = "QuRe sec. 4 and 5.3, eq. 8-9 (HP-FashionIQ)"

VALID = 2715  # table 1: 3,050, less 307 flagged, less 28 of these that fail the sanity check
SOURCE = PreferenceSource("hp_fashioniq", "hpfiq.json")

_CITATION = """@inproceedings{kwak2025qure,
  title = {{QuRe}: Query-Relevant Retrieval through Hard Negative Sampling in Composed Image Retrieval},
  author = {Kwak, Jaehyun and Inhar, Ramahdani Muhammad Izaaz and Yun, Se-Young and Lee, Sung-Ju},
  booktitle = {ICML},
  year = {2025}
}"""


@dataclass(frozen=True, eq=False)
class HPFashionIQ(PreferenceFormat):
    """HP-FashionIQ, on queries of FashionIQ's validation split (shirts and tops)."""

    parts: ClassVar[tuple[str, ...]] = ("all", "consistent")

    @classmethod
    def load(
        cls, *, root: Path | None = None, split: str = "val", images: bool = True, allow_missing: bool = False
    ) -> Self:
        """Read `hpfiq.json` as it is published.

        Args:
            root: folder that holds `hpfiq.json`, or the one above it named `hp_fashioniq`; None takes NEGBENCH_DATA.
            split: val.
            images: whether the image files must be there: FashionIQ's, in any folder below that of `hpfiq.json`, or
                below `fashioniq` beside it.
            allow_missing: leave out judgements that name a missing image and mark the result partial, instead of
                DataError.

        Raises:
            DataError: the file or images missing, or not in the format.
            OptionError: another split.
        """
        return cls.from_files(root, card(), (SOURCE,), split=split, images=images, allow_missing=allow_missing)

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


def card() -> DatasetCard:
    """Card of HP-FashionIQ."""
    return DatasetCard(
        name="hp-fashioniq",
        protocol="sets-of-5",
        version="1",
        source="https://github.com/jackwaky/QuRe (HP_FashionIQ/hpfiq.json); the images are FashionIQ's",
        licence="none is stated with the file; the images are FashionIQ's",
        citation=_CITATION,
        gallery="two sets of five images per judgement",
        exclude_reference=False,  # no set holds its query's reference
        text_template=TEMPLATE,
        metrics=metrics_of(HPFashionIQ.parts),
        main="all/preference_rate",  # QuRe table 4, by the released evaluation
        expected=EXPECTED,
    )
