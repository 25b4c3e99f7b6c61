"""A comparison's learning rates and temperatures in words: how they were chosen, and what the trials say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from negbench.analysis.stored_trials import read_chosen_settings
from negbench.analysis.words import first_names, join_names, label_of, number, percent, plural, span
from negbench.grid.axis import GroupKey, group_key, names_of
from negbench.grid.setting import COMMON_SETTING, ChosenSetting, TrialSetting, best_setting
from negbench.machine.grouping import group_by
from negbench.metrics.fixed import DEV_QUERIES

_NAMED = 4
_TABLES = 3  # most tables whose differing settings are told


def picked_answer(document: Mapping[str, Any], metric: str, main: str, covered: Sequence[GroupKey]) -> list[str]:
    """Write how settings were chosen, and what the trials say where they differ; nothing if none was chosen.

    Args:
        document: comparison.json.
        metric: the one that the verdicts are about.
        main: the data set's main metric.
        covered: groups whose intervals contain the choice.
    """
    settings = read_chosen_settings(document)
    if not settings:
        return []
    first = settings[0]
    by = label_of(first.metric or main)
    if by != label_of(metric):
        by += f", not by {label_of(metric)},"
    seeds = join_names([str(seed) for seed in first.seeds], len(first.seeds))
    how = f"by {by} on {_dev_part(settings)} with {plural(len(first.seeds), 'seed')} {seeds}"
    row_settings = [chosen for chosen in settings if chosen.labels.get("settings") != COMMON_SETTING]
    table_settings = [chosen for chosen in settings if chosen.labels.get("settings") == COMMON_SETTING]
    sentences = _describe_choice(row_settings, how, covered)
    if any(chosen.means for chosen in table_settings):
        sentences.append(f"The best on average, in the rows of {COMMON_SETTING} settings: {_members(table_settings)}.")
    return [" ".join([*sentences, *_compare_tables(row_settings)])]


_TITLES = {  # what was chosen -> how the sentence begins
    "rate": "Learning rates",
    "temperature": "Temperatures",
    "setting": "Learning rates and temperatures",
}


def _what(chosen: ChosenSetting) -> str:
    """Return what was chosen for a group: its rate, its temperature, or its setting, which is both."""
    if chosen.setting.temperature is None:
        return "rate"
    rates = {setting.lr for setting, _ in chosen.tried}
    return "temperature" if len(rates) == 1 else "setting"


def _value(chosen: ChosenSetting) -> str:
    """Return what was chosen for a group: '0.003', 'learned', '0.003 at a temperature of 0.07'."""
    if _what(chosen) == "temperature":
        return str(chosen.setting.temperature)
    return chosen.setting.words()


def _highest_first(settings: Sequence[ChosenSetting]) -> list[tuple[str, ChosenSetting]]:
    """Return the name of each group with its setting, sorted by setting."""

    def setting_of(pair: tuple[str, ChosenSetting]) -> TrialSetting:
        _, chosen = pair
        return chosen.setting

    names = names_of([chosen.labels for chosen in settings])
    return sorted(zip(names, settings, strict=True), key=setting_of, reverse=True)


def _members(settings: Sequence[ChosenSetting]) -> str:
    """'0.003 for qure and dqe; 0.001 for top-k', the highest first, without groups whose trials all failed."""
    names_by_value: dict[str, list[str]] = {}
    for name, chosen in _highest_first(settings):
        if chosen.means:
            names_by_value.setdefault(_value(chosen), []).append(name)
    return "; ".join(f"{value} for {join_names(names, _NAMED)}" for value, names in names_by_value.items())


def _describe_choice(settings: Sequence[ChosenSetting], how: str, covered: Sequence[GroupKey]) -> list[str]:
    """Return sentences on the settings, those at an end of the grid, what failed, and what the intervals contain."""
    at_end = []
    failed = []
    outside = []
    for name, chosen in _highest_first(settings):
        if not chosen.means:
            failed.append(name)
            continue
        if chosen.at_end:
            at_end.append(name)
        if group_key(chosen.labels) not in covered:
            outside.append(name)
    sentences = []
    what = _what(settings[0])
    finished = len(settings) - len(failed)
    if finished and settings[0].common:
        title = f"{_TITLES[what]}, one for each table"
        sentences.append(f"{title}, chosen {how} as the best on average: {_members(settings)}.")
    elif finished:
        sentences.append(f"{_TITLES[what]}, chosen {how}: {_members(settings)}.")
        sentences.append(_intervals_contain(what, outside, finished))
    if at_end:
        end = "is the highest or the lowest tried; a better one may lie beyond"
        if what == "setting":
            end = "has the highest or the lowest rate or temperature tried; a better one may lie beyond"
        sentences.append(f"The best {what} of {join_names(at_end, _NAMED)} {end}.")
    if failed:
        sentences.append(f"All trials of {join_names(failed, _NAMED)} failed, so the configured {what} was used.")
    return sentences


def _intervals_contain(what: str, outside: Sequence[str], finished: int) -> str:
    """Say whether the intervals contain what the choice of a setting leaves open; `outside`: groups whose do not."""
    if not outside:
        return "The intervals contain what this choice leaves open."
    if len(outside) == finished:
        return f"The intervals leave out that other {what}s might be better."
    return f"The intervals leave out that other {what}s of {join_names(outside, _NAMED)} might be better."


def _dev_part(settings: Sequence[ChosenSetting]) -> str:
    """Say how many queries the rates were chosen on, and whether these are fewer than they should be."""
    sizes = [chosen.queries for chosen in settings if chosen.queries]
    if not sizes:
        return "queries that are not reported"
    where = "generated for this" if settings[0].generated else "carved from train"
    text = f"{span(sizes, number)} queries {where}"
    if min(sizes) < DEV_QUERIES:
        text += f" (fewer than {DEV_QUERIES:,})"
    return text


def _compare_tables(settings: Sequence[ChosenSetting]) -> list[str]:
    """Say what the trials show where the settings of a table differ: at each strategy's own, and at a common one."""
    tables = group_by(settings, lambda chosen: group_key({**chosen.labels, "strategy": ""}))
    sentences = []
    for rows in tables.values():
        sentence = _compare_strategies([chosen for chosen in rows if chosen.means])
        if sentence:
            sentences.append(sentence)
    return sentences[:_TABLES]


