"""A claim as data: what is said, where, and the tests that would support or refute it."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from negbench.claims.measure import Measure, Unit
from negbench.errors import UnknownNameError

Statistic = Literal["level", "difference", "order"]
Layer = Mapping[str, Any]

PAPERS = {"QuRe": "qure", "CIRQRS": "cirqrs", "DQE-CIR": "dqe", "HyCoLe-HNM": "hycole"}  # title -> system


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
        supports: what the interval must meet.
        refutes: likewise.
        sweep: 'section.key=value' of an option that no paper prints: the mean over these values is judged.
    """

    statistic: Statistic
    settings: tuple[str, ...]
    measure: Measure
    other: Measure | None
    supports: Condition
    refutes: Condition
    sweep: tuple[str, ...] = ()

    def variants(self, setting: str) -> tuple[str, ...]:
        """Of a setting, one for each value of the sweep: 'dqe loss.margin=0.5'; itself where nothing is swept."""
        return tuple(f"{setting} {text}" for text in self.sweep) or (setting,)

    @property
    def needed(self) -> tuple[str, ...]:
        """All variants that must be computed, those that a measure looks at beside its own run included."""
        mine = [variant for name in self.settings for variant in self.variants(name)]
        beside = [name for measure in (self.measure, self.other) if measure is not None for name in measure.settings]
        return tuple(dict.fromkeys((*mine, *beside)))

    @property
    def unit(self) -> Unit:
        """Of the estimate."""
        return Unit("") if self.statistic == "order" else self.measure.unit

    def __str__(self) -> str:
        what = str(self.measure)
        if self.statistic == "order":
            return f"{what} and {self.other} order {len(self.settings)} settings alike"
        swept = [text if i == 0 else text.partition("=")[2] for i, text in enumerate(self.sweep)]
        return f"{what}: " + " - ".join(self.settings) + (f" (mean over {', '.join(swept)})" if swept else "")


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        number: 1 to 34, as it is cited.
        words: in our own.
        source: paper and place.
        published: the effect that was printed, and the numbers behind it.
        needs: names of `negbench.claims.evidence.NEEDS`: what the data must have for the claim to be testable.
        tests: supported when all are, refuted when one is.
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
    found: dict[str, Layer] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))
    return found


@cache
def all_claims() -> tuple[Claim, ...]:
    """The claims of the four papers, by number."""
    return read_claims(Path(__file__).with_name("claims.toml"))


def chosen(numbers: str | None) -> tuple[Claim, ...]:
    """'5,8,17' -> these claims, 'qure' -> that paper's; None -> all. Raises UnknownNameError."""
    if numbers is None:
        return all_claims()
    known: dict[str, tuple[Claim, ...]] = {str(claim.number): (claim,) for claim in all_claims()}
    known |= {paper: tuple(c for c in all_claims() if paper in c.papers) for paper in PAPERS.values()}
    wanted = [part.strip() for part in numbers.split(",") if part.strip()]
    for part in wanted or [numbers]:
        if part not in known:
            raise UnknownNameError("claim", part, known, where="--only")
    return tuple(dict.fromkeys(claim for part in wanted for claim in known[part]))


# --- reading -----------------------------------------------------------------------------------------------------


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Claims of a TOML file with a table `claim` each; tests/claims checks those that ship."""
    found = []
    for value in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]:
        tests = tuple(test for table in value.pop("tests") for test in _tests(table))
        found.append(Claim(value.pop("id"), needs=tuple(value.pop("needs", ())), tests=tests, **value))
    return tuple(found)


def _tests(table: dict[str, Any]) -> list[ClaimTest]:
    """The tests of one table: every combination of the settings listed under `of` and `against`."""
    statistic = table.pop("statistic")
    sides = [_listed(table.pop(key)) for key in ("of", "against") if key in table]
    groups: Sequence[tuple[str, ...]] = list(itertools.product(*sides)) if sides else [tuple(table.pop("among"))]
    supports, refutes = (Condition.parse(table.pop(key)) for key in ("supports", "refutes"))
    other = Measure(table.pop("with")) if "with" in table else None
    sweep = tuple(f"{key}={value}" for key, values in table.pop("over", {}).items() for value in values)
    name = table.pop("measure")
    options = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in table.items())
    measure = Measure(name, options)
    return [ClaimTest(statistic, names, measure, other, supports, refutes, sweep) for names in groups]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
