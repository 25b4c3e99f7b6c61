"""The table of docs/performance.md: memory and hours of the papers' recipes on cards of 24 and 80 GB, as estimates.

    python tests/benchmarks/bench_recipes.py [RECIPE ...]      # default: a toy model; `papers`: the papers' recipes

Memory comes from shapes (`negbench.loop.step_memory`), in bf16 as on a GPU: no weights, no data and no GPU are needed.
Hours are those of the training steps at the speed of the H200 in `cards.toml`; other cards differ.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from negbench.data.scene import DataCache
from negbench.loop.outlook import CARDS, Outlook, backbone_of
from negbench.loop.step_memory import Architecture
from negbench.loop.step_plan import StepPlan
from negbench.settings.config import ResolvedConfig, resolved
from negbench.systems.system import load_config

PAPERS = (
    *("qure-fashioniq", "qure-fashioniq-blip", "cirqrs-fashioniq"),
    *("hycole-fashioniq", "dqe-fashioniq", "dqe-fashioniq-blip"),
)
COUNTS = {"fashioniq": (18_000, 18_000), "cirr": (28_225, 16_939)}  # train queries and images
CARDS_GB = (24, 80)


class Card(Outlook):
    """An outlook on a card with so many gigabytes."""

    gigabytes = 24

    @property
    def memory(self) -> int:
        return self.gigabytes * 10**9


def rows_of(config: ResolvedConfig, name: str) -> list[str]:
    """Return the cells of a recipe's row."""
    queries, images = COUNTS.get(config.dataset.name, (1_000, 1_000))
    train: Any = SimpleNamespace(queries=range(queries), images=range(images))
    splits: Any = SimpleNamespace(train=train)
    architecture = Architecture(backbone_of(config, DataCache()), "bf16", config, [])
    card = Card(config, splits, architecture, torch.device("cuda"))
    whole = card.bytes_of(StepPlan())
    cells = [name, f"{config.train.batch_size}", f"{whole / 2**30:.1f}"]
    for gigabytes in CARDS_GB:
        sized = replace(card)
        object.__setattr__(sized, "gigabytes", gigabytes)
        cells.append(words(sized.fitting()))
    speed = 1e12 * next(each["tflops"] for each in CARDS if each["name"] == "H200")
    hours = card.operations() / speed / 3600
    cells.append(f"{hours:.1f}")
    return cells


def words(fit: StepPlan | None) -> str:
    """Say how a step fits."""
    return "no" if fit is None else str(fit)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    asked = parser.parse_args().recipes
    names = PAPERS if asked == ["papers"] else asked
    print("| recipe | batch | GiB of a whole step | 24 GB | 80 GB | hours of steps (H200) |")
    print("|---|---|---|---|---|---|")
    for name in names:
        print("|", " | ".join(rows_of(resolved(load_config(recipe=Path(name))), name)), "|", flush=True)
    if not names:
        flags = {"strategy": {"name": "qure"}, "backbone": {"name": "blip2", "init": "random", "size": "toy"}}
        print("|", " | ".join(rows_of(resolved(load_config(flags=flags)), "toy")), "|")


if __name__ == "__main__":
    main()
