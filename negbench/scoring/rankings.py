"""Score ready-made rankings (a submission file, another program's output) by a data set's own protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from negbench.errors import NegbenchError, quoted

if TYPE_CHECKING:
    from torch import Tensor

    from negbench.contracts import Query
    from negbench.datasets.dataset import Dataset, ScoreBlock
    from negbench.metrics.query_ranks import QueryRanks

Ranking = Sequence[str | int]  # ids, best first

_HEADER = ("version", "metric")  # keys of CIRR's submission files that are not queries
_UNLISTED = torch.finfo(torch.float32).min
_BLOCK = 128  # queries whose scores are held at once


def ranks_of_rankings(dataset: Dataset, rankings: Mapping[str, Ranking]) -> QueryRanks:
    """Compute per-query ranks from ready-made rankings.

    Args:
        dataset: loaded with or without images.
        rankings: query id -> image ids, best first (integers are read as text); every query must be present. A list
            may be truncated: images that it omits rank after all listed ones, irrelevant ones first. A reference that
            the protocol excludes is skipped. CIRR's submission files may be given unchanged, with their keys "version"
            and "metric". Ranks within a query's subset come from the same ranking.

    Raises:
        NegbenchError: a query without a ranking; an unknown query or image; an image listed twice, or outside the
            query's gallery.
    """
    return dataset.rank(_scorer(dataset, _checked(dataset, rankings)), block=_BLOCK)


def first_columns(dataset: Dataset, rankings: Mapping[str, Ranking], k: int) -> Tensor:
    """[Q, k] int64 columns of each query's first k images; -1 where its gallery is smaller.

    Raises:
        NegbenchError: as `ranks_of_rankings`; a ranking of fewer images.
    """
    top = dataset.top(_scorer(dataset, _checked(dataset, rankings)), k, block=_BLOCK)
    short = (top.scores == _UNLISTED).any(1).nonzero().flatten().tolist()
    if short:
        query = quoted(dataset.queries[short[0]].id)
        raise NegbenchError(f"the ranking of query {query} lists fewer than {k} images ({len(short):,} queries)")
    return top.columns


def count_cut_subsets(dataset: Dataset, rankings: Mapping[str, Ranking]) -> int:
    """Count queries whose ranking omits a member of their subset: their subset rank is only an upper bound.

    Raises:
        NegbenchError: a ranking is not a list of distinct image ids.
    """
    cut = 0
    for query in dataset.queries:
        listed = {image for image, _ in _entries(query, rankings.get(query.id, ()))}
        cut += any(member not in listed for member in query.subset)
    return cut


def _checked(dataset: Dataset, rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Return the rankings without the header; check that they are for exactly the data set's queries."""
    if not isinstance(rankings, Mapping):
        raise NegbenchError(f"rankings must map query ids to lists of image ids, got {quoted(rankings)}")
    if rankings.get("metric") == "recall_subset":
        raise NegbenchError("a CIRR file of metric 'recall_subset' ranks within subsets: give the 'recall' file")
    kept = {
        str(query): ranking
        for query, ranking in rankings.items()
        if not (query in _HEADER and isinstance(ranking, str))
    }
    known = {query.id for query in dataset.queries}
    unknown = [query for query in kept if query not in known]
    if unknown:
        raise NegbenchError(
            f"unknown query {quoted(unknown[0])} in the rankings ({len(unknown):,} of {len(kept):,} are not in "
            f"{dataset.card.name} {dataset.split}, whose first query is {quoted(dataset.queries[0].id)})"
        )
    absent = [query.id for query in dataset.queries if query.id not in kept]
    if absent:
        raise NegbenchError(
            f"no ranking for query {quoted(absent[0])} ({len(absent):,} of {len(known):,} queries of "
            f"{dataset.card.name} {dataset.split} have none)"
        )
    return kept


def _scorer(dataset: Dataset, rankings: Mapping[str, Ranking]) -> ScoreBlock:
    """Score listed images by their place, and all others with the lowest float32: ties are pessimistic."""
    galleries = {name: frozenset(columns.tolist()) for name, columns in dataset.groups.items()}
    columns_of, scores_of = [], []
    for query in dataset.queries:
        columns, scores = [], []
        for image, score in _entries(query, rankings[query.id]):
            if dataset.card.exclude_reference and image == query.reference:
                continue
            column = dataset.column_of.get(image)
            if column not in galleries[query.group]:
                raise NegbenchError(
                    f"image {quoted(image)} in the ranking of query {quoted(query.id)} is not in its gallery, "
                    f"'{query.group}' of {dataset.card.name} {dataset.split}"
                )
            columns.append(column)
            scores.append(score)
        columns_of.append(torch.tensor(columns, dtype=torch.int64))
        scores_of.append(torch.tensor(scores, dtype=torch.float32))

    def score_block(rows: Tensor, columns: Tensor) -> Tensor:
        table = torch.full((len(rows), len(dataset.images)), _UNLISTED)
        for line, row in zip(table, rows.tolist(), strict=True):
            line[columns_of[row]] = scores_of[row]
        return table[:, columns]

    return score_block


def _entries(query: Query, ranking: Ranking) -> Iterator[tuple[str, float]]:
    """Yield (image id, score) of each listed image, by descending score."""
    where = f"the ranking of query {quoted(query.id)}"
    if isinstance(ranking, str | bytes) or not isinstance(ranking, Sequence):
        raise NegbenchError(f"{where}: expected a list of image ids, got {quoted(ranking)}")
    seen: set[str] = set()
    for place, entry in enumerate(ranking):
        image = _image(entry, where)
        if image in seen:
            raise NegbenchError(f"{where}: image {quoted(image)} occurs twice")
        seen.add(image)
        yield image, -float(place)


def _image(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NegbenchError(f"{where}: expected image ids, got {quoted(value)}")
    return str(value)
