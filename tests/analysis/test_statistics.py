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
    values = {}
    for number, mean in enumerate(means):
        effects_of_seeds = sd * rng.normal(size=(seeds, 1))
        noise = 0.01 * rng.normal(size=(seeds, queries))
        values[f"s{number}"] = mean + easy + effects_of_seeds + noise
    return ValueTable(values, Design(**design))


def width(interval):
    return interval.high - interval.low


# --- variances over seeds ----------------------------------------------------------------------------------------


def test_many_seeds_give_each_strategy_its_own_variance():
    rng = generator(2)
    sds = np.array([1.0, 2.0, 4.0, 0.5])
    common = 10 * rng.normal(size=(1, 400))  # effects of a seed on all strategies cancel in differences
    variances = variance_draws(sds[:, None] * rng.normal(size=(4, 400)) + common, 800, generator())
    assert variances.shape == (800, 4)
    np.testing.assert_allclose(np.sqrt(np.median(variances, axis=0)), sds, rtol=0.12)


def test_few_seeds_borrow_where_strategies_vary_alike():
    """One variance from 20 rows, not 20 with two degrees of freedom."""
    alike = generator(3).normal(size=(20, 3))
    spread = np.quantile(variance_draws(alike, 800, generator()), 0.95, axis=0)
    of_each_row = alike.var(axis=1, ddof=1)
    assert np.ptp(spread) < np.ptp(of_each_row) * 3


def test_few_seeds_do_not_borrow_where_strategies_vary_differently():
    sds = np.where(np.arange(20) < 10, 1.0, 30.0)
    means = generator(3).normal(size=(20, 3)) * sds[:, None]
    medians = np.median(variance_draws(means, 800, generator()), axis=0)
    assert np.median(medians[10:]) > 100 * np.median(medians[:10])


def test_a_strategy_with_few_seeds_or_one_borrows_its_variance():
    means = generator(4).normal(size=(12, 6))
    means[0, 3:] = np.nan
    means[1, 1:] = np.nan
    medians = np.median(variance_draws(means, 800, generator()), axis=0)
    assert (medians > 0.1).all()
    assert (medians < 6).all()


def test_effects_of_a_seed_on_all_strategies_cancel_where_half_of_them_lack_it():
    means = generator(4).normal(size=(12, 6)) + 10 * generator(5).normal(size=(1, 6))
    means[:6, 3:] = np.nan
    assert np.median(variance_draws(means, 800, generator()), axis=0).max() < 2


@pytest.mark.parametrize(
    "means",
    [np.ones((3, 4)), np.ones((2, 1)), np.ones((1, 5)) * np.arange(5)],
    ids=["equal means", "one seed", "one strategy"],
)
def test_differences_that_do_not_vary_have_no_variance(means):
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
    estimate = against(ValueTable(values, Design(nested=True, alpha_part=share)), "b", generator())["a"]
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
            estimate = against(ValueTable(values, Design(alpha_part=share)), "b", generator())["a"]
            most = 1 - (0.025 * share) ** (1 / count)
            assert estimate.interval.high == pytest.approx(most, rel=0.05, abs=1e-4)
            assert estimate.interval.low == -estimate.interval.high
            assert estimate.verdict == verdict


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
@pytest.mark.parametrize("queries", [2, 8, 24, 90])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_values_decide_whether_two_strategies_differ_whatever_stands_beside_them(seeds, queries, names):
    """Not draws, whose rounding errors look like differences: the rule of three holds for a pair that never differs."""
    rng = generator(20)
    values = {name: rng.integers(0, 2, (seeds, queries)).astype(float) for name in "acd"}
    values["b"] = values["a"].copy()
    values["e"] = values["a"] + 0.3  # every query differs, and all of them alike
    compared = pairs(ValueTable({name: values[name] for name in names}, Design(draws=400)), generator())
    most = np.log(2 / 0.05) / (queries - 1)
    twins = compared.of("a", "b")
    assert twins.verdict == "undecided"
    assert twins.p_adjusted == 1
    assert (twins.models.low, twins.models.high) == pytest.approx((-most, most), abs=1e-4)
    assert most - 1e-4 < twins.interval.high < 3 * most
    if "e" in names:
        above = compared.of("e", "b")
        assert above.p_value == pytest.approx(min(1, 2 * np.exp(-0.3 * (queries - 1))), abs=0.003)
        assert (above.p_adjusted <= 0.05) == (above.verdict == "better")


