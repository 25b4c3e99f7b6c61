"""Differences, intervals and verdicts, against closed forms, brute force and simulation."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy

from negbench.analysis import seed_variance
from negbench.analysis.seed_variance import variance_draws
from negbench.analysis.statistics import Design, Interval, ValueTable, _interval, against, contrasts, pairs, summarise


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table_of(means, seeds=5, queries=300, sd=0.005, *, rng=None, **design):
    """Return normal values: strategy k has mean `means[k]` and `sd` over seeds; all share the difficulty of queries."""
    rng = rng or generator(1)
    easy = rng.normal(size=(1, queries))
    values = {
        f"s{k}": mean + easy + sd * rng.normal(size=(seeds, 1)) + 0.01 * rng.normal(size=(seeds, queries))
        for k, mean in enumerate(means)
    }
    return ValueTable(values, Design(**design))


# --- variances over seeds ----------------------------------------------------------------------------------------


def test_many_seeds_give_each_strategy_its_own_variance():
    rng, sds = generator(2), np.array([1.0, 2.0, 4.0, 0.5])
    common = 10 * rng.normal(size=(1, 400))  # effects of a seed on all strategies cancel in differences
    variances = variance_draws(sds[:, None] * rng.normal(size=(4, 400)) + common, 800, generator())
    assert variances.shape == (800, 4)
    np.testing.assert_allclose(np.sqrt(np.median(variances, axis=0)), sds, rtol=0.12)


def test_few_seeds_borrow_where_strategies_vary_alike_and_not_where_they_do_not(subtests):
    alike = generator(3).normal(size=(20, 3))
    spread = np.quantile(variance_draws(alike, 800, generator()), 0.95, axis=0)
    own = alike.var(axis=1, ddof=1)
    assert np.ptp(spread) < np.ptp(own) * 3  # one variance from 20 rows, not 20 with two degrees of freedom
    noisy = alike * np.where(np.arange(20) < 10, 1.0, 30.0)[:, None]
    medians = np.median(variance_draws(noisy, 800, generator()), axis=0)
    assert np.median(medians[10:]) > 100 * np.median(medians[:10])
    means = generator(4).normal(size=(12, 6))
    means[0, 3:] = means[1, 1:] = np.nan  # missing seeds are allowed; a single seed borrows its variance
    medians = np.median(variance_draws(means, 800, generator()), axis=0)
    assert (medians > 0.1).all()
    assert (medians < 6).all()
    means = generator(4).normal(size=(12, 6)) + 10 * generator(5).normal(size=(1, 6))
    means[:6, 3:] = np.nan  # effects of a seed on all strategies cancel where half of them lack it, too
    assert np.median(variance_draws(means, 800, generator()), axis=0).max() < 2
    for means in (np.ones((3, 4)), np.ones((2, 1)), np.ones((1, 5)) * np.arange(5)):  # differences do not vary
        with subtests.test(means=means):
            assert not variance_draws(means, 50, generator()).any()


@pytest.mark.parametrize("strategies", [2, 3, 4])
def test_a_seed_that_one_strategy_has_alone_says_nothing_about_variances(strategies):
    shared = generator(6).normal(size=(strategies, 4))
    assert variance_draws(shared, 200, generator()).shape == (200, strategies)
    means = np.full((strategies + 1, 6), np.nan)
    means[:-1, :4] = shared
    means[0, 4] = 100.0
    means[-1, 5] = 100.0  # a strategy with no other seed
    medians = np.median(variance_draws(means, 200, generator()), axis=0)
    assert medians.shape == (strategies + 1,)
    assert (medians < 20).all()


# --- against closed forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "share"), [(2, 1), (3, 1), (8, 1), (3, 0.2)])
def test_two_strategies_whose_seeds_alone_vary_are_a_t_test(seeds, share):
    rng = generator(5)
    values = {name: rng.normal(size=(seeds, 1)) + np.zeros((1, 50)) for name in "ab"}
    estimate = against(ValueTable(values, Design(nested=True, share=share)), "b", generator())["a"]
    difference = (values["a"] - values["b"])[:, 0]
    exact = scipy.stats.ttest_1samp(difference, 0)
    low, high = exact.confidence_interval(1 - 0.05 * share)
    assert estimate.value == pytest.approx(difference.mean())
    assert estimate.interval.high - estimate.interval.low == pytest.approx(high - low, rel=0.06)
    assert estimate.p_value == pytest.approx(exact.pvalue, abs=0.01)


@pytest.mark.parametrize("count", [2, 3])
def test_intervals_of_small_tables_hardly_depend_on_the_draws(count):
    table = table_of([0.5] * count, 3, sd=0.02)
    ends = [against(table, "s0", generator(i))["s1"].interval.high for i in range(20)]
    assert np.std(ends, ddof=1) < 0.03 * np.mean(ends)


@pytest.mark.parametrize(("count", "verdict"), [(90, "undecided"), (1200, "equal")])
def test_queries_that_all_agree_leave_room_for_some_that_do_not(count, verdict, subtests):
    """No difference in n queries: a share of 1 - 0.025^(1/n) is still plausible, too much for "equal" at n = 90."""
    for share in (1, 0.2):
        with subtests.test(share=share):
            values = dict.fromkeys("ab", np.tile(np.arange(count) % 2.0, (2, 1)))
            estimate = against(ValueTable(values, Design(share=share)), "b", generator())["a"]
            most = 1 - (0.025 * share) ** (1 / count)
            assert estimate.interval.high == pytest.approx(most, rel=0.05, abs=1e-4)
            assert estimate.interval.low == -estimate.interval.high
            assert estimate.verdict == verdict


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_values_decide_whether_two_strategies_differ_whatever_stands_beside_them(subtests, seeds):
    """Not draws, whose rounding errors look like differences: the rule of three holds for a pair that never differs."""
    rng = generator(20)
    for queries in (2, 8, 24, 90):
        with subtests.test(queries=queries):
            values = {name: rng.integers(0, 2, (seeds, queries)).astype(float) for name in "acd"}
            values["b"] = values["a"].copy()
            values["e"] = values["a"] + 0.3  # every query differs, and all of them alike
            for names in ("ab", "abc", "abcd", "abcde"):
                with subtests.test(names=names):
                    compared = pairs(ValueTable({name: values[name] for name in names}, Design(draws=400)), generator())
                    most = np.log(2 / 0.05) / (queries - 1)
                    twins = compared.of("a", "b")
                    assert twins.verdict == "undecided"
                    assert twins.p_adjusted == 1
                    assert (twins.models.low, twins.models.high) == pytest.approx((-most, most), abs=1e-4)
                    assert most - 1e-4 < twins.interval.high < 3 * most
                    if names[-1] == "e":
                        above = compared.of("e", "b")
                        assert above.p_value == pytest.approx(min(1, 2 * np.exp(-0.3 * (queries - 1))), abs=0.003)
                        assert (above.p_adjusted <= 0.05) == (above.verdict == "better")
    opposed = {"a": np.array([[1.0, 0.0], [0.0, 1.0]]), "b": np.zeros((2, 2))}  # alike on average, not in any seed
    assert against(ValueTable(opposed), "b", generator())["a"].interval.high > 1


def test_a_mean_of_0_or_1_has_the_interval_of_the_rule_of_three():
    table = ValueTable({"none": np.zeros((1, 24)), "all": np.ones((3, 24)), "some": np.eye(3, 24)})
    most = np.log(2 / 0.05) / 23
    ends = {name: (each.interval.low, each.interval.high) for name, each in summarise(table).items()}
    assert ends["none"] == pytest.approx((0, most), abs=1e-4)
    assert ends["all"] == pytest.approx((1 - most, 1), abs=1e-4)


def test_a_p_value_at_alpha_says_what_the_interval_says():
    """Also as stored, with 10 decimals, and where an end is rounded outwards to 0."""
    rng, near = generator(21), 0
    for number in range(60):
        values = {name: 0.002 * rng.normal(size=(1, 12)) for name in "ab"}  # an end is rounded to 0.0001
        gap = values["a"] - values["b"]
        half = scipy.stats.t.ppf(0.975, 11) * scipy.stats.sem(gap[0])
        values["a"] = values["a"] - gap.mean() + half * rng.choice([0.99, 1, 1.01])
        test = against(ValueTable(values, Design(draws=100)), "b", generator())["a"]
        assert (round(test.p_adjusted, 10) <= 0.05) == (test.interval.low > 0 or test.interval.high < 0), (
            f"table {number}"
        )
        near += abs(test.p_adjusted - 0.05) < 0.01
    assert near > 20


# --- order, threads, kernels ---------------------------------------------------------------------------------------


def random_table(rng):
    """Return the parts of a table, of any design, in which strategies often score alike."""
    count, seeds, queries = int(rng.integers(2, 7)), int(rng.integers(1, 5)), int(rng.choice([4, 8, 24, 60]))
    easy, nested = rng.normal(size=queries), bool(rng.random() < 0.2)
    values = {}
    for k in range(count):
        skill = easy + 0.5 * rng.normal() + rng.choice([0, 0.3, 1]) * rng.normal(size=(seeds, queries))
        values[f"s{k}"] = skill.clip(0, 3) if rng.random() < 0.3 else (skill > rng.choice([0, 2])).astype(float)
    values["s1"] = values["s0"].copy() if rng.random() < 0.5 else values["s0"][::-1].copy()
    rows = {name: list(range(seeds - (seeds > 2 and rng.random() < 0.2))) for name in values}
    values = {name: values[name][: len(seeds)] for name, seeds in rows.items()}
    labels = {} if nested else {name: rng.permutation(np.arange(queries) % 2) for name in ("strata", "clusters")}
    kept = {name: each for name, each in labels.items() if rng.random() < 0.3}
    return values, rows, {"nested": nested, "draws": 60, **kept}


def reordered(parts, rng):
    values, rows, design = parts
    order = rng.permutation(len(values["s0"][0]))
    names = rng.permutation(list(values))
    places = {name: rng.permutation(len(rows[name])) for name in names}
    labels = {name: each[order] for name, each in design.items() if isinstance(each, np.ndarray)}
    seeds = {name: [rows[name][place] for place in places[name]] for name in names}
    return {name: values[name][places[name]][:, order] for name in names}, seeds, design | labels


def test_no_order_of_strategies_seeds_or_queries_moves_a_result():
    rng = generator(22)
    for number in range(40):
        parts = random_table(rng)
        tables = [ValueTable(v, Design(**d), s) for v, s, d in (parts, reordered(parts, rng), reordered(parts, rng))]
        first, *others = (pairs(table, table.generator("key")) for table in tables)
        for (a, b), want in first.differences.items():
            for got in (other.of(a, b) for other in others):
                assert (got.verdict, got.seeds) == (want.verdict, want.seeds), f"table {number}, {a} minus {b}"
                for field in ("value", "p_value", "p_adjusted", "minimum_detectable"):
                    assert getattr(got, field) == pytest.approx(getattr(want, field), abs=1e-9), (
                        f"table {number}, {a} minus {b}"
                    )
                for one, other in ((got.interval, want.interval), (got.models, want.models)):
                    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=1e-9), (
                        f"table {number}, {a} minus {b}"
                    )
    alike = replace(tables[0], values=dict.fromkeys(tables[0].values, np.ones((1, 9))))
    streams = tables[0].generator("key"), tables[0].generator("other"), alike.generator("key")
    assert len({stream.random() for stream in streams}) == 3


def test_seeds_are_told_apart_by_their_values():
    values = {name: generator(n).normal(size=(4, 30)) for n, name in enumerate("abc")}
    turned = ValueTable({name: rows[[2, 0, 3, 1]] for name, rows in values.items()})
    first, second = (pairs(table, table.generator()).differences for table in (ValueTable(values), turned))
    for pair, each in first.items():
        assert each.interval == second[pair].interval, each


@pytest.mark.parametrize(("kernel", "threads"), [("Haswell", 4), ("Prescott", 1)])
def test_pinned_verdicts_are_the_same_in_another_process_with_any_blas_kernel_and_threads(kernel, threads):
    """The first kind of pins: if they change, verdicts change, which CHANGELOG notes under `[scores]`.

    OpenBLAS takes the kernel's name, other libraries do not know it.
    """
    env = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)) | {"OPENBLAS_CORETYPE": kernel}
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_L2_SIZE"} | env
    command, root = [sys.executable, "-m", "tests.pinned.verdicts"], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_seed_is_judged_over_queries():
    rng = generator(6)
    values = {name: rng.normal(size=(1, 400)) for name in "ab"}
    difference = against(ValueTable(values), "b", generator())["a"]
    exact = scipy.stats.ttest_rel(values["a"][0], values["b"][0])
    low, high = exact.confidence_interval(0.95)
    assert (difference.models.low, difference.models.high) == pytest.approx((low, high), abs=0.01)
    assert difference.interval == difference.models
    assert difference.p_value == pytest.approx(exact.pvalue, abs=0.02)


def test_clusters_are_the_units_that_vary():
    rng, clusters = generator(7), np.repeat(np.arange(20), 30)
    values = {"a": rng.normal(size=20)[clusters][None] + 0.001 * rng.normal(size=(1, 600)), "b": np.zeros((1, 600))}
    clustered = against(ValueTable(values, Design(clusters=clusters)), "b", generator())["a"]
    plain = against(ValueTable(values), "b", generator())["a"]
    means = np.array([values["a"][0, clusters == c].mean() for c in range(20)])
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert clustered.models.high - clustered.models.low == pytest.approx(high - low, rel=0.05)
    assert plain.models.high - plain.models.low < 0.3 * (high - low)


def test_a_mean_of_strata_weighs_every_stratum_alike():
    strata = np.array([0] * 10 + [1] * 90)
    table = ValueTable({"a": np.where(strata == 0, 1.0, 0.0)[None], "b": np.zeros((1, 100))}, Design(strata=strata))
    assert against(table, "b", generator())["a"].value == pytest.approx(0.5)
    assert summarise(table)["a"].mean == pytest.approx(0.5)
    noise = table.query_noise(["a", "b"], [0])
    assert noise.factor == pytest.approx(np.zeros((2, 100)), abs=1e-12)  # no variance within a stratum


def test_noise_of_single_runs_is_not_counted_twice():
    """With independent noise in every run, the interval over seeds is the closed form; queries add no extra width."""
    rng = generator(8)
    table = ValueTable({name: rng.normal(size=(40, 200)) for name in "abcd"}, Design(draws=8000))
    noise = table.query_noise(table.names, table.common(table.names))
    np.testing.assert_allclose((noise.luck**2).sum(axis=1), 1 / (40 * 200), rtol=0.1)
    difference = against(table, "a", generator())["b"]
    expected = 2 * 1.96 * np.sqrt(2 / (40 * 200))
    width = scipy.stats.norm.ppf(1 - 0.025 / 3) / 1.96  # about three simultaneous comparisons
    assert difference.interval.high - difference.interval.low == pytest.approx(expected * width, rel=0.2)


def test_nested_worlds_need_no_equal_numbers_of_queries_and_add_no_second_query_term():
    rng = generator(10)
    lengths = (150, 200, 250, 180)
    values = {name: [rng.normal(size=n) + shift for n in lengths] for name, shift in (("a", 1.0), ("b", 0.0))}
    difference = against(ValueTable(values, Design(nested=True)), "b", generator())["a"]
    means = np.array([a.mean() - b.mean() for a, b in zip(values["a"], values["b"], strict=True)])
    assert difference.value == pytest.approx(means.mean())
    assert (difference.seeds, difference.verdict) == (4, "better")
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)  # worlds vary by their queries, too
    assert difference.interval.high - difference.interval.low == pytest.approx(high - low, rel=0.06)
    with pytest.raises(ValueError, match="same number of queries"):
        ValueTable(values)


# --- properties of a table -------------------------------------------------------------------------------------------


def test_ends_of_an_interval_are_rounded_outwards_and_stay_where_they_are_exact():
    exact = _interval(0.5, 0.1, 0.95)
    assert (exact.low, exact.high) == (0.4, 0.6)
    outwards = _interval(0.5, 0.10001, 0.95)
    assert (outwards.low, outwards.high) == (0.3999, 0.6001)


@pytest.mark.parametrize(("count", "times"), [(2, 10), (3, 4), (8, 1)])
def test_a_small_table_or_share_of_alpha_has_more_draws(count, times):
    assert table_of([0.5] * count, draws=100).draws == 100 * times
    assert table_of([0.5] * count, draws=100, share=0.25).draws == 200 * times


def test_verdicts_are_read_from_the_interval():
    design = Design(margin=0.01)
    words = {(0.001, 0.2): "better", (-0.2, -0.001): "worse", (-0.01, 0.01): "equal", (-0.011, 0.01): "undecided"}
    for (low, high), word in words.items():
        assert design.verdict(Interval(low, high, 0.95)) == word, word


def test_pairs_know_ranks_and_both_directions():
    table = table_of([0.5, 0.5, 0.3, 0.0])
    compared = pairs(table, generator())
    assert set(compared.differences) == set(combinations(table.names, 2))
    assert [compared.beaten[name] for name in ("s0", "s3")] == [(), ("s0", "s1", "s2")]
    assert compared.ranks() == {"s0": (1, 2), "s1": (1, 2), "s2": (3, 3), "s3": (4, 4)}
    there, back = compared.of("s0", "s2"), compared.of("s2", "s0")
    assert (there.verdict, back.verdict, back.value) == ("better", "worse", -there.value)
    assert (back.interval.low, back.interval.high) == (-there.interval.high, -there.interval.low)
    assert back.turned() == there
    assert "-0.0" not in str(replace(there, value=0.0, interval=Interval(0.0, 0.0, 0.95)).turned())
    assert pairs(table, generator()).differences == compared.differences
    alike = table_of([0.5] * 8)  # comparisons with a baseline are a smaller family
    every, one = pairs(alike, generator()).of("s1", "s0"), against(alike, "s0", generator())["s1"]
    assert one.interval.high - one.interval.low < every.interval.high - every.interval.low


def test_p_values_and_intervals_are_dual(subtests):
    rng = generator(10)
    for seed in range(5):
        with subtests.test(seed=seed):
            table = table_of(0.5 + 0.004 * rng.normal(size=9), rng=generator(seed))
            for each in against(table, "s0", generator()).values():
                assert (each.p_adjusted <= 0.05) == (each.verdict in ("better", "worse")), each
                assert each.p_value <= each.p_adjusted, each
                assert each.minimum_detectable > (each.interval.high - each.interval.low) / 2 - 1e-3, each


def test_strategies_are_paired_on_the_seeds_that_both_have():
    rng = generator(11)
    rows = {"a": [0, 1, 2, 3], "b": [2, 3, 4], "c": [0, 1, 2, 3, 4]}
    values = {name: rng.normal(size=(len(seeds), 60)) for name, seeds in rows.items()}
    differences = against(ValueTable(values, seeds=rows), "b", generator())
    assert (differences["a"].seeds, differences["c"].seeds) == (2, 3)
    assert differences["a"].value == pytest.approx((values["a"][2:] - values["b"][:2]).mean())
    alone = ValueTable({"a": values["a"][:1], "b": values["b"][2:]}, seeds={"a": [0], "b": [4]})
    assert against(alone, "b", generator()) == {}
    assert pairs(alone, generator()).ranks() == {"a": (1, 2), "b": (1, 2)}
    with pytest.raises(ValueError, match="no seed in common"):
        contrasts(alone, [{"a": 1.0, "b": -1.0}], generator())


def test_a_pair_with_one_common_seed_is_judged_over_queries():
    """Even where other strategies tell how much seeds vary: one seed says nothing about others."""
    rng = generator(21)
    rows = {"a": range(8), "b": range(8), "one": [0]}
    values = {name: rng.normal(size=(len(seeds), 1)) + 0.01 * rng.normal(size=(1, 60)) for name, seeds in rows.items()}
    compared = pairs(ValueTable(values, seeds=rows), generator())
    pair = compared.of("a", "one")
    assert pair.seeds == 1
    assert pair.interval.high - pair.interval.low < 0.02
    several = compared.of("a", "b")
    assert several.interval.high - several.interval.low > 1


def test_summaries_hold_the_mean_and_stay_on_the_scale():
    hits = (generator(12).random((4, 100)) < 0.02).astype(float)
    summaries = summarise(ValueTable({"rare": hits, "one": hits[:1]}, seeds={"rare": [0, 1, 2, 3], "one": [0]}))
    rare = summaries["rare"]
    assert (rare.mean, rare.sd) == pytest.approx((hits.mean(), hits.mean(1).std(ddof=1)))
    assert 0 <= rare.interval.low <= rare.mean <= rare.interval.high
    assert np.isnan(summaries["one"].sd)
    half = scipy.stats.t.ppf(0.975, 99) * scipy.stats.sem(hits[0])  # over the queries of one run, rounded outwards
    assert summaries["one"].interval.high == pytest.approx(hits[0].mean() + half, abs=1e-4)
    assert (rare.seeds, rare.queries) == (4, 100)


def test_a_summary_of_several_seeds_by_hand(subtests):
    rng = generator(15)
    for seeds, seed_sd, query_sd in ((2, 0.1, 0.1), (3, 0.0, 0.3)):  # more variance between seeds, or queries
        with subtests.test(seeds=seeds, seed_sd=seed_sd):
            values = 0.5 + seed_sd * rng.normal(size=(seeds, 1)) + query_sd * rng.normal(size=(1, 60))
            values = values + 0.1 * rng.normal(size=(seeds, 60))
            summary, mean, means = summarise(ValueTable({"a": values}))["a"], values.mean(), values.mean(1)
            alone, over = values.mean(0).var(ddof=1) / 60, means.var(ddof=1) / seeds
            luck = ((values - values.mean(0) - means[:, None] + mean) ** 2).sum() / (seeds * (seeds - 1) * 60**2)
            query = max(alone - luck, 0)
            df = (over + query) ** 2 / (over**2 / (seeds - 1) + query**2 / 59)
            halves = [scipy.stats.t.ppf(0.975, df) * (over + query) ** 0.5, scipy.stats.t.ppf(0.975, 59) * alone**0.5]
            low, high = np.floor(1e4 * (mean - max(halves))), np.ceil(1e4 * (mean + max(halves)))
            assert (summary.interval.low, summary.interval.high) == pytest.approx((low / 1e4, high / 1e4), abs=1e-9)


def test_what_does_not_fit_is_refused(subtests):
    summarise(ValueTable({"a": np.zeros((1, 4))}, Design(strata=np.array([0, 0, 1, 1]))))  # two are enough
    assert ValueTable({"a": np.zeros((1, 2))}).queries("a") == 2
    for change, message in (
        ({"values": {"a": np.zeros((2, 1))}}, "at least 1 seed and 2 queries"),
        ({"values": {"a": np.zeros((2, 5)), "b": np.zeros((2, 6))}}, "same number of queries"),
        ({"values": {"a": np.full((2, 3), np.nan)}}, "not finite"),
        ({"seeds": {"a": [0, 0], "b": [0, 1]}}, "'a' must have a seed of its own for each of its 2 rows"),
        ({"seeds": {"a": [0, 1, 2], "b": [0, 1]}}, "'a' must have a seed of its own"),
        ({"seeds": {"a": [0, 1]}}, "'b' must have a seed of its own"),
        ({"design": Design(strata=np.zeros(4))}, "strata must label each"),
        ({"design": Design(clusters=np.zeros(6))}, "clusters must label each"),
    ):
        with subtests.test(message), pytest.raises(ValueError, match=message):
            ValueTable(**{"values": {"a": np.zeros((2, 5)), "b": np.zeros((2, 5))}} | change)
    with pytest.raises(ValueError, match="not in the table"):
        against(table_of([0.1, 0.2]), "nobody", generator())
    with pytest.raises(ValueError, match="at least 2 queries"):
        summarise(ValueTable({"a": np.zeros((2, 3))}, Design(strata=np.array([0, 0, 1]))))
    assert contrasts(table_of([0.1, 0.2]), [], generator()) == []


# --- simulation: a false verdict in a table is rare, and power is there ---------------------------------------------


def test_false_verdicts_are_rare_and_three_seeds_find_something():
    """Simulate 40 tables of 8 strategies with log-normal sds; bench_statistics.py has the full calibration."""
    rng, false, power = generator(14), 0, 0.0
    for _ in range(40):
        sds, effects = 0.008 * np.exp(0.6 * rng.normal(size=8)), np.array([0.0] * 6 + [0.04] * 2)
        values = {
            f"s{k}": effects[k] + sds[k] * rng.normal(size=(3, 1)) + 0.02 * rng.normal(size=(3, 200)) for k in range(8)
        }
        differences = against(ValueTable(values, Design(draws=1000)), "s0", rng)
        false += any(each.verdict in ("better", "worse") for name, each in differences.items() if name < "s6")
        power += np.mean([differences[name].verdict == "better" for name in ("s6", "s7")]) / 40
    assert false <= 6  # 5 % of 40 plus almost three standard deviations
    assert power > 0.3


def test_one_odd_strategy_keeps_a_variance_of_its_own(monkeypatch):
    """It does not widen the seven that vary alike; where all do, any of them may be odd, which the tail shows."""
    rng = np.random.default_rng(3)
    means = rng.standard_normal((8, 5))
    means[0] *= 4
    alike = rng.standard_normal((8, 5))

    def draw(values: np.ndarray, probability: float) -> np.ndarray:
        monkeypatch.setattr(seed_variance, "_ODD", probability)
        return seed_variance.variance_draws(values, 4000, np.random.default_rng(0))

    pulled, odd = draw(means, 1e-12), draw(means, 0.04)
    assert np.quantile(odd[:, 1:], 0.99) < np.quantile(pulled[:, 1:], 0.99)
    assert np.median(odd[:, 0]) > 10 * np.median(odd[:, 1:])
    usual, wider = draw(alike, 1e-12), draw(alike, 0.04)
    assert np.quantile(wider, 0.99) > np.quantile(usual, 0.99)
    assert np.median(wider) == pytest.approx(np.median(usual), rel=0.1)
