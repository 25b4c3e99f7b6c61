"""Data in TIRG's form: images in classes, a query asks for one class from an image of a neighbouring one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor

from negbench.contracts import Query
from negbench.datasets._read import check_choice
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.metric import Metric, hits
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import sorted_rows

Wording = Literal["hycole", "tirg"]
T = TypeVar("T", bound=Hashable)

GROUP = "all"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class ClassDataset(Dataset):
    """A data set in which every image of the target's class answers the query, and the reference is not ranked.

    Both are the rules of TIRG's evaluation (Vo et al., CVPR 2019; google/tirg, test_retrieval.py).

    Args:
        pairs: of a training split: draws its queries.
    """

    cutoffs: ClassVar[tuple[int, ...]] = ()
    pairs: TrainingPairs | None = None

    @classmethod
    def of_labels(
        cls,
        card: DatasetCard,
        split: str,
        labels: Labels,
        language: Language,
        tests: Callable[[Labels], list[Query]],
        files: ImageFiles | None,
        *,
        allow_missing: bool,
    ) -> Self:
        """The data set of images in classes, which are one gallery.

        Args:
            card: of the benchmark.
            split: name of the split.
            labels: what was read.
            language: what a training pair is, and its texts.
            tests: labels of the images that are there -> queries of the test split.
            files: where the images lie; None where they are not asked for.
            allow_missing: leave out images that are missing.

        Raises:
            DataError: images are missing, there is no query, or no two classes are one word apart.
        """
        missing = () if files is None else files.require(labels.images, allow_missing=allow_missing)
        kept = labels.without(missing)
        pairs = TrainingPairs(kept, language) if split == "train" and kept.images else None
        queries = tests(kept) if pairs is None else pairs.draw(pairs.count)
        data = cls(
            card,
            split,
            queries,
            *columns_of({GROUP: kept.images}),
            labels.content,
            files,
            missing,
            labels.remarks,
            part=f"{pairs.count} pairs drawn for every epoch" if pairs else "",
            pairs=pairs,
        )
        return data.loaded(None, labels.place)

    @property
    def redraws(self) -> bool:
        """True of a training split."""
        return self.pairs is not None

    def at_epoch(self, epoch: int, seed: int) -> Self:
        """As `Dataset.at_epoch`: new training pairs, as many as the split has."""
        if self.pairs is None:
            return self
        return dataclasses.replace(self, queries=self.pairs.draw(len(self.queries), epoch, seed))

    def with_queries(self, rows: Sequence[int] | Tensor, part: str) -> Self:
        """As `Dataset.with_queries`. A target of the queries left out is that of no pair drawn later."""
        found = super().with_queries(rows, part)
        if self.pairs is None:
            return found
        apart = {str(query.target) for query in self.queries} - {str(query.target) for query in found.queries}
        return dataclasses.replace(found, pairs=dataclasses.replace(self.pairs, apart=self.pairs.apart | apart))

    def rank(self, score_block: ScoreBlock, block: int = 1024) -> QueryRanks:
        """As `Dataset.rank`, with the best rank of any relevant image as `target_rank`."""
        ranks = super().rank(score_block, block)
        first = sorted_rows(ranks.relevant_ranks).values[ranks.relevant_ranks.offsets[:-1]]
        return dataclasses.replace(ranks, target_rank=first)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Share of the queries with a relevant image among the first k, for every cut-off, and `average` over them."""
        return recalls(cls.cutoffs)


def recalls(cutoffs: Iterable[int]) -> dict[str, Metric]:
    """Recall at every cut-off, and their mean."""
    each = {f"recall_at_{k}": hits(k) for k in cutoffs}
    return {name: Metric((values,)) for name, values in each.items()} | {"average": Metric(tuple(each.values()))}


def resolve_split(split: str, text: str) -> str:
    """The split to read: `val`, which a run reports, is test, as no other is published. Raises OptionError."""
    check_choice("split", split, SPLITS)
    check_choice("text", text, ("hycole", "tirg"))
    return "test" if split == "val" else split


