"""A comparison's answer in words: who is best, who loses and by how much, what is undecided, and where it holds."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from negbench.analysis.advice import advice, measured_elsewhere
from negbench.analysis.columns import WORDS
from negbench.analysis.contrasts import CONTRAST, TEMPERATURE, contrast_text
from negbench.analysis.cutoffs import wide_cutoffs
from negbench.analysis.findings import Findings
from negbench.analysis.frame import config_of, known_numbers, seconds_per_seed, shared_value
from negbench.analysis.kinds import draws_answer, kinds_answer
from negbench.analysis.leader import group_by_negatives, negatives_text, negatives_words, sort_alike, sort_by_negatives
from negbench.analysis.learning_curve import training_answer
from negbench.analysis.picked_answer import picked_answer
from negbench.analysis.pivots import at_point, leaders_of, size_of, unequal_steps
from negbench.analysis.regime_card import first_share, last_cards
from negbench.analysis.tuned_gain import tuned_answer, tunings_of
from negbench.analysis.turns import turns, turns_by_metric
from negbench.analysis.verdict_record import TABLE_AXES, Verdict
from negbench.analysis.verdicts import OVER_ALL, beside_batch, round_negatives, second_cutoff
from negbench.analysis.words import (
    capitalize,
    estimate_text,
    first_names,
    in_points,
    interval_text,
    join_names,
    label_of,
    percent,
    plural,
    shorten_names,
    span,
)
from negbench.display import duration
from negbench.grid.axis import Axis, group_key, point_text, points_of, short_names, varied_text
from negbench.machine.grouping import group_by
from negbench.metrics.part_name import whole_name

_SATURATED = 0.95  # where even the last strategy is above this, the metric can hardly separate them
_ENOUGH_SEEDS = 3
_NAMED = 4  # most strategies named in a list
_TABLES = 6  # most tables with a headline each

TableKey = tuple[str, ...]  # values of TABLE_AXES


@dataclass(frozen=True)
class AnswerText:
    """The answer, a line per entry; empty where nothing was judged.

    Attributes:
        headlines: the best of every table, and how losses and backbones compare.
        below: what else tables say, what is undecided, what the intervals cover, the regime, learning rates, unfinished
            training, what tuning gained, what is drawn, and, where strategies stand beside the batch, where such a
            batch was seen to gain.
        to_do: advice, where strategies stand beside the batch.
    """

    headlines: Sequence[str] = ()
    below: Sequence[str] = ()
    to_do: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """All lines, as they are printed and stored."""
        return [*self.headlines, *self.below, *self.to_do]


def answer_of(findings: Findings) -> AnswerText:
    """Write the answer."""
    if not findings.verdicts:
        return AnswerText()
    top = dict.fromkeys(_headlines(findings))
    below = [line for line in dict.fromkeys(_lines_of_tables(findings)) if line not in top]
    return AnswerText([*top], [*below, *_other_lines(findings)], advice(findings))


def divide_lines(lines: Sequence[str], findings: Findings) -> AnswerText:
    """Divide the lines of a stored answer, without reading ranks.

    Headlines and advice are computed anew for their count alone: a folder of an older version may word them otherwise.
    """
    if not findings.verdicts:
        return AnswerText(below=lines)
    end_of_headlines = len(dict.fromkeys(_headlines(findings)))
    start_of_advice = len(lines) - len(advice(findings))
    return AnswerText(lines[:end_of_headlines], lines[end_of_headlines:start_of_advice], lines[start_of_advice:])


def _other_lines(findings: Findings) -> list[str]:
    """Return what is said below the lines of the tables."""
    verdicts = findings.main_verdicts
    lines = turns_by_metric(findings.verdicts)
    lines += _missing_images(findings.groups)
    undecided = open_pairs(findings.groups, [row for row in verdicts if OVER_ALL not in row.table_key])
    if undecided:
        lines.append(f"{capitalize(undecided)}.")
    warm_up = warm_ups(findings.groups)
    if warm_up:
        lines.append(warm_up)
    lines += _what_intervals_cover(verdicts)
    lines += _warn_of_saturation(verdicts)
    lines += wide_cutoffs(findings.groups, findings.verdicts)
    lines += _regime(findings.groups)
    if findings.document.get("rates"):
        main = shared_value(findings.groups[0], "main_metric")
        lines += picked_answer(findings.document, verdicts[0].metric, main, findings.groups_with_choice)
    lines += training_answer(findings.groups, verdicts)
    tuned_by = (findings.document.get("tuned") or {}).get("metric", "")
    lines += tuned_answer(tunings_of(findings.document), findings.gains, tuned_by)
    groups = sort_alike(findings.shown_groups, verdicts)
    lines += draws_answer(groups)
    lines += kinds_answer(groups)
    lines += measured_elsewhere(findings)
    return lines


def _headlines(findings: Findings) -> list[str]:
    """Return what stands on top: a line for every table, or one that holds for all; and losses, backbones compared.

    Along dials, the count of points; of several data sets or backbones, the tables over all.
    """
    if findings.point_axes:
        return _describe_points(findings.point_axes, findings.main_verdicts)[:1]
    lines_of_tables = _describe_tables(findings)
    tables_over_all = [table_key for table_key in lines_of_tables if OVER_ALL in table_key]
    lines = [lines_of_tables[table_key][0] for table_key in tables_over_all or lines_of_tables]
    if len(lines) > _TABLES:
        lines = [_tally(list(_tables(findings.main_verdicts).values()))]
    contrasts = _tables([row for row in findings.contrasts if row.facts[CONTRAST] != TEMPERATURE])
    prefixes = _prefixes(list(contrasts))
    for table_key, rows in contrasts.items():
        lines.append(prefixes[table_key] + contrast_text(rows))
    return lines


def _lines_of_tables(findings: Findings) -> list[str]:
    """Return what the tables say besides the headlines."""
    if findings.point_axes:
        lines = _describe_points(findings.point_axes, findings.main_verdicts)[1:]
        if unequal_steps(findings.groups):
            lines.append(
                "Points of equally many epochs differ in their numbers of steps: the table of points has them."
            )
        return [*lines, *turns(findings.main_verdicts)]
    headline_of_tables = []
    rest = []
    for headline, *others in _describe_tables(findings).values():
        headline_of_tables.append(headline)
        rest += others
    return [*headline_of_tables, *rest, *turns(findings.main_verdicts)]


# --- a table -----------------------------------------------------------------------------------------------------


def steps_of(groups: Sequence[pd.DataFrame]) -> dict[str, int]:
    """Return the steps of each training budget, '' where a comparison has one; without budgets of unlike steps."""
    counts_of_budgets: dict[str, set[int]] = {}
    for cells in groups:
        counts = counts_of_budgets.setdefault(shared_value(cells, "epochs"), set())
        counts.update(int(steps) for steps in known_numbers(cells, "steps"))
    return {budget: counts.pop() for budget, counts in counts_of_budgets.items() if len(counts) == 1}


def warm_ups(groups: Sequence[pd.DataFrame]) -> str:
    """Say how long the rules drew from the whole corpus before their first pools; '' if all did equally long."""
    strategies: dict[tuple[int, int], set[str]] = {}  # by epochs, and epochs of warm-up
    for cells in groups:
        config = config_of(cells)
        schedule = config.schedule
        if schedule.refresh_epochs and (schedule.n_def or 1) > 1:  # else its pools do not depend on the scores
            warm_up = schedule.refresh_epochs[0]
            names = strategies.setdefault((config.train.epochs or 0, warm_up), set())
            names.add(shared_value(cells, "strategy"))
    if len(strategies) == len({epochs for epochs, _ in strategies}):
        return ""
    parts = []
    for (epochs, warm_up), names in sorted(strategies.items()):
        parts.append(f"{warm_up} of {epochs} for {join_names(sorted(names), _NAMED)}")
    return f"Epochs of warm-up on the whole corpus: {'; '.join(parts)}."


def _tables(rows: Sequence[Verdict]) -> dict[TableKey, list[Verdict]]:
    """Group rows by their tables: over all first, then by training budget."""

    def sort_key(row: Verdict) -> tuple[bool, int]:
        return OVER_ALL not in row.table_key, int(row.epochs or 0)

    ordered_rows = sorted(rows, key=sort_key)
    return group_by(ordered_rows, lambda row: row.table_key)


def _describe_tables(findings: Findings) -> dict[TableKey, list[str]]:
    """Return table -> its lines, each of which begins with what distinguishes the table."""
    tables = _tables(findings.main_verdicts)
    second = _tables(_second_metric(findings))
    steps = {budget: f"{n:,} {plural(n, 'step')}" for budget, n in steps_of(findings.groups).items()}
    after = ""
    if len({table[0].epochs for table in tables.values()}) == 1:  # else named before every line
        epochs = max((config_of(cells).train.epochs or 0 for cells in findings.groups), default=0)
        after = "".join(f", after {length} ({epochs} {plural(epochs, 'epoch')})" for length in steps.values())
    prefixes = _prefixes(list(tables), steps)
    lines_of_tables = {}
    for table_key, table in tables.items():
        lines = _describe_table(table, after)
        if beside_batch(table) and table_key in second:
            lines.insert(1, _compare_with_baseline(second[table_key]))
        lines_of_tables[table_key] = [prefixes[table_key] + line for line in lines]
    return lines_of_tables


def _second_metric(findings: Findings) -> list[Verdict]:
    """Return the verdicts by R@1 where the main metric is R@10, and by R@10 where it is R@1; [] of another one."""
    second_metrics = {row.table_key: second_cutoff(row.metric) for row in findings.main_verdicts}
    return [row for row in findings.verdicts if row.metric == second_metrics.get(row.table_key)]


def _tally(tables: Sequence[Sequence[Verdict]]) -> str:
    """Count in how many tables each strategy is the highest of those with equally many negatives, and the best."""
    blocks: list[list[Verdict]] = []
    for table in tables:
        blocks += group_by_negatives(table).values()
    highest = Counter(_highest(block).strategy for block in blocks)
    best = Counter[str]()
    for block in blocks:
        best.update(row.strategy for row in block if row.standing == "best")
    counts = [f"{name} at {n} (ahead of all others at {best[name]})" for name, n in highest.most_common(_NAMED)]
    size = f"{len(tables)} tables with {len(blocks)} blocks of equally many negatives"
    return f"{label_of(tables[0][0].metric)} in {size}: highest is {', '.join(counts)}."


def _highest(rows: Sequence[Verdict]) -> Verdict:
    """Return the row with the highest mean of those that did not collapse, or else of all."""
    return max(rows, key=lambda row: (row.standing != "collapsed", row.mean.value))


def _prefixes(tables: Sequence[TableKey], steps: Mapping[str, str] | None = None) -> dict[TableKey, str]:
    """Return each table's labels that distinguish it: 'cirr, 20 epochs (100 steps): '; '' for the only one.

    Args:
        tables: keys.
        steps: training budget -> its steps, in words.
    """
    keys = [dict(zip(TABLE_AXES, table, strict=True)) for table in tables]
    varied_axes = []
    for axis in TABLE_AXES:
        if len({key[axis] for key in keys}) > 1:
            varied_axes.append(axis)
    short = shorten_names(key["dataset"] for key in keys)
    prefixes = {}
    for table, key in zip(tables, keys, strict=True):
        words = []
        for axis in varied_axes:
            value = key[axis]
            if axis == "epochs" and value:
                length = f" ({steps[value]})" if steps and value in steps else ""
                words.append(f"{value} epochs{length}")
            elif value:
                words.append(short.get(value, value))
        prefixes[table] = f"{', '.join(dict.fromkeys(words))}: " if varied_axes else ""
    return prefixes


def _describe_table(rows: Sequence[Verdict], after: str) -> list[str]:
    """Describe a table: who is best with equally many negatives, then numbers of negatives, then a chosen baseline.

    Where another number has the highest mean of all, the first line says so.
    """
    blocks = group_by_negatives(rows)
    if rows[0].system:  # a system's question: which negatives are better than its own?
        lines = [_compare_with_baseline(rows)]
        if len(blocks) > 1:
            counts = ", ".join(f"{row.strategy} {negatives_text(row.negatives)}" for row in rows)
            lines.append(f"Negatives per query and step: {counts}.")
        return [*lines, *_collapsed_and_identical(rows)]
    if beside_batch(rows):
        return [
            _compare_with_baseline(rows, f" beside the batch{after}") + _unlike_batch(rows),
            *_collapsed_and_identical(rows),
        ]
    lines = []
    for count, members in blocks.items():
        if len(members) > 1 or len(blocks) == 1:
            lines += _describe_block(members, f"{negatives_words(count)} per query and step{after}")
    if len(blocks) > 1:
        numbers = _compare_numbers_of_negatives(blocks, "" if lines else after)
        usual = next(iter(blocks.values()))
        if lines and max(rows, key=lambda row: row.mean.value) not in usual:
            lines[0] += f" {numbers}"
        else:
            lines.append(numbers)
    if rows[0].baseline_asked and len(rows) > 1:
        lines.append(_compare_with_requested_baseline(rows))
    return [*lines, *_collapsed_and_identical(rows)]


def _describe_block(rows: Sequence[Verdict], where: str) -> list[str]:
    """Say who is best of the strategies with one number of negatives, and how far each other one is behind."""
    candidates = [row for row in rows if row.standing != "collapsed"] or rows
    best, *rest = sorted(candidates, key=lambda row: -row.mean.value)
    losers = [row for row in rest if row.standing == "worse"]
    text = f"{label_of(best.metric)} with {where}: {_name_and_mean(best)} is "
    if not rest:
        return [f"{text}the only strategy."]
    lines = [f"{text}{'; '.join([best.standing, *_describe_others(best, rest, losers)])}."]
    if losers:
        behind = first_names([_name_and_gap(row, best) for row in losers], _NAMED)
        lines.append(f"Behind {best.strategy}: {behind}.")
    return lines


def _compare_numbers_of_negatives(blocks: Mapping[str, Sequence[Verdict]], after: str) -> str:
    """Compare the highest of each number of negatives with the highest of all."""
    highest = [max(members, key=lambda row: row.mean.value) for members in blocks.values()]
    first, *rest = sorted(highest, key=lambda row: -row.mean.value)
    parts = []
    for row in rest:
        if row.behind_highest is None:  # over several tables
            parts.append(f"{_with_negatives(row)} follows")
        else:
            parts.append(f"{_with_negatives(row)} is {estimate_text(row.behind_highest, sign=False)} points behind")
    text = f"Whatever the number of negatives, {_with_negatives(first)} has the highest {label_of(first.metric)}{after}"
    return f"{text}; {', '.join(parts)}."


def _with_negatives(row: Verdict) -> str:
    """'qure with 5 (45.0 %)'."""
    count = "an unrecorded number" if math.isnan(row.negatives) else negatives_text(row.negatives)
    return f"{row.marked_label} with {count} ({percent(row.mean.value)} %)"


def _compare_with_requested_baseline(rows: Sequence[Verdict]) -> str:
    """Compare the strategies with the baseline that the user named; say whose numbers of negatives differ from its.

    These tests are another family than those of all pairs, so a pair may be decided in one of them alone.
    """
    text = f"Against {rows[0].baseline}, {_compare_with_baseline(rows)}"
    if len(rows) > 2:  # else both families are one test
        text += f" These intervals hold together for all differences from {rows[0].baseline}, the others for all pairs."
    tested = [row for row in rows if row.against_baseline]
    unlike = [row for row in tested if round_negatives(row.negatives) != round_negatives(row.baseline_negatives)]
    if not unlike:
        return text
    counts = []
    for count, block in group_by_negatives(unlike).items():
        counts.append(f"{join_names([row.strategy for row in block])} {count}")
    baselines = negatives_words(negatives_text(unlike[0].baseline_negatives))
    return f"{text} The baseline has {baselines} per query and step, but {', '.join(counts)}."


def _collapsed_and_identical(rows: Sequence[Verdict]) -> list[str]:
    """Write a line on a table's strategies with collapsed runs, and one on each set that scores identically."""
    lines = []
    collapsed = []
    for row in rows:
        if row.collapsed:
            means = span([row.lowest, row.highest])
            collapsed.append(f"{row.strategy} in {row.collapsed} of {row.seeds} seeds ({means} %)")
    if collapsed:
        lines.append(f"Collapsed, so without a place in the order: {'; '.join(collapsed)}.")
    for row in rows:
        if row.identical and row.strategy < row.identical[0]:
            why = "the learning rate is too low to change the model" if row.unmoved else "they draw the same images"
            lines.append(f"{join_names([row.strategy, *row.identical], _NAMED)} score identically: probably {why}.")
    return lines


