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
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING
from negbench.machine.grouping import group_by
from negbench.mining.measured_gain import RULE, where_mining_gained
from negbench.settings.config import LEARNED

TEMPERATURES = "--dial loss.tau=learned,0.07,0.15"
AGES = "--dial schedule.refresh_every=1,5,20"
_DIALS = {"loss.tau", "train.lr", "schedule.refresh_every"}  # what this advice is about; others are other questions
# axes whose values all settings of one piece of advice share
_SHARED_AXES = ("dataset", "backbone", "settings", "epochs")
_NAMED = 4  # most strategies named in a list
CHOOSE_TEMPERATURES = "--temperature grid"
RATES = "--lr grid"
OWN_RATES = "own"  # as the rate of a setting: trials chose one for each row


@dataclass(frozen=True)
class Setting:
    """The batch alone, and strategies beside it, under one loss, at one temperature, learning rate and age of pools.

    Attributes:
        batch: verdict on the batch alone.
        others: on all other strategies of its table.
        temperature: 'learned from 0.07', '0.1'; 'none' for a loss without one.
        rate: train.lr, or `OWN_RATES`.
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
        if OVER_ALL not in rows[0].table_key and beside_batch(rows) and rows[0].settings != COMMON_SETTING:
            tables.append(rows)
    if not tables:
        return []

    def table_labels(rows: Sequence[Verdict]) -> tuple[str, str, str]:
        return rows[0].dataset, rows[0].backbone, rows[0].settings

    tables_by_labels = group_by(tables, table_labels)
    lines = []
    for members in tables_by_labels.values():
        longest = max(int(rows[0].epochs or 0) for rows in members)
        trained = [rows for rows in members if int(rows[0].epochs or 0) == longest]
        settings = _settings(findings, trained)
        if not settings:
            continue
        text = recommend(settings, seconds_per_seed(findings.groups))
        if len(tables_by_labels) > 1:
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
    rates_were_chosen = bool(findings.document.get("rates"))
    settings = []
    for rows in tables:
        batch = next((row for row in rows if row.verdict == "baseline"), None)
        cells = None if batch is None else groups.get(group_key(vars(batch)))
        if batch is None or cells is None or batch.collapsed:
            continue
        temperature, rate, refresh_every = setting_of(cells)
        if rates_were_chosen:
            rate = OWN_RATES
        others = tuple(row for row in rows if row is not batch)
        settings.append(Setting(batch, others, temperature, rate, refresh_every, loss_of(cells)))
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
    same_loss = [setting for setting in settings if setting.loss == best.loss]
    at_best = [setting for setting in same_loss if (setting.temperature, setting.rate) == (best.temperature, best.rate)]
    where = _where_best(best, settings)
    ahead = [setting for setting in at_best if setting.ahead]
    if ahead:
        first = max(ahead, key=_largest_lead)
        options = _options_to_tune(best, same_loss)
        if options:
            return _tune_first(first.ahead[0], best, options)
        return _mine(first.ahead[0], at_best, first, where)
    hopeful: list[Verdict] = []
    for setting in at_best:
        hopeful += setting.hopeful
    if hopeful:
        return _say_what_decides(hopeful, best.batch, seconds, where)
    ahead_elsewhere = [setting for setting in settings if setting not in at_best and setting.ahead]
    if ahead_elsewhere:
        return _do_not_mine_there(max(ahead_elsewhere, key=_largest_lead), best)
    return f"Do not mine: nothing is ahead of the batch by more than {in_points(best.batch.margin)}{where}."


def _largest_lead(setting: Setting) -> float:
    """Return the lead of the highest strategy that is ahead of the batch."""
    return _lead(setting.ahead[0]).value


def _where_best(best: Setting, settings: Sequence[Setting]) -> str:
    """Name the best setting's loss and temperature, where several were compared; '' where none were."""
    same_loss = [setting for setting in settings if setting.loss == best.loss]
    where = ""
    if len(same_loss) < len(settings):
        where += f" with {best.loss}"
    if len({setting.temperature for setting in same_loss}) > 1:
        where += f" at {_setting_text(best, 'temperature')}"
    return f"{where}, the best for the batch alone" if where else ""


