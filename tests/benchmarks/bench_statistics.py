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
        places = np.arange(self.queries) if not self.clusters else rng.integers(self.clusters, size=self.queries)

        def by_query(sd: float) -> np.ndarray:
            """Draw a normal term for each query of each world, equal within a cluster."""
            drawn = rng.standard_normal((worlds, self.clusters or self.queries))
            return sd * drawn[:, places]

        difficulty, slope = by_query(DIFFICULTY), (logit_of(0.301, DIFFICULTY) - logit_of(0.299, DIFFICULTY)) / 0.002
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
        clusters = places if self.clusters else None
        return ValueTable(
            values, Design(nested=self.nested, clusters=clusters, margin=MARGIN, alpha=self.alpha)
        ), effects


_LOGITS: dict[tuple[float, float], float] = {}


def logit_of(recall: float, sd: float) -> float:
    """Return the mean logit that gives `recall` if queries add a normal term of this sd."""
    if (recall, sd) not in _LOGITS:
        steps = sd * scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
        _LOGITS[recall, sd] = scipy.optimize.brentq(lambda x: scipy.special.expit(x + steps).mean() - recall, -60, 60)
    return _LOGITS[recall, sd]


def is_false(difference: Difference, true: float) -> bool:
    if difference.verdict == "equal":
        return abs(true) >= MARGIN
    return difference.verdict != "undecided" and difference.value * true <= 0


def measured(setting: Setting, tables: int, seed: int) -> tuple[float, float, float]:
    """Return the share of tables with a false verdict, the share of true differences found, and seconds per table."""
    rng, false, power, spent = np.random.default_rng(seed), 0, 0.0, 0.0
    for _ in range(tables):
        table, effects = setting.table(rng)
        true = dict(zip(table.names, effects, strict=True))
        started = time.perf_counter()
        if setting.family == "all":
            tests = dict(pairs(table, rng).differences)
        else:
            tests = {(name, "s0"): each for name, each in against(table, "s0", rng).items()}
        spent += time.perf_counter() - started
        gaps = {pair: true[pair[0]] - true[pair[1]] for pair in tests}
        false += any(is_false(each, gaps[pair]) for pair, each in tests.items())
        called = [tests[p].verdict != "undecided" and not is_false(tests[p], gap) for p, gap in gaps.items() if gap]
        if called:
            power += float(np.mean(called)) / tables
    return false / tables, power, spent / tables


def replayed(
    whole: Mapping[str, Values], looks: Looks, baseline: str | None, blocks: Mapping[str, float] | None = None
) -> Iterator[tuple[dict[str, int], Tests, Tests, Differences]]:
    """Yield after each look every strategy's seeds, the family's differences, those left to decide, and all of them."""
    seeds, running, latest = dict.fromkeys(whole, 0), set(whole), None
    for count, share in zip(looks.counts, looks.shares, strict=True):
        seeds |= dict.fromkeys(running, count)
        subset = {name: values.of_seeds(values.seeds[: seeds[name]]) for name, values in whole.items()}
        now = differences(subset, baseline, share=share)
        latest = now if latest is None else now.after(latest)
        family = dict(latest.pairs.differences)
        if looks.pairs == "baseline":
            family = {(name, str(baseline)): each for name, each in latest.against.items()}
        out = {name for name, each in subset.items() if fallen([float(np.mean(row)) for row in each.values]).any()}
        left = latest.undecided(looks.pairs, baseline, blocks or dict.fromkeys(whole, 1.0), out, margin=MARGIN)
        running &= {name for pair in left for name in pair}
        yield dict(seeds), family, left, latest


def fallen(means: Sequence[float]) -> np.ndarray:
    """[S] whether each of a strategy's runs is called collapsed."""
    return np.array(means) < bound(UNTRAINED, max(means))


def simulated(setting: Setting, rng: np.random.Generator) -> tuple[dict[str, Values], dict[str, float]]:
    """Draw a table; return its values and the true differences to its first strategy."""
    table, effects = setting.table(rng)
    seeds = tuple(range(setting.seeds))
    whole = {name: Values(rows, seeds, None, nested=setting.nested) for name, rows in table.values.items()}
    return whole, dict(zip(table.names, effects, strict=True))


def first_place(setting: Setting, tables: int, seed: int) -> tuple[float, float, float, float]:
    """Return shares of tables with a false verdict and with a decided first place, mean seeds, runs relative to all.

    It is also false to call a strategy first within the margin if another is truly a margin or more ahead of it.
    """
    rng, false, ended = np.random.default_rng(seed), 0, 0
    used: dict[str, list[int]] = {"best": [], "all": []}
    for number in range(tables):
        whole, true = simulated(setting, rng)
        if number < tables / 10:
            *_, (seeds, *_) = replayed(whole, Looks((0, 1, 2), setting.seeds, "all"), None)
            used["all"].append(sum(seeds.values()))
        *_, (seeds, family, left, latest) = replayed(whole, Looks((0, 1, 2), setting.seeds, "best"), None)
        used["best"].append(sum(seeds.values()))
        first = {a for a in whole if latest.behind_at_most(a, whole) <= MARGIN}
        wrong = any(is_false(each, true[a] - true[b]) for (a, b), each in family.items())
        false += wrong or any(true[a] < max(true.values()) - MARGIN + 1e-9 for a in first)
        ended += not left
    share = sum(used["best"][: len(used["all"])]) / sum(used["all"])
    return false / tables, ended / tables, float(np.mean(used["best"])) / setting.rows, share