def _describe_others(best: Verdict, rest: Sequence[Verdict], losers: Sequence[Verdict]) -> list[str]:
    """Say which strategies score like the best, are equal to it, are undecided against it, and lose."""
    parts = []
    alike = [row for row in rest if row.strategy in best.identical]
    if alike:
        score = "scores" if len(alike) == 1 else "score"
        parts.append(f"{_names(alike)} {score} exactly the same")
    near = [row for row in rest if row not in [*alike, *losers]]
    equal = [row for row in near if row.standing == "equal"]
    if equal:
        parts.append(f"{_names_and_means(equal)} {WORDS['equal'].format('it', in_points(best.margin))}")
    undecided = [row for row in near if row.standing != "equal"]
    if undecided:
        text = f"{_names_and_means(undecided)} {WORDS['undecided'].format('it', in_points(best.margin))}"
        largest_leads = [row.against_best.high if row.against_best else math.nan for row in undecided]
        if all(lead <= best.margin for lead in largest_leads):
            text += f", but at most {percent(max(largest_leads), 2)} points ahead"
        parts.append(text)
    if losers:
        lost = span([_points_lost(row, best) for row in losers])
        parts.append(f"{_names(losers)} {_is(losers)} {lost} points worse")
    return parts


def _names_and_means(rows: Sequence[Verdict]) -> str:
    """'a and b (45.0 to 46.2 %) are'."""
    return f"{_names(rows)} ({span([row.mean.value for row in rows])} %) {_is(rows)}"