def _options_to_tune(best: Setting, same_loss: Sequence[Setting]) -> list[str]:
    """Return the options that choose what was neither chosen nor compared with this loss: temperatures, rates."""
    options = []
    temperatures = {setting.temperature for setting in same_loss}
    if len(temperatures) < 2 and best.temperature != "none" and best.batch.settings != OWN_SETTING:
        options.append(CHOOSE_TEMPERATURES)
    if best.rate != OWN_RATES and len({setting.rate for setting in same_loss}) < 2:
        options.append(RATES)
    return options


def _do_not_mine_there(other: Setting, best: Setting) -> str:
    """Advise to tune first: a strategy is ahead at another setting, but nothing is where the batch alone is best."""
    row = other.ahead[0]
    if other.loss != best.loss:
        step = "Choose the loss"
        where_ahead = f"with {other.loss}"
        where_best = f"with {best.loss}"
    else:
        name = "learning rate" if other.temperature == best.temperature else "temperature"
        step = f"Tune the {name}"
        where_ahead = f"at {_setting_text(other, name)}"
        where_best = f"at {_setting_text(best, name)}"
    return (
        f"{step} first: {row.strategy} is ahead of the batch by {_points(row)} {where_ahead}, but {where_best}, where "
        f"the batch alone is best ({percent(best.batch.mean.value)} %), nothing is by more than "
        f"{in_points(best.batch.margin)}: do not mine there."
    )


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
        remark = ""
    else:
        often = ""
        remark = f" How often to mine again was not compared: {AGES}."
    option = _strategy_option(row)
    _, _, beside = option.partition("+")
    rule = beside or option
    command = f"`negbench mine --run RUN --strategy {rule} --out negatives.parquet`"
    return f"Mine with {row.strategy} ({estimate_text(_lead(row))} points){often}{where}: {command}.{remark}"


def _tune_first(row: Verdict, best: Setting, options: Sequence[str]) -> str:
    """Advise to choose temperatures or rates before mining: the lead may end at the batch's own best."""
    names = {CHOOSE_TEMPERATURES: "temperature", RATES: "learning rate"}
    what = " and the ".join(names[option] for option in options)
    setting = " and ".join(_setting_text(best, names[option]) for option in options)
    were = "was" if len(options) == 1 else "were"
    them = "it" if len(options) == 1 else "both"
    return (
        f"Tune the {what} first: {row.strategy} is ahead of the batch by {_points(row)} at {setting}, which {were} not "
        f"chosen for the batch alone. To see whether it stays ahead, run the same command with "
        f"`{' '.join(options)} --strategies {best.batch.strategy},{_strategy_option(row)}`, "
        f"which chooses {them} for each row."
    )


def _strategy_option(row: Verdict) -> str:
    """Return a strategy as `--strategies` takes it."""
    return row.strategy.replace("(", ":").replace(", ", ":").rstrip(")")


def _say_what_decides(rows: Sequence[Verdict], batch: Verdict, seconds: Mapping[GroupKey, float], where: str) -> str:
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


def _temperatures(contrasts: Sequence[Verdict], example: Verdict, loss: str) -> list[str]:
    """Say what the temperature does for the batch alone, where an example's table lies; [] where one was run.

    Args:
        contrasts: of the comparison.
        example: a verdict with the data set, backbone, settings and budget to speak of.
        loss: the one to speak of.
    """
    rows = []
    for row in contrasts:
        same_table = all(getattr(row, axis) == getattr(example, axis) for axis in _SHARED_AXES)
        if row.facts[CONTRAST] == TEMPERATURE and same_table and row.facts.get(OF_LOSS, loss) == loss:
            rows.append(row)
    if not rows:
        return []
    best, *rest = sorted(rows, key=lambda row: -row.mean.value)
    parts = [f"{estimate_text(row.behind_best, sign=False)} points above {row.strategy}" for row in rest]
    metric = f"{label_of(best.metric)} {percent(best.mean.value)} %"
    whose = f" of {loss}" if OF_LOSS in best.facts else ""
    return [f"For the batch alone the best temperature{whose} is {best.strategy} ({metric}), {', '.join(parts)}."]