# --- classes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """Images of one split with their classes, as read.

    Args:
        images: ids.
        captions: class of each.
        kinds: of each: training pairs are within a kind; empty for one kind.
        place: folder that was read, for errors.
        content: hash of what was read.
        remarks: what is odd about it, one line each.
    """

    images: list[str]
    captions: list[str]
    kinds: list[str] = dataclasses.field(default_factory=list)
    place: Path = Path()
    content: str = ""
    remarks: tuple[str, ...] = ()

    def without(self, missing: Iterable[str]) -> Labels:
        """The images that are not missing."""
        gone = set(missing)
        kept = [index for index, image in enumerate(self.images) if image not in gone]
        columns = (self.images, self.captions, self.kinds)
        images, captions, kinds = ([column[index] for index in kept] if column else [] for column in columns)
        return Labels(images, captions, kinds)

    @cached_property
    def of_class(self) -> dict[str, list[str]]:
        """Class -> its images, in order."""
        found: dict[str, list[str]] = {}
        for image, caption in zip(self.images, self.captions, strict=True):
            found.setdefault(caption, []).append(image)
        return found

    @cached_property
    def _relevant(self) -> dict[str, tuple[str, ...]]:
        return {}

    def query(self, name: str, images: tuple[str, str], captions: tuple[str, str], language: Language) -> Query:
        """The query for (source, target) with these classes; queries of one target share the tuple of what is relevant:
        every image of its class, the target first.
        """
        reference, target = images
        if target not in self._relevant:
            others = (image for image in self.of_class[captions[1]] if image != target)
            self._relevant[target] = (target, *others)
        return Query(
            id=name,
            reference=reference,
            text=language.modification(*captions),
            target=target,
            group=GROUP,
            relevant=self._relevant[target],
            captions=captions,
        )


@dataclass(frozen=True)
class Language:
    """How a benchmark speaks of classes.

    Args:
        families: class -> (family, word taken out), one or more: see `Edits`.
        modification: (source's class, target's class) -> text of the query.
        description: class -> privileged text.
    """

    families: Callable[[str], Iterable[tuple[str, str]]]
    modification: Callable[[str, str], str]
    description: Callable[[str], str]


# --- training pairs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edits:
    """All (source, target) pairs of images whose classes are one edit apart, held without listing them.

    A family is a set of classes that become equal when one word is taken out: captions that share the rest of their
    words, or states of one noun. Two of its classes are neighbours where the word taken out differs. What is stored
    grows with the number of memberships (words in all captions), not with the number of pairs.

    Args:
        images_of: class -> indices of its images that may be targets.
        families_of: class -> families in which it has a neighbour.
        word_in: aligned with `families_of.values`: the word that the class has in that family.
        members_of: family -> its classes that have a target.
        word_of: aligned with `members_of.values`: the word that each has.
        sources: indices of the images that have a neighbour.
        class_of: [images] int64.
    """

    images_of: Ragged
    families_of: Ragged
    word_in: Tensor
    members_of: Ragged
    word_of: Tensor
    sources: Tensor
    class_of: Tensor

    @classmethod
    def between(
        cls,
        labels: Sequence[T],
        split: Callable[[T], Iterable[tuple[Hashable, str]]],
        targets: Callable[[int], bool] = lambda image: True,
    ) -> Edits:
        """Index the classes of images.

        Args:
            labels: class of each image.
            split: class -> (family, word taken out), one or more.
            targets: index of an image -> whether it may be a target.

        Raises:
            DataError: no class has a neighbour.
        """
        # numbers for classes and words, so that drawing is arithmetic on tensors
        number: dict[T, int] = {}
        class_of = [number.setdefault(label, len(number)) for label in labels]
        images: list[list[int]] = [[] for _ in number]
        for image, own in enumerate(class_of):
            if targets(image):
                images[own].append(image)
        words: dict[str, int] = {}
        families: dict[Hashable, list[tuple[int, int]]] = {}
        for label, index in number.items():
            for family, word in dict.fromkeys(split(label)):
                families.setdefault(family, []).append((index, words.setdefault(word, len(words))))
        neighbours: list[list[tuple[int, int]]] = [[] for _ in number]
        members: list[list[tuple[int, int]]] = []
        for family_members in families.values():
            offered = [member for member in family_members if images[member[0]]]
            new = {taken for _, taken in offered}
            asking = [(own, taken) for own, taken in family_members if len(new) > (taken in new)]
            for own, taken in asking:
                neighbours[own].append((len(members), taken))
            if asking:
                members.append(offered)
        if not members:
            raise DataError("no two classes of images are one word apart: there is no training pair")
        return cls(
            images_of=Ragged.of(images),
            families_of=Ragged.of([family for family, _ in row] for row in neighbours),
            word_in=torch.tensor([word for row in neighbours for _, word in row], dtype=torch.int64),
            members_of=Ragged.of([index for index, _ in row] for row in members),
            word_of=torch.tensor([word for row in members for _, word in row], dtype=torch.int64),
            sources=torch.tensor([i for i, c in enumerate(class_of) if neighbours[c]], dtype=torch.int64),
            class_of=torch.tensor(class_of, dtype=torch.int64),
        )

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Training pairs, with repeats as chance has it, in the order of TIRG's sampler.

        A random image that has a neighbour; a random family of its class and a random class of that family, both again
        until the word differs; a random image of that class.

        Args:
            count: number of pairs.
            generator: the only source of chance.

        Returns:
            (sources [count], targets [count]) int64 indices of images.
        """
        source = self.sources[torch.randint(len(self.sources), (count,), generator=generator)]
        chosen = torch.full((count,), -1, dtype=torch.int64)
        waiting = torch.arange(count)
        while len(waiting):  # a source's family offers another word, so that every round settles a share of what waits
            family = _pick(self.families_of, self.class_of[source[waiting]], generator)
            member = _pick(self.members_of, self.families_of.values[family], generator)
            differs = self.word_of[member] != self.word_in[family]
            chosen[waiting[differs]] = self.members_of.values[member[differs]]
            waiting = waiting[~differs]
        return source, self.images_of.values[_pick(self.images_of, chosen, generator)]


