"""Statistics against hand tables, exact enumeration, scipy, loops, and simulated worlds with a known truth."""

from __future__ import annotations

import time
from dataclasses import FrozenInstanceError, fields
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy import stats

from negbench import statistics as st


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def hits(seed: int, shape: tuple[int, ...], share: float = 0.3) -> np.ndarray:
    return (rng(seed).random(shape) < share).astype(float)


# --- p-values and intervals of a table are dual ------------------------------------------------------------------


def random_table(seed: int) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """2 to 8 strategies of 1 to 5 seeds, some far apart, some alike, some with seeds of their own."""
    draw = rng(seed)
    names, queries = [f"s{i}" for i in range(draw.integers(2, 9))], int(draw.integers(20, 400))
    difficulty, table, seeds = draw.normal(0, 1.5, queries), {}, {}
    for name in names:
        count = int(draw.integers(1, 6))
        logit = difficulty + draw.normal(0, 0.8) + draw.normal(0, 0.2, (count, 1))
        table[name] = (draw.random((count, queries)) < 1 / (1 + np.exp(-logit))).astype(float)
        seeds[name] = [0, *(1 + draw.permutation(6)[: count - 1]).tolist()]
    return table, seeds


@pytest.mark.parametrize("seed", range(60))
def test_better_exactly_where_the_interval_excludes_0(seed: int) -> None:
    table, seeds = random_table(seed)
    alpha, margin = (0.05, 0.005) if seed % 2 else (0.2, 0.05)
    for c in st.compare_table(
        table, "s0", seeds=seeds, alpha=alpha, margin=margin, resamples=1000 - seed % 7, generator=rng()
    ):
        low, high = c.interval.low, c.interval.high
        assert (c.verdict == "better") == (low > 0)
        assert (c.verdict == "worse") == (high < 0)
        assert (c.verdict == "equal") == (low <= 0 <= high and -margin <= low and high <= margin)
        assert low <= c.difference <= high
        assert low >= -1
        assert high <= 1
        assert c.p_models <= c.p_value <= c.p_adjusted
        assert c.models.low >= low
        assert c.models.high <= high
        if min(abs(low), abs(high)) > 1e-4:  # the ends are rounded outwards to 0.01 points
            assert (c.p_adjusted <= alpha) == (low > 0 or high < 0)


def test_all_four_words_come_up_in_those_tables() -> None:
    words = set()
    for seed in range(60):
        table, seeds = random_table(seed)
        words |= {c.verdict for c in st.compare_table(table, "s0", seeds=seeds, margin=0.2, generator=rng())}
    assert words == {"better", "worse", "equal", "undecided"}


def test_ends_are_rounded_outwards_and_stay_on_the_scale() -> None:
    values = np.array([[1.0] * 29 + [0.0]] * 2)  # 96.7 %: an unbounded interval would pass 100 %
    found = st.summarise(values, generator=rng())
    assert found.interval.high == 1
    assert round(1e4 * found.interval.low, 6) == round(1e4 * found.interval.low)
    assert st.summarise(5 * values, generator=rng()).interval.high > 5  # not a share: nothing bounds it
    assert st._interval(0.25006, 0.25, 0.95, (0, 1)) == st.Interval(0.0, 0.5001, 0.95)


def test_the_table_stretches_every_interval_alike_and_holm_is_close() -> None:
    base = hits(0, (1, 4000), 0.4)
    table = {"base": base} | {f"s{i}": hits(i, (1, 4000), 0.4 + 0.006 * i) for i in range(1, 9)}
    whole = st.compare_table(table, "base", generator=rng(1), resamples=20000)
    ratios = []
    for c in whole:
        alone = st.compare(table[c.name], base, generator=rng(2), resamples=20000).interval
        ratios.append((c.interval.high - c.interval.low) / (alone.high - alone.low))
    assert max(ratios) - min(ratios) < 0.05
    # eight independent normal tests would need z at 1 - 0.025 / 8; they share the baseline, so a little less
    sidak, bonferroni = (stats.norm.ppf(1 - q) / stats.norm.ppf(0.975) for q in ((1 - 0.95 ** (1 / 8)) / 2, 0.025 / 8))
    assert np.mean(ratios) > 1.3
    assert np.mean(ratios) < sidak + 0.03 < bonferroni + 0.04
    for c in whole:
        assert c.p_adjusted <= min(1, 8 * c.p_value) + 0.02  # never far above Bonferroni


