"""What an answer says of learning rates, word by word."""

from typing import Any

from negbench.analysis.picked_answer import picked_answer
from negbench.grid.axis import group_key

RATES = (0.001, 0.003, 0.01)


def row(strategy: str, lr: float, values: Any = (0.5, 0.6, 0.2), **more: Any) -> dict[str, Any]:
    """Return a row of comparison.json: the rate that a strategy chose, and the trials of each."""
    return {
        "labels": {"strategy": strategy, "loss": "l", "backbone": "b", "dataset": "d"},
        "seeds": [4, 5],
        "lr": lr,
        "tried": [[rate, value] for rate, value in zip(RATES, values, strict=True)],
        "runs": [[rate, [f"{strategy}-{rate}-4", f"{strategy}-{rate}-5"]] for rate in RATES],
        "queries": 1200,
        "generated": True,
        "metric": "recall_at_10",
        "common": False,
        **more,
    }


def older(strategy: str, lr: float) -> dict[str, Any]:
    """Return a row of an older version."""
    columns = row(strategy, lr)
    older_columns = {key: columns[key] for key in ("labels", "lr", "tried", "queries", "generated")}
    return {**older_columns, "seed": 4, "error": 0.012}


def pair(strategy: str, settings: str, lr: float, temperature: Any, **more: Any) -> dict[str, Any]:
    """Return a row of `--temperature grid`.

    It has two rates, of which the lower is worse, and three temperatures; 0.1 is best.
    """
    columns = row(strategy, lr, temperature=temperature, **more)
    columns["labels"]["settings"] = settings
    columns["tried"] = []
    for rate in (0.003, 0.01):
        for tau, mean in (("learned", 0.4), (0.07, 0.45), (0.1, 0.6)):
            columns["tried"].append([rate, tau, mean - 0.003 / rate])
    columns["common"] = settings == "common"
    return columns


def fixed_rate(strategy: str, settings: str, temperature: Any) -> dict[str, Any]:
    """Return a row of `--temperature grid --lr fixed`."""
    columns = pair(strategy, settings, 0.01, temperature)
    columns["tried"] = [[rate, tau, mean] for rate, tau, mean in columns["tried"] if rate == 0.01]
    return columns


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
    "pairs": [
        *(pair(name, "common", 0.01, 0.1) for name in ("dqe", "qure")),
        pair("dqe", "own", 0.01, 0.1),
        pair("qure", "own", 0.003, "learned"),
    ],
    "temperatures": [
        *(fixed_rate(name, "common", 0.07) for name in ("dqe", "qure")),
        fixed_rate("dqe", "own", 0.07),
        fixed_rate("qure", "own", "learned"),
    ],
    "of an older version": [older("dqe", 0.003), older("qure", 0.001)],
}


def answer_of(rates: list[dict[str, Any]], *, covered: bool = True) -> list[str]:
    """Return what an answer says of these rates; without `covered` it does not have the trials' values."""
    covered_groups = []
    if covered:
        covered_groups = [group_key(rate["labels"]) for rate in rates if rate.get("runs")]
    return picked_answer({"rates": rates} if rates else {}, "recall_at_10", "recall_at_10", covered_groups)


def test_rates_are_told(golden):
    lines = {case: answer_of(rates) for case, rates in CASES.items()}
    lines["without the trials"] = answer_of([row("dqe", 0.003)], covered=False)
    golden("rates", lines)


def test_the_trials_say_what_the_rates_make():
    """By hand: 70 - 64 at their own rates, and 66 - 64 at 0.003, whose mean is highest; c leads a there by 67 - 66."""
    rates = [row("a", 0.01, (0.10, 0.66, 0.70)), row("b", 0.003, (0.62, 0.64, 0.30)), row("c", 0.003, (0.4, 0.67, 0.1))]
    (line,) = answer_of(rates)
    assert line.endswith(
        "On the 1,200 queries of the trials (common rate: 0.003): 6.0 points between a and b at their own rates, 2.0 "
        "at the common one, 3.0 points between a and c at their own rates, 1.0 the other way round at the common one."
    )
    apart = [row("a", 0.01, (None, None, 0.7)), row("b", 0.003, (0.6, 0.64, None))]
    assert answer_of(apart)[0].endswith(
        "On the 1,200 queries of the trials: 6.0 points between a and b at their own rates."
    )
