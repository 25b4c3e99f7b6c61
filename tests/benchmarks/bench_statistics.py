"""Calibration of negbench.statistics: python tests/benchmarks/bench_statistics.py [--full]

`--full` prints the tables of docs/statistics.md from 1,000 simulations a figure and takes ten to twenty-five minutes on
one core. The default of 50 takes a minute or two: enough to see that the procedure is not badly off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import stats

from negbench import statistics as st

EFFECTS = (0.01, 0.02)
WORLDS = {
    "itself, no seed noise": {"seed_sd": 0.0},
    "itself, seed sd 0.3": {"seed_sd": 0.003},
    "itself, seed sd 1": {"seed_sd": 0.01},
    "differ by query, seed sd 0.3": {"seed_sd": 0.003, "preference_sd": 1.5},
    "differ by query, seed sd 1": {"seed_sd": 0.01, "preference_sd": 1.5},
}


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells) + " |", flush=True)


def head(*cells: str) -> None:
    row(*cells)
    row(*["---"] * len(cells))


def grid(simulations: int, generator: np.random.Generator) -> None:
    """Level and power of the procedure."""
    head("world", "queries", "recall", "seeds", "level", "power at 1 point", "power at 2 points")
    over = []
    for label, world, seeds in settings():
        done = st.calibrate(world, seeds=seeds, generator=generator, effects=EFFECTS, simulations=simulations)
        recall = " and ".join(map(str, world.recalls))
        row(label, world.queries, recall, seeds, done.rejection, *done.power.values())
        if not done.ok and not (seeds == 1 and world.seed_sd):
            over.append((label, world.queries, seeds, done.rejection))
    limit = 0.05 + 2 * (0.05 * 0.95 / simulations) ** 0.5
    print(f"\nlimit {limit:.4f}; above it (one seed against seed noise aside): {over or 'none'}\n")


def settings() -> Iterator[tuple[str, st.Simulation, int]]:
    for label, options in WORLDS.items():
        for queries in (200, 1200, 6000):
            for seeds in (1, 2, 3, 5, 10):
                yield label, st.Simulation(queries, **options), seeds  # type: ignore[arg-type]
    for recalls in ((0.1,), (0.6,), (0.3, 0.55)):
        for label in ("itself, seed sd 0.3", "differ by query, seed sd 0.3"):
            for seeds in (3, 5):
                yield label, st.Simulation(1200, recalls, **WORLDS[label]), seeds


def rivals(simulations: int, generator: np.random.Generator) -> None:
    """Level and power at 2 points of the procedures that were not chosen, on the same draws."""
    names = ("queries only", "seeds only", "larger p of both", "min F'", "excess", "chosen")
    for effect in (0.0, 0.02):
        print(f"\n{'level' if effect == 0 else 'power at 2 points'}:\n")
        head("world", "queries", "seeds", *names)
        for queries, label in [*((1200, label) for label in WORLDS), (6000, "itself, seed sd 1")]:
            for seeds in (3, 5, 10):
                world = st.Simulation(queries, **WORLDS[label])  # type: ignore[arg-type]
                found = np.zeros(len(names))
                for start in range(0, simulations, 50):
                    size = min(50, simulations - start)
                    found += rejected(world, size, seeds, effect, generator)
                row(label, queries, seeds, *(found / simulations).tolist())


def rejected(world: st.Simulation, size: int, seeds: int, effect: float, generator: np.random.Generator) -> Any:
    first, second = world.draw(size, seeds, effect, generator)
    groups = st._groups(None, world.queries)
    parts = st._parts(first - second, groups)
    found = st._test(parts, st._sign_sums((parts.queries / world.queries).T, 2000, generator), 0.05, generator)
    models, chosen = found.p_models, found.p_value
    by_seeds = p_of_t(parts.mean, parts.seed, seeds - 1.0)
    excess = np.maximum(parts.seed - parts.cross, 0)
    every = (
        models,
        by_seeds,
        np.maximum(models, by_seeds),
        satterthwaite(parts.mean, parts.seed, parts.query, seeds, world.queries),
        satterthwaite(parts.mean, excess, parts.query, seeds, world.queries),
        chosen,
    )
    return np.array([((p < 0.05) & ((effect == 0) | (parts.mean > 0))).sum() for p in every])


def p_of_t(mean: Any, variance: Any, df: Any) -> Any:
    with np.errstate(divide="ignore"):  # few seeds on few queries can agree exactly
        return 2 * stats.t.sf(np.abs(mean) / np.sqrt(variance), df)


def satterthwaite(mean: Any, seed: Any, query: Any, seeds: int, queries: int) -> Any:
    df = (seed + query) ** 2 / (seed**2 / (seeds - 1) + query**2 / (queries - 1))
    return p_of_t(mean, seed + query, df)


def tables(simulations: int, generator: np.random.Generator) -> None:
    """Tables of a baseline and 5 strategies without any difference: family-wise error, and power of strategy 1."""
    head("seeds", "seed sd of strategy 1", "level, strategy 1", "any of 5, simultaneous", "power, 2 points")
    for seeds in (3, 5):
        for spread in (1.0, 3.0):
            null = table_rejections(simulations, seeds, spread, 0.0, generator)
            found = table_rejections(simulations, seeds, spread, 0.02, generator)
            row(seeds, f"{0.5 * spread:g} points", *null.tolist(), float(found[0]))


def table_rejections(simulations: int, seeds: int, spread: float, effect: float, generator: np.random.Generator) -> Any:
    """Shares of tables where strategy 1 is rejected on its own, and where any interval excludes 0."""
    world = st.Simulation(1200, seed_sd=0.005)
    found = np.zeros(2)
    for _ in range(simulations):
        difficulty = world.difficulty_sd * generator.standard_normal((1, 1, world.queries))
        runs = {"baseline": world._runs(difficulty, seeds, 0.0, 1.0, generator)[0]}
        for i in range(5):
            own = (effect, spread) if i == 0 else (0.0, 1.0)
            runs[str(i)] = world._runs(difficulty, seeds, *own, generator)[0]
        table = st.compare_table(runs, "baseline", generator=generator, resamples=400)
        right_sign = table[0].difference * effect >= 0
        found += table[0].p_value <= 0.05 and right_sign, any(c.verdict in ("better", "worse") for c in table)
    return found / simulations


def speed(_: int, generator: np.random.Generator) -> None:
    """Seconds of one processor core for a table of 30 strategies, 5 seeds, 6,000 queries."""
    values = {str(i): (generator.random((5, 6000)) < 0.3).astype(float) for i in range(30)}
    head("part", "CPU seconds")
    for name, part in (
        ("means", lambda: st.summarise_table(values, generator=generator)),
        ("against the baseline", lambda: st.compare_table(values, "0", generator=generator)),
        ("all 435 pairs", lambda: st.pairs(values, generator=generator).beaten()),
    ):
        start = time.process_time()
        part()
        row(name, time.process_time() - start)


def detectable(simulations: int, generator: np.random.Generator) -> None:
    """Power at the difference that `minimum_detectable` states, on average over draws; 0.8 is promised, roughly."""
    head("seeds", "seed sd", "minimum detectable (points)", "power there")
    for seeds in (1, 3, 5, 10):
        for seed_sd in (0.0, 0.003, 0.01):
            world = st.Simulation(1200, seed_sd=seed_sd)
            if seeds == 1 and seed_sd:
                continue
            groups = st._groups(None, world.queries)
            first, second = world.draw(200, seeds, 0.0, generator)
            needed = float(st._minimum_detectable(st._parts(first - second, groups), groups, 0.05).mean())
            done = st.calibrate(world, seeds=seeds, generator=generator, effects=(needed,), simulations=simulations)
            row(seeds, seed_sd * 100, 100 * needed, done.power[needed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="as many simulations as docs/statistics.md: 1000")
    parser.add_argument("--simulations", type=int, help="for each figure; default 50")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    simulations = options.simulations or (1000 if options.full else 50)
    parts: list[Callable[[int, np.random.Generator], None]] = [rivals, tables, detectable, speed, grid]
    for number, part in enumerate(parts):
        start = time.perf_counter()
        print(f"\n## {(part.__doc__ or part.__name__).splitlines()[0]}\n")
        part(simulations, np.random.default_rng([options.seed, number]))
        print(f"\n({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
