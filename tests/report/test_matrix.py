"""The matrix of systems and negatives: against values chosen by hand."""

import numpy as np

from negbench.analysis.pivots import matrix_frame
from negbench.analysis.verdicts import Rules, VerdictTable, verdicts_of
from negbench.scoring.values import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def table(system: str, own_strategy: str = "", **means: float) -> VerdictTable:
    """Return a table in which every query of every seed is near the given mean."""
    noise = np.random.default_rng(0).normal(size=(4, 200)) * 1e-3
    noise -= noise.mean()
    facts = {}
    values = {}
    for keyword, mean in means.items():
        strategy = keyword.replace("_", "-")
        facts[strategy] = {"own": strategy == own_strategy}
        values[strategy] = Values(mean + noise, (0, 1, 2, 3), None)
    return VerdictTable({**LABELS, "system": system}, "recall_at_10", {"recall_at_10": values}, {}, facts=facts)


def test_other_negatives_against_the_systems_own():
    tables = [
        table("plain", "in-batch", in_batch=0.30, qure=0.35),
        table("s", "qure", in_batch=0.30, qure=0.40, twin=0.40),
        table("none", "absent", qure=0.4),
    ]
    rows = []
    for of_system in tables:
        rows += verdicts_of(of_system, Rules())
    frame = matrix_frame(rows).set_index("strategy")
    assert list(frame.columns) == ["plain", "s", "none"]
    assert frame.loc["in-batch", "plain"] == "30.0 own"
    assert frame.loc["qure", "plain"].startswith("+5.00 [")
    assert frame.loc["qure", "plain"].endswith("▲")
    assert frame.loc["in-batch", "s"].endswith("▼")
    assert frame.loc["twin", "s"].endswith("?")  # so few queries do not show equality within a point
    assert frame.loc["twin", "plain"] == "-"