def test_the_family_wise_error_of_a_table_is_kept() -> None:
    """Six equal strategies of 3 seeds with seed noise: seldom is any called different."""
    world, wrong = st.Simulation(200, seed_sd=0.02), 0
    for seed in range(150):
        draw = rng(seed)
        difficulty = world.difficulty_sd * draw.standard_normal((1, 1, 200))
        table = {str(i): world._runs(difficulty, 3, 0.0, 1.0, draw)[0] for i in range(6)}
        found = st.compare_table(table, "0", generator=draw, resamples=400)
        wrong += any(c.verdict in ("better", "worse") for c in found)
    assert wrong / 150 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 150)


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


def test_parts_of_strata_are_those_of_each_over_the_square_of_their_number() -> None:
    values, strata = rng(7).normal(size=(3, 12)) + rng(8).normal(size=(3, 1)), np.repeat([0, 1, 2], [3, 4, 5])
    parts = st._parts(values[None], st._groups(strata, 12))
    alone = [st._parts(values[None][:, :, strata == g], st._groups(None, 3 + g)) for g in range(3)]
    assert parts.query[0] == pytest.approx(sum(part.query[0] for part in alone) / 9)
    assert parts.cross[0] == pytest.approx(sum(part.cross[0] for part in alone) / 9)
    by_seed = [np.mean([values[s, strata == g].mean() for g in range(3)]) for s in range(3)]
    assert parts.seed[0] == pytest.approx(np.var(by_seed, ddof=1) / 3)


# --- a comparison ------------------------------------------------------------------------------------------------


def test_identical_inputs_are_equal() -> None:
    values = hits(0, (3, 100))
    found = st.compare(values, values, generator=rng())
    assert (found.difference, found.p_value, found.p_adjusted, found.effect_size) == (0, 1, 1, 0)
    assert (found.interval.low, found.interval.high, found.minimum_detectable) == (0, 0, 0)
    assert found.verdict == "equal"


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
    assert (found.seeds, found.unpaired_seeds, found.queries) == (2, 0, 4)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.002, 0.03, "better"),
        (-0.03, -0.002, "worse"),
        (-0.004, 0.003, "equal"),
        (0.001, 0.004, "better"),  # surely not zero, though surely below the margin
        (-0.005, 0.005, "equal"),  # the margin itself belongs to it
        (-0.02, 0.03, "undecided"),
        (0.0, 0.03, "undecided"),  # 0 lies inside
        (0.0, 0.003, "equal"),
    ],
)
def test_verdict_table(low: float, high: float, word: str) -> None:
    assert st.verdict(low, high, margin=0.005) == word


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
        "same": "equal",
        "noisy": "undecided",
    }
    assert found["noisy"].minimum_detectable > 0.005  # why it is not equal
    wide = {c.name: c.verdict for c in st.compare_table(table, "base", generator=rng(), margin=0.6)}
    assert wide == {"up": "better", "down": "worse", "same": "equal", "noisy": "equal"}


def test_minimum_detectable_by_hand() -> None:
    values, baseline = hits(0, (1, 40), 0.5), hits(1, (1, 40), 0.5)
    error = (values - baseline).std(ddof=1) / np.sqrt(40)
    for others in (1, 3):  # Holm's first step divides alpha by the number of comparisons
        table = {"base": baseline, **{f"s{i}": values for i in range(others)}}
        found = st.compare_table(table, "base", generator=rng())[0].minimum_detectable
        assert found == pytest.approx((stats.t.ppf(1 - 0.025 / others, 39) + stats.t.ppf(0.8, 39)) * error)


@pytest.mark.parametrize("seed_sd", [0.0, 2.0])
def test_minimum_detectable_of_several_seeds_by_hand(seed_sd: float) -> None:
    """Seeds and queries both vary: Satterthwaite's degrees of freedom; never below what the queries alone ask for."""
    values = rng(3).normal(size=(3, 8)) + rng(4).normal(size=(1, 8)) + seed_sd * rng(5).normal(size=(3, 1))
    mean, by_seed, by_query = values.mean(), values.mean(axis=1), values.mean(axis=0)
    seed, query = np.var(by_seed, ddof=1) / 3, np.var(by_query, ddof=1) / 8
    cross = ((values - by_seed[:, None] - by_query + mean) ** 2).sum() / (2 * 7) / 24
    assert 0 < cross < query
    total = seed + query - cross
    df = total**2 / (seed**2 / 2 + (query - cross) ** 2 / 7)
    both, alone = (
        (stats.t.ppf(0.975, nu) + stats.t.ppf(0.8, nu)) * np.sqrt(variance)
        for variance, nu in ((total, df), (query, 7))
    )
    assert (both > alone) == (seed_sd > 0)
    found = st.compare(values, np.zeros((3, 8)), generator=rng(), resamples=200)
    assert found.minimum_detectable == pytest.approx(max(both, alone))


