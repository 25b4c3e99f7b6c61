"""Score ready-made rankings (a submission file, another program's output) by a data set's own protocol."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from negbench.datasets.doubts import FEW, NEARLY, doubts_in_words
from negbench.errors import NegbenchError, short_repr
from negbench.files.image_files import Spellings
from negbench.machine.received import check_text, read_bytes

if TYPE_CHECKING:
    from negbench.contracts import Query
    from negbench.datasets.dataset import Dataset, ScoreBlock
    from negbench.metrics.query_ranks import QueryRanks

Ranking = Sequence[str | int] | Mapping[str, float]  # ids, best first; or the score of each id

_log = logging.getLogger("negbench")

_HEADER = ("version", "metric")  # keys of CIRR's submission files that are not queries
_SUBSET = "recall_subset"  # value of "metric" in a CIRR file that ranks within subsets
_UNLISTED = torch.finfo(torch.float32).min
_BLOCK = 128  # queries whose scores are held at once


def read_rankings(path: Path) -> Any:
    """Read rankings from a file, whatever its ending: JSON as `ranks_of_rankings` takes it, or else a TREC run file.

    Raises:
        NegbenchError: a file that is neither.
    """
    text = _text(path)
    if not text.lstrip().startswith(("{", "[")):
        return read_trec(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise NegbenchError(f"cannot read {path}: {error}: recreate the file") from error


def _text(path: Path) -> str:
    try:
        content = read_bytes(path)
        check_text(path, content)
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise NegbenchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def ranks_of_rankings(dataset: Dataset, rankings: Mapping[str, Ranking]) -> QueryRanks:
    """Compute per-query ranks from ready-made rankings; what a ranking leaves out counts as last.

    Args:
        dataset: loaded with or without images.
        rankings: query id -> image ids, best first (integers are read as text), or image id -> score, where ties count
            against the model; every query must be present. Ids may also be file names or paths, and numbers may have
            leading zeros, as long as one image alone fits. A list may be truncated: images that it omits rank after
            all listed ones, irrelevant ones first. A reference that the protocol excludes is skipped. CIRR's
            submission files may be given unchanged, with their keys "version" and "metric"; those of metric
            "recall_subset" say nothing about images outside the subset, which then rank first.

    Raises:
        NegbenchError: a query without a ranking; an unknown query or image; an image listed twice, or outside the
            query's gallery.
    """
    return _rank(dataset, _look_up(dataset, rankings).worst)


def highest_ranks(dataset: Dataset, rankings: Mapping[str, Ranking]) -> QueryRanks:
    """Compute the best ranks that the rankings leave possible: relevant images come right after the listed ones.

    A metric is known if these ranks and those of `ranks_of_rankings` agree on it. Errors are the same.
    """
    return _rank(dataset, _look_up(dataset, rankings).best)


def _rank(dataset: Dataset, score_block: ScoreBlock) -> QueryRanks:
    return dataset.with_mistakes(dataset.rank(score_block, block=_BLOCK), score_block, _BLOCK)


def first_columns(dataset: Dataset, rankings: Mapping[str, Ranking], k: int) -> Tensor:
    """[Q, k] int64 columns of each query's first k images; -1 where its gallery is smaller.

    Raises:
        NegbenchError: as `ranks_of_rankings`; a ranking of fewer images.
    """
    top = dataset.top(_look_up(dataset, rankings).worst, k, block=_BLOCK)
    short = ((top.scores <= _UNLISTED / 2) & (top.columns >= 0)).any(1).nonzero().flatten().tolist()
    if short:
        query = short_repr(dataset.queries[short[0]].id)
        raise NegbenchError(f"the ranking of query {query} lists fewer than {k} images ({len(short):,} queries)")
    return top.columns


def doubts(dataset: Dataset, rankings: Mapping[str, Ranking]) -> list[str]:
    """Return a line for each reason to think that the scores of rankings mean something else than how well images fit.

    Args and errors are those of `ranks_of_rankings`.
    """
    listed = _look_up(dataset, rankings)
    constant = 0
    last = 0
    for row, (columns, scores) in enumerate(zip(listed.columns, listed.scores, strict=True)):
        if len(scores) < FEW:
            continue
        if bool((scores == scores[0]).all()):
            constant += 1
            continue
        target_score = scores[columns == dataset.target_columns[row]]  # empty if the target is not listed
        if len(target_score) and bool(target_score[0] == scores.min()):
            last += 1
    return doubts_in_words(constant, last, len(listed.scores))


@dataclass(frozen=True, eq=False)
class _Listed:
    """Rankings as scores: of each query, [n] int64 columns of the listed images and their [n] float32 scores."""

    dataset: Dataset
    columns: Sequence[Tensor]
    scores: Sequence[Tensor]
    within_subset: bool  # the rankings are of the query's subset only

    @property
    def worst(self) -> ScoreBlock:
        """Scores with unlisted images last, relevant ones behind the others.

        Those outside a subset that alone was ranked come first.
        """

        def scores(rows: Tensor, columns: Tensor) -> Tensor:
            return torch.stack([self._worst(row) for row in rows.tolist()])[:, columns]

        return scores

    @property
    def best(self) -> ScoreBlock:
        """Scores with the unlisted target first of all that is unlisted, then what else is relevant."""

        def scores(rows: Tensor, columns: Tensor) -> Tensor:
            return torch.stack([self._best(row) for row in rows.tolist()])[:, columns]

        return scores

    def _right(self, row: int) -> Tensor:
        """[n] columns of what answers a query; nothing where the labels are closed."""
        target = self.dataset.target_columns[row, None]
        parts = [target[target >= 0]]
        if self.dataset.relevant is not None:
            parts.append(self.dataset.relevant.row(row))
        return torch.cat(parts)

    def _worst(self, row: int) -> Tensor:
        """Return [N] scores of a query in which what it does not list comes last."""
        line = torch.full((len(self.dataset.images),), _UNLISTED / 2)
        if self.within_subset:
            line = -line
            column_of = self.dataset.column_of
            subset = [column_of[image] for image in self.dataset.queries[row].subset if image in column_of]
            line[subset] = _UNLISTED / 2
        line[self._right(row)] = _UNLISTED  # below the others: an order of ties might favour them
        line[self.columns[row]] = self.scores[row]
        return line

    def _best(self, row: int) -> Tensor:
        """Return [N] scores of a query in which the target comes first of what it does not list."""
        line = torch.full((len(self.dataset.images),), _UNLISTED)
        line[self._right(row)] = _UNLISTED / 2
        line[self.dataset.target_columns[row]] = _UNLISTED / 4
        if self.dataset.kinds:
            judged = self.dataset.kind_table(torch.tensor([row]), torch.arange(len(line)))[0] > 0
            line[judged] = -torch.inf
        line[self.columns[row]] = self.scores[row]
        return line


def _look_up(dataset: Dataset, rankings: Mapping[str, Ranking]) -> _Listed:
    """Return rankings as scores of columns; raise NegbenchError for an image outside the gallery, or listed twice."""
    ranking_of = _check_queries(dataset, rankings)
    galleries = {name: frozenset(columns.tolist()) for name, columns in dataset.groups.items()}
    names = Spellings(dataset.all_images)
    all_columns: list[Tensor] = []
    all_scores: list[Tensor] = []
    for query in dataset.queries:
        score_of_column: dict[int, float] = {}
        for entry, score in _entries(query, ranking_of[query.id]).items():
            image = names.find(entry)
            if dataset.card.exclude_reference and image == query.reference:
                continue
            column = dataset.column_of.get(image or "", -1)
            if column not in galleries[query.group]:
                raise NegbenchError(
                    f"image {short_repr(entry)} in the ranking of query {short_repr(query.id)} is not in its gallery, "
                    f"'{query.group}' of {dataset.card.name} {dataset.split}, whose ids are like "
                    f"{short_repr(dataset.images[int(dataset.groups[query.group][0])])}"
                )
            if column in score_of_column:
                raise NegbenchError(
                    f"the ranking of query {short_repr(query.id)}: image {short_repr(image)} occurs twice"
                )
            score_of_column[column] = score
        all_columns.append(torch.tensor(list(score_of_column), dtype=torch.int64))
        all_scores.append(torch.tensor(list(score_of_column.values()), dtype=torch.float32))
    return _Listed(dataset, all_columns, all_scores, rankings.get("metric") == _SUBSET)


def _check_queries(dataset: Dataset, rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
    """Return the rankings by the data set's query ids, without the header; check that they are for its queries."""
    if not isinstance(rankings, Mapping):
        raise NegbenchError(f"rankings must map query ids to lists of image ids, got {short_repr(rankings)}")
    names = Spellings(query.id for query in dataset.queries)
    by_id: dict[str, Ranking] = {}
    unknown: list[str] = []
    for key, ranking in rankings.items():
        if key in _HEADER and isinstance(ranking, str):
            continue
        query_id = names.find(str(key))
        if query_id is None:
            unknown.append(str(key))
        elif query_id in by_id:
            raise NegbenchError(
                f"query {short_repr(query_id)} has two rankings; the second is called {short_repr(key)}"
            )
        else:
            by_id[query_id] = ranking
    if unknown:
        count = len(by_id) + len(unknown)
        raise NegbenchError(
            f"unknown query {short_repr(unknown[0])} in the rankings ({len(unknown):,} of {count:,} "
            f"are not in {dataset.card.name} {dataset.split}, whose first query is {short_repr(dataset.queries[0].id)})"
        )
    absent = [query.id for query in dataset.queries if query.id not in by_id]
    if absent:
        raise NegbenchError(
            f"no ranking for query {short_repr(absent[0])} ({len(absent):,} of {len(dataset.queries):,} queries of "
            f"{dataset.card.name} {dataset.split} have none)"
        )
    return by_id


