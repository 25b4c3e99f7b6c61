"""The batches of an epoch: in the order that the strategy gives its queries, with their draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from negbench.contracts import Epoch, OrderedBatches, Strategy, SyntheticStrategy
from negbench.errors import NegbenchError
from negbench.loop.objective import Batch, Objective
from negbench.loop.types import OpenRun, State
from negbench.mining.composite import batch_rule
from negbench.mining.draws import splitmix
from negbench.scoring import evaluation


def epoch_batches(
    run: OpenRun, objective: Objective, state: State, streams: Mapping[str, torch.Generator], strategy: Strategy
) -> Iterator[Batch]:
    """Every batch of the epoch that starts now.

    Args:
        run: whose batches they are.
        objective: holds the epoch's scene and its strategy.
        state: holds the epoch and the negatives of its interval.
        streams: of the batches and of the draws.
        strategy: the run's, which the epoch's is a part of.

    Raises:
        NegbenchError: a strategy whose order leaves out a query, or names one twice.
    """
    config, current, scene = run.config, objective.strategy, objective.scene
    draws, tokens = epoch_draws(state, int(config.train.num_negatives or 1)), scene.train.texts(run.backbone)
    chunks = _order(run, objective, state, streams["batches"]).split(config.train.batch_size)
    # of each pool of a batch strategy; one that comes before a corpus strategy, or beside it, is used whole
    kept = config.train.num_negatives if draws is None and strategy.scope == "batch" else None
    random = kept is not None or isinstance(batch_rule(current), SyntheticStrategy)
    base = torch.randint(2**63 - 1, (1,), generator=streams["draws"]) if random else None

    def made() -> Iterator[Batch]:
        for rows in chunks:
            yield Batch(
                rows,
                None if draws is None else draws[rows],
                {name: value[rows] for name, value in tokens.items()},
                kept,
                None if base is None else splitmix(base, rows),
            )

    return made()


def epoch_draws(state: State, count: int) -> Tensor | None:
    """[Q, count] columns that were drawn for the epoch; None for a batch strategy."""
    start = (state.epoch - state.interval_start) * count
    return None if state.negatives is None else state.negatives[:, start : start + count]


def _order(run: OpenRun, objective: Objective, state: State, generator: torch.Generator) -> Tensor:
    """[Q] int64: the strategy's own order of the epoch's queries, a permutation."""
    scene, rule = objective.scene, batch_rule(objective.strategy)
    queries = len(scene.train.dataset.queries)
    if not isinstance(rule, OrderedBatches):
        return torch.randperm(queries, generator=generator)
    order = rule.order(
        Epoch(
            state.epoch,
            scene.train.dataset.target_columns,
            run.config.train.batch_size,
            generator,
            partial(evaluation.embed_queries, run.backbone, scene, scene.train),
        )
    )
    if not torch.equal(order.sort().values, torch.arange(queries)):
        raise NegbenchError(f"{type(rule).__name__}.order is no permutation of the {queries} queries")
    return order