def test_two_strategies_alike_on_average_and_in_no_seed_have_a_wide_interval():
    values = {"a": np.array([[1.0, 0.0], [0.0, 1.0]]), "b": np.zeros((2, 2))}
    assert against(ValueTable(values), "b", generator())["a"].interval.high > 1


def test_a_mean_of_0_or_1_has_the_interval_of_the_rule_of_three():
    table = ValueTable({"none": np.zeros((1, 24)), "all": np.ones((3, 24)), "some": np.eye(3, 24)})
    most = np.log(2 / 0.05) / 23
    summaries = summarise(table)
    none = summaries["none"].interval
    assert (none.low, none.high) == pytest.approx((0, most), abs=1e-4)
    every = summaries["all"].interval
    assert (every.low, every.high) == pytest.approx((1 - most, 1), abs=1e-4)


def test_a_p_value_at_alpha_says_what_the_interval_says():
    """Also as stored, with 10 decimals, and where an end is rounded outwards to 0."""
    rng = generator(21)
    near = 0
    for number in range(60):
        values = {name: 0.002 * rng.normal(size=(1, 12)) for name in "ab"}  # an end is rounded to 0.0001
        gap = values["a"] - values["b"]
        half = scipy.stats.t.ppf(0.975, 11) * scipy.stats.sem(gap[0])
        values["a"] = values["a"] - gap.mean() + half * rng.choice([0.99, 1, 1.01])
        test = against(ValueTable(values, Design(draws=100)), "b", generator())["a"]
        without_zero = test.interval.low > 0 or test.interval.high < 0
        assert (round(test.p_adjusted, 10) <= 0.05) == without_zero, f"table {number}"
        near += abs(test.p_adjusted - 0.05) < 0.01
    assert near > 20


# --- order, threads, kernels ---------------------------------------------------------------------------------------


def random_table(rng):
    """Return a table, of any design, in which strategies often score alike."""
    count = int(rng.integers(2, 7))
    most_seeds = int(rng.integers(1, 5))
    queries = int(rng.choice([4, 8, 24, 60]))
    easy = rng.normal(size=queries)
    nested = bool(rng.random() < 0.2)
    values = {}
    for number in range(count):
        skill = easy + 0.5 * rng.normal() + rng.choice([0, 0.3, 1]) * rng.normal(size=(most_seeds, queries))
        if rng.random() < 0.3:
            values[f"s{number}"] = skill.clip(0, 3)
        else:
            values[f"s{number}"] = (skill > rng.choice([0, 2])).astype(float)
    values["s1"] = values["s0"].copy() if rng.random() < 0.5 else values["s0"][::-1].copy()
    seeds = {}
    for name in values:
        lacks_the_last = most_seeds > 2 and rng.random() < 0.2
        seeds[name] = list(range(most_seeds - 1 if lacks_the_last else most_seeds))
        values[name] = values[name][: len(seeds[name])]
    design = Design(nested=nested, draws=60)
    if not nested:
        strata = rng.permutation(np.arange(queries) % 2)
        clusters = rng.permutation(np.arange(queries) % 2)
        if rng.random() < 0.3:
            design = replace(design, strata=strata)
        if rng.random() < 0.3:
            design = replace(design, clusters=clusters)
    return ValueTable(values, design, seeds)


def reorder(table, rng):
    """Return the table with strategies, seeds and queries in random orders."""
    design = table.design
    order = rng.permutation(len(table.values["s0"][0]))
    for field in ("strata", "clusters"):
        labels = getattr(design, field)
        if labels is not None:
            design = replace(design, **{field: labels[order]})
    values = {}
    seeds = {}
    for name in rng.permutation(list(table.values)):
        order_of_seeds = rng.permutation(len(table.seeds[name]))
        values[name] = table.values[name][order_of_seeds][:, order]
        seeds[name] = [table.seeds[name][index] for index in order_of_seeds]
    return ValueTable(values, design, seeds)


