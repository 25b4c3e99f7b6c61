"""What to do: whether to mine beside the batch, from the intervals of a comparison whose baseline is the batch alone.

Strategies that stand beside the batch (`in-batch+qure`) are compared with the batch alone. The last sentence of such a
comparison's answer says whether to mine, with which of them, whether the temperature comes first, or what would decide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from negbench.analysis.contrasts import CONTRAST, OF_LOSS, TEMPERATURE, loss_of, setting_of
from negbench.analysis.findings import Findings
from negbench.analysis.frame import config_of, key_of, seconds_per_seed
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.verdicts import OVER_ALL, beside_batch
from negbench.analysis.words import capitalize, estimate_text, in_points, join_names, label_of, percent, plural
from negbench.display import duration
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.setting import COMMON, OWN
from negbench.machine.grouping import group_by
from negbench.mining.measured_gain import RULE, where_mining_gained
from negbench.settings.config import LEARNED

TEMPERATURES = "--dial loss.tau=learned,0.07,0.15"
AGES = "--dial schedule.refresh_every=1,5,20"
_DIALS = {"loss.tau", "train.lr", "schedule.refresh_every"}  # what this advice is about; others are other questions
_NAMED = 4  # most strategies named in a list
CHOOSE_TEMPERATURES = "--temperature grid"
RATES = "--lr grid"


@dataclass(frozen=True)
class Setting:
    """The batch alone, and strategies beside it, under one loss, at one temperature, learning rate and age of pools.

    Attributes:
        batch: verdict on the batch alone.
        others: on all other strategies of its table.
        temperature: 'learned from 0.07', '0.1'; 'none' for a loss without one.
        rate: train.lr, or 'own' where rates were chosen.
        refresh_every: epochs between two definitions of a pool; None: the published number of definitions.
        loss: name of the loss, without its options.
    """

    batch: Verdict
    others: tuple[Verdict, ...]
    temperature: str
    rate: str
    refresh_every: int | None = None
    loss: str = ""

    @property
    def hopeful(self) -> list[Verdict]:
        """Strategies that may be ahead of the batch by more than the margin, the highest first."""
        rows = [row for row in self.others if _lead(row).high > row.margin and not row.collapsed]
        return sorted(rows, key=lambda row: -_lead(row).value)

    @property
    def ahead(self) -> list[Verdict]:
        """Those of them that are ahead: their intervals lie above 0."""
        return [row for row in self.hopeful if _lead(row).low > 0]


def _lead(row: Verdict) -> Estimate:
    """Return a strategy's difference from the batch alone."""
    return row.against_baseline or Estimate(math.nan, math.nan, math.nan)


def advice(findings: Findings) -> list[str]:
    """Say what to do, a line for every data set and backbone; none where no strategy stands beside the batch."""
    if any(axis.key not in _DIALS for axis in findings.point_axes if axis.is_dial):
        return []
    tables = []
    for rows in group_by(findings.main_verdicts, lambda row: row.table_key).values():
        if OVER_ALL not in rows[0].table_key and beside_batch(rows) and rows[0].settings != COMMON:
            tables.append(rows)
    if not tables:
        return []

    def place(rows: Sequence[Verdict]) -> tuple[str, str, str]:
        return rows[0].dataset, rows[0].backbone, rows[0].settings

    places = group_by(tables, place)
    lines = []
    for members in places.values():
        longest = max(int(rows[0].epochs or 0) for rows in members)
        trained = [rows for rows in members if int(rows[0].epochs or 0) == longest]
        settings = _settings(findings, trained)
        if not settings:
            continue
        text = recommend(settings, seconds_per_seed(findings.groups))
        if len(places) > 1:
            text = f"{trained[0][0].dataset}, {trained[0][0].backbone}: {text}"
        lines += [*_temperatures(findings.contrasts, trained[0][0], _best_of(settings).loss), text]
    return lines


def measured_elsewhere(findings: Findings) -> list[str]:
    """Say that beside such a batch mining gained on other data.

    [] where it gained nowhere, where its rule was compared, and where the batch alone is no baseline.
    """
    rows = findings.main_verdicts
    if not beside_batch(rows) or any(row.facts.get("plugin") == RULE.partition(":")[0] for row in rows):
        return []
    lines = []
    for cells in findings.groups:
        train = config_of(cells).train
        if train.batch_size is None or train.epochs is None:
            continue
        gained = where_mining_gained(train.batch_size, train.epochs)
        if gained:
            lines.append(f"{capitalize(gained)}.")
    return list(dict.fromkeys(lines))


