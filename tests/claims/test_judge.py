"""Verdicts: intervals against scipy, hand-checked conditions, and cases without anything to judge."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from negbench.analysis.statistics import Design, ValueTable, against
from negbench.grid.looks import Looks
from negbench.papers import measure as measures
from negbench.papers.claim import Claim, ClaimTest, Condition, Premise
from negbench.papers.evidence import Evidence, SettingRun
from negbench.papers.judge import Answer, ClaimEstimate, JudgedClaim, combine_lengths, decide, estimate_of, judge
from negbench.papers.measure import POINTS, Formula, Measure, Measured
from negbench.papers.table import because, counts, write_judged
from negbench.store.runfolder import RunFolder
from tests.made import settings_frame

VERDICTS = tomllib.loads((Path(__file__).parents[1] / "golden" / "verdicts.toml").read_text(encoding="utf-8"))
SEEDS = (0, 1, 2)
ONCE = Looks(SEEDS, len(SEEDS))


@dataclass(frozen=True, eq=False)
class Fixed(Measure):
    """A measure that looks up its values by setting and seed."""

    name: str = "fixed"
    table: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, hash=False)

    def of_seeds(self, runs: Sequence[SettingRun]) -> list[Measured]:
        return [Measured(np.asarray(self.table[run.setting][run.seed], dtype=np.float64)) for run in runs]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measures.FORMULAS, "fixed", Formula(len, POINTS))


def evidence(*names: str, same: str = "", seeds: tuple[int, ...] = SEEDS) -> Evidence:
    return Evidence(settings_frame({n: {s: RunFolder(Path(f"{same or n}-{s}")) for s in seeds} for n in names}))


def trial(
    table: Mapping[str, object],
    statistic: str = "level",
    supports: str = "> 0",
    refutes: str = "< 0",
    other: Measure | None = None,
) -> ClaimTest:
    values = {name: np.asarray(value, dtype=np.float64) for name, value in table.items()}
    conditions = Condition.parse(supports), Condition.parse(refutes)
    return ClaimTest(statistic, tuple(table), Fixed(table=values), other, *conditions)


def claim_of(*tests: ClaimTest) -> Claim:
    return Claim(1, "w", "s", "p", (), tests)


def verdict(*tests: ClaimTest, **undefined: str) -> str:
    names = {name for test in tests for name in test.settings}
    return judge(claim_of(*tests), evidence(*names), ONCE, lacking=None, undefined=undefined).verdict


# --- estimates ---------------------------------------------------------------------------------------------------


def test_values_of_whole_runs_have_students_interval():
    one, other = np.array([-0.2, 0.3, 0.1, 0.4]), np.array([-0.1, 0.1, 0.0, 0.1])
    estimate = estimate_of(one, other, None, 1)
    want = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert estimate.value == pytest.approx((one - other).mean())
    assert (estimate.low, estimate.high) == pytest.approx((want.low, want.high))
    error = stats.sem(one - other)
    assert estimate.detectable == pytest.approx((stats.t.ppf(0.975, 3) + stats.t.ppf(0.8, 3)) * error)


def test_per_query_values_are_compared_over_seeds_and_queries_without_the_missing():
    one, other = np.random.default_rng(0).normal(0.2, 1, (2, 3, 40))
    strata, clusters = np.array(["x", "y"] * 20), np.array(list("abcdefgh") * 5)
    labels = Measured(one[0], strata, clusters)
    one[1, 7] = other[2, 9] = np.nan
    effect = estimate_of(one, other, labels, 0.4)
    kept = [q for q in range(40) if q not in (7, 9)]
    a, b = one[:, kept], other[:, kept]
    assert effect.value == pytest.approx(np.mean([(a - b)[:, strata[kept] == name].mean() for name in ("x", "y")]))
    assert effect == estimate_of(one, other, labels, 0.4)  # deterministic
    table = ValueTable({"a": a, "b": b}, Design(strata[kept], clusters[kept], alpha=0.02))
    same = against(table, "b", np.random.default_rng(1))["a"]
    assert effect.detectable == pytest.approx(same.minimum_detectable, rel=0.1)
    assert (effect.low, effect.high) == pytest.approx((same.interval.low, same.interval.high), abs=0.05)
    assert effect.high - effect.low > estimate_of(one, other, labels, 1).high - estimate_of(one, other, labels, 1).low


def test_seeds_with_queries_of_their_own_keep_all_that_have_a_value():
    """Every query lacks a value in some seed: an error for shared queries, Student's interval for queries per seed."""
    one = np.random.default_rng(0).normal(0.2, 1, (8, 40))
    one[np.arange(40) % 8, np.arange(40)] = np.nan
    with pytest.raises(ValueError, match="fewer than two queries"):
        estimate_of(one, np.zeros_like(one), None, 1)
    estimate = estimate_of(one, np.zeros_like(one), None, 1, nested=True)
    means = np.nanmean(one, axis=1)
    assert estimate.value == pytest.approx(means.mean())
    want = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert estimate.high - estimate.low == pytest.approx(want.high - want.low, rel=0.2)


