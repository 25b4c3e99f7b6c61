"""The learning rate and temperature that a group was given, as comparison.json holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from negbench.settings.config import LEARNED, PluginConfig, RunConfig, TrainConfig

TAU = "loss.tau"  # the option that fixes a temperature
# values of the axis `settings`: a table's common setting, and each group's own
COMMON_SETTING = "common"
OWN_SETTING = "own"
RATE_STEP = 3.0  # beyond an end, the grid of rates goes on by this factor
TEMPERATURE_STEP = 2.0  # and that of fixed temperatures by this one

Temperature = float | Literal["learned"]


@dataclass(frozen=True)
class TrialSetting:
    """What trials choose between.

    Attributes:
        lr: the learning rate.
        temperature: "learned", or the number at which the loss fixes it; None if no temperature is chosen.
    """

    lr: float
    temperature: Temperature | None = None

    @classmethod
    def of(cls, config: RunConfig, *, temperature: bool) -> TrialSetting:
        """Return the setting of a run with a resolved rate, with its temperature if asked."""
        assert config.train.lr is not None
        if not temperature:
            return cls(config.train.lr)
        return cls(config.train.lr, config.loss.options.get("tau") or LEARNED)

    @property
    def fixed_temperature(self) -> float | None:
        """The number at which the loss fixes the temperature; None if it is learned, or not chosen."""
        return float(self.temperature) if isinstance(self.temperature, int | float) else None

    def __lt__(self, other: TrialSetting) -> bool:
        """Whether its rate is lower or, of one rate, its temperature, the learned one first."""
        return (self.lr, self.fixed_temperature or 0.0) < (other.lr, other.fixed_temperature or 0.0)

    def __str__(self) -> str:
        """'lr=0.01', or 'lr=0.01, tau=0.07'."""
        text = f"lr={self.lr:g}"
        return text if self.temperature is None else f"{text}, tau={_plain(self.temperature)}"

    def words(self) -> str:
        """'0.01', or '0.01 at a temperature of 0.07'."""
        if self.temperature is None:
            return f"{self.lr:g}"
        if self.fixed_temperature is None:
            return f"{self.lr:g} with a learned temperature"
        return f"{self.lr:g} at a temperature of {self.fixed_temperature:g}"

    def apply(self, config: RunConfig) -> RunConfig:
        """Return a configuration at this setting.

        Where the temperature is fixed, it loses the options of a learned one, which would do nothing.
        """
        train: dict[str, Any] = {"lr": self.lr}
        loss = config.loss
        backbone = config.backbone
        if self.temperature is not None:
            tau = self.fixed_temperature
            loss = PluginConfig(name=loss.name, **{**loss.options, "tau": tau})
        if self.fixed_temperature is not None:
            train |= {name: TrainConfig.model_fields[name].default for name in _OF_LEARNED}
            options = {key: value for key, value in backbone.options.items() if key != "temperature"}
            backbone = PluginConfig(name=backbone.name, **options)
        changes = {"train": config.train.model_copy(update=train), "loss": loss, "backbone": backbone}
        return config.model_copy(update=changes)


_OF_LEARNED = ("temperature_rate", "temperature_least")  # options of `train` that only a learned temperature reads


def _plain(temperature: Temperature) -> str:
    return temperature if isinstance(temperature, str) else f"{temperature:g}"


@dataclass(frozen=True)
class ChosenSetting:
    """One group's setting; comparison.json holds them under `rates`, as `ChosenSettingRecord` checks.

    Attributes:
        labels: labels of the group.
        seeds: seeds of the trials.
        setting: the chosen one, or the configured one if no trial is finished.
        tried: (setting, metric on the dev part) of each setting, lowest first: the mean over seeds; None if a trial of
            it is not finished.
        runs: (setting, runs of its trials, one for each seed) of each finished setting.
        queries: size of the dev part.
        generated: whether the dev part was generated, instead of carved from train.
        metric: the one by which the setting was chosen; "" of an older version: the data set's main metric.
        common: whether all groups of its table were given one setting.
    """

    labels: Mapping[str, str]
    seeds: tuple[int, ...]
    setting: TrialSetting
    tried: tuple[tuple[TrialSetting, float | None], ...]
    runs: tuple[tuple[TrialSetting, tuple[str, ...]], ...] = ()
    queries: int = 0
    generated: bool = False
    metric: str = ""
    common: bool = False

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of comparison.json, also of an older version, whose trials had one seed."""
        fields = {key: value for key, value in row.items() if key not in ("seed", "error", "lr", "temperature")}
        fields["seeds"] = tuple(row["seeds"] if "seeds" in row else [row["seed"]])
        fields["setting"] = TrialSetting(row["lr"], row.get("temperature"))
        fields["tried"] = tuple((TrialSetting(*setting), value) for *setting, value in row["tried"])
        fields["runs"] = tuple((TrialSetting(*setting), tuple(names)) for *setting, names in row.get("runs", ()))
        return cls(**fields)

    def plain(self) -> dict[str, Any]:
        """Return the row of comparison.json; it names temperatures only if one was chosen."""
        row: dict[str, Any] = {"labels": dict(self.labels), "seeds": self.seeds, "lr": self.setting.lr}
        if self.setting.temperature is not None:
            row["temperature"] = self.setting.temperature
        row["tried"] = tuple((*_parts(setting), value) for setting, value in self.tried)
        row["runs"] = tuple((*_parts(setting), names) for setting, names in self.runs)
        for key in ("queries", "generated", "metric", "common"):
            row[key] = getattr(self, key)
        return row

    @property
    def means(self) -> dict[TrialSetting, float]:
        """Setting -> mean metric of its trials, of the settings whose trials are finished, lowest first."""
        return {setting: value for setting, value in self.tried if value is not None}

    @property
    def further_rates(self) -> tuple[float, ...]:
        """The next rate beyond the end of the grid at which all best settings stand; none if it is no end."""
        tried = {setting.lr for setting, _ in self.tried}
        return _beyond({setting.lr for setting in self._best()}, tried, RATE_STEP)

    @property
    def further_temperatures(self) -> tuple[float, ...]:
        """The next fixed temperature beyond the end at which all best settings stand; none if it is no end."""
        tried = {setting.fixed_temperature for setting, _ in self.tried if setting.fixed_temperature is not None}
        return _beyond({setting.fixed_temperature for setting in self._best()}, tried, TEMPERATURE_STEP)

    @property
    def at_end(self) -> bool:
        """Whether a better setting may lie beyond those that were tried."""
        return bool(self.further_rates or self.further_temperatures)

    def _best(self) -> list[TrialSetting]:
        means = self.means
        return [setting for setting, mean in means.items() if mean == max(means.values())]


