"""Cutoffs of metrics that are wide for their gallery: R@10 of 100 images is easily reached."""

import re
from collections.abc import Sequence

import pandas as pd

from negbench.analysis.frame import first_run, shared_value
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.words import label_of, plural

WIDE = 0.02  # of the smallest scored gallery group
_CUTOFF = re.compile(r"_at_(\d+)$")


def cutoff_of(metric: str) -> int | None:
    """Return the k of a metric's name; None if it has none, as an average of several."""
    match = _CUTOFF.search(metric)
    return int(match[1]) if match else None


def wide_cutoffs(groups: Sequence[pd.DataFrame], verdicts: Sequence[Verdict]) -> list[str]:
    """Remark once on a main metric whose k is more than 2 % of a gallery, and name the largest k below it.

    Of several data sets, that with the smallest gallery group counts.
    """
    verdict_of_dataset = {row.dataset: row for row in verdicts if row.main and cutoff_of(row.metric) is not None}
    wide: dict[int, Verdict] = {}  # size of the smallest gallery group -> the first verdict there
    for cells in groups:
        row = verdict_of_dataset.get(shared_value(cells, "dataset"))
        if row is None:
            continue
        size = min(first_run(cells).manifest["dataset"]["gallery"].values())
        if (cutoff_of(row.metric) or 0) > WIDE * size:
            wide.setdefault(size, row)
    if not wide:
        return []
    size = min(wide)
    first = wide[size]
    k = cutoff_of(first.metric) or 0
    others = dict[int, str]()  # k -> the first headline metric with it
    for row in verdicts:
        other = cutoff_of(row.metric)
        if row.dataset == first.dataset and other is not None and other <= WIDE * size:
            others.setdefault(other, row.metric)
    name = label_of(first.metric)
    text = f"{name} looks at {100 * k / size:.0f} % of the smallest gallery group, {size:,} {plural(size, 'image')}: "
    if others:
        return [f"{text}{label_of(others[max(others)])} is the largest headline metric below 2 % (--metric)."]
    return [f"{text}no headline metric is below 2 %."]
