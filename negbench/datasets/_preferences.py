"""Data sets of people's choices between two sets of five images: reading and judging, shared by all in this format.

The file is an object: participant -> question set -> six lists of one length, an entry a judgement:

    ref_img_paths, targ_img_paths    paths of the reference and of FashionIQ's target
    sentences                        the modification text
    retrieved_set1, retrieved_set2   {"img_path": five paths, "user_score": "1" ... "5"}
    preferred set                    "1" or "2"

A path is read for the name of its file: the published "/-/image_data/shirt/B000LUIBH8.jpg" is that file wherever it
lies below the data root, so that nothing in the file has to be edited.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.datasets._read import Reader, find_root, get, image_id, list_files, quoted, strings, typed
from negbench.datasets.card import Counts, DatasetCard
from negbench.datasets.dataset import Dataset, ScoreBlock, columns_of
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError
from negbench.metrics.metric import Metric
from negbench.metrics.preference import agreement, clustered_interval, preference_rate, set_scores, spearman
from negbench.metrics.query_ranks import QueryRanks

if TYPE_CHECKING:
    import pandas as pd

SPLIT = "val"  # the queries are FashionIQ's
GROUP = "all"
SET_SIZE = 5
LIKERT = range(1, 6)
FLAGGED = 307  # by participants, "modality redundancy check" (QuRe sec. 4); the file does not hold the flags
MEASURES = (
    "preference_rate",
    "preference_rate_with_ties",
    "preference_rate_equal_recall",
    "chance",
    "first_higher",
    "ties",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "spearman",
    "spearman_p",
)

_LISTS = ("ref_img_paths", "targ_img_paths", "sentences", "retrieved_set1", "retrieved_set2", "preferred set")
_MARKS = {"dotmark": ".", "questionmark": "?", "andmark": "&"}
_BLOCK = 256  # queries scored at once


@dataclass(frozen=True)
class Judgement:
    """What one participant said of one query's two sets.

    Args:
        participant: name in the file.
        sets: five distinct images each; their order says nothing.
        ratings: Likert scores of the sets, 1 (no match) to 5 (a very good one).
        first: whether set 1 was preferred.
    """

    participant: str
    sets: tuple[tuple[str, ...], tuple[str, ...]]
    ratings: tuple[int, int]
    first: bool

    @property
    def consistent(self) -> bool:
        """Whether the preferred set is not the lower rated one: QuRe's sanity check (sec. 4)."""
        one, two = self.ratings
        return one >= two if self.first else two >= one


def card_of(name: str, *, source: str, citation: str, parts: Iterable[str], main: str) -> DatasetCard:
    """Card of a data set in this format, measured on these parts of its judgements."""
    return DatasetCard(
        name=name,
        protocol="sets-of-5",
        version="1",
        source=source,
        licence="none is stated with the file; the images are FashionIQ's",
        citation=citation,
        gallery="two sets of five images per judgement",
        exclude_reference=False,  # no set holds its query's reference
        text_template="the file's sentence, its 'dotmark', 'questionmark' and 'andmark' as signs again, "
        "blanks collapsed",
        metrics=tuple(f"{part}/{measure}" for part in parts for measure in MEASURES),
        main=main,
        expected={SPLIT: {GROUP: Counts(3050, 5553)}},  # QuRe table 1; images that its file names
    )