def looked_at(setting: Setting, tables: int, seed: int) -> tuple[float, list[float], float]:
    """Return the share of tables with a false verdict, the share decided per true gap, and the mean seeds."""
    rng, looks, false, used = np.random.default_rng(seed), Looks((0, 1, 2), setting.seeds, setting.family), 0, 0.0
    ended = {round(gap, 3): list[bool]() for gap in EFFECTS}
    for _ in range(tables):
        whole, true = simulated(setting, rng)
        *_, (seeds, family, *_) = replayed(whole, looks, "s0")
        gaps = {pair: true[pair[0]] - true[pair[1]] for pair in family}
        false += any(is_false(each, gaps[pair]) for pair, each in family.items())
        used += float(np.mean(list(seeds.values()))) / tables
        for pair, gap in gaps.items():
            ended.setdefault(round(abs(gap), 3), []).append(family[pair].verdict != "undecided")
    return false / tables, [float(np.mean(ended[round(gap, 3)])) for gap in EFFECTS], used


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
    wanted = {*STEPS}
    for _ in range(1 + MORE):
        for strategy, trials in enumerate(tried):
            for step in sorted(wanted - {*trials}):
                trials[step] = hits_at(setting.recall(strategy, step), seeds, difficulty, rng)
        wanted = {*tried[0]}
        for trials in tried:
            highest = max(trials, key=lambda step: trials[step].mean)
            if highest == min(trials):
                wanted.add(highest - 1)
            if highest == max(trials):
                wanted.add(highest + 1)
    return tried


def nearest_within_an_error(trials: Mapping[int, Values]) -> int:
    """Choose as earlier versions did: of the rates within one standard error of the best, the nearest to step 0."""
    best = max(trials, key=lambda step: trials[step].mean)
    near = []
    for step, values in trials.items():
        gaps = trials[best].values[0] - values.values[0]
        if gaps.mean() <= gaps.std(ddof=1) / len(gaps) ** 0.5:
            near.append(step)
    return min(near, key=lambda step: (abs(step), -trials[step].mean))


RULES = ("one seed, one error", "one seed, highest", "common unless clear", "highest", "highest, in the interval")


def chosen_by(rule: str, setting: RateSetting, rng: np.random.Generator) -> tuple[list[int], list[dict[int, Values]]]:
    """Draw trials, and choose both strategies' steps by a rule."""
    tried = trials_of(setting, 1 if rule in RULES[:3] else setting.seeds, rng)
    if rule == "one seed, one error":
        return [nearest_within_an_error(trials) for trials in tried], tried
    if rule == "common unless clear":
        common = max(tried[0], key=lambda step: tried[0][step].mean + tried[1][step].mean)
        steps = []
        for trials in tried:
            best = max(trials, key=lambda step: trials[step].mean)
            gaps = trials[best].values[0] - trials[common].values[0]
            clear = gaps.mean() > 2 * gaps.std(ddof=1) / len(gaps) ** 0.5
            steps.append(best if clear else common)
        return steps, tried
    return [
        round(math.log(best_setting({_rate(step): each.mean for step, each in trials.items()}, _rate(0)).lr, 3))
        for trials in tried
    ], tried


def _rate(step: int) -> TrialSetting:
    """Return the setting whose rate is 3^step times the configured one."""
    return TrialSetting(3.0**step)


def rates_judged(rule: str, setting: RateSetting, tables: int, seed: int) -> tuple[float, float, float, float]:
    """Return how often the first and the second one is called better, and two means over tables, in points.

    These are the true gap at the chosen rates, and the half width of the interval.
    """
    rng = np.random.default_rng(seed)
    first, second, gaps, halves = 0, 0, 0.0, 0.0
    for _ in range(tables):
        steps, tried = chosen_by(rule, setting, rng)
        difficulty = DIFFICULTY * rng.standard_normal(TEST_QUERIES)
        recalls = [setting.recall(strategy, step) for strategy, step in enumerate(steps)]
        tested = {
            name: hits_at(recall, TEST_SEEDS, difficulty, rng) for name, recall in zip("ab", recalls, strict=True)
        }
        table = ValueTable({name: each.values for name, each in tested.items()}, Design(draws=400))  # times 10: a pair
        shortfalls = {}
        if rule == "highest, in the interval":
            choices = {}
            for name, step, trials in zip("ab", steps, tried, strict=True):
                choices[name] = (SettingChoice(_rate(step), {_rate(k): each for k, each in trials.items()}),)
            shortfalls = draw_shortfalls(choices, table.draws)
        test = against(table, "b", table.generator(), shortfalls)["a"]
        first += test.verdict == "better"
        second += test.verdict == "worse"
        gaps += 100 * (recalls[1] - recalls[0]) / tables
        halves += 50 * (test.interval.high - test.interval.low) / tables
    return first / tables, second / tables, gaps, halves


