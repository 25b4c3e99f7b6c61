"""Cells computed as one stack against the same cells one by one.

    python tests/benchmarks/bench_stacked.py --world vectors --cells 12 30

Whole cells, as a comparison computes them: training, mining, scoring, records, files; the MLflow copy where --mlflow is
given. The cells are those of six corpus strategies, seed by seed: strategies of a seed share a model in the warm-up, so
that a stack gains by their number, too. Both ways take turns: a share of the single cells, the stack, the next share.
Times are processor seconds of one thread, as a busy machine disturbs them less, per cell; "train" is the ratio of the
training stages by the clock, and at the end of a line stand the clock's seconds of a cell's stages, alone/stacked. The
first cell of the process is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from negbench.display import Display
from negbench.executors import Here
from negbench.grid.cells import SCENES, Cell, compute, plan
from negbench.runfolder import RunFolder
from negbench.systems.system import load_config

STRATEGIES = ("all-corpus", "top-k", "after-target", "qure", "cirqrs", "dqe")
WORLDS = {"vectors": ["dataset='vectors'", "backbone='vectors'"], "synthetic": []}


def cells_of(count: int, sets: Sequence[str], runs: Path) -> list[Cell]:
    """The first `count` cells."""
    pairs = [(name, seed) for seed in range(-(-count // len(STRATEGIES))) for name in STRATEGIES][:count]
    configs = [load_config(flags={"strategy": {"name": name}, "seed": seed}, sets=sets) for name, seed in pairs]
    return plan(configs, runs, Display(), SCENES)


def seconds(cells: Sequence[Cell], runs: Path, uri: str | None) -> tuple[float, Counter[str]]:
    """Processor seconds of computing the cells, and the clock's seconds of their stages."""
    started, stages = time.process_time(), Counter[str]()
    outcomes = [outcome for outcome, _ in compute(cells, Here(), runs=runs, tracking_uri=uri)]
    spent = time.process_time() - started
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        stages.update(RunFolder(runs / str(outcome.run_id)).result["seconds"])
    return spent, stages


def measure(count: int, world: Sequence[str], uri: str | None, folder: Path) -> str:
    """A line of the table."""
    alone = cells_of(count, world, folder / "alone")
    together = cells_of(count, [*world, "train.stacked=true"], folder / "stacked")
    assert all(cell.config.train.stacked for cell in together)
    half = count // 2
    first, stages = seconds(alone[:half], folder / "alone", uri)
    stack, stacked = seconds(together, folder / "stacked", uri)
    second, more = seconds(alone[half:], folder / "alone", uri)
    single, stages = first + second, stages + more
    train = stages["train"] / stacked["train"]
    parts = ", ".join(f"{name} {stages[name] / count:.2f}/{stacked[name] / count:.2f}" for name in sorted(stacked))
    return f"{count:>5}{single / count:>9.2f} s{stack / count:>9.2f} s{single / stack:>7.1f}{train:>7.1f}   {parts}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", choices=sorted(WORLDS), default="vectors")
    parser.add_argument("--cells", type=int, nargs="+", default=[12, 30])
    parser.add_argument("--mlflow", action="store_true", help="keep an MLflow copy")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="as negbench --set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = [*WORLDS[options.world], *options.sets]
    uri = None if options.mlflow else "none"
    print(f"{'cells':>5}{'alone':>11}{'stacked':>11}{'ratio':>7}{'train':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for number, count in enumerate((1, *options.cells)):
            line = measure(count, world, uri, Path(folder) / str(number)) if number else ""
            if not number:
                for more in ([], ["train.stacked=true"]):
                    seconds(cells_of(1, [*world, *more], Path(folder) / "first"), Path(folder) / "first", uri)
            else:
                print(line, flush=True)


if __name__ == "__main__":
    main()
