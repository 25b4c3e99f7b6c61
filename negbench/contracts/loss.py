"""The loss interface: a function of the scores of targets and negatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from negbench.contracts.ranges import check_fields
from negbench.contracts.view import DEFAULT_TEMPERATURE
from negbench.errors import check_option

CandidateSet = Literal["pair", "batch", "corpus"]


@dataclass(frozen=True)
class AspectScores:
    """Scores under one sub-query (DQE-CIR eq. 7-8).

    Args:
        name: name of the aspect.
        positive: [B].
        negatives: [B, M], for the same negatives as the query's own.
        weight: scalar, learned, >= 0.
        present: [B] bool, whether the query's text has a word of the aspect.
    """

    name: str
    positive: Tensor
    negatives: Tensor
    weight: Tensor
    present: Tensor


@dataclass(frozen=True)
class LossInput:
    """Checked, complete input of a loss: B queries, each with M negatives and C further candidates.

    Attributes:
        positive: [B] scores of the targets, any sign, before the temperature.
        negatives: [B, M] scores of the negatives that the strategy chose.
        mask: [B, M] bool, False where there is no negative.
        weights: [B, M] float >= 0.
        temperature: scalar > 0.
        aspects: scores under sub-queries.
        candidates: [B, C] scores of further images to rank the target against, not chosen by a strategy.
        candidate_mask: [B, C] bool.
    """

    positive: Tensor
    negatives: Tensor
    mask: Tensor
    weights: Tensor
    temperature: Tensor | float
    aspects: Sequence[AspectScores]
    candidates: Tensor
    candidate_mask: Tensor


@dataclass(frozen=True)
class Loss(ABC):
    """A function of the positive's and the negatives' scores; it never chooses negatives. A frozen dataclass.

    `tau=None` uses the caller's temperature (the backbone's learned one), or 0.07 if none is passed; a number fixes it.
    """

    uses_aspects: ClassVar[bool] = False
    # False if the loss may stay flat (a hinge) or fall when a negative's score rises (importance weights divided by
    # their sum, as in HCL)
    monotone: ClassVar[bool] = True
    uses_temperature: ClassVar[bool] = True  # False: the loss reads no temperature, and refuses `tau`
    tau: PositiveFloat | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        unread = self.tau is not None and not self.uses_temperature
        check_option("tau", self.tau, not unread, "left out: the loss has no temperature")

    @property
    def candidate_set(self) -> CandidateSet:
        """Images that a run scores for the loss besides the negatives; override it in a loss that takes any.

        "pair": none; "batch": the other targets of the batch; "corpus": all images of the query's gallery group.
        """
        return "pair"

    def __call__(
        self,
        positive: Tensor,
        negatives: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        temperature: Tensor | float | None = None,
        aspects: Sequence[AspectScores] = (),
        candidates: Tensor | None = None,
        candidate_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            positive: [B] scores of the targets, any sign, before the temperature.
            negatives: [B, M] scores of the negatives.
            mask: [B, M] bool, False where there is no negative; a row without any adds nothing.
            weights: [B, M] float >= 0, how much each negative counts (1 = as published).
            temperature: scalar > 0, used unless the loss fixes `tau`.
            aspects: sub-query scores; only losses with `uses_aspects` take them.
            candidates: [B, C] scores of further candidates, none of them a negative of the same row; only losses
                whose `candidate_set` is not "pair" take them.
            candidate_mask: [B, C] bool, False where there is none; default: all True.

        Returns:
            Scalar tensor, differentiable in positive, negatives, temperature, aspects and candidates.

        Raises:
            ValueError: mismatched shapes, or aspects or candidates passed to a loss that takes none.
        """
        if positive.ndim != 1 or negatives.ndim != 2 or negatives.shape[0] != positive.shape[0]:
            raise ValueError(
                f"expected positive [B] and negatives [B, M], got {tuple(positive.shape)} and {tuple(negatives.shape)}"
            )
        if aspects and not self.uses_aspects:
            raise ValueError(f"{type(self).__name__} has no term for aspects")
        if candidates is not None and self.candidate_set == "pair":
            raise ValueError(f"{type(self).__name__} uses no candidates besides the negatives")
        candidates = negatives[:, :0] if candidates is None else candidates
        if candidates.ndim != 2 or len(candidates) != len(positive):
            raise ValueError(f"candidates must be [{len(positive)}, C], got {tuple(candidates.shape)}")
        if self.tau is not None:
            temperature = self.tau
        given = LossInput(
            positive=positive,
            negatives=negatives,
            mask=_or_ones("mask", mask, negatives, torch.bool),
            weights=_or_ones("weights", weights, negatives, negatives.dtype),
            temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
            aspects=aspects,
            candidates=candidates,
            candidate_mask=_or_ones("candidate_mask", candidate_mask, candidates, torch.bool),
        )
        return self.value(given)

    @abstractmethod
    def value(self, given: LossInput) -> Tensor:
        """Evaluate the formula on checked, complete arguments (see `__call__`)."""


def _or_ones(name: str, tensor: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor`, or ones shaped as `like`; raise ValueError if the shapes differ."""
    if tensor is None:
        return torch.ones_like(like, dtype=dtype)
    if tensor.shape != like.shape:
        raise ValueError(f"{name} must be {tuple(like.shape)}, got {tuple(tensor.shape)}")
    return tensor