def test_one_seed_is_said_and_ignores_seed_noise() -> None:
    values, baseline = hits(0, (1, 500), 0.5), hits(1, (1, 500), 0.3)
    found = st.compare(values, baseline, generator=rng())
    assert found.seeds == 1
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
    assert [(c.name, c.seeds) for c in found] == [("one", 1), ("three", 3)]


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


@pytest.mark.parametrize(("query_sd", "seed_sd"), [(0.0, 0.02), (0.3, 0.0), (0.3, 0.04)])
def test_spread_over_seeds_and_queries_is_that_of_its_parts(query_sd: float, seed_sd: float) -> None:
    """What of the queries' spread is not the noise of the runs, and Student's t of the seeds, drawn here from scipy."""
    values = 0.3 * rng(1).normal(size=(5, 400)) + query_sd * rng(2).normal(size=400)
    values += seed_sd * rng(3).normal(size=(5, 1))
    parts = st._parts(values[None], st._groups(None, 400))
    kept = max(0.0, float(parts.query[0] - parts.cross[0]))
    drawn = np.sqrt(kept) * rng(4).normal(size=200_000)
    drawn += np.sqrt(parts.seed[0]) * stats.t.rvs(4, size=200_000, random_state=rng(5))
    half = max(np.quantile(np.abs(drawn), 0.95), 1.96 * np.sqrt(parts.query[0]))
    found = st.summarise(values, generator=rng(6), resamples=20000)
    assert found.interval.high - found.interval.low == pytest.approx(2 * half, rel=0.04)
    assert found.models.high - found.models.low == pytest.approx(2 * 1.96 * np.sqrt(parts.query[0]), rel=0.04)


def test_order_of_queries_does_not_matter_to_the_estimates() -> None:
    values, baseline, strata = hits(0, (3, 50)), hits(1, (3, 50)), np.arange(50) % 3
    order = rng(9).permutation(50)
    first = st.compare(values, baseline, strata=strata, generator=rng())
    second = st.compare(values[:, order], baseline[:, order], strata=strata[order], generator=rng())
    assert first.difference == pytest.approx(second.difference)
    assert first.effect_size == pytest.approx(second.effect_size)
    assert first.minimum_detectable == pytest.approx(second.minimum_detectable)


# --- all pairs ---------------------------------------------------------------------------------------------------


def test_each_row_names_those_that_beat_it() -> None:
    table = {"low": hits(0, (5, 2000), 0.2), "high": hits(1, (5, 2000), 0.5), "also low": hits(2, (5, 2000), 0.2)}
    assert st.pairs(table, generator=rng()).beaten() == {"low": ("high",), "high": (), "also low": ("high",)}
    assert st.pairs({"alone": hits(0, (2, 9))}, generator=rng()).beaten() == {"alone": ()}


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_the_paired_tests_one_by_one(seed: int) -> None:
    """A pair's win needs its own test to reject too; with two strategies there is nothing to adjust for."""
    table = {name: hits(10 * seed + i, (3, 300), 0.2 + 0.15 * i) for i, name in enumerate("abcd")}
    found = st.pairs(table, generator=rng(seed)).beaten()
    for loser, winners in found.items():
        for winner in winners:
            alone = st.compare(table[winner], table[loser], generator=rng(seed))
            assert alone.verdict == "better"
            two = st.pairs({k: table[k] for k in (winner, loser)}, generator=rng(seed))
            assert two.beaten()[loser] == (winner,)
            assert two.of(winner, loser).interval == alone.interval
    assert "d" in found["a"]


def test_pairs_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {name: hits(i, (3, 64), 0.2 + 0.15 * i) for i, name in enumerate("abcd")}
    whole = st.pairs(table, generator=rng())
    monkeypatch.setattr(st, "_CELLS", 64 * 7)
    assert st.pairs(table, generator=rng()) == whole


def pairs_of(means: dict[str, float], decided: set[tuple[str, str]]) -> st.Pairs:
    """Differences between these means, of which the named ones exclude 0."""
    found = {}
    for a, b in combinations(means, 2):
        gap = means[a] - means[b]
        half = abs(gap) / 2 if {(a, b), (b, a)} & decided else abs(gap) + 0.1
        found[a, b] = st.Effect(gap, st.Interval(gap - half, gap + half, 0.95), 0.0)
    return st.Pairs(tuple(means), means, found)


