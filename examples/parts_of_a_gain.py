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
from pathlib import Path

import pandas as pd

from negbench.analysis.differences import factorial
from negbench.analysis.findings import stored
from negbench.analysis.statistics import Difference
from negbench.scoring.stored import Values, values_of

PLAIN = "plain"


def corners(folder: Path) -> dict[frozenset[str], Values]:
    """Return the main metric's per-query values at each corner: the factors that are not the plain system's -> values.

    Raises:
        SystemExit: a corner is not finished.
    """
    findings = stored(folder.parent, folder.name)
    keys = [dial.key for dial in findings.dials.axes]
    values = {}
    for group in findings.groups:
        metric = group.results[0]["main_metric"]
        taken = [key.removeprefix("system.") for key in keys if group.facts[key] != PLAIN]
        values[tuple(taken)] = values_of(group.runs, [metric])[metric]
    if len(values) < 2 ** len(keys) or len({each.seeds for each in values.values()}) > 1:
        raise SystemExit(f"{folder}: not all corners are finished with the same seeds: rerun the comparison")
    ordered = sorted(values, key=lambda taken: (len(taken), [keys.index(f"system.{factor}") for factor in taken]))
    return {frozenset(taken): values[taken] for taken in ordered}


def parts(cells: dict[frozenset[str], Values], alpha: float = 0.05) -> pd.DataFrame:
    """Return the parts of the gain in points, a row each; the intervals hold for all of them at once."""
    effects = factorial(cells, alpha=alpha)
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
