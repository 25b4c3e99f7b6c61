"""The hardest members of batches built from clusters of similar queries.

Rule: at each epoch the composed queries are cut in two balanced halves, and each half again, until no cluster has more
than `cluster` members; batches are filled with clusters in random order, and a query's negatives are the k other
targets of its batch that score highest.
Source: NGAME (arXiv:2207.04452), as released: Extreme-classification/ngame, ngame/libs/shortlist.py (read 2023-07-13):
balanced binary k-means, 10 negatives, clusters that double at given epochs from 1 on and are rebuilt every 5 epochs.
Departures: one cluster size for a whole run (8 is unverified), rebuilt every epoch; a cluster that does not fit into
the rest of a batch is split over two. Its margin loss is a loss here (`triplet`).
Fallback: none needed; a query without allowed columns has no negatives.
"""

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import Epoch, OrderedBatches, ScoreView, relevance, tunable
from negbench.metrics.ranks import descending

PAPER = "NGAME, arXiv:2207.04452"
_STEPS = 20  # maximum for one bisection


@dataclass(frozen=True, kw_only=True)
class Ngame(OrderedBatches):
    """Pool: the k highest-scored allowed columns of the batch, or all of them; ties by place in the batch.

    Args:
        cluster: maximum number of queries in a cluster, >= 1; 1 gives a random order.
        k: number of negatives, >= 1.
    """

    cluster: PositiveInt = tunable(8, low=2, high=64, log=True)
    k: PositiveInt = tunable(10, low=1, high=100, log=True)

    def order(self, epoch: Epoch) -> Tensor:
        """[Q] int64, cluster by cluster."""
        parts = [torch.randperm(len(epoch.target), generator=epoch.generator)]
        clusters = list[Tensor]()
        while parts:
            part = parts.pop()
            if len(part) <= self.cluster:
                clusters.append(part)
            else:
                side = _half(epoch.queries[part], epoch.generator)
                parts += [part[side], part[~side]]
        order = torch.randperm(len(clusters), generator=epoch.generator)
        return torch.cat([clusters[index] for index in order.tolist()])

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool, at most k True per row."""
        return view.window(view.allowed, self.k)


def _half(points: Tensor, generator: torch.Generator) -> Tensor:
    """[n] bool: the larger half of a balanced 2-means of [n, D] unit vectors, started from two of them."""
    centres = points[torch.randperm(len(points), generator=generator)[:2]]
    side = torch.zeros(len(points), dtype=torch.bool)
    for _ in range(_STEPS):
        first, second = centres
        lean = relevance((first - second)[None], points[:, None])
        before = side
        side = torch.zeros_like(side)
        half = -(-len(points) // 2)
        side[descending(lean)[0, :half]] = True
        if torch.equal(side, before):
            break
        centres = normalize(torch.stack([points[side].mean(0), points[~side].mean(0)]), dim=-1)
    return side
