"""Gains of equal tuning: every tuned strategy against its own default, what was found, and what it cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import Rules, VerdictTable, verdicts_of
from negbench.analysis.words import estimate_text, join_names, label_of, settings_text
from negbench.grid.axis import KEY

BASELINE = "its default"  # of a gain; no strategy's label
DEFAULT = "default"  # values of the axis `settings`
TUNED = "tuned"


@dataclass(frozen=True)
class Tuning:
    """Result of tuning one strategy.

    Attributes:
        labels: strategy, loss, backbone, data set, as tables print them.
        study: name of the study; '' if the strategy has nothing to tune.
        knobs: keys that were searched.
        trials: number of trials that ended.
        failed: how many of them failed.
        seconds: computing time of all trials.
        default, best: main metric of the default and of the best trial on the dev part; None (null) without trials.
        found: key -> value of the best trial; empty if that is the default.
        error: why there is no result; '' if there is one.
    """

    labels: Mapping[str, str]
    study: str = ""
    knobs: tuple[str, ...] = ()
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    default: float | None = None
    best: float | None = None
    found: Mapping[str, Any] | None = None
    error: str = ""


def tunings_of(document: Mapping[str, Any]) -> list[Tuning]:
    """Return the searches from comparison.json."""
    tuned = document.get("tuned") or {"tunings": []}
    return [Tuning(**{**tuning, "knobs": tuple(tuning["knobs"])}) for tuning in tuned["tunings"]]


def gains_of(tables: Sequence[VerdictTable], tunings: Sequence[Tuning], rules: Rules) -> list[Verdict]:
    """Test tuned minus default of every strategy whose tuning changed it and that has a seed at both settings.

    The tests of one data set, loss and backbone share alpha (Bonferroni).
    """
    tables_by_key = {}
    for table in tables:
        tables_by_key[table.labels.get("settings", ""), *_table_key(table.labels)] = table
    effective = [tuning for tuning in tunings if tuning.found]
    tests = Counter(_table_key(tuning.labels) for tuning in effective)
    gains = []
    for tuning in effective:
        strategy = tuning.labels["strategy"]
        table_key = _table_key(tuning.labels)
        default = tables_by_key.get((DEFAULT, *table_key))
        tuned = tables_by_key.get((TUNED, *table_key))
        if default is None or tuned is None:
            continue
        pair = {}
        for settings, table in ((DEFAULT, default), (TUNED, tuned)):
            values = table.values[table.main_metric]
            if strategy in values:
                pair[settings] = values[strategy]
        if len(pair) < 2:
            continue
        negatives = dict.fromkeys(pair, tuned.negatives[strategy])
        facts = {TUNED: tuned.facts[strategy]}
        table = VerdictTable(tuned.labels, tuned.main_metric, {tuned.main_metric: pair}, negatives, facts=facts)
        for verdict in verdicts_of(table, Rules(DEFAULT, rules.margin, rules.alpha / tests[table_key]), key=""):
            if verdict.strategy == TUNED and verdict.against_baseline is not None:
                gains.append(replace(verdict, strategy=strategy, baseline=BASELINE))
    return gains


def _table_key(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the axes besides the strategy: loss, backbone and data set."""
    return tuple(labels.get(axis, "") for axis in KEY if axis != "strategy")


def tuned_answer(tunings: Sequence[Tuning], gains: Sequence[Verdict], metric: str = "") -> list[str]:
    """Say what tuning found and gained, strategy by strategy, and what it cost; nothing without tunings.

    Args:
        tunings: what was found.
        gains: its verdicts.
        metric: by which trials were scored, if it is not the data set's main one.
    """
    if not tunings:
        return []
    gains_by_key = {(gain.strategy, *_table_key(vars(gain))): gain for gain in gains}
    several = len({_table_key(tuning.labels) for tuning in tunings}) > 1
    parts = []
    for tuning in tunings:
        strategy = tuning.labels["strategy"]
        table_key = _table_key(tuning.labels)
        where = f" ({join_names(table_key)})" if several else ""
        text = f"{strategy}{where} {_result_text(tuning)}"
        gain = gains_by_key.get((strategy, *table_key))
        if gain is not None:
            text += f", {estimate_text(gain.against_baseline)} points over its default"
        parts.append(text)
    spent = sum(tuning.seconds for tuning in tunings)
    trials = sum(tuning.trials for tuning in tunings)
    scored = f" scored by {label_of(metric)}" if metric else ""
    cost = f"{trials} trials{scored} on a dev part, {spent:,.0f} s of computing besides the runs of both tables"
    return [f"Equal tuning ({cost}): {'; '.join(parts)}."]


def _result_text(tuning: Tuning) -> str:
    """Say what tuning a strategy found, or why it found nothing."""
    if not tuning.study:
        return "has nothing to tune"
    if tuning.error:
        return f"FAILED: {tuning.error}"
    settings = settings_text(tuning.found or {})
    text = f"with {settings}" if settings else "keeps its default"
    if tuning.failed:
        text += f" ({tuning.failed} of its {tuning.trials} trials FAILED)"
    return text
