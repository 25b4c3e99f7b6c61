"""The input of a strategy: scores of queries and images, and the names of further scores (planes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from negbench.errors import NegbenchError
from negbench.metrics.drops import between_drops
from negbench.metrics.fixed import DEFAULT_TEMPERATURE
from negbench.metrics.ranks import descending, window

# further scores of every query and image, which a strategy declares in `reads` and a view hands out (`ScoreView.plane`)
PlaneName = Literal["target", "reference", "text", "guide", "judge", "listed"]
PLANES: tuple[PlaneName, ...] = get_args(PlaneName)


@dataclass(frozen=True)
class ScoreView:
    """Input of a strategy: the scores of B queries against N images (or of the batch against itself).

    NumPy arrays are converted to tensors.

    Args:
        scores: [B, N] float of any sign, higher is better; cosine before the temperature.
        target: [B] int64, column of each query's positive.
        allowed: [B, N] bool, columns that may be a negative; default: everything but the target. The target is always
            removed, so strategies can use the tensor as it is.
        refresh: 0-based count of this refresh.
        relevant: [B, N] bool ground truth; only strategies that declare `reads_truth` are given it.
        kinds: [B, N] int8, codes of judged negatives (`negbench.metrics.mistakes`); given as `relevant` is, where any
            are known.
        temperature: > 0, the current temperature of the run's loss (its `tau`, or the learned one).
        dim: width D of the scored embeddings; 0 if there are none (a table by hand).
        planes: name -> [B, N] float, the planes that the strategy declares in `reads`; read them with `plane`.

    Raises:
        ValueError: a wrong shape or dtype, or a target outside the columns.
    """

    scores: Tensor
    target: Tensor
    allowed: Tensor = None  # type: ignore[assignment]  # resolved below
    refresh: int = 0
    relevant: Tensor | None = None
    kinds: Tensor | None = None
    temperature: float = DEFAULT_TEMPERATURE
    dim: int = 0
    planes: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("scores", "target", "allowed", "relevant", "kinds"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        object.__setattr__(self, "planes", {name: torch.as_tensor(plane) for name, plane in self.planes.items()})
        if self.scores.ndim != 2 or not self.scores.is_floating_point():
            raise ValueError(
                f"scores must be a [B, N] float tensor, got {tuple(self.scores.shape)} {self.scores.dtype}"
            )
        rows, columns = self.scores.shape
        shape = tuple(self.scores.shape)
        _check_table("target", self.target, (rows,), "int64")
        _check_table("allowed", self.allowed, shape, "bool")
        _check_table("relevant", self.relevant, shape, "bool")
        _check_table("kinds", self.kinds, shape, "int8")
        for name, plane in self.planes.items():
            _check_table(f"plane {name}", plane, shape, "float")
        if rows and (int(self.target.min()) < 0 or int(self.target.max()) >= columns):
            raise ValueError(
                f"target must be in 0..{columns - 1}, got {int(self.target.min())}..{int(self.target.max())}"
            )
        allowed = torch.ones_like(self.scores, dtype=torch.bool) if self.allowed is None else self.allowed.clone()
        allowed.scatter_(1, self.target[:, None], False)
        object.__setattr__(self, "allowed", allowed)

    @property
    def positive(self) -> Tensor:
        """[B], the target's score."""
        return self.scores.gather(1, self.target[:, None]).squeeze(1)

    def plane(self, name: PlaneName) -> Tensor:
        """[B, N] float: other scores of the same queries and images, in the order of `scores`.

        - "target": cosine of each image to the query's target image; "reference": to its reference image. An image is
          the normalised mean of its candidate tokens, under the current model.
        - "text": the query's scores by its text alone, under the current model.
        - "guide": scores under another backbone, or the run's own as loaded, or from a file of scores (`mining.guide`).
        - "judge": cosine to the target image under another backbone, or from a file of scores (`mining.judge`).
        - "listed": 1 for the images that the data, or the strategy's own `file`, list as negatives of the query.

        A file need not score every pair: a missing one is NaN, which compares as false with anything.

        Raises:
            NegbenchError: the strategy does not declare the plane in `reads`, or the view has none.
        """
        if name not in self.planes:
            raise NegbenchError(
                f"plane '{name}' is not in this view (it has {', '.join(self.planes) or 'none'}): "
                "declare it in the strategy's `reads`, or pass it to the ScoreView"
            )
        return self.planes[name]

    @cached_property
    def order(self) -> Tensor:
        """[B, N] int64: columns by descending score, ties by corpus index; sorted once and shared.

        Sorting costs several times as much as scoring; `window` and `between_drops` avoid it.
        """
        return descending(self.scores)

    def window(self, eligible: Tensor, stop: Tensor | int, start: Tensor | int = 0) -> Tensor:
        """[B, N] bool: the eligible images that rank start, ..., stop - 1 among themselves, by descending score.

        Ties are broken by corpus index; so `window(eligible, k)` is the k highest-scored, or all if there are fewer.

        Args:
            eligible: [B, N] bool.
            stop: one number, or [B] int64.
            start: the same, >= 0.
        """
        return window(self.scores, eligible, start, stop)

    def between_drops(self, eligible: Tensor, apart: int = 0) -> Tensor:
        """[B, N] bool: the eligible images between two steep drops of the ranking (`metrics.drops.between_drops`)."""
        return between_drops(self.scores, eligible, apart)


def _check_table(name: str, table: Tensor | None, shape: tuple[int, ...], kind: str) -> None:
    """Raise ValueError unless a table has this shape, and a dtype of this kind."""
    if table is None:
        return
    dtype = "float" if table.is_floating_point() else str(table.dtype).removeprefix("torch.")
    if table.shape != shape or dtype != kind:
        raise ValueError(f"{name} must be a {shape} {kind} tensor, got {tuple(table.shape)} {table.dtype}")
