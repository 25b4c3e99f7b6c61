"""Time a training step of the tiny backbone against a hand-written loop.

    python tests/benchmarks/bench_engine.py

The floor is a loop on features and tokens in memory: the backbone's own forward pass, the loss in one line of torch,
backward, AdamW, and nothing else. The engine's step adds feature lookups, the batch's mask and statistics, draws, the
schedule and the logged values. Both alternate over the same batches, epoch by epoch, in one thread. Times are the
fewest processor seconds over the rounds, so that a busy machine disturbs them less. Rendering the data takes most of
the time.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from bench_mining import seconds_of
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.contracts import Backbone, paired_relevance
from negbench.data.scene import DataCache, EncodedSplits, Split
from negbench.display import Display
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import TrainingParts
from negbench.loop.objective import Objective
from negbench.loop.runs import open_run
from negbench.loop.schedule import cosine
from negbench.loop.train import train_epoch
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun, State
from negbench.systems.system import load_config
from negbench.worlds._synthesis import Spec, ensure

SPEC = Spec(twins=4.5, train_images=96, train_queries=512, val_images=24, val_queries=8)

Step = Callable[[Backbone, Tensor, Mapping[str, Tensor], Tensor], Tensor]  # references, tokens, images -> loss


# --- floors: [B, L, C] references, B tokenised texts, [B, 1 + M, L, C] target and negatives -> scalar -----------------


def floor_corpus(model: Backbone, reference: Tensor, tokens: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Compute the Bradley-Terry loss with one drawn negative."""
    candidates = model.candidates(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    positive, negative = paired_relevance(model.queries(reference, tokens), candidates).unbind(1)
    return F.softplus((negative - positive) / model.temperature).mean()


def floor_in_batch(model: Backbone, reference: Tensor, tokens: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Compute the cross-entropy over the batch's targets."""
    scores = model.queries(reference, tokens) @ model.candidates(images[:, 0])[:, 0].T
    return F.cross_entropy(scores / model.temperature, torch.arange(len(scores)))


FLOORS: dict[str, tuple[str, Step]] = {
    "all-corpus": ("bradley-terry", floor_corpus),
    "in-batch": ("info-nce", floor_in_batch),
}


# --- steps -------------------------------------------------------------------------------------------------------


def epoch_of_engine(run: OpenRun, negatives: Tensor | None) -> Callable[[], None]:
    """Return a function that runs one epoch of the engine on given negatives [Q, 1]."""
    config = run.config
    backbone = run.backbone
    strategy = make_strategy(config.strategy.name)
    loss = make_loss(config.loss.name)
    objective = Objective(TrainingCalls(backbone, 0), strategy, loss, run.scene, config.mining, config.hybrid)
    optimizer = torch.optim.AdamW([*groups_of(run), *objective.parameter_groups(config.train.lr)])
    schedule = cosine(optimizer, config.train, 1)

    def epoch() -> None:
        streams = {name: torch.Generator().manual_seed(0) for name in ("batches", "draws")}
        parts = TrainingParts(objective, optimizer, schedule, run.precision.scaler, streams)
        state = State(negatives=negatives)
        train_epoch(run, parts, state, epoch_batches(run, objective, state, streams, strategy))

    return epoch


def epoch_of_floor(cell: OpenRun, negatives: Tensor | None, step: Step) -> Callable[[], None]:
    """Return a function that runs one epoch of the floor on batches whose inputs are in memory."""
    backbone = cell.backbone
    scene = cell.scene
    optimizer = torch.optim.AdamW(groups_of(cell))
    order = torch.randperm(len(scene.train.dataset.queries), generator=torch.Generator().manual_seed(0))
    ready = [inputs_of(scene, scene.train, rows, negatives) for rows in order.split(cell.config.train.batch_size)]

    def epoch() -> None:
        backbone.train()
        for reference, tokens, images in ready:
            loss = step(backbone, reference, tokens, images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def inputs_of(
    scene: EncodedSplits, split: Split, rows: Tensor, negatives: Tensor | None
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return reference features, tokens, and features of target and negatives for these queries."""
    columns = split.dataset.target_columns[rows][:, None]
    if negatives is not None:
        columns = torch.cat([columns, negatives[rows]], dim=1)
    images = scene.source(split.images[columns].flatten()).unflatten(0, columns.shape)
    return scene.source(split.references[rows]), {name: value[rows] for name, value in split.tokens.items()}, images


def groups_of(cell: OpenRun) -> list[dict[str, object]]:
    """Return AdamW's parameter groups with the configured learning rate and decay."""
    return cell.backbone.parameter_groups(cell.config.train.lr, cell.config.train.weight_decay)


def time_steps(rounds: int, folder: Path) -> None:
    """Measure and print the table of steps."""
    os.environ["NEGBENCH_CACHE"] = str(folder / "cache")
    root = ensure(folder / "data", SPEC)
    print("\ntraining step of the tiny backbone, milliseconds of one thread")
    print(f"{'strategy':<14}{'loss':<16}{'batch':>6}{'engine':>10}{'floor':>10}{'ratio':>8}{'added':>10}")
    for name, (loss, step) in FLOORS.items():
        flags = {"strategy": {"name": name}, "loss": {"name": loss}}
        config = load_config(flags=flags, sets=[f"dataset.root='{root}'", "compute.device='cpu'"])
        cell = open_run(config, Display(), DataCache())
        negatives = None
        if make_strategy(name).scope == "corpus":
            size = (len(cell.scene.train.dataset.queries), 1)
            columns = len(cell.scene.train.dataset.images)
            negatives = torch.randint(columns, size, generator=torch.Generator().manual_seed(0))
        epochs = [epoch_of_engine(cell, negatives), epoch_of_floor(cell, negatives, step)]
        best = [float("inf")] * 2
        for _ in range(rounds):
            best = [min(least, seconds_of(epoch)) for least, epoch in zip(best, epochs, strict=True)]
        steps = -(-len(cell.scene.train.dataset.queries) // cell.config.train.batch_size)
        engine, floor = (1000 * value / steps for value in best)
        print(
            f"{name:<14}{loss:<16}{cell.config.train.batch_size:>6}{engine:>8.2f}ms{floor:>8.2f}ms"
            f"{engine / floor:>8.2f}{engine - floor:>8.2f}ms"
        )


def main() -> None:
    """Parse the options and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each loop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        time_steps(options.rounds, Path(folder))


if __name__ == "__main__":
    main()