def _entries(query: Query, ranking: Ranking) -> dict[str, float]:
    """Return image id -> score of each listed image; lists score by rank, and equal scores share a rank."""
    where = f"the ranking of query {short_repr(query.id)}"
    if isinstance(ranking, Mapping):
        for score in ranking.values():
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise NegbenchError(f"{where}: expected a finite score for each image, got {short_repr(ranking)}")
        best_first = sorted(set(ranking.values()), reverse=True)
        score_of = {score: -float(rank) for rank, score in enumerate(best_first)}
        return {str(image): score_of[score] for image, score in ranking.items()}
    if isinstance(ranking, str | bytes) or not isinstance(ranking, Sequence):
        raise NegbenchError(
            f"{where}: expected a list of image ids, best first, or a score for each id, got {short_repr(ranking)}"
        )
    score_of_image: dict[str, float] = {}
    for entry in ranking:
        if isinstance(entry, bool) or not isinstance(entry, str | int):
            raise NegbenchError(f"{where}: expected image ids, got {short_repr(entry)}")
        if str(entry) in score_of_image:
            raise NegbenchError(f"{where}: image {short_repr(str(entry))} occurs twice")
        score_of_image[str(entry)] = -float(len(score_of_image))
    return score_of_image


def read_trec(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run file as query id -> {image id: score}; like trec_eval, ignore its column of ranks.

    A note says so if that column contradicts the scores.

    Raises:
        NegbenchError: the file cannot be read, or a line, named by its number, has another format.
    """
    by_query: dict[str, dict[str, float]] = {}
    pairs_by_query: dict[str, list[tuple[float, float]]] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split()
        score = math.nan
        if len(fields) == 6:
            with suppress(ValueError):
                score = float(fields[4])
        if not math.isfinite(score):
            raise NegbenchError(
                f"{path}: line {number}: expected the six fields 'query Q0 image rank score tag', got {line[:60]!r}"
            )
        query = fields[0]
        image = fields[2]
        if image in by_query.setdefault(query, {}):
            raise NegbenchError(f"{path}: line {number}: image {image!r} of query {query!r} occurs twice")
        by_query[query][image] = score
        with suppress(ValueError):
            pairs_by_query.setdefault(query, []).append((float(fields[3]), score))
    if not by_query:
        raise NegbenchError(f"{path} holds no ranking")
    for doubt in _contradictions(pairs_by_query, path):
        _log.warning("note: %s", doubt)
    return by_query


def _contradictions(pairs_by_query: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> list[str]:
    """Say in how many queries the column of ranks contradicts the scores; nothing if in none.

    Args:
        pairs_by_query: query -> (rank, score) of each image.
        path: for the line.
    """
    contradicted = 0
    reverse = 0
    for pairs in pairs_by_query.values():
        rises = 0
        falls = 0
        for (rank, score), (next_rank, next_score) in itertools.pairwise(sorted(pairs)):
            if rank < next_rank:
                rises += next_score > score
                falls += next_score < score
        contradicted += rises > 0
        reverse += rises > 0 and falls == 0
    if not contradicted:
        return []
    queries = len(pairs_by_query)
    line = f"the ranks and the scores of {path} contradict each other in {contradicted:,} of {queries:,} queries"
    if reverse >= NEARLY * queries:
        return [f"{line}: are the scores distances? Scores count, the highest first: write the negatives of distances"]
    return [f"{line}: the scores count, as for trec_eval"]