def test_queries_of_one_world_are_no_new_queries_in_every_seed():
    """Differences by query repeat in all 8 seeds: they count as 40 queries if seeds share a world, else as 320."""
    generator = np.random.default_rng(0)
    one = generator.normal(size=(1, 40)) + 0.01 * generator.normal(size=(8, 40))
    shared, nested = (estimate_of(one, np.zeros_like(one), None, 1, nested=own) for own in (False, True))
    assert shared.value == pytest.approx(nested.value)
    assert (shared.high - shared.low) / (nested.high - nested.low) == pytest.approx(8**0.5, rel=0.1)


# --- verdicts ----------------------------------------------------------------------------------------------------


def test_a_premise_must_hold_before_anything_is_decided(subtests):
    refuted, shares = trial({"a": [-1.0, -1.1, -0.9]}), Fixed(table={"p": np.array([0.2, 0.5, 0.5])})
    for bound, want in (("> 0.3", "refuted"), ("> 0.5", "premise absent"), ("< 0.3", "premise absent")):
        with subtests.test(bound=bound):
            claim = dataclasses.replace(claim_of(refuted), premises=(Premise("p", shares, Condition.parse(bound)),))
            finding = judge(claim, evidence("a", "p"), ONCE, lacking=None, undefined={})
            assert (finding.verdict, finding.answers[0].verdict) == (want, "refuted")  # the effect is still shown


def test_two_lengths_are_one_verdict(subtests):
    up = trial({"a": [1.0, 1.1, 0.9]})

    def found(verdict: str) -> JudgedClaim:
        return JudgedClaim(claim_of(up), verdict, f"why {verdict}", (Answer(up, "undecided"),))

    for short, long, want in VERDICTS["lengths"]:
        with subtests.test(short=short, long=long):
            both = combine_lengths(found(short), found(long))
            assert both.verdict == want, (short, long)
            assert [answer.length for answer in both.answers] == ["short", "long"]
    assert both.reason == "why not testable"
    # each length spends half of the level
    one = judge(claim_of(up), evidence("a"), ONCE, lacking=None, undefined={}, lengths=2).answers[0].estimate
    assert one.low == pytest.approx(stats.ttest_1samp([1.0, 1.1, 0.9], 0).confidence_interval(0.975).low)


def test_the_whole_interval_decides():
    """An effect that its unit counts as none is no effect."""
    for name, low, high, supports, refutes, want in VERDICTS["rows"]:
        test = ClaimTest("level", ("a",), Measure(name), None, *map(Condition.parse, (supports, refutes)))
        assert decide(test, ClaimEstimate(0.0, low, high, 0.1)) == want, (name, low, high, supports, refutes)


def test_a_claim_is_as_good_as_its_weakest_test():
    up, down, open_ = ({"a": [1.0, 1.1, 0.9]}, {"b": [-1.0, -1.1, -0.9]}, {"c": [-1.0, 1.0, 0.5]})
    assert verdict(trial(up)) == "supported"
    assert verdict(trial(up), trial(down)) == "refuted"
    assert verdict(trial(up), trial(open_)) == "undecided"
    assert verdict(trial(up), trial(open_), a="no such option") == "not testable"
    assert verdict(trial(up), trial(down), a="no such option") == "refuted"


def test_intervals_of_a_claim_are_simultaneous():
    values = {"a": [1.0, 0.6, 1.4]}
    alone = stats.ttest_1samp(values["a"], 0).confidence_interval(0.95)
    assert alone.low > 0 > stats.ttest_1samp(values["a"], 0).confidence_interval(1 - 0.05 / 3).low
    assert verdict(trial(values)) == "supported"
    assert verdict(*[trial(values)] * 3) == "undecided"


