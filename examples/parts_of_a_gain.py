"""Take a system's gain over the plain system apart: what its negatives, objective and architecture add.

Compare every combination of factors, each from the plain system or from the other one, then read the folder:

    negbench compare --strategies own --seeds 5 --name parts --dial system.negatives=plain,hycole \
        --dial system.objective=plain,hycole --dial system.architecture=plain,hycole
    python examples/parts_of_a_gain.py runs/parts

Leave out a factor that changes nothing with your backbone. A factor's own term is what it adds alone to the plain
system; an interaction is what factors add together beyond that; a Shapley share is a factor's own term and an equal
part of its interactions. Own terms and interactions sum to the gain, and so do the shares.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from negbench.analysis.findings import read_findings
from negbench.analysis.frame import facts_of, folders_of
from negbench.analysis.statistics import Design, Difference, ValueTable, contrasts
from negbench.scoring.values import Values, values_of

PLAIN = "plain"


def corners(folder: Path) -> dict[frozenset[str], Values]:
    """Return the main metric's per-query values at each corner: the factors that are not the plain system's -> values.

    Raises:
        SystemExit: a corner is not finished.
    """
    findings = read_findings(folder.parent, folder.name)
    keys = [axis.key for axis in findings.point_axes if axis.is_dial]
    values = {}
    for group in findings.groups:
        folders = folders_of(group)
        metric = folders[0].result["main_metric"]
        facts = facts_of(group)
        factors = tuple(key.removeprefix("system.") for key in keys if facts[key] != PLAIN)
        values[factors] = values_of(folders, [metric])[metric]
    seeds = {corner.seeds for corner in values.values()}
    if len(values) < 2 ** len(keys) or len(seeds) > 1:
        raise SystemExit(f"{folder}: not all corners are finished with the same seeds: rerun the comparison")

    def order(factors: tuple[str, ...]) -> tuple[int, list[int]]:
        return len(factors), [keys.index(f"system.{factor}") for factor in factors]

    return {frozenset(factors): values[factors] for factors in sorted(values, key=order)}


@dataclass(frozen=True)
class Effects:
    """Contributions of the factors to the difference between all of them and none.

    Attributes:
        total: all factors on minus all off.
        shares: factor -> its Shapley value: what switching it on adds, averaged over all orders of switching.
        terms: set of factors -> its own term: for one factor, what it adds alone; for several, what they add together
            beyond all smaller sets (0 in an additive table).
    """

    total: Difference
    shares: dict[str, Difference]
    terms: dict[tuple[str, ...], Difference]


def effects_of(cells: dict[frozenset[str], Values], alpha: float) -> Effects:
    """Split the difference; all parts are tested together."""
    factors = sorted(frozenset().union(*cells))
    subsets: list[tuple[str, ...]] = []
    for size in range(len(factors) + 1):
        subsets += combinations(factors, size)
    names = [" + ".join(subset) or "none" for subset in subsets]
    first = next(iter(cells.values()))
    design = Design(first.strata, first.clusters, any(corner.nested for corner in cells.values()), alpha)
    values = {name: cells[frozenset(subset)].values for name, subset in zip(names, subsets, strict=True)}
    table = ValueTable(values, design)

    sets = subsets[1:]  # without the empty one
    terms = np.array([_signs(factor_set, subsets) for factor_set in sets])
    sizes = np.array([len(factor_set) for factor_set in sets])
    belongs = np.array([[factor in factor_set for factor_set in sets] for factor in factors])
    shares = (belongs / sizes) @ terms  # a factor's share: the terms of its sets, equally divided
    total = terms.sum(axis=0, keepdims=True)
    weights = []
    for row in np.concatenate([total, shares, terms]):
        weights.append({name: float(weight) for name, weight in zip(names, row, strict=True) if weight})

    total_difference, *differences = contrasts(table, weights, table.generator("factorial"))
    shares_of_factors = dict(zip(factors, differences[: len(factors)], strict=True))
    terms_of_sets = dict(zip(sets, differences[len(factors) :], strict=True))
    return Effects(total_difference, shares_of_factors, terms_of_sets)


def _signs(factor_set: tuple[str, ...], subsets: list[tuple[str, ...]]) -> list[int]:
    """Return the weights of a set's own term: the alternating sum over its subsets (Harsanyi's dividend)."""
    signs = []
    for subset in subsets:
        is_part = set(subset) <= set(factor_set)
        signs.append((-1) ** (len(factor_set) - len(subset)) if is_part else 0)
    return signs


def parts(cells: dict[frozenset[str], Values], alpha: float = 0.05) -> pd.DataFrame:
    """Return the parts of the gain in points, a row each; the intervals hold for all of them at once."""
    effects = effects_of(cells, alpha)
    rows = []

    def add(part: str, factors: str, difference: Difference) -> None:
        points = (difference.value, difference.interval.low, difference.interval.high)
        rows.append((part, factors, *(100 * value for value in points)))

    add("gain", "all", effects.total)
    for factors, difference in effects.terms.items():
        add("own term" if len(factors) == 1 else "interaction", " and ".join(factors), difference)
    for factor, difference in effects.shares.items():
        add("Shapley share", factor, difference)
    return pd.DataFrame(rows, columns=["part", "of", "points", "low", "high"])


if __name__ == "__main__":
    print(parts(corners(Path(sys.argv[1]))).round(2).to_string(index=False))
