"""int64 rows of different lengths in two tensors: for relevant images, excluded images and subsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_LARGE = 2**24  # bytes of a table


@dataclass(frozen=True)
class Ragged:
    """Row i is ``values[offsets[i] : offsets[i + 1]]``; `values` [sum of lengths], `offsets` [rows + 1], both int64."""

    values: Tensor
    offsets: Tensor
    _tables: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Build from rows of integers."""
        rows = list(rows)
        lengths = torch.tensor([0, *(len(row) for row in rows)], dtype=torch.int64)
        flat = [value for row in rows for value in row]
        return cls(torch.tensor(flat, dtype=torch.int64), lengths.cumsum(0))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of all parts."""
        if not parts:
            return cls.of([])
        lengths = torch.cat([part.lengths for part in parts])
        return cls(torch.cat([part.values for part in parts]), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Tensor:
        """Row `index`, a view."""
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    @property
    def lengths(self) -> Tensor:
        """[rows] int64, the length of each row."""
        return self.offsets.diff()

    def select(self, rows: Tensor) -> Ragged:
        """Select rows by an int64 index tensor, in its order."""
        lengths = self.lengths[rows]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = (self.offsets[rows] - offsets[:-1]).repeat_interleave(lengths)
        return Ragged(self.values[torch.arange(int(offsets[-1])) + shift], offsets)

    def mask(self, local: Tensor, width: int) -> Tensor:
        """[rows, width] bool: True at the columns that each row holds.

        Args:
            local: [largest value + 1] int64, the column of each value, or -1 if it has none.
            width: number of columns.
        """
        hit = torch.zeros(len(self), width, dtype=torch.bool)
        row = torch.arange(len(self)).repeat_interleave(self.lengths)
        column = local[self.values]
        inside = column >= 0
        hit[row[inside], column[inside]] = True
        return hit

    def among(self, rows: Tensor, columns: Tensor, width: int) -> Tensor:
        """[B, C] bool: whether row `rows[b]` holds `columns[c]`, of `width` columns; a small table is made once."""
        if width not in self._tables and len(self) * width <= _LARGE:
            self._tables[width] = self.mask(torch.arange(width), width)
        if width in self._tables:
            return self._tables[width].index_select(0, rows).index_select(1, columns)
        return self.select(rows).mask(torch.arange(width), width)[:, columns]
