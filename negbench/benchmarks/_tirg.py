"""Data in TIRG's form: images have classes; a query asks for one class, starting from an image of a neighbour class."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from torch import Tensor

from negbench.contracts import Query
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of
from negbench.errors import DataError
from negbench.files.image_files import ImageFiles
from negbench.files.reader import check_choice
from negbench.machine.grouping import group_pairs
from negbench.metrics.metric import Metric, hits
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ranks import sorted_rows

GROUP = "all"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class ClassDataset(Dataset):
    """A data set in which every image of the target's class answers the query, and the reference is not ranked.

    Both are the rules of TIRG's evaluation (Vo et al., CVPR 2019; google/tirg, test_retrieval.py).

    Args:
        pairs: source of a training split's queries; None for other splits.
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
        """Build a data set from images with classes, in one gallery.

        Args:
            card: of the benchmark.
            split: name of the split.
            labels: images and classes, as read.
            language: definition of training pairs, and their texts.
            tests: maps the labels of the existing images to the queries of the test split.
            files: image files; None if images are not needed.
            allow_missing: leave out images that are missing.

        Raises:
            DataError: images are missing, there is no query, or no two classes are one word apart.
        """
        missing = () if files is None else files.require(labels.images, allow_missing=allow_missing)
        present = labels.without(missing)
        images, groups = columns_of({GROUP: present.images})
        pairs = None
        part = ""
        if split == "train" and present.images:
            pairs = TrainingPairs(present, language)
            queries = pairs.draw(pairs.count)
            part = f"{pairs.count} pairs drawn for every epoch"
        else:
            queries = tests(present)
        data = cls(
            card, split, queries, images, groups, labels.content, files, missing, labels.remarks, part, pairs=pairs
        )
        return data.loaded(None, labels.folder)

    @property
    def redraws(self) -> bool:
        """Whether epochs draw new queries: True for a training split."""
        return self.pairs is not None

    def at_epoch(self, epoch: int, seed: int) -> Self:
        """As `Dataset.at_epoch`: new training pairs, as many as the split has."""
        if self.pairs is None:
            return self
        return dataclasses.replace(self, queries=self.pairs.draw(len(self.queries), epoch, seed))

    def with_queries(self, rows: Sequence[int] | Tensor, part: str) -> Self:
        """As `Dataset.with_queries`; targets of the queries left out are never drawn later."""
        subset = super().with_queries(rows, part)
        if self.pairs is None:
            return subset
        targets = {str(query.target) for query in self.queries}
        targets_left_out = targets - {str(query.target) for query in subset.queries}
        pairs = dataclasses.replace(self.pairs, never_targets=self.pairs.never_targets | targets_left_out)
        return dataclasses.replace(subset, pairs=pairs)

    def rank(self, score_block: ScoreBlock, block: int | None = None) -> QueryRanks:
        """As `Dataset.rank`, with the best rank of any relevant image as `target_rank`."""
        ranks = super().rank(score_block, block)
        first = sorted_rows(ranks.relevant_ranks).values[ranks.relevant_ranks.offsets[:-1]]
        return dataclasses.replace(ranks, target_rank=first)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Share of the queries with a relevant image among the first k, for every cut-off, and `average` over them."""
        return recalls(cls.cutoffs)


def recalls(cutoffs: Iterable[int]) -> dict[str, Metric]:
    """Return recall at every cut-off, and their mean."""
    hits_at = {f"recall_at_{k}": hits(k) for k in cutoffs}
    metrics = {name: Metric((values,)) for name, values in hits_at.items()}
    metrics["average"] = Metric(tuple(hits_at.values()))
    return metrics


def resolve_split(split: str) -> str:
    """Return the split to read: `val`, which a run reports, means test; no other is published. Raises OptionError."""
    check_choice("split", split, SPLITS)
    return "test" if split == "val" else split


# --- classes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """Images of one split with their classes, as read.

    Args:
        images: ids.
        captions: class of each image.
        kinds: kind of each image; training pairs stay within a kind; empty if there is only one.
        folder: that was read, for errors.
        content: hash of what was read.
        remarks: oddities found, one line each.
    """

    images: list[str]
    captions: list[str]
    kinds: list[str] = dataclasses.field(default_factory=list)
    folder: Path = Path()
    content: str = ""
    remarks: tuple[str, ...] = ()
    _relevant: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def without(self, missing: Iterable[str]) -> Labels:
        """Return the labels without the missing images."""
        gone = set(missing)
        present = [index for index, image in enumerate(self.images) if image not in gone]
        return Labels(
            [self.images[index] for index in present],
            [self.captions[index] for index in present],
            [self.kinds[index] for index in present] if self.kinds else [],
        )

    @cached_property
    def of_class(self) -> dict[str, list[str]]:
        """Class -> its images, in order."""
        return group_pairs(zip(self.captions, self.images, strict=True))

    def query(self, name: str, images: tuple[str, str], captions: tuple[str, str], language: Language) -> Query:
        """Make a query whose relevant images are all of the target's class, target first (one tuple per target)."""
        reference, target = images
        _, target_class = captions
        if target not in self._relevant:
            others = [image for image in self.of_class[target_class] if image != target]
            self._relevant[target] = (target, *others)
        text = language.modification(*captions)
        return Query(name, reference, text, target, GROUP, self._relevant[target], captions)


