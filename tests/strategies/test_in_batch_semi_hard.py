from __future__ import annotations

from typing import get_args

import torch

from negbench.contracts import ScoreView
from negbench.strategies._scores import Triplets
from negbench.strategies.in_batch_semi_hard import InBatchSemiHard
from negbench.testing import as_sets

# rows are queries, the diagonal their targets
SCORES = torch.tensor(
    [
        [0.5, 0.375, 0.75, 0.25],
        [-0.5, -0.75, -1.0, -0.875],
        [0.0, 0.0, 0.0, 0.0],
        [-0.25, 0.25, 0.125, 0.0],
    ]
)


def test_against_loops() -> None:
    for seed in range(5):
        for triplets in get_args(Triplets):
            generator = torch.Generator().manual_seed(seed)
            scores = torch.randint(-8, 9, (9, 9), generator=generator) / 8
            allowed = torch.rand(9, 9, generator=generator) < 0.7
            got = as_sets(
                InBatchSemiHard(margin=0.375, triplets=triplets).pool(ScoreView(scores, torch.arange(9), allowed))
            )
            for i in range(9):
                own = float(scores[i, i])
                near = {j for j in range(9) if j != i and allowed[i, j] and float(scores[i, j]) >= own - 0.375}
                below = {j for j in near if float(scores[i, j]) < own}
                assert got[i] == {"semi-hard": below, "hard": near - below, "all": near}[triplets]
