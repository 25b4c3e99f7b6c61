"""Cost of an answer: python tests/benchmarks/bench_answers.py [--strategies A,B,...] [--most 60] [--stored RUNS/NAME]

Computes the recipe `world` once with `--most` seeds of every strategy (or reads a finished comparison and keeps the
strategies with that many seeds). Then replays on these cells what three ways to decide pairs would have computed: fixed
seeds with intervals from each difference's own variance (Student's t, Bonferroni over the table; negbench's earlier
method), fixed seeds with the present intervals, and `--until decided`. Fixed numbers of seeds are those of the looks;
the smallest sufficient one is reported, which nobody knows in advance. Seconds are the recorded times of the cells.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import scipy
from bench_statistics import MARGIN, replayed

import negbench
from negbench.analysis.differences import differences
from negbench.analysis.statistics import Design, Interval
from negbench.analysis.verdicts import tables_of
from negbench.grid.comparison import groups_of
from negbench.grid.looks import Looks
from negbench.scoring.stored import Values
from negbench.settings.options import PairsToDecide

PAIRS: tuple[PairsToDecide, ...] = ("best", "all")
SHARES = (0.5, 0.75, 0.9, 1.0)  # shares of pairs to decide
Verdicts = Mapping[tuple[str, str], str]


def own_variance(values: Mapping[str, Values], baseline: str | None) -> Verdicts:
    """Return verdicts from each difference's spread over its own seeds; worlds are nested, so queries add nothing."""
    family = [(a, b) for a, b in combinations(values, 2) if baseline in (None, a, b)]
    verdicts = {}
    for a, b in family:
        gaps = (values[a].values - values[b].values).mean(axis=1)
        half = scipy.stats.t.ppf(1 - 0.05 / 2 / len(family), len(gaps) - 1) * scipy.stats.sem(gaps)
        verdicts[a, b] = Design(margin=MARGIN).verdict(Interval(gaps.mean() - half, gaps.mean() + half, 0.95))
    return verdicts


def pooled(values: Mapping[str, Values], baseline: str | None) -> Verdicts:
    """Return verdicts from the present intervals at a single look."""
    tests = differences(values, baseline)
    if baseline is None:
        return {pair: each.verdict for pair, each in tests.pairs.differences.items()}
    return {(name, baseline): each.verdict for name, each in tests.against.items()}


def steps_of(
    whole: Mapping[str, Values], looks: Looks, baseline: str | None
) -> dict[str, list[tuple[dict[str, int], Verdicts]]]:
    """Return, per procedure, every strategy's seeds and the verdicts after each look."""

    def fixed(
        verdicts: Callable[[Mapping[str, Values], str | None], Verdicts],
    ) -> list[tuple[dict[str, int], Verdicts]]:
        cut = [{name: v.of_seeds(v.seeds[:count]) for name, v in whole.items()} for count in looks.counts]
        counts = [dict.fromkeys(whole, count) for count in looks.counts]
        return [(seeds, verdicts(each, baseline)) for seeds, each in zip(counts, cut, strict=True)]

    until = [(s, {pair: each.verdict for pair, each in f.items()}) for s, f, _ in replayed(whole, looks, baseline)]
    return {
        "fixed seeds, each difference's own variance": fixed(own_variance),
        "fixed seeds, pooled variances": fixed(pooled),
        "`--until decided`": until,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategies", default="in-batch,all-corpus,top-k,after-target,cirqrs,qure,dqe")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--stored", type=Path)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = chosen.stored or Path(temporary) / "answers"
        if chosen.stored is None:
            asked = negbench.Compare(
                strategies=chosen.strategies, recipe="world-small", seeds=chosen.most,
                sets=("eval.every=20", *chosen.set),
                runs_dir=path.parent, tracking_uri="none", name=path.name, lr="fixed", report=False,
            )  # fmt: skip
            negbench.compare(asked)
        groups = [group for group in groups_of(path.parent, path.name) if len(group.runs) >= chosen.most]
        (table,) = tables_of(groups)
        whole = {name: v.of_seeds(v.seeds[: chosen.most]) for name, v in table.values[table.main].items()}
        took = {g.labels["strategy"]: np.mean([sum(r["seconds"].values()) for r in g.results]) for g in groups}
    looks, cells = Looks(tuple(range(3)), chosen.most, "best"), sum(took.values()) * chosen.most
    print(f"{len(whole)} strategies, {chosen.most} seeds at most: {len(whole) * chosen.most} runs, {cells:.0f} s\n")
    print("| pairs | procedure | " + " | ".join(f"{share:.0%} decided" for share in SHARES) + " |\n" + "|---" * 6 + "|")
    for family, baseline in (("against in-batch", "in-batch"), ("all", None)):
        of_family = replace(looks, pairs="all" if baseline is None else "baseline")
        for name, steps in steps_of(whole, of_family, baseline).items():
            shown = []
            for share in SHARES:
                enough = (s for s, verdicts in steps if np.mean([v != "undecided" for v in verdicts.values()]) >= share)
                seeds = next(enough, None)
                cost = "never" if seeds is None else f"{sum(took[n] * count for n, count in seeds.items()):.0f} s"
                shown.append(cost if seeds is None else f"{cost}, {sum(seeds.values())} runs")
            print("| " + " | ".join((family, name, *shown)) + " |", flush=True)
    for scope in PAIRS:
        *_, (used, _, _) = replayed(whole, replace(looks, pairs=scope), None)
        print(f"\n--pairs {scope}: {sum(used.values())} runs ({used})")


if __name__ == "__main__":
    main()
