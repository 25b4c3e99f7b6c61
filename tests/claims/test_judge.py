"""Verdicts: intervals against scipy, hand-checked conditions, and cases without anything to judge."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Return runs of these settings; with `same` those of all settings are one run."""
    runs = {}
    for name in names:
        runs[name] = {seed: RunFolder(Path(f"{same or name}-{seed}")) for seed in seeds}
    return Evidence(settings_frame(runs))


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
    claim = claim_of(*tests)
    return judge(claim, evidence(*claim.settings), ONCE, lacking=None, undefined=undefined).verdict


# --- estimates ---------------------------------------------------------------------------------------------------


def test_values_of_whole_runs_have_students_interval():
    one = np.array([-0.2, 0.3, 0.1, 0.4])
    other = np.array([-0.1, 0.1, 0.0, 0.1])
    estimate = estimate_of(one, other, None, 1)
    want = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert estimate.value == pytest.approx((one - other).mean())
    assert (estimate.low, estimate.high) == pytest.approx((want.low, want.high))
    error = stats.sem(one - other)
    assert estimate.detectable == pytest.approx((stats.t.ppf(0.975, 3) + stats.t.ppf(0.8, 3)) * error)


def test_per_query_values_are_compared_over_seeds_and_queries_without_the_missing():
    one, other = np.random.default_rng(0).normal(0.2, 1, (2, 3, 40))
    strata = np.array(["x", "y"] * 20)
    clusters = np.array(list("abcdefgh") * 5)
    labels = Measured(one[0], strata, clusters)
    one[1, 7] = np.nan
    other[2, 9] = np.nan
    estimate = estimate_of(one, other, labels, 0.4)
    queries = [query for query in range(40) if query not in (7, 9)]
    strata = strata[queries]
    a = one[:, queries]
    b = other[:, queries]
    differences = a - b
    of_strata = [differences[:, strata == "x"].mean(), differences[:, strata == "y"].mean()]
    assert estimate.value == pytest.approx(np.mean(of_strata))
    assert estimate == estimate_of(one, other, labels, 0.4)  # deterministic
    table = ValueTable({"a": a, "b": b}, Design(strata, clusters[queries], alpha=0.02))
    difference = against(table, "b", np.random.default_rng(1))["a"]
    assert estimate.detectable == pytest.approx(difference.minimum_detectable, rel=0.1)
    ends = (difference.interval.low, difference.interval.high)
    assert (estimate.low, estimate.high) == pytest.approx(ends, abs=0.05)
    of_whole_level = estimate_of(one, other, labels, 1)
    assert estimate.high - estimate.low > of_whole_level.high - of_whole_level.low


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
    shared = estimate_of(one, np.zeros_like(one), None, 1, nested=False)
    nested = estimate_of(one, np.zeros_like(one), None, 1, nested=True)
    assert shared.value == pytest.approx(nested.value)
    assert (shared.high - shared.low) / (nested.high - nested.low) == pytest.approx(8**0.5, rel=0.1)


# --- verdicts ----------------------------------------------------------------------------------------------------


def test_a_premise_must_hold_before_anything_is_decided(subtests):
    refuted = trial({"a": [-1.0, -1.1, -0.9]})
    shares = Fixed(table={"p": np.array([0.2, 0.5, 0.5])})
    for bound, want in (("> 0.3", "refuted"), ("> 0.5", "premise absent"), ("< 0.3", "premise absent")):
        with subtests.test(bound=bound):
            claim = dataclasses.replace(claim_of(refuted), premises=(Premise("p", shares, Condition.parse(bound)),))
            finding = judge(claim, evidence("a", "p"), ONCE, lacking=None, undefined={})
            assert (finding.verdict, finding.answers[0].verdict) == (want, "refuted")  # the effect is still shown


def test_two_lengths_are_one_verdict(subtests):
    up = trial({"a": [1.0, 1.1, 0.9]})

    def judged(verdict: str) -> JudgedClaim:
        return JudgedClaim(claim_of(up), verdict, f"why {verdict}", (Answer(up, "undecided"),))

    for short, long, want in VERDICTS["lengths"]:
        with subtests.test(short=short, long=long):
            both = combine_lengths(judged(short), judged(long))
            assert both.verdict == want
            assert [answer.length for answer in both.answers] == ["short", "long"]
    assert both.reason == "why not testable"