@dataclass(frozen=True, eq=False)
class PreferenceFormat(Dataset):
    """Queries with two candidate sets and a person's choice: one query per judgement, judged by the sets' scores.

    `images` are all images that the file names: references, targets and the members of the sets.

    Args:
        judgements: query id -> judgement.

    Subclasses name the `parts` of the judgements that are measured ("all", and "consistent" where the paper drops what
    fails its sanity check), their card (`card_of`), and the files that may hold them, as FOLDER/NAME, the preferred one
    first.
    """

    parts: ClassVar[tuple[str, ...]] = ("all",)
    sources: ClassVar[tuple[Path, ...]]
    published: ClassVar[DatasetCard]
    judgements: Mapping[str, Judgement] = field(default_factory=dict)

    @classmethod
    def load(
        cls, *, root: Path | None = None, split: str = "val", images: bool = True, allow_missing: bool = False
    ) -> Self:
        """Read the first of `sources` that is there; a remark tells where that is not the data set's own file.

        Args:
            root: folder that holds the file of judgements (`hpfiq.json`, or `hsfiq.json` of hs-fashioniq), or the one
                above it, where it lies under `hp_fashioniq` or `hs_fashioniq`; None takes NEGBENCH_DATA.
            split: val.
            images: whether the image files must be there: FashionIQ's, in any folder below that of the file, or below
                `fashioniq` beside it.
            allow_missing: leave out judgements that name a missing image and mark the result partial, instead of
                DataError.

        Raises:
            DataError: no such file, images missing, or a file not in the format; one line with file, place and key.
            OptionError: another split than val.
        """
        card, sources = cls.published, cls.sources
        check_option("split", split, split == SPLIT, f"{SPLIT} ({card.name} has nothing to train on)")
        path = _find(root, card, sources)
        folder, reader = path.parent, Reader(path.parent)
        read = _read(reader, path)
        remarks = [] if path.name == sources[0].name else [f"there is no {sources[0].name}: read from {path.name}"]
        remarks += card.remarks(split, {GROUP: Counts(len(read), len(_named(read)))})
        found: ImageFiles | None = None
        missing: tuple[str, ...] = ()
        if images:
            found = ImageFiles.scan(folder, files=_image_files(folder))
            missing = found.require(_named(read), allow_missing=allow_missing)
            read = _without(read, set(missing))
        if not read:
            raise DataError(f"{card.name}: no judgement is left in {path} ({len(missing)} missing)")
        names, groups = columns_of({GROUP: _named(read)})
        return cls(
            card=card,
            split=split,
            queries=[query for query, _ in read],
            images=names,
            groups=groups,
            content=reader.content,
            files=found,
            missing=missing,
            remarks=(*remarks, *cls.filter_remarks([judgement for _, judgement in read])),
            judgements={query.id: judgement for query, judgement in read},
        )

    @classmethod
    @abstractmethod
    def filter_remarks(cls, judgements: Sequence[Judgement]) -> tuple[str, ...]:
        """What stands between these judgements and the paper's valid queries, one line each."""

    # --- judgements as tensors -----------------------------------------------------------------------------------

    @cached_property
    def _judged(self) -> list[Judgement]:
        """One judgement per query, in the order of the queries, of which there may be a part."""
        return [self.judgements[query.id] for query in self.queries]

    @cached_property
    def sets(self) -> Tensor:
        """[Q, 2, 5] int64, columns of the images of either set."""
        column = self.column_of
        columns = [[[column[image] for image in members] for members in judged.sets] for judged in self._judged]
        return torch.tensor(columns, dtype=torch.int64).reshape(-1, 2, SET_SIZE)

    @cached_property
    def first(self) -> Tensor:
        """[Q] bool, whether set 1 was preferred."""
        return torch.tensor([judged.first for judged in self._judged], dtype=torch.bool)

    @cached_property
    def ratings(self) -> Tensor:
        """[Q, 2] int64, Likert scores of the sets, 1 to 5."""
        return torch.tensor([judged.ratings for judged in self._judged], dtype=torch.int64).reshape(-1, 2)

    @cached_property
    def hits(self) -> Tensor:
        """[Q, 2] bool, whether the set holds the target: its recall at 5."""
        return (self.sets == self.target_columns[:, None, None]).any(-1)

    @cached_property
    def consistent(self) -> Tensor:
        """[Q] bool, judgements that pass QuRe's sanity check (sec. 4)."""
        return torch.tensor([judged.consistent for judged in self._judged], dtype=torch.bool)

    @cached_property
    def participants(self) -> list[str]:
        """Q names."""
        return [judged.participant for judged in self._judged]

    # --- judging -------------------------------------------------------------------------------------------------

    def score_sets(self, score_block: ScoreBlock) -> Tensor:
        """[Q, 2] float64 scores of the sets, `score_block` being as for `rank`; the full table is never held.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is not finite.
        """
        columns = torch.arange(len(self.images))
        parts = [
            set_scores(self._scores(score_block, rows, columns), self.sets[rows]).cpu()
            for rows in torch.arange(len(self.queries)).split(_BLOCK)
        ]
        return torch.cat(parts)

    def measure(self, score_block: ScoreBlock) -> dict[str, float]:
        """`judge` of the sets' scores: all that is published of people's choices comes from them."""
        return self.judge(self.score_sets(score_block))

    def judge(self, sets: Tensor) -> dict[str, float]:
        """How well scores of the sets agree with the people.

        Args:
            sets: [Q, 2] scores of the sets, any sign.

        Returns:
            `PART/NAME` for each of `parts`: `all/` over all judgements, `consistent/` over those that pass QuRe's
            sanity check; nan where a measure is not defined. In [0, 1] but for `spearman`, which is in [-1, 1]:

            preference_rate: P(1 chosen | S1 > S2), QuRe eq. 9; preference_rate_with_ties: given S1 >= S2, CIRQRS
            eq. 8; preference_rate_equal_recall: given S1 > S2 where both sets hold the target or neither does, CIRQRS
            eq. 9.
            chance: share of judgements for set 1, what these three rates are for a scorer that knows nothing.
            first_higher, ties: shares of judgements with S1 > S2 and S1 = S2.
            accuracy: symmetric, a tie counts one half; accuracy_low, accuracy_high: its 95 % interval, participants
            drawn again. spearman, spearman_p: of the scores of all sets with their Likert scores (the p-value takes
            sets as independent).
        """
        rows = {"all": torch.ones(len(self.queries), dtype=torch.bool), "consistent": self.consistent}
        return {
            f"{part}/{name}": value for part in self.parts for name, value in self._measures(sets, rows[part]).items()
        }

    def _measures(self, sets: Tensor, rows: Tensor) -> dict[str, float]:
        sets, first, hits = sets[rows], self.first[rows], self.hits[rows]
        right = agreement(sets, first)
        names = [name for name, kept in zip(self.participants, rows.tolist(), strict=True) if kept]
        number = {name: index for index, name in enumerate(dict.fromkeys(names))}
        interval = clustered_interval(right, torch.tensor([number[name] for name in names], dtype=torch.int64))
        correlation = spearman(sets, self.ratings[rows])
        values = (
            preference_rate(sets, first),
            preference_rate(sets, first, ties=True),
            preference_rate(sets, first, among=hits[:, 0] == hits[:, 1]),
            float(first.double().mean()),
            float((sets[:, 0] > sets[:, 1]).double().mean()),
            float((sets[:, 0] == sets[:, 1]).double().mean()),
            float(right.mean()),
            *interval,
            *correlation,
        )
        return dict(zip(MEASURES, values, strict=True))

    def table(self, sets: Tensor) -> pd.DataFrame:
        """One row a judgement: scores, ratings and recall of both sets, the set preferred (1 or 2), the filter."""
        import pandas as pd

        columns: dict[str, Any] = {
            "query": [query.id for query in self.queries],
            "participant": self.participants,
        }
        for name, values in (("score", sets), ("rating", self.ratings), ("recall_at_5", self.hits)):
            columns |= {f"{name}_{side + 1}": values[:, side].numpy() for side in (0, 1)}
        columns |= {"preferred": (2 - self.first.long()).numpy(), "consistent": self.consistent.numpy()}
        return pd.DataFrame(columns)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Raise DataError: choices between sets are judged by scores (`evaluate`, `judge`), which ranks do not hold."""
        raise DataError("preferences are judged by the scores of sets, not by ranks: score a run, or use evaluate()")


# --- files -------------------------------------------------------------------------------------------------------

_Read = list[tuple[Query, Judgement]]


def _find(root: Path | None, card: DatasetCard, sources: Sequence[Path]) -> Path:
    errors = []
    for source in sources:
        tree = f"{source.name}, and FashionIQ's images as ID.jpg or ID.png in any folder"
        try:
            folder = find_root(root, name=str(source.parent), marker=source.name, tree=tree, source=card.source)
        except DataError as error:
            errors.append(error)
        else:
            return folder / source.name
    raise errors[-1]


def _image_files(folder: Path) -> list[Path]:
    """Files below the judgements' folder, and below `fashioniq` where all benchmarks lie side by side."""
    beside = folder.parent / "fashioniq"
    more = list_files(beside) if beside != folder and beside.is_dir() else []
    return [*list_files(folder), *more]


