"""Mixed negatives: interpolations of two hard negatives, or of the query and one, added to a queue.

Rule: take each query's n highest-scored images of a queue. Type 1: s mixtures h = norm(a n_i + (1 - a) n_j) of two of
them, a ~ U(0, 1). Type 2: s' mixtures h = norm(b q + (1 - b) n_j) with the query, b ~ U(0, 1/2). No gradient flows
through h; all share one softmax with the queue.
Source: Kalantidis et al., Hard Negative Mixing for Contrastive Learning (arXiv:2010.01028, sec. 3); formulas and the
defaults n 32, s 16, s' 16 from davidsvy/hard-negative-mixing, src/moco.py (not by the authors). The paper's own
numbers (n 1024, s 1024, s' 128) are unverified.
Departures: no momentum encoder; embeddings of several tokens are mixed token by token, and the query with each token.
To start late, as the paper does, switch with `in-batch:2>mochi`; `queue` then fills from the switch on.
Fallback: none; a query without allowed columns has no negatives, mixed or other.
"""

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import BankStep, SyntheticStrategy, tunable

PAPER = "MoCHi, arXiv:2010.01028"


@dataclass(frozen=True, kw_only=True)
class Mochi(SyntheticStrategy):
    """Pool: all allowed images of the queue, including the batch's own targets, plus mixtures of the n hardest.

    Args:
        queue: number of images in the queue, >= 1.
        hardest: n, number of queue images that are mixed, >= 1.
        pairs: s, mixtures of two negatives per query, >= 0.
        with_query: s', mixtures of the query and a negative per query, >= 0.
    """

    queue: PositiveInt = tunable(8192, low=64, high=65536, log=True)
    hardest: PositiveInt = tunable(32, low=4, high=1024, log=True)
    pairs: NonNegativeInt = tunable(16, low=0, high=256)
    with_query: NonNegativeInt = tunable(16, low=0, high=256)

    def synthetic(self, step: BankStep) -> tuple[Tensor, Tensor]:
        """[B, s + s', T, D], and [B, s + s'] bool: True for all of a query's, or for none if its pool is empty."""
        hardest = step.view.window(step.pool > 0, self.hardest)
        members = hardest.sum(1)
        first = hardest.to(torch.int8).sort(dim=1, descending=True, stable=True).indices - 1  # indices into the bank

        def some(count: int) -> Tensor:
            index = (step.random(count) * members[:, None]).long()
            return step.images[first.gather(1, index).clamp(min=0)]  # [B, count, T, D]

        def share(count: int) -> Tensor:
            return step.random(count).to(step.images.dtype)[:, :, None, None]

        one = some(self.pairs)
        other = some(self.pairs)
        a = share(self.pairs)
        b = share(self.with_query) / 2
        query = step.queries[:, None, None].to(step.images.dtype)
        mixed = torch.cat([a * one + (1 - a) * other, b * query + (1 - b) * some(self.with_query)], dim=1)
        return normalize(mixed, dim=-1), (members > 0)[:, None].expand(-1, mixed.shape[1])
