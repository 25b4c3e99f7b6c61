from __future__ import annotations

import math

from negbench.strategies.pair_margin import PairMargin
from negbench.testing import as_sets, toy_views


def test_against_loops() -> None:
    for margin in [0.8, 1.5, 2.0]:
        for view in toy_views():
            for row, got in enumerate(as_sets(PairMargin(margin=margin).pool(view))):
                scores = view.scores[row].tolist()
                assert got == {
                    j for j, s in enumerate(scores) if view.allowed[row, j] and math.sqrt(2 - 2 * s) < margin
                }
