"""What an answer says of learning rates, word by word."""

from typing import Any

from negbench.analysis.picked_answer import picked_answer
from negbench.grid.axis import group_key

RATES = (0.001, 0.003, 0.01)


def row(strategy: str, lr: float, values: Any = (0.5, 0.6, 0.2), **more: Any) -> dict[str, Any]:
    labels = {"strategy": strategy, "loss": "l", "backbone": "b", "dataset": "d"}
    tried = [[rate, value] for rate, value in zip(RATES, values, strict=True)]
    runs = [[rate, [f"{strategy}-{rate}-4", f"{strategy}-{rate}-5"]] for rate in RATES]
    made = {"labels": labels, "seeds": [4, 5], "lr": lr, "tried": tried, "runs": runs, "queries": 1200}
    return {**made, "generated": True, "metric": "recall_at_10", "common": False, **more}


def older(strategy: str, lr: float) -> dict[str, Any]:
    """A row of an older version."""
    made = row(strategy, lr)
    kept = {key: made[key] for key in ("labels", "lr", "tried", "queries", "generated")}
    return {**kept, "seed": 4, "error": 0.012}


LOST = row("lost", 0.003, (None, None, None), runs=[])
CASES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "one rate": [row("qure", 0.003), row("dqe", 0.003)],
    "at an end": [row("qure", 0.001, (0.7, 0.6, 0.1)), row("dqe", 0.003), row("top-k", 0.003)],
    "few queries": [row("dqe", 0.003, queries=n, generated=False) for n in (150, 1100)],
    "one failed": [row("dqe", 0.003), LOST],
    "all failed": [LOST],
    "common": [row("qure", 0.003, (0.61, 0.6, 0.1), common=True), row("dqe", 0.003, common=True)],
    "another metric": [row("dqe", 0.003, metric="recall_at_1")],
    "of an older version": [older("dqe", 0.003), older("qure", 0.001)],
}


def said(rates: list[dict[str, Any]], *, covered: bool = True) -> list[str]:
    places = [group_key(each["labels"]) for each in rates if covered and each.get("runs")]
    return picked_answer({"rates": rates} if rates else {}, "recall_at_10", "recall_at_10", places)


def test_rates_are_told(golden):
    lines = {case: said(rates) for case, rates in CASES.items()}
    lines["without the trials"] = said([row("dqe", 0.003)], covered=False)
    golden("rates", lines)


def test_the_trials_say_what_the_rates_make():
    """By hand: 70 - 64 at their own rates, and 66 - 64 at 0.003, whose mean is highest; c leads a there by 67 - 66."""
    rates = [row("a", 0.01, (0.10, 0.66, 0.70)), row("b", 0.003, (0.62, 0.64, 0.30)), row("c", 0.003, (0.4, 0.67, 0.1))]
    (line,) = said(rates)
    assert line.endswith(
        "On the 1,200 queries of the trials (common rate: 0.003): 6.0 points between a and b at their own rates, 2.0 "
        "at the common one, 3.0 points between a and c at their own rates, 1.0 the other way round at the common one."
    )
    apart = [row("a", 0.01, (None, None, 0.7)), row("b", 0.003, (0.6, 0.64, None))]
    assert said(apart)[0].endswith("On the 1,200 queries of the trials: 6.0 points between a and b at their own rates.")
