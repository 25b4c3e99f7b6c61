"""Reasons to think that somebody's scores mean something else than how well images fit."""

from collections.abc import Sequence

from torch import Tensor

MOVES_SCORES = False  # only words

FEW = 3  # fewer images say nothing about the meaning of their scores
NEARLY = 0.9  # share of the queries that is hardly by chance


def doubts_of_table(scores: Tensor, galleries: Sequence[Tensor], targets: Tensor) -> list[str]:
    """Return a line for each reason to doubt a table of scores.

    Args:
        scores: [Q, N].
        galleries: Q times the columns of a query's gallery.
        targets: [Q] int64 columns.
    """
    constant = 0
    last = 0
    for row, columns in enumerate(galleries):
        if len(columns) < FEW:
            continue
        of_row = scores[row, columns.to(scores.device)]
        if bool((of_row == of_row[0]).all()):
            constant += 1
        elif bool(scores[row, targets[row]] == of_row.min()):
            last += 1
    return doubts_in_words(constant, last, len(galleries))


def doubts_in_words(constant: int, last: int, count: int) -> list[str]:
    """Say in how many of `count` queries all scores are equal, and in how many the target has the lowest one."""
    lines = []
    if constant:
        lines.append(
            f"the scores of {constant:,} of {count:,} queries are all equal: equal scores count against the model, so "
            "that these targets rank last; perhaps another column or a model without weights was written"
        )
    if last and last >= NEARLY * count:
        lines.append(
            f"in {last:,} of {count:,} queries the target has the lowest score, or comes last: are the scores "
            "distances (write their negatives), or the rankings in reverse?"
        )
    return lines
