"""A comparison's learning rates in words: how they were chosen, and what the trials say where they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from negbench.analysis.stored_trials import picked_rates
from negbench.analysis.words import first_names, label_of, listed, number, percent, plural, span
from negbench.grid.axis import GroupKey, group_key, names_of
from negbench.grid.comparison import together
from negbench.grid.picked_rate import PickedRate, best_rate
from negbench.metrics.fixed import DEV_QUERIES

_NAMED = 4
_TABLES = 3  # most tables whose differing rates are told


def rates_answer(document: Mapping[str, Any], metric: str, main: str, covered: Sequence[GroupKey]) -> list[str]:
    """Write how learning rates were chosen, and what the trials say where they differ; nothing if none was chosen.

    Args:
        document: comparison.json.
        metric: the one that the verdicts are about.
        main: the data set's main metric.
        covered: groups whose intervals contain the choice.
    """
    chosen = picked_rates(document)
    if not chosen:
        return []
    by = label_of(chosen[0].metric or main)
    if by != label_of(metric):
        by += f", not by {label_of(metric)},"
    how = f"by {by} on {_dev_part(chosen)} with {plural(len(chosen[0].seeds), 'seed')} {_seeds(chosen[0].seeds)}"
    return [" ".join([*_choice(chosen, how, covered), *_differing(chosen)])]


def _choice(chosen: Sequence[PickedRate], how: str, covered: Sequence[GroupKey]) -> list[str]:
    """Return sentences on the rates, those at an end of the grid, what failed, and what the intervals contain."""
    at_rate: dict[float, list[str]] = {}
    at_end = []
    failed = []
    outside = []
    names = names_of([picked.labels for picked in chosen])
    for name, picked in sorted(zip(names, chosen, strict=True), key=lambda pair: -pair[1].lr):
        if not picked.known:
            failed.append(name)
            continue
        at_rate.setdefault(picked.lr, []).append(name)
        if picked.below is not None or picked.above is not None:
            at_end.append(name)
        if group_key(picked.labels) not in covered:
            outside.append(name)
    sentences = []
    if at_rate:
        rates = "; ".join(f"{rate:g} for {listed(members, _NAMED)}" for rate, members in at_rate.items())
        if chosen[0].common:
            sentences.append(f"Learning rates, one for each table, chosen {how} as the best on average: {rates}.")
        else:
            sentences.append(f"Learning rates, chosen {how}: {rates}.")
    if at_rate and not chosen[0].common:
        if not outside:
            sentences.append("The intervals contain what this choice leaves open.")
        elif len(outside) == len(chosen) - len(failed):
            sentences.append("The intervals leave out that other rates might be better.")
        else:
            sentences.append(f"The intervals leave out that other rates of {listed(outside, _NAMED)} might be better.")
    if at_end:
        end = "is the highest or the lowest tried; a better one may lie beyond"
        sentences.append(f"The best rate of {listed(at_end, _NAMED)} {end}.")
    if failed:
        sentences.append(f"All trials of {listed(failed, _NAMED)} failed, so the configured rate was used.")
    return sentences


def _seeds(seeds: Sequence[int]) -> str:
    return listed([str(seed) for seed in seeds], len(seeds))


def _dev_part(chosen: Sequence[PickedRate]) -> str:
    """Say how many queries the rates were chosen on, and whether these are fewer than they should be."""
    sizes = [picked.queries for picked in chosen if picked.queries]
    if not sizes:
        return "queries that are not reported"
    where = "generated for this" if chosen[0].generated else "carved from train"
    text = f"{span(sizes, number)} queries {where}"
    if min(sizes) < DEV_QUERIES:
        text += f" (fewer than {DEV_QUERIES:,})"
    return text


def _differing(chosen: Sequence[PickedRate]) -> list[str]:
    """Say what the trials show where the rates of a table differ: at each strategy's own rate, and at a common one."""
    tables = together(chosen, lambda picked: group_key({**picked.labels, "strategy": ""}))
    said = [_differences([picked for picked in rows if picked.known]) for rows in tables.values()]
    return [text for text in said if text][:_TABLES]


def _differences(rows: Sequence[PickedRate]) -> str:
    """Compare a table's highest strategy with those that have another rate; '' if there is none."""
    if len({picked.lr for picked in rows}) < 2:
        return ""
    highest = max(rows, key=lambda picked: picked.known[picked.lr])
    rate = _common(rows, highest.lr)
    parts = []
    for picked in rows:
        if picked.lr == highest.lr:
            continue
        apart = highest.known[highest.lr] - picked.known[picked.lr]
        text = f"{percent(apart)} points between {highest.labels['strategy']} and {picked.labels['strategy']}"
        text += " at their own rates"
        if rate is not None:
            text += f", {_at_common(highest.known[rate] - picked.known[rate])}"
        parts.append(text)
    where = f"On the {number(highest.queries)} queries of the trials"
    if rate is not None:
        where += f" (common rate: {rate:g})"
    return f"{where}: {first_names(parts, _NAMED)}."


def _at_common(apart: float) -> str:
    """Say by how much the highest strategy leads at the common rate."""
    if round(100 * apart, 1) < 0:
        return f"{percent(-apart)} the other way round at the common one"
    return f"{percent(abs(apart))} at the common one"


def _common(rows: Sequence[PickedRate], configured: float) -> float | None:
    """Return the rate with the highest mean over these strategies, of those that all tried; None if there is none."""
    means = {}
    for rate in rows[0].known:
        if all(rate in picked.known for picked in rows):
            means[rate] = sum(picked.known[rate] for picked in rows) / len(rows)
    return best_rate(means, configured) if means else None
