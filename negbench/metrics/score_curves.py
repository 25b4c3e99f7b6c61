"""Score curves as a run stores them: `negbench.mining.curves` computes them; reading them needs no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from negbench.machine.files import atomic_write, intact
from negbench.machine.received import npz_arrays

MOVES_SCORES = False  # only observes a run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreCurves:
    """The steepest drops of S sampled queries.

    A *position* is a 0-based rank among the target and the images allowed as negatives, by descending score, ties by
    corpus index; -1 where there is none. A ranking of n images has positions 0 ... n - 1.
    """

    queries: Ints  # [S] index of each sampled query in its split
    length: Ints  # [S] n, images ranked
    drops: Ints  # [S, 2] positions before the steepest and the second steepest drop below the target (QuRe eq. 5)
    scores: Floats  # [P] mean score over the queries at the positions `octave_positions(P)`

    @property
    def shares(self) -> Floats:
        """[S, 2] the drops' positions as shares of their query's ranking; NaN where there is none."""
        return np.where(self.drops >= 0, self.drops / np.maximum(self.length - 1, 1)[:, None], np.nan)

    def save(self, path: Path) -> None:
        """Write as npz: the same curves give the same bytes."""
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: Path) -> ScoreCurves:
        """Read what `save` wrote; raise NegbenchError if the file is missing or damaged."""
        with intact(path) as file, npz_arrays(file) as stored:
            scores = stored["scores"] if "scores" in stored else np.empty(0)  # earlier runs have none
            return cls(stored["queries"], stored["length"], stored["drops"], scores)


def octave_positions(length: int) -> Ints:
    """Return P positions below `length`, an eighth of an octave apart, from 0; a smaller `length` gives fewer."""
    positions: Ints = np.unique((2 ** (np.arange(8 * 32) / 8)).astype(np.int64)) - 1
    return positions[positions < length]


def file_name(moment: str) -> str:
    """Return the file name, in a run's folder, of the curves at a moment: "start" or "warm"."""
    return f"curves-{moment}.npz"
