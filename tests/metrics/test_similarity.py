"""Cosines against loops over pairs and sorted lists; vectors with negative products."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from negbench.errors import OptionError
from negbench.metrics.ranks import target_ranks
from negbench.metrics.similarity import look_alikes, semantic_separation, target_similarity


def unit(*shape: int, seed: int = 0) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def dot(one: Tensor, two: Tensor) -> float:
    return sum(a * b for a, b in zip(one.tolist(), two.tolist(), strict=True))


def test_target_similarity_against_a_loop() -> None:
    targets, negatives = unit(7, 5), unit(7, 3, 5, seed=1)
    cosines = [dot(targets[q], negatives[q, m]) for q in range(7) for m in range(3)]
    assert min(cosines) < 0 < max(cosines)
    table = torch.cat([torch.tensor(cosines), torch.tensor([math.nan] * 3)]).reshape(
        8, 3
    )  # what is unknown is left out
    found = target_similarity(table, (0, 0.25, 0.5, 1))
    assert found.mean == pytest.approx(sum(cosines) / 21, abs=1e-6)
    assert found.quantiles == pytest.approx({0: min(cosines), 0.25: sorted(cosines)[5], 0.5: sorted(cosines)[10],
                                             1: max(cosines)}, abs=1e-6)  # fmt: skip
    assert target_similarity(table).quantiles[0.95] == pytest.approx(np.quantile(cosines, 0.95), abs=1e-6)


def test_target_similarity_of_nothing_and_of_wrong_levels() -> None:
    found = target_similarity(torch.empty(2, 0), [0.5])
    assert math.isnan(found.mean)
    assert math.isnan(found.quantiles[0.5])
    with pytest.raises(OptionError, match="levels"):
        target_similarity(torch.ones(2, 1), [50])


@pytest.mark.parametrize("seed", range(4))
def test_separation_against_a_loop_over_pairs(seed: int) -> None:
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


@pytest.mark.parametrize("count", [1, 4, 20])
def test_look_alikes_against_a_sorted_list(count: int) -> None:
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
