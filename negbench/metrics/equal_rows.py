"""Rows that hold the same numbers: each of them gets the scores of the first one.

A matrix product may round equal columns differently: by their position, the shape, the number of threads, the device.
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
    def of(cls, rows: Tensor, index: Tensor | None = None) -> Self:
        """Find the copies among [N, T, D] rows, or among `rows[index]`."""
        if index is None and len(rows) <= _FEW and rows.device.type == "cpu":
            return cls._of_few(rows.detach())
        keys = keys_of(rows)
        if index is None:
            return cls.by_key(keys, lambda some: rows[some])
        return cls.by_key(keys[index], lambda some: rows[index[some]])

    @classmethod
    def _of_few(cls, rows: Tensor) -> Self:
        """`of` by comparing, in Python, those rows that share their first number: few operations of torch."""
        if rows.dtype == torch.bfloat16:
            rows = rows.float()  # numpy has no bfloat16
        numbers = rows.numpy(force=True)
        heads = numbers[:, 0, 0].tolist()
        count_of_head = Counter(heads)
        if len(count_of_head) == len(heads):
            return cls(_NONE, _NONE)
        first_of_content: dict[bytes, int] = {}
        later = []
        firsts = []
        for row, head in enumerate(heads):
            if count_of_head[head] > 1:
                content = (numbers[row] + 0.0).tobytes()  # + 0 turns -0 into 0
                first = first_of_content.setdefault(content, row)
                if first < row:
                    later.append(row)
                    firsts.append(first)
        return cls(torch.tensor(later, dtype=torch.int64), torch.tensor(firsts, dtype=torch.int64))

    @classmethod
    def by_key(cls, keys: Tensor, read: Callable[[Tensor], Tensor]) -> Self:
        """Find the copies among N rows; `read` returns those whose key [N] int64 another row has, too."""
        ordered, order = keys.sort()
        same = ordered[1:] == ordered[:-1]
        repeated = torch.zeros_like(keys, dtype=torch.bool)
        if not same.any():
            return cls(order[:0], order[:0])
        repeated[1:] |= same
        repeated[:-1] |= same
        some = order[repeated].sort().values
        content = (read(some).detach().flatten(1) + 0.0).contiguous()  # + 0 turns -0 into 0
        bits = content.view(getattr(torch, f"int{8 * content.element_size()}"))
        _, kind = bits.unique(dim=0, return_inverse=True)
        kind = kind.to(some.device)
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
