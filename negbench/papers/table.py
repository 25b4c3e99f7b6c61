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

from negbench.analysis.words import inert, markdown
from negbench.machine import files

if TYPE_CHECKING:  # a page of judged claims is read without torch
    from negbench.papers.claim import Claim, ClaimTest, Condition
    from negbench.papers.judge import Answer, JudgedClaim

WIDTH = 80  # of tables, so that they fit any terminal and a report
STYLES = {  # of verdicts, in the order in which they are counted
    "supported": "green", "refuted": "red", "depends on the length": "yellow", "no effect": "yellow",
    "undecided": "yellow", "premise absent": "dim", "not testable": "dim",
}  # fmt: skip


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return a table of the claims, their tests, and what would support and refute them."""
    table = _table("#", "claim", "tests: supported if / refuted if")
    for claim in claims:
        tests = "\n".join(
            f"{test!s}: {_condition(test.supports, test)} / {_condition(test.refutes, test)}" for test in claim.tests
        )
        needs = f"\nneeds: {', '.join(claim.needs)}" if claim.needs else ""
        needs += "".join(f"\npremise: {premise}" for premise in claim.premises)
        words = f"{claim.words}\n{claim.source}\npublished: {claim.published}{needs}"
        table.add_row(str(claim.number), escape(words), escape(tests))
    return table


def verdicts_table(judged: Sequence[JudgedClaim]) -> Table:
    """Return a table of published and measured effects, and verdicts."""
    table = _table("#", "claim", "measured effect", "verdict")
    for one in judged:
        words = f"{one.claim.words}\n{one.claim.source}\npublished: {one.claim.published}"
        verdict = f"[{STYLES[one.verdict.partition(',')[0]]}]{one.verdict}[/]"
        table.add_row(str(one.claim.number), escape(words), escape("\n".join(because(one))), verdict)
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
        verdicts = Counter(f.verdict.replace(",", "") for f in judged if bool(f.claim.papers) == published)
        ordered = []
        for beginning in STYLES:
            ordered += [name for name in verdicts if name.startswith(beginning)]
        if verdicts:
            parts.append(title + ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ordered))
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
    value, low, high, detectable = (
        _number(v * unit.scale) for v in (estimate.value, estimate.low, estimate.high, estimate.detectable)
    )
    if answer.reason:
        return f"{text} {value} {unit.name}: {answer.reason}"
    tail = f"undecided, detectable {detectable.lstrip('+')}" if answer.verdict == "undecided" else answer.verdict
    tail += f", {answer.seeds} seeds"
    bound = answer.test.supports.bound
    against = f" (bound {_number(bound * unit.scale)})" if bound else ""
    return f"{text} {value} [{low}, {high}] {unit.name}{against}: {tail}"


def _condition(condition: Condition, test: ClaimTest) -> str:
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
    columns = ["#", "claim", "source", "published effect", "measured effect", "verdict"]
    table = markdown(effects([_plain(one) for one in judged], "<br>")[columns]).replace(inert("<br>"), "<br>")
    return f"{about}; {counts(judged)}.\n\n{table}"


def effects(claims: Sequence[Mapping[str, Any]], joint: str = "\n") -> pd.DataFrame:
    """Return a row for each claim of claims.json: its verdict, and what was published and measured."""
    keys = {"#": "id", "verdict": "verdict", "claim": "words", "published effect": "published", "source": "source"}
    rows = [{title: claim[key] for title, key in keys.items()} for claim in claims]
    frame = pd.DataFrame(rows, columns=list(keys))
    frame.insert(4, "measured effect", [joint.join(claim["measured"]) for claim in claims])
    return frame


def _test_of(answer: Answer) -> str:
    """Name a test, and the length of training where claims are judged at two."""
    return f"{answer.length}: {answer.test}" if answer.length else str(answer.test)


def _of_answer(answer: Answer) -> dict[str, Any]:
    estimate = answer.estimate
    numbers = ("value", "low", "high", "detectable")
    return {
        "test": _test_of(answer),
        "unit": answer.test.unit.name,
        "scale": answer.test.unit.scale,
        "statistic": answer.test.statistic,
        "settings": " ".join(answer.test.settings),
        "supports": _condition(answer.test.supports, answer.test),
        "refutes": _condition(answer.test.refutes, answer.test),
        "test_verdict": answer.verdict,
        **{name: math.nan if estimate is None else getattr(estimate, name) for name in numbers},
        "seeds": answer.seeds,
        "reason": answer.reason,
    }


def _plain(one: JudgedClaim) -> dict[str, Any]:
    claim = one.claim
    return {
        "id": claim.number,
        **{key: getattr(claim, key) for key in ("words", "source", "published")},
        "verdict": one.verdict,
        "reason": one.reason,
        "measured": because(one),
        "tests": [_of_answer(answer) for answer in one.answers],
    }
