"""A map: settings of a world ("dials") x strategies x seeds, so that one sees where which strategy is ahead.

A point of the map is one value of every dial; its cells are those of a comparison of the strategies there. Dials are
keys of the configuration, of the data set mostly (`dataset.twins`), of the backbone (`backbone.tokens`) or of training
(`train.epochs`), so whatever can be set can be mapped.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.config import parse_value, set_layer
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.files import read_json, write_json
from negbench.grid.axes import Grid
from negbench.grid.cells import Cell, plan

Point = tuple[Any, ...]  # one value of every dial
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
class Design:
    """The points of a map: one value of every dial each; all combinations, or a sample of them."""

    dials: tuple[Dial, ...]
    points: tuple[Point, ...]

    @classmethod
    def of(cls, dials: Sequence[Dial], sample: int | None = None, seed: int = 0) -> Design:
        """All combinations, the last dial's values changing fastest; or `sample` of them, drawn without repeats.

        Raises:
            OptionError: no dial, one key twice, or a sample that is not smaller than the whole.
        """
        keys = [dial.key for dial in dials]
        if not keys or len(set(keys)) != len(keys):
            raise OptionError(f"a map has at least one dial, and none twice: got {', '.join(keys) or 'none'}")
        every = [dial.values for dial in dials]
        if sample is None:
            return cls(tuple(dials), tuple(itertools.product(*every)))
        total = math.prod(map(len, every))
        if not 1 <= sample < total:
            raise OptionError(f"--sample {sample}: want at least 1 and fewer than the {total} points that there are")
        numbers = sorted(random.Random(seed).sample(range(total), sample))
        return cls(tuple(dials), tuple(_combination(every, number) for number in numbers))

    @property
    def whole(self) -> bool:
        """Whether every combination is there."""
        return len(self.points) == math.prod(len(dial.values) for dial in self.dials)

    def write(self, folder: Path) -> None:
        """map.json, for whoever reads the folder later."""
        dials = [{"key": dial.key, "values": list(dial.values)} for dial in self.dials]
        write_json(folder / FILE, {"dials": dials, "points": [list(point) for point in self.points]})

    @classmethod
    def read(cls, folder: Path) -> Design:
        """What `write` wrote."""
        found = read_json(folder / FILE)
        dials = tuple(Dial(each["key"], tuple(each["values"])) for each in found["dials"])
        return cls(dials, tuple(tuple(point) for point in found["points"]))


def _combination(every: Sequence[Sequence[Any]], number: int) -> Point:
    """The combination that `itertools.product` gives as this one."""
    found: list[Any] = []
    for values in reversed(every):
        number, index = divmod(number, len(values))
        found.insert(0, values[index])
    return tuple(found)


def point_label(dials: Sequence[Dial], point: Sequence[Any]) -> str:
    """'twins=1, tokens=4'."""
    return ", ".join(f"{dial.name}={value}" for dial, value in zip(dials, point, strict=True))


def map_cells(
    design: Design, grid: Grid, *, runs: Path, display: Display, scenes: Scenes
) -> tuple[list[Cell], dict[str, str]]:
    """The cells of every point, under the label `point`; and the points that there cannot be, with the reason.

    Args:
        design: the points.
        grid: strategies, one loss, seeds, and the layers below; a dial's value goes above the layers.
        runs: runs folder.
        display: shows the progress.
        scenes: keeps what was loaded.

    Raises:
        NegbenchError: there is no point that can be; the first one's reason.
    """
    cells, undefined = list[Cell](), dict[str, str]()
    for point in design.points:
        label = point_label(design.dials, point)
        layers = [dial.layer(value) for dial, value in zip(design.dials, point, strict=True)]
        try:
            configs = grid.above(layers).configs()
            cells.extend(plan(configs, runs, display, scenes, [{"point": label}] * len(configs)))
        except NegbenchError as error:
            if len(undefined) + 1 == len(design.points):
                raise
            undefined[label] = str(error)
    return cells, undefined
