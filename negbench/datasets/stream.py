"""Random numbers of the synthetic data: the same on every machine, for every version of every library."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # the increment and the two multipliers below are SplitMix64's
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Stream:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), keyed by the SHA-256 of its words.

    Streams of different words are independent, so an image or a query is a pure function of its own words and not of
    what was drawn before it. numpy's own distributions may change between versions; this is integer arithmetic only.

    Args:
        words: what names the stream, for example ``Stream(0, "train", "dress", 17)``.
    """

    def __init__(self, *words: int | str) -> None:
        digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
        self._state = int.from_bytes(digest[:8], "little")

    def raw(self) -> int:
        """Return the next 64 random bits."""
        self._state = (self._state + _GAMMA) & _MASK
        bits = self._state
        bits = ((bits ^ (bits >> 30)) * _FIRST) & _MASK
        bits = ((bits ^ (bits >> 27)) * _SECOND) & _MASK
        return bits ^ (bits >> 31)

    def array(self, count: int) -> NDArray[np.uint64]:
        """Return [count] uint64: what `count` calls of `raw` return."""
        bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(self._state)
        self._state = (self._state + count * _GAMMA) & _MASK
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND)
        return bits ^ (bits >> np.uint64(31))

    def below(self, count: int) -> int:
        """Return an integer in 0..count-1."""
        return (self.raw() * count) >> 64

    def between(self, low: int, high: int) -> int:
        """Return an integer in low..high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of 100 calls."""
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffle(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
