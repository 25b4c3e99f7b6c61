"""A map: settings of a world ("dials") x strategies x seeds, so that one sees where which strategy is ahead.

A point of the map is one value of every dial; its cells are those of a comparison of the strategies there. Dials are
keys of the configuration, of the data set mostly (`dataset.twins`), of the backbone (`backbone.tokens`) or of training
(`train.epochs`), so whatever can be set can be mapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.config import parse_value, set_layer
from negbench.display import Display
from negbench.errors import OptionError
from negbench.files import read_json, write_json
from negbench.grid.axes import Grid
from negbench.grid.cells import Cell, plan
from negbench.scene import Scenes

Layer = Mapping[str, Any]
FILE = "map.json"


@dataclass(frozen=True)
class Dial:
    """A setting and the values that it takes over a map, in the order of the axis."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """As figures print it: the key without its section."""
        return self.key.split(".")[-1]

    @property
    def numeric(self) -> bool:
        """Whether there is something between two values."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    def layer(self, value: Any) -> dict[str, Any]:
        """As a layer of the configuration."""
        section, _, key = self.key.partition(".")
        return {section: {key: value}}


def parse_dial(text: str) -> Dial:
    """'dataset.twins=1,2,4' -> the dial.

    Raises:
        OptionError: no key, no value, or a value twice.
    """
    key, sign, listed = text.partition("=")
    values = tuple(parse_value(part.strip(), f"--dial {key}") for part in listed.split(",") if part.strip())
    if not sign or key.count(".") != 1 or not values:
        raise OptionError(f"--dial {text!r}: want section.key=value,value, e.g. --dial dataset.twins=1,2,4")
    if len(set(map(repr, values))) != len(values):
        raise OptionError(f"--dial {text!r}: names a value twice")
    set_layer(f"{key}=0")  # refuses what --set refuses
    return Dial(key, values)


@dataclass(frozen=True)
class WorldMap:
    """A map as it is planned: points, and the cells of each under the label `point`."""

    dials: tuple[Dial, ...]
    cells: list[Cell]

    @property
    def points(self) -> list[tuple[Any, ...]]:
        """Every combination of values, the last dial's changing fastest."""
        return list(itertools.product(*(dial.values for dial in self.dials)))

    def write(self, folder: Path) -> None:
        """map.json: the dials, for whoever reads the folder later."""
        dials = [{"key": dial.key, "values": list(dial.values)} for dial in self.dials]
        write_json(folder / FILE, {"dials": dials})


def read_dials(folder: Path) -> tuple[Dial, ...]:
    """What `WorldMap.write` wrote."""
    return tuple(Dial(each["key"], tuple(each["values"])) for each in read_json(folder / FILE)["dials"])


def point_label(dials: Sequence[Dial], point: Sequence[Any]) -> str:
    """'twins=1, tokens=4'."""
    return ", ".join(f"{dial.name}={value}" for dial, value in zip(dials, point, strict=True))


def world_map(
    dials: Sequence[Dial],
    grid: Grid,
    *,
    runs: Path,
    display: Display,
    scenes: Scenes,
) -> WorldMap:
    """Plan the cells of every point.

    Args:
        dials: at least one; no key twice.
        grid: strategies, one loss, seeds, and the layers below; a dial's value goes above the layers.
        runs: runs folder.
        display: shows the progress.
        scenes: keeps what was loaded.

    Raises:
        OptionError: dials that name one key twice, or a value that the key does not take.
        NegbenchError: a configuration that cannot run.
    """
    keys = [dial.key for dial in dials]
    if not keys or len(set(keys)) != len(keys):
        raise OptionError(f"a map has at least one dial, and none twice: got {', '.join(keys) or 'none'}")
    found = WorldMap(tuple(dials), [])
    for point in found.points:
        layers = [dial.layer(value) for dial, value in zip(dials, point, strict=True)]
        configs = grid.above(layers).configs()
        labels = [{"point": point_label(dials, point)}] * len(configs)
        found.cells.extend(plan(configs, runs, display, scenes, labels))
    return found
