"""The matrix of systems, and gains taken apart: against values chosen by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from negbench.analysis.decomposition import corners_frame, gains_of, matrix_frame, parts_frame, systems_answer
from negbench.analysis.verdicts import Rules, VerdictTable, rows_of
from negbench.scoring.stored import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def table(system: str, own: str = "", **means: float) -> VerdictTable:
    """Return a table in which every query of every seed is near the given mean."""
    noise = np.random.default_rng(0).normal(size=(4, 200)) * 1e-3
    noise -= noise.mean()
    values = {name.replace("_", "-"): Values(mean + noise, (0, 1, 2, 3), None) for name, mean in means.items()}
    return VerdictTable({**LABELS, "system": system}, "recall_at_10", {"recall_at_10": values}, {}, own)


CORNERS: list[dict[str, Any]] = [
    {"factors": [], "label": "s: plain"},
    {"factors": ["negatives"], "label": "s: negatives"},
    {"factors": ["objective"], "label": "s: objective"},
    {"factors": ["negatives", "objective"], "label": "s: negatives + objective"},
]


def test_own_terms_shares_and_the_interaction_by_hand() -> None:
    """Plain 30, negatives alone 32, objective alone 31, both 38: own terms 2, 1, interaction 5, shares 4.5, 3.5."""
    means = (0.30, 0.32, 0.31, 0.38)
    tables = [table(str(corner["label"]), x=mean) for corner, mean in zip(CORNERS, means, strict=True)]
    tables[3].labels["backbone"] = "b(fusion=gated)"  # its own architecture
    gains = gains_of(tables, {"s": CORNERS}, Rules())
    values = {(gain.kind, gain.part): gain.value for gain in gains}
    assert values == pytest.approx(
        {
            ("corner", "plain"): 0.30,
            ("corner", "negatives"): 0.32,
            ("corner", "objective"): 0.31,
            ("corner", "negatives + objective"): 0.38,
            ("gain", "all"): 0.08,
            ("own term", "negatives"): 0.02,
            ("own term", "objective"): 0.01,
            ("interaction", "negatives and objective"): 0.05,
            ("share", "negatives"): 0.045,
            ("share", "objective"): 0.035,
        }
    )
    assert list(corners_frame(gains)["mean %"]) == ["30.00", "32.00", "31.00", "38.00"]
    frame = parts_frame(gains).set_index("part")
    assert list(frame.index) == ["all", "negatives", "objective", "interaction of negatives and objective"]
    assert frame.loc["negatives", "own term"].startswith("+2.00 [")
    assert frame.loc["negatives", "Shapley share"].startswith("+4.50 [")
    assert frame.loc["interaction of negatives and objective", "Shapley share"] == "-"
    (line,) = systems_answer([], gains)
    assert line.startswith("s against the plain system: +8.00 [")
    assert "points; negatives alone +2.00 [" in line
    assert "the interaction of negatives and objective +5.00 [" in line
    assert gains_of(tables[:3], {"s": CORNERS}, Rules()) == []  # a corner is not finished


def test_other_negatives_against_the_systems_own() -> None:
    tables = [
        table("plain", "in-batch", in_batch=0.30, qure=0.35),
        table("s", "qure", in_batch=0.30, qure=0.40, twin=0.40),
        table("none", "absent", qure=0.4),
    ]
    rows = [row for each in tables for row in rows_of(each, Rules())]
    frame = matrix_frame(rows).set_index("strategy")
    assert list(frame.columns) == ["plain", "s", "none"]
    assert frame.loc["in-batch", "plain"] == "30.0 own"
    assert frame.loc["qure", "plain"].startswith("+5.00 [")
    assert frame.loc["qure", "plain"].endswith("▲")
    assert frame.loc["in-batch", "s"].endswith("▼")
    assert frame.loc["twin", "s"].endswith("=")
    assert frame.loc["twin", "plain"] == "-"
    first, second, third = systems_answer(rows, [])
    assert first.startswith("plain: R@10 30.0 % with its own negatives (in-batch); better with qure +5.00 [")
    assert "; worse with in-batch -10.00 [" in second
    assert "; equal with twin." in second
    assert third == "none: no finished run with its own negatives to compare with."
