"""Looks at a comparison that adds seeds until it has decided: after which seeds, and what of alpha each look spends."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from negbench.errors import OptionError
from negbench.settings.options import UntilOptions

COUNTS = (3, 5, 8, 12, 18, 27, 40, 60)  # seeds of a look: half as many again as those of the one before


@dataclass(frozen=True)
class Looks:
    """When a comparison looks; fixed before its first cell.

    Args:
        first: seeds of the first look; those above the highest follow.
        most: number of seeds at the last look.
        pairs: whether all pairs are to be decided, or those with the baseline.
        budget: seconds; after a look that ends later there is no other.
    """

    first: tuple[int, ...]
    most: int
    pairs: bool = False
    budget: float = math.inf

    @classmethod
    def of(cls, asked: UntilOptions, first: tuple[int, ...], *, pairs: bool = False) -> Looks | None:
        """As asked for; None without `--until decided`.

        Raises:
            OptionError: fewer than two seeds at first, or more than at last; an option that needs `--until`.
        """
        if asked.until is None:
            for name in ("pairs", "max_seeds", "budget"):
                if name in asked.model_fields_set:
                    raise OptionError(f"--{name.replace('_', '-')} has no effect alone: add --until decided")
            return None
        if not 2 <= len(first) <= asked.max_seeds:
            raise OptionError(
                f"--until decided starts with {len(first)} seeds and ends with {asked.max_seeds}: start with 2 or more "
                "(--seeds), and end with no fewer (--max-seeds)"
            )
        return cls(first, asked.max_seeds, pairs, math.inf if asked.budget is None else float(asked.budget))

    @property
    def counts(self) -> tuple[int, ...]:
        """Seeds of each look."""
        start = len(self.first)
        return (start, *(n for n in COUNTS if start < n < self.most), *[self.most] * (self.most > start))

    @property
    def shares(self) -> tuple[float, ...]:
        """Of alpha, what each look spends: sqrt(seeds / most) is spent in all up to a look; they sum to 1."""
        spent = [0.0, *((count / self.most) ** 0.5 for count in self.counts)]
        return tuple(after - before for before, after in itertools.pairwise(spent))

    def seeds(self, count: int) -> tuple[int, ...]:
        """The first `count` of all seeds."""
        return (*self.first, *range(max(self.first) + 1, max(self.first) + 1 + self.most))[:count]
