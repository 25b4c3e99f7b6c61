"""The negatives of a step, slot by slot: what the triples of a whole batch are, and how slots enter one loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from negbench.contracts import AspectScores, Loss, ScoreView, Slot, Strategy
from negbench.errors import NegbenchError, OptionError

SlotSum = Literal["sum", "joint"]

# stands for "no negative" under an aspect: below every cosine, so that no hinge with a margin below 2 is active there
_NO_SCORE = -4.0
_MOST_SCORES = 2**26  # of one tensor of triples: 256 MiB in float32


@dataclass(frozen=True)
class Corrupted:
    """Negatives of one slot: `scores` [B, M], `mask` [B, M] bool, `weights` [B, M] >= 0 or None (all 1).

    `positives`, [B, M] >= 0, weighs the columns that are positives; None: the target is the only one.
    """

    scores: Tensor
    mask: Tensor
    weights: Tensor | None = None
    positives: Tensor | None = None

    @classmethod
    def of(cls, scores: Tensor, pool: Tensor, positives: Tensor | None = None) -> Corrupted:
        """From what `Strategy.pool` and `Strategy.positives` answered for `scores`."""
        return cls(scores, pool > 0, pool if pool.is_floating_point() else None, positives)

    def rows(self, chosen: slice) -> Corrupted:
        """Those of some queries."""
        tables = (self.scores, self.mask, self.weights, self.positives)
        scores, mask, weights, positives = (None if table is None else table[chosen] for table in tables)
        assert scores is not None
        assert mask is not None
        return Corrupted(scores, mask, weights, positives)

    @classmethod
    def side_by_side(cls, parts: Sequence[Corrupted]) -> Corrupted:
        """The columns of all."""
        weighted = any(part.weights is not None for part in parts)
        several = any(part.positives is not None for part in parts)
        found = [torch.zeros_like(p.scores) if p.positives is None else p.positives for p in parts]
        return cls(
            torch.cat([part.scores for part in parts], dim=1),
            torch.cat([part.mask for part in parts], dim=1),
            torch.cat([_weights(part) for part in parts], dim=1) if weighted else None,
            torch.cat(found, dim=1) if several else None,
        )


def joined(drawn: Corrupted, members: Mapping[Slot, Corrupted]) -> dict[Slot, Corrupted]:
    """Negatives by slot of a union: each query's own draws [B, M], then the batch's members [B, B] of the same slot.

    An image that is both a draw and a member counts twice, as one does that is drawn twice.
    """
    if "target" not in members:
        return {"target": drawn, **members}
    return {**members, "target": Corrupted.side_by_side([drawn, members["target"]])}


def _weights(part: Corrupted) -> Tensor:
    """[B, M] float32; 1 for each negative where none are given."""
    return part.mask.float() if part.weights is None else part.weights.float()


@dataclass(frozen=True)
class Beside:
    """What some losses take beside the negatives: scores under sub-queries; `candidates` [B, C] with their `mask`."""

    aspects: Sequence[AspectScores] = ()
    candidates: Tensor | None = None
    mask: Tensor | None = None


def loss_of_slots(
    loss: Loss,
    how: SlotSum,
    positive: Tensor,
    slots: Mapping[Slot, Corrupted],
    temperature: Tensor,
    beside: Beside | None = None,
) -> Tensor:
    """Loss of a batch whose triples are corrupted in one or more slots, for any loss.

    HyCoLe-HNM eq. 3-4: one matrix for each slot. "sum" adds one value of the loss for each (one softmax per slot);
    "joint" applies the loss once, to the negatives of all slots together.

    Args:
        loss: of the run.
        how: "sum" or "joint".
        positive: [B] scores of the uncorrupted triples.
        slots: negatives by slot.
        temperature: scalar > 0.
        beside: candidates and aspects; they are of other target images, and so belong to the slot "target" (candidates
            to the first slot where the target is none of the slots; then there are no aspects).

    Returns:
        Scalar.

    Raises:
        NegbenchError: a loss that returns anything else.
    """
    beside = beside or Beside()
    home: Slot = "target" if "target" in slots else next(iter(slots))
    aspects = beside.aspects if home == "target" else ()
    if how == "joint" and len(slots) > 1:
        aspects = [_padded(aspect, slots) for aspect in aspects]
        slots = {home: Corrupted.side_by_side(list(slots.values()))}
    total = positive.new_zeros(())
    for slot, part in slots.items():
        own = slot == home
        value = loss(
            positive,
            part.scores,
            part.mask,
            part.weights,
            temperature=temperature,
            aspects=aspects if own else (),
            candidates=beside.candidates if own else None,
            candidate_mask=beside.mask if own else None,
            positives=None if part.positives is None else part.scores,
            positive_weights=part.positives,
        )
        if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
            got = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            raise NegbenchError(f"{type(loss).__name__} must return a float tensor of one number, got {got}")
        total = total + value
    return total


def losses_of_rows(
    loss: Loss,
    how: SlotSum,
    positive: Tensor,
    slots: Mapping[Slot, Corrupted],
    temperature: Tensor,
    beside: Beside | None = None,
) -> tuple[Tensor, Tensor]:
    """[B] values of `loss_of_slots` for each query alone, and [B] bool, which have a negative; arguments as there."""
    beside = beside or Beside()
    values = list[Tensor]()
    for row in range(len(positive)):
        at = slice(row, row + 1)
        own = Beside(
            [AspectScores(a.name, a.positive[at], a.negatives[at], a.weight, a.present[at]) for a in beside.aspects],
            None if beside.candidates is None else beside.candidates[at],
            None if beside.mask is None else beside.mask[at],
        )
        parts = {slot: part.rows(at) for slot, part in slots.items()}
        values.append(loss_of_slots(loss, how, positive[at], parts, temperature, own))
    counts = torch.stack([part.mask.any(1) for part in slots.values()]).any(0)
    return torch.stack(values), counts


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Scalar: mean of [B] values by [B] weights >= 0; where all are 0, a zero that is still connected to the values."""
    share = weights.to(values)
    return (share * values).sum() / share.sum().clamp(min=torch.finfo(values.dtype).tiny)