def _parts(setting: TrialSetting) -> tuple[float] | tuple[float, Temperature]:
    """Return a setting's values as comparison.json lists them."""
    if setting.temperature is None:
        return (setting.lr,)
    return setting.lr, setting.temperature


def _beyond(best: set[float] | set[float | None], tried: set[float], step: float) -> tuple[float, ...]:
    """Return what follows the lowest or the highest tried value if that is the only best one; else nothing.

    A single value is no grid, and has no ends.
    """
    if len(tried) < 2:
        return ()
    if best == {min(tried)}:
        return (min(tried) / step,)
    if best == {max(tried)}:
        return (max(tried) * step,)
    return ()


def best_setting(means: Mapping[TrialSetting, float], configured: TrialSetting) -> TrialSetting:
    """Return the setting with the highest mean.

    Of equal ones it has the rate nearest to the configured one, then the configured temperature, then is the lowest.

    Args:
        means: setting -> mean of its trials.
        configured: the configured setting, which is the default.
    """
    if not means:
        return configured

    def order(setting: TrialSetting) -> tuple[float, float, bool, float]:
        apart = round(abs(math.log(setting.lr / configured.lr)), 3)
        return round(means[setting], 10), -apart, setting.temperature == configured.temperature, -setting.lr

    return max(sorted(means), key=order)
