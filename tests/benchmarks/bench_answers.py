"""Cost of an answer: python tests/benchmarks/bench_answers.py [--strategies A,B,...] [--most 60] [--runs DIR]

Computes the recipe `world` with `--most` seeds of every strategy once, then replays on these cells what three ways to
decide all pairs would have computed: fixed seeds with intervals from each difference's own variance
(Student's t, Bonferroni over the table; what negbench had before), fixed seeds with its present intervals, and
`--until decided`. Fixed numbers of seeds are those of the looks, and the first that decides is taken, which nobody
knows in advance. Seconds are those that the cells took.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
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

Verdicts = Mapping[tuple[str, str], str]


def own_variance(values: Mapping[str, Values], baseline: str | None) -> Verdicts:
    """Each difference from the spread of its own seeds; worlds are nested, so queries add nothing."""
    family = [(a, b) for a, b in combinations(values, 2) if baseline in (None, a, b)]
    found = {}
    for a, b in family:
        gaps = (values[a].values - values[b].values).mean(axis=1)
        half = scipy.stats.t.ppf(1 - 0.05 / 2 / len(family), len(gaps) - 1) * scipy.stats.sem(gaps)
        found[a, b] = Design(margin=MARGIN).verdict(Interval(gaps.mean() - half, gaps.mean() + half, 0.95))
    return found


def pooled(values: Mapping[str, Values], baseline: str | None) -> Verdicts:
    """The present intervals, looked at once."""
    found = differences(values, baseline)
    if baseline is None:
        return {pair: each.verdict for pair, each in found.pairs.differences.items()}
    return {(name, baseline): each.verdict for name, each in found.against.items()}


def steps_of(
    whole: Mapping[str, Values], looks: Looks, baseline: str | None
) -> dict[str, list[tuple[dict[str, int], Verdicts]]]:
    """Procedure -> after each look the seeds of every strategy, and the verdicts."""

    def fixed(
        verdicts: Callable[[Mapping[str, Values], str | None], Verdicts],
    ) -> list[tuple[dict[str, int], Verdicts]]:
        cut = [{name: v.of_seeds(v.seeds[:count]) for name, v in whole.items()} for count in looks.counts]
        counts = [dict.fromkeys(whole, count) for count in looks.counts]
        return [(seeds, verdicts(each, baseline)) for seeds, each in zip(counts, cut, strict=True)]

    until = [(s, {pair: each.verdict for pair, each in f.items()}) for s, f in replayed(whole, looks, baseline)]
    return {
        "fixed seeds, each difference's own variance": fixed(own_variance),
        "fixed seeds, pooled variances": fixed(pooled),
        "`--until decided`": until,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategies", default="in-batch,all-corpus,top-k,after-target,cirqrs,qure,dqe")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = chosen.runs or Path(temporary)
        asked = negbench.Compare(
            strategies=chosen.strategies, recipe="world", seeds=chosen.most, sets=("eval.every=20", *chosen.set),
            runs_dir=runs, tracking_uri="none", name="answers", report=False, audit=False,
        )  # fmt: skip
        negbench.compare(asked)
        groups = groups_of(runs, "answers")
        (table,) = tables_of(groups)
        whole = table.values[table.main]
        took = {g.labels["strategy"]: np.mean([sum(r["seconds"].values()) for r in g.results]) for g in groups}
    looks = Looks(tuple(range(3)), chosen.most)
    print("| family | procedure | pairs decided | seeds at most | runs | seconds of computing |\n" + "|---" * 6 + "|")
    for family, baseline in (("baseline", next(iter(whole))), ("all pairs", None)):
        for name, steps in steps_of(whole, looks, baseline).items():
            for wanted in (0.9, 1.0):
                enough = [s for s in steps if np.mean([v != "undecided" for v in s[1].values()]) >= wanted]
                seeds, verdicts = (enough or steps)[0 if enough else -1]
                decided = sum(v != "undecided" for v in verdicts.values())
                cost = sum(took[strategy] * count for strategy, count in seeds.items())
                shown = (family, name, f"{decided} of {len(verdicts)}", max(seeds.values()), sum(seeds.values()))
                print("| " + " | ".join(map(str, shown)) + f" | {cost:.0f} |", flush=True)
                if not enough:
                    break


if __name__ == "__main__":
    main()
