"""Toy worlds: small score tables with known properties, made from explicit generators."""

import pickle
import random
from dataclasses import FrozenInstanceError, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import PLANES, BankStep, ScoreView, SyntheticStrategy
from negbench.contracts.splitmix import uniform
from negbench.errors import NegbenchError

Sign = Literal["mixed", "negative", "positive"]
SIGNS: tuple[Sign, ...] = get_args(Sign)
_STEPS = 1024  # scores are multiples of 1/1024: exact in float16 and wider, as are their differences


def toy_view(
    rows: int = 8,
    columns: int = 24,
    *,
    seed: int = 0,
    sign: Sign = "mixed",
    ties: bool = False,
    dtype: torch.dtype = torch.float32,
) -> ScoreView:
    """Make a ScoreView with ground truth, kinds, disallowed columns and every plane (also multiples of 1/1024).

    Scores lie in [-1, 1]. Row 0's target is its best image, row 1's its worst, and row 2 (where there is one) allows
    nothing; elsewhere a fifth of the columns is disallowed and a fifth is relevant, beside the target.

    Args:
        rows: number of queries, >= 0.
        columns: number of images, 1..1024.
        seed: seed of the only generator.
        sign: "mixed" in [-1, 1], "negative" in [-1, 0), "positive" in (0, 1].
        ties: use multiples of 1/4 instead of distinct multiples of 1/1024 (which bfloat16 rounds, so that it may tie).
        dtype: of the scores; the numbers are the same for all.

    Raises:
        ValueError: columns out of range.
    """
    if not 1 <= columns <= _STEPS:
        raise ValueError(f"columns must be in 1..{_STEPS}, got {columns}")
    view = _make_view(rows, columns, seed, sign, ties, dtype)
    tables = {name: getattr(view, name).clone() for name in ("scores", "target", "allowed", "relevant", "kinds")}
    return replace(view, **tables, planes={name: plane.clone() for name, plane in view.planes.items()})


@lru_cache(256)
def _make_view(rows: int, columns: int, seed: int, sign: Sign, ties: bool, dtype: torch.dtype) -> ScoreView:
    """Make and cache a table: checks share a few tables, each as a copy that a faulty plug-in may spoil."""
    generator = torch.Generator().manual_seed(seed)
    steps = 4 if ties else _STEPS
    low, high = {"mixed": (-steps, steps), "negative": (-steps, -1), "positive": (1, steps)}[sign]
    if ties:
        whole = torch.randint(low, high + 1, (rows, columns), generator=generator)
    else:
        picks = [torch.randperm(high - low + 1, generator=generator)[:columns] + low for _ in range(rows)]
        whole = torch.stack(picks) if picks else torch.zeros(0, columns, dtype=torch.int64)
    scores = whole.double() / steps
    target = torch.randint(columns, (rows,), generator=generator)
    target[:1] = scores[:1].argmax(1)
    target[1:2] = scores[1:2].argmin(1)
    allowed = torch.rand(rows, columns, generator=generator) >= 0.2
    allowed[2:3] = False
    relevant = torch.rand(rows, columns, generator=generator) < 0.2
    relevant.scatter_(1, target[:, None], True)
    planes: dict[str, Tensor] = {}
    for name in PLANES:
        numbers = torch.randint(-_STEPS, _STEPS + 1, (rows, columns), generator=generator)
        planes[name] = (numbers.double() / _STEPS).to(dtype)
    kinds = torch.randint(5, (rows, columns), generator=generator).masked_fill(relevant, 0).to(torch.int8)
    return ScoreView(scores.to(dtype), target, allowed, relevant=relevant, kinds=kinds, dim=64, planes=planes)


def toy_bank_step(
    strategy: SyntheticStrategy, view: ScoreView, *, tokens: int = 1, width: int = 8, seed: int = 3
) -> BankStep:
    """Make a `BankStep`: random unit embeddings of the queries and images of a bank's view.

    The scores are the view's own, not those of the embeddings.

    Args:
        strategy: its `pool` is called first.
        view: [B, 1 + K], the target in column 0.
        tokens: number of tokens per image.
        width: embedding width.
        seed: of the embeddings, and of each query's own stream.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = view.scores.shape
    images = normalize(torch.randn(columns - 1, tokens, width, generator=generator), dim=-1)
    queries = normalize(torch.randn(rows, width, generator=generator), dim=-1)
    used = 0

    def random(count: int) -> Tensor:
        nonlocal used
        used += count
        return uniform(seed + torch.arange(rows)[:, None], torch.arange(used - count, used))

    return BankStep(view, strategy.pool(view), queries, images, random)


def toy_views(count: int = 20) -> list[ScoreView]:
    """Seeded tables of 5 to 24 columns: every sign, with and without ties."""
    return [toy_view(6, 5 + seed % 20, seed=seed, sign=SIGNS[seed % 3], ties=seed % 2 == 1) for seed in range(count)]


class ToyScores(NamedTuple):
    """Arguments of a loss: positive [B], negatives [B, M], mask [B, M] bool, weights [B, M] > 0."""

    positive: Tensor
    negatives: Tensor
    mask: Tensor
    weights: Tensor


def toy_scores(
    rows: int = 5, count: int = 4, *, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> ToyScores:
    """Scores in [-scale, scale] of both signs; every row of the mask holds a negative, though seldom all of them."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    positive = (2 * uniform(rows) - 1) * scale
    negatives = (2 * uniform(rows, count) - 1) * scale
    mask = uniform(rows, count) < 0.7
    mask[:, :1] = True
    weights = 0.25 + uniform(rows, count)
    return ToyScores(positive.to(dtype), negatives.to(dtype), mask, weights.to(dtype))


# --- loops: what a test needs to write a strategy's rule a second time ----------------------------------------------


def as_sets(pool: Tensor) -> list[set[int]]:
    """[B, N] mask or weights -> the columns of each row that are in the pool."""
    sets = []
    for row in pool.tolist():
        sets.append({column for column, value in enumerate(row) if value > 0})
    return sets


def ranking(view: ScoreView, row: int) -> list[int]:
    """Allowed columns of one row by descending score, ties by column."""
    scores = view.scores[row].tolist()
    allowed = view.allowed[row].nonzero().squeeze(1).tolist()
    return sorted(allowed, key=lambda column: -scores[column])  # `sorted` keeps the order of ties


def ranking_below(view: ScoreView, row: int) -> list[int]:
    """Columns of `ranking` that score strictly less than the target."""
    scores = view.scores[row].tolist()
    return [column for column in ranking(view, row) if scores[column] < scores[int(view.target[row])]]


# --- what every suite asserts ----------------------------------------------------------------------------------


def check_frozen(plugin: Any) -> None:
    """Assert that an instance can be compared, replaced, and not written to."""
    assert replace(plugin) == plugin
    for field in fields(plugin):
        with pytest.raises(FrozenInstanceError):
            setattr(plugin, field.name, getattr(plugin, field.name))


def check_quoted(plugin: Any, option: str, bad: object) -> None:
    """Assert that a bad value raises a NegbenchError of one line that names the option and the value."""
    with pytest.raises(NegbenchError) as caught:
        replace(plugin, **{option: bad})
    assert option in str(caught.value)
    assert repr(bad) in str(caught.value)
    assert "\n" not in str(caught.value)


def global_generators() -> tuple[Any, ...]:
    """Return the states of Python's, numpy's and torch's global generators."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
