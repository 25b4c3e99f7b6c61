"""What a modification text changes, told by its words: the kinds of DQE-CIR fig. 5, shown there in pictures only."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from negbench.metrics.query_ranks import QueryRanks

LEAST = 30  # queries of a kind below which its recall is not given
_WORDS = tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))
_KINDS = {kind: re.compile(rf"\b({'|'.join(words.split())})\b", re.IGNORECASE) for kind, words in _WORDS.items()}


def changes(texts: Iterable[str]) -> dict[str, Tensor]:
    """Return [Q] bool by kind: colour, quantity, appearance, form; a text may name several, or none.

    Example:
        >>> {kind: rows.tolist() for kind, rows in changes(["is red with two buttons", "longer"]).items()}
        {'colour': [True, False], 'quantity': [True, False], 'appearance': [False, False], 'form': [False, True]}
    """
    texts = list(texts)
    kinds = {}
    for kind, words in _KINDS.items():
        kinds[kind] = torch.tensor([words.search(text) is not None for text in texts])
    return kinds


def recall_by_change(ranks: QueryRanks, texts: Iterable[str], k: int = 10) -> dict[str, float]:
    """Return `colour/recall_at_10` and the like: recall of each kind that at least `LEAST` queries are of.

    Args:
        ranks: of Q queries.
        texts: Q modification texts, in their order.
        k: first images of the ranking.
    """
    hit = (ranks.target_rank >= 1) & (ranks.target_rank <= k)
    recalls = {}
    for kind, rows in changes(texts).items():
        if rows.sum() >= LEAST:
            recalls[f"{kind}/recall_at_{k}"] = float(hit[rows.to(hit.device)].double().mean())
    return recalls
