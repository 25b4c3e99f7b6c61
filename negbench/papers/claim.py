"""Claims as data: the statement, its source, and the tests that support or refute it."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from negbench.errors import UnknownNameError
from negbench.papers.measure import Measure, Unit

Statistic = Literal["level", "difference", "order"]
Layer = Mapping[str, Any]

PAPERS = {"QuRe": "qure", "CIRQRS": "cirqrs", "DQE-CIR": "dqe", "HyCoLe-HNM": "hycole"}  # title -> system


@dataclass(frozen=True)
class Condition:
    """Condition that an interval lies entirely above or entirely below a bound."""

    above: bool
    bound: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse '> 0.5' or '< 0'. Raises ValueError for anything else."""
        match = re.fullmatch(r"([<>]) (-?\d+(?:\.\d+)?)", text)
        if match is None:
            raise ValueError(f"expected '> NUMBER' or '< NUMBER', got {text!r}")
        sign, bound = match.groups()
        return cls(sign == ">", float(bound))

    def holds(self, low: float, high: float) -> bool:
        """Whether the interval [low, high] meets the condition; False if an end is nan."""
        return low > self.bound if self.above else high < self.bound


@dataclass(frozen=True)
class ClaimTest:
    """One comparison behind a claim.

    Attributes:
        statistic: `level` of a setting, `difference` of two, or `order`: how alike two measures order several.
        settings: settings to test: one, two (minuend first), or several.
        measure: measure of their runs.
        other: the second measure of `order`.
        supports: condition on the interval that supports the claim.
        refutes: condition on the interval that refutes it.
    """

    statistic: Statistic
    settings: tuple[str, ...]
    measure: Measure
    other: Measure | None
    supports: Condition
    refutes: Condition

    @property
    def all_settings(self) -> tuple[str, ...]:
        """All settings to compute, including those that a measure reads besides its own run."""
        names = list(self.settings)
        for measure in (self.measure, self.other):
            if measure is not None:
                names += measure.settings
        return tuple(dict.fromkeys(names))

    @property
    def unit(self) -> Unit:
        """Unit of the estimate."""
        return Unit("") if self.statistic == "order" else self.measure.unit

    def __str__(self) -> str:
        what = str(self.measure)
        if self.statistic == "order":
            return f"{what} and {self.other} order {len(self.settings)} settings alike"
        return f"{what}: " + " - ".join(self.settings)


@dataclass(frozen=True)
class Premise:
    """The regime in which a paper makes its claim: a setting's measure, mean over its runs, meets a condition."""

    setting: str
    measure: Measure
    holds: Condition

    def __str__(self) -> str:
        unit = self.measure.unit
        bound = f"{'above' if self.holds.above else 'below'} {self.holds.bound * unit.scale:g} {unit.name}".rstrip()
        return f"{self.measure} of {self.setting} {bound}"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        number: 1 to 34, as it is cited.
        words: the claim in our own words.
        source: paper and place.
        published: the effect that was printed, and the numbers behind it.
        needs: names of `negbench.papers.evidence.NEEDS`: what the data must have for the claim to be testable.
        tests: the claim is supported if all tests are, refuted if one is.
        premises: conditions without which the claim says nothing about a world.
    """

    number: int
    words: str
    source: str
    published: str
    needs: tuple[str, ...]
    tests: tuple[ClaimTest, ...]
    premises: tuple[Premise, ...] = ()

    @property
    def papers(self) -> tuple[str, ...]:
        """The systems of the papers that make the claim; none if only readers ask it."""
        if self.source.startswith("not published"):
            return ()
        papers = tuple(key for title, key in PAPERS.items() if re.search(rf"\b{title}\b", self.source))
        return papers or tuple(PAPERS.values())

    @property
    def settings(self) -> tuple[str, ...]:
        """All settings to compute for the claim."""
        names: list[str] = []
        for test in self.tests:
            names += test.all_settings
        names += [premise.setting for premise in self.premises]
        return tuple(dict.fromkeys(names))


@cache
def settings() -> dict[str, Layer]:
    """Return the settings that claims train: name -> its system under `system`, and configuration sections."""
    return tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return the claims of the four papers, by number."""
    return read_claims(Path(__file__).with_name("claims.toml"))


def select_claims(numbers: str | None) -> tuple[Claim, ...]:
    """Return the claims of '5,8,17' (numbers) or 'qure' (a paper); None: all. Raises UnknownNameError."""
    if numbers is None:
        return all_claims()
    claims_by_name: dict[str, list[Claim]] = {str(claim.number): [claim] for claim in all_claims()}
    for paper in PAPERS.values():
        claims_by_name[paper] = [claim for claim in all_claims() if paper in claim.papers]
    names = [part.strip() for part in numbers.split(",") if part.strip()]
    claims: list[Claim] = []
    for name in names or [numbers]:
        if name not in claims_by_name:
            raise UnknownNameError("claim", name, claims_by_name, where="--only")
        claims += claims_by_name[name]
    return tuple(dict.fromkeys(claims))


# --- reading -----------------------------------------------------------------------------------------------------


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Read claims from a TOML file with one table `claim` each; tests/claims checks the shipped file."""
    claims = []
    for value in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]:
        tests: list[ClaimTest] = []
        for table in value.pop("tests"):
            tests += _tests(table)
        premises = tuple(_premise(table) for table in value.pop("premises", ()))
        needs = tuple(value.pop("needs", ()))
        claims.append(Claim(value.pop("id"), needs=needs, tests=tuple(tests), premises=premises, **value))
    return tuple(claims)


def _premise(table: dict[str, Any]) -> Premise:
    """Return the premise of one table; keys besides `of`, `holds` and `measure` are options of the measure."""
    setting = table.pop("of")
    condition = Condition.parse(table.pop("holds"))
    measure = Measure(table.pop("measure"), tuple(table.items()))
    return Premise(setting, measure, condition)


def _tests(table: dict[str, Any]) -> list[ClaimTest]:
    """Return the tests of one table: every combination of the settings listed under `of` and `against`."""
    statistic = table.pop("statistic")
    sides = []
    for key in ("of", "against"):
        if key in table:
            names = table.pop(key)
            sides.append([names] if isinstance(names, str) else names)
    groups: Sequence[tuple[str, ...]] = list(itertools.product(*sides)) if sides else [tuple(table.pop("among"))]
    supports = Condition.parse(table.pop("supports"))
    refutes = Condition.parse(table.pop("refutes"))
    other = Measure(table.pop("with")) if "with" in table else None
    measure = Measure(table.pop("measure"), tuple(table.items()))
    return [ClaimTest(statistic, group, measure, other, supports, refutes) for group in groups]