def _read(reader: Reader, path: Path) -> _Read:
    read: _Read = []
    for participant, question_sets in typed(reader.json(path), dict, str(path)).items():
        where = f"{path}: {quoted(participant)}"
        for name, entry in typed(question_sets, dict, where).items():
            here = f"{where}: {quoted(name)}"
            lists = {key: get(typed(entry, dict, here), key, list, here) for key in _LISTS}
            lengths = {key: len(values) for key, values in lists.items()}
            if len(set(lengths.values())) != 1:
                raise DataError(f"{here}: the six lists must have one length, got {lengths}")
            for index, values in enumerate(zip(*lists.values(), strict=True)):
                marks = [f"{here}: key '{key}'[{index}]" for key in _LISTS]
                read.append(_judgement(participant, f"{participant}/{name}/{index:02d}", values, marks))
    if not read:
        raise DataError(f"{path} holds no judgement")
    return read


def _judgement(participant: str, query: str, values: Sequence[Any], marks: Sequence[str]) -> tuple[Query, Judgement]:
    reference, target, sentence, one, two, preferred = values
    text = typed(sentence, str, marks[2])
    if preferred not in ("1", "2"):
        raise DataError(f'{marks[5]}: want "1" or "2", got {quoted(preferred)}')
    return (
        Query(
            id=query,
            reference=_image(reference, marks[0]),
            text=_restored(text),
            target=_image(target, marks[1]),
            group=GROUP,
            captions=(text,),
        ),
        Judgement(
            participant=participant,
            sets=(_members(one, marks[3]), _members(two, marks[4])),
            ratings=(_rating(one, marks[3]), _rating(two, marks[4])),
            first=preferred == "1",
        ),
    )


