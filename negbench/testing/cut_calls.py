"""Calls of a step that are cut or computed twice: what must not change a backbone's gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from negbench.contracts import Calls, Rows, SubQuery, computing
from negbench.contracts.calls import Tokens
from negbench.contracts.dropout import Side


class CutCalls(Calls):
    """Computes the first row of every call apart from the others."""

    def _embed(self, make: Callable[..., Any], side: Side, ids: Tensor, *inputs: Tensor | Tokens) -> Any:
        parts = [super(CutCalls, self)._embed(make, side, ids[p], *(_part(x, p) for x in inputs)) for p in _parts(ids)]
        return _joined(parts)

    def _cross(
        self,
        make: Callable[..., Tensor],
        sides: tuple[Side, Side],
        ids: Tensor,
        references: Tensor | Tokens,
        texts: Tokens,
    ) -> Tensor:
        rows, crossed = (self._rows(side, ids).streams for side in sides)
        made = []
        for part in _parts(ids):
            with computing(Rows(rows[part], crossed)):
                made.append(make(_part(references, part), texts))
        return torch.cat(made)


class RecomputedCalls(Calls):
    """Computes every call once more in the backward pass."""

    def _embed(self, make: Callable[..., Any], side: Side, ids: Tensor, *inputs: Tensor | Tokens) -> Any:
        return checkpoint(super()._embed, make, side, ids, *inputs, use_reentrant=False)

    def _cross(self, *given: Any) -> Any:
        return checkpoint(super()._cross, *given, use_reentrant=False)


def _parts(ids: Tensor) -> Sequence[Tensor]:
    return torch.arange(len(ids)).tensor_split([1])


def _part(given: Tensor | Tokens, rows: Tensor) -> Tensor | Tokens:
    return given[rows] if isinstance(given, Tensor) else {name: value[rows] for name, value in given.items()}


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return {
        name: SubQuery(
            torch.cat([part[name].embeddings for part in parts]),
            sub.weight,
            torch.cat([p[name].present for p in parts]),
        )
        for name, sub in parts[0].items()
    }
