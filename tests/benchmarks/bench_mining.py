"""Time of `mine` over the score product alone, beside a loop over sorted rows and what others compute, in one run.

    python tests/benchmarks/bench_mining.py

The floor is physical: the matrix product of every query with its corpus, into one buffer. Embeddings are random unit
vectors, which costs the same time as real ones. Times are processor seconds of one thread (`--threads`), so that a busy
machine disturbs them less; every repetition measures the floor and each row once, and a ratio is of one repetition.
Printed: the median ratio and its least and greatest. Only ratios are comparable between machines.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.mining.mine import MiningTask, mine
from negbench.registry import registry

STRATEGIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("all-corpus", {}),
    ("top-k", {}),
    ("after-target", {}),
    ("cirqrs", {}),
    ("dqe", {}),
    ("dqe", {"scale": "quantile"}),
    ("qure", {}),
    ("qure", {"variant": "release"}),
)
LOOP_QUERIES = 32  # of the loop, which takes long


@dataclass(frozen=True)
class Size:
    """Q queries against N images of T tokens of width D."""

    queries: int
    images: int
    tokens: int = 1
    width: int = 512
    half: bool = False


def task_of(size: Size) -> MiningTask:
    generator = torch.Generator().manual_seed(0)
    candidates = torch.empty(size.images, size.tokens, size.width, dtype=torch.half if size.half else torch.float32)
    for part in candidates.split(2**14):
        part.copy_(normalize(torch.randn(part.shape, generator=generator), dim=-1))
    queries = normalize(torch.randn(size.queries, size.width, generator=generator), dim=-1)
    target = torch.randint(size.images, (size.queries,), generator=generator)
    group = torch.zeros(size.queries, dtype=torch.int64)
    return MiningTask(queries, candidates, target, group, [torch.arange(size.images)])


def product(task: MiningTask) -> None:
    """The scores of every query and token, 256 queries and 2^16 tokens at a time, into one buffer."""
    tokens = task.candidates.flatten(0, 1)
    out = torch.empty(256 * min(len(tokens), 2**16))
    for images in tokens.split(2**16):
        wide = images.float().T
        for queries in task.queries.split(256):
            torch.mm(queries, wide, out=out[: len(queries) * len(images)].view(len(queries), len(images)))


def mining(task: MiningTask, key: str, options: dict[str, str]) -> Callable[[], object]:
    strategy = registry.make("strategies", key, **options)
    return lambda: mine(task, strategy, refresh=1, draws=5, generator=torch.Generator().manual_seed(0))


def loop(task: MiningTask) -> None:
    """QuRe's pool as released code computes it: query by query, a sorted row, drops one by one in Python."""
    images = task.candidates.amax(1)
    for query, target in zip(task.queries, task.target.tolist(), strict=True):
        scores = images @ query
        own = float(scores[target])
        ranked, order = torch.sort(scores, descending=True)
        pairs = zip(ranked.tolist(), order.tolist(), strict=True)
        below = [(value, column) for value, column in pairs if value < own]
        falls = sorted(range(len(below) - 1), key=lambda at: below[at][0] - below[at + 1][0], reverse=True)
        low, high = sorted(falls[:2])
        _ = [column for _, column in below[low + 1 : high + 1]]


def faiss_top(task: MiningTask) -> None:
    """FAISS's exact search for 100 images a query."""
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(task.queries.shape[1])
    index.add(task.candidates.flatten(0, 1).float().numpy())
    index.search(task.queries.numpy(), 100)


def topk_rule(task: MiningTask) -> Tensor:
    """What sentence-transformers' `mine_hard_negatives` computes of embeddings without an index: product and topk."""
    k = min(112, len(task.candidates))
    found = [torch.topk(queries @ task.candidates[:, 0].T, k, dim=1).indices for queries in task.queries.split(256)]
    return torch.cat(found)


def seconds_of(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def report(size: Size, repetitions: int, *, others: bool) -> None:
    """Print one table."""
    task = task_of(size)
    rows: dict[str, Callable[[], object]] = {
        f"{key} {' '.join(options.values())}".strip(): mining(task, key, options) for key, options in STRATEGIES
    }
    part = task.shard(torch.arange(min(LOOP_QUERIES, size.queries)))
    if others:
        rows["loop over sorted rows (QuRe)"] = lambda: loop(part)
        rows["torch.topk, as sentence-transformers"] = lambda: topk_rule(task)
        if importlib.util.find_spec("faiss") is None:
            print("faiss is not installed: its row is left out")
        else:
            rows["faiss, exact top 100"] = lambda: faiss_top(task)
    product(task)
    floors, times = list[float](), {name: list[float]() for name in rows}
    for _ in range(repetitions):
        floors.append(seconds_of(lambda: product(task)))
        for name, action in rows.items():
            share = len(part.queries) / size.queries if name.startswith("loop") else 1
            times[name].append(seconds_of(action) / share)
    print(
        f"\nQ={size.queries} N={size.images} T={size.tokens} D={size.width} {'half' if size.half else 'float'}: "
        f"product {1e3 * median(floors) / size.queries:.3f} ms a query, {repetitions} repetitions"
    )
    print(f"{'':<38}{'x product':>10}{'spread':>16}{'ms a query':>12}")
    for name, found in times.items():
        ratios = [value / floor for value, floor in zip(found, floors, strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{name:<38}{median(ratios):>10.2f}{spread:>16}{1e3 * median(found) / size.queries:>12.3f}")


def machine() -> str:
    """What it ran on."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    )


def main() -> None:
    """Parse the size and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--images", type=int, default=6_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="also 10^4, 10^5 and 10^6 images in half precision")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    report(Size(options.queries, options.images), options.repetitions, others=True)
    report(Size(options.queries // 8, options.images, tokens=32, width=256), options.repetitions, others=False)
    if options.large:
        for images, queries in ((10**4, 256), (10**5, 256), (10**6, 64)):
            report(Size(queries, images, half=True), 1, others=False)


if __name__ == "__main__":
    main()
