"""Build an epoch's batches in the strategy's query order, with the negatives drawn for them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from negbench.contracts import Epoch, OrderedBatches, Strategy, SyntheticStrategy
from negbench.contracts.splitmix import splitmix
from negbench.data.reading import read_ahead
from negbench.data.scene import Split
from negbench.errors import NegbenchError
from negbench.loop.objective import Batch, Objective
from negbench.loop.types import OpenRun, State
from negbench.mining.composite import batch_rule
from negbench.scoring import evaluation


def epoch_batches(
    run: OpenRun, objective: Objective, state: State, streams: Mapping[str, torch.Generator], strategy: Strategy
) -> Iterator[Batch]:
    """Return an iterator over the batches of the current epoch, from the first step that the state does not have.

    Args:
        run: the run in training.
        objective: holds the epoch's scene and strategy.
        state: holds the epoch, its steps so far, and the negatives drawn for its refresh interval; receives the order.
        streams: random generators "batches" and "draws".
        strategy: the run's whole strategy; the objective's may be one part of it.

    Raises:
        NegbenchError: the strategy's order omits or repeats a query.
    """
    config = run.config
    current = objective.strategy
    scene = objective.scene
    start = (state.epoch - state.interval_start) * config.train.draws if config.mining.redraw else 0
    draws = None if state.negatives is None else state.negatives[:, start : start + config.train.draws]
    tokens = scene.train.texts(run.backbone)
    keep = None  # a batch strategy that precedes or joins a corpus strategy uses its whole pool
    if draws is None and strategy.scope == "batch":
        keep = config.train.num_negatives
    random = keep is not None or isinstance(batch_rule(current), SyntheticStrategy)
    if state.order is None:
        state.order = _order(run, objective, state, streams["batches"])
        state.base = torch.randint(2**63 - 1, (1,), generator=streams["draws"]) if random else None
    steps = config.train.steps(len(state.order))
    chunks = state.order.split(config.train.batch_size)[:steps]
    seeds: Sequence[Tensor | None] = [None] * len(chunks)
    if state.base is not None:
        seeds = splitmix(state.base, state.order).split(config.train.batch_size)[:steps]

    done = len(state.losses)

    def batches() -> Iterator[Batch]:
        for rows, seed in zip(chunks[done:], seeds[done:], strict=True):
            yield Batch(
                rows=rows,
                negatives=None if draws is None else draws[rows],
                tokens={name: value[rows] for name, value in tokens.items()},
                keep=keep,
                seed=seed,
                clean=None if state.clean is None else state.clean[rows],
            )

    return read_ahead(scene.source, batches(), partial(_pictures_of, scene.train))


def _pictures_of(train: Split, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the feature rows that a step asks for: of the references, and of targets and negatives, each once."""
    columns = train.dataset.target_columns[batch.rows]
    if batch.negatives is not None:
        columns = torch.cat([columns[:, None], batch.negatives], dim=1).unique()
    return train.references[batch.rows], train.images[columns]


def _order(run: OpenRun, objective: Objective, state: State, generator: torch.Generator) -> Tensor:
    """Return [Q] int64: the order of the epoch's queries, the strategy's own or random."""
    scene = objective.scene
    rule = batch_rule(objective.strategy)
    queries = len(scene.train.dataset.queries)
    if not isinstance(rule, OrderedBatches):
        return torch.randperm(queries, generator=generator)
    embed = partial(evaluation.embed_queries, run.backbone, scene, scene.train)
    columns = scene.train.dataset.target_columns
    size = run.config.train.batch_size
    order = rule.order(Epoch(state.epoch, columns, size, generator, embed))
    if not torch.equal(order.sort().values, torch.arange(queries)):
        raise NegbenchError(f"{type(rule).__name__}.order must return a permutation of the {queries} queries")
    return order
