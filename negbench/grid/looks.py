"""Looks of a comparison that adds seeds until it is decided: after which seeds, and how much alpha each look spends."""

import itertools
import math
from dataclasses import dataclass

from negbench.errors import OptionError
from negbench.settings.options import PairsToDecide, UntilOptions

COUNTS = (3, 5, 8, 12, 18, 27, 40, 60)  # seeds at each look: about 1.5 times those of the look before


@dataclass(frozen=True)
class Looks:
    """When a comparison is looked at; fixed before its first cell.

    Args:
        first: seeds of the first look; later looks add the next higher seeds.
        most: number of seeds at the last look.
        pairs: to decide: those with the baseline, all, or those between the strategies that can still be best.
        budget: time limit in seconds; a look that ends later is the last.
    """

    first: tuple[int, ...]
    most: int
    pairs: PairsToDecide = "baseline"
    budget: float = math.inf

    @classmethod
    def of(cls, options: UntilOptions, first: tuple[int, ...], *, pairs: PairsToDecide = "baseline") -> "Looks | None":
        """Return the looks of these options; None without `--until decided`.

        Raises:
            OptionError: fewer than two first seeds, more of them than the maximum, or an option that needs `--until`.
        """
        if options.until is None:
            off = "until" in options.model_fields_set  # given as None, which turns off that of a recipe
            for name in ("pairs", "max_seeds", "budget"):
                if name in options.model_fields_set and not off:
                    raise OptionError(f"--{name.replace('_', '-')} has no effect without --until decided")
            return None
        if not 2 <= len(first) <= options.max_seeds:
            raise OptionError(
                f"--until decided starts with {len(first)} seeds and ends with {options.max_seeds}: start with 2 or "
                "more (--seeds; of a study: --final-seeds), and set --max-seeds no lower"
            )
        return cls(first, options.max_seeds, pairs, math.inf if options.budget is None else float(options.budget))

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of seeds at each look."""
        start = len(self.first)
        counts = [start, *(count for count in COUNTS if start < count < self.most)]
        if self.most > start:
            counts.append(self.most)
        return tuple(counts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of alpha that each look spends: up to a look sqrt(seeds / most) in total; the shares sum to 1."""
        spent = [0.0, *((count / self.most) ** 0.5 for count in self.counts)]
        return tuple(after - before for before, after in itertools.pairwise(spent))

    def seeds(self, count: int) -> tuple[int, ...]:
        """Return the first `count` seeds."""
        after = max(self.first) + 1
        seeds = (*self.first, *range(after, after + self.most))
        return seeds[:count]
