"""Calibration of negbench.analysis: bench_statistics.py [--full] [--looks, --best, --rates, --odd, --ends]

For each setting, simulates tables of hits and misses in which a third of the strategies is truly 3 points better than
the rest. A verdict is false if it calls a difference of 0, has the wrong sign, or says "equal" at a true difference of
the margin or more; the rate is the share of tables with any false verdict. Power is the share of true differences that
are called. `--looks` simulates all of `--until decided`: strategies that are 0, 0.5, 1 and 3 points better, looks after
3, 5, 8, ... seeds, decided strategies that stop. `--best` does so for `--pairs best` and other orders of strategies; in
the first tenth of the tables it also counts the runs of `--pairs all`. `--rates` simulates rules by which learning
rates are chosen, `--odd` a row whose runs vary unlike the others', judged
with and without the prior that allows for it, `--ends` which runs are called collapsed. `--part I
N` runs one of N parts of the settings, `--full` prints the table of docs/statistics.md (1,000 tables per setting; hours
of one core); 40 tables take a few minutes.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from negbench.analysis import seed_variance
from negbench.analysis.collapse import bound
from negbench.analysis.differences import Differences, differences
from negbench.analysis.setting_choice import SettingChoice, draw_shortfalls
from negbench.analysis.statistics import Design, Difference, ValueTable, against, pairs
from negbench.grid.looks import Looks
from negbench.grid.setting import TrialSetting, best_setting
from negbench.grid.setting_trials import MORE
from negbench.scoring.values import Values
from negbench.settings.options import PairsToDecide

Tests = dict[tuple[str, str], Difference]
EFFECT, MARGIN, DIFFICULTY = 0.03, 0.01, 3.0
UNTRAINED = 0.02  # where collapsed runs end
EFFECTS = (0.0, 0.005, 0.01, 0.03)  # of the strategies in turn, with `--looks`
ORDERS = {  # of nine strategies, with `--best`
    "all equal": (0.0,) * 9,
    "one ahead by the margin": (0.01, *(0.0,) * 8),
    "two equal leaders": (0.03, 0.03, *(0.0,) * 7),
    "one behind collapses": (0.03, *(0.0,) * 8),
    "the leader collapses": (*(0.0,) * 8, 0.03),
}


@dataclass(frozen=True)
class Setting:
    """A population of tables; `sds`: distribution of the sds over seeds, `preference`: sd of a logit over queries."""

    family: PairsToDecide = "baseline"  # or "all", "best"
    seeds: int = 3
    rows: int = 11
    queries: int = 1200
    sds: str = "equal"  # or "log-normal", "heavy-tailed"
    preference: float = 0.0
    clusters: int = 0
    nested: bool = False
    looks: bool = False  # `seeds` is then the number at the last look
    order: str = ""  # a key of `ORDERS`
    collapse: float = 0.0  # how often a run of the last strategy collapses
    odd: float | None = None  # further sd over seeds of the first strategy; the others have 0.3 points
    equal: bool = False  # no strategy is better than another
    alpha: float = 0.05

    def spread(self, rng: np.random.Generator) -> np.ndarray:
        if self.odd is not None:
            sds = np.full(self.rows, 0.003)
            sds[0] = np.hypot(0.003, self.odd)
            return sds
        if self.sds == "equal":
            return np.full(self.rows, 0.005)
        if self.sds == "log-normal":
            return 0.008 * np.exp(0.6 * rng.standard_normal(self.rows))
        return 0.006 / np.sqrt(rng.chisquare(3, self.rows) / 3)

    def table(self, rng: np.random.Generator) -> tuple[ValueTable, np.ndarray]:
        """Draw a table of values and return it with the true differences to the first strategy."""
        effects = np.zeros(self.rows)
        if not self.equal:
            effects[self.rows - self.rows // 3 :] = EFFECT
        if self.looks:
            effects = np.array(ORDERS[self.order]) if self.order else np.resize(EFFECTS, self.rows)
        worlds = self.seeds if self.nested else 1
        units = np.arange(self.queries) if not self.clusters else rng.integers(self.clusters, size=self.queries)

        def by_query(sd: float) -> np.ndarray:
            """Draw a normal term for each query of each world, equal within a cluster."""
            drawn = rng.standard_normal((worlds, self.clusters or self.queries))
            return sd * drawn[:, units]

        difficulty = by_query(DIFFICULTY)
        slope = (logit_of(0.301, DIFFICULTY) - logit_of(0.299, DIFFICULTY)) / 0.002
        values = {}
        for k, sd in enumerate(self.spread(rng)):
            wide = float(np.hypot(DIFFICULTY, self.preference))
            level: np.ndarray | float = logit_of(0.3 + effects[k], wide)
            if self.collapse and k == self.rows - 1:
                fell = rng.random((self.seeds, 1)) < self.collapse
                level = np.where(fell, logit_of(UNTRAINED, wide), level)
                effects[k] += self.collapse * (UNTRAINED - 0.3 - effects[k])
            moved = level + difficulty + by_query(self.preference) + sd * slope * rng.standard_normal((self.seeds, 1))
            values[f"s{k}"] = (scipy.special.logit(rng.random((self.seeds, self.queries))) < moved).astype(float)
        clusters = units if self.clusters else None
        design = Design(nested=self.nested, clusters=clusters, margin=MARGIN, alpha=self.alpha)
        return ValueTable(values, design), effects


_LOGITS: dict[tuple[float, float], float] = {}


def logit_of(recall: float, sd: float) -> float:
    """Return the mean logit that gives `recall` if queries add a normal term of this sd."""
    if (recall, sd) not in _LOGITS:
        steps = sd * scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)

        def excess(logit: float) -> float:
            return scipy.special.expit(logit + steps).mean() - recall

        _LOGITS[recall, sd] = scipy.optimize.brentq(excess, -60, 60)
    return _LOGITS[recall, sd]


def is_false(difference: Difference, true: float) -> bool:
    if difference.verdict == "equal":
        return abs(true) >= MARGIN
    return difference.verdict != "undecided" and difference.value * true <= 0


def any_false(tests: Tests, gaps: Mapping[tuple[str, str], float]) -> bool:
    """Return whether a verdict is false, given the true differences of the same pairs."""
    return any(is_false(test, gaps[pair]) for pair, test in tests.items())


def judge_tables(setting: Setting, tables: int, seed: int) -> tuple[float, float, float]:
    """Return the share of tables with a false verdict, the share of true differences found, and seconds per table."""
    rng = np.random.default_rng(seed)
    false = 0
    power = 0.0
    spent = 0.0
    for _ in range(tables):
        table, effects = setting.table(rng)
        true = dict(zip(table.names, effects, strict=True))
        started = time.perf_counter()
        if setting.family == "all":
            tests = dict(pairs(table, rng).differences)
        else:
            tests = {(name, "s0"): test for name, test in against(table, "s0", rng).items()}
        spent += time.perf_counter() - started
        gaps = {(one, other): true[one] - true[other] for one, other in tests}
        false += any_false(tests, gaps)
        called = []
        for pair, gap in gaps.items():
            if gap:
                called.append(tests[pair].verdict != "undecided" and not is_false(tests[pair], gap))
        if called:
            power += float(np.mean(called)) / tables
    return false / tables, power, spent / tables


@dataclass(frozen=True)
class Look:
    """What is known after a look.

    Attributes:
        seeds: of every strategy.
        family: the differences that are judged.
        undecided: those of them that are left to decide.
        differences: all of them.
    """

    seeds: dict[str, int]
    family: Tests
    undecided: Tests
    differences: Differences


def replay(
    whole: Mapping[str, Values], looks: Looks, baseline: str | None, blocks: Mapping[str, float] | None = None
) -> Iterator[Look]:
    """Yield what is known after each look, of runs that are computed as `--until decided` would."""
    seeds = dict.fromkeys(whole, 0)
    running = set(whole)
    latest = None
    for count, share in zip(looks.counts, looks.shares, strict=True):
        seeds |= dict.fromkeys(running, count)
        subset = {name: values.of_seeds(values.seeds[: seeds[name]]) for name, values in whole.items()}
        now = differences(subset, baseline, alpha_part=share)
        latest = now if latest is None else now.after(latest)
        family = dict(latest.pairs.differences)
        if looks.pairs == "baseline":
            family = {(name, str(baseline)): test for name, test in latest.against.items()}
        out = {name for name, values in subset.items() if fallen(values.values.mean(axis=1)).any()}
        undecided = latest.find_undecided(
            looks.pairs, baseline, blocks or dict.fromkeys(whole, 1.0), out, margin=MARGIN
        )
        running &= {name for pair in undecided for name in pair}
        yield Look(dict(seeds), family, undecided, latest)


def fallen(means: np.ndarray) -> np.ndarray:
    """Return [S] whether each of a strategy's runs is called collapsed."""
    return means < bound(UNTRAINED, float(means.max()))