def print_rates(tables: int, *, rules: Sequence[str] = RULES) -> None:
    """Print how often rules of choosing a rate decide between equal strategies, and for one that is 3 points ahead."""
    head = ("rule", "dev queries", "best rates", "first better", "second better", "true gap, points", "half width")
    head += ("power at 3 points",)
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for dev in (1000, 200):
        for rule in rules:
            for factor in (0, 1, 2):
                setting = RateSetting(factor, dev)
                first, second, gap, half = rates_judged(rule, setting, tables, 10 * dev + factor)
                power, *_ = rates_judged(rule, replace(setting, ahead=EFFECT), max(1, tables // 4), 20 * dev + factor)
                row = (rule, dev, f"1x, {3**factor}x", f"{first:.1%}", f"{second:.1%}", f"{gap:+.2f}", f"{half:.2f}")
                print("| " + " | ".join(map(str, (*row, f"{power:.0%}"))) + " |", flush=True)


def print_ends(tables: int) -> None:
    """Print how often a healthy group has a run called collapsed, and how often k collapsed runs are not all called.

    Healthy runs scatter with a normal term; collapsed ones end at the untrained model plus up to 20 % of the gain.
    """
    head = ("trained", "sd over seeds", "seeds", "healthy called", "one collapsed, missed", "all but one, missed")
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    rng = np.random.default_rng(0)
    for trained, sd, seeds in itertools.product((0.1, 0.2, 0.3, 0.8), (0.01, 0.03, 0.05), (3, 10)):
        means = trained + sd * rng.standard_normal((tables, seeds))
        fell = UNTRAINED + 0.2 * (trained - UNTRAINED) * rng.random((tables, seeds))
        wrong = []
        for lost in (np.arange(seeds) < k for k in (0, 1, seeds - 1)):
            wrong.append(np.mean([(fallen(ends) != lost).any() for ends in np.where(lost, fell, means)]))
        row = (f"{trained:.0%}", f"{100 * sd:g} points", seeds, *(f"{share:.1%}" for share in wrong))
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


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
    print("| " + " | ".join((*head, *PRIORS, "ratio")) + " |\n" + "|---" * (len(head) + 3) + "|")
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
        row = (
            ODD[setting.odd or 0.0],
            f"{setting.alpha:g}",
            what,
            *(f"{share.mean():.1%}" for share in shares.values()),
        )
        print("| " + " | ".join((*row, ratio)) + " |", flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--full", "--looks", "--best", "--odd", "--rates", "--ends"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="this one of so many parts of the settings")
    parser.add_argument("--tables", type=int)
    chosen = parser.parse_args()
    tables = chosen.tables or (1000 if chosen.full else 40)
    print(f"{tables} tables a setting, effect {100 * EFFECT:g} points, margin {100 * MARGIN:g} point, alpha 5 %\n")
    if chosen.rates:
        return print_rates(tables)
    if chosen.ends:
        return print_ends(tables)
    if chosen.odd:
        return print_odd(tables, full=chosen.full)
    head = ("family", "seeds", "rows", "queries", "sds", "by query", "false verdicts", "power", "seconds a table")
    if chosen.looks:
        decided = [f"decided of {100 * gap:g} points" for gap in EFFECTS]
        head = (*head[:1], "seeds at most", *head[2:7], *decided, "seeds used")
    if chosen.best:
        head = ("order", "seeds at most", *head[2:7], "first place decided", "seeds used", "runs, of all pairs")
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    over = []
    which = settings
    if chosen.best:
        which = best_settings
    elif chosen.looks:
        which = look_settings
    for number, each in list(enumerate(which(chosen.full)))[chosen.part[0] :: chosen.part[1]]:
        if chosen.best:
            false, ended, used, share = first_place(each, tables, number)
            columns = [f"{false:.1%}", f"{ended:.0%}", f"{used:.1f}", f"{share:.0%}"]
        elif chosen.looks:
            false, decided, used = looked_at(each, tables, number)
            columns = [f"{false:.1%}", *(f"{share:.0%}" for share in decided), f"{used:.1f}"]
        else:
            false, power, seconds = measured(each, tables, number)
            columns = [f"{false:.1%}", f"{power:.0%}", f"{seconds:.2f}"]
        if each.nested:
            kind = "nested worlds"
        elif each.clusters:
            kind = f"{each.clusters} clusters"
        else:
            kind = "crossed"
        if each.odd is not None:
            kind += f", correlation {ODD[each.odd]}, alpha {each.alpha:g}"
        if each.preference:
            kind += ", effects differ"
        row = (each.order or each.family, each.seeds, each.rows, each.queries, each.sds, kind)
        print("| " + " | ".join(map(str, (*row, *columns))) + " |", flush=True)
        lower = scipy.stats.binomtest(round(false * tables), tables).proportion_ci(0.998).low  # one-sided 99.9 %
        over += [row] if lower > each.alpha else []
    print(f"\nlower 99.9 % bound above alpha: {over or 'none'}")


if __name__ == "__main__":
    main()
