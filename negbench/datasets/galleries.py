"""Queries and the galleries that they are ranked in: columns, ranks, best images, scores; the base of `Dataset`."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.doubts import doubts_of_table
from negbench.errors import DataError, NegbenchError
from negbench.metrics.compiled import SMALLEST
from negbench.metrics.fixed import KINDS
from negbench.metrics.metric import Metric, PerQuery, value_of_ranking
from negbench.metrics.mistakes import kinds_by_attributes, mistakes
from negbench.metrics.named import metric_of_ranks
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import relevant_ranks, target_ranks, top_columns

_log = logging.getLogger("negbench")

ScoreBlock = Callable[[Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, int], Tensor | None]  # [b] rows, `Block.local`, n -> [b, n] bool; None: all images


class Block(NamedTuple):
    """Scores of b queries of one group.

    `rows` [b]; the group's `columns` [n]; `local`, the index of each of N + 1 columns among them, or -1
    (the last entry serves column -1); `scores` [b, n].
    """

    rows: Tensor
    columns: Tensor
    local: Tensor
    scores: Tensor


class Top(NamedTuple):
    """The best images of Q queries: `columns` [Q, k] int64 into `Dataset.images`, -1 where a gallery is smaller, and
    their float32 `scores` [Q, k], -inf there; both on the CPU.
    """

    columns: Tensor
    scores: Tensor


_BLOCK_QUERIES = 256  # ranked at once, at least; more in small galleries, but too few for compiled passes
_KEPT_KINDS = 2**24  # bytes: a larger table of kinds is computed block by block


class AttributeCodes(NamedTuple):
    """All attributes, as integers: those of right answers, `targets` [Q, A], which of them the text changes, [Q, A]
    bool, and those of `images` [N, A]; or [E, A], where row e is of image `column[e]`, whose nearest row counts.
    """

    targets: Tensor
    changed: Tensor
    images: Tensor
    column: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Galleries:
    """Queries, each with a gallery; see `Dataset` for the fields."""

    card: DatasetCard
    split: str
    queries: list[Query]
    images: list[str]
    groups: dict[str, Tensor]

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Return name -> metric, in table order, for the metrics that these ranks (of all or some queries) support."""
        raise NotImplementedError

    @classmethod
    def mistake_metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Return name -> metric of what was measured while ranking besides: judged negatives and wordings."""
        declared = cls.metrics(ranks) if ranks.values else {}
        return {name: Metric((value_of_ranking(name),)) for name in ranks.values if name not in declared}

    def __post_init__(self) -> None:
        for what, ids in (("image", self.images), ("query", [query.id for query in self.queries])):
            if len(set(ids)) != len(ids):
                repeated = next(name for index, name in enumerate(ids) if name in ids[:index])
                raise DataError(f"{self.card.name} {self.split}: {what} '{repeated}' occurs twice")
        for name, columns in self.groups.items():
            inside = len(columns) == 0 or (int(columns.min()) >= 0 and int(columns.max()) < len(self.images))
            if columns.dtype != torch.int64 or not inside or len(torch.unique(columns)) != len(columns):
                raise DataError(f"{self.card.name} {self.split}: group '{name}' has repeated or invalid columns")
        pairs = zip(self.group_index.tolist(), self.target_columns.tolist(), strict=True)
        for query, (group, target) in zip(self.queries, pairs, strict=True):
            if group < 0:
                raise DataError(f"{self.card.name} {self.split}: query {query.id} has unknown group '{query.group}'")
            if query.target is not None and (target < 0 or not self._members[group, target]):
                raise DataError(
                    f"{self.card.name} {self.split}: target '{query.target}' of query {query.id} is not in the gallery "
                    f"of group '{query.group}': the annotation files do not belong together"
                )

    # --- columns -------------------------------------------------------------------------------------------------

    @cached_property
    def column_of(self) -> dict[str, int]:
        """Image id -> column."""
        return {image: column for column, image in enumerate(self.images)}

    def images_by_group(self) -> dict[str, list[str]]:
        """Return group -> the images of its gallery, in the order of its columns."""
        galleries = {}
        for name, columns in self.groups.items():
            galleries[name] = [self.images[column] for column in columns.tolist()]
        return galleries

    @cached_property
    def group_index(self) -> Tensor:
        """[Q] int64, position of the query's group in `groups`, -1 where unknown."""
        position = {name: index for index, name in enumerate(self.groups)}
        return torch.tensor([position.get(query.group, -1) for query in self.queries], dtype=torch.int64)

    @cached_property
    def target_columns(self) -> Tensor:
        """[Q] int64, column of the target; -1 where the labels are closed."""
        columns = [-1 if query.target is None else self.column_of.get(query.target, -1) for query in self.queries]
        return torch.tensor(columns, dtype=torch.int64)

    @cached_property
    def extra_images(self) -> list[str]:
        """Reference images outside `images`, in order of first appearance."""
        return list(dict.fromkeys(q.reference for q in self.queries if q.reference not in self.column_of))

    @cached_property
    def all_images(self) -> list[str]:
        """Every image that has to be encoded: `images`, then `extra_images`."""
        return [*self.images, *self.extra_images]

    def naming(self, images: Collection[str]) -> str:
        """Say how many queries have one of these images as reference or target."""
        hit = sum(query.reference in images or query.target in images for query in self.queries)
        return f"; {hit:,} of {len(self.queries):,} {self.split} queries have one as reference or target"

    @cached_property
    def reference_index(self) -> Tensor:
        """[Q] int64, position of the reference image in `all_images`."""
        position = {image: index for index, image in enumerate(self.all_images)}
        return torch.tensor([position[query.reference] for query in self.queries], dtype=torch.int64)

    @cached_property
    def reference_columns(self) -> Tensor:
        """[Q] int64, column of the reference image, -1 where it is outside `images`."""
        return torch.where(self.reference_index < len(self.images), self.reference_index, -1)

    @cached_property
    def relevant(self) -> Ragged | None:
        """Q rows of columns: every image of the query's gallery known to be relevant, the target first.

        None if no query knows more than its target. A reference that the protocol excludes is never relevant.
        """
        if not any(query.relevant for query in self.queries):
            return None
        return Ragged.of(self._relevant_columns(index) for index in range(len(self.queries)))

    @cached_property
    def rows_with_several_targets(self) -> list[list[int]]:
        """Groups of rows that ask one query, with reference and texts alike, of several targets."""
        rows: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for row, query in enumerate(self.queries):
            if query.target is not None:
                key = (query.group, query.reference, tuple(query.captions or (query.text,)))
                rows.setdefault(key, []).append(row)
        return with_several_targets(rows.values(), [query.target for query in self.queries])

    @cached_property
    def answers(self) -> Ragged | None:
        """Q rows of columns: `relevant`, and what answers other rows of the same query; an empty row where only the
        target is known. None if every row would be empty.

        Scores follow `relevant`; masks, false-negative rates and oracles follow this.
        """
        return add_shared_answers(self.rows_with_several_targets, self.target_columns.tolist(), self.relevant)

    # --- judged negatives ----------------------------------------------------------------------------------------

    @cached_property
    def attribute_codes(self) -> AttributeCodes | None:
        """What tells the kind of any image, for data that know all attributes; None: kinds are as judged."""
        return None

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of judged negatives that the data know, in the order of `KINDS`; nothing where none is judged."""
        if self.attribute_codes is not None:
            return KINDS[:-1]
        present: set[str] = set()
        for query in self.queries:
            present.update(kind for kind, _ in query.wrong)
        return tuple(kind for kind in KINDS if kind in present)

    @cached_property
    def wrong_digest(self) -> str:
        """Digest of the judged negatives that a file lists, for the hash of a run that reads them; '' for none."""
        listed = [query.wrong for query in self.queries]
        return hashlib.sha256(repr(listed).encode()).hexdigest() if any(listed) else ""

    def judging(self) -> list[str]:
        """Count the judged negatives that a file lists, by kind, and those outside their query's gallery."""
        rows = [row for row, query in enumerate(self.queries) if query.wrong]
        if not rows:
            return []
        galleries = {name: set(ids) for name, ids in self.images_by_group().items()}
        kinds: Counter[str] = Counter()
        lost = 0
        for row in rows:
            query = self.queries[row]
            for kind, image in query.wrong:
                kinds[kind] += 1
                if image not in galleries[query.group]:
                    lost += 1
        counts = ", ".join(f"{kinds[kind]:,} {kind}" for kind in KINDS if kind in kinds)
        line = f"{self.split}: {kinds.total():,} judged negatives of {len(rows):,} of {len(self.queries):,} queries"
        line += f" ({counts})"
        if lost:
            line += f"; {lost:,} are outside their query's gallery and do not count (dataset.gallery adds images)"
        return [line]

    @cached_property
    def _wrong_columns(self) -> list[dict[int, int]]:
        """Column -> code of every query's judged negatives; what answers the query is none."""
        codes: list[dict[int, int]] = []
        for row, query in enumerate(self.queries):
            right = {-1, int(self.target_columns[row])}
            if self.answers is not None:
                right.update(self.answers.row(row).tolist())
            code_of_column = {}
            for kind, image in query.wrong:
                column = self.column_of.get(image, -1)
                if column not in right:
                    code_of_column[column] = KINDS.index(kind) + 1
            codes.append(code_of_column)
        return codes

    def kind_table(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the kinds of judged negatives.

        Args:
            rows: [b] int64 into `queries`.
            columns: [n] int64 into `images`.

        Returns:
            [b, n] int8: 1 + the index of the kind in `KINDS`, 0 for an image that is no judged negative.
        """
        if self.attribute_codes is not None:
            if self._kind_table is None:
                return self._kinds_by_attributes(self.attribute_codes, rows, columns)
            of_rows = self._kind_table.index_select(0, rows)
            if torch.equal(columns, torch.arange(len(self.images))):
                return of_rows
            return of_rows.index_select(1, columns)
        table = torch.zeros(len(rows), len(self.images), dtype=torch.int8)
        for index, row in enumerate(rows.tolist()):
            wrong = self._wrong_columns[row]
            table[index, list(wrong)] = torch.tensor(list(wrong.values()), dtype=torch.int8)
        return table[:, columns]

    @cached_property
    def _kind_table(self) -> Tensor | None:
        """[Q, N] `kind_table` of data that know all attributes, which every refresh reads; None where it is large."""
        if self.attribute_codes is None or len(self.queries) * len(self.images) > _KEPT_KINDS:
            return None
        return self._kinds_by_attributes(
            self.attribute_codes, torch.arange(len(self.queries)), torch.arange(len(self.images))
        )

    def _kinds_by_attributes(self, codes: AttributeCodes, rows: Tensor, columns: Tensor) -> Tensor:
        """Return `kind_table` of data that know all attributes."""
        images = codes.images if codes.column is not None else codes.images[columns]
        table, off = kinds_by_attributes(codes.targets[rows], codes.changed[rows], images)
        if codes.column is None:
            return table
        nearest = torch.full((len(rows), len(self.images)), torch.iinfo(torch.int8).max, dtype=torch.int8)
        nearest.scatter_reduce_(1, codes.column.expand(len(rows), -1), off * 4 + table, "amin")
        return nearest[:, columns] % 4

    def sharing(self) -> list[str]:
        """Say how many rows ask a query that other rows ask too, of another target; nothing where none does."""
        rows = sum(map(len, self.rows_with_several_targets))
        if not rows:
            return []
        first = len(self.queries) - rows
        for same in self.rows_with_several_targets:
            targets = Counter(self.queries[row].target for row in same)
            first += targets.most_common(1)[0][1]
        return [
            f"{rows:,} of {len(self.queries):,} {self.split} rows share reference and text with another row, but not "
            "the target: each other's targets answer them too (mining.exclude_relevant leaves these out), and R@1 "
            f"is at most {first / len(self.queries):.2%} ({first:,} rows)"
        ]

    def relevant_references(self) -> list[str]:
        """Say how many queries list their own reference as relevant; nothing where none does."""
        count = sum(query.reference in query.relevant for query in self.queries)
        effect = "left out of the ranking" if self.card.exclude_reference else "a right answer"
        if count == 0:
            return []
        return [f"{count:,} {self.split} queries list their own reference as relevant: it is {effect}"]

    def _relevant_columns(self, index: int) -> list[int]:
        """Return the columns of what answers a query in its gallery, the target first."""
        query = self.queries[index]
        group = int(self.group_index[index])
        images = dict.fromkeys(query.relevant if query.target is None else (query.target, *query.relevant))
        if self.card.exclude_reference:
            images.pop(query.reference, None)
        columns = [self.column_of[image] for image in images if image in self.column_of]
        return [column for column in columns if self._members[group, column]]

    @cached_property
    def _members(self) -> Tensor:
        """[groups, N] bool."""
        members = torch.zeros(len(self.groups), len(self.images), dtype=torch.bool)
        for row, columns in zip(members, self.groups.values(), strict=True):
            row[columns] = True
        return members

    def dev_rows(self, fraction: float, seed: int) -> Tensor:
        """[Q] bool, the queries of a development part; arguments and errors as `Dataset.split_dev`."""
        check_option("fraction", fraction, 0 < fraction < 1, "between 0 and 1")
        dev = self._choose_dev(fraction, seed)
        if dev.all() or not dev.any():
            raise DataError(
                f"{self.card.name} {self.split}: {len(self.queries)} queries are too few for a dev part of {fraction}"
            )
        return dev

    def _choose_dev(self, fraction: float, seed: int) -> Tensor:
        """[Q] bool, as `dev_rows`.

        Within each group, whole targets go to the dev part in a seeded order until it holds `fraction` of the group's
        queries, so no target image is in both parts.
        """
        if not self.queries or int(self.target_columns.min()) < 0:
            raise DataError(f"{self.card.name} {self.split}: a development part needs a target for every query")
        generator = torch.Generator().manual_seed(seed)
        in_dev: dict[int, bool] = {}  # target column -> part; a target of two groups keeps its first part
        for group in range(len(self.groups)):
            targets, counts = torch.unique(self.target_columns[self.group_index == group], return_counts=True)
            order = torch.randperm(len(targets), generator=generator).tolist()
            quota = round(fraction * int(counts.sum()))
            queries_of = dict(zip(targets.tolist(), counts.tolist(), strict=True))
            moved = sum(count for target, count in queries_of.items() if in_dev.get(target))
            for position in order:
                target = int(targets[position])
                if target not in in_dev:
                    in_dev[target] = moved < quota
                    if in_dev[target]:
                        moved += queries_of[target]
        return torch.tensor([in_dev[target] for target in self.target_columns.tolist()])

    # --- ranks ---------------------------------------------------------------------------------------------------

    def rank(self, score_block: ScoreBlock, block: int | None = None) -> QueryRanks:
        """Rank every query within its own gallery, `block` queries at a time; the full table is never held.

        Args:
            score_block: (rows [b] int64 into `queries`, columns [n] int64 into `images`, both on the CPU) -> [b, n]
                float scores on any device, any sign, higher is better.
            block: queries per call, >= 1; by default 256, or as many as have 2^19 scores.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is NaN.
        """
        blocks: list[Tensor] = []
        parts: list[QueryRanks] = []
        for score_rows in self._blocks(score_block, block):
            blocks.append(score_rows.rows)
            parts.append(self._rank_block(score_rows))
        ranks = QueryRanks.concatenate(parts)
        rows = torch.cat(blocks) if blocks else torch.zeros(0)
        return ranks.select(torch.argsort(rows)) if bool((rows.diff() < 0).any()) else ranks

    def _rank_block(self, block: Block) -> QueryRanks:
        """Rank the queries of one block."""
        rows, columns, local, scores = block
        target = local[self.target_columns[rows]]
        left_out = self._left_out(rows, local)
        target_rank = target_ranks(scores, target, left_out=left_out).cpu()
        if self.relevant is None:
            has_target = target_rank > 0
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), has_target.long().cumsum(0)])
            ranks = Ragged(target_rank[has_target], offsets)
        else:
            relevant = self.relevant.select(rows)
            ranks = relevant_ranks(scores, Ragged(local[relevant.values], relevant.offsets), left_out=left_out)
        gallery_size = torch.full_like(rows, len(columns))
        if left_out is not None:
            gallery_size -= (left_out >= 0).long()
        queries = [self.queries[row] for row in rows.tolist()]
        cluster = None
        if any(query.cluster for query in self.queries):
            cluster = tuple(query.cluster or query.id for query in queries)
        return QueryRanks(
            query=tuple(query.id for query in queries),
            group=tuple(query.group for query in queries),
            target_rank=target_rank,
            gallery_size=gallery_size,
            relevant_ranks=ranks,
            cluster=cluster,
        )

    def with_mistakes(self, ranks: QueryRanks, score_block: ScoreBlock, block: int | None = None) -> QueryRanks:
        """Return the ranks that `rank` computed from the same scores, with the values of `metrics.mistakes` per query.

        Unchanged where nothing is judged. Arguments and errors as for `rank`.
        """
        if not self.kinds:
            return ranks
        values: dict[str, Tensor] = {}
        for rows, columns, local, scores in self._blocks(score_block, block):
            kinds = self.kind_table(rows, columns)
            allowed = self._without_references(rows, local, len(columns))
            counts = mistakes(scores, kinds, ranks.relevant_ranks.select(rows), self.kinds, allowed)
            for name, value in counts.items():
                values.setdefault(name, torch.empty(len(ranks), dtype=torch.float64))[rows] = value
        return replace(ranks, values={**ranks.values, **values})

    def top(self, score_block: ScoreBlock, k: int, block: int | None = None, mask: Mask | None = None) -> Top:
        """Find the k best images of every query by the protocol's rules, `block` queries at a time.

        Ties go to the lower column, so that a list is the same on every machine; for ranks, where ties count against
        the model, see `rank`.

        Args:
            score_block: as for `rank`.
            k: how many, >= 1.
            block: as for `rank`.
            mask: images to choose from, else those of the protocol.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is NaN.
        """
        top = torch.full((len(self.queries), min(k, len(self.images))), -1, dtype=torch.int64)
        values = torch.full(top.shape, -torch.inf)
        for rows, columns, local, scores in self._blocks(score_block, block):
            if len(columns):
                if mask is None:
                    best = top_columns(scores, k, left_out=self._left_out(rows, local)).cpu()
                else:
                    best = top_columns(scores, k, mask(rows, local, len(columns))).cpu()
                width = best.shape[1]
                exists = best >= 0
                position = best.clamp(min=0)
                top[rows, :width] = torch.where(exists, columns[position], -1)
                values[rows, :width] = scores.float().cpu().gather(1, position).where(exists, -torch.inf)
        return Top(top, values)

    def _blocks(self, score_block: ScoreBlock, block: int | None) -> Iterator[Block]:
        """Yield the scores of every query against its own gallery, by group, at most `block` queries at a time."""
        for group, columns in enumerate(self.groups.values()):
            height = block or max(_BLOCK_QUERIES, (SMALLEST - 1) // max(1, len(columns)))
            local = torch.full((len(self.images) + 1,), -1, dtype=torch.int64)
            local[columns] = torch.arange(len(columns))
            for rows in torch.split((self.group_index == group).nonzero()[:, 0], height):
                if len(rows):
                    yield Block(rows, columns, local, self._scores(score_block, rows, columns))

    def _scores(self, score_block: ScoreBlock, rows: Tensor, columns: Tensor) -> Tensor:
        """Return a block of scores; raise NegbenchError for another shape, or for a score that is NaN."""
        scores = score_block(rows, columns)
        if scores.shape != (len(rows), len(columns)):
            raise NegbenchError(
                f"the scorer returned {tuple(scores.shape)} for {len(rows)} queries x {len(columns)} images"
            )
        if not scores.sum().isnan():  # a sum is faster
            return scores
        nan = scores.isnan()
        if nan.any():  # the sum of infinities is NaN, too
            row, column = nan.nonzero()[0].tolist()
            raise NegbenchError(
                f"the score of query {self.queries[int(rows[row])].id} and image '{self.images[int(columns[column])]}' "
                f"is NaN ({int(nan.sum())} in this block): a diverged model cannot be ranked"
            )
        return scores

    def _left_out(self, rows: Tensor, local: Tensor) -> Tensor | None:
        """[b] columns of the references, -1 where the gallery has none; None where the protocol keeps them."""
        return local[self.reference_columns[rows]] if self.card.exclude_reference else None

    def _without_references(self, rows: Tensor, local: Tensor, width: int) -> Tensor | None:
        """[b, width] bool without the references, or None where the protocol keeps them."""
        left_out = self._left_out(rows, local)
        if left_out is None:
            return None
        allowed = torch.ones(len(rows), width, dtype=torch.bool)
        row = (left_out >= 0).nonzero()[:, 0]
        allowed[row, left_out[row]] = False
        return allowed

    # --- scores --------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether targets of this split are not published."""
        return any(query.target is None and not query.relevant for query in self.queries)

    def require_labels(self) -> None:
        """Raise DataError where the labels are closed."""
        if self.closed:
            raise DataError(
                f"the labels of {self.card.name} {self.split} are closed: it has no targets to score against"
            )

    def evaluate(self, scores: Tensor) -> dict[str, float]:
        """Compute the benchmark's metrics from a full score table.

        Args:
            scores: [Q, N] float in the order of `queries` and `images`, any sign, higher is better. Columns outside a
                query's gallery are ignored.

        Returns:
            Metric name -> value in [0, 1].

        Raises:
            NegbenchError: a table of another shape, or one with NaN.
            DataError: the labels of this split are closed.

        A warning of the logger `negbench` says where the scores seem to mean something else, such as distances.
        """
        queries = len(self.queries)
        images = len(self.images)
        scores = torch.as_tensor(scores)
        if scores.shape != (queries, images) or not scores.is_floating_point():
            raise NegbenchError(
                f"scores must be a float table of {queries} queries x {images} images, "
                f"got {tuple(scores.shape)} {scores.dtype}"
            )
        self.require_labels()
        device = scores.device
        galleries = [self.groups[query.group] for query in self.queries]
        for doubt in doubts_of_table(scores, galleries, self.target_columns):
            _log.warning("note: %s", doubt)

        def score_block(rows: Tensor, columns: Tensor) -> Tensor:
            return scores[rows.to(device)][:, columns.to(device)]

        return self.measure(score_block)

    def measure(self, score_block: ScoreBlock) -> dict[str, float]:
        """Compute the benchmark's metrics from a model's scores (as for `rank`)."""
        return self.summarise(self.rank(score_block))

    @classmethod
    def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
        """Compute the benchmark's metrics, in [0, 1], from the ranks of all queries or any subset."""
        return {name: metric.mean(ranks) for name, metric in cls.metrics(ranks).items()}

    @classmethod
    def summarise_mistakes(cls, ranks: QueryRanks) -> dict[str, float]:
        """Compute what `mistake_metrics` declares; empty where nothing is judged. Most values are better the lower."""
        return {name: metric.mean(ranks) for name, metric in cls.mistake_metrics(ranks).items()}

    @classmethod
    def per_query(cls, ranks: QueryRanks, names: Iterable[str]) -> dict[str, PerQuery]:
        """Return the per-query values of those `names` that are declared as means over queries, or follow from ranks.

        See `metrics` and `negbench.metrics.named`.
        """
        dataset_metrics = cls.metrics(ranks)
        declared = dataset_metrics | cls.mistake_metrics(ranks)
        values = {}
        for name in names:
            metric = declared.get(name) or metric_of_ranks(name, dataset_metrics)
            if metric is not None:
                values[name] = metric.of(ranks)
        return values


def with_several_targets(same: Iterable[list[int]], target: Sequence[Any]) -> list[list[int]]:
    """Return the groups of rows that have several targets."""
    groups = []
    for rows in same:
        targets = {target[row] for row in rows}
        if len(targets) > 1:
            groups.append(rows)
    return groups


def add_shared_answers(same: Sequence[Sequence[int]], target: Sequence[int], relevant: Ragged | None) -> Ragged | None:
    """Add to Q rows of `relevant` what answers other rows of the same query.

    Args:
        same: groups of rows that ask one query of several targets.
        target: column of each row's target.
        relevant: Q rows of columns; None: nothing is known beyond the targets.
    """
    if not same:
        return relevant
    lists = [[] if relevant is None else relevant.row(row).tolist() for row in range(len(target))]
    for rows in same:
        answers = []
        for row in rows:
            answers += [target[row], *lists[row]]
        for row in rows:
            lists[row] = list(dict.fromkeys([target[row], *answers]))
    return Ragged.of(lists)
