"""mAP at k against a loop over the definition, scikit-learn, hand tables and its degenerate cases."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score

from negbench.errors import NegbenchError, OptionError
from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import relevant_ranks


def loop_average_precision(scores: list[float], relevant: list[int], k: int) -> float:
    # irrelevant images first among equals: ties count against the model
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], j in relevant))
    hits, total = 0, 0.0
    for place, image in enumerate(order[:k], start=1):
        if image in relevant:
            hits += 1
            total += hits / place
    return total / min(len(relevant), k)


def sample(seed: int, levels: int | None) -> tuple[torch.Tensor, list[list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    if levels is None:
        scores = torch.randn(12, 30, generator=generator) - 3
    else:
        scores = torch.randint(-levels, levels, (12, 30), generator=generator).float()
    lengths = torch.randint(1, 8, (12,), generator=generator).tolist()
    return scores, [torch.randperm(30, generator=generator)[:n].tolist() for n in lengths]


def test_against_loop() -> None:
    for seed in range(4):
        for levels in [None, 3]:
            for k in [1, 3, 10, 30]:
                scores, rows = sample(seed, levels)
                got = average_precision_at_k(relevant_ranks(scores, Ragged.of(rows)), k)
                want = [loop_average_precision(scores[i].tolist(), rows[i], k) for i in range(12)]
                assert got.tolist() == pytest.approx(want, abs=1e-12)


def test_uncut_against_scikit_learn() -> None:
    for seed in range(4):
        scores, rows = sample(seed, None)
        got = average_precision_at_k(relevant_ranks(scores, Ragged.of(rows)), 30)
        for i, row in enumerate(rows):
            labels = [int(j in row) for j in range(30)]
            assert float(got[i]) == pytest.approx(average_precision_score(labels, scores[i].numpy()), abs=1e-9)


def test_errors() -> None:
    with pytest.raises(OptionError, match="k must be >= 1, got -3"):
        average_precision_at_k(Ragged.of([[1]]), -3)
    with pytest.raises(NegbenchError, match="empty"):
        average_precision_at_k(Ragged.of([]), 1)
    with pytest.raises(NegbenchError, match="1 have none"):
        average_precision_at_k(Ragged.of([[1], []]), 1)
