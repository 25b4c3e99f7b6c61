"""Train texts that differ from epoch to epoch: each query's text is drawn from its captions."""

import dataclasses

from negbench.datasets.dataset import Dataset
from negbench.errors import DataError
from negbench.files.captions import draw_texts


def has_captions(dataset: Dataset) -> bool:
    """Return whether a query has two captions or more, and epochs do not draw other queries."""
    return not dataset.redraws and any(len(query.captions) > 1 for query in dataset.queries)


def check_captions(dataset: Dataset) -> None:
    """Raise DataError if there is nothing to draw from (`has_captions`)."""
    if not has_captions(dataset):
        raise DataError(
            f"train.vary_captions: {dataset.card.name} keeps no two captions of a query: leave train.vary_captions out"
        )


def with_drawn_texts(dataset: Dataset, epoch: int, seed: int) -> Dataset:
    """Return the split with the texts of an epoch, a function of (epoch, seed) alone (`draw_texts`)."""
    return dataclasses.replace(dataset, queries=draw_texts(dataset.queries, epoch, seed))
