"""Dials: settings that a comparison moves, all else held fixed, so that one sees where which strategy is ahead.

A point is one value of every dial; its cells are those of a comparison of the strategies there. Dials are keys of the
configuration, of the data set mostly (`dataset.twins`), of the backbone (`backbone.tokens`) or of training
(`train.epochs`), so whatever can be set can be a dial.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axes import Axes
from negbench.grid.cells import Cell, plan
from negbench.layers import parse_value, set_layer

Point = tuple[Any, ...]  # one value of every dial


@dataclass(frozen=True)
class Dial:
    """A setting and its values, in the order of the axis."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.split(".")[-1]

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


def points_of(dials: Sequence[Dial]) -> list[Point]:
    """All combinations of the dials' values, the last dial's changing fastest.

    Raises:
        OptionError: a key twice.
    """
    keys = [dial.key for dial in dials]
    if len(set(keys)) != len(keys):
        raise OptionError(f"--dial {', '.join(keys)}: names a key twice")
    return list(itertools.product(*(dial.values for dial in dials)))


def point_label(dials: Sequence[Dial], point: Sequence[Any]) -> str:
    """'twins=1, tokens=4'."""
    return ", ".join(f"{dial.name}={value}" for dial, value in zip(dials, point, strict=True))


def dial_cells(
    dials: Sequence[Dial], points: Sequence[Point], axes: Axes, *, runs: Path, display: Display, scenes: Scenes
) -> tuple[list[Cell], dict[str, str]]:
    """The cells of every point, labelled `point`; and the points that cannot be computed, with the reason.

    Args:
        dials, points: of `points_of`.
        axes: strategies, seeds, and the layers below; a dial's value goes above them.
        runs: runs folder.
        display: shows the progress.
        scenes: keeps what was loaded.

    Raises:
        NegbenchError: no point can be computed; the reason of the last one.
    """
    cells, undefined = list[Cell](), dict[str, str]()
    # the point names a moved option: a label that names it too would make every point a table of another loss
    moved = {"loss", "backbone"} & {dial.key.partition(".")[0] for dial in dials}
    for point in points:
        label = point_label(dials, point)
        layers = [dial.layer(value) for dial, value in zip(dials, point, strict=True)]
        try:
            configs = axes.above(layers).configs()
            labels = {"point": label} | {section: getattr(configs[0], section).name for section in moved}
            cells.extend(plan(configs, runs, display, scenes, [labels] * len(configs)))
        except NegbenchError as error:
            undefined[label] = str(error)
            if len(undefined) == len(points):
                raise
    return cells, undefined