def test_each_of_two_lengths_spends_half_of_the_level():
    up = trial({"a": [1.0, 1.1, 0.9]})
    (answer,) = judge(claim_of(up), evidence("a"), ONCE, lacking=None, undefined={}, lengths=2).answers
    interval = stats.ttest_1samp([1.0, 1.1, 0.9], 0).confidence_interval(0.975)
    assert answer.estimate.low == pytest.approx(interval.low)


@pytest.mark.parametrize(("name", "low", "high", "supports", "refutes", "verdict"), VERDICTS["rows"])
def test_the_whole_interval_decides(name, low, high, supports, refutes, verdict):
    """An effect that its unit counts as none is no effect."""
    test = ClaimTest("level", ("a",), Measure(name), None, Condition.parse(supports), Condition.parse(refutes))
    assert decide(test, ClaimEstimate(0.0, low, high, 0.1)) == verdict


def test_a_claim_is_as_good_as_its_weakest_test():
    up = trial({"a": [1.0, 1.1, 0.9]})
    down = trial({"b": [-1.0, -1.1, -0.9]})
    undecided = trial({"c": [-1.0, 1.0, 0.5]})
    assert verdict(up) == "supported"
    assert verdict(up, down) == "refuted"
    assert verdict(up, undecided) == "undecided"
    assert verdict(up, undecided, a="no such option") == "not testable"
    assert verdict(up, down, a="no such option") == "refuted"


def test_intervals_of_a_claim_are_simultaneous():
    values = {"a": [1.0, 0.6, 1.4]}
    alone = stats.ttest_1samp(values["a"], 0).confidence_interval(0.95)
    assert alone.low > 0 > stats.ttest_1samp(values["a"], 0).confidence_interval(1 - 0.05 / 3).low
    assert verdict(trial(values)) == "supported"
    assert verdict(*[trial(values)] * 3) == "undecided"


def test_a_look_spends_its_share_and_what_it_decides_stays():
    looks = Looks(SEEDS, 5)
    values = {"a": [1.0, 1.01, 0.99, -9, -9], "b": [1.0, 0.5, 0.6, 0.8, 0.7]}
    claim = claim_of(trial({"a": values["a"]}), trial({"b": values["b"]}))
    complete = evidence("a", "b", seeds=(0, 1, 2, 3, 4))
    first, second = judge(claim, complete, looks, lacking=None, undefined={}).answers
    assert (first.verdict, first.seeds) == ("supported", 3)
    assert (second.verdict, second.seeds) == ("supported", 5)
    for answer, count, share, row in zip((first, second), looks.counts, looks.shares, values.values(), strict=True):
        interval = stats.ttest_1samp(row[:count], 0).confidence_interval(1 - 0.05 * share / 2)
        ends = (answer.estimate.low, answer.estimate.high)
        assert ends == pytest.approx((interval.low, interval.high)), f"look at {count} seeds"
    stopped = Evidence(pd.concat([complete.results.query("system == 'a'"), evidence("b").results]))
    _, second = judge(claim, stopped, looks, lacking=None, undefined={}).answers
    assert (second.verdict, second.seeds) == ("undecided", 3)


def test_a_difference_is_paired_by_seed():
    pair = {"a": [0.5, -0.25, 0.75], "b": [0.4, -0.36, 0.66]}
    assert verdict(trial(pair, "difference")) == "supported"
    assert verdict(trial(dict(reversed(pair.items())), "difference")) == "refuted"


def test_order_is_a_rank_correlation_seed_by_seed():
    table = {name: np.full((3, 2), value) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", -4.0))}
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
    lines = {}
    for case, claim in judged.items():
        lines[case] = [f"{claim.verdict}: {claim.reason}".rstrip(": "), *because(claim)]
    of_no_paper = dataclasses.replace(
        judged["refuted"], claim=dataclasses.replace(claim_of(pair), source="not published")
    )
    lines["counts"] = [counts([*judged.values(), of_no_paper])]
    write_judged([judged["supported"], judged["refuted"]], tmp_path, "about")
    lines["claims.md"] = (tmp_path / "claims.md").read_text().splitlines()
    golden("claims", lines)


def judged_of(
    tests: Sequence[ClaimTest],
    settings: str = "abcd",
    same: str = "",
    premises: tuple[Premise, ...] = (),
    looks: Looks = ONCE,
    lacking: str | None = None,
    undefined: Mapping[str, str] | None = None,
) -> JudgedClaim:
    """Judge a claim of these tests and premises, with runs of these settings."""
    claim = dataclasses.replace(claim_of(*tests), premises=premises)
    return judge(claim, evidence(*settings, same=same), looks, lacking=lacking, undefined=undefined or {})
