"""Time a training step of the backbones with stored image features and with encoding in every step; random weights.

    python tests/benchmarks/bench_backbones.py [--size full] [--only blip2-vit-g] [--batch 32] [--threads 2]

The toy size takes seconds; the full size needs up to 10 GiB and, on a CPU, minutes per row. BLIP-2's rows need only
torch and transformers; CLIP's also need open_clip and torchvision and are skipped without them. A step is QuRe's:
queries with one target and one negative image each, Bradley-Terry loss, backward, AdamW. All images of a batch are
distinct, so each query encodes three images. Towers are frozen in both cases. On a GPU, the batch size is that of the
recipes, autocast is bf16 as with `train.precision = "auto"`, and BLIP-2's towers run in fp16. On a CPU, the batch is 8
queries in fp32, and seconds are processor seconds of all threads, so that other processes disturb them less; with more
than one thread, set OMP_WAIT_POLICY=passive, or waiting threads count as work. Peak memory covers the steps, weights
and optimiser: of the GPU's tensors, or of the process.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from negbench.backbones.blip2 import Blip2
from negbench.contracts import Backbone, Calls, QueryInputs, paired_relevance
from negbench.plugins.registry import build

TEXT = "is shorter, with long sleeves and a round neckline and is dark blue"
CPU_BATCH = 8
LR, WEIGHT_DECAY = 5e-6, 0.05


def clip(size: str, _: torch.device) -> tuple[Backbone, int]:
    """Load CLIP with frozen encoders; return it and its image size. ImportError without open_clip or torchvision."""
    from negbench.backbones.clip import Clip

    model = build(Clip, init="random", size="toy") if size == "toy" else build(Clip, init="random", model=size)
    return model, model.transform.size


def blip2(size: str, device: torch.device) -> tuple[Backbone, int]:
    """Load BLIP-2; return it and its image size."""
    precision = "fp16" if device.type == "cuda" else "fp32"
    model = build(Blip2, init="random", size=size)
    model.precision = precision
    return model, model.image_size


@dataclass(frozen=True)
class Row:
    """A row of the table; `batch` is the batch size in the recipes (HyCoLe's, QuRe's)."""

    size: str
    load: Callable[[torch.device], tuple[Backbone, int]]
    batch: int

    @property
    def steps(self) -> int:
        return 20 if self.size == "toy" else 3


ROWS = {
    "clip-toy": Row("toy", partial(clip, "toy"), 64),
    "blip2-toy": Row("toy", partial(blip2, "toy"), 32),
    "clip-vit-l-14": Row("full", partial(clip, "ViT-L/14"), 64),
    "blip2-vit-l": Row("full", partial(blip2, "vit_l"), 32),
    "blip2-vit-g": Row("full", partial(blip2, "vit_g"), 32),
}


def train_step(
    model: Backbone, optimizer: torch.optim.Optimizer, features: Callable[[], Tensor], tokens: dict[str, Tensor]
) -> None:
    """Run one step on [3B, L, C] features: references, targets, negatives."""
    images = features()
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.device.type == "cuda"):
        reference, target, negative = images.chunk(3)
        calls = Calls(model, 0)
        rows = torch.arange(len(reference))
        candidates = torch.stack([calls.candidates(target, rows), calls.candidates(negative, rows + len(rows))], dim=1)
        queries = calls.queries(QueryInputs(rows, rows, reference, tokens))
        positive, hard = paired_relevance(queries, candidates).unbind(1)
        loss = F.softplus((hard - positive) / model.temperature).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def encode(model: Backbone, pixels: Tensor) -> Tensor:
    """Encode [3B, 3, S, S] pixels as [3B, L, C] features, a third at a time."""
    with torch.no_grad(), model.autocast():
        return torch.cat([model.image_features(part) for part in pixels.chunk(3)])


def cost(run: Callable[[], object], steps: int, device: torch.device) -> tuple[float, float]:
    """Return the mean seconds of `steps` calls and their peak memory in GiB."""
    reset_peak(device)
    started = clock(device)
    for _ in range(steps):
        run()
    return (clock(device) - started) / steps, peak_gib(device)


def clock(device: torch.device) -> float:
    """Return wall-clock seconds after synchronising the GPU, or processor seconds without one."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: torch.device) -> float:
    """Return the peak memory since `reset_peak`, in GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if "VmHWM" in line) / 2**20


def bench(row: Row, batch: int, steps: int, device: torch.device) -> str:
    """Measure one row and return its formatted cells."""
    model, side = row.load(device)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameter_groups(LR, WEIGHT_DECAY))
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(3 * batch, 3, side, side, generator=generator).to(device)
    tokens = {name: tensor.to(device) for name, tensor in model.tokenize([TEXT] * batch).items()}
    features = encode(model, pixels).half()  # half precision, as in the feature store; also warms up the tower

    def step_with_stored() -> None:
        train_step(model, optimizer, features.float, tokens)

    def step_with_encoding() -> None:
        train_step(model, optimizer, partial(encode, model, pixels), tokens)

    step_with_stored()
    stored, stored_gib = cost(step_with_stored, steps, device)
    # encoding at full size is slow on a CPU, and one step is enough
    repeats = 1 if device.type == "cpu" and row.size == "full" else steps
    fresh, fresh_gib = cost(step_with_encoding, repeats, device)
    total = model.identity.parameters
    trained = model.identity.trainable_parameters
    return (
        f"{total / 1e6:>9.1f} M{trained / 1e6:>9.1f} M{features[0].numel() * 2 / 1e6:>9.3f} MB{batch:>7}"
        f"{batch / stored:>11.3g}/s{batch / fresh:>11.3g}/s{fresh / stored:>9.1f} x"
        f"{stored_gib:>9.2f} GiB{fresh_gib:>9.2f} GiB"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["toy", "full"], default="toy")
    parser.add_argument("--only", action="append", choices=list(ROWS), help="rows by name, whatever their size")
    parser.add_argument("--batch", type=int, help=f"queries in a step; default: the recipes', on a CPU {CPU_BATCH}")
    parser.add_argument("--steps", type=int, help="timed steps with stored features; default 20 toy, 3 full")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    unit = "second" if device.type == "cuda" else "processor second"
    print(f"{name}, torch {torch.__version__}; queries per {unit} of a training step, random weights")
    print(
        f"{'backbone':<15}{'parameters':>11}{'trained':>11}{'an image':>12}{'batch':>7}{'stored':>13}"
        f"{'encoding':>13}{'ratio':>11}{'peak stored':>13}{'encoding':>13}"
    )
    for key in options.only or [key for key, row in ROWS.items() if row.size == options.size]:
        row = ROWS[key]
        batch = options.batch or (row.batch if device.type == "cuda" else CPU_BATCH)
        try:
            print(f"{key:<15}{bench(row, batch, options.steps or row.steps, device)}", flush=True)
        except ImportError as error:
            print(f"{key:<15} left out: {error}", flush=True)


if __name__ == "__main__":
    main()
