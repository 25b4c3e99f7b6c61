"""Systems as an axis: every system with the negatives of every strategy, all else unchanged; and its corners.

A cell keeps the system's loss, terms, backbone options, schedule and number of negatives per query and step: a corpus
strategy in a batch system draws as many as the batch has other members, a batch strategy in a corpus system keeps as
many members as the system draws. The corners are the cells between a system and the plain one, each factor (negatives,
objective, architecture) taken from one or the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.grid.cells import Cell, plan
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig, build_config, resolved
from negbench.systems.system import FACTORS, PLAIN, System, system

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Matrix:
    """Cells of systems x strategies.

    Attributes:
        systems: names of the rows.
        cells: cells of the matrix and the corners; their label `system` names the row or the corner.
        corners: system -> its corners, each {"factors": those taken from it (the others are the plain system's),
            "label": label `system` of its cells}.
        own: system -> label `strategy` of its published negatives.
        undefined: combinations that cannot be computed, each {"system", "strategy", "reason"}.
        remarks: components of the systems that the backbone or the data set does not support, one line each.
    """

    systems: tuple[str, ...]
    cells: list[Cell]
    corners: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    undefined: list[dict[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the systems in the form of comparison.json."""
        return {"names": list(self.systems), "corners": self.corners, "own": self.own, "remarks": self.remarks}


def system_cells(
    base: Sequence[Layer],
    systems: Sequence[str],
    strategies: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    *,
    runs: Path,
    display: Display,
    scenes: Scenes,
) -> Matrix:
    """Plan these systems with these strategies, and the corners between each system and the plain one.

    Args:
        base: layers above a system's own (backbone, data set, `--set`); a `system` that they name is ignored.
        systems: names of the systems.
        strategies: plug-in sections.
        seeds: seeds of every combination.
        runs: runs folder.
        display: shows the progress.
        scenes: caches loaded data and backbones.

    Raises:
        NegbenchError: a system that cannot run with its own negatives.
    """
    base = [{key: value for key, value in layer.items() if key != "system"} for layer in base]
    matrix = Matrix(tuple(systems), [])
    for name in systems:
        chosen = system(name)
        own, remarks = chosen.layer(base, scenes)
        matrix.remarks.extend(remarks)
        sections = [dict(own["strategy"]), *(dict(section) for section in strategies)]
        for section in sections:
            try:
                configs = [_swapped([own, *base], section, seed) for seed in seeds]
                cells = plan(configs, runs, display, scenes, [{"system": name}] * len(configs))
            except NegbenchError as error:
                if section == sections[0]:
                    raise
                matrix.undefined.append({"system": name, "strategy": str(section["name"]), "reason": str(error)})
                continue
            if section == sections[0]:
                matrix.own[name] = cells[0].labels["strategy"]
            known = {cell.hash for cell in matrix.cells if cell.labels["system"] == name}
            matrix.cells.extend(cell for cell in cells if cell.hash not in known)
        if name != PLAIN:
            matrix.corners[name] = []
            for factors, configs in _corners(chosen, base, seeds, scenes).items():
                label = f"{name}: {' + '.join(factors) or PLAIN}"
                matrix.corners[name].append({"factors": list(factors), "label": label})
                matrix.cells.extend(plan(configs, runs, display, scenes, [{"system": label}] * len(configs)))
    return matrix


def _swapped(layers: Sequence[Layer], section: Layer, seed: int) -> RunConfig:
    """Return the system's configuration with another strategy, but its own number of negatives."""
    before = resolved(build_config(layers))
    after = build_config([*layers, {"strategy": dict(section), "seed": seed}])
    scopes = [registry.get("strategies", c.strategy.name).scope for c in (before, after)]  # type: ignore[attr-defined]
    count = before.train.num_negatives
    if scopes == ["batch", "corpus"] and count is None:
        count = before.train.batch_size - 1
    return after.model_copy(update={"train": after.train.model_copy(update={"num_negatives": count})})


def _corners(
    chosen: System, base: Sequence[Layer], seeds: Sequence[int], scenes: Scenes
) -> dict[tuple[str, ...], list[RunConfig]]:
    """Return every mix of factors of the system and the plain one, without factors that change nothing."""
    plain = system(PLAIN)
    parts, _ = chosen.carried(base, scenes)
    start = chosen.layers(parts, ())
    before = resolved(build_config([*plain.layers(()), *start, *base]))
    factors = [
        factor
        for factor in FACTORS
        if resolved(build_config([*plain.layers(()), *chosen.layers(parts, [factor]), *base])) != before
    ]
    corners = {}
    for size in range(len(factors) + 1):
        for taken in itertools.combinations(factors, size):
            left = [f for f in FACTORS if f not in taken]
            layers = [*plain.layers((), left), *chosen.layers(parts, taken), *base]
            corners[taken] = [build_config([*layers, {"seed": seed}]) for seed in seeds]
    return corners
