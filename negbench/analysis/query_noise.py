"""Errors of means over queries: where they come from, and which contrasts of means have any."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ZERO = 1e-13  # relative to the values: smaller differences between them are rounding errors


@dataclass(frozen=True, eq=False)
class QueryNoise:
    """Errors of K means over queries.

    Attributes:
        factor: [K, U] with a column per unit that varies; times its transpose it is the covariance of the means.
        luck: [K, N], likewise of the part of it that is noise of the runs.
        deviations: [K, S * Q] values less the mean of their stratum over all seeds.
        size: [K] largest absolute value.
        df: degrees of freedom.
        crossed: whether all seeds have the same queries; else variance over seeds already includes the queries.
    """

    factor: Array
    luck: Array
    deviations: Array
    size: Array
    df: int
    crossed: bool

    def alike(self, matrix: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whether no query differs in each [C, K] contrast: [C] in the mean over seeds, and in any seed.

        Values decide, not draws or covariances, in which rounding errors look like differences.
        """
        least = ZERO * (abs(matrix) @ self.size)
        in_mean = np.abs(matrix @ self.factor).max(axis=1) <= least
        in_seeds = np.abs(matrix @ self.deviations).max(axis=1) <= least
        return in_mean, in_mean & in_seeds

    def reproducible(self, matrix: Any) -> Array:
        """[C] in 0..1: square root of the reproducible share of each [C, K] contrast's query variance.

        The variance over seeds already includes the rest.
        """
        whole = ((matrix @ self.factor) ** 2).sum(axis=1)
        luck = ((matrix @ self.luck) ** 2).sum(axis=1)
        share = 1 - np.divide(luck, whole, out=np.ones_like(whole), where=whole > 0)
        return np.asarray(np.sqrt(np.where(share > ZERO, share, 0.0)), dtype=np.float64)
