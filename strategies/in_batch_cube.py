"""The hardest of all triples that the members of a batch can form.

Paper: HyCoLe-HNM, table 4, compares its three-slot negatives with hard-negative mining over the N^3 - N triples of a
batch: (r_a, m_b, t_c), a, b, c not all equal.
Departures: the paper names neither its hard-negative method nor how many triples it takes. Here: the k of highest
score, the same for every query of the batch, as a triple's score does not depend on the query. The default k is the
number of three-slot negatives at the paper's batch of 64, 3 * 63.
Fallback: with fewer than k allowed triples, all of them.
"""

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable
from negbench.metrics.ranks import top_columns

PAPER = "HyCoLe-HNM table 4, 'hard negative mining'"


@dataclass(frozen=True, kw_only=True)
class InBatchCube(BatchStrategy):
    """Pool: the k allowed triples of the batch with the highest score; ties by (a, b, c).

    Args:
        k: number of triples, >= 1; None (`null` on the command line): the whole cube. A step then holds B^4 scores,
            which takes seconds on a CPU at a batch of 64: lower train.batch_size.
    """

    corrupts = ("triple",)

    k: PositiveInt | None = tunable(189, low=10, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        if self.k is None:
            return view.allowed.clone()
        columns = top_columns(view.scores, self.k, view.allowed)
        width = view.scores.shape[1]
        nowhere = columns.masked_fill(columns < 0, width)  # an extra last column, cut off again
        pool = torch.zeros(len(columns), width + 1, dtype=torch.bool, device=columns.device)
        return pool.scatter_(1, nowhere, True)[:, :width].clone()