def simulate(setting: Setting, rng: np.random.Generator) -> tuple[dict[str, Values], dict[str, float]]:
    """Draw a table; return its values and the true differences to its first strategy."""
    table, effects = setting.table(rng)
    seeds = tuple(range(setting.seeds))
    whole = {name: Values(rows, seeds, None, nested=setting.nested) for name, rows in table.values.items()}
    return whole, dict(zip(table.names, effects, strict=True))


def first_place(setting: Setting, tables: int, seed: int) -> tuple[float, float, float, float]:
    """Return shares of tables with a false verdict and with a decided first place, mean seeds, runs relative to all.

    It is also false to call a strategy first within the margin if another is truly a margin or more ahead of it.
    """
    rng = np.random.default_rng(seed)
    false = 0
    ended = 0
    used: dict[str, list[int]] = {"best": [], "all": []}
    for number in range(tables):
        whole, true = simulate(setting, rng)
        if number < tables / 10:
            *_, last = replay(whole, Looks((0, 1, 2), setting.seeds, "all"), None)
            used["all"].append(sum(last.seeds.values()))
        *_, last = replay(whole, Looks((0, 1, 2), setting.seeds, "best"), None)
        used["best"].append(sum(last.seeds.values()))
        gaps = {(one, other): true[one] - true[other] for one, other in last.family}
        first = {name for name in whole if last.differences.behind_at_most(name, whole) <= MARGIN}
        least = max(true.values()) - MARGIN + 1e-9
        false += any_false(last.family, gaps) or any(true[name] < least for name in first)
        ended += not last.undecided
    share = sum(used["best"][: len(used["all"])]) / sum(used["all"])
    return false / tables, ended / tables, float(np.mean(used["best"])) / setting.rows, share