def test_letters_by_hand() -> None:
    """The textbook case: the middle one shares a letter with either side, the ends share none."""
    means = {"low": -0.3, "middle": -0.2, "high": -0.1}
    assert pairs_of(means, {("low", "high")}).letters() == {"high": "a", "middle": "ab", "low": "b"}
    assert pairs_of(means, set()).letters() == dict.fromkeys(means, "a")
    every = set(combinations(means, 2))
    assert pairs_of(means, every).letters() == {"high": "a", "middle": "b", "low": "c"}
    assert pairs_of(means, every).of("low", "high").value == pytest.approx(-0.2)
    assert pairs_of(means, every).of("high", "low").interval.low > 0


@pytest.mark.parametrize("seed", range(20))
def test_letters_are_shared_by_those_that_are_not_decided(seed: int) -> None:
    """By brute force: two share a letter exactly where their pair is open, and no letter could be left out."""
    generator = rng(seed)
    means = {name: float(value) for name, value in zip("abcdefg", generator.normal(size=7), strict=True)}
    decided = {pair for pair in combinations(means, 2) if generator.random() < 0.5}
    letters = pairs_of(means, decided).letters()
    for pair in combinations(means, 2):
        assert bool(set(letters[pair[0]]) & set(letters[pair[1]])) == (pair not in decided)
    for letter in set("".join(letters.values())):
        members = {name for name, own in letters.items() if letter in own}
        for other in set(means) - members:
            assert any(tuple(sorted((other, m))) in decided for m in members)
    assert letters[max(means, key=means.__getitem__)].startswith("a")


def test_thirty_groups_take_less_than_two_seconds() -> None:
    """Five seeds of 6,000 queries: means, a baseline and all 435 pairs (docs/performance.md has the figure)."""
    table = {f"s{i}": hits(i, (5, 6000), 0.3) for i in range(30)}
    started = time.process_time()
    st.summarise_table(table, generator=rng())
    st.compare_table(table, "s0", generator=rng())
    st.pairs(table, generator=rng())
    assert time.process_time() - started < 4  # 0.7 s on the machine of docs/performance.md, with room for a slower one


# --- factors -----------------------------------------------------------------------------------------------------


def design(effects: dict[str, float], noise: float, seed: int = 0) -> dict[frozenset[str], np.ndarray]:
    """2^k cells [4, 80]: the sum of the effects whose factors ("a", "ab") are all on, over a base and common noise."""
    factors = sorted({f for name in effects for f in name})
    base = rng(seed).normal(size=(4, 80))
    cells: dict[frozenset[str], np.ndarray] = {}
    for bits in product((0, 1), repeat=len(factors)):
        on = frozenset(f for f, bit in zip(factors, bits, strict=True) if bit)
        own = noise * rng(seed + 1 + len(cells)).normal(size=base.shape)
        cells[on] = base + own + sum(e for name, e in effects.items() if set(name) <= on)
    return cells


def test_an_additive_design_has_no_interactions() -> None:
    found = st.factorial(design({"a": 0.3, "b": -0.1, "c": 0.05}, 0), generator=rng())
    assert found.total.value == pytest.approx(0.25)
    assert {k: v.value for k, v in found.shares.items()} == pytest.approx({"a": 0.3, "b": -0.1, "c": 0.05})
    for factors, term in found.terms.items():
        want = {"a": 0.3, "b": -0.1, "c": 0.05}.get("".join(factors), 0.0)
        assert term.value == pytest.approx(want, abs=1e-12)
        assert term.interval.low - 1e-4 <= want <= term.interval.high + 1e-4
    assert (found.seeds, found.queries) == (4, 80)


