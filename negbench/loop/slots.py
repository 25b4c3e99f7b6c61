"""Negatives of a step by slot: how slots enter one loss, and the triples of a whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from negbench.contracts import AspectScores, Loss, LossInput, ScoreView, Slot, Strategy
from negbench.errors import NegbenchError, OptionError

SlotSum = Literal["sum", "joint"]

# means "no negative" under an aspect: below every cosine, so that no hinge with a margin below 2 is active there
_NO_SCORE = -4.0
_MOST_SCORES = 2**26  # in one tensor of triples: 256 MiB in float32


@dataclass(frozen=True)
class SlotNegatives:
    """Negatives of one slot.

    Attributes:
        scores: [B, M].
        mask: [B, M] bool.
        weights: [B, M] >= 0; None: all 1.
        guide: [B, M] scores by the run's guide; None: it has none, or the slot's negatives are not images.
    """

    scores: Tensor
    mask: Tensor
    weights: Tensor | None = None
    guide: Tensor | None = None

    @classmethod
    def of(cls, scores: Tensor, pool: Tensor, guide: Tensor | None = None) -> SlotNegatives:
        """Build from the pool that `Strategy.pool` returned for `scores`."""
        return cls(scores, pool > 0, pool if pool.is_floating_point() else None, guide)

    @classmethod
    def side_by_side(cls, parts: Sequence[SlotNegatives]) -> SlotNegatives:
        """Concatenate the columns of all parts."""
        scores = torch.cat([part.scores for part in parts], dim=1)
        mask = torch.cat([part.mask for part in parts], dim=1)
        weights = None
        if any(part.weights is not None for part in parts):
            # 1 for each negative of a part without weights
            filled = [part.mask.float() if part.weights is None else part.weights.float() for part in parts]
            weights = torch.cat(filled, dim=1)
        guides = [part.guide for part in parts if part.guide is not None]
        guide = torch.cat(guides, dim=1) if len(guides) == len(parts) else None
        return cls(scores, mask, weights, guide)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Compute scores and losses in float32: bfloat16 rounds 0.801 to 0.8, a factor of 1.1 at temperature 0.01."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def join_members(drawn: SlotNegatives, members: Mapping[Slot, SlotNegatives]) -> dict[Slot, SlotNegatives]:
    """Join a union's negatives by slot: in "target" each query's draws [B, M], then the batch's members [B, B].

    An image that is both a draw and a member counts twice, like one that is drawn twice.
    """
    if "target" not in members:
        return {"target": drawn, **members}
    return {**members, "target": SlotNegatives.side_by_side([drawn, members["target"]])}


@dataclass(frozen=True)
class LossExtras:
    """Inputs of some losses besides the negatives.

    Attributes:
        aspects: scores under sub-queries.
        candidates: [B, C] scores of further images, with their `mask`.
        bias: the scalar that the run learns for the loss.
        guide: [B] scores of the targets by the run's guide.
    """

    aspects: Sequence[AspectScores] = ()
    candidates: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    guide: Tensor | None = None


def loss_of_slots(
    loss: Loss,
    how: SlotSum,
    positive: Tensor,
    slots: Mapping[Slot, SlotNegatives],
    temperature: Tensor,
    extras: LossExtras | None = None,
) -> Tensor:
    """Return the loss of a batch whose triples are corrupted in one or more slots, for any loss.

    HyCoLe-HNM eq. 3-4: one matrix for each slot. "sum" adds one value of the loss for each (one softmax per slot);
    "joint" applies the loss once, to the negatives of all slots together.

    Args:
        loss: the run's.
        how: "sum" or "joint".
        positive: [B] scores of the uncorrupted triples.
        slots: negatives by slot.
        temperature: scalar > 0.
        extras: candidates and aspects concern other target images, so they belong to slot "target" (without it,
            candidates go to the first slot and aspects are dropped); bias and guide are every slot's.

    Returns:
        Scalar.

    Raises:
        NegbenchError: the loss returns anything else.
    """
    extras = extras or LossExtras()
    home: Slot = "target" if "target" in slots else next(iter(slots))
    aspects = extras.aspects if home == "target" else ()
    if how == "joint" and len(slots) > 1:
        aspects = [_pad_to_slots(aspect, slots) for aspect in aspects]
        slots = {home: SlotNegatives.side_by_side(list(slots.values()))}
    values = list[Tensor]()
    for slot, part in slots.items():
        inputs = LossInput(
            positive=positive,
            negatives=part.scores,
            mask=part.mask,
            weights=part.weights,  # type: ignore[arg-type]
            temperature=temperature,
            bias=extras.bias,
        )
        if extras.guide is not None:
            assert part.guide is not None  # `check_objective`
            inputs = replace(inputs, guide=torch.cat([extras.guide[:, None], part.guide], dim=1))
        if slot == home:
            inputs = replace(
                inputs,
                aspects=aspects,
                candidates=extras.candidates,  # type: ignore[arg-type]
                candidate_mask=extras.mask,  # type: ignore[arg-type]
            )
        value = loss.evaluate(inputs)
        if not isinstance(value, Tensor):
            raise _no_scalar(loss, type(value).__name__)
        if value.ndim or not value.is_floating_point():
            raise _no_scalar(loss, f"{tuple(value.shape)} {value.dtype}")
        values.append(value)
    return sum(values[1:], values[0])


def _no_scalar(loss: Loss, returned: str) -> NegbenchError:
    return NegbenchError(f"{type(loss).__name__} must return a scalar float tensor, got {returned}")


def _pad_to_slots(aspect: AspectScores, slots: Mapping[Slot, SlotNegatives]) -> AspectScores:
    """Extend an aspect's negatives to the columns of all slots; triples of other slots have no sub-query."""
    parts = []
    for slot, part in slots.items():
        if slot == "target":
            parts.append(aspect.negatives)
        else:
            parts.append(torch.full_like(part.scores, _NO_SCORE))
    return AspectScores(aspect.name, aspect.positive, torch.cat(parts, dim=1), aspect.weight, aspect.present)


# --- all triples of a batch ------------------------------------------------------------------------------------------


def check_triples(batch: int, wide: int, what: str) -> None:
    """Raise OptionError, with the arithmetic, where [batch^3 or rows, wide] scores of triples would not fit."""
    if batch * wide > _MOST_SCORES:
        raise OptionError(
            f"{what}: {batch} x {wide:,} = {batch * wide:,} numbers ({batch * wide * 4 / 2**30:.1f} GiB in float32, "
            f"several times over) for the triples of a batch, but the limit is {_MOST_SCORES:,}: "
            f"--set train.batch_size={batch // 4}, or a lower strategy.k"
        )


def choose_triples(strategy: Strategy, cube: Tensor, allowed: Tensor) -> SlotNegatives:
    """Return the triples that a strategy chooses for a batch, the same for each of its B queries.

    Args:
        strategy: called once (see `BatchStrategy`).
        cube: [B, B, B] scores.
        allowed: [B, B, B] bool.

    Returns:
        [B, K] for the K chosen triples.

    Raises:
        OptionError: B x K scores are too many to hold.
    """
    scores = cube.reshape(1, -1)
    view = ScoreView(scores.detach(), torch.zeros(1, dtype=torch.int64, device=cube.device), allowed.reshape(1, -1))
    pool = strategy.pool(view)
    columns = (pool[0] > 0).nonzero().squeeze(1)
    shape = (len(cube), len(columns))
    check_triples(*shape, "triples chosen")
    return SlotNegatives.of(scores[:, columns].expand(shape), pool[:, columns].expand(shape))
