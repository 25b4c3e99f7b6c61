"""Write judged claims: a table for the terminal, claims.md, and claims.json for other programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from negbench.analysis.words import escape_markup, markdown
from negbench.machine import files

if TYPE_CHECKING:  # a page of judged claims is read without torch
    from negbench.papers.claim import Claim, ClaimTest, Condition
    from negbench.papers.judge import Answer, JudgedClaim

_EFFECT_COLUMNS = ("#", "verdict", "claim", "published effect", "measured effect", "source")
WIDTH = 80  # of tables, so that they fit any terminal and a report
STYLES = {  # of verdicts, in the order in which they are counted
    "supported": "green", "refuted": "red", "depends on the length": "yellow", "no effect": "yellow",
    "undecided": "yellow", "premise absent": "dim", "not testable": "dim",
}  # fmt: skip


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return a table of the claims, their tests, and what would support and refute them."""
    table = _table("#", "claim", "tests: supported if / refuted if")
    for claim in claims:
        tests = []
        for test in claim.tests:
            conditions = f"{_condition(test.supports, test)} / {_condition(test.refutes, test)}"
            tests.append(f"{test}: {conditions}")
        needs = f"\nneeds: {', '.join(claim.needs)}" if claim.needs else ""
        needs += "".join(f"\npremise: {premise}" for premise in claim.premises)
        words = f"{claim.words}\n{claim.source}\npublished: {claim.published}{needs}"
        table.add_row(str(claim.number), escape(words), escape("\n".join(tests)))
    return table


def verdicts_table(judged: Sequence[JudgedClaim]) -> Table:
    """Return a table of published and measured effects, and verdicts."""
    table = _table("#", "claim", "measured effect", "verdict")
    for one in judged:
        claim = one.claim
        words = f"{claim.words}\n{claim.source}\npublished: {claim.published}"
        kind, _, _ = one.verdict.partition(",")
        verdict = f"[{STYLES[kind]}]{one.verdict}[/]"
        table.add_row(str(claim.number), escape(words), escape("\n".join(because(one))), verdict)
    return table


def because(one: JudgedClaim) -> list[str]:
    """Return one line per test: estimate, interval, detectable effect; and why there is none, or no premise."""
    lines = [_answer(answer) for answer in one.answers]
    if one.verdict == "premise absent":
        lines.insert(0, f"premise absent: {one.reason}")
    return lines or [one.reason]


def counts(judged: Sequence[JudgedClaim]) -> str:
    """Return '12 supported, 9 refuted, ...'; claims that no paper makes are counted apart."""
    parts = []
    for title, published in (("", True), ("of no paper: ", False)):
        verdicts = Counter(one.verdict.replace(",", "") for one in judged if bool(one.claim.papers) == published)
        counted = []
        for beginning in STYLES:
            counted += [f"{count} {verdict}" for verdict, count in verdicts.items() if verdict.startswith(beginning)]
        if counted:
            parts.append(title + ", ".join(counted))
    return "; ".join(parts)


def write_judged(judged: Sequence[JudgedClaim], folder: Path, about: str) -> None:
    """Write claims.md and claims.json."""
    files.write_text(folder / "claims.md", _markdown(judged, about))
    files.write_json(folder / "claims.json", {"about": about, "claims": [_plain(one) for one in judged]})


# --- words -------------------------------------------------------------------------------------------------------


def _answer(answer: Answer) -> str:
    """Return a line: 'recall: qure - top-k -11.90 [-13.00, -10.80] points: refuted, 3 seeds'."""
    text = _test_of(answer)
    if answer.estimate is None:
        return f"{text}: {answer.reason}"
    estimate = answer.estimate
    unit = answer.test.unit
    value = _number(estimate.value * unit.scale)
    if answer.reason:
        return f"{text} {value} {unit.name}: {answer.reason}"
    low = _number(estimate.low * unit.scale)
    high = _number(estimate.high * unit.scale)
    text += f" {value} [{low}, {high}] {unit.name}"
    bound = answer.test.supports.bound
    if bound:
        text += f" (bound {_number(bound * unit.scale)})"
    text += f": {answer.verdict}"
    if answer.verdict == "undecided":
        text += f", detectable {_number(estimate.detectable * unit.scale).lstrip('+')}"
    return f"{text}, {answer.seeds} seeds"


def _condition(condition: Condition, test: ClaimTest) -> str:
    """'> 0.5 points'."""
    sign = ">" if condition.above else "<"
    return f"{sign} {condition.bound * test.unit.scale:g} {test.unit.name}".rstrip()


def _number(value: float) -> str:
    """Format a signed number: three decimals below 0.1 in size, else two; '-' for nan."""
    if math.isnan(value):
        return "-"
    decimals = 3 if abs(value) < 0.1 else 2
    return f"{value:+.{decimals}f}"


def _table(*columns: str) -> Table:
    table = Table(width=WIDTH, show_lines=True)
    for column in columns:
        table.add_column(column, no_wrap=column in ("#", "verdict"), overflow="fold")
    return table


# --- files -------------------------------------------------------------------------------------------------------


def _markdown(judged: Sequence[JudgedClaim], about: str) -> str:
    """Return the text of claims.md."""
    columns = ["#", "claim", "source", "published effect", "measured effect", "verdict"]
    table = markdown(effects([_plain(one) for one in judged], "<br>")[columns]).replace(escape_markup("<br>"), "<br>")
    return f"{about}; {counts(judged)}.\n\n{table}"


def effects(claims: Sequence[Mapping[str, Any]], joint: str = "\n") -> pd.DataFrame:
    """Return a row for each claim of claims.json: its verdict, and what was published and measured."""
    rows = []
    for claim in claims:
        row = {
            "#": claim["id"],
            "verdict": claim["verdict"],
            "claim": claim["words"],
            "published effect": claim["published"],
            "measured effect": joint.join(claim["measured"]),
            "source": claim["source"],
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_EFFECT_COLUMNS))


def _test_of(answer: Answer) -> str:
    """Name a test, and the length of training where claims are judged at two."""
    return f"{answer.length}: {answer.test}" if answer.length else str(answer.test)


def _plain_answer(answer: Answer) -> dict[str, Any]:
    """Return a test's result as claims.json has it; NaN, which JSON writes as null, without an estimate."""
    estimate = answer.estimate
    return {
        "test": _test_of(answer),
        "unit": answer.test.unit.name,
        "scale": answer.test.unit.scale,
        "statistic": answer.test.statistic,
        "settings": " ".join(answer.test.settings),
        "supports": _condition(answer.test.supports, answer.test),
        "refutes": _condition(answer.test.refutes, answer.test),
        "test_verdict": answer.verdict,
        "value": math.nan if estimate is None else estimate.value,
        "low": math.nan if estimate is None else estimate.low,
        "high": math.nan if estimate is None else estimate.high,
        "detectable": math.nan if estimate is None else estimate.detectable,
        "seeds": answer.seeds,
        "reason": answer.reason,
    }


def _plain(one: JudgedClaim) -> dict[str, Any]:
    """Return a judged claim as claims.json has it."""
    claim = one.claim
    return {
        "id": claim.number,
        "words": claim.words,
        "source": claim.source,
        "published": claim.published,
        "verdict": one.verdict,
        "reason": one.reason,
        "measured": because(one),
        "tests": [_plain_answer(answer) for answer in one.answers],
    }