def test_interactions_are_shared_equally() -> None:
    found = st.factorial(design({"a": 0.3, "b": 0.1, "ab": 0.2, "c": 0.0, "abc": -0.3}, 0), generator=rng())
    shares = {k: v.value for k, v in found.shares.items()}
    assert shares == pytest.approx({"a": 0.3 + 0.1 - 0.1, "b": 0.1 + 0.1 - 0.1, "c": -0.1})
    assert found.terms["a", "b"].value == pytest.approx(0.2)
    assert found.terms["a", "b", "c"].value == pytest.approx(-0.3)
    assert found.terms["a", "c"].value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_parts_sum_to_the_total_and_shares_are_means_over_orders(seed: int) -> None:
    cells = design({"a": 0.1, "b": 0.2, "c": 0.1, "ab": 0.3}, 0.5, seed)
    found = st.factorial(cells, generator=rng(seed), resamples=500)
    v = {on: values.mean() for on, values in cells.items()}
    assert found.total.value == pytest.approx(v[frozenset("abc")] - v[frozenset()])
    for parts in (found.shares, found.terms):
        assert sum(part.value for part in parts.values()) == pytest.approx(found.total.value)
    for factor, share in found.shares.items():
        steps = []
        for order in permutations("abc"):
            before = frozenset(order[: order.index(factor)])
            steps.append(v[before | {factor}] - v[before])
        assert share.value == pytest.approx(np.mean(steps))
        assert share.interval.low < share.value < share.interval.high


def test_intervals_of_factors_are_those_of_the_paired_contrast() -> None:
    """One factor: share, term and total are the paired comparison of its two cells."""
    values, base = hits(0, (4, 300), 0.6), hits(1, (4, 300), 0.4)
    found = st.factorial({frozenset(): base, frozenset({"x"}): values}, generator=rng(), resamples=20000)
    alone = st.compare(values, base, generator=rng(1), resamples=20000)
    for part in (found.total, found.shares["x"], found.terms[("x",)]):
        assert part.value == pytest.approx(alone.difference)
        # three copies of one contrast, each with seed noise of its own: at least as wide
        assert alone.interval.low + 0.01 > part.interval.low > alone.interval.low - 0.05
        assert part.p_adjusted <= 0.05


def test_a_design_needs_all_its_cells() -> None:
    cells = design({"a": 0.1, "b": 0.2}, 0.1)
    del cells[frozenset("b")]
    with pytest.raises(ValueError, match=r"2 factors needs 4 cells; missing: \[\('b',\)\]"):
        st.factorial(cells, generator=rng())


# --- randomness --------------------------------------------------------------------------------------------------


def test_same_generator_same_answer_and_global_state_untouched() -> None:
    table = {"a": hits(0, (1, 90)), "b": hits(1, (1, 90))}
    before = np.random.get_state()[1].copy()  # noqa: NPY002  # it must not move
    assert st.compare_table(table, "a", generator=rng(5)) == st.compare_table(table, "a", generator=rng(5))
    assert st.compare_table(table, "a", generator=rng(5)) != st.compare_table(table, "a", generator=rng(6))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize("cells", [64 * 7, 10])  # blocks of seven draws, and of one where not even that fits
def test_blocks_change_no_shape_and_no_estimate(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    values, baseline = hits(0, (3, 64), 0.4), hits(1, (3, 64))
    whole = st.compare(values, baseline, generator=rng())
    monkeypatch.setattr(st, "_CELLS", cells)
    parts = st.compare(values, baseline, generator=rng())
    assert parts == whole  # 64 queries are whole bytes: the same coins and indices in another cut


def test_what_is_found_cannot_be_changed() -> None:
    """Two equal results are one key of a table, and a result that is shared stays what it was."""
    table = {"a": hits(0, (2, 9)), "b": hits(1, (2, 9))}
    (found,), pairs = st.compare_table(table, "a", generator=rng()), st.pairs(table, generator=rng())
    cells = design({"a": 0.1}, 0.1)
    results = (found, found.interval, pairs, pairs.of("a", "b"), st.summarise(table["a"], generator=rng()))
    for result in (*results, st.factorial(cells, generator=rng()), st.Simulation(9), st.Calibration(0, 0, {}, 1, 0.1)):
        name = fields(result)[0].name
        with pytest.raises(FrozenInstanceError):
            setattr(result, name, getattr(result, name))


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
        print(f"\n{seeds} seeds: level {found.rejection:.3f}, power {found.power}")
    assert found.simulations == 1000
    assert found.sd == pytest.approx(0.00689, abs=1e-5)
    assert found.ok == (found.rejection <= 0.05 + 2 * found.sd)
    assert found.ok
    assert found.power[0.03] < found.power[0.06]
    assert found.power[0.06] > (0.5 if seeds == 3 else 0.9)


def test_the_check_can_fail() -> None:
    """One seed knows nothing of seed noise, and its level shows it: what the other seeds are for."""
    found = st.calibrate(st.Simulation(600, seed_sd=0.03), seeds=1, generator=rng(), effects=(), simulations=300)
    assert found.rejection > 0.2
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