def _unlike_batch(rows: Sequence[Verdict]) -> str:
    """Say which strategies are no unions with the batch, but have other numbers of negatives than it; '' for none."""
    batch = rows[0].baseline
    others = [row for row in rows if "+" not in row.strategy and row.strategy != batch]
    unlike = [row for row in others if round_negatives(row.negatives) != round_negatives(row.baseline_negatives)]
    if not unlike:
        return ""
    count = negatives_words(negatives_text(rows[0].baseline_negatives))
    others_with_counts = ", ".join(f"{row.strategy} {negatives_text(row.negatives)}" for row in unlike)
    return f" The batch has {count} per query and step, but {others_with_counts}."


def _compare_with_baseline(rows: Sequence[Verdict], where: str = "") -> str:
    """Say which strategies are better than the baseline, worse, equal and undecided, with their differences."""
    metric = f"{label_of(rows[0].metric)}{where}"
    baseline = next((row for row in rows if row.verdict == "baseline"), None)
    if baseline is None:
        means = ", ".join(_name_and_mean(row) for row in rows[:_NAMED])
        return f"{metric}: {means}; no run of the baseline is finished."
    if len(rows) == 1:
        return f"{metric}: {_name_and_mean(baseline)} is the only strategy."
    parts: list[str] = []
    for verdict, words in WORDS.items():
        members = [row for row in sort_by_negatives(rows) if row.verdict == verdict]
        if members:
            names = [f"{row.marked_label} {estimate_text(row.against_baseline)}" for row in members]
            other = "it" if parts else f"{baseline.strategy} ({percent(baseline.mean.value)} %)"
            parts.append(f"{join_names(names, 9)} {_is(members)} {words.format(other, in_points(baseline.margin))}")
    return f"{metric}: {'; '.join(parts)}."