def _pick(rows: Ragged, index: Tensor, generator: torch.Generator) -> Tensor:
    """For each row named by `index`, the position in `rows.values` of one of its values, each as likely."""
    lengths = rows.lengths[index]
    slot = (torch.rand(len(index), generator=generator, dtype=torch.float64) * lengths).long()
    return rows.offsets[index] + torch.minimum(slot, lengths - 1)


@dataclass(frozen=True)
class TrainingPairs:
    """Training pairs of a split: drawn when it is loaded, and again for every epoch.

    Args:
        labels: of the training images.
        language: what a pair is, and its texts.
        apart: images that are no pair's target: those of queries that were set aside.
    """

    labels: Labels
    language: Language
    apart: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """Pairs of one epoch: as many as there are images."""
        return len(self.labels.images)

    @cached_property
    def edits(self) -> Edits:
        """All pairs that there are. Raises DataError where there is none."""
        labels = self.labels
        kinds = labels.kinds or [""] * len(labels.images)
        return Edits.between(
            list(zip(kinds, labels.captions, strict=True)),
            lambda label: [((label[0], family), word) for family, word in self.language.families(label[1])],
            lambda image: labels.images[image] not in self.apart,
        )

    def draw(self, count: int, *epoch_and_seed: int) -> list[Query]:
        """`count` training queries with privileged texts: a function of the epoch and the run's seed, or of neither.

        Raises:
            DataError: no two classes are one word apart.
        """
        key = "/".join(map(str, (0, *epoch_and_seed)))
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big"))
        sources, targets = self.edits.draw(count, generator)
        prefix = f"train-{epoch_and_seed[0]}" if epoch_and_seed else "train"
        captions, words = self.labels.captions, self.language
        queries = []
        for number, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
            images = self.labels.images[source], self.labels.images[target]
            before, after = captions[source], captions[target]
            query = self.labels.query(f"{prefix}-{number:07d}", images, (before, after), words)
            told = words.description(before), words.description(after)
            queries.append(dataclasses.replace(query, reference_text=told[0], target_text=told[1]))
        return queries
