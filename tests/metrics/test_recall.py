"""Recall at k against scikit-learn, hand tables and its degenerate cases."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import top_k_accuracy_score

from negbench.errors import NegbenchError, OptionError
from negbench.metrics.ranks import target_ranks
from negbench.metrics.recall import expected_hits_at_k, hits_at_k


def test_against_scikit_learn() -> None:
    for shift in [0.0, -9.0]:
        for k in [1, 3, 10]:
            generator = torch.Generator().manual_seed(0)
            scores = torch.randn(200, 20, generator=generator) + shift  # no ties, where the two tie rules differ
            target = torch.randint(0, 20, (200,), generator=generator)
            want = top_k_accuracy_score(target.numpy(), scores.numpy(), k=k, labels=range(20))
            assert hits_at_k(target_ranks(scores, target), k).mean() == pytest.approx(want, abs=1e-6)


def test_errors() -> None:
    with pytest.raises(OptionError, match="k must be >= 1, got 0"):
        hits_at_k(torch.tensor([1]), 0)
    with pytest.raises(OptionError, match="k must be >= 1, got 0"):
        expected_hits_at_k(torch.tensor([1]), torch.tensor([2]), 0, 2)
    with pytest.raises(NegbenchError, match="empty"):
        hits_at_k(torch.tensor([], dtype=torch.int64), 1)
    with pytest.raises(NegbenchError, match="1 queries have none"):
        hits_at_k(torch.tensor([1, 0]), 1)
