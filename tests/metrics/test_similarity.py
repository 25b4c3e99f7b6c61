"""Cosines against loops over pairs; vectors with negative products."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from negbench.metrics.similarity import semantic_separation


def unit(*shape: int, seed: int = 0) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def dot(one: Tensor, two: Tensor) -> float:
    return sum(a * b for a, b in zip(one.tolist(), two.tolist(), strict=True))


def test_separation_against_a_loop_over_pairs(subtests):
    for seed in range(4):
        with subtests.test(seed=seed):
            generator = torch.Generator().manual_seed(seed)
            rows = unit(30, 4, seed=seed)
            references = torch.randint(6, (30,), generator=generator).tolist()
            texts = torch.randint(4, (30,), generator=generator).tolist()
            with_reference = [(a, b) for a, b in combinations(range(30), 2) if references[a] == references[b]]
            pairs = [(a, b) for a, b in with_reference if texts[a] != texts[b]]
            assert len(pairs) < len(with_reference)
            mean = sum(dot(rows[a], rows[b]) for a, b in pairs) / len(pairs)
            assert semantic_separation(rows, references, texts) == pytest.approx(mean, abs=1e-6)


def test_separation_needs_a_pair():
    assert math.isnan(semantic_separation(unit(3, 2), ["a", "a", "b"], ["x", "x", "x"]))
    assert semantic_separation(torch.tensor([[1.0, 0], [-1.0, 0]]), ["a", "a"], ["x", "y"]) == -1
