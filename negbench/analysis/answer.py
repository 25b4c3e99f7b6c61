"""A comparison's answer in words: who is best, who loses and by how much, what is undecided, and where it holds."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from negbench.analysis.columns import WORDS
from negbench.analysis.contrasts import contrast_text
from negbench.analysis.findings import Findings
from negbench.analysis.kinds import kinds_answer
from negbench.analysis.leader import by_negatives, equally_many, negatives_text, negatives_words, ordered
from negbench.analysis.pivots import at_point, size_of, unbeaten, unequal_steps
from negbench.analysis.plateau import rates_answer, trained_out
from negbench.analysis.regime_card import first_share, last_cards
from negbench.analysis.tuned_gain import tuned_answer, tunings_of
from negbench.analysis.verdicts import OVER_ALL, TABLE_AXES, VerdictRow, rounded
from negbench.analysis.words import bracket, in_points, label_of, listed, percent, shortened, signed, span
from negbench.display import duration
from negbench.grid.comparison import CellGroup, group_key, together
from negbench.grid.dials import Dials

_SATURATED = 0.95  # where even the last strategy is above this, the metric can hardly separate them
_ENOUGH_SEEDS = 3
_NAMED = 4  # most strategies named in a list
_TABLES = 6  # most tables with a headline each


def say(findings: Findings) -> list[str]:
    """Write the answer, a line per entry; none where nothing was judged.

    First the `headlines`; then what else tables say, what is undecided, what the intervals cover, the regime, learning
    rates, unfinished training, and what tuning gained.
    """
    if not findings.rows:
        return []
    rows = findings.main
    lines = [*headlines(findings), *_below(findings)]
    price = open_pairs(findings.groups, [row for row in rows if OVER_ALL not in row.table_key])
    return [
        *dict.fromkeys(lines),
        *([f"{price[0].upper()}{price[1:]}."] if price else []),
        *filter(None, [warm_ups(findings.groups)]),
        *_covers(rows),
        *_saturated(rows),
        *_regime(findings.groups),
        *rates_answer(findings.document),
        *trained_out(findings.groups, rows),
        *tuned_answer(tunings_of(findings.document), findings.gains),
        *kinds_answer(ordered(findings.plain, rows)),
    ]


def headlines(findings: Findings) -> list[str]:
    """Return what stands on top: a line for every table, or one that holds for all; and losses, backbones compared.

    Along dials, the count of points; of several data sets or backbones, the tables over all.
    """
    if findings.dials.axes or not findings.rows:
        return _points(findings.dials, findings.main)[:1] if findings.rows else []
    orders = _orders(findings)
    joined = [place for place in orders if OVER_ALL in place]
    firsts = [orders[place][0] for place in joined or orders]
    if len(firsts) > _TABLES:
        firsts = [_tally(list(_tables(findings.main).values()))]
    contrasted = _tables(findings.contrasts)
    return [*firsts, *(_prefix(place, list(contrasted)) + contrast_text(own) for place, own in contrasted.items())]


def _below(findings: Findings) -> list[str]:
    """Return what the tables say besides the headlines."""
    rows = findings.main
    if findings.dials.axes:
        unequal = "Points of equally many epochs differ in their numbers of steps: the table of points has them."
        return [*_points(findings.dials, rows)[1:], *[unequal] * bool(unequal_steps(findings.groups))]
    orders = list(_orders(findings).values())
    return [*(line for line, *_ in orders), *(line for lines in orders for line in lines[1:]), *_turns(rows)]


# --- a table -----------------------------------------------------------------------------------------------------


def steps_of(groups: Sequence[CellGroup]) -> dict[str, int]:
    """Return the steps of each training budget, '' where a comparison has one; without budgets of unlike steps."""
    budgets = together(groups, lambda group: group.labels.get("epochs", ""))
    steps = {budget: {int(n) for group in own for n in group.values("steps")} for budget, own in budgets.items()}
    return {budget: counts.pop() for budget, counts in steps.items() if len(counts) == 1}


def warm_ups(groups: Sequence[CellGroup]) -> str:
    """Say how long the rules drew from the whole corpus before their first pools; '' if all did equally long."""
    lengths: dict[tuple[int, int], set[str]] = {}
    for group in groups:
        epochs, schedule = group.configs[0].train.epochs or 0, group.configs[0].schedule
        if schedule.refresh_epochs and (schedule.n_def or 1) > 1:  # else its pools do not depend on the scores
            lengths.setdefault((epochs, schedule.refresh_epochs[0]), set()).add(group.labels["strategy"])
    parts = [f"{n} of {epochs} for {listed(sorted(names), _NAMED)}" for (epochs, n), names in sorted(lengths.items())]
    alike = len(lengths) == len({epochs for epochs, _ in lengths})
    return "" if alike else f"Epochs of warm-up on the whole corpus: {'; '.join(parts)}."


_AMONG = {"epochs": "training budgets", "loss": "losses", "backbone": "backbones", "dataset": "data sets"}


def _turns(rows: Sequence[VerdictRow]) -> list[str]:
    """Say which orders turn between budgets, losses, backbones or data sets.

    A beats B, decided, in one table, and B beats A in another.
    """
    return list(dict.fromkeys(line for axis, words in _AMONG.items() for line in _turns_along(axis, words, rows)))


def _turns_along(axis: str, words: str, rows: Sequence[VerdictRow]) -> Iterator[str]:
    rest = [name for name in TABLE_AXES if name != axis]
    kept = (row for row in rows if getattr(row, axis) and OVER_ALL not in row.table_key)
    worlds = together(kept, lambda row: tuple(getattr(row, name) for name in rest))
    named = "after {} epochs" if axis == "epochs" else "with {}"
    level = "" if axis == "epochs" else f" (each table alone at {100 * (1 - rows[0].alpha):g} %)"
    for members in worlds.values():
        tables = together(members, lambda row: str(getattr(row, axis)))
        order = sorted(tables, key=lambda key: int(key) if axis == "epochs" else 0)
        beats = {key: {(a, row.strategy) for row in tables[key] for a in row.beaten_by} for key in order}
        turns: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for one, other in combinations(beats, 2):
            for pair in sorted(beats[one]):
                if pair[::-1] in beats[other] and not any(pair in pairs for pairs in turns.values()):
                    turns.setdefault((one, other), []).append(pair)
        for (one, other), pairs in turns.items():
            ahead = ", ".join(f"{a} is ahead of {b}" for a, b in pairs[:_NAMED])
            ahead += f" and {len(pairs) - _NAMED} more pairs" * (len(pairs) > _NAMED)
            places = named.format(one), named.format(other)
            yield f"The order reverses: {places[0]} {ahead}; {places[1]} it is the other way round{level}."
        if len(beats) > 1 and not turns:
            yield f"No decided order reverses between the {words} {listed(order, 9)}{level}."


def _tables(rows: Sequence[VerdictRow]) -> dict[tuple[str, ...], list[VerdictRow]]:
    """Group rows by their tables: over all first, then by training budget."""
    ordered_rows = sorted(rows, key=lambda row: (OVER_ALL not in row.table_key, int(row.epochs or 0)))
    return together(ordered_rows, lambda row: row.table_key)


def _orders(findings: Findings) -> dict[tuple[str, ...], list[str]]:
    """Describe every table."""
    tables = _tables(findings.main)
    steps = {budget: f"{n:,} step{'s' * (n != 1)}" for budget, n in steps_of(findings.groups).items()}
    n = max((group.configs[0].train.epochs or 0 for group in findings.groups), default=0)
    alone = len({table[0].epochs for table in tables.values()}) == 1  # else named before every line
    after = "".join(f", after {each} ({n} epoch{'s' * (n != 1)})" for each in steps.values()) * alone
    prefixes = {place: _prefix(place, list(tables), steps) for place in tables}
    return {place: [prefixes[place] + line for line in _order(table, after)] for place, table in tables.items()}


def _tally(tables: Sequence[Sequence[VerdictRow]]) -> str:
    """Count in how many tables each strategy is the highest of those with equally many negatives, and the best."""
    blocks = [block for table in tables for block in equally_many(table).values()]
    first = Counter(max(each, key=lambda row: (row.standing != "collapsed", row.mean)).strategy for each in blocks)
    ahead = Counter(row.strategy for block in blocks for row in block if row.standing == "best")
    counts = [f"{name} at {n} (ahead of all others at {ahead[name]})" for name, n in first.most_common(_NAMED)]
    size = f"{len(tables)} tables with {len(blocks)} blocks of equally many negatives"
    return f"{label_of(tables[0][0].metric)} in {size}: highest is {', '.join(counts)}."


def _prefix(place: Sequence[str], places: Sequence[Sequence[str]], steps: Mapping[str, str] | None = None) -> str:
    """Return the labels that distinguish this table: 'cirr, 20 epochs (100 steps): '; '' for the only one."""
    varied = [index for index in range(len(TABLE_AXES)) if len({each[index] for each in places}) > 1]
    short = shortened([each[TABLE_AXES.index("dataset")] for each in places])
    budget = TABLE_AXES.index("epochs")
    length = f" ({steps[place[budget]]})" if steps and place[budget] in steps else ""
    words = [short.get(place[i], place[i]) + f" epochs{length}" * (i == budget) for i in varied if place[i]]
    return ", ".join(dict.fromkeys(words)) + ": " * bool(varied)


def _order(rows: Sequence[VerdictRow], after: str) -> list[str]:
    """Describe a table: who is best with equally many negatives, then numbers of negatives, then a chosen baseline.

    Where another number has the highest mean of all, the first line says so.
    """
    blocks, lines = equally_many(rows), list[str]()
    if not rows[0].system:  # a system's question: which negatives are better than its own?
        for count, members in blocks.items():
            said = len(members) > 1 or len(blocks) == 1
            lines += _block(members, f"{negatives_words(count)} per query and step{after}") * said
        if len(blocks) > 1:
            numbers, usual = _numbers(blocks, "" if lines else after), next(iter(blocks.values()))
            if lines and max(rows, key=lambda row: row.mean) not in usual:
                lines[0] += f" {numbers}"
            else:
                lines.append(numbers)
    elif len(blocks) > 1:
        counts = ", ".join(f"{row.strategy} {negatives_text(row.negatives)}" for row in rows)
        lines.append(f"Negatives per query and step: {counts}.")
    return [*[_verdicts(rows)] * bool(rows[0].system), *lines, *_against(rows), *_ends(rows)]


def _block(rows: Sequence[VerdictRow], where: str) -> list[str]:
    """Say who is best of the strategies with one number of negatives, and how far each other one is behind."""
    best, *rest = sorted([row for row in rows if row.standing != "collapsed"] or rows, key=lambda row: -row.mean)
    losers = [row for row in rest if row.standing == "worse"]
    text = f"{label_of(best.metric)} with {where}: {_mean(best)} is "
    if not rest:
        return [f"{text}the only strategy."]
    lines = [f"{text}{'; '.join([best.standing, *_others(best, rest, losers)])}."]
    if losers:
        behind = ", ".join(_loss(row, best) for row in losers[:_NAMED])
        behind += f" and {len(losers) - _NAMED} more" * (len(losers) > _NAMED)
        lines.append(f"Behind {best.strategy}: {behind}.")
    return lines


def _numbers(blocks: Mapping[str, Sequence[VerdictRow]], after: str) -> str:
    """Compare the highest of each number of negatives with the highest of all."""
    highest = [max(members, key=lambda row: row.mean) for members in blocks.values()]
    first, *rest = sorted(highest, key=lambda row: -row.mean)
    behind = [signed(row.behind, row.behind_low, row.behind_high, sign=False) + " points behind" for row in rest]
    parts = [
        f"{_with(row)} " + ("follows" if math.isnan(row.behind) else f"is {points}")  # nan: over several tables
        for row, points in zip(rest, behind, strict=True)
    ]
    text = f"Whatever the number of negatives, {_with(first)} has the highest {label_of(first.metric)}{after}"
    return f"{text}; {', '.join(parts)}."


def _with(row: VerdictRow) -> str:
    known = "an unrecorded number" if math.isnan(row.negatives) else negatives_text(row.negatives)
    return f"{row.marked_label} with {known} ({percent(row.mean)} %)"


def _against(rows: Sequence[VerdictRow]) -> list[str]:
    """Compare the strategies with a baseline that was asked for; say whose numbers of negatives differ from its."""
    if rows[0].system or not rows[0].against or len(rows) < 2:
        return []
    unlike = [row for row in rows if row.compared and rounded(row.negatives) != rounded(row.baseline_negatives)]
    text = f"Against {rows[0].baseline}, {_verdicts(rows)}"
    if unlike:
        blocks = equally_many(unlike).items()
        counts = ", ".join(f"{listed([row.strategy for row in block])} {count}" for count, block in blocks)
        own = negatives_words(negatives_text(unlike[0].baseline_negatives))
        text += f" The baseline has {own} per query and step, but {counts}."
    return [text]


def _ends(rows: Sequence[VerdictRow]) -> list[str]:
    """Write a line on a table's strategies with collapsed runs, and one on each set that scores identically."""
    fallen = [
        f"{row.strategy} in {row.collapsed} of {row.seeds} seeds ({span([row.lowest, row.highest])} %)"
        for row in rows
        if row.collapsed
    ]
    lines = [f"Collapsed, so without a place in the order: {'; '.join(fallen)}."] if fallen else []
    for row in rows:
        if row.identical and row.strategy < row.identical[0]:
            why = "the learning rate is too low to change the model" if row.unmoved else "they draw the same images"
            lines.append(f"{listed([row.strategy, *row.identical], _NAMED)} score identically: probably {why}.")
    return lines


