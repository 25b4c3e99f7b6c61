"""What a run will need of memory and disk, checked once, before anything of it is computed.

Bounds from below, of what grows with an option: a backbone's own activations are not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from negbench.config import ResolvedConfig
from negbench.contracts import BankStrategy, Strategy
from negbench.data.scene import trained_state
from negbench.loop.schedule import Stage, stages_of
from negbench.loop.types import OpenRun
from negbench.mining.composite import batch_rules
from negbench.mining.pool_file import row_bytes
from negbench.registry import registry
from negbench.room import Need, check_disk, check_memory
from negbench.scoring import evaluation

MOVES_SCORES = False  # looks ahead

# a drawn negative: its column, score and gap as tensors, and as Python numbers while the table of a refresh is written
_DRAWN_BYTES, _DRAWN_DISK = 80, 12
_POINT_BYTES = 500  # of a line of metrics.jsonl, which the checkpoint holds as well
_ADAM = 4  # float32 values of a trained parameter: itself, its gradient, two moments
_KEPT_POOLS = 3  # of the last two refreshes, and the one that is being written


def check_room(run: OpenRun, folder: Path) -> None:
    """Check, once and before a run is computed, that memory and disk hold what it will need at least.

    Args:
        run: opened.
        folder: on the disk that takes the run.

    Raises:
        OptionError: more is needed than the machine has; with the arithmetic of the largest part.
    """
    check_memory(memory_needs(run))
    check_memory(step_needs(run), run.precision.device)
    check_disk(disk_needs(run), folder)


def memory_needs(run: OpenRun) -> list[Need]:
    """What grows with the counts of a configuration, in the memory of the CPU."""
    config, queries = run.config, len(run.scene.train.dataset.queries)
    count, interval = int(config.train.num_negatives or 1), _longest_interval(config)
    factors = (
        (queries, "queries"),
        (interval, "epochs between refreshes"),
        (count, "negatives"),
        (_DRAWN_BYTES, "bytes"),
    )
    mend = "lower train.num_negatives, or refresh more often"
    return [Need("drawn negatives", factors, mend), _of_points(config, copies=2)]


def step_needs(run: OpenRun) -> list[Need]:
    """What one training step and one scoring hold at least, on the device; the run's features are there."""
    config, scene, backbone = run.config, run.scene, run.backbone
    strategy = _strategy(config)
    first = torch.zeros(1, dtype=torch.int64)
    image, (tokens, width) = scene.source(first).numel(), evaluation.embed_candidates(backbone, scene, first).shape[1:]
    batch = min(config.train.batch_size, len(scene.train.dataset.queries))
    drawn = int(config.train.num_negatives or 1) if any(stage.refreshes for stage in stages_of(strategy, config)) else 0
    lower = "lower train.batch_size"
    found = [
        Need(
            "images of a step",
            ((batch, "queries"), (2 + drawn, "images"), (image, "values"), (4, "bytes")),
            f"{lower} or train.num_negatives" if drawn else lower,
        ),
        Need(
            "candidates",
            (
                (max(len(split.dataset.images) for split in (scene.train, scene.val)), "images"),
                (tokens * width, "values"),
                (4, "bytes"),
            ),
            "take a smaller corpus, or a backbone of fewer tokens",
        ),
        Need(
            "trained parameters",
            (
                (sum(value.numel() for value in trained_state(backbone).values()), "values"),
                (4 * _ADAM, "bytes"),
            ),
            "take a smaller backbone",
        ),
    ]
    rules = batch_rules(strategy)
    slots = {slot for rule in rules for slot in rule.corrupts}
    square = ((batch, "queries"), (batch, "members of the batch"))
    if slots:
        found.append(Need("scores of a batch", (*square, (tokens, "tokens"), (4, "bytes")), lower))
    if slots & {"reference", "modification", "triple"}:
        found.append(Need("queries made of a batch's members", (*square, (width, "values"), (4, "bytes")), lower))
    if "triple" in slots:
        found.append(Need("triples of a batch", (*square, (batch, "targets"), (5, "bytes")), lower))
    queue = max((rule.queue for rule in rules if isinstance(rule, BankStrategy)), default=0)
    if queue:
        factors = ((queue, "targets"), (tokens * width, "values"), (4, "bytes"))
        found.append(Need("remembered targets", factors, "lower the strategy's size of memory"))
    return found


def disk_needs(run: OpenRun) -> list[Need]:
    """What the run's folder will hold, and what is written beside its older version before that goes."""
    config, queries = run.config, len(run.scene.train.dataset.queries)
    count, interval = int(config.train.num_negatives or 1), _longest_interval(config)
    weights = sum(value.numel() * value.element_size() for value in trained_state(run.backbone).values())
    mined = sum(stage.end - min(stage.refreshes) for stage in _mined(config) if stage.kept)
    corpus = max(len(split.dataset.images) for split in (run.scene.train, run.scene.val))
    return [
        Need(
            "the last checkpoint and the one before",
            ((2, "checkpoints"), ((_ADAM - 1) * weights + queries * interval * count * 8, "bytes")),
            "lower train.num_negatives, or refresh more often",
        ),
        Need(
            "tables of what was mined",
            ((queries, "queries"), (mined, "epochs"), (count, "negatives"), (_DRAWN_DISK, "bytes")),
            "lower train.num_negatives or train.epochs",
        ),
        Need(
            "pools",
            ((_KEPT_POOLS if mined else 0, "refreshes"), (queries, "queries"), (row_bytes(corpus), "bytes")),
            "take a smaller corpus",
        ),
        _of_points(config, copies=4),
        Need("weights", ((2, "copies"), (weights, "bytes")), "take a smaller backbone"),
    ]


def _of_points(config: ResolvedConfig, copies: int) -> Need:
    factors = ((config.train.epochs, "epochs"), (copies * _POINT_BYTES, "bytes"))
    return Need("points of the curves", factors, "lower train.epochs")


def _strategy(config: ResolvedConfig) -> Strategy:
    found: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    return found


def _mined(config: ResolvedConfig) -> Iterator[Stage]:
    return (stage for stage in stages_of(_strategy(config), config) if stage.refreshes)


def _longest_interval(config: ResolvedConfig) -> int:
    """Epochs whose negatives are drawn at once."""
    ends = [itertools.pairwise((*stage.refreshes, stage.end)) for stage in _mined(config)]
    return max((after - before for before, after in itertools.chain(*ends)), default=0)