@dataclass(frozen=True)
class Language:
    """A benchmark's wording of classes.

    Args:
        families: class -> (family, word taken out), one or more: see `TrainingPairs`.
        modification: (source's class, target's class) -> text of the query.
        description: class -> privileged text.
    """

    families: Callable[[str], Iterable[tuple[str, str]]]
    modification: Callable[[str, str], str]
    description: Callable[[str], str]


# --- training pairs ----------------------------------------------------------------------------------------------

Class = tuple[str, str]  # kind and caption


@dataclass(frozen=True)
class TrainingPairs:
    """All (source, target) pairs of images whose classes are one edit apart, drawn without listing them.

    A family is a set of classes of one kind that become equal when one word is taken out: captions that share the rest
    of their words, or states of one noun. Two of its classes are neighbours if the word taken out differs. Memory grows
    with the number of memberships (words in all captions), not with the number of pairs.

    Args:
        labels: of the training images.
        language: what a pair is, and its texts.
        never_targets: images that are never targets: those of queries set aside.
    """

    labels: Labels
    language: Language
    never_targets: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """Pairs of one epoch: as many as there are images."""
        return len(self.labels.images)

    @cached_property
    def classes(self) -> list[Class]:
        """Class of each image."""
        kinds = self.labels.kinds or ["" for _ in range(self.count)]
        return list(zip(kinds, self.labels.captions, strict=True))

    @cached_property
    def targets(self) -> dict[Class, list[int]]:
        """Class -> indices of its images that may be targets."""
        images = enumerate(self.labels.images)
        return group_pairs((self.classes[index], index) for index, image in images if image not in self.never_targets)

    @cached_property
    def members(self) -> dict[Class, list[tuple[Class, str]]]:
        """Family -> its classes that have a target, each with the word taken out of it."""
        members: dict[Class, list[tuple[Class, str]]] = {}
        for source in self.targets:
            for family, word in self._families_of(source):
                members.setdefault(family, []).append((source, word))
        return members

    @cached_property
    def families(self) -> dict[Class, list[tuple[Class, str]]]:
        """Class -> families in which it has a neighbour, each with its word. Raises DataError if there is no pair."""
        families: dict[Class, list[tuple[Class, str]]] = {}
        for source in dict.fromkeys(self.classes):
            families[source] = []
            for family, word in self._families_of(source):
                if any(word_of_member != word for _, word_of_member in self.members.get(family, ())):
                    families[source].append((family, word))
        if not any(families.values()):
            raise DataError("no two classes of images are one word apart: there is no training pair")
        return families

    def _families_of(self, source: Class) -> dict[tuple[Class, str], None]:
        kind, caption = source
        return dict.fromkeys(((kind, family), word) for family, word in self.language.families(caption))

    def draw(self, count: int, *epoch_and_seed: int) -> list[Query]:
        """Draw `count` training queries with privileged texts: a function of the epoch and the run's seed, or neither.

        Draws are with replacement, in the order of TIRG's sampler: a random image that has a neighbour; a random family
        of its class and a random class of that family, both redrawn until the word differs; a random image of that
        class.

        Raises:
            DataError: no two classes are one word apart.
        """
        chance = random.Random("/".join(map(str, (0, *epoch_and_seed))))  # a string seed: the same on every machine
        prefix = f"train-{epoch_and_seed[0]}" if epoch_and_seed else "train"
        images = self.labels.images
        captions = self.labels.captions
        language = self.language
        sources = [index for index, source in enumerate(self.classes) if self.families[source]]
        queries = []
        for number, source in enumerate(chance.choices(sources, k=count)):
            target = self._draw_target(source, chance)
            name = f"{prefix}-{number:07d}"
            classes = (captions[source], captions[target])
            query = self.labels.query(name, (images[source], images[target]), classes, language)
            queries.append(
                dataclasses.replace(
                    query,
                    reference_text=language.description(captions[source]),
                    target_text=language.description(captions[target]),
                )
            )
        return queries

    def _draw_target(self, source: int, chance: random.Random) -> int:
        while True:
            family, word = chance.choice(self.families[self.classes[source]])
            neighbour, other_word = chance.choice(self.members[family])
            if other_word != word:
                return chance.choice(self.targets[neighbour])