def numbers_of(difference):
    intervals = (difference.interval.low, difference.interval.high, difference.models.low, difference.models.high)
    return (difference.value, difference.p_value, difference.p_adjusted, difference.minimum_detectable, *intervals)


def test_no_order_of_strategies_seeds_or_queries_moves_a_result():
    rng = generator(22)
    for number in range(40):
        table = random_table(rng)
        expected = pairs(table, table.generator("key"))
        for other in (reorder(table, rng), reorder(table, rng)):
            compared = pairs(other, other.generator("key"))
            for (a, b), want in expected.differences.items():
                case = f"table {number}, {a} minus {b}"
                difference = compared.of(a, b)
                assert (difference.verdict, difference.seeds) == (want.verdict, want.seeds), case
                assert numbers_of(difference) == pytest.approx(numbers_of(want), abs=1e-9), case


def test_draws_depend_on_a_tables_key_and_values():
    table = random_table(generator(22))
    of_ones = ValueTable(dict.fromkeys(table.values, np.ones((1, 9))))
    streams = table.generator("key"), table.generator("other"), of_ones.generator("key")
    assert len({stream.random() for stream in streams}) == 3


def test_seeds_are_told_apart_by_their_values():
    values = {name: generator(n).normal(size=(4, 30)) for n, name in enumerate("abc")}
    table = ValueTable(values)
    turned = ValueTable({name: rows[[2, 0, 3, 1]] for name, rows in values.items()})
    differences = pairs(table, table.generator()).differences
    of_turned = pairs(turned, turned.generator()).differences
    for pair, difference in differences.items():
        assert difference.interval == of_turned[pair].interval, pair


@pytest.mark.parametrize(("kernel", "threads"), [("Haswell", 4), ("Prescott", 1)])
def test_pinned_verdicts_are_the_same_in_another_process_with_any_blas_kernel_and_threads(kernel, threads):
    """The first kind of pins: if they change, verdicts change, which CHANGELOG notes under `[scores]`.

    OpenBLAS takes the kernel's name, other libraries do not know it.
    """
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    env["OPENBLAS_CORETYPE"] = kernel
    env.pop("OPENBLAS_L2_SIZE", None)
    command = [sys.executable, "-m", "tests.pinned.verdicts"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True)
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
    rng = generator(7)
    clusters = np.repeat(np.arange(20), 30)
    effects_of_clusters = rng.normal(size=20)[clusters][None]
    values = {"a": effects_of_clusters + 0.001 * rng.normal(size=(1, 600)), "b": np.zeros((1, 600))}
    clustered = against(ValueTable(values, Design(clusters=clusters)), "b", generator())["a"]
    plain = against(ValueTable(values), "b", generator())["a"]
    means = np.array([values["a"][0, clusters == c].mean() for c in range(20)])
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert width(clustered.models) == pytest.approx(high - low, rel=0.05)
    assert width(plain.models) < 0.3 * (high - low)


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
    factor = scipy.stats.norm.ppf(1 - 0.025 / 3) / 1.96  # about three simultaneous comparisons
    assert width(difference.interval) == pytest.approx(expected * factor, rel=0.2)


def test_nested_worlds_need_no_equal_numbers_of_queries_and_add_no_second_query_term():
    rng = generator(10)
    queries_of_worlds = (150, 200, 250, 180)
    values = {
        "a": [rng.normal(size=queries) + 1.0 for queries in queries_of_worlds],
        "b": [rng.normal(size=queries) for queries in queries_of_worlds],
    }
    difference = against(ValueTable(values, Design(nested=True)), "b", generator())["a"]
    means = np.array([a.mean() - b.mean() for a, b in zip(values["a"], values["b"], strict=True)])
    assert difference.value == pytest.approx(means.mean())
    assert (difference.seeds, difference.verdict) == (4, "better")
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)  # worlds vary by their queries, too
    assert width(difference.interval) == pytest.approx(high - low, rel=0.06)
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
    assert table_of([0.5] * count, draws=100, alpha_part=0.25).draws == 200 * times


