from __future__ import annotations

from negbench.strategies.margin_pos import MarginPos
from negbench.testing import as_sets, ranking, toy_views


def test_against_loops() -> None:
    for margin, k in [(0.0, 4), (0.25, 3), (0.5, 99)]:
        for view in toy_views():
            want = []
            for i in range(len(view.target)):
                scores = view.scores[i].tolist()
                limit = scores[int(view.target[i])] - margin
                want.append(set([j for j in ranking(view, i) if scores[j] <= limit][:k]))
            assert as_sets(MarginPos(margin=margin, k=k).pool(view)) == want
