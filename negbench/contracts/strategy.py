"""The strategy interface: a strategy chooses the images that may be drawn as negatives.

Subclass the first of these that suffices:

- `Strategy`: a corpus strategy, a function of one score row; its pools are refreshed now and then, and drawn from.
- `BatchStrategy`: chooses among the members of the batch in every step; all chosen members are used.
- `OrderedBatches`: a batch strategy that also decides which queries share a batch.
- `BankStrategy`: a batch strategy that ranks the target against images beyond the batch.
- `SyntheticStrategy`: a bank strategy that adds synthetic negatives, made of embeddings.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from negbench.contracts.ranges import check_fields
from negbench.contracts.view import PLANES, PlaneName, ScoreView
from negbench.errors import OptionError, UnknownNameError, short_repr

Scope = Literal["corpus", "batch"]
# the corrupted member; "triple": all three at once; "query": the target is kept and ranks its query against others;
# "bank": the target again, replaced by remembered images or the whole corpus, without a gradient through them
Slot = Literal["reference", "modification", "target", "triple", "query", "bank"]


def _check_names(cls: type, name: str, declared: Any, valid_names: tuple[str, ...], *, empty: bool = True) -> None:
    """Raise OptionError or UnknownNameError unless `declared` is a tuple of valid names."""
    attribute = f"{cls.__name__}.{name}"
    if not isinstance(declared, tuple) or not (empty or declared):
        raise OptionError(f"{attribute} must be a tuple of {', '.join(valid_names)}, got {short_repr(declared)}")
    kind = {"corrupts": "slot", "reads": "plane"}.get(name, name)
    for item in declared:
        if item not in valid_names:
            raise UnknownNameError(kind, str(item), valid_names, where=attribute)


@dataclass(frozen=True)
class Strategy(ABC):
    """A rule on a score row: which images of the corpus may be drawn as negatives of a query.

    A frozen dataclass whose fields are its hyperparameters, checked by their types (`check_fields`). It must not store
    pools or views (the next queries overwrite the scores of a large corpus), draw, or touch a data set, a model, a
    configuration or a global random generator: `negbench.mining` streams, draws, falls back and counts for all
    strategies.
    """

    scope: ClassVar[Scope] = "corpus"  # corpus or batch strategy
    n_def: ClassVar[int] = 6  # published number of pool definitions; a run may override it
    schedule: ClassVar[Literal["multiples", "equal"]] = "multiples"  # when: `negbench.settings.config.refresh_epochs`
    # further scores to offer in `view.plane`, each computed only if listed here; they belong to targets, so a batch
    # strategy that reads any may corrupt only "target" and "query" (whose planes are transposed like the scores)
    reads: ClassVar[tuple[PlaneName, ...]] = ()
    reads_truth: ClassVar[bool] = False  # True: `view.relevant` holds the ground truth (the oracle_* strategies)

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise OptionError or UnknownNameError if a subclass declares something unknown."""
        super().__init_subclass__(**options)
        of_batch = any(base.__name__ == "BatchStrategy" for base in cls.__mro__)  # itself, too
        scope = "batch" if of_batch else "corpus"
        if cls.scope != scope or of_batch != hasattr(cls, "corrupts"):
            raise OptionError(
                f"{cls.__name__}: subclass negbench.BatchStrategy for a batch strategy, negbench.Strategy "
                "for a corpus strategy; do not set `scope`"
            )
        _check_names(cls, "schedule", (cls.schedule,), ("multiples", "equal"))
        _check_names(cls, "reads", cls.reads, PLANES)

    def __post_init__(self) -> None:
        check_fields(self)

    def check_gallery(self, size: int) -> None:  # noqa: B027  # most strategies suit any gallery
        """Raise OptionError if the strategy cannot work on a gallery of this size; called before training."""

    @abstractmethod
    def pool(self, view: ScoreView) -> Tensor:
        """Return the pool of every query.

        Returns:
            [B, N] bool mask, or float weights >= 0 (drawn in proportion), True or > 0 only where `view.allowed`. An
            all-False row is an empty pool: mining then applies the fallback and counts it.
        """


