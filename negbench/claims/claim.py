"""A claim as data: what is said, where, and the tests that would confirm or refute it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from negbench.claims.evidence import NEEDS
from negbench.claims.measure import MEASURES, Measure, Unit
from negbench.errors import NegbenchError, UnknownNameError
from negbench.systems.system import systems

Statistic = Literal["level", "difference", "order"]
Layer = Mapping[str, Any]

PAPERS = {"QuRe": "qure", "CIRQRS": "cirqrs", "DQE-CIR": "dqe", "HyCoLe-HNM": "hycole"}  # title -> system

_CLAIM = ("id", "words", "source", "published", "needs", "tests")
_TEST = ("statistic", "of", "against", "among", "measure", "with", "confirms", "refutes")


@dataclass(frozen=True)
class Condition:
    """Where an interval must lie: wholly above a bound or wholly below it."""

    above: bool
    bound: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """From '> 0.5' or '< 0'. Raises ValueError."""
        found = re.fullmatch(r"([<>]) (-?\d+(?:\.\d+)?)", text)
        if found is None:
            raise ValueError(f"want '> NUMBER' or '< NUMBER', got {text!r}")
        return cls(found[1] == ">", float(found[2]))

    def holds(self, low: float, high: float) -> bool:
        """Whether the interval [low, high] meets it; never where an end is nan."""
        return low > self.bound if self.above else high < self.bound


@dataclass(frozen=True)
class ClaimTest:
    """One comparison behind a claim.

    Attributes:
        statistic: `level` of a setting, `difference` of two, or `order`: how alike two measures order several.
        settings: that are looked at: one, two (minuend first), or several.
        measure: of their runs.
        other: the second measure of `order`.
        confirms: what the interval must meet.
        refutes: likewise.
    """

    statistic: Statistic
    settings: tuple[str, ...]
    measure: Measure
    other: Measure | None
    confirms: Condition
    refutes: Condition

    @property
    def needed(self) -> tuple[str, ...]:
        """All settings that must be computed, those that a measure looks at beside its own run included."""
        beside = [name for measure in (self.measure, self.other) if measure is not None for name in measure.settings]
        return tuple(dict.fromkeys((*self.settings, *beside)))

    @property
    def unit(self) -> Unit:
        """Of the estimate."""
        return Unit("") if self.statistic == "order" else self.measure.unit

    def __str__(self) -> str:
        what = str(self.measure)
        if self.statistic == "order":
            return f"{what} and {self.other} order {len(self.settings)} settings alike"
        return f"{what}: " + " - ".join(self.settings)


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        number: 1 to 34, as it is cited.
        words: in our own.
        source: paper and place.
        published: the numbers behind it.
        needs: names of `negbench.claims.evidence.NEEDS`: what the data must have.
        tests: confirmed when all are, refuted when one is.
    """

    number: int
    words: str
    source: str
    published: str
    needs: tuple[str, ...]
    tests: tuple[ClaimTest, ...]

    @property
    def papers(self) -> tuple[str, ...]:
        """The systems of the papers that claim it; none where it is only asked by readers."""
        if self.source.startswith("not published"):
            return ()
        named = tuple(key for title, key in PAPERS.items() if re.search(rf"\b{title}\b", self.source))
        return named or tuple(PAPERS.values())

    @property
    def settings(self) -> tuple[str, ...]:
        """All that must be computed for it."""
        return tuple(dict.fromkeys(name for test in self.tests for name in test.needed))


@cache
def settings() -> dict[str, Layer]:
    """What can be trained for a claim: name -> its system under `system`, and configuration sections."""
    return read_settings(Path(__file__).with_name("settings.toml"))


@cache
def claims() -> tuple[Claim, ...]:
    """The claims of the four papers, by number."""
    return read_claims(Path(__file__).with_name("claims.toml"), settings())


def chosen(numbers: str | None, where: str = "--only") -> tuple[Claim, ...]:
    """'5,8,17' -> these claims, 'qure' -> that paper's; None -> all. Raises UnknownNameError."""
    if numbers is None:
        return claims()
    known: dict[str, tuple[Claim, ...]] = {str(claim.number): (claim,) for claim in claims()}
    known |= {paper: tuple(c for c in claims() if paper in c.papers) for paper in PAPERS.values()}
    wanted = [part.strip() for part in numbers.split(",") if part.strip()]
    for part in wanted or [numbers]:
        if part not in known:
            raise UnknownNameError("claim", part, known, where=where)
    return tuple(dict.fromkeys(claim for part in wanted for claim in known[part]))


