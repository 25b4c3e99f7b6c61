"""Axes: keys of the configuration, each with the values that a comparison gives it.

A dial is an axis of one setting, `--dial dataset.twins=1,2,4`: all strategies are compared at each of its values. A
point is one value of every dial.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from negbench.errors import OptionError
from negbench.machine.files import without_folders
from negbench.settings.layers import parse_value, set_layer

KEY = ("strategy", "loss", "backbone", "dataset")
AXES = ("system", "point", "settings", "epochs", *KEY)  # the first four only where a comparison has such an axis
OWN_STRATEGY = "own"  # the column that says whether a strategy is that of its system

Value = str | int | float | bool | None
Point = tuple[Any, ...]  # one value of each of several axes


@dataclass(frozen=True)
class Axis:
    """A key of the configuration, and the values that a comparison gives it.

    Attributes:
        key: a setting (`train.epochs`, `dataset.twins`, `seed`), a section whose values are plug-ins (`strategy`),
            `system`, `settings` (default or tuned), or `is_own_strategy` (of its system).
        values: in the order of tables and charts.
        column: of comparison.json and of the results frame, for its values; a dial's is its key, which has a dot.
    """

    key: str
    values: tuple[Any, ...]
    column: str

    @property
    def is_dial(self) -> bool:
        """Whether it is a dial."""
        return "." in self.column

    @property
    def name(self) -> str:
        """The key without its section."""
        return _without_section(self.key)

    def table_value(self, value: Any) -> Any:
        """Return one of the values as labels, tables and comparison.json have it: of a path the name of its file."""
        if self.is_dial and isinstance(value, str):
            return short(text for text in self.values if isinstance(text, str))[value]
        return value


def parse_dial(text: str) -> Axis:
    """Parse a dial such as 'dataset.twins=1,2,4'.

    Raises:
        OptionError: no key, no value, or a value twice.
    """
    key, sign, texts = text.partition("=")
    values = tuple(parse_value(part.strip(), f"--dial {key}") for part in texts.split(",") if part.strip())
    if not sign or key.count(".") != 1 or not values:
        raise OptionError(f"--dial {text!r}: expected section.key=value,value, e.g. --dial dataset.twins=1,2,4")
    if len({repr(value) for value in values}) != len(values):  # 1 and True are different values
        raise OptionError(f"--dial {text!r}: names a value twice")
    set_layer(f"{key}=0")  # refuses what --set refuses
    return Axis(key, values, key)


def dials_of(document: Mapping[str, Any]) -> list[Axis]:
    """Read the dials from comparison.json."""
    return [Axis(dial["key"], tuple(dial["values"]), dial["key"]) for dial in document.get("dials", ())]


def plain_dials(axes: Iterable[Axis]) -> list[dict[str, Any]]:
    """Return the dials among these axes in the form of comparison.json."""
    dials = []
    for axis in axes:
        if axis.is_dial:
            dials.append({"key": axis.key, "values": [axis.table_value(value) for value in axis.values]})
    return dials


# --- labels --------------------------------------------------------------------------------------------------------

GroupKey = tuple[str, ...]  # a group's labels of `AXES`, '' for those that the comparison lacks


def group_key(labels: Mapping[str, Any]) -> GroupKey:
    """Return the key of the group that a cell belongs to, whatever its seed."""
    return tuple(str(labels.get(axis, "")) for axis in AXES)


def names_of(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Name each cell or group by its strategy and the labels in which they differ.

    'qure', 'qure info-nce', '[twins=2] qure'. A point of dials is a loss, a backbone or a data set of its own, so these
    are not named beside it.
    """
    before = []
    behind = []
    for axis in AXES:
        values = {labels_of_one.get(axis) for labels_of_one in labels}
        if len(values) > 1 and axis not in KEY:
            before.append(axis)
        elif len(values) > 1 and axis != "strategy":
            behind.append(axis)
    if any("point" in labels_of_one for labels_of_one in labels):
        behind = []
    names = []
    for labels_of_one in labels:
        words = [f"[{labels_of_one.get(axis, '')}]" for axis in before]
        words.append(labels_of_one["strategy"])
        words += [labels_of_one[axis] for axis in behind]
        names.append(" ".join(words))
    return names


def short(labels: Iterable[str]) -> dict[str, str]:
    """Return label -> label with paths cut to file names; labels that would become equal get a digest of theirs."""
    cut = {label: without_folders(label) for label in labels}
    counts = Counter(cut.values())
    for label, name in cut.items():
        if counts[name] > 1 and name != label:
            cut[label] = f"{name} #{hashlib.sha256(label.encode()).hexdigest()[:4]}"
    return cut


# --- words -------------------------------------------------------------------------------------------------------


def short_names(axes: Sequence[Axis]) -> list[str]:
    """Return the names of these axes; of dials whose name is that of another dial, the whole key."""
    dials = [axis.key for axis in axes if axis.is_dial]
    names = dict(zip(dials, names_of_keys(dials), strict=True))
    return [names.get(axis.key, axis.name) for axis in axes]


def names_of_keys(keys: Sequence[str]) -> list[str]:
    """Return each key without its section; the whole key where two sections have the name."""
    names = [_without_section(key) for key in keys]
    return [key if names.count(name) > 1 else name for key, name in zip(keys, names, strict=True)]


def _without_section(key: str) -> str:
    """Return 'twins' of 'dataset.twins'."""
    _, _, name = key.rpartition(".")
    return name


def point_text(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return 'twins=1, tokens=4'."""
    return ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def varied_text(axes: Sequence[Axis], point: Point, without: Collection[int] = ()) -> str:
    """Return the part of a point's text that differs between points; `without` are indices of axes to leave out."""
    names = short_names(axes)
    varied = [index for index, axis in enumerate(axes) if len(axis.values) > 1 and index not in without]
    return point_text([names[index] for index in varied], [point[index] for index in varied])


# --- points ------------------------------------------------------------------------------------------------------


def points_of(axes: Sequence[Axis]) -> list[Point]:
    """Return all combinations of the axes' values, the last axis changing fastest; none without axes."""
    return list(itertools.product(*(axis.values for axis in axes))) if axes else []


def lines_along(axes: Sequence[Axis], index: int) -> list[list[Point]]:
    """Group the points by the values of all axes but one, each list in the order of this one's values."""
    lines = []
    others = [axis.values for axis in [*axes[:index], *axes[index + 1 :]]]
    for rest in itertools.product(*others):
        lines.append([(*rest[:index], value, *rest[index:]) for value in axes[index].values])
    return lines