def judge_looks(setting: Setting, tables: int, seed: int) -> tuple[float, list[float], float]:
    """Return the share of tables with a false verdict, the share decided per true gap, and the mean seeds."""
    rng = np.random.default_rng(seed)
    looks = Looks((0, 1, 2), setting.seeds, setting.family)
    false = 0
    used = 0.0
    decided = {round(gap, 3): list[bool]() for gap in EFFECTS}
    for _ in range(tables):
        whole, true = simulate(setting, rng)
        *_, last = replay(whole, looks, "s0")
        gaps = {(one, other): true[one] - true[other] for one, other in last.family}
        false += any_false(last.family, gaps)
        used += float(np.mean(list(last.seeds.values()))) / tables
        for pair, gap in gaps.items():
            decided.setdefault(round(abs(gap), 3), []).append(last.family[pair].verdict != "undecided")
    return false / tables, [float(np.mean(decided[round(gap, 3)])) for gap in EFFECTS], used


@dataclass(frozen=True)
class RateSetting:
    """Two strategies, of which one is best at the configured rate and the other at a multiple of it.

    Both have 50 % at their best rates, and lose 2 points at a factor of 3 from it, 8 at one of 9. A run moves all its
    queries by a normal term of 0.5 points.

    Attributes:
        factor: of the second one's best rate, in powers of 3.
        dev, seeds: queries and seeds of the trials.
        ahead: how far the first one is truly ahead, each at its best rate.
    """

    factor: int
    dev: int
    seeds: int = 3
    ahead: float = 0.0

    def recall(self, strategy: int, step: int) -> float:
        """Return a strategy's true recall at 3^step times the configured rate."""
        best = self.factor if strategy else 0
        ahead = 0.0 if strategy else self.ahead
        return max(0.5 + ahead - 0.02 * (step - best) ** 2, 0.01)


