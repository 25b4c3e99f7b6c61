"""Time `mine` relative to the bare score product, with a loop over sorted rows and other libraries for comparison.

    python tests/benchmarks/bench_mining.py

The floor is the matrix product of every query with its corpus, into one buffer. Embeddings are random unit vectors,
which take the same time as real ones. Times are processor seconds of one thread (`--threads`), so that a busy machine
disturbs them less. Every repetition measures the floor and each row once; each ratio is within one repetition. Printed
are the median ratio and its range. Only ratios are comparable between machines.

sentence-transformers (with datasets) and FAISS run if they are installed. `--large` keeps features in half precision
in a memory-mapped file and prints how much further memory mining took.
"""

import argparse
import importlib.util
import itertools
import math
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.api import make_strategy
from negbench.machine.heap import keep_memory
from negbench.metrics import compiled
from negbench.metrics.equal_rows import Copies
from negbench.mining.mine import mine
from negbench.mining.task import MiningTask
from negbench.settings.layers import parse_plugin

STRATEGIES = ("all-corpus", "top-k", "after-target", "cirqrs", "dqe", "dqe:scale=quantile", "qure")
STRATEGIES += ("qure:variant=release",)
# a rule that sentence-transformers also offers: the five best images that score more than 5 % below the target
RULE: dict[str, object] = {"num_negatives": 5, "relative_margin": 0.05}
LOOP_QUERIES = 32  # few, as the loop is slow
BLOCK = 2**14  # images drawn at once
TILE = 2**10  # images per product; the fastest of 2^10, 2^12 and 2^14, with and without half precision


def task_of(
    queries: int, images: int, *, tokens: int = 1, width: int = 512, half: bool = False, folder: Path | None = None
) -> MiningTask:
    """Return a task on random unit vectors; given `folder`, images are in a memory-mapped file there.

    Args:
        queries, images: how many.
        tokens, width: per image, and of a token.
        half: whether images are in half precision.
        folder: of the file.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (images, tokens, width)
    kind = np.float16 if half else np.float32
    file = None if folder is None else folder / str(images)
    table = np.empty(shape, kind) if file is None else np.lib.format.open_memmap(file, "w+", kind, shape)
    for part in torch.from_numpy(table).split(BLOCK):
        part.copy_(normalize(torch.randn(part.shape, generator=generator), dim=-1))
    if file is not None:
        table.flush()
        table = np.lib.format.open_memmap(file, "c")
    rows = normalize(torch.randn(queries, width, generator=generator), dim=-1)
    target = torch.randint(images, (queries,), generator=generator)
    return MiningTask(rows, torch.from_numpy(table), target, torch.zeros_like(target), [torch.arange(images)])


def product(task: MiningTask) -> None:
    """Compute the scores of every query and token, 256 queries and 2^10 tokens at a time, into one buffer.

    Half precision is converted to float32 once for all queries (3 % of the time).
    """
    tokens = task.candidates.flatten(0, 1)
    out = torch.empty(256 * min(len(tokens), TILE))
    wide = torch.empty(TILE, tokens.shape[1])
    for images in tokens.split(TILE):
        columns = (images if images.dtype == torch.float32 else wide[: len(images)].copy_(images)).T
        for queries in task.queries.split(256):
            torch.mm(queries, columns, out=out[: len(queries) * len(images)].view(len(queries), len(images)))


def refresh_of(task: MiningTask, name: str, **options: object) -> Callable[[], object]:
    """Return a function that mines with a strategy."""
    strategy = make_strategy(name, **options)

    def refresh() -> object:
        return mine(task, strategy, refresh=1, draws=5, generator=torch.Generator().manual_seed(0))

    return refresh


def loop(task: MiningTask) -> None:
    """Compute QuRe's pool like the released code: per query, sort the row and compare its drops in Python."""
    images = task.candidates.amax(1)
    for query, target in zip(task.queries, task.target.tolist(), strict=True):
        scores = images @ query
        target_score = float(scores[target])
        ranked, order = torch.sort(scores, descending=True)
        below = []
        columns = []
        for score, column in zip(ranked.tolist(), order.tolist(), strict=True):
            if score < target_score:
                below.append(score)
                columns.append(column)
        drops = [before - after for before, after in itertools.pairwise(below)]
        largest = sorted(range(len(drops)), key=drops.__getitem__, reverse=True)
        low, high = sorted(largest[:2])
        _ = columns[low + 1 : high + 1]


def faiss_top(task: MiningTask) -> None:
    """Run FAISS's exact search for 100 images per query."""
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(task.queries.shape[1])
    index.add(task.candidates.flatten(0, 1).float().numpy())
    index.search(task.queries.numpy(), 100)


class Vectors:
    """The model interface of `mine_hard_negatives`: looks up stored embeddings for texts that are row numbers."""

    device = torch.device("cpu")

    def __init__(self, task: MiningTask) -> None:
        self._queries = task.queries.numpy()
        self._images = task.candidates[:, 0].numpy()

    def encode_query(self, texts: list[str], **_: object) -> np.ndarray:
        return self._queries[[int(text[1:]) for text in texts]]

    def encode_document(self, texts: list[str], **_: object) -> np.ndarray:
        return self._images[[int(text[1:]) for text in texts]]

    def similarity(self, one: np.ndarray, other: Tensor) -> Tensor:
        return torch.from_numpy(one) @ other.T

    def similarity_pairwise(self, one: np.ndarray, other: Tensor) -> Tensor:
        return (torch.from_numpy(one) * other).sum(1)


