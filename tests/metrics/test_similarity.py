"""Cosines against loops over pairs and sorted lists; vectors with negative products."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from negbench.errors import OptionError
from negbench.metrics.ranks import target_ranks
from negbench.metrics.similarity import look_alikes, semantic_separation


def unit(*shape: int, seed: int = 0) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def dot(one: Tensor, two: Tensor) -> float:
    return sum(a * b for a, b in zip(one.tolist(), two.tolist(), strict=True))


def test_separation_against_a_loop_over_pairs() -> None:
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        rows = unit(30, 4, seed=seed)
        references, texts = (torch.randint(n, (30,), generator=generator).tolist() for n in (6, 4))
        pairs = [
            dot(rows[a], rows[b])
            for a, b in combinations(range(30), 2)
            if references[a] == references[b] and texts[a] != texts[b]
        ]
        assert len(pairs) < sum(references[a] == references[b] for a, b in combinations(range(30), 2))
        assert semantic_separation(rows, references, texts) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_separation_needs_a_pair() -> None:
    assert math.isnan(semantic_separation(unit(3, 2), ["a", "a", "b"], ["x", "x", "x"]))
    assert semantic_separation(torch.tensor([[1.0, 0], [-1.0, 0]]), ["a", "a"], ["x", "y"]) == -1


def test_look_alikes_against_a_sorted_list() -> None:
    for count in [1, 4, 20]:
        images, target = unit(12, 3), torch.tensor([0, 5, 11, 5])
        excluded = torch.tensor([-1, 3, 0, 5])
        found = look_alikes(images, target, count, excluded)
        for row in range(4):
            own = int(target[row])
            rest = [column for column in range(12) if column not in (own, int(excluded[row]))]
            nearest = sorted(rest, key=lambda column: -dot(images[own], images[column]))[:count]
            assert found[row].nonzero()[:, 0].tolist() == sorted([own, *nearest])
        with pytest.raises(OptionError, match="count"):
            look_alikes(images, target, 0)


def test_rank_among_look_alikes_has_cirrs_chance() -> None:
    scores = torch.randn(4000, 30, generator=torch.Generator().manual_seed(1)) - 2
    target = torch.arange(4000) % 30
    rank = target_ranks(scores, target, look_alikes(unit(30, 3), target))
    for k, chance in ((1, 0.2), (2, 0.4), (3, 0.6)):
        assert float((rank <= k).double().mean()) == pytest.approx(chance, abs=0.03)