STEPS = (-1, 0, 1)  # powers of 3 tried first
TEST_QUERIES, TEST_SEEDS, RUN_SD = 2000, 8, 0.005
FIRST_SLOPE = (logit_of(0.501, DIFFICULTY) - logit_of(0.499, DIFFICULTY)) / 0.002


def hits_at(recall: float, seeds: int, difficulty: np.ndarray, rng: np.random.Generator) -> Values:
    """Draw hits of runs with this true recall."""
    level = logit_of(round(recall, 4), DIFFICULTY) + FIRST_SLOPE * RUN_SD * rng.standard_normal((seeds, 1))
    drawn = scipy.special.logit(rng.random((seeds, len(difficulty)))) < level + difficulty
    return Values(drawn.astype(float), tuple(range(seeds)), None)


def trials_of(setting: RateSetting, seeds: int, rng: np.random.Generator) -> list[dict[int, Values]]:
    """Draw both strategies' trials, extended as in `grid.setting_trials`: both try what one of them asks for."""
    difficulty = DIFFICULTY * rng.standard_normal(setting.dev)
    tried: list[dict[int, Values]] = [{}, {}]
    steps = {*STEPS}
    for _ in range(1 + MORE):
        for strategy, trials in enumerate(tried):
            for step in sorted(steps - {*trials}):
                trials[step] = hits_at(setting.recall(strategy, step), seeds, difficulty, rng)
        for trials in tried:
            highest = highest_step(trials)
            if highest == min(trials):
                steps.add(highest - 1)
            if highest == max(trials):
                steps.add(highest + 1)
    return tried


def highest_step(trials: Mapping[int, Values]) -> int:
    return max(trials, key=lambda step: trials[step].mean)


def nearest_within_an_error(trials: Mapping[int, Values]) -> int:
    """Choose as earlier versions did: of the rates within one standard error of the best, the nearest to step 0."""
    best = highest_step(trials)
    near = []
    for step, values in trials.items():
        gaps = trials[best].values[0] - values.values[0]
        if gaps.mean() <= gaps.std(ddof=1) / len(gaps) ** 0.5:
            near.append(step)
    return min(near, key=lambda step: (abs(step), -trials[step].mean))


RULES = ("one seed, one error", "one seed, highest", "common unless clear", "highest", "highest, in the interval")


def choose_by(rule: str, setting: RateSetting, rng: np.random.Generator) -> tuple[list[int], list[dict[int, Values]]]:
    """Draw trials, and choose both strategies' steps by a rule."""
    tried = trials_of(setting, 1 if rule in RULES[:3] else setting.seeds, rng)
    if rule == "one seed, one error":
        return [nearest_within_an_error(trials) for trials in tried], tried
    if rule == "common unless clear":
        common = max(tried[0], key=lambda step: tried[0][step].mean + tried[1][step].mean)
        steps = []
        for trials in tried:
            best = highest_step(trials)
            gaps = trials[best].values[0] - trials[common].values[0]
            clear = gaps.mean() > 2 * gaps.std(ddof=1) / len(gaps) ** 0.5
            steps.append(best if clear else common)
        return steps, tried
    steps = []
    for trials in tried:
        means = {_rate(step): values.mean for step, values in trials.items()}
        steps.append(round(math.log(best_setting(means, _rate(0)).lr, 3)))
    return steps, tried


