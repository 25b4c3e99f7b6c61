"""The loss interface: a function of the scores of targets and negatives."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from negbench.contracts.ranges import check_fields
from negbench.errors import check_option
from negbench.metrics.fixed import DEFAULT_TEMPERATURE
from negbench.metrics.ranks import at_least_float32

CandidateSet = Literal["pair", "batch", "corpus", "relevant"]


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


def without_masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Set masked scores to 0, so that padding or NaN reaches no gradient."""
    return at_least_float32(scores).masked_fill(~mask, 0.0)


def mean_over_rows(values: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Scalar: weighted mean over the valid negatives of each row, then mean over the rows that have any.

    Args:
        values: [B, M], finite even where masked.
        mask: [B, M] bool.
        weights: [B, M] >= 0; a row whose weights are all 0 has no negative.

    Returns:
        Scalar; a zero that is still connected to `values` if no row has a negative.
    """
    share = weights.to(values.dtype) * mask
    total = share.sum(1)
    some = total > 0
    rows = (share * values).sum(1) / torch.where(some, total, 1.0)
    return rows.sum() / some.sum().clamp(min=1)


@dataclass(frozen=True)
class LossInput:
    """Input of a loss, checked and completed: B queries, each with M negatives and C further candidates.

    Args:
        positive: [B] scores of the targets, any sign, before the temperature.
        negatives: [B, M] scores of the negatives that the strategy chose.
        mask: [B, M] bool, False where there is no negative; a row without any adds nothing. Default: all True.
        weights: [B, M] float >= 0, how much each negative counts. Default: 1, as published.
        temperature: scalar > 0.
        aspects: scores under sub-queries; only losses with `uses_aspects` take them.
        candidates: [B, C] scores of further images, not chosen by a strategy and none of them a negative of the same
            row; only losses whose `candidate_set` is not "pair" take them. The target is ranked against them, or, of a
            loss with "relevant", they are further positives.
        candidate_mask: [B, C] bool, False where there is none. Default: all True.
        guide: [B, 1 + M] scores of the target and the negatives by the run's guide, NaN where it has none; only losses
            that read it use it. Default: none.
        bias: scalar, learned; only losses with a `start_bias` read it. None: that start.

    Raises:
        ValueError: mismatched shapes.
    """

    positive: Tensor
    negatives: Tensor
    mask: Tensor = None  # type: ignore[assignment]  # resolved below, as the other tensors left out
    weights: Tensor = None  # type: ignore[assignment]
    temperature: Tensor | float = DEFAULT_TEMPERATURE
    aspects: Sequence[AspectScores] = ()
    candidates: Tensor = None  # type: ignore[assignment]
    candidate_mask: Tensor = None  # type: ignore[assignment]
    guide: Tensor | None = None
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        positive = self.positive
        negatives = self.negatives
        if positive.ndim != 1 or negatives.ndim != 2 or negatives.shape[0] != positive.shape[0]:
            raise ValueError(
                f"expected positive [B] and negatives [B, M], got {tuple(positive.shape)} and {tuple(negatives.shape)}"
            )
        candidates = negatives[:, :0] if self.candidates is None else self.candidates
        if candidates.ndim != 2 or len(candidates) != len(positive):
            raise ValueError(f"candidates must be [{len(positive)}, C], got {tuple(candidates.shape)}")
        object.__setattr__(self, "candidates", candidates)
        if self.guide is not None and self.guide.shape != (len(positive), 1 + negatives.shape[1]):
            raise ValueError(
                f"guide must be [{len(positive)}, {1 + negatives.shape[1]}], got {tuple(self.guide.shape)}"
            )
        self._complete("mask", torch.ones_like(negatives, dtype=torch.bool))
        self._complete("weights", torch.ones_like(negatives))
        self._complete("candidate_mask", torch.ones_like(candidates, dtype=torch.bool))

    def _complete(self, name: str, ones: Tensor) -> None:
        """Set a tensor to ones if it is left out; raise ValueError if it has another shape."""
        tensor = getattr(self, name)
        if tensor is None:
            object.__setattr__(self, name, ones)
        elif tensor.shape != ones.shape:
            raise ValueError(f"{name} must be {tuple(ones.shape)}, got {tuple(tensor.shape)}")

    @property
    def gap(self) -> Tensor:
        """[B, M] float32 or wider, s- - s+; finite where there is no negative."""
        return without_masked(self.negatives, self.mask) - at_least_float32(self.positive)[:, None]


@dataclass(frozen=True)
class Loss(ABC):
    """A function of the positive's and the negatives' scores; it never chooses negatives. A frozen dataclass.

    `tau=None` uses the caller's temperature (the backbone's learned one), or 0.07 if none is passed; a number fixes it.
    """

    uses_aspects: ClassVar[bool] = False
    aspect_options: ClassVar[tuple[str, ...]] = ()  # its options that only sub-queries give a meaning
    # False if the loss may stay flat (a hinge) or fall when a negative's score rises (importance weights divided by
    # their sum, as in HCL)
    monotone: ClassVar[bool] = True
    reads: ClassVar[tuple[Literal["guide"], ...]] = ()  # other scores of target and negatives that a run must pass
    uses_temperature: ClassVar[bool] = True  # False: the loss reads no temperature, and refuses `tau`
    tau: PositiveFloat | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        unread = self.tau is not None and not self.uses_temperature
        check_option("tau", self.tau, not unread, "left out: the loss has no temperature")

    @property
    def candidate_set(self) -> CandidateSet:
        """Images that a run scores for the loss besides the negatives; override it in a loss that takes any.

        "pair": none; "batch": the other targets of the batch; "corpus": all images of the query's gallery group;
        "relevant": the images, besides the target, that are known to be relevant to the query.
        """
        return "pair"

    @property
    def start_bias(self) -> float | None:
        """Where a run starts a scalar that it learns and passes as `LossInput.bias`; None: the loss has none."""
        return None

    @property
    def least_weight(self) -> float:
        """Weight below which a candidate gets no gradient of its own (`candidate_weights`); 0: each gets its own."""
        return 0.0

    def candidate_weights(self, given: LossInput) -> Tensor:
        """Return [B, C] in [0, 1], how much each candidate counts; for losses whose `least_weight` may be above 0."""
        raise NotImplementedError(f"{type(self).__name__} weighs no candidates")

    def __call__(
        self,
        positive: Tensor,
        negatives: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        temperature: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss of a batch from plain tensors; arguments as in `LossInput`, result as of `evaluate`."""
        divisor = DEFAULT_TEMPERATURE if temperature is None else temperature
        return self.evaluate(LossInput(positive, negatives, mask, weights, divisor))  # type: ignore[arg-type]

    def evaluate(self, given: LossInput) -> Tensor:
        """Compute the loss of a batch, at `tau` if it is set.

        Returns:
            Scalar tensor, differentiable in positive, negatives, temperature, aspects and candidates.

        Raises:
            ValueError: aspects or candidates passed to a loss that takes none.
        """
        if given.aspects and not self.uses_aspects:
            raise ValueError(f"{type(self).__name__} has no term for aspects")
        if given.candidates.shape[1] and self.candidate_set == "pair":
            raise ValueError(f"{type(self).__name__} uses no candidates besides the negatives")
        return self.value(given if self.tau is None else replace(given, temperature=self.tau))

    @abstractmethod
    def value(self, given: LossInput) -> Tensor:
        """Evaluate the formula, with the temperature that `given` holds; called by `evaluate`."""
