from __future__ import annotations

import pytest
import torch

from negbench.contracts import Embedded, ScoreView
from negbench.errors import NegbenchError
from negbench.mining.draws import uniform
from negbench.strategies.mochi import Mochi
from negbench.testing import as_sets, toy_view


def embedded(view: ScoreView, tokens: int = 1) -> Embedded:
    generator = torch.Generator().manual_seed(3)
    rows, columns = view.scores.shape
    unit = torch.nn.functional.normalize
    images = unit(torch.randn(columns - 1, tokens, 8, generator=generator), dim=-1)
    queries = unit(torch.randn(rows, 8, generator=generator), dim=-1)
    used = [0]

    def random(count: int) -> torch.Tensor:
        used[0] += count
        return uniform(torch.arange(rows)[:, None], torch.arange(used[0] - count, used[0]))

    return Embedded(view, Mochi().pool(view), queries, images, random)


def bank_view(rows: int = 4, images: int = 9) -> ScoreView:
    """Negative scores; the last row allows no image."""
    scores = -torch.rand(rows, 1 + images, generator=torch.Generator().manual_seed(1)) - 0.1
    allowed = torch.ones_like(scores, dtype=torch.bool)
    allowed[-1] = False
    return ScoreView(scores, torch.zeros(rows, dtype=torch.int64), allowed)


def test_the_pool_is_what_is_allowed() -> None:
    """Its steps are in tests/loop/test_extensions.py."""
    view = toy_view(6, 20, sign="negative")
    assert as_sets(Mochi().pool(view)) == [{j for j in range(20) if view.allowed[i, j]} for i in range(6)]


@pytest.mark.parametrize("tokens", [1, 3])
def test_type_one_lies_between_two_of_the_hardest(tokens: int) -> None:
    shown = embedded(bank_view(), tokens)
    mixed, there = Mochi(hardest=2, pairs=50, with_query=0).synthetic(shown)
    assert mixed.shape == (4, 50, tokens, 8)
    assert there.tolist() == [[True] * 50] * 3 + [[False] * 50]
    torch.testing.assert_close(mixed.norm(dim=-1)[:3], torch.ones(3, 50, tokens))
    for row in range(3):
        hardest = shown.view.scores[row, 1:].topk(2).indices
        for token in range(tokens):
            pair = shown.images[hardest, token]  # [2, 8]
            weights = torch.linalg.lstsq(pair.T, mixed[row, :, token].T).solution
            torch.testing.assert_close(pair.T @ weights, mixed[row, :, token].T)  # in the span of the two
            assert (weights > -1e-5).all()
            kinds = (weights > 1e-5).sum(0)  # the same image twice, or both
            assert {int(kind) for kind in kinds} == {1, 2}


def test_type_two_is_nearer_to_the_negative_than_to_the_query() -> None:
    shown = embedded(bank_view())
    mixed, _ = Mochi(hardest=1, pairs=0, with_query=200).synthetic(shown)
    for row in range(3):
        pair = torch.stack([shown.queries[row], shown.images[shown.view.scores[row, 1:].argmax(), 0]])
        weights = torch.linalg.lstsq(pair.T, mixed[row, :, 0].T).solution
        share = weights[0] / weights.sum(0)
        assert 0 < float(share.min()) < 0.05
        assert 0.45 < float(share.max()) < 0.5
        assert abs(float(share.mean()) - 0.25) < 0.04


def test_bad_options_are_quoted() -> None:
    with pytest.raises(NegbenchError, match="hardest must be a whole number >= 1, got 0"):
        Mochi(hardest=0)
    with pytest.raises(NegbenchError, match="pairs must be a whole number >= 0, got -1"):
        Mochi(pairs=-1)
