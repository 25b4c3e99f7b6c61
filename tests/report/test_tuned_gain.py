"""Both settings side by side, in words: rows chosen by hand."""

from negbench.analysis.tuned_gain import TunedRow, TuningGain, tuned_answer, tuned_frame
from negbench.analysis.verdicts import VerdictRow
from negbench.grid.tuning import Tuning

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def row(strategy: str, mean: float, beaten_by: tuple[str, ...] = ()) -> VerdictRow:
    ends = {"sd": 0.0, "low": mean, "high": mean}
    known = {"metric": "recall_at_10", "main": True, "seeds": 2, "queries": 9, "baseline": "a", "verdict": "equal"}
    return VerdictRow(**LABELS, **known, **ends, strategy=strategy, mean=mean, beaten_by=beaten_by, negatives=1.0)


def test_who_is_first_before_and_after_and_what_it_cost() -> None:
    searched = Tuning({**LABELS, "strategy": "x"}, "s", ("strategy.k",), 5, 7.4, 0.1, 0.2, {"strategy.k": 3})
    kept = Tuning({**LABELS, "strategy": "y"}, "s", ("strategy.k",), 5, 2.0, 0.1, 0.1, {})
    none = Tuning({**LABELS, "strategy": "z"})
    failed = Tuning({**LABELS, "strategy": "f"}, "s", error="mend this")
    gains = {name: TuningGain(name, **LABELS) for name in "yzf"} | {
        "x": TuningGain("x", **LABELS, value=0.3, low=0.2, high=0.4)
    }
    rows = [
        TunedRow(row("x", 0.1, ("y",)), row("x", 0.4), searched, gains["x"]),
        TunedRow(row("y", 0.3), row("y", 0.3, ("x",)), kept, gains["y"]),
        TunedRow(row("z", 0.2), row("z", 0.2, ("x",)), none, gains["z"]),
    ]
    lines = tuned_answer(5, rows)
    assert lines[0].startswith("First place at published defaults: y and z; after 5 trials each: x (strategies with 1")
    assert lines[1:] == [
        "Tuning gains, in points on the reported split: x +30.00 [20.00, 40.00].",
        "Tuning cost 10 trials and 9 s of computing, besides the runs of both tables.",
    ]
    frame = tuned_frame([*rows, TunedRow(row("f", 0.1), None, failed, gains["f"])])
    assert list(frame["found"]) == ["k=3", "the default", "nothing to tune", "FAILED: mend this"]
    assert list(frame["tuning gains"]) == ["+30.00 [20.00, 40.00]", "-", "-", "-"]
    assert frame.loc[3, "tuned: verdict"] == "-"
