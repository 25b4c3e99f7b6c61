"""The batches of an epoch: in the order that the strategy gives its queries, with their draws."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from negbench.contracts import Epoch, OrderedBatches, Strategy, SyntheticStrategy
from negbench.data.scene import Scene
from negbench.errors import NegbenchError
from negbench.loop.accelerator import shard
from negbench.loop.objective import Batch
from negbench.mining.composite import batch_rule
from negbench.mining.draws import splitmix
from negbench.scoring import evaluation

if TYPE_CHECKING:
    from negbench.loop.train import Loop


def epoch_batches(loop: Loop, strategy: Strategy, scene: Scene) -> Iterator[Batch]:
    """This process's share of every batch of the epoch that starts now.

    Args:
        loop: of the run.
        strategy: of the epoch.
        scene: of the epoch.
    """
    config, streams = loop.run.config, loop.moving.streams
    draws, tokens = loop.draws(), scene.train.texts(loop.run.backbone)
    chunks = _order(loop, strategy, scene).split(config.train.batch_size)
    # of each pool of a batch strategy; one that comes before a corpus strategy, or beside it, is used whole
    kept = config.train.num_negatives if draws is None and loop.strategy.scope == "batch" else None
    random = kept is not None or isinstance(batch_rule(strategy), SyntheticStrategy)
    base = torch.randint(2**63 - 1, (1,), generator=streams["draws"]) if random else None

    def made() -> Iterator[Batch]:
        for chunk in chunks:
            rows = shard(chunk, loop.run.accelerator)
            yield Batch(
                rows,
                None if draws is None else draws[rows],
                {name: value[rows] for name, value in tokens.items()},
                kept,
                None if base is None else splitmix(base, rows),
            )

    return made()


def _order(loop: Loop, strategy: Strategy, scene: Scene) -> Tensor:
    """[Q] int64.

    Raises:
        NegbenchError: a strategy whose order leaves out a query, or names one twice.
    """
    queries, rule = len(scene.train.dataset.queries), batch_rule(strategy)
    if not isinstance(rule, OrderedBatches):
        return torch.randperm(queries, generator=loop.moving.streams["batches"])
    order = rule.order(
        Epoch(
            loop.state.epoch,
            scene.train.dataset.target_columns,
            loop.run.config.train.batch_size,
            loop.moving.streams["batches"],
            partial(evaluation.embed_queries, loop.run.backbone, scene, scene.train),
        )
    )
    if not torch.equal(order.sort().values, torch.arange(queries)):
        raise NegbenchError(f"{type(rule).__name__}.order is no permutation of the {queries} queries")
    return order
