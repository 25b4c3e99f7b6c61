"""Dials: settings that a comparison varies, all else fixed, to show where each strategy is ahead.

A point is one value of every dial; the strategies are compared at each point. Any key of the configuration can be a
dial: mostly of the data set (`dataset.twins`), but also of the backbone (`backbone.tokens`) or of training
(`train.epochs`).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from negbench.errors import OptionError
from negbench.grid.axes import AxisValue
from negbench.settings.layers import parse_value, set_layer

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


def parse_dial(text: str) -> Dial:
    """Parse a dial such as 'dataset.twins=1,2,4'.

    Raises:
        OptionError: no key, no value, or a value twice.
    """
    key, sign, listed = text.partition("=")
    values = tuple(parse_value(part.strip(), f"--dial {key}") for part in listed.split(",") if part.strip())
    if not sign or key.count(".") != 1 or not values:
        raise OptionError(f"--dial {text!r}: expected section.key=value,value, e.g. --dial dataset.twins=1,2,4")
    if len(set(map(repr, values))) != len(values):
        raise OptionError(f"--dial {text!r}: names a value twice")
    set_layer(f"{key}=0")  # refuses what --set refuses
    return Dial(key, values)


@dataclass(frozen=True)
class Dials:
    """Dials of a comparison; its points are all combinations of their values, none without dials."""

    axes: tuple[Dial, ...] = ()

    @classmethod
    def parsed(cls, texts: Sequence[str]) -> Self:
        """Parse the texts of `--dial`, each as `parse_dial` does.

        Raises:
            OptionError: an invalid text, or a key given twice.
        """
        dials = cls(tuple(map(parse_dial, texts)))
        keys = [dial.key for dial in dials.axes]
        if len(set(keys)) != len(keys):
            raise OptionError(f"--dial {', '.join(keys)}: names a key twice")
        return dials

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read the dials from comparison.json, as `plain` gave them."""
        return cls(tuple(Dial(each["key"], tuple(each["values"])) for each in document.get("dials", ())))

    def plain(self) -> list[dict[str, Any]]:
        """Return the dials in the form of comparison.json."""
        return [{"key": dial.key, "values": list(dial.values)} for dial in self.axes]

    @property
    def names(self) -> list[str]:
        """Names of the dials; the whole key where two sections have the name."""
        names = [dial.name for dial in self.axes]
        return [dial.key if names.count(dial.name) > 1 else dial.name for dial in self.axes]

    @property
    def points(self) -> list[Point]:
        """All points, the last dial's value changing fastest."""
        return list(itertools.product(*(dial.values for dial in self.axes))) if self.axes else []

    def label(self, point: Sequence[Any], without: int | None = None) -> str:
        """Return a point's label, 'twins=1, tokens=4'; `without` is the index of a dial to leave out."""
        named = enumerate(zip(self.names, point, strict=True))
        return ", ".join(f"{name}={value}" for index, (name, value) in named if index != without)

    def title(self, point: Sequence[Any], without: Collection[int] = ()) -> str:
        """Return the part of a point's label that differs between points; `without` are indices to leave out."""
        varied = [index for index, dial in enumerate(self.axes) if len(dial.values) > 1 and index not in without]
        return ", ".join(f"{self.names[index]}={point[index]}" for index in varied)

    def lines_along(self, axis: int) -> list[list[Point]]:
        """Group the points by the values of all other dials, each list in the order of this dial's values."""
        lines = itertools.product(*[(None,) if i == axis else dial.values for i, dial in enumerate(self.axes)])
        return [[(*rest[:axis], value, *rest[axis + 1 :]) for value in self.axes[axis].values] for rest in lines]


def dial_choices(dials: Dials) -> list[AxisValue]:
    """Return the axis of all points; a point that cannot be planned is left out."""
    choices = []
    for point in dials.points:
        facts = dict(zip((dial.key for dial in dials.axes), point, strict=True))
        layers = tuple({key.split(".")[0]: {key.split(".")[1]: value}} for key, value in facts.items())
        choices.append(AxisValue(layers, {"point": dials.label(point)}, facts, required=False))
    return choices or [AxisValue()]
