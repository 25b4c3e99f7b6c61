"""Gains of equal tuning, in words: rows chosen by hand."""

from dataclasses import replace
from typing import Any

from negbench.analysis.tuned_gain import Tuning, tuned_answer
from tests.made import verdict

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def test_what_tuning_found_gained_and_cost(golden: Any) -> None:
    tunings = [
        Tuning({**LABELS, "strategy": "x"}, "s", found={"strategy.k": 3, "schedule.a": 0.12345}, trials=5, seconds=7.4),
        Tuning({**LABELS, "strategy": "y"}, "s", found={}, trials=5, seconds=2.0),
        Tuning({**LABELS, "strategy": "z"}),
        Tuning({**LABELS, "strategy": "f"}, "s", error="mend this"),
    ]
    difference = {"difference": 0.3, "diff_low": 0.2, "diff_high": 0.4, "baseline": "its default"}
    gain = verdict(**LABELS, **difference, mean=0.4, strategy="x", verdict="better")
    elsewhere = Tuning({**LABELS, "dataset": "e", "strategy": "x"}, "s", found={})
    half = Tuning({**LABELS, "strategy": "x"}, "s", found={}, trials=8, failed=6)
    assert replace(gain, facts={"failed_trials": "6 of 8"}).marked_label == "x (6 of 8 trials failed)"
    answers = {
        "gains": tuned_answer(tunings, [gain]),
        "two data sets": tuned_answer([*tunings, elsewhere], [gain]),
        "failed trials": tuned_answer([half], []),
        "nothing": tuned_answer([], []),
    }
    golden("tuning", answers)
