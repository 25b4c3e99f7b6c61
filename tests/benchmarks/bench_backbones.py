"""Cost of BLIP-2 at full size, random weights: parameters, memory, and training with stored or fresh image features.

Run it by hand: `python tests/benchmarks/bench_backbones.py [--size vit_l] [--size vit_g] [--batch 32] [--steps 3]`. It
needs torch and transformers only, beside negbench itself. On a GPU the batch is the recipes' 32 and the tower runs in
fp16, as in LAVIS; on a CPU it is 8, in fp32. A training step is QuRe's: one query, its target and one negative each,
Bradley-Terry loss, backward, AdamW.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from negbench.backbones._hashing import count_parameters
from negbench.backbones.blip2 import Blip2
from negbench.contracts import paired_relevance

TEXT = "is shorter, with long sleeves and a round neckline and is dark blue"


def train_step(model: Blip2, optimizer: torch.optim.Optimizer, images: Tensor, tokens: dict[str, Tensor]) -> float:
    """One step on [3B, L, C] features: references, targets, negatives."""
    reference, target, negative = images.chunk(3)
    chosen = torch.stack([model.candidates(target), model.candidates(negative)], dim=1)
    positive, hard = paired_relevance(model.queries(reference, tokens), chosen).unbind(1)
    loss = F.softplus((hard - positive) / model.temperature).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def timed(run: Callable[[], object], steps: int, device: torch.device) -> float:
    """Seconds of one call, the mean of `steps` after one to warm up."""
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def peak_gib(device: torch.device) -> float:
    """Peak memory so far: of the GPU's tensors, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def bench(size: str, batch: int, steps: int, device: torch.device) -> None:
    """Print one row for one size."""
    precision = "fp16" if device.type == "cuda" else "fp32"
    started = time.perf_counter()
    model = Blip2.load(init="random", size=size, precision=precision).to(device).train()
    total, trainable = count_parameters(model), count_parameters(model, trainable=True)
    print(
        f"{size}: {total / 1e6:.1f} M parameters (tower {(total - trainable) / 1e6:.1f} M frozen, "
        f"{trainable / 1e6:.1f} M trainable), ready in {time.perf_counter() - started:.0f} s"
    )
    optimizer = torch.optim.AdamW(model.parameter_groups(5e-6, 0.05))
    generator = torch.Generator().manual_seed(0)
    side = model.image_size
    pixels = torch.randn(3 * batch, 3, side, side, generator=generator).to(device)
    tokens = {name: tensor.to(device) for name, tensor in model.tokenize([TEXT] * batch).items()}
    parts = [model.image_features(part) for part in pixels.split(batch)]
    stored = torch.cat(parts).half()
    megabytes = stored[0].numel() * 2 / 1e6
    with_store = timed(lambda: train_step(model, optimizer, stored, tokens), steps, device)
    memory = peak_gib(device)
    encode = timed(lambda: [model.image_features(part) for part in pixels.split(batch)], 1, device)
    fresh = timed(
        lambda: train_step(
            model, optimizer, torch.cat([model.image_features(part) for part in pixels.split(batch)]), tokens
        ),
        1,
        device,
    )
    print(
        f"  batch {batch}: stored features {batch / with_store:.2f} queries/s (peak {memory:.1f} GiB, "
        f"{megabytes:.2f} MB an image), encoding in every step {batch / fresh:.2f} queries/s; "
        f"tower alone {3 * batch / encode:.2f} images/s ({precision})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append", choices=["vit_l", "vit_g", "toy"], help="default: vit_l and vit_g")
    parser.add_argument("--batch", type=int, help="queries in a step; default 32 on a GPU, 8 on a CPU")
    parser.add_argument("--steps", type=int, default=3, help="timed steps with stored features")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = options.batch or (32 if device.type == "cuda" else 8)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}, torch {torch.__version__}")
    for size in options.size or ["vit_l", "vit_g"]:
        bench(size, batch, options.steps, device)


if __name__ == "__main__":
    main()
