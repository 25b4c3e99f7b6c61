"""The core of every data set: queries, gallery groups, ranking by blocks, scores by the benchmark's own protocol."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.datasets.card import Counts, DatasetCard
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError, NegbenchError
from negbench.metrics.metric import Metric, PerQuery
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import relevant_ranks, target_ranks, top_columns

if TYPE_CHECKING:
    from PIL.Image import Image

ScoreBlock = Callable[[Tensor, Tensor], Tensor]

__all__ = ["Dataset", "QueryRanks", "ScoreBlock", "Top", "columns_of"]


class _Block(NamedTuple):
    """Some queries of one group: `rows` [b], the group's `columns` [n], where each of N + 1 columns stands among them
    (`local`, -1 where it does not; the last entry serves column -1), and `scores` [b, n].
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


@dataclass(frozen=True, eq=False)
class Dataset(ABC):
    """One split of one benchmark under one protocol.

    A data set plug-in is a module with `PAPER` and one concrete subclass that offers `load` and `metrics`: `load` reads
    the annotation files, and `loaded` does the rest.

    Args:
        card: what the benchmark is and how it is scored.
        split: name of the split.
        queries: Q queries.
        images: N ids, the columns of every score table: the union of the groups.
        groups: name -> [n] int64 columns: the gallery (or, on train, the mining corpus) of the group's queries.
        content: hash of the annotation files as loaded.
        files: where the images lie; None when loaded without images.
        missing: ids left out because their file is missing (`allow_missing`).
        remarks: what differs from the published counts, one line each.
        part: how this part was carved out of a larger one; empty for a whole split.

    Raises:
        DataError: a repeated image or query, an unknown group, a target outside its query's group.
    """

    extensions: ClassVar[tuple[str, ...]] = ()  # of what `load(file=...)` reads, also "hf:": it may stand for the name
    has_images: ClassVar[bool] = True  # False: ids without image files; `load` refuses to be asked for them
    test_server: ClassVar[bool] = False  # whether there is one that takes `submission`

    card: DatasetCard
    split: str
    queries: list[Query]
    images: list[str]
    groups: dict[str, Tensor]
    content: str
    files: ImageFiles | None = None
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    part: str = ""

    @classmethod
    @abstractmethod
    def load(
        cls, *, root: Path | None = None, split: str = "val", images: bool = True, allow_missing: bool = False
    ) -> Self:
        """Read one split from disk; subclasses add their own keyword options, each with a default.

        Args:
            root: folder of the benchmark, or the one above it that has it under its name; None takes the environment
                variable NEGBENCH_DATA.
            split: name of the split.
            images: whether the image files must be there; False needs annotations only.
            allow_missing: leave out what needs a missing image and mark the result partial, instead of DataError.

        Raises:
            DataError: files or images missing, or not in the format; one line with file, place and key.
            OptionError: an option with an unknown value.
        """

    @classmethod
    @abstractmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Name -> metric, in the order of tables: those that these ranks (all queries, or some) can be scored by."""

    def loaded(self, files: ImageFiles | None, place: Path, *, allow_missing: bool = False) -> Self:
        """This split as `load` returns it: compared with the published counts, its images found.

        A query goes when its reference or its target is missing; a gallery entry, a relevant image and a subset member
        go when they are.

        Args:
            files: where the images lie; None leaves them unchecked.
            place: folder or file that was read, for errors.
            allow_missing: leave out what needs a missing image, instead of DataError.

        Raises:
            DataError: images are missing, or no query is left.
        """
        missing = self.missing if files is None else files.require(self.all_images, allow_missing=allow_missing)
        queries, images, groups = self.queries, self.images, self.groups
        if missing and files is not None:
            gone = set(missing)
            galleries = {name: [images[column] for column in columns] for name, columns in groups.items()}
            images, groups = columns_of({name: _without(gone, ids) for name, ids in galleries.items()})
            queries = [
                dataclasses.replace(query, relevant=_without(gone, query.relevant), subset=_without(gone, query.subset))
                for query in queries
                if query.reference not in gone and query.target not in gone
            ]
        if not queries:
            raise DataError(
                f"{self.card.name} {self.split}: no query is left of {place} ({len(missing)} images missing)"
            )
        return dataclasses.replace(
            self,
            queries=queries,
            images=images,
            groups=groups,
            files=self.files if files is None else files,
            missing=missing,
            remarks=(*self.card.remarks(self.split, self.counts), *self.remarks),
        )

    def __post_init__(self) -> None:
        for what, ids in (("image", self.images), ("query", [query.id for query in self.queries])):
            if len(set(ids)) != len(ids):
                raise DataError(f"{self.card.name} {self.split}: {what} '{_first_repeat(ids)}' is there twice")
        for name, columns in self.groups.items():
            inside = len(columns) == 0 or (int(columns.min()) >= 0 and int(columns.max()) < len(self.images))
            if columns.dtype != torch.int64 or not inside or len(torch.unique(columns)) != len(columns):
                raise DataError(f"{self.card.name} {self.split}: group '{name}' is no set of columns of the images")
        for query, group, target in zip(
            self.queries, self.group_index.tolist(), self.target_columns.tolist(), strict=True
        ):
            if group < 0:
                raise DataError(f"{self.card.name} {self.split}: query {query.id} has unknown group '{query.group}'")
            if query.target is not None and (target < 0 or not self._members[group, target]):
                raise DataError(
                    f"{self.card.name} {self.split}: target '{query.target}' of query {query.id} is not in the gallery "
                    f"of group '{query.group}'"
                )

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """`name@protocol-HASH8`; two data sets of one identity give the same scores for the same ranks."""
        return self.card.identity(self.content, self.split, self.part, *sorted(self.missing))

    @property
    def partial(self) -> bool:
        """Whether images are missing, so that results are not those of the published benchmark."""
        return bool(self.missing)

    @property
    def counts(self) -> dict[str, Counts]:
        """Group -> number of queries and of images."""
        queries = Counter(query.group for query in self.queries)
        return {name: Counts(queries[name], len(columns)) for name, columns in self.groups.items()}

    # --- columns -------------------------------------------------------------------------------------------------

    @cached_property
    def column_of(self) -> dict[str, int]:
        """Image id -> column."""
        return {image: column for column, image in enumerate(self.images)}

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

        None where no query knows more than its target. A reference that the protocol excludes is never relevant.
        """
        if not any(query.relevant for query in self.queries):
            return None
        return Ragged.of(self._relevant_columns(index) for index in range(len(self.queries)))

    def _relevant_columns(self, index: int) -> list[int]:
        query, group = self.queries[index], int(self.group_index[index])
        named = ([] if query.target is None else [query.target]) + list(query.relevant)
        if self.card.exclude_reference:
            named = [image for image in named if image != query.reference]
        columns = [self.column_of[image] for image in dict.fromkeys(named) if image in self.column_of]
        return [column for column in columns if self._members[group, column]]

    @cached_property
    def _members(self) -> Tensor:
        """[groups, N] bool."""
        members = torch.zeros(len(self.groups), len(self.images), dtype=torch.bool)
        for row, columns in zip(members, self.groups.values(), strict=True):
            row[columns] = True
        return members

    # --- epochs and images ---------------------------------------------------------------------------------------

    def texts(self, epoch: int, seed: int) -> list[str]:
        """Q modification texts for one training epoch; here the fixed `Query.text`, whatever epoch and seed are."""
        return [query.text for query in self.queries]

    @property
    def redraws(self) -> bool:
        """Whether `at_epoch` draws other queries, not only other texts for the same ones."""
        return False

    def at_epoch(self, epoch: int, seed: int) -> Self:
        """This split as one training epoch sees it, a function of (epoch, seed) alone; itself where nothing is drawn.

        As many queries, on the same `images` in the same order, so that feature rows and columns stay what they are.
        Here only the texts can differ (`texts`); data sets of training pairs draw the queries anew.
        """
        texts = self.texts(epoch, seed)
        if texts == [query.text for query in self.queries]:
            return self
        drawn = [dataclasses.replace(q, text=text) for q, text in zip(self.queries, texts, strict=True)]
        return dataclasses.replace(self, queries=drawn)

    def open_image(self, image: str) -> Image:
        """PIL image of an id, in the mode of its file.

        Raises:
            DataError: loaded without images, no such file, or one that cannot be decoded.
        """
        if self.files is None:
            raise DataError(f"{self.card.name} was loaded without images: load it with images=True to open '{image}'")
        return self.files.open(image)

    # --- parts ---------------------------------------------------------------------------------------------------

    def with_queries(self, rows: Sequence[int] | Tensor, part: str) -> Self:
        """The same galleries with some of the queries, in the order given.

        Args:
            rows: indices of queries.
            part: how they were chosen; enters the identity.
        """
        index = rows.tolist() if isinstance(rows, Tensor) else list(rows)
        name = f"{self.part}; {part}" if self.part else part
        return dataclasses.replace(self, queries=[self.queries[i] for i in index], part=name)

    def split_dev(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Carve a development part out of this split, for choices that must not look at the reported split.

        Within each group, whole targets are moved to the development part in a seeded order until it holds `fraction`
        of the group's queries; all queries of one target go together, so no target image is in both parts. Both parts
        keep the groups as they are: the development queries are ranked against the full corpus.

        Args:
            fraction: share of the queries, between 0 and 1.
            seed: of the order.

        Returns:
            (training part, development part).

        Raises:
            OptionError: a fraction outside (0, 1).
            DataError: a split without targets, or one too small to give both parts a query.
        """
        check_option("fraction", fraction, 0 < fraction < 1, "between 0 and 1")
        if not self.queries or int(self.target_columns.min()) < 0:
            raise DataError(f"{self.card.name} {self.split}: a development part needs a target for every query")
        generator = torch.Generator().manual_seed(seed)
        in_dev: dict[int, bool] = {}  # target column -> part; a target of two groups keeps its first part
        for group in range(len(self.groups)):
            targets, counts = torch.unique(self.target_columns[self.group_index == group], return_counts=True)
            order = torch.randperm(len(targets), generator=generator).tolist()
            quota = round(fraction * int(counts.sum()))
            taken = sum(n for t, n in zip(targets.tolist(), counts.tolist(), strict=True) if in_dev.get(t))
            for position in order:
                target = int(targets[position])
                if target not in in_dev:
                    in_dev[target] = taken < quota
                    taken += int(counts[position]) if in_dev[target] else 0
        dev = torch.tensor([in_dev[target] for target in self.target_columns.tolist()])
        if dev.all() or not dev.any():
            raise DataError(
                f"{self.card.name} {self.split}: {len(self.queries)} queries are too few for a dev part of {fraction}"
            )
        rule = f"{fraction} by target, seed {seed}"
        return (
            self.with_queries((~dev).nonzero()[:, 0], f"train without dev {rule}"),
            self.with_queries(dev.nonzero()[:, 0], f"dev {rule}"),
        )

    # --- ranks ---------------------------------------------------------------------------------------------------

    def rank(self, score_block: ScoreBlock, block: int = 1024) -> QueryRanks:
        """Rank every query within its own gallery, `block` queries at a time; the full table is never held.

        Args:
            score_block: (rows [b] int64 into `queries`, columns [n] int64 into `images`, both on the CPU) -> [b, n]
                float scores on any device, any sign, higher is better.
            block: queries per call.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is NaN.
        """
        count = len(self.queries)
        target_rank, size = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
        names, groups, has_subset, aspects = self._told
        subset_rank = torch.zeros(count, dtype=torch.int64) if has_subset else None
        known = self.relevant
        order: list[Tensor] = []
        found: list[Ragged] = []
        for rows, columns, local, scores in self._blocks(score_block, block):
            target, allowed = local[self.target_columns[rows]], self._allowed(rows, local, len(columns))
            target_rank[rows] = target_ranks(scores, target, allowed).cpu()
            size[rows] = len(columns) if allowed is None else allowed.sum(1)
            if subset_rank is not None:
                subset_rank[rows] = target_ranks(scores, target, self._subset(rows, local, len(columns))).cpu()
            if known is not None:
                mine = known.select(rows)
                found.append(relevant_ranks(scores, Ragged(local[mine.values], mine.offsets), allowed))
            order.append(rows)
        return QueryRanks(
            query=names,
            group=groups,
            target_rank=target_rank,
            gallery_size=size,
            relevant_ranks=_only_targets(target_rank) if known is None else _in_order(order, found),
            subset_rank=subset_rank,
            aspects=aspects,
        )

    @cached_property
    def _told(self) -> tuple[tuple[str, ...], tuple[str, ...], bool, tuple[tuple[str, ...], ...] | None]:
        """Ids and groups of the queries, whether any has a subset, and their aspects where any has some."""
        names, groups = (tuple(getattr(query, name) for query in self.queries) for name in ("id", "group"))
        aspects = tuple(query.aspects for query in self.queries)
        return names, groups, any(query.subset for query in self.queries), aspects if any(aspects) else None

    def top(self, score_block: ScoreBlock, k: int, *, within_subset: bool = False, block: int = 256) -> Top:
        """The k best images of every query by the protocol's rules, `block` queries at a time.

        Ties go to the lower column, so that a list is the same on every machine; for ranks, where ties count against
        the model, see `rank`.

        Args:
            score_block: as for `rank`.
            k: how many, >= 1.
            within_subset: look only among the query's subset (CIRR's image group) instead of its gallery.
            block: queries per call.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is NaN.
        """
        check_option("k", k, k >= 1, ">= 1")
        found = torch.full((len(self.queries), min(k, len(self.images))), -1, dtype=torch.int64)
        values = torch.full(found.shape, -torch.inf)
        masked = self._subset if within_subset else self._allowed
        for rows, columns, local, scores in self._blocks(score_block, block):
            if len(columns):
                best = top_columns(scores, k, masked(rows, local, len(columns))).cpu()
                width, there = best.shape[1], best >= 0
                found[rows, :width] = torch.where(there, columns[best.clamp(min=0)], -1)
                own = scores.float().cpu().gather(1, best.clamp(min=0))
                values[rows, :width] = torch.where(there, own, -torch.inf)
        return Top(found, values)

    def top_ids(self, score_block: ScoreBlock, k: int, *, within_subset: bool = False) -> dict[str, list[str]]:
        """Query id -> ids of its k best images, best first; arguments and errors as `top`."""
        best = self.top(score_block, k, within_subset=within_subset).columns.tolist()
        return {q.id: [self.images[c] for c in row if c >= 0] for q, row in zip(self.queries, best, strict=True)}

    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """File name -> JSON content of what the benchmark's test server takes. Raises as `check_submission`."""
        self.check_submission()
        raise NotImplementedError(f"{type(self).__name__} says that it has a test server, but not what it takes")

    def check_submission(self) -> None:
        """Raise DataError where there is no test server, or not all that it wants is loaded."""
        if not self.test_server:
            raise DataError(f"{self.card.name} has no test server: there is no submission to write")
        if lacking := self._lacking():
            raise DataError(
                f"{self.card.name} {self.split}: a submission needs every query and image, but {' and '.join(lacking)}"
            )

    def _lacking(self) -> list[str]:
        """What is not loaded, in words."""
        missing = [f"{len(self.missing)} images are missing"] if self.missing else []
        return [*missing, *([f"only {self.part} is loaded"] if self.part else [])]

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
        """The benchmark's metrics of a full score table.

        Args:
            scores: [Q, N] float in the order of `queries` and `images`, any sign, higher is better. Columns outside a
                query's gallery are not looked at.

        Returns:
            Metric name -> value in [0, 1].

        Raises:
            NegbenchError: a table of another shape, or one with NaN.
            DataError: the labels of this split are closed.
        """
        scores = self.checked_table(scores)
        self.require_labels()
        device = scores.device
        return self.summarise(self.rank(lambda rows, columns: scores[rows.to(device)][:, columns.to(device)]))

    @classmethod
    def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
        """The benchmark's metrics, in [0, 1], from ranks alone: of all queries or of any subset of them."""
        return {name: metric.mean(ranks) for name, metric in cls.metrics(ranks).items()}

    def measure(self, score_block: ScoreBlock) -> dict[str, float]:
        """The benchmark's metrics of a model, from its scores (as for `rank`)."""
        return self.summarise(self.rank(score_block))

    def checked_table(self, scores: Tensor) -> Tensor:
        """A full score table as a tensor; NegbenchError where it is none of this data set's queries and images."""
        scores = torch.as_tensor(scores)
        want = (len(self.queries), len(self.images))
        if scores.shape != want or not scores.is_floating_point():
            raise NegbenchError(
                f"scores must be a float table of {want[0]} queries x {want[1]} images, "
                f"got {tuple(scores.shape)} {scores.dtype}"
            )
        return scores

    @classmethod
    def per_query(cls, ranks: QueryRanks, names: Iterable[str]) -> dict[str, PerQuery]:
        """Per-query values of those of `names` that are declared as means over queries (`metrics`)."""
        declared = cls.metrics(ranks)
        return {name: declared[name].of(ranks) for name in names if name in declared}

    def _blocks(self, score_block: ScoreBlock, block: int) -> Iterator[_Block]:
        """Scores of every query against its own gallery, group by group, at most `block` queries at a time."""
        check_option("block", block, block >= 1, ">= 1")
        for group, columns in enumerate(self.groups.values()):
            local = torch.full((len(self.images) + 1,), -1, dtype=torch.int64)
            local[columns] = torch.arange(len(columns))
            for rows in torch.split((self.group_index == group).nonzero()[:, 0], block):
                if len(rows):
                    yield _Block(rows, columns, local, self._scores(score_block, rows, columns))

    def _scores(self, score_block: ScoreBlock, rows: Tensor, columns: Tensor) -> Tensor:
        scores = score_block(rows, columns)
        if scores.shape != (len(rows), len(columns)):
            raise NegbenchError(
                f"the scorer returned {tuple(scores.shape)} for {len(rows)} queries x {len(columns)} images"
            )
        if scores.sum().isnan() and (nan := scores.isnan()).any():  # a sum is sooner told
            row, column = nan.nonzero()[0].tolist()
            raise NegbenchError(
                f"the score of query {self.queries[int(rows[row])].id} and image '{self.images[int(columns[column])]}' "
                f"is NaN ({int(nan.sum())} in this block): a diverged model cannot be ranked"
            )
        return scores

    def _allowed(self, rows: Tensor, local: Tensor, width: int) -> Tensor | None:
        """[b, width] bool without the references, or None where the protocol keeps them."""
        if not self.card.exclude_reference:
            return None
        allowed = torch.ones(len(rows), width, dtype=torch.bool)
        column = local[self.reference_columns[rows]]
        row = (column >= 0).nonzero()[:, 0]
        allowed[row, column[row]] = False
        return allowed

    def _subset(self, rows: Tensor, local: Tensor, width: int) -> Tensor:
        """[b, width] bool: the members of each query's subset, without its reference."""
        members = [
            [self.column_of[m] for m in query.subset if m != query.reference and m in self.column_of]
            for query in (self.queries[index] for index in rows.tolist())
        ]
        return Ragged.of(members).mask(local, width)


def _without(gone: AbstractSet[str], ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(image for image in ids if image not in gone)


def columns_of(galleries: Mapping[str, Iterable[str]]) -> tuple[list[str], dict[str, Tensor]]:
    """Galleries by id -> (`images`, `groups`): images in order of first appearance, groups as columns."""
    images = list(dict.fromkeys(image for ids in galleries.values() for image in ids))
    column = {image: index for index, image in enumerate(images)}
    groups = {name: torch.tensor([column[i] for i in ids], dtype=torch.int64) for name, ids in galleries.items()}
    return images, groups


def _only_targets(target_rank: Tensor) -> Ragged:
    has = target_rank > 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), has.long().cumsum(0)])
    return Ragged(target_rank[has], offsets)


def _in_order(order: list[Tensor], found: list[Ragged]) -> Ragged:
    """Rows found block by block, back in the order of the queries."""
    if not found:
        return Ragged.of([])
    lengths = torch.cat([part.lengths for part in found])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Ragged(torch.cat([part.values for part in found]), offsets).select(torch.argsort(torch.cat(order)))


def _first_repeat(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