def _rate(step: int) -> TrialSetting:
    """Return the setting whose rate is 3^step times the configured one."""
    return TrialSetting(3.0**step)


def judge_rates(rule: str, setting: RateSetting, tables: int, seed: int) -> tuple[float, float, float, float]:
    """Return how often the first and the second one is called better, and two means over tables, in points.

    These are the true gap at the chosen rates, and the half width of the interval.
    """
    rng = np.random.default_rng(seed)
    first, second, gaps, halves = 0, 0, 0.0, 0.0
    for _ in range(tables):
        steps, tried = choose_by(rule, setting, rng)
        difficulty = DIFFICULTY * rng.standard_normal(TEST_QUERIES)
        recalls = [setting.recall(strategy, step) for strategy, step in enumerate(steps)]
        tested = {}
        for name, recall in zip("ab", recalls, strict=True):
            tested[name] = hits_at(recall, TEST_SEEDS, difficulty, rng).values
        table = ValueTable(tested, Design(draws=400))  # times 10: a pair
        shortfalls = {}
        if rule == "highest, in the interval":
            choices = {}
            for name, step, trials in zip("ab", steps, tried, strict=True):
                values_of = {_rate(other): values for other, values in trials.items()}
                choices[name] = (SettingChoice(_rate(step), values_of),)
            shortfalls = draw_shortfalls(choices, table.draws)
        test = against(table, "b", table.generator(), shortfalls)["a"]
        first += test.verdict == "better"
        second += test.verdict == "worse"
        gaps += 100 * (recalls[1] - recalls[0]) / tables
        halves += 50 * (test.interval.high - test.interval.low) / tables
    return first / tables, second / tables, gaps, halves


def print_head(names: Sequence[str]) -> None:
    """Print the first two lines of a table."""
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")


