"""What a strategy is: it chooses the images that may be drawn as negatives.

Subclass the first of these that says enough:

- `Strategy`: a corpus strategy, one function of a score row; pools are redefined now and then, and drawn from.
- `BatchStrategy`: chooses among the members of the batch in every step; its whole choice is used.
- `OrderedBatches`: a batch strategy that also says which queries share a batch.
- `BankStrategy`: a batch strategy that ranks the target against images beyond the batch.
- `SyntheticStrategy`: a strategy with a bank that adds negatives made of embeddings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from negbench.contracts.ranges import check_fields
from negbench.contracts.view import PLANES, PlaneName, ScoreView
from negbench.errors import OptionError, UnknownNameError, quoted

Scope = Literal["corpus", "batch"]
# what is corrupted; "triple": all three at once; "query": the target is kept and looks for its own among the queries;
# "bank": the target again, by images that are remembered or all of the corpus, without a gradient through them
Slot = Literal["reference", "modification", "target", "triple", "query", "bank"]


def _check_names(cls: type, name: str, declared: Any, known: tuple[str, ...], *, empty: bool = True) -> None:
    """OptionError or UnknownNameError unless `declared` is a tuple of known names."""
    if not isinstance(declared, tuple) or not (empty or declared):
        raise OptionError(f"{cls.__name__}.{name} must be a tuple of {', '.join(known)}, got {quoted(declared)}")
    for each in declared:
        if each not in known:
            raise UnknownNameError(
                {"corrupts": "slot", "reads": "plane"}.get(name, name), str(each), known, where=f"{cls.__name__}.{name}"
            )


@dataclass(frozen=True)
class Strategy(ABC):
    """A rule of a score row: which images of the corpus may be drawn as negatives of a query.

    A frozen dataclass whose fields are its hyperparameters, checked by their types (`check_fields`). It never stores
    pools or views (the scores of a large corpus are overwritten by those of the next queries), draws, nor touches a
    data set, a model, a configuration or a global random generator: `negbench.mining` streams, draws, falls back and
    counts for all.
    """

    scope: ClassVar[Scope] = "corpus"  # which of the two types it is
    n_def: ClassVar[int] = 6  # published number of pool definitions; a run may override it
    schedule: ClassVar[Literal["multiples", "equal"]] = "multiples"  # when: `negbench.settings.config.refresh_epochs`
    # further scores that `view.plane` must have, each computed only because it stands here; of targets, so a batch
    # strategy that reads any corrupts no slot but "target" and "query" (whose planes are transposed as the scores are)
    reads: ClassVar[tuple[PlaneName, ...]] = ()
    reads_truth: ClassVar[bool] = False  # True: `view.relevant` holds the ground truth (the oracle_* strategies)

    def __init_subclass__(cls, **options: Any) -> None:
        """OptionError or UnknownNameError where a class declares what there is not."""
        super().__init_subclass__(**options)
        of_batch = any(base.__name__ == "BatchStrategy" for base in cls.__mro__)  # itself, too
        if of_batch != (cls.scope == "batch") or of_batch != hasattr(cls, "corrupts"):
            raise OptionError(
                f"{cls.__name__}: a rule of the batch is a negbench.BatchStrategy, one of the corpus a "
                "negbench.Strategy; neither declares `scope`"
            )
        _check_names(cls, "schedule", (cls.schedule,), ("multiples", "equal"))
        _check_names(cls, "reads", cls.reads, PLANES)

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def pool(self, view: ScoreView) -> Tensor:
        """Pool of every query.

        Returns:
            [B, N] bool mask, or float weights >= 0 (drawn in proportion), True or > 0 only where `view.allowed`. An
            all-False row is an empty pool: mining then applies the fallback and counts it.
        """


@dataclass(frozen=True)
class BatchStrategy(Strategy):
    """A rule of the batch: which of its members are negatives, asked once for each slot that it corrupts.

    A slot is the member of the triple (reference, modification, target) that is replaced. `pool` gets the slot's
    [B, B] scores, and what it returns is used whole, as a mask or as weights.

    The slot "query" is the target slot read the other way: row i keeps target i, and column j is query j. With
    `corrupts = ("target", "query")` a loss runs in both directions.

    The slot "triple" is every (r_a, m_b, t_c) of the batch, a, b, c not all equal. Its scores do not depend on the
    query, so the strategy is asked once for all: the view is one row [1, B^3], column (a B + b) B + c, whose target is
    the first query's triple; no query's own triple is allowed. A batch of 64 has 262,144 columns: 1 MiB of scores.
    """

    scope: ClassVar[Scope] = "batch"
    corrupts: ClassVar[tuple[Slot, ...]] = ("target",)
    n_def: ClassVar[int] = 1  # asked in every step: nothing to redefine

    def __init_subclass__(cls, **options: Any) -> None:
        """OptionError or UnknownNameError where a class declares slots that there are not."""
        super().__init_subclass__(**options)
        _check_names(cls, "corrupts", cls.corrupts, get_args(Slot), empty=False)
        if ("bank" in cls.corrupts) != hasattr(cls, "queue"):
            raise OptionError(f"{cls.__name__}: the slot 'bank' belongs to a negbench.BankStrategy, and to no other")

    def pool(self, view: ScoreView) -> Tensor:
        """All that is allowed, unless a subclass chooses."""
        return view.allowed.clone()


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the order of an epoch's queries may depend on.

    Args:
        number: 0-based.
        target: [Q] int64, column of each train query's target.
        size: queries in a batch.
        generator: the run's stream of batches; the only source of randomness.
        embed: returns [Q, D], the composed queries of the model as it is now.
    """

    number: int
    target: Tensor
    size: int
    generator: torch.Generator
    embed: Callable[[], Tensor]

    @cached_property
    def queries(self) -> Tensor:
        """[Q, D] unit norm, under the current model, on the CPU; computed where it is read."""
        return self.embed().cpu()