def test_a_look_spends_its_share_and_what_it_decides_stays():
    looks, values = Looks(SEEDS, 5), {"a": [1.0, 1.01, 0.99, -9, -9], "b": [1.0, 0.5, 0.6, 0.8, 0.7]}
    tests = [trial({name: row}) for name, row in values.items()]
    complete = evidence("a", "b", seeds=(0, 1, 2, 3, 4))
    finding = judge(claim_of(*tests), complete, looks, lacking=None, undefined={})
    assert [(answer.verdict, answer.seeds) for answer in finding.answers] == [("supported", 3), ("supported", 5)]
    for answer, count, share, row in zip(finding.answers, looks.counts, looks.shares, values.values(), strict=True):
        want = stats.ttest_1samp(row[:count], 0).confidence_interval(1 - 0.05 * share / 2)
        assert (answer.estimate.low, answer.estimate.high) == pytest.approx((want.low, want.high)), (
            f"look at {count} seeds"
        )
    stopped = Evidence(pd.concat([complete.results.query("system == 'a'"), evidence("b").results]))
    (_, left) = judge(claim_of(*tests), stopped, looks, lacking=None, undefined={}).answers
    assert (left.verdict, left.seeds) == ("undecided", 3)


def test_a_difference_is_paired_by_seed():
    pair = {"a": [0.5, -0.25, 0.75], "b": [0.4, -0.36, 0.66]}
    assert verdict(trial(pair, "difference")) == "supported"
    assert verdict(trial(dict(reversed(pair.items())), "difference")) == "refuted"


def test_order_is_a_rank_correlation_seed_by_seed():
    table = {name: [[v, v], [v, v], [v, v]] for name, v in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", -4.0))}
    other = Fixed(table={name: -np.asarray(value) for name, value in table.items()})
    mixed = Fixed(table={name: np.array([[0.5, 0.5]] * 3) for name in table})
    assert verdict(trial(table, "order", "< -0.9", "> -0.9", other)) == "supported"
    assert verdict(trial(table, "order", "> 0.9", "< 0.9", other)) == "refuted"
    assert verdict(trial(table, "order", other=mixed)) == "not testable"


def test_wording(golden, tmp_path):
    """What tables and files say of a claim: its verdict, why, and a line for each of its tests."""
    rows = {
        "a": [0.01, 0.012, 0.011],
        "b": [-0.01, 0.012, 0.005],
        "c": [0.0001, 0.0, 0.0002],
        "d": [-0.05, -0.04, -0.03],
    }
    level = {name: trial({name: row}) for name, row in rows.items()}
    bound = trial({"a": rows["a"]}, supports="> 0.005", refutes="< 0.005")
    pair = trial({name: rows[name] for name in "ab"}, "difference")
    premise = Premise("d", Fixed(table={"d": np.array(rows["d"])}), Condition.parse("> 0"))
    flat = trial({name: [1.0] * 3 for name in "abc"}, "order", other=Fixed(table=rows))
    judged = {
        "supported": judged_of([level["a"], bound]),
        "refuted": judged_of([level["d"], level["a"]]),
        "no effect": judged_of([level["c"]]),
        "undecided": judged_of([level["b"], pair]),
        "premise absent": judged_of([level["a"]], premises=(premise,)),
        "a premise without runs": judged_of([level["a"]], "abc", premises=(premise,), undefined={"d": "no pools"}),
        "one seed": judged_of([level["a"]], looks=Looks((0,), 1)),
        "one run": judged_of([pair], same="x"),
        "measures that do not differ": judged_of([flat]),
        "an undefined setting": judged_of([pair], undefined={"b": "no such option"}),
        "a missing run": judged_of([pair], "a"),
        "data that lack what it needs": judged_of([pair], lacking="needs people"),
    }
    judged["two lengths"] = combine_lengths(judged["supported"], judged["undecided"])
    said = {case: [f"{one.verdict}: {one.reason}".rstrip(": "), *because(one)] for case, one in judged.items()}
    of_no_paper = dataclasses.replace(claim_of(pair), source="not published")
    both = [*judged.values(), dataclasses.replace(judged["refuted"], claim=of_no_paper)]
    write_judged(both[:2], tmp_path, "about")
    golden("claims", {**said, "counts": [counts(both)], "claims.md": (tmp_path / "claims.md").read_text().splitlines()})


def judged_of(tests: Sequence[ClaimTest], there: str = "abcd", same: str = "", **given: Any) -> JudgedClaim:
    """Judge a claim of these tests and premises, with runs of the settings that are there."""
    claim = dataclasses.replace(claim_of(*tests), premises=given.pop("premises", ()))
    known = {"lacking": None, "undefined": {}, **given}
    return judge(claim, evidence(*there, same=same), known.pop("looks", ONCE), **known)
