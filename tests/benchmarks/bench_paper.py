"""Time scoring and refreshes at a paper's size relative to the bare score product of one thread.

    python tests/benchmarks/bench_paper.py [--share 0.1]

A world of vectors with 46,000 train images and three right images per query, 6,000 val queries among 15,000 images, one
token of 512, and a share of the 18,000 train queries. Scoring and refreshes include the embeddings of queries and
images; the images' part makes a refresh's ratio at a small share higher than at the whole size. Times are processor
seconds, the least of three rounds; only ratios are comparable.
"""

import argparse
import resource
from collections.abc import Callable
from functools import partial

import torch
from bench_mining import seconds_of

from negbench.contracts import Strategy
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.loop.runs import open_run
from negbench.loop.types import OpenRun
from negbench.mining.mine import mine
from negbench.mining.task import mining_task
from negbench.plugins.registry import registry
from negbench.scoring.evaluation import Embeddings, embed, measure
from negbench.systems.system import load_config

RULES = ("all-corpus", "top-k", "after-target", "cirqrs", "dqe", "qure")
ROUNDS = 3


def least(action: Callable[[], object]) -> float:
    return min(seconds_of(action) for _ in range(ROUNDS))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # MiB


def product(both: Embeddings) -> None:
    columns = both.candidates[:, 0].T
    scores = torch.empty(256, columns.shape[1])
    for queries in both.queries.split(256):
        torch.mm(queries, columns, out=scores[: len(queries)])


def refreshed(run: OpenRun, strategy: Strategy) -> None:
    task = mining_task(run.backbone, run.scene, run.config.mining, temperature=0.05)
    mine(task, strategy, refresh=1, draws=5, generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.1)
    share = parser.parse_args().share
    sizes = {"train_images": 46_000, "val_images": 15_000, "twins": 3.0}
    sizes |= {"train_queries": round(18_000 * share), "val_queries": 6_000}
    sets = [f"dataset.{key}={value}" for key, value in sizes.items()]
    named = {"strategy": {"name": "qure"}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    config = load_config(flags=named, sets=[*sets, "backbone.dim=512", "backbone.tokens=1"])
    torch.set_num_threads(1)
    bare = peak()
    run = open_run(config, Display(), DataCache())
    backbone, scene = run.backbone, run.scene
    with torch.inference_mode():
        val = embed(backbone, scene, scene.val)
        floor = least(lambda: product(val))
        scored = least(lambda: measure(backbone, scene, scene.val))
        print(f"scoring val: {scored / floor:.2f} times the product ({floor:.1f} s)", flush=True)
        train = embed(backbone, scene, scene.train)
        floor = least(lambda: product(train))
        for name in RULES:
            refresh = partial(refreshed, run, registry.make("strategies", name))
            print(f"refresh of {name}: {least(refresh) / floor:.2f} times the product ({floor:.1f} s)", flush=True)
    images = train.candidates.nbytes >> 20
    print(f"peak memory: {peak()} MiB, {bare} of them before the world, {images} embedded train images")


if __name__ == "__main__":
    main()
