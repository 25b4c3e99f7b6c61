"""HP-FashionIQ: 3,050 choices by 61 people between two sets of five images; preference rate, accuracy, Spearman.

The file, `hpfiq.json`, is an object: participant -> question set -> six lists of one length, one entry per judgement:

    ref_img_paths, targ_img_paths    paths of the reference and of FashionIQ's target
    sentences                        the modification text
    retrieved_set1, retrieved_set2   {"img_path": five paths, "user_score": "1" ... "5"}
    preferred set                    "1" or "2"

Only a path's file name counts: the published "/-/image_data/shirt/B000LUIBH8.jpg" is that file, wherever it is
below the data root. `--set eval.also=hp-fashioniq` adds the measures to each point of a run's curve. CIRQRS describes
the same collection as HS-FashionIQ and published no file of its own.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from negbench.contracts import Query, check_option
from negbench.contracts.card import Counts, DatasetCard
from negbench.datasets.dataset import FolderOptions, columns_of
from negbench.datasets.preferences import MEASURES, SET_SIZE, Judgement, PreferenceFormat
from negbench.errors import DataError, short_repr
from negbench.files.image_files import ImageFiles
from negbench.files.reader import Reader, check_type, get, image_id, strings

PAPER = "Kwak et al., QuRe, ICML 2025, sec. 4 and 5.3, eq. 8-9 (HP-FashionIQ)"

SPLIT = "val"  # the queries are FashionIQ's
GROUP = "all"
FILE = "hpfiq.json"
LIKERT = range(1, 6)
FLAGGED = 307  # by participants, "modality redundancy check" (QuRe sec. 4); the file does not hold the flags
VALID = 2715  # table 1: 3,050, less 307 flagged, less 28 of these that fail the sanity check
CARD = DatasetCard(
    name="hp-fashioniq",
    protocol="sets-of-5",
    source="https://github.com/jackwaky/QuRe (HP_FashionIQ/hpfiq.json); the images are FashionIQ's",
    licence="none is stated with the file; the images are FashionIQ's",
    citation=PAPER,
    gallery="two sets of five images per judgement",
    exclude_reference=False,  # no set holds its query's reference
    text_template="the file's sentence, its 'dotmark', 'questionmark' and 'andmark' as signs again, blanks collapsed",
    metrics=MEASURES,
    main="preference_rate",  # QuRe table 4, by the released evaluation
    expected={SPLIT: {GROUP: Counts(3050, 5553)}},  # QuRe table 1; images that its file names
)

_LISTS = ("ref_img_paths", "targ_img_paths", "sentences", "retrieved_set1", "retrieved_set2", "preferred set")
_MARKS = {"dotmark": ".", "questionmark": "?", "andmark": "&"}


@dataclass(frozen=True, kw_only=True)
class HPFashionIQOptions(FolderOptions):
    """Options of `HPFashionIQ`.

    Args:
        root: folder that holds `hpfiq.json`.
        sanity_check: leave out judgements whose preferred set has the lower Likert score (QuRe sec. 4).
    """

    sanity_check: bool = False


@dataclass(frozen=True, eq=False)
class HPFashionIQ(PreferenceFormat):
    """HP-FashionIQ, on queries of FashionIQ's validation split (shirts and tops).

    `images` are all images that the file names: references, targets and the members of the sets.
    """

    @classmethod
    def load(cls, options: HPFashionIQOptions, split: str = "val", images: bool = True) -> Self:
        """Read the judgements, which are of FashionIQ's val; arguments and errors as for `Dataset.load`.

        `root` holds `hpfiq.json`, or a folder `hp_fashioniq` that does. Images are FashionIQ's, in any folder below the
        file's, or below `fashioniq` beside it; `allow_missing` leaves out judgements that name a missing one.
        """
        check_option("split", split, split == SPLIT, f"{SPLIT} ({CARD.name} has nothing to train on)")
        tree = f"{FILE}, and FashionIQ's images as ID.jpg or ID.png in any folder"
        reader = Reader.find(options.root, CARD, marker=FILE, tree=tree)
        judgements: dict[str, Judgement] = {}
        queries: list[Query] = []
        gallery: dict[str, None] = {}
        for query, judgement in _read(reader, reader.root / FILE):
            judgements[query.id] = judgement
            queries.append(query)
            gallery |= dict.fromkeys((query.reference, str(query.target), *judgement.images), None)
        names, groups = columns_of({GROUP: gallery})
        data = cls(CARD, split, queries, names, groups, reader.content, judgements=judgements)
        files = ImageFiles.scan(reader.root, files=reader.files_beside("fashioniq")) if images else None
        data = data.loaded(files, reader.root / FILE, allow_missing=options.allow_missing)
        complete = [query for query in data.queries if set(data.missing).isdisjoint(judgements[query.id].images)]
        if not complete:
            raise DataError(f"{CARD.name}: no judgement is left in {reader.root / FILE} ({len(data.missing)} missing)")
        sane = [query for query in complete if not judgements[query.id].contradicts_itself]
        if options.sanity_check:
            data = dataclasses.replace(data, queries=sane, part="sanity check passed")
            fate = "left out"
        else:
            data = dataclasses.replace(data, queries=complete, part="")
            fate = "dataset.sanity_check=true leaves them out, as QuRe does"
        remarks = (
            *data.remarks,
            f"QuRe counts {VALID:,} valid queries: it drops {FLAGGED} that participants flagged for modality "
            "redundancy, and the file does not hold the flags",
            f"{len(complete) - len(sane):,} of {len(complete):,} judgements prefer the set with the lower Likert "
            f"score: {fate}",
        )
        return dataclasses.replace(data, remarks=remarks)


# --- files -------------------------------------------------------------------------------------------------------


def _read(reader: Reader, path: Path) -> list[tuple[Query, Judgement]]:
    """Return each judgement of the file with its query."""
    pairs: list[tuple[Query, Judgement]] = []
    for participant, question_sets in check_type(reader.json(path), dict, str(path)).items():
        where = f"{path}: {short_repr(participant)}"
        for name, entry in check_type(question_sets, dict, where).items():
            here = f"{where}: {short_repr(name)}"
            lists = {key: get(check_type(entry, dict, here), key, list, here) for key in _LISTS}
            lengths = {key: len(values) for key, values in lists.items()}
            if len(set(lengths.values())) != 1:
                raise DataError(f"{here}: the six lists must have the same length, got {lengths}")
            for index, values in enumerate(zip(*lists.values(), strict=True)):
                marks = [f"{here}: key '{key}'[{index}]" for key in _LISTS]
                pairs.append(_judgement(participant, f"{participant}/{name}/{index:02d}", values, marks))
    if not pairs:
        raise DataError(f"{path} holds no judgement")
    return pairs


def _judgement(participant: str, query: str, values: Sequence[Any], marks: Sequence[str]) -> tuple[Query, Judgement]:
    """Return a judgement and its query, from an entry of each of the six lists and where each stands in the file."""
    reference, target, sentence, first, second, preferred = values
    at_reference, at_target, at_sentence, at_first, at_second, at_preferred = marks
    text = check_type(sentence, str, at_sentence)
    if preferred not in ("1", "2"):
        raise DataError(f'{at_preferred}: expected "1" or "2", got {short_repr(preferred)}')
    reference_image = _image(reference, at_reference)
    target_image = _image(target, at_target)
    sets = (_members(first, at_first), _members(second, at_second))
    ratings = (_rating(first, at_first), _rating(second, at_second))
    return (
        Query(query, reference_image, _restore_signs(text), target_image, GROUP, captions=(text,)),
        Judgement(participant, sets, ratings, preferred == "1"),
    )


def _members(value: Any, where: str) -> tuple[str, ...]:
    inside = f"{where}: key 'img_path'"
    paths = strings(get(check_type(value, dict, where), "img_path", list, where), inside)
    images = tuple(_image(path, f"{inside}[{index}]") for index, path in enumerate(paths))
    if len(images) != SET_SIZE or len(set(images)) != SET_SIZE:
        raise DataError(f"{inside}: expected {SET_SIZE} different images, got {short_repr(list(images))}")
    return images


def _rating(value: Mapping[str, Any], where: str) -> int:
    rating = get(value, "user_score", str, where)
    if rating not in [str(step) for step in LIKERT]:
        raise DataError(f'{where}: key \'user_score\': expected "1" to "5", got {short_repr(rating)}')
    return int(rating)


def _image(value: Any, where: str) -> str:
    """Return 'B000LUIBH8' for '/-/image_data/shirt/B000LUIBH8.jpg'."""
    return image_id(PurePosixPath(check_type(value, str, where)).stem, where)


def _restore_signs(sentence: str) -> str:
    """Return the sentence as the participants saw it: the file spells out the signs of FashionIQ's captions.

    Example:
        >>> _restore_signs("has long sleevesdotmark  and is black andmark white")
        'has long sleeves. and is black & white'
    """
    for word, sign in _MARKS.items():
        sentence = sentence.replace(word, sign)
    return " ".join(sentence.split())