def _settings(findings: Findings, tables: Sequence[Sequence[Verdict]]) -> list[Setting]:
    """Return the settings of tables that have a run of the batch alone."""
    groups = {key_of(cells): cells for cells in findings.groups}
    chosen = bool(findings.document.get("rates"))
    settings = []
    for rows in tables:
        batch = next((row for row in rows if row.verdict == "baseline"), None)
        cells = None if batch is None else groups.get(group_key(vars(batch)))
        if batch is None or cells is None or batch.collapsed:
            continue
        temperature, rate, refresh_every = setting_of(cells)
        others = tuple(row for row in rows if row is not batch)
        settings.append(Setting(batch, others, temperature, "own" if chosen else rate, refresh_every, loss_of(cells)))
    return settings


def _best_of(settings: Sequence[Setting]) -> Setting:
    """Return the setting that is best for the batch alone."""
    return max(settings, key=lambda setting: setting.batch.mean.value)


def recommend(settings: Sequence[Setting], seconds: Mapping[GroupKey, float]) -> str:
    """Say what the intervals of these settings advise.

    What counts is the setting that is best for the batch alone: only a strategy that stays ahead there is worth mining.

    Args:
        settings: one or more, of one data set.
        seconds: group -> how long one of its seeds takes.
    """
    best = _best_of(settings)
    of_loss = [setting for setting in settings if setting.loss == best.loss]
    at_best = [setting for setting in of_loss if (setting.temperature, setting.rate) == (best.temperature, best.rate)]
    elsewhere = [setting for setting in settings if setting not in at_best]
    several = {setting.temperature for setting in of_loss}
    where = ""
    if len(of_loss) < len(settings):
        where += f" with {best.loss}"
    if len(several) > 1:
        where += f" at {_setting_text(best, 'temperature')}"
    if where:
        where += ", the best for the batch alone"
    margin = in_points(best.batch.margin)
    ahead = [setting for setting in at_best if setting.ahead]
    if ahead:
        first = max(ahead, key=lambda setting: _lead(setting.ahead[0]).value)
        row = first.ahead[0]
        missing = []
        if len(several) < 2 and best.temperature != "none" and best.batch.settings != OWN:
            missing.append(CHOOSE_TEMPERATURES)
        if best.rate != "own" and len({setting.rate for setting in of_loss}) < 2:
            missing.append(RATES)
        if missing:
            return _tune_first(row, best, missing)
        return _mine(row, at_best, first, where)
    hopeful = [row for setting in at_best for row in setting.hopeful]
    if hopeful:
        return _not_decided(hopeful, best.batch, seconds, where)
    lost = [(setting, row) for setting in elsewhere for row in setting.ahead]
    if lost:
        setting, row = max(lost, key=lambda pair: _lead(pair[1]).value)
        if setting.loss != best.loss:
            step = "Choose the loss"
            there = f"with {setting.loss}"
            here = f"with {best.loss}"
        else:
            name = "learning rate" if setting.temperature == best.temperature else "temperature"
            step = f"Tune the {name}"
            there = f"at {_setting_text(setting, name)}"
            here = f"at {_setting_text(best, name)}"
        return (
            f"{step} first: {row.strategy} is ahead of the batch by {_points(row)} {there}, but {here}, where the "
            f"batch alone is best ({percent(best.batch.mean.value)} %), nothing is by more than {margin}: do not mine "
            "there."
        )
    return f"Do not mine: nothing is ahead of the batch by more than {margin}{where}."


def _points(row: Verdict) -> str:
    return f"{estimate_text(_lead(row), sign=False)} points"


def _setting_text(setting: Setting, name: str) -> str:
    """Name a setting by its learning rate or its temperature."""
    if name == "learning rate":
        return f"a rate of {setting.rate}"
    if setting.temperature == LEARNED:
        return "a learned temperature"
    if setting.temperature.startswith(LEARNED):
        return f"a temperature {setting.temperature}"
    return f"a temperature of {setting.temperature}"


