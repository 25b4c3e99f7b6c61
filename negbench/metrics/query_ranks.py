"""Per-query ranks that an evaluation stores: enough for any metric on any query subset, without the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from negbench.errors import NegbenchError
from negbench.metrics.ragged import Ragged

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("query", "group", "target_rank", "gallery_size", "relevant_ranks")
_VALUE = "value:"  # prefix of the columns of `values`


@dataclass(frozen=True, eq=False)
class QueryRanks:
    """Ranks of Q queries, each within its own gallery after exclusions.

    Args:
        query: Q ids.
        group: Q names of gallery groups.
        target_rank: [Q] int64, 1 is best; 0 where the query has no target.
        gallery_size: [Q] int64, candidates that were ranked.
        relevant_ranks: Q rows, ranks of every relevant image; the target's alone where nothing more is known.
        subset_rank: [Q] int64, the target's rank within the query's subset (CIRR), or None.
        cluster: Q names of clusters of queries that vary together (a family, a product), or None.
        values: name -> [Q] float64, what was measured while ranking; nan where a query has no such value.
    """

    query: tuple[str, ...]
    group: tuple[str, ...]
    target_rank: Tensor
    gallery_size: Tensor
    relevant_ranks: Ragged
    subset_rank: Tensor | None = None
    cluster: tuple[str, ...] | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups that have a query, in order of first appearance."""
        return tuple(dict.fromkeys(self.group))

    @classmethod
    def concatenate(cls, parts: Sequence[QueryRanks]) -> QueryRanks:
        """Concatenate the queries of all parts; all of them hold subset ranks, or none."""
        subset_ranks = [part.subset_rank for part in parts if part.subset_rank is not None]
        clusters = [part.cluster for part in parts if part.cluster is not None]
        values = {}
        if parts:
            for name in parts[0].values:
                values[name] = _join([part.values[name] for part in parts])
        return cls(
            query=tuple(chain.from_iterable(part.query for part in parts)),
            group=tuple(chain.from_iterable(part.group for part in parts)),
            target_rank=_join([part.target_rank for part in parts]),
            gallery_size=_join([part.gallery_size for part in parts]),
            relevant_ranks=Ragged.concatenate([part.relevant_ranks for part in parts]),
            subset_rank=_join(subset_ranks) if subset_ranks else None,
            cluster=tuple(chain.from_iterable(clusters)) if clusters else None,
            values=values,
        )

    def select(self, rows: Tensor | Iterable[int]) -> QueryRanks:
        """Select queries by int64 indices, in their order, or by a [Q] bool mask."""
        index = rows if isinstance(rows, Tensor) else torch.tensor(list(rows), dtype=torch.int64)
        if index.dtype == torch.bool:
            index = index.nonzero()[:, 0]
        return QueryRanks(
            query=tuple(self.query[i] for i in index.tolist()),
            group=tuple(self.group[i] for i in index.tolist()),
            target_rank=self.target_rank[index],
            gallery_size=self.gallery_size[index],
            relevant_ranks=self.relevant_ranks.select(index),
            subset_rank=None if self.subset_rank is None else self.subset_rank[index],
            cluster=None if self.cluster is None else tuple(self.cluster[i] for i in index.tolist()),
            values={name: value[index] for name, value in self.values.items()},
        )

    @cached_property
    def _of_groups(self) -> dict[str, QueryRanks]:
        rows_of_group: dict[str, list[int]] = {}
        for row, name in enumerate(self.group):
            rows_of_group.setdefault(name, []).append(row)
        return {name: self.select(rows) for name, rows in rows_of_group.items()}

    def of_group(self, group: str) -> QueryRanks:
        """Select the queries of one gallery group; cached for all metrics."""
        return self._of_groups[group] if group in self._of_groups else self.select(())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per query, for parquet; `from_frame` restores the same ranks."""
        import pandas as pd

        frame = pd.DataFrame({"query": self.query, "group": self.group}, dtype=object)
        frame["target_rank"] = self.target_rank.numpy()
        frame["gallery_size"] = self.gallery_size.numpy()
        relevant = [self.relevant_ranks.row(row).numpy() for row in range(len(self))]
        frame["relevant_ranks"] = pd.Series(relevant, dtype=object)
        if self.subset_rank is not None:
            frame["subset_rank"] = self.subset_rank.numpy()
        if self.cluster is not None:
            frame["cluster"] = pd.Series(self.cluster, dtype=object)
        return frame.assign(**{f"{_VALUE}{name}": value.numpy() for name, value in self.values.items()})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> QueryRanks:
        """Build from a frame of `to_frame`. Raises NegbenchError if a column is missing."""
        absent = [name for name in _COLUMNS if name not in frame.columns]
        if absent:
            raise NegbenchError(f"not a table of ranks: no column {', '.join(absent)}")

        def column(name: str) -> Tensor:
            return torch.tensor(frame[name].to_numpy("int64"))

        values = {}
        for name in frame.columns:
            if name.startswith(_VALUE):
                values[name.removeprefix(_VALUE)] = torch.tensor(frame[name].to_numpy("float64"))
        return cls(
            query=tuple(frame["query"].tolist()),
            group=tuple(frame["group"].tolist()),
            target_rank=column("target_rank"),
            gallery_size=column("gallery_size"),
            relevant_ranks=Ragged.of([row.tolist() for row in frame["relevant_ranks"].tolist()]),
            subset_rank=column("subset_rank") if "subset_rank" in frame.columns else None,
            cluster=tuple(frame["cluster"].tolist()) if "cluster" in frame.columns else None,
            values=values,
        )


def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=torch.int64)
