"""Every other target of the batch, of batches in which no target occurs twice.

Rule: the queries are shuffled, and dealt to the batches so that those of one target part.
Source: sentence-transformers, base/sampler.py, NoDuplicatesBatchSampler (read 2026-08-21).
Departures: there a batch is filled with what does not clash, and the last ones may stay short; here all batches are
full but the last, and a target with more queries than there are batches (less one) may repeat, which is masked.
Fallback: none is needed; a query whose every column is disallowed has no negative.
"""

from __future__ import annotations

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
