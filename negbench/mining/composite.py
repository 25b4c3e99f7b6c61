"""Strategies made of strategies, by name: `in-batch+qure` (union), `all-corpus:5>cirqrs` (switch over epochs).

A composite's class is made when its name is looked up. Its options are those of its parts; an
option that two parts share is prefixed with its part's name: `top_k_k` and `after_target_k` of `top-k:5>after-target`.
"""

import dataclasses
import itertools
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from negbench.contracts import BankStrategy, BatchStrategy, PlaneName, ScoreView, Slot, Strategy
from negbench.errors import OptionError, short_repr

Find = Callable[[str], type[Strategy]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composite(Strategy):
    """Base class of composites: parts, and the options passed on to them."""

    parts: ClassVar[tuple[type[Strategy], ...]]
    option_names: ClassVar[tuple[Mapping[str, str], ...]]  # per part: its own option -> the composite's

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", _planes_of(self.members))  # making the members runs their own checks

    @cached_property
    def members(self) -> tuple[Strategy, ...]:
        """The parts with their options."""
        members = []
        for part, names in zip(self.parts, self.option_names, strict=True):
            options = {option: getattr(self, name) for option, name in names.items()}
            try:
                members.append(part(**options))
            except OptionError as error:  # names the part's own option
                option, _, rest = str(error).partition(" ")
                raise OptionError(f"{names.get(option, option)} {rest}") from error
        return tuple(members)


def _planes_of(parts: Iterable[Strategy | type[Strategy]]) -> tuple[PlaneName, ...]:
    """Return the planes that any of these parts reads, each once."""
    planes: dict[PlaneName, None] = {}
    for part in parts:
        planes |= dict.fromkeys(part.reads)
    return tuple(planes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Union(Composite):
    """A corpus strategy's own draws and a batch strategy's members, in one loss.

    A query has M + B - 1 negatives if all members are allowed: its own M draws and the batch's other targets, but not
    other queries' draws. `train.num_negatives` counts the draws; the batch is used whole. Source: standard in text
    retrieval (DPR, arXiv:2004.04906, sec. 3.2).

    Args:
        shared: whether the draws of the batch's other queries are a query's negatives, too: B - 1 + B M in all, as in
            sentence-transformers' MultipleNegativesRankingLoss with hard negatives. Left out are a query's own target
            and what the options of `[mining]` exclude or filter for it; as in a batch, images of all galleries count.
    """

    shared: bool = False

    def pool(self, view: ScoreView) -> Tensor:
        """Return the corpus strategy's pools."""
        return next(member for member in self.members if member.scope == "corpus").pool(view)


class Switch(Composite):
    """One strategy after another: each from its epoch on, the first from epoch 0.

    The last one is scheduled as in a run of its own, with the earlier ones as its warm-up. Each earlier one refreshes
    at its first epoch and then at the intervals of its own `n_def`; these refreshes count from 0 and are not kept.
    """

    starts: ClassVar[tuple[int, ...]]  # first epoch of each part

    def pool(self, view: ScoreView) -> Tensor:
        """Return the last strategy's pools."""
        return self.members[-1].pool(view)


# --- what a run asks of any strategy -------------------------------------------------------------------------------


def parts_of(strategy: Strategy) -> list[tuple[int, Strategy]]:
    """Return the first epoch and the strategy of each part of a switch; any other strategy is one part."""
    if isinstance(strategy, Switch):
        return list(zip(strategy.starts, strategy.members, strict=True))
    return [(0, strategy)]


def batch_rule(strategy: Strategy) -> BatchStrategy | None:
    """Return the batch strategy: the strategy itself, or a union's part; None for a corpus strategy."""
    parts = strategy.members if isinstance(strategy, Union) else (strategy,)
    return next((part for part in parts if isinstance(part, BatchStrategy)), None)


def batch_rules(strategy: Strategy) -> list[BatchStrategy]:
    """Return `batch_rule` of every part that has one."""
    rules = [batch_rule(part) for _, part in parts_of(strategy)]
    return [rule for rule in rules if rule is not None]


def shares_draws(strategy: Strategy) -> bool:
    """Return whether a query's negatives include what was drawn for the batch's other queries."""
    return isinstance(strategy, Union) and strategy.shared


def slots_of(strategy: Strategy) -> tuple[Slot, ...]:
    """Return the slots that a part's negatives corrupt; draws from a corpus corrupt the target."""
    slots: list[Slot] = []
    if strategy.scope == "corpus":
        slots.append("target")
    rule = batch_rule(strategy)
    if rule is not None:
        slots += rule.corrupts
    return tuple(dict.fromkeys(slots))


# --- names ---------------------------------------------------------------------------------------------------------


def compose(name: str, find: Find) -> type[Strategy]:
    """Return the class of a composite by its name.

    Args:
        name: with `>` (epochs before it, after a colon) or `+`, which binds tighter.
        find: returns the class of a part by name.

    Raises:
        OptionError: the name cannot be parsed, or the parts cannot be combined.
    """
    return _switch(name, find) if ">" in name else _union(name, find)


def _union(name: str, find: Find) -> type[Strategy]:
    names = [part.strip() for part in name.split("+")]
    parts = [find(part) for part in names]
    if sorted(part.scope for part in parts) != ["batch", "corpus"]:
        raise OptionError(
            f"strategy {short_repr(name)}: a union combines one corpus strategy and one batch strategy, such as "
            "in-batch+qure"
        )
    corpus_part = next(part for part in parts if part.scope == "corpus")
    other = next(part for part in parts if issubclass(part, BatchStrategy))
    if "triple" in other.corrupts:
        raise OptionError(f"strategy {short_repr(name)}: whole-batch triples cannot be combined with drawn negatives")
    for part, key in zip(parts, names, strict=True):
        if any(field.name == "shared" for field in dataclasses.fields(part)):
            raise OptionError(f"strategy {short_repr(name)}: {short_repr(key)} has an option of its own named 'shared'")
    return _make_class(Union, name, names, parts, like=corpus_part)


def _switch(name: str, find: Find) -> type[Strategy]:
    names = []
    epochs = []
    *early, last = name.split(">")
    for text in early:
        match = re.fullmatch(r"\s*([^:>]+?)\s*:\s*(\d+)\s*", text)
        if match is None:
            raise _unreadable_switch(name)
        names.append(match[1])
        epochs.append(int(match[2]))
    match = re.fullmatch(r"\s*([^:>]+?)\s*", last)
    if match is None:
        raise _unreadable_switch(name)
    names.append(match[1])
    if min(epochs) < 1:
        raise OptionError(f"strategy {short_repr(name)}: a phase must last at least one epoch")
    parts = [find(part) for part in names]
    starts = tuple(itertools.accumulate(epochs, initial=0))
    return _make_class(Switch, name, names, parts, like=parts[-1], starts=starts)


def _unreadable_switch(name: str) -> OptionError:
    return OptionError(
        f"strategy {short_repr(name)}: expected NAME:EPOCHS>NAME, with the epochs that the first lasts, such as "
        "all-corpus:5>cirqrs"
    )


def _make_class(
    base: type[Composite],
    name: str,
    names: Sequence[str],
    parts: Sequence[type[Strategy]],
    *,
    like: type[Strategy],
    **attributes: Any,
) -> type[Strategy]:
    """Build the class with the options of its parts; other attributes come from the part `like`, or as given."""
    if len(set(names)) != len(names):
        raise OptionError(f"strategy {short_repr(name)} names {short_repr(Counter(names).most_common(1)[0][0])} twice")
    uses = Counter(field.name for part in parts for field in dataclasses.fields(part))
    option_names: list[dict[str, str]] = []
    fields: list[tuple[str, Any, Any]] = []
    for key, part in zip(names, parts, strict=True):
        hints = typing.get_type_hints(part, include_extras=True)
        prefix = re.sub(r"\W+", "_", key)
        new_names = {}
        for field in dataclasses.fields(part):
            new_names[field.name] = f"{prefix}_{field.name}" if uses[field.name] > 1 else field.name
        for field in dataclasses.fields(part):
            fields.append((new_names[field.name], hints[field.name], _copy_field(field, new_names)))
        option_names.append(new_names)
    attributes |= {
        "__module__": __name__,
        "__doc__": base.__doc__,
        "parts": tuple(parts),
        "option_names": tuple(option_names),
        "reads": _planes_of(parts),
        "reads_truth": any(part.reads_truth for part in parts),
        "n_def": like.n_def,
        "schedule": like.schedule,
    }
    # a switch whose last part is a batch strategy is one itself
    kind = next(base for base in (BankStrategy, BatchStrategy, Strategy) if issubclass(like, base))
    if issubclass(like, BatchStrategy):
        attributes["corrupts"] = like.corrupts
    title = "".join(word.capitalize() for word in re.split(r"\W+", name))
    bases = (base, kind)
    composite: type[Strategy] = dataclasses.make_dataclass(
        title, fields, bases=bases, frozen=True, kw_only=True, namespace=attributes
    )
    return composite


def _copy_field(field: dataclasses.Field[Any], names: Mapping[str, str]) -> Any:
    """Copy a field's default and range for the composite, where the part's options may have other names."""
    metadata = dict(field.metadata)
    if "range" in metadata and metadata["range"].below:
        metadata["range"] = dataclasses.replace(metadata["range"], below=names[metadata["range"].below])
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=metadata)