def _padded(aspect: AspectScores, slots: Mapping[Slot, Corrupted]) -> AspectScores:
    """The aspect's negatives among those of all slots; triples of other slots have no sub-query."""
    parts = [
        aspect.negatives if slot == "target" else torch.full_like(part.scores, _NO_SCORE)
        for slot, part in slots.items()
    ]
    return AspectScores(aspect.name, aspect.positive, torch.cat(parts, dim=1), aspect.weight, aspect.present)


# --- all triples of a batch ------------------------------------------------------------------------------------------


def check_triples(batch: int, wide: int, what: str) -> None:
    """Raise OptionError, with the arithmetic, where [batch^3 or rows, wide] scores of triples would not fit."""
    if batch * wide > _MOST_SCORES:
        raise OptionError(
            f"{what}: {batch} x {wide:,} = {batch * wide:,} numbers ({batch * wide * 4 / 2**30:.1f} GiB in float32, "
            f"several times over) for the triples of a batch, and at most {_MOST_SCORES:,} are held: "
            "lower train.batch_size, or strategy.k"
        )


def corrupted_triples(strategy: Strategy, cube: Tensor, allowed: Tensor) -> Corrupted:
    """The triples that a strategy chooses for a batch, the same for each of its B queries.

    Args:
        strategy: asked once (see `Strategy`).
        cube: [B, B, B] scores.
        allowed: [B, B, B] bool.

    Returns:
        [B, K] of the K triples that are chosen.

    Raises:
        OptionError: B x K scores are too many to hold.
    """
    scores = cube.reshape(1, -1)
    view = ScoreView(scores.detach(), torch.zeros(1, dtype=torch.int64, device=cube.device), allowed.reshape(1, -1))
    pool = strategy.pool(view)
    chosen = (pool[0] > 0).nonzero().squeeze(1)
    check_triples(len(cube), len(chosen), "triples chosen")
    rows = (scores[:, chosen], pool[:, chosen])
    return Corrupted.of(*(row.expand(len(cube), -1) for row in rows))
