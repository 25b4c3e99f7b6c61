"""The name of a data set of which images are missing: how much of it is left stands in it, wherever it is printed."""

from collections.abc import Sequence
from typing import Protocol

MOVES_SCORES = False  # only names


class Part(Protocol):
    """What a name needs to know of a split."""

    @property
    def split(self) -> str:
        """Name of the split."""

    @property
    def share(self) -> float:
        """Share of its queries that are left."""

    @property
    def partial(self) -> bool:
        """Whether images are missing."""


_MARK = ", "  # between a name and its part; no identity has it


def part_of(splits: Sequence[Part]) -> str:
    """Say how much of splits is left: '2 % of train and 3 % of val'; '' if no image is missing."""
    parts = []
    for split in splits:
        if split.partial and split.share == 1:
            parts.append(f"all queries of {split.split}, not all images")
        elif split.partial:
            parts.append(f"{share_text(split.share)} of {split.split}")
    return " and ".join(dict.fromkeys(parts))


def part_name(name: str, splits: Sequence[Part]) -> str:
    """Return a data set's name with its part: 'fashioniq@original-6fc571a0, 2 % of train and 3 % of val'."""
    part = part_of(splits)
    return f"{name}{_MARK}{part}" if part else name


def whole_name(name: str) -> tuple[str, str]:
    """Split a name into that of the whole data set, and what follows it: ', 2 % of train', or ''."""
    dataset, mark, part = name.partition(_MARK)
    return dataset, mark + part


def share_text(share: float) -> str:
    """Return '2 %' for 0.0207. A share that is not whole never rounds to all or nothing: '99.9 %', 'under 0.1 %'."""
    rounded = f"{100 * share:.0f}"
    if rounded in ("0", "100"):
        rounded = f"{100 * share:.1f}"
    if rounded == "0.0":
        return "under 0.1 %"
    if rounded == "100.0":
        return "over 99.9 %"
    return f"{rounded} %"