def test_verdicts_are_read_from_the_interval():
    design = Design(margin=0.01)
    assert design.verdict(Interval(0.001, 0.2, 0.95)) == "better"
    assert design.verdict(Interval(-0.2, -0.001, 0.95)) == "worse"
    assert design.verdict(Interval(-0.01, 0.01, 0.95)) == "equal"
    assert design.verdict(Interval(-0.011, 0.01, 0.95)) == "undecided"


def test_pairs_have_ranks_and_are_those_of_the_same_draws():
    table = table_of([0.5, 0.5, 0.3, 0.0])
    compared = pairs(table, generator())
    assert set(compared.differences) == set(combinations(table.names, 2))
    assert compared.beaten_by["s0"] == ()
    assert compared.beaten_by["s3"] == ("s0", "s1", "s2")
    assert compared.ranks() == {"s0": (1, 2), "s1": (1, 2), "s2": (3, 3), "s3": (4, 4)}
    assert pairs(table, generator()).differences == compared.differences


def test_a_pair_has_both_directions():
    compared = pairs(table_of([0.5, 0.5, 0.3, 0.0]), generator())
    forward = compared.of("s0", "s2")
    back = compared.of("s2", "s0")
    assert (forward.verdict, back.verdict, back.value) == ("better", "worse", -forward.value)
    assert (back.interval.low, back.interval.high) == (-forward.interval.high, -forward.interval.low)
    assert back.reverse() == forward
    assert "-0.0" not in str(replace(forward, value=0.0, interval=Interval(0.0, 0.0, 0.95)).reverse())


def test_comparisons_with_a_baseline_are_a_smaller_family_than_all_pairs():
    table = table_of([0.5] * 8)
    of_all_pairs = pairs(table, generator()).of("s1", "s0")
    with_baseline = against(table, "s0", generator())["s1"]
    assert width(with_baseline.interval) < width(of_all_pairs.interval)


def test_p_values_and_intervals_are_dual(subtests):
    rng = generator(10)
    for seed in range(5):
        with subtests.test(seed=seed):
            table = table_of(0.5 + 0.004 * rng.normal(size=9), rng=generator(seed))
            for name, difference in against(table, "s0", generator()).items():
                assert (difference.p_adjusted <= 0.05) == (difference.verdict in ("better", "worse")), name
                assert difference.p_value <= difference.p_adjusted, name
                assert difference.minimum_detectable > width(difference.interval) / 2 - 1e-3, name


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
    seeds = {"a": range(8), "b": range(8), "one": [0]}
    values = {}
    for name, of_name in seeds.items():
        values[name] = rng.normal(size=(len(of_name), 1)) + 0.01 * rng.normal(size=(1, 60))
    compared = pairs(ValueTable(values, seeds=seeds), generator())
    one_seed = compared.of("a", "one")
    assert one_seed.seeds == 1
    assert width(one_seed.interval) < 0.02
    assert width(compared.of("a", "b").interval) > 1


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


@pytest.mark.parametrize(
    ("seeds", "seed_sd", "query_sd"), [(2, 0.1, 0.1), (3, 0.0, 0.3)], ids=["seeds vary more", "queries vary more"]
)
def test_a_summary_of_several_seeds_by_hand(seeds, seed_sd, query_sd):
    rng = generator(15)
    values = 0.5 + seed_sd * rng.normal(size=(seeds, 1)) + query_sd * rng.normal(size=(1, 60))
    values = values + 0.1 * rng.normal(size=(seeds, 60))
    summary = summarise(ValueTable({"a": values}))["a"]
    mean = values.mean()
    of_seeds = values.mean(axis=1)
    of_queries = values.mean(axis=0)
    rests = values - of_queries - of_seeds[:, None] + mean
    variance_over_seeds = of_seeds.var(ddof=1) / seeds
    variance_of_models = of_queries.var(ddof=1) / 60
    luck = (rests**2).sum() / (seeds * (seeds - 1) * 60**2)
    variance_over_queries = max(variance_of_models - luck, 0)
    variance = variance_over_seeds + variance_over_queries
    df = variance**2 / (variance_over_seeds**2 / (seeds - 1) + variance_over_queries**2 / 59)
    half = max(scipy.stats.t.ppf(0.975, df) * variance**0.5, scipy.stats.t.ppf(0.975, 59) * variance_of_models**0.5)
    low = np.floor(1e4 * (mean - half)) / 1e4
    high = np.ceil(1e4 * (mean + half)) / 1e4
    assert (summary.interval.low, summary.interval.high) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"a": np.zeros((2, 1))}}, "at least 1 seed and 2 queries"),
        ({"values": {"a": np.zeros((2, 5)), "b": np.zeros((2, 6))}}, "same number of queries"),
        ({"values": {"a": np.full((2, 3), np.nan)}}, "not finite"),
        ({"seeds": {"a": [0, 0], "b": [0, 1]}}, "'a' must have a seed of its own for each of its 2 rows"),
        ({"seeds": {"a": [0, 1, 2], "b": [0, 1]}}, "'a' must have a seed of its own"),
        ({"seeds": {"a": [0, 1]}}, "'b' must have a seed of its own"),
        ({"design": Design(strata=np.zeros(4))}, "strata must label each"),
        ({"design": Design(clusters=np.zeros(6))}, "clusters must label each"),
    ],
)
def test_parts_of_a_table_that_do_not_fit_are_refused(change, message):
    parts = {"values": {"a": np.zeros((2, 5)), "b": np.zeros((2, 5))}}
    with pytest.raises(ValueError, match=message):
        ValueTable(**parts | change)


