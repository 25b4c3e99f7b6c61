"""Ask a strategy for the pools of a view, or for the synthetic negatives of a step, and check what it returns."""

import dataclasses

import torch
from torch import Tensor

from negbench.contracts import BankStep, ScoreView, Strategy, SyntheticStrategy
from negbench.errors import NegbenchError
from negbench.mining.filters import Filters


def filter_view(view: ScoreView, filters: Filters | None, strategy: Strategy) -> ScoreView:
    """Return the view shown to a strategy: without filtered images, and with only the planes that it declares."""
    active = filters is not None and filters.active
    if not active and not view.planes:
        return view
    allowed = view.allowed & filters.keep(view) if filters is not None and active else view.allowed
    planes: dict[str, Tensor] = {name: plane for name, plane in view.planes.items() if name in strategy.reads}
    return dataclasses.replace(view, allowed=allowed, planes=planes)


def ask_for_pools(strategy: Strategy, view: ScoreView) -> Tensor:
    """Return the strategy's pools for a corpus or a batch; raise NegbenchError if they violate `Strategy.pool`."""
    before = _versions(view)
    pools = strategy.pool(view)
    name = type(strategy).__name__
    if _versions(view) != before:  # the loss may use the same score tensor
        raise NegbenchError(f"{name}.pool modified its view; change a copy (.clone())")
    if not isinstance(pools, Tensor) or pools.shape != view.scores.shape:
        returned = tuple(pools.shape) if isinstance(pools, Tensor) else type(pools).__name__
        raise NegbenchError(f"{name}.pool must return a {tuple(view.scores.shape)} tensor, got {returned}")
    if pools.dtype != torch.bool and not pools.is_floating_point():
        raise NegbenchError(f"{name}.pool must return bool or float weights, got {pools.dtype}")
    if pools.layout != torch.strided or pools.device != view.scores.device:
        raise NegbenchError(f"{name}.pool must return a dense tensor on {view.scores.device}, got {pools.device}")
    if pools.is_floating_point() and not bool((pools.isfinite() & (pools >= 0)).all()):
        raise NegbenchError(f"{name}.pool must return finite weights >= 0")
    wrong = as_mask(pools) > view.allowed
    if wrong.numpy(force=True).any():
        row, column = wrong.nonzero()[0].tolist()
        what = "the target itself" if column == int(view.target[row]) else "an excluded image"
        raise NegbenchError(f"{name}.pool chose {what} (row {row}, column {column}); choose only where view.allowed")
    return pools


def ask_for_synthetic(strategy: SyntheticStrategy, step: BankStep) -> tuple[Tensor, Tensor]:
    """Return the synthetic negatives; raise NegbenchError if they violate `SyntheticStrategy.synthetic`."""
    inputs = (step.pool, step.queries, step.images)
    name = f"{type(strategy).__name__}.synthetic"
    before = _versions(step.view, *inputs)
    answer = strategy.synthetic(step)
    if _versions(step.view, *inputs) != before:
        raise NegbenchError(f"{name} modified its inputs; change a copy (.clone())")
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(part, Tensor) for part in answer):
        raise NegbenchError(f"{name} must return two tensors: the tokens, and a mask of those that exist")
    tokens, present = answer
    rows, width = step.queries.shape
    images = step.images.shape[1]
    if tokens.ndim != 4 or (len(tokens), *tokens.shape[2:]) != (rows, images, width):
        raise NegbenchError(f"{name} must return [{rows}, S, {images}, {width}] tokens, got {tuple(tokens.shape)}")
    if present.shape != tokens.shape[:2] or present.dtype != torch.bool:
        expected = f"a {tuple(tokens.shape[:2])} bool tensor"
        raise NegbenchError(f"{name} must return {expected} as the mask, got {tuple(present.shape)} {present.dtype}")
    if not tokens.is_floating_point() or any(part.device != step.images.device for part in answer):
        raise NegbenchError(f"{name} must return float tokens on {step.images.device}, got {tokens.dtype}")
    norms = torch.linalg.vector_norm(tokens.float(), dim=-1)
    near = ((norms - 1).abs() < 1e-2) | ~present[:, :, None]  # half precision is off by 1e-3
    if not bool((near & norms.isfinite()).all()):  # absent tokens must be finite too: 0 x NaN makes a NaN gradient
        raise NegbenchError(f"{name} must return finite tokens of unit norm")
    return answer


def _versions(view: ScoreView, *others: Tensor) -> list[int]:
    """Return how often each tensor of a view and of the others was written to; inference tensors keep no count."""
    tensors = (view.scores, view.target, view.allowed, view.relevant, view.kinds, *view.planes.values(), *others)
    return [tensor._version for tensor in tensors if tensor is not None and not tensor.is_inference()]


def as_mask(pools: Tensor) -> Tensor:
    """Return the pools as bool."""
    return pools if pools.dtype == torch.bool else pools > 0