def sentence_transformers(task: MiningTask) -> Callable[[], object]:
    """Return a function that runs `mine_hard_negatives` on stored embeddings and builds its output data set."""
    mine_hard_negatives = importlib.import_module("sentence_transformers.util").mine_hard_negatives
    datasets = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    pairs = datasets.Dataset.from_dict(
        {"query": [f"q{n}" for n in range(len(task.queries))], "image": [f"i{n}" for n in task.target.tolist()]}
    )
    model = Vectors(task)
    corpus = [f"i{number}" for number in range(len(task.candidates))]
    return partial(mine_hard_negatives, pairs, model, corpus=corpus, output_format="n-tuple", verbose=False, **RULE)


def by_torch(action: Callable[[], object]) -> Callable[[], object]:
    """Return the action without the compiled passes."""

    def run() -> None:
        before = compiled.SMALLEST
        compiled.SMALLEST = 2**62
        action()
        compiled.SMALLEST = before

    return run


def seconds_of(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def peers(task: MiningTask) -> dict[str, Callable[[], object]]:
    """Return the same task for other libraries that are installed."""
    actions: dict[str, Callable[[], object]] = {}
    if importlib.util.find_spec("faiss") is not None:
        actions["FAISS, exact top 100"] = partial(faiss_top, task)
    if all(importlib.util.find_spec(name) is not None for name in ("sentence_transformers", "datasets")):
        actions["sentence-transformers, its rule"] = sentence_transformers(task)
    if len(actions) < 2:
        print(f"of FAISS and sentence-transformers with datasets there is {', '.join(actions) or 'none'}")
    return actions


def report(task: MiningTask, repetitions: int, *, others: bool) -> dict[str, float]:
    """Print one table; return each row's least processor seconds per query."""
    queries = len(task.queries)
    images, tokens, width = task.candidates.shape
    rows = {text: refresh_of(task, **parse_plugin(text)) for text in STRATEGIES}
    rows["finding equal images, a part of each"] = partial(Copies.of, task.candidates)
    part = task.shard(torch.arange(min(LOOP_QUERIES, queries)))
    if others:
        rows["the rule of sentence-transformers"] = refresh_of(task, "sentence-transformers", **RULE)
        if compiled.kernels(torch.empty(compiled.SMALLEST, 1)) is not None:
            rows |= {f"{name}, without numba": by_torch(action) for name, action in rows.items()}
        rows["loop over sorted rows (QuRe)"] = partial(loop, part)
        rows |= peers(task)
    floor = partial(product, task)
    for action in (floor, *rows.values()):  # warm-up: compiles or loads machine code
        action()
    floors = list[float]()
    times = {name: list[float]() for name in rows}
    for _ in range(repetitions):
        floors.append(seconds_of(floor))
        for name, action in rows.items():
            share = len(part.queries) / queries if name.startswith("loop") else 1
            times[name].append(seconds_of(action) / share)
    print(
        f"\nQ={queries} N={images} T={tokens} D={width} {str(task.candidates.dtype).removeprefix('torch.')}: "
        f"product {1e3 * median(floors) / queries:.3f} ms a query, {repetitions} repetitions"
    )
    print(f"{'':<48}{'x product':>10}{'spread':>16}{'ms a query':>12}")
    for name, seconds in times.items():
        ratios = [value / floor for value, floor in zip(seconds, floors, strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{name:<48}{median(ratios):>10.3f}{spread:>16}{1e3 * median(seconds) / queries:>12.3f}", flush=True)
    return {name: min(seconds) / queries for name, seconds in times.items()}


@contextmanager
def memory() -> Iterator[list[float]]:
    """Yield a one-item list with the process's peak growth in MiB so far, without mapped files."""

    def resident() -> float:
        with Path("/proc/self/status").open(encoding="utf-8") as file:
            return next(float(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024

    before = resident()
    grown = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            grown[0] = max(grown[0], resident() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield grown
    finally:
        done.set()
        thread.join()


def large(sizes: Sequence[int], queries: int) -> None:
    """Print tables for growing corpora, and how cost grows with their size."""
    costs: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for images in sizes:
            task = task_of(queries, images, half=True, folder=Path(folder))
            with memory() as grown:
                costs[images] = report(task, 1, others=False)
            print(f"memory beside the features: {grown[0]:.0f} MiB")
    low = min(sizes, default=0)
    high = max(sizes, default=0)
    if low == high:  # a single size shows no growth
        return
    print(f"\ncost grows from {low} to {high} images as N to the power of")
    for name in costs[low]:
        print(f"{name:<48}{math.log(costs[high][name] / costs[low][name]) / math.log(high / low):>10.3f}")


def machine() -> str:
    """Return the processor, number of threads and version of torch."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    )


def main() -> None:
    """Parse the options and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--images", type=int, default=6_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--large", type=int, nargs="*", default=[10**4, 10**5, 10**6], help="corpora in half precision, once each"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()  # as `negbench mine` and every run
    print(machine())
    report(task_of(options.queries, options.images), options.repetitions, others=True)
    many = task_of(max(1, options.queries // 4), options.images, tokens=32, width=256)
    report(many, options.repetitions, others=False)
    if options.large:
        large(options.large, options.queries)


if __name__ == "__main__":
    main()