def print_row(cells: Sequence[object]) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_rates(tables: int, *, rules: Sequence[str] = RULES) -> None:
    """Print how often rules of choosing a rate decide between equal strategies, and for one that is 3 points ahead."""
    head = ("rule", "dev queries", "best rates", "first better", "second better", "true gap, points", "half width")
    head += ("power at 3 points",)
    print_head(head)
    for dev in (1000, 200):
        for rule in rules:
            for factor in (0, 1, 2):
                setting = RateSetting(factor, dev)
                first, second, gap, half = judge_rates(rule, setting, tables, 10 * dev + factor)
                power, *_ = judge_rates(rule, replace(setting, ahead=EFFECT), max(1, tables // 4), 20 * dev + factor)
                row = (rule, dev, f"1x, {3**factor}x", f"{first:.1%}", f"{second:.1%}", f"{gap:+.2f}", f"{half:.2f}")
                print_row((*row, f"{power:.0%}"))


def print_ends(tables: int) -> None:
    """Print how often a healthy group has a run called collapsed, and how often k collapsed runs are not all called.

    Healthy runs scatter with a normal term; collapsed ones end at the untrained model plus up to 20 % of the gain.
    """
    head = ("trained", "sd over seeds", "seeds", "healthy called", "one collapsed, missed", "all but one, missed")
    print_head(head)
    rng = np.random.default_rng(0)
    for trained, sd, seeds in itertools.product((0.1, 0.2, 0.3, 0.8), (0.01, 0.03, 0.05), (3, 10)):
        means = trained + sd * rng.standard_normal((tables, seeds))
        fell = UNTRAINED + 0.2 * (trained - UNTRAINED) * rng.random((tables, seeds))
        wrong = []
        for count in (0, 1, seeds - 1):
            lost = np.arange(seeds) < count
            ends = np.where(lost, fell, means)
            wrong.append(np.mean([(fallen(of_group) != lost).any() for of_group in ends]))
        print_row((f"{trained:.0%}", f"{100 * sd:g} points", seeds, *(f"{share:.1%}" for share in wrong)))


def best_settings(full: bool) -> Iterator[Setting]:
    sampled = (("equal", False), ("log-normal", True), ("heavy-tailed", False), ("log-normal", True), ("equal", True))
    for order, (sds, nested) in zip(ORDERS, sampled, strict=True):
        lost = 0.4 if "collapses" in order else 0.0
        for most in (8, 60) if full else (8,):
            yield Setting("best", most, rows=9, sds=sds, nested=nested, looks=True, order=order, collapse=lost)


def look_settings(full: bool) -> Iterator[Setting]:
    for most in (12, 60) if full else (12,):
        for sds in ("equal", "log-normal", "heavy-tailed"):
            yield Setting(seeds=most, rows=9, sds=sds, nested=True, looks=True)
            yield Setting(seeds=most, rows=9, sds=sds, looks=True)
        yield Setting(seeds=most, rows=9, sds="log-normal", nested=True, looks=True, family="all")


ODD = {0.0: "0.50", 0.0083: "0.64", 0.012: "0.72", 0.03: "0.92"}  # its further sd -> correlation of the differences


def odd_settings(full: bool) -> Iterator[Setting]:
    """Eight strategies of which the first, the baseline, varies over seeds unlike the others; power without that."""
    for alpha in (0.025, 0.05) if full else (0.025,):
        for odd in ODD:
            yield Setting(rows=8, queries=1000, nested=True, odd=odd, equal=True, alpha=alpha)
    yield Setting(rows=8, queries=1000, nested=True, odd=0.0)


PRIORS = {"without odd ones": 0.0, "as it is": seed_variance._ODD}  # probability that a strategy is an odd one


def print_odd(tables: int, *, full: bool) -> None:
    """Print how often the same tables hold a false verdict, and the power, with and without odd ones in the prior."""
    head = ("correlation of the differences", "alpha", "measured")
    print_head((*head, *PRIORS, "ratio"))
    for number, setting in enumerate(odd_settings(full)):
        judged: dict[str, list[float]] = {prior: [] for prior in PRIORS}
        rng = np.random.default_rng(1000 + number)
        for seed in range(tables):
            table, effects = setting.table(rng)
            true = dict(zip(table.names, effects, strict=True))
            for prior, probability in PRIORS.items():
                seed_variance._ODD = probability
                tests = against(table, "s0", np.random.default_rng(seed))
                judged[prior].append(_false_or_power(tests, true, power=not setting.equal))
        shares = {prior: np.array(values) for prior, values in judged.items()}
        before, now = shares.values()
        drawn = np.random.default_rng(0).integers(tables, size=(4000, tables))
        ratio = ""
        if not setting.equal:
            ratios = now[drawn].mean(axis=1) / before[drawn].mean(axis=1)
            low, high = np.quantile(ratios, [0.025, 0.975])
            ratio = f"{now.mean() / before.mean():.2f} [{low:.3f}, {high:.3f}]"
        what = "false verdicts" if setting.equal else "power"
        print_row(
            (
                ODD[setting.odd or 0.0],
                f"{setting.alpha:g}",
                what,
                *(f"{share.mean():.1%}" for share in shares.values()),
                ratio,
            )
        )


def _false_or_power(tests: Mapping[str, Difference], true: Mapping[str, float], *, power: bool) -> float:
    """Return 1 for a table with a false verdict, else 0; or the share of true differences from s0 that are called."""
    gaps = {name: true[name] - true["s0"] for name in tests}
    if not power:
        return float(any(is_false(test, gaps[name]) for name, test in tests.items()))
    called = []
    for name, test in tests.items():
        if gaps[name]:
            called.append(test.verdict != "undecided" and not is_false(test, gaps[name]))
    return float(np.mean(called))


def settings(full: bool) -> Iterator[Setting]:
    for sds in ("equal", "log-normal", "heavy-tailed"):
        for seeds in (2, 3, 5, 10) if full else (3,):
            for rows in (5, 11, 33) if full else (11,):
                yield Setting(seeds=seeds, rows=rows, sds=sds, nested=True)
        for queries in (200, 1200, 6000) if full else (1200,):
            for seeds in (3, 10) if full else (3,):
                yield Setting(seeds=seeds, queries=queries, sds=sds)
        yield Setting(sds=sds, preference=1.5)
        yield Setting(sds=sds, preference=1.5, clusters=60, queries=1500)
        yield Setting(sds=sds, family="all")
        if full:
            yield Setting(sds=sds, family="all", rows=33)
            yield Setting(sds=sds, seeds=50, queries=400, nested=True)


def kind_of(setting: Setting) -> str:
    """Return the words of the column "by query"."""
    if setting.nested:
        kind = "nested worlds"
    elif setting.clusters:
        kind = f"{setting.clusters} clusters"
    else:
        kind = "crossed"
    if setting.odd is not None:
        kind += f", correlation {ODD[setting.odd]}, alpha {setting.alpha:g}"
    if setting.preference:
        kind += ", effects differ"
    return kind


def print_settings(tables: int, options: argparse.Namespace) -> None:
    """Print the table of settings, of looks, or of first places; then those with too many false verdicts."""
    columns = ("rows", "queries", "sds", "by query")
    if options.best:
        sampled = list(best_settings(options.full))
        head = ("order", "seeds at most", *columns, "false verdicts")
        head += ("first place decided", "seeds used", "runs, of all pairs")
    elif options.looks:
        sampled = list(look_settings(options.full))
        decided = [f"decided of {100 * gap:g} points" for gap in EFFECTS]
        head = ("family", "seeds at most", *columns, "false verdicts", *decided, "seeds used")
    else:
        sampled = list(settings(options.full))
        head = ("family", "seeds", *columns, "false verdicts", "power", "seconds a table")
    print_head(head)
    too_often = []
    part, parts = options.part
    for number in range(part, len(sampled), parts):
        setting = sampled[number]
        if options.best:
            false, ended, used, share = first_place(setting, tables, number)
            cells = [f"{ended:.0%}", f"{used:.1f}", f"{share:.0%}"]
        elif options.looks:
            false, shares, used = judge_looks(setting, tables, number)
            cells = [*(f"{share:.0%}" for share in shares), f"{used:.1f}"]
        else:
            false, power, seconds = judge_tables(setting, tables, number)
            cells = [f"{power:.0%}", f"{seconds:.2f}"]
        sizes = (setting.seeds, setting.rows, setting.queries, setting.sds)
        row = (setting.order or setting.family, *sizes, kind_of(setting))
        print_row((*row, f"{false:.1%}", *cells))
        lower = scipy.stats.binomtest(round(false * tables), tables).proportion_ci(0.998).low  # one-sided 99.9 %
        if lower > setting.alpha:
            too_often.append(row)
    print(f"\nlower 99.9 % bound above alpha: {too_often or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--full", "--looks", "--best", "--odd", "--rates", "--ends"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="this one of so many parts of the settings")
    parser.add_argument("--tables", type=int)
    options = parser.parse_args()
    tables = options.tables or (1000 if options.full else 40)
    print(f"{tables} tables a setting, effect {100 * EFFECT:g} points, margin {100 * MARGIN:g} point, alpha 5 %\n")
    if options.rates:
        print_rates(tables)
    elif options.ends:
        print_ends(tables)
    elif options.odd:
        print_odd(tables, full=options.full)
    else:
        print_settings(tables, options)


if __name__ == "__main__":
    main()
