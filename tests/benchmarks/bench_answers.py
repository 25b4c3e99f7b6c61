"""Cost of an answer: bench_answers.py [--strategies A,B,...] [--seeds 20] [--most 60] [--stored RUNS/NAME] ...

Computes the recipe `world` (120 epochs are 600 steps) with `--seeds` seeds of every strategy, or reads a finished
comparison. Then counts the runs that `--until decided --max-seeds MOST` would compute with `--pairs best` and with
`--pairs all`, each of `--times` times on worlds drawn with replacement from the computed ones.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from bench_statistics import replay

import negbench
from negbench.analysis.frame import groups_of, results_of
from negbench.analysis.verdicts import round_negatives, tables_of
from negbench.grid.looks import Looks
from negbench.scoring.values import Values
from negbench.settings.options import PairsToDecide

PAIRS: tuple[PairsToDecide, ...] = ("best", "all")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategies", default="cir")
    parser.add_argument("--epochs", default="120")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--stored", type=Path)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.stored or Path(temporary) / "answers"
        if options.stored is None:
            comparison = negbench.Compare(
                strategies=options.strategies, recipe="world", epochs=options.epochs, seeds=options.seeds,
                sets=tuple(options.set), runs_dir=path.parent, tracking_uri="none", name=path.name,
                lr="fixed", report=False,
            )  # fmt: skip
            negbench.compare(comparison)
        (table,) = tables_of(groups_of(results_of(path.parent, path.name)))
    values_of = table.values[table.main_metric]  # by strategy
    blocks = {name: round_negatives(table.negatives[name]) for name in values_of}
    worlds = min(len(values.seeds) for values in values_of.values())
    rng = np.random.default_rng(0)
    used = list[list[int]]()
    for _ in range(options.times):
        rows = rng.integers(worlds, size=options.most)
        drawn = {}
        for name, values in values_of.items():
            drawn[name] = Values(values.values[rows], tuple(range(options.most)), None, nested=values.nested)
        counts = []
        for pairs in PAIRS:
            *_, last = replay(drawn, Looks((0, 1, 2), options.most, pairs), None, blocks)
            counts.append(sum(last.seeds.values()))
        used.append(counts)
        best, every = np.mean(used, axis=0)
        print(f"{best:.0f} runs to decide first place, {every:.0f} for all pairs: {best / every:.0%}", flush=True)


if __name__ == "__main__":
    main()