def _mine(row: Verdict, at_best: Sequence[Setting], first: Setting, where: str) -> str:
    """Advise to mine, and how often."""
    ages = {setting.refresh_every for setting in at_best}
    if first.refresh_every is not None and len(ages) > 1:
        age = plural(first.refresh_every, "epoch")
        often = f", again every {first.refresh_every} {age}" if first.refresh_every > 1 else ", again every epoch"
        rest = ""
    else:
        often = ""
        rest = f" How often to mine again was not compared: {AGES}."
    rule = _strategy_option(row).partition("+")[2] or _strategy_option(row)
    command = f"`negbench mine --run RUN --strategy {rule} --out negatives.parquet`"
    return f"Mine with {row.strategy} ({estimate_text(_lead(row))} points){often}{where}: {command}.{rest}"


def _tune_first(row: Verdict, best: Setting, missing: Sequence[str]) -> str:
    """Advise to choose temperatures or rates before mining: the lead may end at the batch's own best."""
    names = {CHOOSE_TEMPERATURES: "temperature", RATES: "learning rate"}
    what = " and the ".join(names[option] for option in missing)
    ran = " and ".join(_setting_text(best, names[option]) for option in missing)
    chosen = "was not chosen" if len(missing) == 1 else "were not chosen"
    them = "it" if len(missing) == 1 else "both"
    return (
        f"Tune the {what} first: {row.strategy} is ahead of the batch by {_points(row)} at {ran}, which {chosen} for "
        f"the batch alone. To see whether it stays ahead, run the same command with "
        f"`{' '.join(missing)} --strategies {best.batch.strategy},{_strategy_option(row)}`, "
        f"which chooses {them} for each row."
    )


def _strategy_option(row: Verdict) -> str:
    """Return a strategy as `--strategies` takes it."""
    return row.strategy.replace("(", ":").replace(", ", ":").rstrip(")")


def _not_decided(rows: Sequence[Verdict], batch: Verdict, seconds: Mapping[GroupKey, float], where: str) -> str:
    """Say between which values the strategies lie that may be ahead, and what would decide it."""
    first = rows[0]
    lead = _lead(first)
    names = list(dict.fromkeys(row.strategy for row in rows))
    text = (
        f"Not decided{where}: {first.strategy} is between {percent(lead.low)} and {percent(lead.high)} points over the "
        "batch"
    )
    if len(names) > 1:
        text += f", and {join_names(names[1:], _NAMED)} may be ahead, too"
    if first.seeds == 1:
        return f"{text}; one seed says nothing of others: --seeds 3."
    if any(row.more_seeds < 0 for row in rows):
        return f"{text}; more queries would decide it, not more seeds."
    seeds = max((row.more_seeds for row in rows if row.more_seeds > 0), default=math.nan)
    if math.isnan(seeds):
        return f"{text}."
    per_seed = sum(seconds.get(group_key(vars(row)), 0) for row in [*rows, batch])
    them = "it" if len(names) == 1 else "them"
    return (
        f"{text}; {seeds:.0f} more {plural(seeds, 'seed')} (about {duration(seeds * per_seed)}) would decide {them}: "
        f"--seeds {batch.seeds + seeds:.0f}, or with --until decided --max-seeds {batch.seeds + seeds:.0f}."
    )


def _temperatures(contrasts: Sequence[Verdict], at: Verdict, loss: str) -> list[str]:
    """Say what the temperature does for the batch alone in the tables of a verdict's kind; [] where one was run.

    Args:
        contrasts: of the comparison.
        at: a verdict of one of these tables.
        loss: the one to speak of.
    """
    rows = []
    for row in contrasts:
        alike = all(getattr(row, axis) == getattr(at, axis) for axis in ("dataset", "backbone", "settings", "epochs"))
        if row.facts[CONTRAST] == TEMPERATURE and alike and row.facts.get(OF_LOSS, loss) == loss:
            rows.append(row)
    if not rows:
        return []
    best, *rest = sorted(rows, key=lambda row: -row.mean.value)
    parts = [f"{estimate_text(row.behind_best, sign=False)} points above {row.strategy}" for row in rest]
    metric = f"{label_of(best.metric)} {percent(best.mean.value)} %"
    of_loss = f" of {loss}" if OF_LOSS in best.facts else ""
    return [f"For the batch alone the best temperature{of_loss} is {best.strategy} ({metric}), {', '.join(parts)}."]