def _compare_strategies(rows: Sequence[ChosenSetting]) -> str:
    """Compare a table's highest strategy with those that have another setting; '' if there is none."""
    if len({chosen.setting for chosen in rows}) < 2:
        return ""
    highest = max(rows, key=lambda chosen: chosen.means[chosen.setting])
    common = _common(rows, highest.setting)
    what = _what(highest)
    parts = []
    for chosen in rows:
        if chosen.setting == highest.setting:
            continue
        apart = highest.means[highest.setting] - chosen.means[chosen.setting]
        text = f"{percent(apart)} points between {highest.labels['strategy']} and {chosen.labels['strategy']}"
        text += f" at their own {what}s"
        if common is not None:
            text += f", {_at_common(highest.means[common] - chosen.means[common])}"
        parts.append(text)
    where = f"On the {number(highest.queries)} queries of the trials"
    if common is not None:
        where += f" (common {what}: {_value(replace(highest, setting=common))})"
    return f"{where}: {first_names(parts, _NAMED)}."


def _at_common(apart: float) -> str:
    """Say by how much the highest strategy leads at the common setting."""
    if round(100 * apart, 1) < 0:
        return f"{percent(-apart)} the other way round at the common one"
    return f"{percent(abs(apart))} at the common one"


def _common(rows: Sequence[ChosenSetting], configured: TrialSetting) -> TrialSetting | None:
    """Return the setting with the highest mean over these strategies, of those that all finished; None without one."""
    means = {}
    for setting in rows[0].means:
        if all(setting in chosen.means for chosen in rows):
            means[setting] = sum(chosen.means[setting] for chosen in rows) / len(rows)
    return best_setting(means, configured) if means else None