def _names(rows: Sequence[Verdict]) -> str:
    return join_names([row.marked_label for row in rows], _NAMED)


def _is(rows: Sequence[Verdict]) -> str:
    return "is" if len(rows) == 1 else "are"


def _points_lost(row: Verdict, best: Verdict) -> float:
    """Return how far a strategy is behind the best, on the seeds that both have, or else in the mean."""
    return row.behind_best.value if row.behind_best else best.mean.value - row.mean.value


def _name_and_gap(row: Verdict, best: Verdict) -> str:
    """Say by how much a strategy loses to the best with equally many negatives."""
    text = f"{row.marked_label} by {100 * _points_lost(row, best):.2f}"
    if row.behind_best:
        text += f" {interval_text(row.behind_best)}{row.behind_best.after}"
    return f"{text} points"


def _name_and_mean(row: Verdict) -> str:
    return f"{row.marked_label} ({percent(row.mean.value)} %)"


# --- many points -------------------------------------------------------------------------------------------------


def _describe_points(axes: Sequence[Axis], verdicts: Sequence[Verdict]) -> list[str]:
    """Say which strategies are best along these axes, at how many points and where."""
    at_points = {}  # point -> its verdicts, best first
    for point in points_of(axes):
        rows = at_point(verdicts, point_text(short_names(axes), point))
        if rows:
            at_points[point] = rows
    size = f"{len(at_points)} {plural(len(at_points), 'point')}"
    size += f" ({label_of(verdicts[0].metric)}, {size_of(verdicts)} per point)"
    names = sorted({row.strategy for row in verdicts})
    if len(names) == 1:
        return [f"{size} of {names[0]} alone."]
    counts = dict.fromkeys(names, 0)  # strategy -> at how many points it is not beaten
    points_won: dict[str, list[str]] = {}  # strategy -> the points at which it beats all others
    for point, rows in at_points.items():
        leaders = leaders_of(rows)
        for name in leaders:
            counts[name] += 1
        if len(leaders) == 1:
            points_won.setdefault(leaders[0], []).append(varied_text(axes, point) or rows[0].where)
    most = max(counts.values())
    best = [name for name in names if counts[name] == most]
    are = "is" if len(best) == 1 else "are"
    lead = f"{join_names(best)} {are} not beaten at {most}, the most of all strategies"
    won = sum(len(where) for where in points_won.values())
    line = f"{size}: {lead}; one strategy beats all others at {won}"
    if won < len(at_points):
        line += f"; at {len(at_points) - won} several are not beaten"
    lines = [f"{line}."]
    for name in sorted(points_won, key=lambda name: -len(points_won[name])):
        where = points_won[name]
        more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
        lines.append(f"{name} is best at {'; '.join(where[:_NAMED])}{more}.")
    return lines


