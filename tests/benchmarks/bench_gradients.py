"""Gradients of one training step by how it is computed, with dropout on and random weights, beside the whole batch's.

    python tests/benchmarks/bench_gradients.py [--size full] [--only blip2] [--batch 4] [--double]

A step compares each query with all targets of the batch. It is computed whole, whole again, with activations computed
again, in micro-batches of a quarter, with both, and in two processes; printed is the largest difference to the whole
batch's gradients as a share of the largest gradient. With `--double` all is computed in float64, whose differences
show whether those of float32 are more than its rounding. The tower of BLIP and of CLIP trains. In float32 at full size
BLIP-2 takes 5 GiB, BLIP 9 GiB and CLIP 3 GiB.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from negbench.contracts import Backbone, QueryInputs, relevance
from negbench.loop.assemble_team import join
from negbench.loop.training_calls import TrainingCalls
from negbench.machine.team import ALONE, Team
from negbench.plugins.registry import registry

TEXTS = ("is red and shorter", "has long sleeves", "is darker", "without a belt")
OPTIONS: dict[str, dict[str, dict[str, object]]] = {
    "blip2": {"toy": {"size": "toy"}, "full": {"size": "vit_l"}},
    "blip": {"toy": {"size": "toy"}, "full": {"size": "base"}},
    "clip": {"toy": {"size": "toy", "frozen": False}, "full": {"model": "ViT-B-32", "frozen": False}},
}
SEED = 3
Gradients = dict[str, Tensor]


def gradients_of(model: Backbone, batch: int, micro_batch: int = 0, team: Team = ALONE) -> Gradients:
    """Return the gradients of a step; pictures 0 .. batch - 1 are references, the others targets."""
    calls = TrainingCalls(model, SEED, micro_batch, team)
    rows = torch.arange(batch)
    side = model.preprocess(blank()).shape
    pixels = torch.randn(2 * batch, *side, generator=torch.Generator().manual_seed(0))
    tokens = model.tokenize([TEXTS[row % len(TEXTS)] for row in range(batch)])

    def read(pictures: Tensor) -> Tensor:
        return pixels[pictures]

    model.zero_grad()
    model.train()
    if model.frozen_images:
        with torch.no_grad():
            stored = model.image_features(pixels)
        references = stored[:batch]
        targets = stored[batch:]
    else:
        references = calls.image_features(read, rows)
        targets = calls.image_features(read, rows + batch)
    candidates = calls.candidates(targets, rows + batch)
    queries = calls.queries(QueryInputs(rows, rows, references, tokens))
    loss = F.cross_entropy(relevance(queries, candidates) / model.temperature, rows)
    calls.backward(loss, list(model.parameters()))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def blank() -> object:
    """Return a picture, for the shape of its pixels."""
    from PIL import Image

    return Image.new("RGB", (32, 32))


def in_two_processes(model: Backbone, batch: int) -> Gradients:
    """Return the gradients of a step that two processes share: the first one's, which the second's equal."""
    with tempfile.TemporaryDirectory() as folder:

        def compute(number: int) -> None:
            team = Team(number, 2)
            join(team, Path(folder) / "meeting")
            torch.save(gradients_of(model, batch, team=team), Path(folder) / f"{number}.pt")

        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=compute, args=(number,)) for number in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a process ended with code {process.exitcode}")
        first, second = (torch.load(Path(folder) / f"{number}.pt", weights_only=True) for number in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    return first


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """Say how far gradients differ, as a share of the largest."""
    if one.keys() != other.keys():
        return "other parameters"
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    most = max(float((gradient - other[name]).abs().max()) for name, gradient in one.items())
    return "equal bits" if most == 0 else f"{most / largest:.1e}"


def row_of(model: Backbone, batch: int) -> list[str]:
    """Return the cells of a backbone's row."""
    whole = gradients_of(model, batch)
    part = max(1, batch // 4)
    cells = [difference(whole, gradients_of(model, batch))]
    model.recompute(True)
    cells.append(difference(whole, gradients_of(model, batch)))
    both = difference(whole, gradients_of(model, batch, part))
    model.recompute(False)
    cells.append(difference(whole, gradients_of(model, batch, part)))
    cells.append(both)
    cells.append(difference(whole, in_two_processes(model, batch)))
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["toy", "full"], default="toy")
    parser.add_argument("--only", choices=list(OPTIONS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.double:
        torch.set_default_dtype(torch.float64)
        Tensor.float = Tensor.double  # type: ignore[method-assign]  # backbones widen half precision by it
    print("| backbone | whole again | recomputed | micro-batches | both | two processes |")
    print("|---|---|---|---|---|---|")
    for name in [options.only] if options.only else OPTIONS:
        model = registry.make("backbones", name, init="random", **OPTIONS[name][options.size], seed=0)
        print("|", " | ".join([name, *row_of(model, options.batch)]), "|", flush=True)


if __name__ == "__main__":
    main()
