"""Every other member of the batch, in each of the three slots.

Paper: HyCoLe-HNM, sec. 2.3 and eq. 3: a negative triple differs from the positive one in exactly one of reference,
modification and target.
Departures: none known; the caller corrupts one slot at a time and builds its score matrix.
Fallback: none needed; a query without allowed columns has no negatives in that slot.
Kinds, measured on the data set `vectors` (three worlds, batches of 64; a slot's triple is judged by what its own
reference and text ask for): another target is unrelated in 91 %, textual in 7 %, visual or composed in 1 %; another
reference makes the target textual in 92 %, composed in 7 %, right in 1 %; another modification makes it unrelated in 78
%, visual in 11 %, composed in 6 %, textual in 4 %.
"""

from dataclasses import dataclass

from negbench.contracts import BatchStrategy

PAPER = "HyCoLe-HNM sec. 2.3, eq. 3"


@dataclass(frozen=True, kw_only=True)
class Hycole(BatchStrategy):
    """Pool: all allowed columns of the slot's [B, B] score matrix."""

    corrupts = ("reference", "modification", "target")