def _missing_images(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say of which data sets images are missing, and how much of them is left."""
    names = dict.fromkeys(shared_value(cells, "dataset") for cells in groups)
    partial = []
    for name in names:
        _, missing = whole_name(name)
        if missing:
            partial.append(name)
    if not partial:
        return []
    return [f"Images are missing, so these are not the benchmark's numbers: they are of {'; and of '.join(partial)}."]


# --- what it rests on --------------------------------------------------------------------------------------------


def open_pairs(groups: Sequence[pd.DataFrame], verdicts: Sequence[Verdict]) -> str:
    """Say how many of the pairs to decide are undecided, and what deciding them costs; '' for none."""
    undecided = [row for row in verdicts if row.undecided]
    pairs = set()
    for row in undecided:
        for other in row.undecided:
            pairs.add((row.table_key, row.baseline, frozenset((row.strategy, other))))
    if not pairs:
        return ""
    are, them, need = ("is", "it", "it needs") if len(pairs) == 1 else ("are", "them", "some need")
    if undecided[0].baseline_asked:
        what = f"{plural(len(pairs), 'difference')} from the baseline"
    else:
        what = plural(len(pairs), "pair")
    text = f"{len(pairs)} {what} {are} undecided"
    priced = [row for row in undecided if row.more_seeds > 0]
    if priced:
        seeds = max(row.more_seeds for row in priced)
        computing = duration(_seconds_to_decide(groups, priced))
        text += f"; about {seeds:.0f} more {plural(seeds, 'seed')} ({computing} of computing) should decide {them}"
    if any(row.more_seeds < 0 for row in undecided):
        text += f"; {need} more queries, not seeds"
    return text


def _seconds_to_decide(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict]) -> float:
    """Return the seconds that the further seeds of these strategies take."""
    seconds = seconds_per_seed(groups)
    return sum(row.more_seeds * seconds.get(group_key(vars(row)), 0) for row in rows)


def _what_intervals_cover(verdicts: Sequence[Verdict]) -> list[str]:
    """Count the verdicts against the best, or against the baseline asked for; say what the intervals cover."""
    if any(row.baseline_asked for row in verdicts):
        words = [row.verdict for row in verdicts if row.against_baseline]
        other = "the baseline"
    else:
        words = [row.standing for row in verdicts]
        other = "the best with as many negatives"
    counts = [f"{words.count(word)} {word}" for word in WORDS if word in words]
    if not counts:
        return []
    level = f"{100 * (1 - verdicts[0].alpha):g} %"
    text = f"Against {other}: {', '.join(counts)}. "
    if max(row.seeds for row in verdicts) == 1:
        covered = "other queries of these trained models, not for training again"
        return [f"{text}With one seed, the {level} intervals hold for {covered}: use {_ENOUGH_SEEDS} seeds."]
    covered = " or ".join(dict.fromkeys(row.covers for row in verdicts if row.covers))
    return [f"{text}The simultaneous {level} intervals hold for {covered}, not for other models, data or settings."]


def _warn_of_saturation(verdicts: Sequence[Verdict]) -> list[str]:
    """Say that the metric separates no strategies any more; [] where the last one is below 95 %."""
    last = min(row.mean.value for row in verdicts)
    if last < _SATURATED:
        return []
    name = label_of(verdicts[0].metric)
    return [f"{name} is saturated (the last strategy has {percent(last)} %): choose a stricter one with --metric."]


def _regime(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say for which models the answer holds, per data set; nothing for more than three data sets."""
    cards = last_cards(groups)
    if len(cards) > 3:
        return []
    lines = []
    for name, short in shorten_names(cards).items():
        where = f" on {short}" if len(cards) > 1 else ""
        lines.append(f"Valid for models that rank {first_share(cards[name])} % of their training targets first{where}.")
    return lines