@dataclass(frozen=True)
class BatchStrategy(Strategy):
    """A rule on the batch: which of its members are negatives, called once for each slot that it corrupts.

    A slot is the member of the triple (reference, modification, target) that is replaced. `pool` gets the slot's
    [B, B] scores, and its result is used in full, as a mask or as weights.

    The slot "query" is the target slot transposed: row i keeps target i, and column j is query j. With
    `corrupts = ("target", "query")` a loss runs in both directions.

    The slot "triple" is every (r_a, m_b, t_c) of the batch, a, b, c not all equal. Its scores do not depend on the
    query, so the strategy is called once for all: the view is one row [1, B^3], column (a B + b) B + c, whose target is
    the first query's triple; no query's own triple is allowed. A batch of 64 has 262,144 columns: 1 MiB of scores.
    """

    scope: ClassVar[Scope] = "batch"
    corrupts: ClassVar[tuple[Slot, ...]] = ("target",)
    n_def: ClassVar[int] = 1  # called in every step: nothing to refresh

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise OptionError or UnknownNameError if a subclass declares unknown slots."""
        super().__init_subclass__(**options)
        _check_names(cls, "corrupts", cls.corrupts, get_args(Slot), empty=False)
        if ("bank" in cls.corrupts) != hasattr(cls, "queue"):
            raise OptionError(f"{cls.__name__}: the slot 'bank' and negbench.BankStrategy require each other")

    def pool(self, view: ScoreView) -> Tensor:
        """Return all allowed columns, unless a subclass chooses."""
        return view.allowed.clone()


@dataclass(frozen=True, eq=False)
class Epoch:
    """Inputs for ordering an epoch's queries.

    Args:
        number: 0-based.
        target: [Q] int64, column of each train query's target.
        size: batch size.
        generator: the run's random stream for batches; the only source of randomness.
        embed: returns [Q, D], the composed queries under the current model.
    """

    number: int
    target: Tensor
    size: int
    generator: torch.Generator
    embed: Callable[[], Tensor]

    @cached_property
    def queries(self) -> Tensor:
        """[Q, D] unit norm, under the current model, on the CPU; computed on first access."""
        return self.embed().cpu()


@dataclass(frozen=True)
class OrderedBatches(BatchStrategy):
    """A batch strategy that also decides which queries share a batch; all others use a random order."""

    @abstractmethod
    def order(self, epoch: Epoch) -> Tensor:
        """Return [Q] int64, a permutation of the train queries; every `epoch.size` in turn form a batch."""


@dataclass(frozen=True)
class BankStrategy(BatchStrategy):
    """A batch strategy whose slot "bank" holds K images that may lie outside the batch, without a gradient.

    They are the targets of the last steps (`queue`, a field or a property), or all images of the query's gallery, in
    every step anew. The slot's view is [B, 1 + K], the target in column 0.
    """

    corrupts: ClassVar[tuple[Slot, ...]] = ("bank",)

    @property
    def queue(self) -> int:
        """Number of recent targets in the bank, including the step's own; 0: the whole gallery."""
        return 0


@dataclass(frozen=True)
class BankStep:
    """One step as a `SyntheticStrategy` sees it: B queries and the K images of the bank, without gradients.

    Args:
        view: view of the slot "bank"; [B, 1 + K] columns, the target in column 0.
        pool: [B, 1 + K], the result of the strategy's `pool`.
        queries: [B, D] unit norm.
        images: [K, T, D] candidate tokens of unit norm.
        random: returns [B, n] float64 in (0, 1) for any n, from each query's own stream; new numbers at every call.
    """

    view: ScoreView
    pool: Tensor
    queries: Tensor
    images: Tensor
    random: Callable[[int], Tensor]


@dataclass(frozen=True)
class SyntheticStrategy(BankStrategy):
    """A bank strategy that adds synthetic negatives: embeddings that belong to no image."""

    @abstractmethod
    def synthetic(self, step: BankStep) -> tuple[Tensor, Tensor]:
        """Return synthetic negatives; called in every step after `pool` of the slot "bank".

        They join that slot's negatives with weight 1; the gradient of their scores flows through the query only.

        Returns:
            [B, S, T, D] candidate tokens of unit norm, and [B, S] bool, which of them exist.
        """