def _others(best: VerdictRow, rest: Sequence[VerdictRow], losers: Sequence[VerdictRow]) -> list[str]:
    """Say which strategies score like the best, are equal to it, are undecided against it, and lose."""
    alike = [row for row in rest if row.strategy in best.identical]
    near = [row for row in rest if row not in [*alike, *losers]]
    parts = [f"{_names(alike)} score{'s' * (len(alike) == 1)} exactly the same"] if alike else []
    for verdict, members in (
        ("equal", [row for row in near if row.standing == "equal"]),
        ("undecided", [row for row in near if row.standing != "equal"]),
    ):
        if members:
            words = WORDS[verdict].format("it", in_points(best.margin))
            if verdict == "undecided" and all(-row.gap_low <= best.margin for row in members):
                words += f", but at most {percent(-min(row.gap_low for row in members), 2)} points ahead"
            parts.append(f"{_names(members)} ({span([row.mean for row in members])} %) {_is(members)} {words}")
    if losers:
        lost = span([best.mean - row.mean if math.isnan(row.gap) else row.gap for row in losers])
        parts.append(f"{_names(losers)} {_is(losers)} {lost} points worse")
    return parts


def _verdicts(rows: Sequence[VerdictRow]) -> str:
    """Say which strategies are better than the baseline, worse, equal and undecided, with their differences."""
    own = next((row for row in rows if row.verdict == "baseline"), None)
    metric = label_of(rows[0].metric)
    if own is None:
        return f"{metric}: {', '.join(map(_mean, rows[:_NAMED]))}; no run of the baseline is finished."
    if len(rows) == 1:
        return f"{metric}: {_mean(own)} is the only strategy."
    parts = list[str]()
    for verdict, words in WORDS.items():
        members = [row for row in by_negatives(rows) if row.verdict == verdict]
        names = [f"{row.marked_label} {signed(row.difference, row.diff_low, row.diff_high)}" for row in members]
        if members:
            other = "it" if parts else f"{own.strategy} ({percent(own.mean)} %)"
            parts.append(f"{listed(names, 9)} {_is(members)} {words.format(other, in_points(own.margin))}")
    return f"{metric}: {'; '.join(parts)}."


