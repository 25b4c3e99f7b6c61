"""Check once, before a run computes anything, that it will fit in memory and on disk.

The estimates are lower bounds of what grows with an option; a backbone's activations are not counted.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from negbench.contracts import BankStrategy, Slot, Strategy
from negbench.data.scene import trained_state
from negbench.errors import PausedError
from negbench.loop.record import peak_memory_mib
from negbench.loop.schedule import Phase, phases_of
from negbench.loop.types import OpenRun, State
from negbench.machine.free_memory import machine_memory, size
from negbench.machine.room import Need, check_disk, check_memory
from negbench.mining.composite import batch_rules
from negbench.mining.pool_file import row_bytes
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # only estimates

# per drawn negative: column, score and gap as tensors, and as Python numbers while a refresh's table is written
_DRAWN_BYTES = 80
_DRAWN_DISK = 12
_ADAM = 4  # float32 values per trained parameter: itself, its gradient, two moments
_KEPT_POOLS = 3  # the checkpoint's, the last refresh's, and the one being written


def check_room(run: OpenRun, folder: Path) -> None:
    """Check that memory and disk have at least the room that a run will need.

    Args:
        run: the opened run.
        folder: any folder on the disk that the run is written to.

    Raises:
        OptionError: the machine has too little; shows the arithmetic of the largest part.
    """
    check_memory(memory_needs(run))
    check_memory(step_needs(run), run.precision.device)
    check_disk(disk_needs(run), folder)


def memory_needs(run: OpenRun) -> list[Need]:
    """Return the CPU memory that grows with the counts of a configuration."""
    config = run.config
    queries = len(run.scene.train.dataset.queries)
    epochs = (_longest_interval(config), "epochs between refreshes")
    factors = ((queries, "queries"), epochs, (config.train.draws, "negatives"), (_DRAWN_BYTES, "bytes"))
    return [Need("drawn negatives", factors, _fewer(config))]


def step_needs(run: OpenRun) -> list[Need]:
    """Return the least device memory of one training step and one scoring; the run's features are there already."""
    config = run.config
    scene = run.scene
    backbone = run.backbone
    strategy = _strategy(config)
    image = scene.source(torch.zeros(1, dtype=torch.int64)).numel()
    tokens = backbone.identity.tokens_per_image
    width = backbone.identity.embedding_dim
    batch = min(config.train.batch_size, len(scene.train.dataset.queries))
    mines = any(phase.refreshes for phase in phases_of(strategy, config))
    drawn = config.train.draws if mines else 0
    corpus = max(len(split.dataset.images) for split in (scene.train, scene.val, scene.also or scene.val))
    parameters = sum(value.numel() for value in trained_state(backbone).values())
    slots: set[Slot] = set()
    queue = 0
    for rule in batch_rules(strategy):
        slots |= {*rule.corrupts}
        if isinstance(rule, BankStrategy):
            queue = max(queue, rule.queue)
    if slots & {"reference", "modification", "triple"}:
        values = width  # of the query of each pair
    elif slots:
        values = tokens  # of which each pair has a score
    else:
        values = 0
    pairs = ((batch, "queries"), (batch, "members of the batch"), (values, "values"))
    images = ((batch, "queries"), (2 + drawn, "images"), (image, "values"))
    smaller = _quarter(batch)
    fewer = f"--set train.batch_size={smaller}, or --set train.num_negatives={_quarter(config.train.draws)}"
    float32 = (4, "bytes")
    return [
        Need("images of a step", (*images, float32), fewer),
        Need("candidates", ((corpus + queue, "images"), (tokens * width, "values"), float32), "use a smaller corpus"),
        Need("trained parameters", ((_ADAM * parameters, "values"), float32), "use a smaller backbone"),
        Need("scores of a batch", (*pairs, float32), f"--set train.batch_size={smaller}"),
    ]


def too_large_step(run: OpenRun, state: State) -> PausedError:
    """Return the error of a step that needed more memory than there is: what it held, and how it fits."""
    device = run.precision.device
    plan = run.step_plan
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        peak = int(peak_memory_mib()["process"] * 2**20)
        total = machine_memory()
    part = plan.micro_batch or run.config.train.batch_size
    if part > 1:
        fix = f"rerun the command with --set compute.micro_batch={max(1, part // 2)}"
    elif run.backbone.recomputes and not plan.recompute:
        fix = "rerun the command with --set compute.recompute=true"
    else:
        fix = "rerun the command on a device with more memory"
    return PausedError(
        f"out of memory in step {state.step + 1}: it held {size(peak)}, and {device.type} has {size(total)}: {fix}; "
        "the run resumes at this step"
    )


def _quarter(count: int) -> int:
    return max(1, count // 4)


def _fewer(config: ResolvedConfig) -> str:
    """Return how fewer negatives are drawn at once."""
    return f"--set train.num_negatives={_quarter(config.train.draws)}, or --set schedule.refresh_every=1"


def disk_needs(run: OpenRun) -> list[Need]:
    """Return the disk space of the run's folder, where old and new versions of a file may coexist."""
    config = run.config
    queries = len(run.scene.train.dataset.queries)
    weights = sum(value.numel() * value.element_size() for value in trained_state(run.backbone).values())
    mined = sum(phase.end - min(phase.refreshes) for phase in _mining_phases(config) if phase.is_last)
    corpus = max(len(split.dataset.images) for split in (run.scene.train, run.scene.val))
    checkpoint = (_ADAM - 1) * weights + queries * _longest_interval(config) * config.train.draws * 8
    tables = ((mined, "epochs"), (config.train.draws, "negatives"), (_DRAWN_DISK, "bytes"))
    pools = (_KEPT_POOLS if mined else 0, "refreshes"), (queries, "queries"), (row_bytes(corpus), "bytes")
    fewer = _fewer(config)
    return [
        Need("the last two checkpoints", ((2, "checkpoints"), (checkpoint, "bytes")), fewer),
        Need("tables of mined negatives", ((queries, "queries"), *tables), fewer),
        Need("pools", pools, "use a smaller corpus"),
        Need("weights", ((2, "copies"), (weights, "bytes")), "use a smaller backbone"),
    ]


def _strategy(config: ResolvedConfig) -> Strategy:
    strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    return strategy


def _mining_phases(config: ResolvedConfig) -> Iterator[Phase]:
    return (phase for phase in phases_of(_strategy(config), config) if phase.refreshes)


def _longest_interval(config: ResolvedConfig) -> int:
    """Return the largest number of epochs whose negatives are drawn at once."""
    longest = 0
    for phase in _mining_phases(config):
        for before, after in itertools.pairwise((*phase.refreshes, phase.end)):
            longest = max(longest, after - before)
    return longest
