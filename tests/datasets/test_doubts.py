"""Scores that mean something else: `data.evaluate` says so, and computes what they give."""

import logging

import pytest
import torch

from negbench.plugins.registry import registry


@pytest.fixture
def data():
    return registry.make("datasets", "synthetic", split="val", val_queries=12)


def good(data) -> torch.Tensor:
    """Return scores that rank every target first, and no two images alike."""
    scores = torch.rand(len(data.queries), len(data.images), generator=torch.Generator().manual_seed(0))
    scores[torch.arange(len(data.queries)), data.target_columns] = 2.0
    return scores


CHANGES = {
    "right": (lambda scores: scores, ""),
    "distances": (lambda scores: -scores, "are the scores distances"),
    "constant": (lambda scores: torch.zeros_like(scores), "are all equal"),
    "a constant row": (lambda scores: torch.where(torch.arange(len(scores))[:, None] == 3, 0.5, scores), "of 1 of"),
    "half reversed": (lambda scores: torch.where(torch.arange(len(scores))[:, None] % 2 == 0, -scores, scores), ""),
    "negative": (lambda scores: scores - 9, ""),
}


@pytest.mark.parametrize("case", CHANGES)
def test_scores_that_mean_something_else_are_doubted(data, caplog, case):
    change, text = CHANGES[case]
    scores = change(good(data))
    with caplog.at_level(logging.WARNING, "negbench"):
        metrics = data.evaluate(scores)
    notes = [record.getMessage() for record in caplog.records if "the scores" in record.getMessage()]
    assert len(notes) == (1 if text else 0), notes
    assert all(text in note for note in notes)
    assert metrics == data.measure(lambda rows, columns: scores[rows][:, columns])