def _names(rows: Sequence[VerdictRow]) -> str:
    return listed([row.marked_label for row in rows], _NAMED)


def _is(rows: Sequence[VerdictRow]) -> str:
    return "is" if len(rows) == 1 else "are"


def _loss(row: VerdictRow, best: VerdictRow) -> str:
    """Say by how much a strategy loses to the best with equally many negatives."""
    if math.isnan(row.gap):  # no seed in common
        return f"{row.marked_label} by {100 * (best.mean - row.mean):.2f} points"
    return f"{row.marked_label} by {100 * row.gap:.2f} {bracket(row.gap_low, row.gap_high)} points"


def _mean(row: VerdictRow) -> str:
    return f"{row.marked_label} ({percent(row.mean)} %)"


# --- many points -------------------------------------------------------------------------------------------------


def _points(dials: Dials, rows: Sequence[VerdictRow]) -> list[str]:
    """Say which strategies are best along dials, at how many points and where."""
    named = {p: point for p in dials.points if (point := at_point(rows, dials.label(p)))}
    points = [*named.values()]
    alone = [unbeaten(point)[0] for point in points if len(unbeaten(point)) == 1]
    shared = f"; at {len(points) - len(alone)} several are not beaten" * (len(alone) < len(points))
    size = f"{len(points)} point{'s' * (len(points) != 1)} ({label_of(rows[0].metric)}, {size_of(rows)} per point)"
    if len({row.strategy for row in rows}) == 1:
        return [f"{size} of {rows[0].strategy} alone."]
    held = {row.strategy: sum(row.strategy in unbeaten(point) for point in points) for row in rows}
    most = max(held.values())
    best = [name for name in sorted(held) if held[name] == most]
    lead = f"{listed(best)} {'is' if len(best) == 1 else 'are'} not beaten at {most}, the most of all strategies"
    lines = [f"{size}: {lead}; one strategy beats all others at {len(alone)}{shared}."]
    for name in sorted(set(alone), key=lambda each: -alone.count(each)):
        where = [dials.title(p) or point[0].where for p, point in named.items() if unbeaten(point) == [name]]
        more = f" and {len(where) - _NAMED} more" * (len(where) > _NAMED)
        lines.append(f"{name} is best at {'; '.join(where[:_NAMED])}{more}.")
    return lines


