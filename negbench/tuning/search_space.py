"""Search space of a study: the searched options with fixed ranges, and how a point becomes a configuration.

They come from the strategy's own `tunable` fields; a corpus strategy adds the number of definitions and the warm-up.
Epochs and the number of negatives stay fixed, so that the best trial answers which negatives, not how many; `search`
can name the latter. Two fields of which the first must stay below the second (a band) are searched as start and width,
because a sampler cannot learn a range that depends on another value.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import optuna
from pydantic import Field

from negbench.contracts import Range, tunable_ranges
from negbench.errors import OptionError, UnknownNameError, short_repr
from negbench.grid.setting_trials import generates_dev
from negbench.loop.objective import smallest_gallery
from negbench.loop.runs import DATA
from negbench.settings.config import ResolvedConfig, RunConfig, build_config, resolve
from negbench.settings.layers import parse_value

_SEARCHABLE = ("strategy", "loss", "backbone", "train", "schedule", "mining", "hybrid")
_FIXED = ("train.epochs", "schedule.refresh_epochs")
_FORM = "expected KEY=low:high, KEY=low:high:log or KEY=a|b|c"
_N_DEF = range(2, 13)


@dataclass(frozen=True)
class SearchRange:
    """One searched value: in [low, high] (both included; whole numbers if both are), or one of `choices`.

    `key` is a dotted key of RunConfig; "strategy.END-START" for the width of a band, whose end is cut at `limit`; or
    "KEY+1" for a whole number that starts at 0, searched on a log scale as one more than it is.
    """

    key: str
    default: Any
    low: int | float = 0
    high: int | float = 0
    log: bool = False
    choices: tuple[Any, ...] = ()
    limit: int | float = 0  # of the end of a band

    @property
    def sets(self) -> str:
        """Key of RunConfig that the value sets; for a width, the end of its band."""
        return self.key.partition("-")[0].removesuffix("+1")

    @property
    def whole(self) -> bool:
        """Whether the range holds whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: optuna.Trial) -> Any:
        """Return the trial's value, sampled if it has none; the range is the same in every trial."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    @property
    def start(self) -> Any:
        """The default if it is in range, else the nearest end of the range or the first choice."""
        if self.choices:
            return self.default if self.default in self.choices else self.choices[0]
        return min(max(self.default, self.low), self.high)

    def text(self) -> str:
        """Return the range as tables print it: '0.0 to 0.4', '10 to 500 (log)', '2, 3, 6'."""
        if self.choices:
            return ", ".join(str(choice) for choice in self.choices)
        text = f"{self.low} to {self.high}"
        return f"{text} (log)" if self.log else text


@dataclass(frozen=True)
class SearchSpace:
    """The searched options of a study, each with its range."""

    ranges: Annotated[tuple[SearchRange, ...], Field(alias="knobs")]  # the name that stored studies have

    @property
    def default(self) -> dict[str, Any]:
        """The point of trial 0."""
        return {searched.key: searched.start for searched in self.ranges}

    @property
    def clipped(self) -> list[str]:
        """Options whose default lies outside their range, so that trial 0 is not the default."""
        return [searched.key for searched in self.ranges if searched.start != searched.default]

    def varies(self, key: str) -> bool:
        """Whether an option with this key is searched, or one that sets this key of RunConfig."""
        return any(key in (searched.key, searched.sets) for searched in self.ranges)

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination of the options' choices, the default first."""
        keys = [searched.key for searched in self.ranges]
        choices = [searched.choices for searched in self.ranges]
        points = [dict(zip(keys, values, strict=True)) for values in itertools.product(*choices)]
        return sorted(points, key=lambda point: point != self.default)

    def corners(self, base: RunConfig) -> list[RunConfig]:
        """Return the default's configuration, and one per end or choice of each option, the others at default."""
        points = [self.default]
        for searched in self.ranges:
            extremes = searched.choices or (searched.low, searched.high)
            points += [{**self.default, searched.key: value} for value in extremes]
        return [self.config(base, point, base.seed) for point in points]

    def config(self, base: RunConfig, point: Mapping[str, Any], seed: int, *, closed: bool = True) -> RunConfig:
        """Return the configuration of a point.

        Args:
            base: the configuration that the study was started with.
            point: key -> value.
            seed: seed of the run.
            closed: keep the reported split closed and score the dev part, which is the same for all seeds of a study:
                generated queries of the same world, or else a part of train.

        Raises:
            OptionError: values that do not fit together.
        """
        layer: dict[str, dict[str, Any]] = {}
        for key, value in self.plain(base, point).items():
            section, name = key.split(".", 1)
            layer.setdefault(section, {})[name] = value
        layers = [base.model_dump(), layer, {"seed": seed}]
        if closed:
            evaluation: dict[str, Any] = {"reported": False, "dev_seed": base.seed}
            if generates_dev(base):
                evaluation["dev"] = "generated"
            layers.append({"eval": evaluation})
        return build_config(layers)

    def plain(self, base: RunConfig, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the point, which may lack options, in keys of RunConfig: a width becomes the end of its band."""
        values = dict(point)
        for searched in self.ranges:
            if searched.key in values and searched.key.endswith("+1"):
                values[searched.sets] = values.pop(searched.key) - 1
        for searched in self.ranges:
            if searched.key in values and searched.key != searched.sets:
                _, _, start_name = searched.key.partition("-")
                start = f"strategy.{start_name}"
                low = values[start] if start in values else resolve(base).flat()[start]
                # decimal noise (0.2 + 0.6 = 0.8000000000000000444) would turn the default into another run
                values[searched.sets] = round(min(low + values.pop(searched.key), searched.limit), 12)
        return values


# --- building ----------------------------------------------------------------------------------------------------


def build_space(
    base: RunConfig, *, search: Sequence[str] = (), fix: Sequence[str] = (), grid: bool = False
) -> SearchSpace:
    """Build the space of a study.

    Args:
        base: configuration.
        search: 'KEY=low:high', 'KEY=low:high:log' or 'KEY=a|b|c', which change or add ranges.
        fix: keys that are not searched.
        grid: search only the choices of `search`.

    Raises:
        OptionError: a key or value that cannot be searched, or no option at all.
    """
    space = _space_of(base, resolve(base), search, fix, grid)
    if not space.ranges:
        raise OptionError(
            f"strategy '{base.strategy.name}' has nothing left to tune: add an option with --search KEY=low:high"
        )
    for config in space.corners(base):
        resolve(config)
    return space


def _space_of(
    base: RunConfig, full: ResolvedConfig, search: Sequence[str], fix: Sequence[str], grid: bool
) -> SearchSpace:
    """Return the strategy's ranges without those of `fix`, plus those of `search`; in a grid only the latter."""
    ranges = strategy_ranges(base, full)
    for fixed in fix:
        keys = [*full.flat(), *ranges]
        if fixed not in keys:
            raise UnknownNameError("key", fixed, keys, where="--fix")
        ranges = {key: searched for key, searched in ranges.items() if fixed not in (key, searched.sets)}
    added = [parse_search(text, full, ranges) for text in search]
    if not grid:
        by_setting = {searched.sets: searched for searched in (*ranges.values(), *added)}  # the added one wins
        return SearchSpace(tuple(by_setting.values()))
    unlisted = [searched.key for searched in added if not searched.choices]
    if unlisted:
        raise OptionError(f"a grid needs listed values for {', '.join(unlisted)}: --search {unlisted[0]}=a|b|c")
    return SearchSpace(tuple(added))


def strategy_ranges(base: RunConfig, full: ResolvedConfig) -> dict[str, SearchRange]:
    """Return the ranges of the strategy's options and of its schedule's, by key."""
    from negbench.plugins.registry import registry

    strategy: Any = registry.get("strategies", full.strategy.name)
    options = full.strategy.options
    tunable = tunable_ranges(strategy)
    starts = {span.below: name for name, span in tunable.items() if span.below}  # end of a band -> its start
    ranges: dict[str, SearchRange] = {}
    for name, span in tunable.items():
        band = (name, span.below, starts.get(name, ""))
        if span.low is not None and any(isinstance(options.get(end), str) for end in band):
            continue  # a share of the gallery; the range is in images
        if name in starts:
            searched = _width(starts[name], name, options, tunable)
        else:
            searched = _of_range(name, options[name], span)
        if span.below and searched.whole:  # the start of a window of ranks: within the smallest gallery
            most = smallest_gallery(DATA.splits(full).train)
            if searched.key == searched.sets:  # a rank from 0; "KEY+1" is one more
                most -= 1
            searched = replace(searched, high=min(searched.high, most))
        ranges[searched.key] = searched
    names_epochs = base.schedule.refresh_epochs is not None or base.schedule.refresh_every is not None
    if strategy.scope == "corpus" and strategy.n_def > 1 and full.schedule.n_def > 1 and not names_epochs:
        for of_schedule in (_definitions(full), _warmup(full)):
            if of_schedule is not None:
                ranges[of_schedule.key] = of_schedule
    return ranges


def _of_range(name: str, default: Any, span: Range) -> SearchRange:
    key = f"strategy.{name}"
    if span.choices:
        choices = list(span.choices)
        if default not in choices:
            choices.append(default)
        return SearchRange(key, default, choices=tuple(choices))
    assert span.low is not None
    assert span.high is not None
    number = int if isinstance(default, int) else float
    low = min(number(span.low), default)
    high = max(number(span.high), default)
    return _shift_from_zero(SearchRange(key, default, low, high, span.log))


def _shift_from_zero(searched: SearchRange) -> SearchRange:
    """Return a range that can be searched as it says: a log scale that starts at 0 is moved by one."""
    if not searched.log or searched.low > 0:
        return searched
    return replace(
        searched, key=f"{searched.key}+1", default=searched.default + 1, low=searched.low + 1, high=searched.high + 1
    )


def _width(start: str, end: str, options: Mapping[str, Any], ranges: Mapping[str, Range]) -> SearchRange:
    """Return a band's width: from the narrowest that both ranges allow, or a tenth of the widest, to the widest.

    On a log scale the narrowest is that of the lowest start and end.
    """
    first = ranges[start]
    last = ranges[end]
    default = round(options[end] - options[start], 12)
    widest = (last.high or 0) - (first.low or 0)
    gap = (last.low or 0) - (first.high or 0)
    if last.log:
        gap = (last.low or 0) - (first.low or 0)
    span = Range(round(gap if gap > 0 else widest / 10, 12), round(widest, 12), log=last.log)
    return replace(_of_range(f"{end}-{start}", default, span), limit=max(last.high or 0, options[end]))


def _definitions(full: ResolvedConfig) -> SearchRange | None:
    """Return one number of definitions per interval that the epochs allow, a divisor if any; None for one choice."""
    epochs = full.train.epochs
    default = full.schedule.n_def
    possible = [n for n in _N_DEF if n <= epochs]
    divisors = [n for n in possible if epochs % n == 0]
    by_interval: dict[int, int] = {}
    for n in (*divisors, *possible):
        by_interval.setdefault(epochs // n, n)
    by_interval[max(1, epochs // default)] = default
    choices = tuple(sorted(by_interval.values()))
    return SearchRange("schedule.n_def", default, choices=choices) if len(choices) > 1 else None


def _warmup(full: ResolvedConfig) -> SearchRange | None:
    """Return the warm-up: 1/12 to 1/3 of the epochs, in epochs; the default is one interval."""
    epochs = full.train.epochs
    default = full.schedule.warmup
    low = min(max(1, round(epochs / 12)), default)
    high = max(round(epochs / 3), default)
    return SearchRange("schedule.warmup", default, low, high) if low < high else None


# --- parsing -----------------------------------------------------------------------------------------------------


def parse_search(text: str, full: ResolvedConfig, ranges: Mapping[str, SearchRange]) -> SearchRange:
    """Parse 'KEY=low:high[:log]' or 'KEY=a|b|c'; a key that is not searched yet is taken from the configuration."""
    flag = f"--search {text!r}"
    key, _, values = text.partition("=")
    key = key.strip()
    searched = _find_range(key, full, ranges)
    if searched.key.endswith("+1"):  # the user names the value itself
        searched = replace(searched, key=searched.sets, default=searched.default - 1)
    default = searched.default
    if "|" in values:
        choices = tuple(_parse_choice(part, default, flag) for part in values.split("|"))
        if len(set(choices)) != len(choices):
            raise OptionError(f"{flag}: names a value twice")
        return replace(searched, choices=choices)
    low_text, _, rest = values.partition(":")
    high_text, colon, scale = rest.partition(":")
    log = scale == "log"
    if not low_text or not high_text or (colon and not log):
        raise OptionError(f"{flag}: {_FORM}")
    low, high = _parse_ends(low_text, high_text, default, flag)
    least = 0 if isinstance(low, int) else math.ulp(0)  # a whole number 0 is searched as 1
    if not low < high or (log and low < least):
        raise OptionError(f"{flag}: expected low < high{', and low > 0 on a log scale' if log else ''}")
    if default is None or isinstance(default, str):  # a share of the gallery is no number of images
        raise OptionError(f"{flag}: the default of {key} is not a number; set one first with --set {key}=...")
    return _shift_from_zero(replace(searched, low=low, high=high, log=log, choices=()))


def _parse_ends(low_text: str, high_text: str, default: Any, flag: str) -> tuple[float, float]:
    """Parse the ends of a range: whole numbers if both are."""
    low = _parse_choice(low_text, default, flag)
    high = _parse_choice(high_text, default, flag)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise OptionError(f"{flag}: a range needs two numbers; list other values as a|b|c")
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    return float(low), float(high)


def _find_range(key: str, full: ResolvedConfig, ranges: Mapping[str, SearchRange]) -> SearchRange:
    if key in ranges:
        return ranges[key]
    moved = ranges.get(f"{key}+1")
    if moved:
        return moved
    width = next((searched.key for searched in ranges.values() if searched.sets == key), None)
    if width:
        raise OptionError(f"{key} is the end of a band: search its width with --search {width}=low:high")
    flat = full.flat()
    allowed = [k for k in flat if k.split(".")[0] in _SEARCHABLE and not k.endswith(".name") and k not in _FIXED]
    if key not in flat:
        raise UnknownNameError("key", key, {*ranges, *allowed}, where="--search")
    if key not in allowed:
        raise OptionError(f"{key} cannot be searched: trials would not be comparable, or could not be stopped early")
    return SearchRange(key, flat[key])


def _parse_choice(text: str, default: Any, flag: str) -> Any:
    """Parse one value, written as in TOML, into the type of the default."""
    value = parse_value(text.strip(), flag)
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise OptionError(f"{flag}: expected a number, a text, true or false, got {short_repr(value)}")
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, int) and not isinstance(default, bool) and isinstance(value, float):
        raise OptionError(f"{flag}: expected whole numbers, got {value}")
    return value
