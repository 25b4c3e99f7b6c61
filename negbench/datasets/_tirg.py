"""Data in TIRG's form: images in classes, a query asks for one class from an image of a neighbouring one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ranks import sorted_rows
from negbench.metrics.recall import recall_at_k
from negbench.ragged import Ragged

Wording = Literal["hycole", "tirg"]

GROUP = "all"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class ClassDataset(Dataset):
    """A data set in which every image of the target's class answers the query, and the reference is not ranked.

    Both are the rules of TIRG's evaluation (Vo et al., CVPR 2019; google/tirg, test_retrieval.py).
    """

    cutoffs: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def of(cls, source: Source, queries: list[Query], part: str = "") -> Self:
        """The data set of these queries: all images of the source are the one gallery.

        Raises:
            DataError: there is no query.
        """
        if not queries:
            raise DataError(
                f"{source.card.name} {source.split}: no query is left below {source.folder} "
                f"({len(source.missing)} images missing)"
            )
        names, groups = columns_of({GROUP: source.labels.images})
        return cls(
            card=source.card,
            split=source.split,
            queries=queries,
            images=names,
            groups=groups,
            content=source.content,
            files=source.files,
            missing=source.missing,
            remarks=source.remarks,
            part=part,
        )

    def rank(self, score_block: ScoreBlock, block: int = 1024) -> QueryRanks:
        """As `Dataset.rank`, with the best rank of any relevant image as `target_rank`."""
        ranks = super().rank(score_block, block)
        first = sorted_rows(ranks.relevant_ranks).values[ranks.relevant_ranks.offsets[:-1]]
        return dataclasses.replace(ranks, target_rank=first)

    @classmethod
    def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
        """Share of the queries with a relevant image among the first k, for every cut-off, and `average` over them."""
        values = {f"recall_at_{k}": recall_at_k(ranks.target_rank, k) for k in cls.cutoffs}
        values["average"] = sum(values.values()) / len(values)
        return values


def metrics_of(cutoffs: Iterable[int]) -> tuple[str, ...]:
    """Names that `ClassDataset.summarise` gives."""
    return (*(f"recall_at_{k}" for k in cutoffs), "average")


def resolve_split(split: str) -> str:
    """`val`, which a run asks for as the reported split, is the test split: these benchmarks publish no other."""
    check_option("split", split, split in SPLITS, f"one of {', '.join(SPLITS)}")
    return "test" if split == "val" else split


# --- classes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """Images and the class (caption) of each."""

    images: list[str]
    captions: list[str]

    def without(self, missing: Iterable[str]) -> Labels:
        """The images that are not missing."""
        gone = set(missing)
        kept = [(i, c) for i, c in zip(self.images, self.captions, strict=True) if i not in gone]
        return Labels([i for i, _ in kept], [c for _, c in kept])

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

    def relevant(self, target: str, caption: str) -> tuple[str, ...]:
        """Every image of the class, the target first; queries of one target share the tuple."""
        if target not in self._relevant:
            self._relevant[target] = (target, *(image for image in self.of_class[caption] if image != target))
        return self._relevant[target]


@dataclass(frozen=True)
class Source:
    """One split as it was read, without the images that are missing."""

    card: DatasetCard
    folder: Path
    split: str
    content: str
    labels: Labels
    files: ImageFiles | None
    missing: tuple[str, ...]
    remarks: tuple[str, ...] = ()


# --- training pairs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edits:
    """All (source, target) pairs of images whose classes are one edit apart, held without listing them.

    A family is a set of classes that become equal when one word is taken out: captions that share the rest of their
    words, or states of one noun. Two of its classes are neighbours where the word taken out differs. What is stored
    grows with the number of memberships (words in all captions), not with the number of pairs.

    Args:
        images_of: class -> indices of its images.
        families_of: class -> families in which it has a neighbour.
        word_in: aligned with `families_of.values`: the word that the class has in that family.
        members_of: family -> its classes.
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
    def between(cls, captions: Sequence[str], split: Callable[[str], Iterable[tuple[str, str]]]) -> Edits:
        """Index the classes of images.

        Args:
            captions: class of each image.
            split: class -> (family, word taken out), one or more.

        Raises:
            DataError: no class has a neighbour.
        """
        # numbers for classes and words, so that drawing is arithmetic on tensors
        classes = list(dict.fromkeys(captions))
        number = {caption: index for index, caption in enumerate(classes)}
        class_of = [number[caption] for caption in captions]
        words: dict[str, int] = {}
        families: dict[str, list[tuple[int, int]]] = {}
        for index, caption in enumerate(classes):
            for family, word in dict.fromkeys(split(caption)):
                families.setdefault(family, []).append((index, words.setdefault(word, len(words))))
        kept = [members for members in families.values() if len({word for _, word in members}) > 1]
        if not kept:
            raise DataError("no two classes of images are one word apart: there is no training pair")
        of_class: list[list[tuple[int, int]]] = [[] for _ in classes]
        for position, members in enumerate(kept):
            for index, number_of_word in members:
                of_class[index].append((position, number_of_word))
        images: list[list[int]] = [[] for _ in classes]
        for image, index in enumerate(class_of):
            images[index].append(image)
        return cls(
            images_of=Ragged.of(images),
            families_of=Ragged.of([family for family, _ in row] for row in of_class),
            word_in=torch.tensor([word for row in of_class for _, word in row], dtype=torch.int64),
            members_of=Ragged.of([index for index, _ in members] for members in kept),
            word_of=torch.tensor([word for members in kept for _, word in members], dtype=torch.int64),
            sources=torch.tensor([i for i, c in enumerate(class_of) if of_class[c]], dtype=torch.int64),
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
        while len(waiting):  # a family has at least two words, so that every round settles a share of what waits
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
class Draw:
    """How many training pairs are drawn (None: as many as there are images), and with which seed."""

    pairs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("pairs", self.pairs, self.pairs is None or self.pairs >= 1, ">= 1 or left out")
        check_option("seed", self.seed, self.seed >= 0, ">= 0")

    def part(self, queries: Sequence[Query]) -> str:
        """What tells one draw from another in a data set's identity."""
        return f"{len(queries)} pairs, seed {self.seed}"

    def queries(
        self, labels: Labels, split: Callable[[str], Iterable[tuple[str, str]]], text: Callable[[str, str], str]
    ) -> list[Query]:
        """Training queries with HyCoLe's privileged texts, "is " + caption + ".".

        Args:
            labels: of the training images.
            split: class -> (family, word taken out), see `Edits`.
            text: (source's class, target's class) -> modification text.

        Raises:
            DataError: no two classes are one word apart.
        """
        if not labels.images:
            return []
        count = len(labels.images) if self.pairs is None else self.pairs
        edits = Edits.between(labels.captions, split)
        sources, targets = edits.draw(count, torch.Generator().manual_seed(self.seed))
        queries = []
        for number, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
            before, after = labels.captions[source], labels.captions[target]
            queries.append(
                Query(
                    id=f"train-{number:07d}",
                    reference=labels.images[source],
                    text=text(before, after),
                    target=labels.images[target],
                    group=GROUP,
                    relevant=labels.relevant(labels.images[target], after),
                    captions=(before, after),
                    reference_text=f"is {before}.",
                    target_text=f"is {after}.",
                )
            )
        return queries