# --- what it rests on --------------------------------------------------------------------------------------------


def open_pairs(groups: Sequence[CellGroup], rows: Sequence[VerdictRow]) -> str:
    """Say how many of the pairs to decide are undecided, and what deciding them costs; '' for none."""
    left = [row for row in rows if row.undecided]
    pairs = {(row.table_key, row.baseline, frozenset((row.strategy, other))) for row in left for other in row.undecided}
    if not pairs:
        return ""
    several, to_baseline = len(pairs) > 1, left[0].against
    text = f"{len(pairs)} {'difference' if to_baseline else 'pair'}{'s' * several}{' from the baseline' * to_baseline} "
    text += f"{'are' if several else 'is'} undecided"
    prices = [row.more_seeds for row in left if row.more_seeds > 0]
    if prices:
        took = {group_key(group.labels): sum(sum(r["seconds"].values()) for r in group.results) for group in groups}
        seconds = [row.more_seeds * took.get(group_key(vars(row)), 0) / row.seeds for row in left if row.more_seeds > 0]
        text += f"; about {max(prices):.0f} more seed{'s' * (max(prices) > 1)} ({duration(sum(seconds))} of computing) "
        text += f"should decide {'them' if several else 'it'}"
    if any(row.more_seeds < 0 for row in left):
        text += f"; {'some need' if several else 'it needs'} more queries, not seeds"
    return text


