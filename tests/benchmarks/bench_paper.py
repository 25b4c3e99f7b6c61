"""Time scoring and refreshes at a paper's size relative to the bare score product of one thread.

    python tests/benchmarks/bench_paper.py [--share 0.1] [--gallery 1000000]

A world of vectors with 46,000 train images and three right images per query, 6,000 val queries among 15,000 images, one
token of 512, and a share of the 18,000 train queries. Scoring and refreshes include the embeddings of queries and
images; the images' part makes a refresh's ratio at a small share higher than at the whole size. Times are processor
seconds, the least of three rounds; only ratios are comparable. Then 128 queries are ranked in a large gallery of one
token of 64, with and without their references: leaving one out costs a column, not a mask.
"""

import argparse
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bench_mining import seconds_of

from negbench.benchmarks.triplets import Triplets
from negbench.contracts import Query, Strategy
from negbench.contracts.card import DatasetCard
from negbench.data.scene import DataCache
from negbench.datasets.dataset import Dataset, columns_of
from negbench.display import Display
from negbench.loop.mining_task import mining_task
from negbench.loop.runs import open_run
from negbench.loop.types import OpenRun
from negbench.mining.mine import mine
from negbench.plugins.registry import registry
from negbench.scoring.evaluation import Embeddings, block_scorer, embed, measure
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


def refresh(run: OpenRun, strategy: Strategy) -> None:
    task = mining_task(run.backbone, run.scene, run.config.mining, temperature=0.05)
    mine(task, strategy, refresh=1, draws=5, generator=torch.Generator().manual_seed(0))


def of_gallery(images: int, left_out: bool) -> Dataset:
    """Return 128 queries in one gallery, whose references the ranking leaves out or not."""
    names = [f"i{number}" for number in range(images)]
    queries = [Query(f"q{number}", names[number], "text", names[-1 - number], "all") for number in range(128)]
    about: dict[str, Any] = dict.fromkeys(("name", "protocol", "gallery", "text_template"), "made")
    card = DatasetCard(**about, metrics=("recall_at_1",), main="recall_at_1", exclude_reference=left_out)
    return Triplets(card, "val", queries, *columns_of({"all": names}), content="made")


def rank_gallery(images: int) -> None:
    """Print what ranking takes in a large gallery, by the product's time."""
    generator = torch.Generator().manual_seed(0)
    both = Embeddings(torch.randn(128, 64, generator=generator), torch.randn(images, 1, 64, generator=generator))
    floor = least(partial(product, both))
    for left_out in (False, True):
        dataset = of_gallery(images, left_out)
        seconds = least(partial(dataset.rank, block_scorer(both.queries, both.candidates)))
        what = "left out" if left_out else "ranked"
        print(
            f"{images:,} images, references {what}: {seconds / floor:.2f} times the product ({floor:.1f} s)", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--gallery", type=int, default=100_000)
    options = parser.parse_args()
    rank_gallery(options.gallery)
    sizes = {"train_images": 46_000, "val_images": 15_000, "twins": 3.0}
    sizes |= {"train_queries": round(18_000 * options.share), "val_queries": 6_000}
    sets = [f"dataset.{key}={value}" for key, value in sizes.items()]
    named = {"strategy": {"name": "qure"}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    config = load_config(flags=named, sets=[*sets, "backbone.dim=512", "backbone.tokens=1"])
    torch.set_num_threads(1)
    bare = peak()
    run = open_run(config, Display(), DataCache())
    backbone = run.backbone
    scene = run.scene

    def score_val() -> object:
        return measure(scene.val, embed(backbone, scene, scene.val))

    with torch.inference_mode():
        val = embed(backbone, scene, scene.val)
        floor = least(partial(product, val))
        print(f"scoring val: {least(score_val) / floor:.2f} times the product ({floor:.1f} s)", flush=True)
        train = embed(backbone, scene, scene.train)
        floor = least(partial(product, train))
        for name in RULES:
            seconds = least(partial(refresh, run, registry.make("strategies", name)))
            print(f"refresh of {name}: {seconds / floor:.2f} times the product ({floor:.1f} s)", flush=True)
    images = train.candidates.nbytes >> 20
    print(f"peak memory: {peak()} MiB, {bare} of them before the world, {images} embedded train images")


if __name__ == "__main__":
    main()
