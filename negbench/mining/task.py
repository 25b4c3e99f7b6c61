"""Input of mining: queries and corpora as embeddings, built by hand or from a train split by a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from negbench.contracts import DEFAULT_TEMPERATURE
from negbench.metrics.ragged import Ragged
from negbench.mining.filters import Filters
from negbench.mining.planes import Plane


@dataclass(frozen=True)
class MiningTask:
    """Queries and the corpora that their negatives come from. Q queries, N images of T tokens each, width D.

    A *column* is an image's index.

    Args:
        queries: [Q, D] unit-norm embeddings, on the device that computes the scores.
        candidates: [N, T, D] unit-norm tokens of all images, on the same device.
        target: [Q] int64 column of each query's positive.
        group: [Q] int64, index into `groups`.
        groups: per gallery group, the int64 columns of its corpus, without repeats.
        excluded: per query, columns that may never be drawn (known duplicates of the target; the reference on request).
        relevant: per query, columns known to be relevant, the target included; an empty row where nothing is known.
            None: nothing is known of any query beyond its target, and false-negative rates are NaN.
        kinds: ([b] numbers in `ids`, [n] columns) -> [b, n] int8 codes of judged negatives; None: none are known.
        cache: holds [Q, SHARES] "kind_random" of `Mined`, which no model changes, for the next task of these queries.
        ids: [Q] int64, the queries' numbers in random streams and in messages; default 0..Q-1. `shard` keeps them.
        temperature: > 0, passed to the strategy.
        planes: further scores, by name, for strategies that declare them (`Strategy.reads`), and for `filters`.
        filters: exclude images by their scores, whatever the strategy.
    """

    queries: Tensor
    candidates: Tensor
    target: Tensor
    group: Tensor
    groups: Sequence[Tensor]
    excluded: Ragged | None = None
    relevant: Ragged | None = None
    kinds: Callable[[Tensor, Tensor], Tensor] | None = None
    cache: dict[str, Tensor] = field(default_factory=dict)
    ids: Tensor = None  # type: ignore[assignment]  # resolved below
    temperature: float = DEFAULT_TEMPERATURE
    planes: Mapping[str, Plane] = field(default_factory=dict)
    filters: Filters | None = None

    def __post_init__(self) -> None:
        if self.ids is None:
            object.__setattr__(self, "ids", torch.arange(len(self.queries)))

    def shard(self, rows: Tensor) -> MiningTask:
        """Return the task of queries `rows` [R] int64 only; mining gives them the same results as the whole task."""
        return dataclasses.replace(
            self,
            queries=self.queries[rows.to(self.queries.device)],
            target=self.target[rows.to(self.target.device)],
            group=self.group[rows.to(self.group.device)],
            ids=self.ids[rows.to(self.ids.device)],
            excluded=None if self.excluded is None else self.excluded.select(rows),
            relevant=None if self.relevant is None else self.relevant.select(rows),
            planes={name: plane.shard(rows) for name, plane in self.planes.items()},
            cache={},
        )