@dataclass(frozen=True)
class OrderedBatches(BatchStrategy):
    """A batch strategy that also says which queries share a batch; all others get them in random order."""

    @abstractmethod
    def order(self, epoch: Epoch) -> Tensor:
        """[Q] int64, a permutation of the train queries: each `epoch.size` in turn are a batch."""


@dataclass(frozen=True)
class BankStrategy(BatchStrategy):
    """A batch strategy whose slot "bank" has K images that need not be in the batch, without a gradient.

    They are the targets of the last steps (`queue`, a field or a property), or all images of the query's gallery, in
    every step anew. The slot's view is [B, 1 + K], the target in column 0.
    """

    corrupts: ClassVar[tuple[Slot, ...]] = ("bank",)

    @property
    def queue(self) -> int:
        """How many of the last targets the bank holds, the step's own among them; 0: the whole gallery."""
        return 0


@dataclass(frozen=True)
class BankStep:
    """What a `SyntheticStrategy` is shown of a step: B queries and the K images of the bank, no gradients.

    Args:
        view: of the slot "bank"; [B, 1 + K] columns, the target in column 0.
        pool: [B, 1 + K], what the strategy's `pool` answered.
        queries: [B, D] unit norm.
        images: [K, T, D] candidate tokens of unit norm.
        random: returns [B, n] float64 in (0, 1) for any n: numbers of each query's own stream, new ones at every call.
    """

    view: ScoreView
    pool: Tensor
    queries: Tensor
    images: Tensor
    random: Callable[[int], Tensor]


@dataclass(frozen=True)
class SyntheticStrategy(BankStrategy):
    """A strategy with a bank that adds negatives made of embeddings; they are no image's."""

    @abstractmethod
    def synthetic(self, step: BankStep) -> tuple[Tensor, Tensor]:
        """Negatives made of embeddings: asked in every step after `pool` of the slot "bank".

        They join that slot's negatives with weight 1; the query, not they, has a gradient in their scores.

        Returns:
            [B, S, T, D] candidate tokens of unit norm, and [B, S] bool, which of them there are.
        """
