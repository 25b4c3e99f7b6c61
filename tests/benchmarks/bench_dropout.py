"""What dropout by rows takes of a training step, beside torch's dropout in the same places and none at all.

    python tests/benchmarks/bench_dropout.py [--size full] [--only blip2] [--batch 8] [--rounds 5]

A step is QuRe's, as in bench_backbones.py, with stored features; BLIP encodes the images of its step, as its tower
trains. "Dropped numbers" are those that pass a dropout layer in a step, forward. The steps of the three kinds take
turns, and the least seconds of each count: on a CPU processor seconds in fp32, where matrix products are slow; on a GPU
wall-clock seconds under bf16. The last line gives the cost of a number alone, forward and backward, for rows of 32 x
768.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
import torch.nn.functional as F
from bench_backbones import LR, TEXT, WEIGHT_DECAY, clock, train_step
from torch import Tensor

from negbench.backbones.blip import Blip
from negbench.backbones.blip2 import Blip2
from negbench.contracts import Backbone, RowDropout, Rows, computing
from negbench.plugins.registry import build

BACKBONES = {"blip2": (Blip2, "vit_l"), "blip": (Blip, "base")}  # with the size of `--size full`
SHAPE = (32, 768)  # of a row: BLIP-2's query tokens


def torch_dropout(dropout: RowDropout, x: Tensor) -> Tensor:
    return F.dropout(x, dropout.p, dropout.training)


def no_dropout(_: RowDropout, x: Tensor) -> Tensor:
    return x


KINDS: dict[str, Callable[[RowDropout, Tensor], Tensor]] = {
    "by rows": RowDropout.forward,
    "torch's": torch_dropout,
    "none": no_dropout,
}


@contextmanager
def dropout_of(kind: str) -> Iterator[None]:
    """Use this kind of dropout within the block."""
    with patch.object(RowDropout, "forward", KINDS[kind]):
        yield


def step_of(model: Backbone, size: int, batch: int) -> Callable[[], None]:
    """Return a function that takes one training step of so many queries."""
    device = model.device
    model.train()
    optimizer = torch.optim.AdamW(model.parameter_groups(LR, WEIGHT_DECAY))
    pixels = torch.randn(3 * batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    tokens = {name: tensor.to(device) for name, tensor in model.tokenize([TEXT] * batch).items()}
    stored = None
    if model.frozen_images:
        with torch.no_grad():
            stored = model.image_features(pixels)

    def features() -> Tensor:
        return model.image_features(pixels) if stored is None else stored

    return partial(train_step, model, optimizer, features, tokens)


def numbers_of(step: Callable[[], None]) -> int:
    """Return how many numbers pass the dropout layers in a step, forward."""
    counts: list[int] = []

    def count(dropout: RowDropout, x: Tensor) -> Tensor:
        if dropout.training and dropout.p > 0:
            counts.append(x.numel())
        return x

    with patch.object(RowDropout, "forward", count):
        step()
    return sum(counts)


def least_seconds(step: Callable[[], None], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the least seconds of a step under each kind of dropout; the kinds take turns."""
    least = dict.fromkeys(KINDS, math.inf)
    for _ in range(rounds):
        for kind in KINDS:
            with dropout_of(kind):
                before = clock(device)
                step()
                least[kind] = min(least[kind], clock(device) - before)
    return least


def nanoseconds_of_a_number(rows: int, device: torch.device) -> dict[str, float]:
    """Return what a number costs alone under each kind, forward and backward; "none" is the backward pass's own."""
    x = torch.randn(rows, *SHAPE, device=device).requires_grad_()
    dropout = RowDropout(0.1).train()
    drawn = Rows.of(0, 0, "query", torch.arange(rows, device=device))

    def step() -> None:
        with computing(drawn):
            dropout(x).backward(torch.ones_like(x))

    least = least_seconds(step, 20, device)
    return {kind: 1e9 * seconds / x.numel() for kind, seconds in least.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["toy", "full"], default="toy")
    parser.add_argument("--only", choices=list(BACKBONES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'backbone':<10}{'dropped numbers':>17}{'by rows':>11}{'torch':>11}{'none':>11}{'by rows takes':>15}")
    for name in [options.only] if options.only else BACKBONES:
        cls, full = BACKBONES[name]
        model = build(cls, init="random", size=full if options.size == "full" else "toy").to(device)
        step = step_of(model, model.image_size, options.batch)
        numbers = numbers_of(step)
        by_rows, theirs, none = least_seconds(step, options.rounds, device).values()
        share = (by_rows - none) / by_rows
        print(f"{name:<10}{numbers:>17,}{by_rows:>9.3f} s{theirs:>9.3f} s{none:>9.3f} s{share:>14.1%}", flush=True)
    alone = nanoseconds_of_a_number(options.batch, device)
    print("a number alone: " + ", ".join(f"{kind} {cost:.2f} ns" for kind, cost in alone.items()))


if __name__ == "__main__":
    main()
