"""Gains of equal tuning, in words: rows chosen by hand."""

from negbench.analysis.tuned_gain import Tuning, tuned_answer
from negbench.analysis.verdicts import VerdictRow

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def test_what_tuning_found_gained_and_cost() -> None:
    tunings = [
        Tuning({**LABELS, "strategy": "x"}, "s", found={"strategy.k": 3, "schedule.a": 0.12345}, trials=5, seconds=7.4),
        Tuning({**LABELS, "strategy": "y"}, "s", found={}, trials=5, seconds=2.0),
        Tuning({**LABELS, "strategy": "z"}),
        Tuning({**LABELS, "strategy": "f"}, "s", error="mend this"),
    ]
    known = {"metric": "recall_at_10", "main": True, "seeds": 2, "queries": 9, "baseline": "its default"}
    ends = {"mean": 0.4, "sd": 0.0, "low": 0.4, "high": 0.4, "difference": 0.3, "diff_low": 0.2, "diff_high": 0.4}
    gain = VerdictRow(**LABELS, **known, **ends, strategy="x", verdict="better")
    assert tuned_answer(tunings, [gain]) == [
        "Equal tuning (10 trials on a dev part, 9 s of computing besides the runs of both tables): x with k=3, "
        "a=0.1235, +30.00 [20.00, 40.00] points over its default; y keeps its default; z has nothing to tune; "
        "f FAILED: mend this."
    ]
    elsewhere = Tuning({**LABELS, "dataset": "e", "strategy": "x"}, "s", found={})
    assert "; x (l, b and e) keeps its default." in tuned_answer([*tunings, elsewhere], [gain])[0]
    assert tuned_answer([], []) == []
