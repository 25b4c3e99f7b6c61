"""Dropout whose masks belong to rows: the same whatever is computed together, computed twice, or on which process.

A mask is a function of (seed, step, side, query or image, layer). Before it calls a backbone that trains, the loop says
which rows the call computes (`computing`); a `RowDropout` reads that. So a batch that is cut into micro-batches,
divided among processes or computed again in the backward pass has the gradients of the whole batch. torch's generators
are neither read nor moved.

A backbone of one's own that uses `nn.Dropout` calls `by_rows(self)` at the end of its constructor, or uses `RowDropout`
itself (in `forward`, also on attention probabilities). The first dimension of what passes it must be that of the call's
rows.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from negbench.contracts.splitmix import splitmix
from negbench.errors import NegbenchError, OptionError

# what a call computes: pictures, queries, or the texts of queries
Side = Literal["image", "query", "modification", "reference text", "target text"]

_SIDES: tuple[Side, ...] = ("image", "query", "modification", "reference text", "target text")
_LEVELS = 2**16  # of a random number: four of them are cut from one of 64 bits
_COUNTERS = 2**32  # of a row's stream that belong to each layer, four numbers each
_TORCH_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Rows:
    """The rows that a call of a backbone computes, each by the random stream of its masks.

    Attributes:
        streams: [B] int64, on the device that computes.
        crossed: [P] int64 of the texts that every row is crossed with (`cross_queries`, `cross_texts`); else None.
    """

    streams: Tensor
    crossed: Tensor | None = None

    @classmethod
    def of(cls, seed: int, step: int, side: Side, ids: Tensor) -> Self:
        """Return the rows of a step.

        Args:
            seed: the run's.
            step: number of the step.
            side: what the rows are.
            ids: [B] int64 >= 0, queries of the train split, or pictures; equal ids have equal masks.
        """
        key = _scalar(seed, ids.device)
        key = splitmix(key, _scalar(_SIDES.index(side), ids.device))
        key = splitmix(key, _scalar(step, ids.device))
        return cls(splitmix(key, ids))

    def pairs(self, rows: Tensor, texts: Tensor) -> "Rows":
        """Return the rows of pairs: [C] int64 indices of rows, and [C] of the texts that they are crossed with."""
        if self.crossed is None:
            raise NegbenchError("these rows are crossed with no texts: call cross_queries through negbench's Calls")
        rows = rows.to(self.streams.device)
        texts = texts.to(self.streams.device)
        return Rows(splitmix(self.streams[rows], self.crossed[texts]))

    def again(self, passing: int) -> "Rows":
        """Return the same rows for pass number `passing` (>= 1) through layers that one call uses several times."""
        number = _scalar(-passing, self.streams.device)  # layers count from 0 upwards
        return Rows(splitmix(self.streams, number))


def _scalar(number: int, device: torch.device) -> Tensor:
    """Return an int64 scalar, made on the device: a copy from the host would wait for it."""
    return torch.full((), number, dtype=torch.int64, device=device)


_rows: ContextVar[Rows | None] = ContextVar("negbench_rows", default=None)  # of one thread


@contextmanager
def computing(rows: Rows | None) -> Iterator[None]:
    """Say which rows the calls within the block compute; None: nothing is known, as outside any block."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def current_rows() -> Rows | None:
    """Return the rows of the innermost `computing` of this thread."""
    return _rows.get()


def recomputing() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts of the first and the second pass: the `context_fn` of `torch.utils.checkpoint` within a backbone.

    The backward pass, which may run in another thread, then has the rows of the forward pass.
    """
    return nullcontext(), computing(current_rows())


class RowDropout(nn.Module):
    """Dropout of the surrounding rows: each number is zero with probability p, the others are divided by 1 - p.

    p is rounded to a multiple of 2^-16. A row's mask also depends on the shape of the row.

    Args:
        p: probability, 0 <= p < 1.

    Attributes:
        layer: its number in the backbone (`by_rows`); layers of one number have equal masks.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout needs a probability of at least 0 and below 1, got {p}")
        self.p = p
        self.layer = 0

    def extra_repr(self) -> str:
        """Show probability and layer."""
        return f"p={self.p}, layer={self.layer}"

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, ...]; unchanged in evaluation mode.

        Raises:
            NegbenchError: outside `computing`, or B is not its number of rows.
        """
        level = round(self.p * _LEVELS)
        if not self.training or level == 0:
            return x
        rows = current_rows()
        if rows is None:
            raise NegbenchError(
                "dropout in training mode needs to know its rows: call the backbone within "
                "`with computing(Rows.of(seed, step, side, ids)):` (negbench.contracts), or after `backbone.eval()`"
            )
        if len(rows.streams) != len(x):
            raise NegbenchError(
                f"dropout got {len(x)} rows within a call that computes {len(rows.streams)}: the first dimension must "
                "be that of the call's rows"
            )
        # a product keeps a bool mask for the backward pass, no number of its own; twice as fast as masked_fill on a CPU
        return (x * self._keep_mask(rows, x, level)).mul_(1 / (1 - level / _LEVELS))

    def _keep_mask(self, rows: Rows, x: Tensor, level: int) -> Tensor:
        """Return bool of the shape of x: which numbers stay."""
        size = x[:1].numel()
        first = self.layer * _COUNTERS
        counters = torch.arange(first, first + -(-size // 4), device=x.device)
        numbers = splitmix(rows.streams[:, None], counters).view(torch.int16)  # in [-2^15, 2^15)
        return (numbers >= level - _LEVELS // 2)[:, :size].reshape(x.shape)


def by_rows(backbone: nn.Module) -> None:
    """Replace every `nn.Dropout` of a backbone by a `RowDropout`, and number all of these, in the order of its modules.

    Call it once, when the backbone is complete. It replaces no dropout inside torch's attention and recurrent layers,
    nor `torch.nn.functional.dropout`.
    """
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout and child.p > 0:
                dropout = RowDropout(child.p)
                dropout.training = child.training
                setattr(parent, name, dropout)
    for layer, module in enumerate(part for part in backbone.modules() if isinstance(part, RowDropout)):
        module.layer = layer


@contextmanager
def checking_generators(backbone: nn.Module, device: torch.device, setting: str) -> Iterator[None]:
    """Check that the calls within the block leave torch's generators as they are (`torch_dropout` sees modules only).

    Args:
        backbone: called.
        device: where it computes.
        setting: what computes rows apart, as the user wrote it.

    Raises:
        OptionError: at the end of the block, if one has moved.
    """
    before = _generators(device)
    yield
    after = _generators(device)
    if any(not torch.equal(one, other) for one, other in zip(before, after, strict=True)):
        raise OptionError(
            f"{setting}: {type(backbone).__name__} draws random numbers from torch's generators, so a batch in parts "
            "would have other ones: use negbench.contracts.RowDropout in place of torch.nn.functional.dropout, or "
            "leave the option out"
        )


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def torch_dropout(backbone: nn.Module) -> list[str]:
    """Return the names of a backbone's modules that draw dropout from torch's generators when the backbone trains.

    Only torch's own modules are known: a call of `torch.nn.functional.dropout` is not found.
    """
    modes = {module: module.training for module in backbone.modules()}
    backbone.train()
    names = [name for name, module in backbone.named_modules() if module.training and _draws(module)]
    for module, mode in modes.items():
        module.training = mode
    return names


def _draws(module: nn.Module) -> bool:
    if isinstance(module, _TORCH_DROPOUT):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return False