def _members(value: Any, where: str) -> tuple[str, ...]:
    inside = f"{where}: key 'img_path'"
    paths = strings(get(typed(value, dict, where), "img_path", list, where), inside)
    images = tuple(_image(path, f"{inside}[{index}]") for index, path in enumerate(paths))
    if len(images) != SET_SIZE or len(set(images)) != SET_SIZE:
        raise DataError(f"{inside}: want {SET_SIZE} different images, got {quoted(list(images))}")
    return images


def _rating(value: Mapping[str, Any], where: str) -> int:
    rating = get(value, "user_score", str, where)
    if rating not in map(str, LIKERT):
        raise DataError(f'{where}: key \'user_score\': want "1" to "5", got {quoted(rating)}')
    return int(rating)


def _image(value: Any, where: str) -> str:
    """'/-/image_data/shirt/B000LUIBH8.jpg' -> 'B000LUIBH8'."""
    return image_id(PurePosixPath(typed(value, str, where)).stem, where)


def _restored(sentence: str) -> str:
    """The sentence as the participants saw it: the file spells out the signs of FashionIQ's captions.

    Example:
        >>> _restored("has long sleevesdotmark  and is black andmark white")
        'has long sleeves. and is black & white'
    """
    return " ".join(re.sub("|".join(_MARKS), lambda mark: _MARKS[mark.group()], sentence).split())


def _named(read: Iterable[tuple[Query, Judgement]]) -> list[str]:
    """Every image, in order of first appearance."""
    names = (
        image
        for query, judgement in read
        for image in (query.reference, str(query.target), *judgement.sets[0], *judgement.sets[1])
    )
    return list(dict.fromkeys(names))


def _without(read: _Read, missing: set[str]) -> _Read:
    """The judgements that name no missing image."""
    return [entry for entry in read if missing.isdisjoint(_named([entry]))] if missing else read