def test_two_queries_are_enough_for_a_table_and_for_a_stratum():
    assert ValueTable({"a": np.zeros((1, 2))}).queries("a") == 2
    summarise(ValueTable({"a": np.zeros((1, 4))}, Design(strata=np.array([0, 0, 1, 1]))))


def test_what_a_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match="not in the table"):
        against(table_of([0.1, 0.2]), "nobody", generator())
    with pytest.raises(ValueError, match="at least 2 queries"):
        summarise(ValueTable({"a": np.zeros((2, 3))}, Design(strata=np.array([0, 0, 1]))))
    assert contrasts(table_of([0.1, 0.2]), [], generator()) == []


# --- simulation: a false verdict in a table is rare, and power is there ---------------------------------------------


def test_false_verdicts_are_rare_and_three_seeds_find_something():
    """Simulate 40 tables of 8 strategies with log-normal sds; bench_statistics.py has the full calibration."""
    rng = generator(14)
    effects = [0.0] * 6 + [0.04] * 2
    with_false_verdicts = 0
    effects_found = 0
    for _ in range(40):
        values = {}
        sds = 0.008 * np.exp(0.6 * rng.normal(size=8))
        for number, (effect, sd) in enumerate(zip(effects, sds, strict=True)):
            values[f"s{number}"] = effect + sd * rng.normal(size=(3, 1)) + 0.02 * rng.normal(size=(3, 200))
        differences = against(ValueTable(values, Design(draws=1000)), "s0", rng)
        verdicts = {name: difference.verdict for name, difference in differences.items()}
        with_false_verdicts += any(verdicts[name] in ("better", "worse") for name in ("s1", "s2", "s3", "s4", "s5"))
        effects_found += [verdicts["s6"], verdicts["s7"]].count("better")
    assert with_false_verdicts <= 6  # 5 % of 40 plus almost three standard deviations
    assert effects_found > 0.3 * 80


def test_one_odd_strategy_keeps_a_variance_of_its_own(monkeypatch):
    """It does not widen the seven that vary alike; where all do, any of them may be odd, which the tail shows."""
    rng = np.random.default_rng(3)
    means = rng.standard_normal((8, 5))
    means[0] *= 4
    alike = rng.standard_normal((8, 5))

    def draw(values: np.ndarray, probability: float) -> np.ndarray:
        monkeypatch.setattr(seed_variance, "_ODD", probability)
        return seed_variance.variance_draws(values, 4000, np.random.default_rng(0))

    pulled = draw(means, 1e-12)
    odd = draw(means, 0.04)
    assert np.quantile(odd[:, 1:], 0.99) < np.quantile(pulled[:, 1:], 0.99)
    assert np.median(odd[:, 0]) > 10 * np.median(odd[:, 1:])
    usual = draw(alike, 1e-12)
    wider = draw(alike, 0.04)
    assert np.quantile(wider, 0.99) > np.quantile(usual, 0.99)
    assert np.median(wider) == pytest.approx(np.median(usual), rel=0.1)