def _covers(rows: Sequence[VerdictRow]) -> list[str]:
    """Count the verdicts against the best, or against a baseline that was asked for; say what the intervals cover."""
    against = any(row.against for row in rows)
    words = [row.verdict if against else row.standing for row in rows if row.compared or not against]
    counts = {word: words.count(word) for word in WORDS if word in words}
    if not counts:
        return []
    level = f"{100 * (1 - rows[0].alpha):g} %"
    text = f"Against {'the baseline' if against else 'the best with as many negatives'}: "
    text += f"{', '.join(f'{n} {word}' for word, n in counts.items())}. "
    if max(row.seeds for row in rows) == 1:
        covered = "other queries of these trained models, not for training again"
        return [f"{text}With one seed, the {level} intervals hold for {covered}: use {_ENOUGH_SEEDS} seeds."]
    covered = " or ".join(dict.fromkeys(row.covers for row in rows if row.covers))
    return [f"{text}The simultaneous {level} intervals hold for {covered}, not for other models, data or settings."]


def _saturated(rows: Sequence[VerdictRow]) -> list[str]:
    if min(row.mean for row in rows) < _SATURATED:
        return []
    name, last = label_of(rows[0].metric), percent(min(row.mean for row in rows))
    return [f"{name} is saturated (the last strategy has {last} %): choose a stricter one with --metric."]


def _regime(groups: Sequence[CellGroup]) -> list[str]:
    """Say for which models the answer holds, per data set; nothing for more than three data sets."""
    of_dataset = last_cards(groups)
    several = len(of_dataset) > 1
    return [
        f"Valid for models that rank {first_share(cards)} % of their training targets first{f' on {name}' * several}."
        for name, cards in zip(shortened(of_dataset).values(), of_dataset.values(), strict=True)
        if len(of_dataset) <= 3
    ]