# --- reading -----------------------------------------------------------------------------------------------------


def read_settings(path: Path) -> dict[str, Layer]:
    """Settings of a file. Raises NegbenchError where one is of no system."""
    found: dict[str, Layer] = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, layer in found.items():
        if layer.get("system") not in systems():
            raise UnknownNameError("system", str(layer.get("system")), systems(), where=f"{path.name}: {name}")
    return found


def read_claims(path: Path, known: Mapping[str, Layer]) -> tuple[Claim, ...]:
    """Claims of a file, checked.

    Args:
        path: TOML with a table `claim` each.
        known: settings that tests may name.

    Raises:
        NegbenchError: a key, setting, measure, option or need that is unknown, a condition that says nothing, or
            conditions that can both hold.
    """
    found = [_claim(value, f"{path.name}: claim {value.get('id')}", known) for value in _tables(path)]
    numbers = [claim.number for claim in found]
    if numbers != sorted(set(numbers)):
        raise NegbenchError(f"{path.name}: the ids must rise, each there once, got {numbers}")
    return tuple(found)


def _tables(path: Path) -> list[dict[str, Any]]:
    value = tomllib.loads(path.read_text(encoding="utf-8"))
    _check_names("key", value, ("claim",), path.name)
    return list(value.get("claim", []))


def _claim(value: Mapping[str, Any], where: str, known: Mapping[str, Layer]) -> Claim:
    _check_names("key", value, _CLAIM, where)
    missing = [key for key in _CLAIM if key not in value and key != "needs"]
    if missing or not value["tests"]:
        raise NegbenchError(f"{where} has no {(missing or ['test'])[0]}")
    needs = tuple(value.get("needs", ()))
    _check_names("need", needs, NEEDS, where)
    tests = tuple(test for table in value["tests"] for test in _tests(table, where, known))
    return Claim(value["id"], value["words"], value["source"], value["published"], needs, tests)


def _tests(table: Mapping[str, Any], where: str, known: Mapping[str, Layer]) -> list[ClaimTest]:
    """The tests of one table: every combination of the settings listed under `of` and `against`."""
    statistic = table.get("statistic")
    _check_names("statistic", [str(statistic)], get_args(Statistic), where)
    wanted = {"level": {"of"}, "difference": {"of", "against"}, "order": {"among", "with"}}[str(statistic)]
    given = {"of", "against", "among", "with"} & set(table)
    if given != wanted or not {"measure", "confirms", "refutes"} <= set(table):
        needed = ", ".join(sorted({*wanted, "measure", "confirms", "refutes"}))
        raise NegbenchError(f"{where}: a test of statistic '{statistic}' has the keys {needed}, got {', '.join(table)}")
    arguments = {key: value for key, value in table.items() if key not in _TEST}
    measure = _measure(table["measure"], arguments, where)
    other = _measure(table["with"], {}, where) if "with" in table else None
    sides = [_listed(table[key]) for key in ("of", "against") if key in table]
    groups: Sequence[tuple[str, ...]] = list(itertools.product(*sides)) if sides else [tuple(table["among"])]
    confirms, refutes = _conditions(table, where)
    found = [ClaimTest(statistic, names, measure, other, confirms, refutes) for names in groups]  # type: ignore[arg-type]
    for test in found:
        _check_names("setting", test.needed, known, where)
    return found


def _measure(name: str, arguments: Mapping[str, Any], where: str) -> Measure:
    _check_names("measure", [name], MEASURES, where)
    cls = MEASURES[name]
    fields = dataclasses.fields(cls)
    _check_names(f"key of measure '{name}'", arguments, [field.name for field in fields], where)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in arguments]
    if missing:
        raise NegbenchError(f"{where}: measure '{name}' needs {missing[0]}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()})


def _conditions(table: Mapping[str, Any], where: str) -> tuple[Condition, Condition]:
    try:
        confirms, refutes = (Condition.parse(table[key]) for key in ("confirms", "refutes"))
    except ValueError as error:
        raise NegbenchError(f"{where}: {error}") from error
    upper, lower = (confirms, refutes) if confirms.above else (refutes, confirms)
    if confirms.above == refutes.above or upper.bound < lower.bound:
        raise NegbenchError(f"{where}: '{table['confirms']}' and '{table['refutes']}' can both hold")
    return confirms, refutes


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _check_names(kind: str, names: Any, known: Any, where: str) -> None:
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, str(name), known, where=where)
