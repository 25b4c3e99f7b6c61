"""Time of `mine` at FashionIQ's size against its floor, measured in the same run.

    python tests/benchmarks/bench_mining.py

The floor of a strategy that ranks is the score product of every query with its corpus plus one full sort of each row
(`negbench.metrics.ranks.descending`); that of the warm-up pool is the product alone. Embeddings are random unit
vectors, which costs the same time as real ones. Times are processor seconds of one thread (`--threads`), so that a
busy machine disturbs them less; only the ratios are comparable between machines.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import ScoreView, Strategy, relevance
from negbench.metrics.ranks import descending
from negbench.mining.mine import MiningTask, mine
from negbench.registry import registry
from negbench.strategies.all_corpus import AllCorpus

BLOCK = 256


@dataclass(frozen=True)
class Size:
    """Q queries in `groups` galleries of `images` images, T tokens of width D."""

    queries: int
    images: int
    groups: int = 3
    tokens: int = 1
    width: int = 256


@dataclass(frozen=True)
class Stopwatch(Strategy):
    """Passes a strategy through and adds up its seconds, less those of the sort that it shares with the statistics."""

    inner: Strategy
    seconds: list[float] = field(default_factory=lambda: [0.0])

    def pool(self, view: ScoreView) -> Tensor:
        if not isinstance(self.inner, AllCorpus):
            _ = view.order
        started = time.process_time()
        pool = self.inner.pool(view)
        self.seconds[0] += time.process_time() - started
        return pool


def task_of(size: Size) -> MiningTask:
    generator = torch.Generator().manual_seed(0)
    total = size.images * size.groups
    candidates = normalize(torch.randn(total, size.tokens, size.width, generator=generator), dim=-1)
    queries = normalize(torch.randn(size.queries, size.width, generator=generator), dim=-1)
    group = torch.arange(size.queries) % size.groups
    target = group * size.images + torch.randint(size.images, (size.queries,), generator=generator)
    groups = torch.arange(total).split(size.images)
    return MiningTask(queries, candidates, target, group, groups)


def floors_of(task: MiningTask) -> tuple[float, float]:
    """Seconds of the score products alone, and of one sort of every row alone."""
    product = sort = 0.0
    for index, columns in enumerate(task.groups):
        images = task.candidates[columns]
        for rows in torch.split((task.group == index).nonzero().squeeze(1), BLOCK):
            started = time.process_time()
            scores = relevance(task.queries[rows], images)
            product += time.process_time() - started
            started = time.process_time()
            descending(scores)
            sort += time.process_time() - started
    return product, sort


def seconds_of(task: MiningTask, strategy: Strategy, draws: int) -> float:
    """Seconds of one `mine`."""
    started = time.process_time()
    mine(task, strategy, refresh=1, draws=draws, generator=torch.Generator().manual_seed(0), block=BLOCK)
    return time.process_time() - started


def report(size: Size, draws: int) -> None:
    """Print one table: a row per strategy, the part that the strategy itself takes beside the total."""
    task = task_of(size)
    product, sort = floors_of(task)
    print(
        f"\nQ={size.queries} N={size.groups}x{size.images} T={size.tokens} D={size.width} draws={draws} block={BLOCK} "
        f"threads={torch.get_num_threads()}: product {product:.2f} s, one sort {sort:.2f} s"
    )
    print(f"{'strategy':<14}{'mine':>9}{'strategy':>10}{'floor':>9}{'ratio':>7}{'ratio without the strategy':>28}")
    for key, floor in (("all-corpus", product), *((name, product + sort) for name in ("dqe", "top-k", "qure"))):
        strategy = registry.make("strategies", key)
        own = Stopwatch(strategy)
        total = seconds_of(task, own, draws)
        print(
            f"{key:<14}{total:>8.2f}s{own.seconds[0]:>9.2f}s{floor:>8.2f}s{total / floor:>7.2f}"
            f"{(total - own.seconds[0]) / floor:>28.2f}"
        )


def main() -> None:
    """Parse the size and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=18_000)
    parser.add_argument("--images", type=int, default=6_000, help="per group; there are three groups")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report(Size(options.queries, options.images), options.draws)
    report(Size(options.queries // 6, options.images, tokens=32), options.draws)


if __name__ == "__main__":
    main()
