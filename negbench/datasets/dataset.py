"""Base class for data sets: what an author writes and can use; columns, ranks and scores are in `galleries`.

A data set is one file: `PAPER`, a `DatasetCard`, and one public subclass of `Dataset` with `load` and `metrics`.
`load` reads annotation files with `Reader` into `Query` objects and groups (`columns_of`), and hands both to `loaded`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from negbench.contracts.card import Counts, DatasetCard
from negbench.datasets.galleries import Block, Galleries, ScoreBlock, Top
from negbench.errors import DataError
from negbench.files.image_files import ImageFiles, NothingLeftError
from negbench.files.picture_kinds import picture_remarks
from negbench.metrics.metric import Metric
from negbench.metrics.part_name import part_name
from negbench.metrics.query_ranks import QueryRanks

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Block", "Dataset", "QueryRanks", "ScoreBlock", "Top", "columns_of"]


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Options of every data set; subclass it for more, and check combinations in `__post_init__`.

    Args:
        root: folder of the benchmark, or the one above it; None takes the environment variable NEGBENCH_DATA.
        allow_missing: leave out what needs a missing image and mark the result partial, instead of DataError.
    """

    root: Path | None = None
    allow_missing: bool = False


@dataclass(frozen=True, eq=False)
class Dataset(Galleries, ABC):
    """One split of one benchmark under one protocol.

    Args:
        card, split: what the benchmark is and how it is scored; name of the split.
        queries: Q queries.
        images: N ids, the columns of every score table: the union of the groups.
        groups: name -> [n] int64 columns: the gallery (or, on train, the mining corpus) of the group's queries.
        content: hash of the annotation files as loaded.
        files: image files; None when loaded without images.
        missing, remarks: ids left out (`allow_missing`); what differs from the published counts, one line each.
        part: how this part was carved out of a larger one; empty for a whole split.
        share: how many of its queries are left where images are missing, in (0, 1].
        spelled: image -> how the user's files name it, where that is not its id.

    Raises:
        DataError: a repeated image or query, an unknown group, a target outside its query's group.
    """

    extensions: ClassVar[tuple[str, ...]] = ()  # that the option `file` reads: such a path can replace the name
    exchangeable: ClassVar[bool] = False  # True: a query's target is a random one of its relevant images
    generates_dev: ClassVar[bool] = False  # True: `load` makes a split "dev": val once more, of `DEV_QUERIES` or more
    set_apart: ClassVar[str] = "target"  # what is never in both parts of `split_dev`
    has_images: ClassVar[bool] = True  # False: ids without image files; `load` refuses `images=True`

    content: str
    files: ImageFiles | None = None
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    part: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0

    @classmethod
    @abstractmethod
    def load(cls, options: Any, split: str = "val", images: bool = True) -> Self:
        """Read one split from disk.

        Args:
            options: what a user sets, of the type that a subclass gives this parameter: `FolderOptions` or its own.
            split, images: what a run sets: the split's name; False needs annotations only.

        Raises DataError for files that are missing or not in the format, with file, place and key; OptionError for an
        unknown split.
        """

    @classmethod
    @abstractmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Return name -> metric, in table order, for the metrics that these ranks (of all or some queries) support."""

    @classmethod
    def made_card(cls, options: Any) -> DatasetCard | None:
        """Return the card of splits that these options and the code alone determine; None if `load` reads files."""
        return None

    def loaded(
        self, files: ImageFiles | None, place: Path, *, allow_missing: bool = False, as_shown: bool | None = None
    ) -> Self:
        """Return this split as `load` should: compared with the published counts, its images found and looked at.

        A query is dropped if its reference or target is missing; other missing images are dropped from what names them.

        Args:
            files: image files; None leaves them unchecked.
            place: folder or file that was read, for errors.
            allow_missing: as in `FolderOptions`.
            as_shown: whether `files` apply EXIF orientation and transparency; None for a data set without that option.

        Raises:
            DataError: images are missing, or no query is left.
        """
        remarks = [*self.card.remarks(self.split, self.counts), *self.remarks]
        remarks += [*self.sharing(), *self.relevant_references(), *self.judging()]
        missing: tuple[str, ...] = ()
        if files is not None:
            missing = files.require(self.all_images, allow_missing=allow_missing, naming=self.naming)
            remarks += picture_remarks(files.found(self.all_images), as_shown=as_shown)
        return dataclasses.replace(self, files=files or self.files, remarks=tuple(remarks)).without(missing, place)

    def without(self, missing: Sequence[str], place: Path | str) -> Self:
        """Return this split without some images and the queries that need them; DataError if no query is left."""
        queries = self.queries
        images = self.images
        groups = self.groups
        gone = {*missing}
        if gone:
            images, groups = columns_of({name: _without(gone, ids) for name, ids in self.images_by_group().items()})
            queries = []
            for query in self.queries:
                if query.reference not in gone and query.target not in gone:
                    relevant = _without(gone, query.relevant)
                    subset = _without(gone, query.subset)
                    queries.append(dataclasses.replace(query, relevant=relevant, subset=subset))
        absent = (*self.missing, *missing)
        if not queries:
            what = f"{self.card.name} {self.split}: no query in {place} is left ({len(absent)} images missing)"
            raise NothingLeftError(what, self.files)
        share = self.share * len(queries) / len(self.queries)
        return dataclasses.replace(self, queries=queries, images=images, groups=groups, missing=absent, share=share)

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """`name@protocol-HASH8`; two data sets of one identity give the same scores for the same ranks."""
        return self.card.identity(self.content, self.split, self.part, *sorted(self.missing))

    @property
    def held_as(self) -> str:
        """Identity for a cache in memory, which also holds what is judged."""
        return f"{self.identity} {self.wrong_digest}"

    @property
    def kind(self) -> str:
        """Identity shared by all generated worlds of a protocol; for data that are not generated, `identity`."""
        return self.card.identity("", self.split, self.part) if self.card.world else self.identity

    @property
    def full_name(self) -> str:
        """`identity`, and how much of the split is left where images are missing, as people read it."""
        return part_name(self.identity, [self])

    @property
    def partial(self) -> bool:
        """Whether images are missing, so that results are not those of the published benchmark."""
        return bool(self.missing)

    @property
    def counts(self) -> dict[str, Counts]:
        """Group -> number of queries and of images."""
        queries = Counter(query.group for query in self.queries)
        return {name: Counts(queries[name], len(columns)) for name, columns in self.groups.items()}

    def open_image(self, image: str) -> "Image":
        """Open an image by id, in the mode of its file.

        Raises:
            DataError: loaded without images, no such file, or one that cannot be decoded.
        """
        if self.files is None:
            raise DataError(f"{self.card.name} was loaded without images: load it with images=True to open '{image}'")
        return self.files.open(image)

    def image_paths(self) -> dict[str, Path]:
        """Return the file of every image in `all_images`; nothing if loaded without images."""
        return {} if self.files is None else {image: self.files.path(image) for image in self.all_images}

    # --- epochs and parts ----------------------------------------------------------------------------------------

    @property
    def redraws(self) -> bool:
        """Whether `at_epoch` draws other queries, not only other texts for the same ones."""
        return False

    def at_epoch(self, epoch: int, seed: int) -> Self:
        """Return this split for one training epoch, a function of (epoch, seed) alone; by default always the same.

        A data set that draws queries returns as many, on the same `images` in the same order.
        """
        return self

    def with_queries(self, rows: Sequence[int] | Tensor, part: str) -> Self:
        """Return the same galleries with some of the queries, in the order given.

        Args:
            rows: indices of queries.
            part: how they were chosen; enters the identity.
        """
        index = rows.tolist() if isinstance(rows, Tensor) else list(rows)
        name = f"{self.part}; {part}" if self.part else part
        return dataclasses.replace(self, queries=[self.queries[i] for i in index], part=name)

    def split_dev(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Return the training part and a development part, for choices that must not look at the reported split.

        All queries of one target, or of what `set_apart` names, go together (`dev_rows`). Both parts keep the groups as
        they are: the development queries are ranked against the full corpus.

        Args:
            fraction, seed: share of the queries, between 0 and 1; seed of the order.

        Raises:
            OptionError: a fraction outside (0, 1).
            DataError: a split without targets, or one too small to give both parts a query.
        """
        dev = self.dev_rows(fraction, seed)
        rule = f"{fraction} by {self.set_apart}, seed {seed}"
        train_part = self.with_queries((~dev).nonzero()[:, 0], f"train without dev {rule}")
        return train_part, self.with_queries(dev.nonzero()[:, 0], f"dev {rule}")


def _without(gone: Set[str], ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(image for image in ids if image not in gone)


def columns_of(galleries: Mapping[str, Iterable[str]]) -> tuple[list[str], dict[str, Tensor]]:
    """Convert galleries of ids to (`images`, `groups`): images in order of first appearance, groups as columns."""
    column: dict[str, int] = {}
    groups = {}
    for name, ids in galleries.items():
        groups[name] = torch.tensor([column.setdefault(image, len(column)) for image in ids], dtype=torch.int64)
    return list(column), groups
