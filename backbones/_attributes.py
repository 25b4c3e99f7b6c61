"""Colour and shape sub-queries (DQE-CIR eq. 1): which words count, and the attention that pools their tokens."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from negbench.backbones._fusion import make_linear, unit
from negbench.contracts import SubQuery

ASPECTS = ("colour", "shape")
INITIAL_WEIGHT = 0.1

READS = ("_words.toml",)
_TABLES: dict[str, str] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
_WORDS = {aspect: {*_TABLES[aspect].split()} for aspect in ASPECTS}
_EDGES = re.compile(r"^[^a-z0-9]+|[^a-z0-9]+$")


def attribute_masks(words: Sequence[Sequence[str | None]], length: int) -> dict[str, Tensor]:
    """Mark the tokens that belong to colour words and those that belong to shape words.

    Args:
        words: for every token of every text, the whole word that it is a piece of (None: no word). Case and
            punctuation at the edges do not matter.
        length: S, number of token positions; tokens beyond it are left out.

    Returns:
        {"colour": [B, S] bool, "shape": [B, S] bool}, on the CPU.
    """
    by_aspect: dict[str, list[int]] = {aspect: [] for aspect in ASPECTS}
    for row, tokens in enumerate(words):
        for index, word in enumerate(tokens[:length], start=row * length):
            for aspect in () if word is None else _aspects_of(word):
                by_aspect[aspect].append(index)
    masks = {aspect: torch.zeros(len(words), length, dtype=torch.bool) for aspect in ASPECTS}
    for aspect, indices in by_aspect.items():
        masks[aspect].view(-1)[torch.tensor(indices, dtype=torch.int64)] = True
    return masks


@lru_cache(maxsize=2**16)
def _aspects_of(word: str) -> tuple[str, ...]:
    plain = _EDGES.sub("", word.lower())
    # a compound counts for each of its parts: "light-blue", "long-sleeved"
    parts = {plain, *plain.split("-")}
    return tuple(aspect for aspect, words in _WORDS.items() if not parts.isdisjoint(words))


def words_of_wordpieces(pieces: Sequence[str]) -> list[str | None]:
    """Whole word of every WordPiece token ("##" marks a continuation); None for special tokens such as [CLS]."""
    joins = [piece.startswith("##") for piece in pieces]
    return _whole_words([piece.removeprefix("##") for piece in pieces], joins)


def words_of_clip_pieces(pieces: Sequence[str]) -> list[str | None]:
    """Whole word of every CLIP BPE token ("</w>" ends a word); None for special tokens such as <|startoftext|>."""
    ends = [piece.endswith("</w>") or _is_special(piece) for piece in pieces]
    joins = [index > 0 and not ends[index - 1] for index in range(len(pieces))]
    return _whole_words([piece.removesuffix("</w>") for piece in pieces], joins)


def _whole_words(pieces: Sequence[str], joins: Sequence[bool]) -> list[str | None]:
    """Return the word of every piece; `joins` marks the pieces that continue the piece before."""
    groups: list[list[str]] = []
    for piece, join in zip(pieces, joins, strict=True):
        if join and groups and not _is_special(piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    words: list[str | None] = []
    for group in groups:
        word = None if _is_special(group[0]) else "".join(group)
        words += [word] * len(group)
    return words


def _is_special(piece: str) -> bool:
    return (piece.startswith("[") and piece.endswith("]")) or (piece.startswith("<|") and piece.endswith("|>"))


class AttributeWeights(nn.Module):
    """Sub-queries for colour and shape, and how much each adds to the query (DQE-CIR eq. 1).

    For an aspect a, a query q and the tokens t_1..t_S of its text, with the mask of the aspect's words::

        q_a = unit(V_a softmax_s(<K_a t_s, q> / sqrt(D) over masked s) . t)     q* = unit(q + sum_a w_a q_a)

    w_a = softplus of a learned scalar, so it never gets negative. A row whose text has no word of the aspect has the
    zero vector for q_a, so q* = q there. DQE-CIR says that w_a is learned and non-negative and that q_a comes from
    attention outputs conditioned on the aspect's terms; how the attention attends, that q_a has unit norm, the word
    lists and the initial w_a are ours. (The norm of q* has no effect: scores are cosines.)

    Args:
        dim: width D of queries and sub-queries.
        token_dim: width C of the text's token features.
        generator: the initial weights' only source of randomness.
        initial: w_a at the start, > 0; True is 0.1.
    """

    def __init__(self, dim: int, token_dim: int, generator: torch.Generator, initial: bool | float = True) -> None:
        super().__init__()
        self.keys = nn.ParameterDict({a: make_linear(token_dim, dim, generator, bias=False).weight for a in ASPECTS})
        self.values = nn.ModuleDict({a: make_linear(token_dim, dim, generator) for a in ASPECTS})
        raw = math.log(math.expm1(INITIAL_WEIGHT if initial is True else initial))  # softplus of it is the weight
        self.raw_weights = nn.ParameterDict({a: nn.Parameter(torch.tensor(raw)) for a in ASPECTS})

    def forward(self, query: Tensor, tokens: Tensor, masks: Mapping[str, Tensor]) -> dict[str, SubQuery]:
        """Sub-queries and weights.

        Args:
            query: [B, D] unit norm, or [R, B, D] for R references with each of the B texts.
            tokens: [B, S, C] token features of the texts.
            masks: aspect -> [B, S] bool, see `attribute_masks`; other entries do not matter.

        Returns:
            {"colour": ..., "shape": ...}, the embeddings shaped as `query`.
        """
        subs = {}
        for aspect in ASPECTS:
            mask = masks[aspect]
            # <K t, q> as <t, K' q>, and V after the pooling: no matrix product per token
            key = query @ self.keys[aspect]
            logits = torch.einsum("...bc,bsc->...bs", key, tokens) / math.sqrt(query.shape[-1])
            # a finite floor, not -inf: a row without any word must not become NaN
            attention = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1)
            sub = unit(self.values[aspect](torch.einsum("...bs,bsc->...bc", attention, tokens)))
            present = mask.any(-1)
            sub = torch.where(present[:, None], sub, torch.zeros_like(sub))
            subs[aspect] = SubQuery(sub, F.softplus(self.raw_weights[aspect]), present)
        return subs

    def combine(self, query: Tensor, subs: Mapping[str, SubQuery]) -> Tensor:
        """Return q* of unit norm, shaped as `query`: the query with its weighted sub-queries added."""
        return unit(query + sum(sub.weight * sub.embeddings for sub in subs.values()))


def make_attributes(
    weights: bool | float, dim: int, token_dim: int, generator: torch.Generator
) -> AttributeWeights | None:
    """Make the sub-queries of a backbone's option `attribute_weights`: None for False, else see `AttributeWeights`."""
    return None if weights is False else AttributeWeights(dim, token_dim, generator, weights)
