"""Every other target of the batch, with batches in which no target occurs twice.

Rule: shuffle the queries and deal them to the batches so that queries of one target are separated.
Source: sentence-transformers, base/sampler.py, NoDuplicatesBatchSampler (read 2026-08-21).
Departures: the released sampler fills a batch with queries that do not clash, and the last ones may stay short; here
only the last may, and a target with more queries than there are batches (minus one) may repeat, which is masked.
Fallback: none needed; a query without allowed columns has no negatives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import Epoch, OrderedBatches

PAPER = "sentence-transformers, NoDuplicatesBatchSampler"


@dataclass(frozen=True, kw_only=True)
class NoDuplicates(OrderedBatches):
    """Pool: all allowed columns of the batch's own [B, B] score matrix."""

    def order(self, epoch: Epoch) -> Tensor:
        """[Q] int64: queries of one target side by side, then one to each batch in turn."""
        count = len(epoch.target)
        shuffled = torch.randperm(count, generator=epoch.generator)
        number = torch.randperm(int(epoch.target.max()) + 1, generator=epoch.generator)
        together = shuffled[number[epoch.target[shuffled]].argsort(stable=True)]
        rounds = torch.arange(-(-count // epoch.size) * epoch.size).reshape(-1, epoch.size).T.flatten()
        order = torch.empty_like(together)
        order[rounds[rounds < count]] = together
        return order
