from __future__ import annotations

import pytest
import torch
from torch.nn.functional import margin_ranking_loss, triplet_margin_with_distance_loss

from negbench.losses.triplet import Triplet
from negbench.testing import toy_scores


def test_hand_table() -> None:
    # gaps s- - s+ of -0.5, -0.125 and 0.25 under a margin of 0.25
    got = Triplet(margin=0.25)(torch.tensor([-0.5]), torch.tensor([[-1.0, -0.625, -0.25]]))
    assert got.item() == pytest.approx((0 + 0.125 + 0.5) / 3)


def test_is_the_margin_ranking_loss_of_torch() -> None:
    for margin in [0.0, 0.2]:
        toy = toy_scores(6, 4, seed=1)
        above = toy.positive[:, None].expand(6, 4)
        want = margin_ranking_loss(above, toy.negatives, torch.ones_like(above), margin=margin)
        torch.testing.assert_close(Triplet(margin=margin)(toy.positive, toy.negatives), want)


def test_facenets_loss_is_twice_that_of_half_its_margin() -> None:
    generator = torch.Generator().manual_seed(0)
    anchor, positive, negative = torch.nn.functional.normalize(torch.randn(3, 9, 4, generator=generator), dim=2)
    want = triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=lambda a, b: (a - b).pow(2).sum(1), margin=0.2
    )
    got = Triplet(margin=0.1)((anchor * positive).sum(1), (anchor * negative).sum(1, keepdim=True))
    torch.testing.assert_close(2 * got, want)


def test_weights_are_relative() -> None:
    toy = toy_scores(4, 3, seed=2)
    call = (toy.positive, toy.negatives, toy.mask)
    torch.testing.assert_close(Triplet()(*call, 2 * toy.weights), Triplet()(*call, toy.weights))
