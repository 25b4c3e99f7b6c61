"""Calls of a step that are cut or computed twice: what must not change a backbone's gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from negbench.contracts import Calls, SubQuery
from negbench.contracts.calls import Call


class CutCalls(Calls):
    """Computes the first row of every call apart from the others."""

    def _compute(self, call: Call[Any]) -> Any:
        texts = (slice(None),) * (len(call.sides) - 1)
        parts = []
        for rows in torch.arange(len(call.ids)).tensor_split([1]):
            parts.append(self._compute_part(call, (rows, *texts)))
        return _join(parts)


class RecomputedCalls(Calls):
    """Computes every call once more in the backward pass."""

    def _compute(self, call: Call[Any]) -> Any:
        return checkpoint(super()._compute, call, use_reentrant=False)


def _join(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    joined = {}
    for name, sub in parts[0].items():
        embeddings = torch.cat([part[name].embeddings for part in parts])
        present = torch.cat([part[name].present for part in parts])
        joined[name] = SubQuery(embeddings, sub.weight, present)
    return joined
