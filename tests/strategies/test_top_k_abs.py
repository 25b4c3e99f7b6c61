from __future__ import annotations

from negbench.strategies.top_k_abs import TopKAbs
from negbench.testing import as_sets, ranking, toy_views


def test_against_loops() -> None:
    for limit, k in [(-0.5, 3), (0.0, 3), (0.7, 99)]:
        for view in toy_views():
            rows = range(len(view.target))
            want = [set([j for j in ranking(view, i) if float(view.scores[i, j]) < limit][:k]) for i in rows]
            assert as_sets(TopKAbs(limit=limit, k=k).pool(view)) == want
