"""The table of docs/performance.md: memory and hours of the papers' recipes on GPUs of 24 and 80 GB, as estimates.

    python tests/benchmarks/bench_recipes.py [RECIPE ...]      # default: a toy model; `papers`: the papers' recipes

Memory comes from shapes (`negbench.loop.step_memory`), in bf16 as on a GPU: neither weights nor a GPU is needed, and
annotations of FashionIQ's size are made here. Hours are those of the training steps, computed on each GPU in the
cheapest way that fits, at the speed of the H200 in `gpus.toml`: another GPU takes longer by what it is slower. What
bounds a step is the call with most operations; where the tower trains, also the processor seconds of its pictures.
"""

import argparse
import json
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from negbench.data.scene import DataCache
from negbench.loop.run_forecast import GPUS, RunForecast
from negbench.loop.step_plan import StepPlan
from negbench.settings.config import ResolvedConfig, resolve
from negbench.systems.system import load_config

PAPERS = (
    *("qure-fashioniq", "qure-fashioniq-blip", "cirqrs-fashioniq"),
    *("hycole-fashioniq", "dqe-fashioniq", "dqe-fashioniq-blip"),
)
GPUS_GB = (24, 80)
CATEGORIES = ("dress", "shirt", "toptee")
# of a category: train queries, each with a target of its own, and images besides; val queries, and val images
QUERIES, OTHERS, VAL_QUERIES, VAL_IMAGES = 6_000, 2_245, 2_005, 5_138
DECODING = 0.0062  # processor seconds to decode and scale a JPEG of 450 x 600 pixels (bench_reading.py)
WORDS = {
    "image_features": "the image tower",
    "candidates": "candidates (Q-Former)",
    "queries": "queries (Q-Former or text tower)",
    "cross_queries": "composing each reference with each text",
    "cross_texts": "composing each text with each text",
    "bank": "the bank",
}


@dataclass(frozen=True, eq=False)
class GpuForecast(RunForecast):
    """A forecast on a GPU with so many gigabytes, as fast as an H200."""

    gigabytes: int = 24

    @property
    def memory(self) -> int:
        return self.gigabytes * 10**9


def write_annotations(folder: Path) -> Path:
    """Write annotations of FashionIQ's size, in its layout; no pictures."""
    chance = random.Random(0)
    for category in CATEGORIES:
        targets = [f"{category}-t{number}" for number in range(QUERIES)]
        images = [*targets, *(f"{category}-o{number}" for number in range(OTHERS))]
        val = [f"{category}-v{number}" for number in range(VAL_IMAGES)]
        chance.shuffle(images)
        train = [(images[index % len(images)], target) for index, target in enumerate(targets)]
        scored = [(val[index], val[-1 - index]) for index in range(VAL_QUERIES)]
        for split, pairs, gallery in (("train", train, images), ("val", scored, val)):
            entries = [{"candidate": one, "target": other, "captions": ["is red", "is long"]} for one, other in pairs]
            write(folder / "captions" / f"cap.{category}.{split}.json", entries)
            write(folder / "image_splits" / f"split.{category}.{split}.json", gallery)
            words = {image: [["red"], ["long"]] for image in gallery}
            write(folder / f"asin2attr.{category}.{split}.json", words)
    return folder


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def rows_of(config: ResolvedConfig, name: str) -> list[str]:
    """Return the cells of a recipe's row."""
    cache = DataCache()
    with cache.lenient():  # neither pictures nor weights are there
        planned = RunForecast.of(config, cache)
    architecture = replace(planned.architecture, precision="bf16")
    forecasts = [GpuForecast(config, planned.splits, architecture, torch.device("cuda"), size) for size in GPUS_GB]
    whole = forecasts[0].bytes_of(StepPlan())
    cells = [name, f"{config.train.batch_size}", f"{whole / 2**30:.1f}"]
    speed = 1e12 * next(gpu["tflops"] for gpu in GPUS if gpu["name"] == "H200")
    for forecast in forecasts:
        plan = forecast.fitting()
        if plan is None:
            cells.append("no")
            continue
        hours = forecast.steps * sum(forecast.operations.values()) / speed / 3600
        cells.append(f"{plan}: {forecast.bytes_of(plan) / 2**30:.1f} GiB, {hours:.1f} h")
    return [*cells, bound(forecasts[-1])]


def bound(forecast: GpuForecast) -> str:
    """Say which call takes most of a step."""
    operations = forecast.operations
    most = max(operations, key=operations.__getitem__)
    share = operations[most] / sum(operations.values())
    line = f"{WORDS.get(most, most)}, {share:.0%}"
    if not forecast.architecture.backbone.frozen_images:
        line += f"; {forecast.rows.read * DECODING:.1f} CPU-s of decoding a step"
    return line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    names = parser.parse_args().recipes
    if names == ["papers"]:
        names = PAPERS
    print("| recipe | batch | GiB of a whole step | 24 GB | 80 GB | what bounds a step |")
    print("|---|---|---|---|---|---|")
    if not names:
        flags = {"strategy": {"name": "qure"}, "backbone": {"name": "blip2", "init": "random", "size": "toy"}}
        print("|", " | ".join(rows_of(resolve(load_config(flags=flags)), "toy")), "|")
        return
    with tempfile.TemporaryDirectory() as folder:
        root = write_annotations(Path(folder))
        for name in names:
            config = resolve(load_config(recipe=Path(name), sets=[f"dataset.root='{root}'"]))
            print("|", " | ".join(rows_of(config, name)), "|", flush=True)


if __name__ == "__main__":
    main()
