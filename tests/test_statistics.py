"""Statistics against hand tables, exact enumeration, scipy, loops, and simulated worlds with a known truth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from negbench import statistics as st


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def hits(seed: int, shape: tuple[int, ...], share: float = 0.3) -> np.ndarray:
    return (rng(seed).random(shape) < share).astype(float)


# --- Holm --------------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, running maximum .02 .03 .06 .06
    assert st.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert st.holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert st.holm([0.7, 0.8]) == pytest.approx([1.0, 1.0])
    assert st.holm([]).shape == (0,)


@pytest.mark.parametrize("seed", range(10))
def test_holm_rejects_what_the_step_down_loop_rejects(seed: int) -> None:
    p = np.round(rng(seed).random(9) ** 3, 2)  # rounded: ties too
    for alpha in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        for step, index in enumerate(np.argsort(p, kind="stable")):
            if p[index] > alpha / (len(p) - step):
                break
            rejected.add(int(index))
        assert set(np.flatnonzero(st.holm(p) <= alpha + 1e-12).tolist()) == rejected


# --- randomisation test ------------------------------------------------------------------------------------------


def exact_p(differences: np.ndarray) -> float:
    sums = np.array([np.dot(signs, differences) for signs in product((-1, 1), repeat=len(differences))])
    return float((np.abs(sums) >= abs(differences.sum()) - 1e-9).mean())


@pytest.mark.parametrize("seed", range(6))
def test_single_seed_p_is_the_exact_sign_flip_test(seed: int) -> None:
    values, baseline = hits(seed, (1, 10), 0.7), hits(seed + 100, (1, 10), 0.3)
    want = exact_p((values - baseline)[0])
    got = st.compare(values, baseline, generator=rng(), resamples=20000).p_value
    assert got == pytest.approx(want, abs=4 * np.sqrt(want * (1 - want) / 20000) + 1e-4)


def test_single_seed_p_agrees_with_scipy() -> None:
    values, baseline = rng(1).normal(0.12, 1, (1, 300)), rng(2).normal(0, 1, (1, 300))
    theirs = stats.permutation_test(
        ((values - baseline)[0],),
        lambda d, axis: d.mean(axis=axis),
        permutation_type="samples",
        n_resamples=20000,
        vectorized=True,
        batch=1000,
        rng=rng(3),
    )
    ours = st.compare(values, baseline, generator=rng(4), resamples=20000)
    assert 0.02 < theirs.pvalue < 0.9
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=0.015)


def test_seed_noise_alone_gives_the_t_test() -> None:
    # every query of a seed moves by the same amount: nothing is left for the queries to say
    shifts = np.array([0.3, 0.1, 0.25, 0.4])
    values = np.repeat(shifts[:, None], 50, axis=1)
    found = st.compare(values, np.zeros((4, 50)), generator=rng(), resamples=50000)
    assert found.p_models < 0.001  # these four models surely differ from the baseline; the strategies less surely
    want = stats.ttest_1samp(shifts, 0)
    assert found.p_value == pytest.approx(want.pvalue, abs=0.002)
    interval = want.confidence_interval()
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high), abs=1e-3)


def test_parts_against_loops() -> None:
    values = rng(5).normal(size=(3, 7)) + rng(6).normal(size=(3, 1))
    groups = st._groups(None, 7)
    parts = st._parts(values[None], groups)
    mean, by_seed, by_query = values.mean(), values.mean(axis=1), values.mean(axis=0)
    cross = sum((values[s, q] - by_seed[s] - by_query[q] + mean) ** 2 for s in range(3) for q in range(7)) / (2 * 6)
    assert parts.mean[0] == pytest.approx(mean)
    assert parts.seed[0] == pytest.approx(sum((m - mean) ** 2 for m in by_seed) / 2 / 3)
    assert parts.query[0] == pytest.approx(sum((m - mean) ** 2 for m in by_query) / 6 / 7)
    assert parts.cross[0] == pytest.approx(cross / 21)


# --- a comparison ------------------------------------------------------------------------------------------------


def test_identical_inputs_are_tied() -> None:
    values = hits(0, (3, 100))
    found = st.compare(values, values, generator=rng())
    assert (found.difference, found.p_value, found.p_adjusted, found.effect_size) == (0, 1, 1, 0)
    assert (found.interval.low, found.interval.high, found.minimum_detectable) == (0, 0, 0)
    assert found.verdict == "tied"


def test_swapping_the_two_flips_the_signs_only() -> None:
    values, baseline = hits(0, (3, 400), 0.35), hits(1, (3, 400), 0.3)
    there, back = (st.compare(*pair, generator=rng(2)) for pair in ((values, baseline), (baseline, values)))
    assert there.difference == -back.difference != 0
    assert there.effect_size == -back.effect_size
    assert there.minimum_detectable == back.minimum_detectable
    assert there.p_value == pytest.approx(back.p_value, abs=0.02)  # the seed noise is not mirrored
    assert (there.interval.low, there.interval.high) == pytest.approx(
        (-back.interval.high, -back.interval.low), abs=0.003
    )


def test_difference_and_effect_size_by_hand() -> None:
    values, baseline = np.array([[1.0, 1, 0, 1], [1, 0, 0, 1]]), np.array([[0.0, 1, 0, 0], [0, 0, 0, 0]])
    found = st.compare(values, baseline, generator=rng(), resamples=200)
    per_query = [1.0, 0.0, 0.0, 1.0]  # averaged over the two seeds
    assert found.difference == 0.5
    assert found.effect_size == pytest.approx(0.5 / np.std(per_query, ddof=1))
    assert (found.seeds, found.unpaired_seeds, found.queries, found.single_seed) == (2, 0, 4, False)


@pytest.mark.parametrize(
    ("p", "low", "high", "word"),
    [
        (0.01, 0.002, 0.03, "better"),
        (0.01, -0.03, -0.002, "worse"),
        (0.60, -0.004, 0.003, "tied"),
        (0.01, 0.001, 0.004, "tied"),  # surely not zero, and surely below the margin
        (0.60, -0.005, 0.005, "tied"),  # the margin itself belongs to it
        (0.60, -0.02, 0.03, "underpowered"),
        (0.06, 0.002, 0.03, "underpowered"),  # lost to Holm's correction
        (0.05, 0.002, 0.03, "underpowered"),  # alpha itself does not reject
        (0.04, -0.001, 0.03, "underpowered"),
    ],
)
def test_verdict_table(p: float, low: float, high: float, word: str) -> None:
    assert st.verdict(p, low, high, margin=0.005, alpha=0.05) == word


def test_a_table_gets_all_four_words() -> None:
    base = hits(0, (5, 3000), 0.4)
    noise = hits(1, (5, 3000), 0.5)
    table = {
        "base": base,
        "up": np.where(noise * hits(2, (5, 3000), 0.2) > 0, 1.0, base),
        "down": np.where(noise > 0, 0.0, base),
        "same": base.copy(),
        "noisy": hits(3, (5, 3000), 0.4),
    }
    found = {c.name: c for c in st.compare_table(table, "base", generator=rng())}
    assert {name: c.verdict for name, c in found.items()} == {
        "up": "better",
        "down": "worse",
        "same": "tied",
        "noisy": "underpowered",
    }
    assert found["noisy"].minimum_detectable > 0.005  # why it is not tied
    assert st.holm([c.p_value for c in found.values()]) == pytest.approx([c.p_adjusted for c in found.values()])
    wide = {c.name: c.verdict for c in st.compare_table(table, "base", generator=rng(), margin=0.6)}
    assert set(wide.values()) == {"tied"}


def test_minimum_detectable_by_hand() -> None:
    values, baseline = hits(0, (1, 40), 0.5), hits(1, (1, 40), 0.5)
    error = (values - baseline).std(ddof=1) / np.sqrt(40)
    for others in (1, 3):  # Holm's first step divides alpha by the number of comparisons
        table = {"base": baseline, **{f"s{i}": values for i in range(others)}}
        found = st.compare_table(table, "base", generator=rng())[0].minimum_detectable
        assert found == pytest.approx((stats.t.ppf(1 - 0.025 / others, 39) + stats.t.ppf(0.8, 39)) * error)


def test_one_seed_is_said_and_ignores_seed_noise() -> None:
    values, baseline = hits(0, (1, 500), 0.5), hits(1, (1, 500), 0.3)
    found = st.compare(values, baseline, generator=rng())
    assert found.single_seed
    assert found.p_value == found.p_models
    assert found.verdict == "better"
    assert np.isnan(st.summarise(values, generator=rng()).sd)


def test_only_common_seeds_are_paired() -> None:
    full, part = hits(0, (4, 60)), hits(1, (3, 60))
    table = {"base": full, "other": part}
    labels = {"base": [7, 1, 2, 3], "other": [3, 9, 1]}
    found = st.compare_table(table, "base", seeds=labels, generator=rng())[0]
    direct = st.compare(part[[2, 0]], full[[1, 3]], generator=rng())
    assert found.difference == direct.difference
    assert found.p_value == direct.p_value
    assert (found.seeds, found.unpaired_seeds) == (2, 3)


def test_strategies_with_different_numbers_of_seeds_stand_in_one_table() -> None:
    table = {"base": hits(0, (4, 60)), "one": hits(1, (1, 60)), "three": hits(2, (3, 60))}
    labels = {"base": [0, 1, 2, 3], "one": [2], "three": [0, 1, 3]}
    found = st.compare_table(table, "base", seeds=labels, generator=rng())
    assert [(c.name, c.seeds, c.single_seed) for c in found] == [("one", 1, True), ("three", 3, False)]


# --- strata ------------------------------------------------------------------------------------------------------


def test_strata_give_the_mean_of_category_means() -> None:
    values = np.array([[1.0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 0]])
    strata = np.array(["dress", "dress", "shirt", "shirt", "shirt", "shirt"])
    by_seed = [(1.0 + 0.0) / 2, (0.5 + 0.75) / 2]
    found = st.summarise(values, strata=strata, generator=rng(), resamples=300)
    assert found.mean == pytest.approx(np.mean(by_seed))
    assert found.sd == pytest.approx(np.std(by_seed, ddof=1))
    against = st.compare(values, np.zeros_like(values), strata=strata, generator=rng(), resamples=300)
    assert against.difference == pytest.approx(np.mean(by_seed))


def test_bootstrap_redraws_inside_each_stratum() -> None:
    strata = np.repeat([0, 1], 40)
    values = strata[None].astype(float)  # the strata differ, their queries do not
    found = st.summarise(values, strata=strata, generator=rng(), resamples=300)
    assert (found.interval.low, found.interval.high) == (0.5, 0.5)
    assert st.summarise(values, generator=rng(), resamples=300).interval.low < 0.45


def test_bootstrap_spread_is_that_of_a_stratified_mean() -> None:
    strata = np.repeat([0, 1, 2], [30, 60, 120])
    values = rng(1).normal(size=(1, 210)) * (1 + strata) + strata
    by_stratum = [values[0, strata == g] for g in range(3)]
    want = np.sqrt(sum(part.var() / len(part) for part in by_stratum)) / 3
    found = st.summarise(values, strata=strata, generator=rng(2), resamples=20000).interval
    assert found.high - found.low == pytest.approx(2 * 1.96 * want, rel=0.03)


def test_order_of_queries_does_not_matter_to_the_estimates() -> None:
    values, baseline, strata = hits(0, (3, 50)), hits(1, (3, 50)), np.arange(50) % 3
    order = rng(9).permutation(50)
    first = st.compare(values, baseline, strata=strata, generator=rng())
    second = st.compare(values[:, order], baseline[:, order], strata=strata[order], generator=rng())
    assert first.difference == pytest.approx(second.difference)
    assert first.effect_size == pytest.approx(second.effect_size)
    assert first.minimum_detectable == pytest.approx(second.minimum_detectable)


# --- letters -----------------------------------------------------------------------------------------------------


def test_letters_name_the_beaten() -> None:
    table = {"low": hits(0, (5, 2000), 0.2), "high": hits(1, (5, 2000), 0.5), "also low": hits(2, (5, 2000), 0.2)}
    assert st.letters(table, generator=rng()) == {"low": ("a", ""), "high": ("b", "a c"), "also low": ("c", "")}
    assert st.letters({"alone": hits(0, (2, 9))}, generator=rng()) == {"alone": ("a", "")}


def test_letters_go_on_after_z() -> None:
    assert [st._letter(i) for i in (0, 25, 26, 51, 52)] == ["a", "z", "aa", "az", "ba"]


# --- pooled seed variance ----------------------------------------------------------------------------------------


def test_pooled_seed_variance_is_that_of_a_two_way_table() -> None:
    table = {name: hits(i, (3, 200)) + 0.1 * rng(50 + i).normal(size=(3, 1)) for i, name in enumerate("abcd")}
    means = np.array([v.mean(axis=1) for v in table.values()])
    residual = sum(
        (means[k, s] - means[k].mean() - means[:, s].mean() + means.mean()) ** 2 for k in range(4) for s in range(3)
    )
    rows = {name: [0, 1, 2] for name in table}
    groups = st._groups(None, 200)
    paired = [table[name] - table["a"] for name in "bcd"]
    parts = st._joined([st._parts(d[None], groups) for d in paired])
    pooled = st._with_pooled_seeds(parts, table, rows, groups, paired)
    assert pooled.seed == pytest.approx([2 * residual / 6 / 3] * 3)
    assert pooled.df.tolist() == [6.0] * 3
    # two strategies have nothing to pool: the residuals are their differences
    two = st._with_pooled_seeds(
        st._parts(paired[0][None], groups),
        {n: table[n] for n in "ab"},
        {n: [0, 1, 2] for n in "ab"},
        groups,
        paired[:1],
    )
    assert two.seed[0] == pytest.approx(parts.seed[0])
    assert two.df[0] == 2


def test_pooling_needs_common_seeds() -> None:
    table = {"a": hits(0, (2, 20)), "b": hits(1, (2, 20)), "c": hits(2, (2, 20))}
    labels = {"a": [0, 1], "b": [1, 2], "c": [0, 1]}
    with pytest.raises(ValueError, match="2 seeds that all"):
        st.compare_table(table, "a", seeds=labels, pool_seeds=True, generator=rng())


# --- randomness --------------------------------------------------------------------------------------------------


def test_same_generator_same_answer_and_global_state_untouched() -> None:
    table = {"a": hits(0, (1, 90)), "b": hits(1, (1, 90))}
    before = np.random.get_state()[1].copy()  # noqa: NPY002  # it must not move
    assert st.compare_table(table, "a", generator=rng(5)) == st.compare_table(table, "a", generator=rng(5))
    assert st.compare_table(table, "a", generator=rng(5)) != st.compare_table(table, "a", generator=rng(6))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_blocks_change_no_shape_and_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    values, baseline = hits(0, (3, 64), 0.4), hits(1, (3, 64))
    whole = st.compare(values, baseline, generator=rng())
    monkeypatch.setattr(st, "_CELLS", 64 * 7)
    parts = st.compare(values, baseline, generator=rng())
    assert parts == whole  # 64 queries are whole bytes: the same coins and indices in another cut


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.zeros(5), r"\[seeds, queries\]"),
        (np.zeros((0, 5)), "at least 1 seed"),
        (np.zeros((2, 1)), "2 queries"),
        (np.array([[0.0, np.nan]]), "finite"),
        (np.array([[0.0, np.inf]]), "finite"),
    ],
)
def test_bad_values(values: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        st.summarise(values, generator=rng())
    with pytest.raises(ValueError, match=match):
        st.compare(values, values, generator=rng())


def test_tables_that_do_not_fit() -> None:
    good = {"a": hits(0, (2, 8)), "b": hits(1, (2, 8))}
    with pytest.raises(ValueError, match="baseline 'x'"):
        st.compare_table(good, "x", generator=rng())
    with pytest.raises(ValueError, match="9 queries"):
        st.compare_table({**good, "b": hits(1, (2, 9))}, "a", generator=rng())
    with pytest.raises(ValueError, match="3 seeds"):
        st.compare_table({**good, "b": hits(1, (3, 8))}, "a", generator=rng())
    with pytest.raises(ValueError, match="no seed in common"):
        st.compare_table(good, "a", seeds={"a": [0, 1], "b": [2, 3]}, generator=rng())
    with pytest.raises(ValueError, match="different numbers"):
        st.compare_table(good, "a", seeds={"a": [0, 0], "b": [0, 1]}, generator=rng())
    with pytest.raises(ValueError, match="missing for b"):
        st.compare_table(good, "a", seeds={"a": [0, 1]}, generator=rng())
    with pytest.raises(ValueError, match="strata must have shape"):
        st.compare_table(good, "a", strata=np.zeros(3), generator=rng())
    with pytest.raises(ValueError, match="every stratum"):
        st.compare_table(good, "a", strata=np.array([0] * 7 + [1]), generator=rng())


@pytest.mark.parametrize("options", [{"alpha": 0}, {"alpha": 1}, {"margin": -0.1}, {"resamples": 0}])
def test_options_out_of_range(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        st.compare(hits(0, (2, 8)), hits(1, (2, 8)), generator=rng(), **options)  # type: ignore[arg-type]


def test_table_of_a_baseline_alone_is_empty() -> None:
    assert st.compare_table({"a": hits(0, (2, 8))}, "a", generator=rng()) == []


# --- calibration -------------------------------------------------------------------------------------------------


def test_world_has_the_stated_recall_seed_sd_and_effect() -> None:
    world = st.Simulation(4000, (0.2, 0.5), seed_sd=0.03, preference_sd=1.0)
    first, second = world.draw(60, 5, 0.05, rng())
    assert second.mean() == pytest.approx(0.35, abs=0.01)
    assert first.mean() - second.mean() == pytest.approx(0.05, abs=0.01)
    assert set(np.unique(first)) == {0.0, 0.5, 1.0}
    # between runs of one strategy: the stated sd, and the luck of each query
    runs = second.mean(axis=2)
    assert runs.std(axis=1, ddof=1).mean() / 0.94 == pytest.approx(0.03, rel=0.15)  # 0.94: sd's bias at 5 runs


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_strategy_against_itself_with_other_seeds(seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = st.calibrate(st.Simulation(600, seed_sd=0.01), seeds=seeds, generator=rng(seeds), effects=(0.03, 0.06))
    with capsys.disabled():
        print(f"\n{seeds} seeds: level {found.rejection:.3f}, coverage {found.coverage:.3f}, power {found.power}")
    assert found.simulations == 1000
    assert found.sd == pytest.approx(0.00689, abs=1e-5)
    assert found.ok == (found.rejection <= 0.05 + 2 * found.sd)
    assert found.ok
    assert found.coverage >= 0.95 - 2 * found.sd
    assert found.power[0.03] < found.power[0.06]
    assert found.power[0.06] > (0.5 if seeds == 3 else 0.9)


def test_the_check_can_fail() -> None:
    """One seed knows nothing of seed noise, and its level shows it: what the other seeds are for."""
    found = st.calibrate(st.Simulation(600, seed_sd=0.03), seeds=1, generator=rng(), effects=(), simulations=300)
    assert found.rejection > 0.2
    assert found.coverage < 0.8
    assert not found.ok


def test_coverage_of_the_mean_of_one_strategy() -> None:
    world = st.Simulation(300, (0.3,), seed_sd=0.02)
    runs, _ = world.draw(300, 3, 0.0, rng(1))
    covered = 0
    for values in runs:
        interval = st.summarise(values, generator=rng(2), resamples=400).interval
        covered += interval.low <= 0.3 <= interval.high
    assert 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300) <= covered / 300


def test_calibration_on_supplied_runs() -> None:
    runs = st.Simulation(300, seed_sd=0.02).draw(1, 12, 0.0, rng(3))[0][0]
    found = st.calibrate(runs, seeds=4, generator=rng(4), effects=(0.15,), simulations=400)
    assert found.ok
    assert found.power[0.15] > 0.9
    with pytest.raises(ValueError, match="need 14 runs, got 12"):
        st.calibrate(runs, seeds=7, generator=rng())
    with pytest.raises(ValueError, match="other than 0"):
        st.calibrate(runs, seeds=2, effects=(0.0,), generator=rng())


def test_power_at_the_minimum_detectable_difference_is_about_80_percent() -> None:
    world = st.Simulation(600, seed_sd=0.005)
    groups = st._groups(None, 600)
    first, second = world.draw(200, 10, 0.0, rng(5))
    needed = float(st._minimum_detectable(st._parts(first - second, groups), groups, 0.05).mean())
    found = st.calibrate(world, seeds=10, generator=rng(6), effects=(needed,), simulations=400)
    assert found.power[needed] == pytest.approx(0.8, abs=0.08)
