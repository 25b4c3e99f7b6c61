"""Recall by kind of change against hand-picked texts and a loop over queries."""

import pytest
import torch

from negbench.metrics.changes import LEAST, changes, recall_by_change
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged

TEXTS = {
    "is Dark Blue": {"colour"},
    "has three buttons and stripes": {"quantity", "appearance"},
    "is sleeveless, and redder": {"form"},  # `redder` is none of the words, `red` is no part of it
    "the V-neck is in colour": {"colour", "form"},
    "is the same": set(),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_of_the_kinds_that_its_words_name(text):
    assert {kind for kind, is_changed in changes([text]).items() if is_changed.item()} == TEXTS[text]


def test_recall_by_change_against_a_loop():
    texts = [*TEXTS] * LEAST
    texts[-1] = "is pale"
    target = torch.randint(0, 30, (len(texts),), generator=torch.Generator().manual_seed(0))  # 0: no target
    names = tuple(map(str, range(len(texts))))
    ranks = QueryRanks(names, ("all",) * len(texts), target, target + 30, Ragged.of([[1]] * len(texts)))
    for kind, value in recall_by_change(ranks, texts).items():
        hits = []
        for rank, text in zip(target.tolist(), texts, strict=True):
            if changes([text])[kind.removesuffix("/recall_at_10")].item():
                hits.append(0 < rank <= 10)
        assert value == pytest.approx(sum(hits) / len(hits)), kind
    few = ["is red"] * (LEAST - 1) + ["longer"] * (len(texts) - LEAST + 1)
    assert recall_by_change(ranks, few).keys() == {"form/recall_at_10"}
