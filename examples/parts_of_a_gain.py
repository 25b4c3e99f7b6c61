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
        taken = [key.removeprefix("system.") for key in keys if facts[key] != PLAIN]
        values[tuple(taken)] = values_of(folders, [metric])[metric]
    if len(values) < 2 ** len(keys) or len({each.seeds for each in values.values()}) > 1:
        raise SystemExit(f"{folder}: not all corners are finished with the same seeds: rerun the comparison")
    ordered = sorted(values, key=lambda taken: (len(taken), [keys.index(f"system.{factor}") for factor in taken]))
    return {frozenset(taken): values[taken] for taken in ordered}


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
    subsets = [s for size in range(len(factors) + 1) for s in combinations(factors, size)]
    names = [" + ".join(s) or "none" for s in subsets]
    first = next(iter(cells.values()))
    design = Design(first.strata, first.clusters, any(each.nested for each in cells.values()), alpha)
    table = ValueTable({name: cells[frozenset(s)].values for name, s in zip(names, subsets, strict=True)}, design)
    # a set's own term: the alternating sum over its subsets (Harsanyi's dividend); a share: its terms, equally divided
    terms = np.array([[(-1) ** (len(t) - len(s)) if set(s) <= set(t) else 0 for s in subsets] for t in subsets[1:]])
    split = np.array([[(f in t) / len(t) for t in subsets[1:]] for f in factors])
    rows = np.concatenate([terms.sum(axis=0, keepdims=True), split @ terms, terms])
    weights = [{name: float(w) for name, w in zip(names, row, strict=True) if w} for row in rows]
    total, *rest = contrasts(table, weights, table.generator("factorial"))
    shares, own = rest[: len(factors)], rest[len(factors) :]
    return Effects(total, dict(zip(factors, shares, strict=True)), dict(zip(subsets[1:], own, strict=True)))


def parts(cells: dict[frozenset[str], Values], alpha: float = 0.05) -> pd.DataFrame:
    """Return the parts of the gain in points, a row each; the intervals hold for all of them at once."""
    effects = effects_of(cells, alpha)
    rows: list[tuple[str, str, Difference]] = [("gain", "all", effects.total)]
    rows += [
        ("own term" if len(of) == 1 else "interaction", " and ".join(of), each) for of, each in effects.terms.items()
    ]
    rows += [("Shapley share", factor, each) for factor, each in effects.shares.items()]
    points = [(kind, of, each.value, each.interval.low, each.interval.high) for kind, of, each in rows]
    frame = pd.DataFrame(points, columns=["part", "of", "points", "low", "high"])
    return frame.assign(**{name: 100 * frame[name] for name in ("points", "low", "high")})


if __name__ == "__main__":
    print(parts(corners(Path(sys.argv[1]))).round(2).to_string(index=False))
