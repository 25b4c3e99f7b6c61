"""Rows that hold the same numbers: each of them gets the scores of the first one.

A matrix product may round equal columns differently: by their place, the shape, the number of threads, the device.
Ties would then depend on it. Copying scores does not.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

_FACTOR = 0x9E3779B1  # odd: sums of numbers times its powers, modulo 2^64, tell rows apart
_PARTS = 4  # numbers of a row that its key holds
_FEW = 2**10  # rows that are told apart by their first number alone, if it differs
_NONE = torch.empty(0, dtype=torch.int64)


class Copies(NamedTuple):
    """Rows `later` [K] int64 that equal an earlier one in every number, and the `first` [K] of their kind."""

    later: Tensor
    first: Tensor

    @classmethod
    def of(cls, rows: Tensor, chosen: Tensor | None = None) -> Self:
        """Find the copies among [N, T, D] rows, or among `rows[chosen]`."""
        if chosen is None and len(rows) <= _FEW and rows.device.type == "cpu":
            return cls._of_few(rows.detach())
        keys = keys_of(rows)
        if chosen is None:
            return cls.by_key(keys, lambda some: rows[some])
        return cls.by_key(keys[chosen], lambda some: rows[chosen[some]])

    @classmethod
    def _of_few(cls, rows: Tensor) -> Self:
        """`of` by comparing, in Python, those rows that share their first number: few operations of torch."""
        numbers = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy(force=True)
        heads = numbers[:, 0, 0].tolist()
        often = Counter(heads)
        kinds = dict[bytes, int]()
        pairs = list[tuple[int, int]]()
        if len(often) < len(heads):
            repeated = (at for at, head in enumerate(heads) if often[head] > 1)
            pairs = [(at, kinds.setdefault((numbers[at] + 0.0).tobytes(), at)) for at in repeated]  # + 0: no -0
        found = [pair for pair in pairs if pair[0] > pair[1]]
        return cls(*torch.tensor(found, device=rows.device).T) if found else cls(_NONE, _NONE)

    @classmethod
    def by_key(cls, keys: Tensor, read: Callable[[Tensor], Tensor]) -> Self:
        """Find the copies among N rows; `read` returns those whose key [N] int64 another row has, too."""
        ordered, place = keys.sort()
        same = ordered[1:] == ordered[:-1]
        repeated = torch.zeros_like(keys, dtype=torch.bool)
        if not same.any():
            return cls(place[:0], place[:0])
        repeated[1:] |= same
        repeated[:-1] |= same
        some = place[repeated].sort().values
        content = (read(some).detach().flatten(1) + 0.0).contiguous()  # + 0 turns -0 into 0
        bits = content.view(getattr(torch, f"int{8 * content.element_size()}"))
        kind = bits.unique(dim=0, return_inverse=True)[1].to(some.device)
        first = torch.full_like(some, len(keys)).scatter_reduce_(0, kind, some, "amin")[kind]
        return cls(some[first < some], first[first < some])

    def level(self, scores: Tensor) -> Tensor:
        """Give every copy among the columns of [B, N, ...] scores its first row's, in place; gradients stay its own."""
        if len(self.later):
            numbers = scores.detach()  # a view that autograd saw written to would cost another pass backwards
            numbers[:, self.later] = numbers[:, self.first]
        return scores


def keys_of(rows: Tensor) -> Tensor:
    """[N, T, D] -> [N] int64 from a few of their numbers: equal rows have equal keys."""
    some = rows.detach()[:, 0, :: -(-rows.shape[2] // _PARTS)]
    bits = (some.float() + 0.0).contiguous().view(torch.int32)
    power = torch.tensor([_FACTOR**n % 2**63 for n in range(bits.shape[1])], device=rows.device)
    return (bits * power).sum(1)
