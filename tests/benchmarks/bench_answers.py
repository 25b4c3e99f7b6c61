"""Cost of an answer: bench_answers.py [--strategies A,B,...] [--seeds 20] [--most 60] [--stored RUNS/NAME] ...

Computes the recipe `world` (120 epochs are 600 steps) with `--seeds` seeds of every strategy, or reads a finished
comparison. Then counts the runs that `--until decided --max-seeds MOST` would compute with `--pairs best` and with
`--pairs all`, each of `--times` times on worlds drawn with replacement from the computed ones.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from bench_statistics import replayed

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
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = chosen.stored or Path(temporary) / "answers"
        if chosen.stored is None:
            asked = negbench.Compare(
                strategies=chosen.strategies, recipe="world", epochs=chosen.epochs, seeds=chosen.seeds,
                sets=tuple(chosen.set), runs_dir=path.parent, tracking_uri="none", name=path.name,
                lr="fixed", report=False,
            )  # fmt: skip
            negbench.compare(asked)
        (table,) = tables_of(groups_of(results_of(path.parent, path.name)))
    known, rng = table.values[table.main_metric], np.random.default_rng(0)
    blocks = {name: round_negatives(table.negatives[name]) for name in known}
    used = list[list[int]]()
    for _ in range(chosen.times):
        worlds = rng.integers(min(len(each.seeds) for each in known.values()), size=chosen.most)
        drawn = {
            name: Values(each.values[worlds], tuple(range(chosen.most)), None, nested=each.nested)
            for name, each in known.items()
        }
        ends = [list(replayed(drawn, Looks((0, 1, 2), chosen.most, pairs), None, blocks))[-1] for pairs in PAIRS]
        used.append([sum(seeds.values()) for seeds, *_ in ends])
        best, every = np.mean(used, axis=0)
        print(f"{best:.0f} runs to decide first place, {every:.0f} for all pairs: {best / every:.0%}", flush=True)


if __name__ == "__main__":
    main()
