"""The answer of a study: what it found, where that draws, whether it is better, and how flat the optimum is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from negbench.analysis.columns import WORDS
from negbench.analysis.findings import read_findings
from negbench.analysis.verdicts import Rules
from negbench.analysis.words import (
    estimate_text,
    in_points,
    join_names,
    label_of,
    number,
    percent,
    plain,
    settings_text,
)
from negbench.store.runfolder import RunFolder
from negbench.tuning.book import StudyStore
from negbench.tuning.final import completed_trials, final_name, is_default

_POINT = 0.01


def study_answer(book: StudyStore, rules: Rules | None) -> list[str]:
    """Say what was found and where its negatives come from, whether it is better, and how flat the optimum is.

    Args:
        book: a study with a finished trial.
        rules: of the comparison of the best with the default; None where they were not compared.
    """
    done = completed_trials(book)
    clipped = book.spec.space.clipped
    best = done[0]
    zero = next((trial for trial in done if trial.number == 0), None)
    default = f"trial 0, the default moved into the range of {join_names(clipped)}" if clipped else "the default"
    name = default if best is zero else settings_text(book.spec.space.plain(book.spec.config, best.params))
    lines = [f"The best of {len(done)} finished trials is {name}: {_result_text(book, best)}."]
    if best is not zero and zero is not None:
        lines.append(f"{default[0].upper()}{default[1:]}: {_result_text(book, zero)}.")
    return [*lines, _better(book, best, rules), _flatness(book, done)]


def failures(book: StudyStore) -> list[str]:
    """Say of each failed trial why it failed; empty where none did."""
    failed = [trial for trial in book.frozen() if trial.state == TrialState.FAIL]
    lines = []
    for trial in failed:
        lines.append(f"Trial {trial.number} failed: {trial.user_attrs['error']} ({settings_text(trial.params)}).")
    if failed:
        lines.append(f"{len(failed)} of {book.trials} trials failed: rerun the command to compute them again.")
    return lines


def _result_text(book: StudyStore, trial: FrozenTrial) -> str:
    """'45.2 % on the dev part, negatives from ranks 28 to 169 (0.3 to 1.7 % of the gallery)'."""
    by = f" by {label_of(book.spec.metric)}" if book.spec.metric else ""
    text = f"{percent(trial.value)} %{by} on the dev part"
    band = band_of(book, trial)
    if band is None:
        return text
    first, last, ranks = band
    share = f"{percent(first / ranks)} to {percent(last / ranks)} % of the gallery"
    return f"{text}, negatives from ranks {number(first)} to {number(last)} ({share})"


def _better(book: StudyStore, best: FrozenTrial, rules: Rules | None) -> str:
    """Say what the comparison on other seeds and queries decided."""
    if is_default(book, best):
        return "The default is the best trial, so there is nothing to compare it with."
    if rules is None:
        return "Not compared with the default on other seeds and queries: --final-seeds 0."
    verdicts = read_findings(book.folder.parent, final_name(book.name)).main_verdicts
    row = next(row for row in verdicts if row.verdict != "baseline")
    words = WORDS.get(row.verdict, f"{row.verdict} with {{}}").format("the default", in_points(row.margin))
    points = estimate_text(row.against_baseline)
    return f"On {row.seeds} seeds and {row.queries:,} queries that no trial saw it is {words}: {points} points."


def _flatness(book: StudyStore, done: Sequence[FrozenTrial]) -> str:
    """Say how far apart the settings within a point of the best are; a sampler may try one several times."""
    tried = {str(trial.params): trial for trial in done}
    near = [trial for trial in tried.values() if trial.values[0] >= done[0].values[0] - _POINT]
    if len(near) == 1:
        return f"Of {len(tried)} settings tried, no other is within a point of it."
    plain_values = [book.spec.space.plain(book.spec.config, trial.params) for trial in near]
    parts = []
    for key in plain_values[0]:
        name = key.split(".")[-1]
        parts.append(f"{name} {_spread([values[key] for values in plain_values])}")
    first_ranks = []
    last_ranks = []
    for trial in near:
        band = band_of(book, trial)
        if band is not None:
            first, last, _ = band
            first_ranks.append(round(first))
            last_ranks.append(round(last))
    if first_ranks:
        parts.append(f"negatives from ranks {_spread(first_ranks)} up to ranks {_spread(last_ranks)}")
    return f"{len(near)} of {len(tried)} settings tried are within a point of the best: {', '.join(parts)}."


def _spread(values: Sequence[Any]) -> str:
    """Return '0.02 to 0.2' of numbers, 'a or b' of other values, in order of their trials."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        ends = (min(values), max(values))
        return " to ".join(dict.fromkeys(plain(end) for end in ends))
    return " or ".join(dict.fromkeys(plain(value) for value in values))


def band_of(book: StudyStore, trial: FrozenTrial) -> tuple[float, float, float] | None:
    """Return the first and last rank (from 1) of a trial's pools and the number of ranks, means over its refreshes.

    None where its runs rank no corpus.
    """
    results = [RunFolder(book.folder / "cells" / name).result for name in trial.user_attrs.get("runs", ())]
    if not results:
        return None
    for result in results:
        if "band_start" not in result["behaviour"] or not result["regime_by_refresh"]:
            return None
    start = np.mean([result["behaviour"]["band_start"] for result in results])
    end = np.mean([result["behaviour"]["band_end"] for result in results])
    ranks = np.mean([result["regime_by_refresh"][-1]["images"] for result in results]) - 1  # without the target
    return float(1 + start * (ranks - 1)), float(1 + end * (ranks - 1)), float(ranks)
