"""Emoji by four artists: real pictures with an exact description; a query changes skin tone, who, hair or direction.

An emoji's code points say what it shows (`_emoji_codes`): a family (firefighter, waving hand, ...) and a look. A query
is a picture of one look and an English text for another look of the family, one or two attributes away; the target is
a drawing of that look. The same emoji by the other artists is relevant too, so that every false negative is known.

Artists reuse drawings: images with equal pixels are one image. Ambiguous ones are dropped: references that show several
looks, and drawings that show several families.
"""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self, get_args

import torch
from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.galleries import AttributeCodes
from negbench.files.image_files import ImageFiles
from negbench.files.reader import Reader, check_choice
from negbench.machine.grouping import group_pairs
from negbench.metrics.metric import Metric, hits, precision
from negbench.metrics.query_ranks import QueryRanks
from negbench.worlds._emoji_codes import Emoji, Look, description, difference, modification, parse
from negbench.worlds._icons import FILES, PACKAGES, Icons, Progress, icons, no_progress

PAPER = "ours; emoji of Noto (Apache-2.0), Twemoji (CC-BY-4.0), OpenMoji (CC-BY-SA-4.0) and Fluent (MIT)"

Artist = Literal["noto", "twemoji", "openmoji", "fluent"]
ARTISTS: tuple[Artist, ...] = get_args(Artist)
SPLITS = ("train", "val")
GROUP = "emoji"
RECALLS = (1, 5, 10, 50)
CUTOFF = 10  # of mAP
TREE = f"{'|'.join(ARTISTS)}/{'|'.join(FILES)}"

_METRICS = {f"recall_at_{k}": Metric((hits(k),)) for k in RECALLS} | {f"map_at_{CUTOFF}": Metric((precision(CUTOFF),))}


@dataclass(frozen=True)
class EmojiNumbers:
    """Which families are held out, and which queries there are.

    Args:
        held_out: share of the families in val: 60 of 169 with all four artists.
        changes: most attributes that a query changes.
    """

    held_out: float = 0.355
    changes: int = 2


FIXED = EmojiNumbers()


class PictureChoice(NamedTuple):
    """What determines the pictures and queries of a split (see `EmojiOptions`)."""

    artists: tuple[str, ...] = ARTISTS
    references: tuple[str, ...] = ARTISTS
    style: str = "kept"
    queries: int = 8000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EmojiOptions(FolderOptions):
    """Options of `EmojiPictures`.

    Args:
        root: folder that holds the artists' folders, or the one above it that holds it as `emoji`.
        artists: whose pictures are in the gallery: noto, twemoji, openmoji, fluent. With n of them a query has up
            to n - 1 relevant images beside its target, each a known false negative.
        references: artists whose pictures are query references; if left out, `artists`.
        style: the target is by the reference's artist ("kept"), by any one of `artists`, drawn at random ("free"),
            or by a named one; the text then says so, and nobody else's drawing is relevant.
        train_queries: maximum number; the families take turns, so that large ones do not dominate.
        val_queries: the same for val.
        seed: of the held-out families, the queries and the words.

    Raises:
        OptionError: an unknown or impossible value.
    """

    artists: tuple[Artist, ...] = ARTISTS
    references: tuple[Artist, ...] = ()
    style: str = "kept"
    train_queries: PositiveInt = 8000
    val_queries: PositiveInt = 1500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, artists in (("artists", self.artists), ("references", self.references)):
            check_option(name, artists, len(set(artists)) == len(artists), "artists, each once")
        check_option("artists", self.artists, bool(self.artists), "one artist or several")
        check_choice("style", self.style, ("kept", "free", *self.artists))
        if self.style == "kept":
            among = set(self.references) <= set(self.artists)
            check_option("references", self.references, among, "among artists where style is kept")

    def choice(self, split: str) -> PictureChoice:
        """Return what determines the split's pictures and queries."""
        queries = self.train_queries if split == "train" else self.val_queries
        return PictureChoice(self.artists, self.references or self.artists, self.style, queries, self.seed)


@dataclass(frozen=True)
class EmojiWorld:
    """All pictures in families of several looks.

    Args:
        images: look of a family -> artist -> image id.
        shown: image id -> the looks that it shows, all of one family.
        files: image id -> file.
        names: family -> its printed name.
    """

    images: Mapping[Emoji, Mapping[str, str]]
    shown: Mapping[str, Sequence[Emoji]]
    files: Mapping[str, Path]
    names: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class EmojiPictures(Dataset):
    """Emoji; an image is relevant exactly when it shows what is asked for, by whichever artist.

    Args:
        shown: image id -> the looks that it shows.
        asked: query id -> the emoji that answers it.
        style: option `style`.
    """

    exchangeable: ClassVar[bool] = True
    set_apart: ClassVar[str] = "family"
    fixed: ClassVar = (FIXED,)

    shown: Mapping[str, Sequence[Emoji]] = field(default_factory=dict)
    asked: Mapping[str, Emoji] = field(default_factory=dict)
    style: str = "kept"

    @classmethod
    def load(cls, options: EmojiOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split; the pictures are drawn beside the packages when first needed.

        Splits are train and val; no family is in both.

        Raises:
            DataError: packages that are missing, or files that are not of the known versions.
            OptionError: another split.
        """
        check_option("split", split, split in SPLITS, "train or val (there is no test split)")
        choice = options.choice(split)
        artists = choice.artists
        dataset_card = card(choice)
        reader = Reader.find(options.root, dataset_card, marker=f"{artists[0]}/icons.json", tree=TREE)
        packages = [icons(reader, artist) for artist in ARTISTS if artist in {*artists, *choice.references}]
        world = read_world(packages)
        gallery: list[str] = []
        for emoji in _emoji_of_split(world, split, choice.seed):
            gallery += _images_by(world, emoji, artists)
        ids, groups = columns_of({GROUP: list(dict.fromkeys(gallery))})
        asks = _asks_of_split(world, split, choice)
        queries = [_query(world, ask, split, choice) for ask in asks]
        dataset = cls(
            dataset_card,
            split,
            queries,
            ids,
            groups,
            content=hashlib.sha256(json.dumps([reader.content, choice]).encode()).hexdigest(),
            shown=world.shown,
            asked={query.id: ask.wanted for query, ask in zip(queries, asks, strict=True)},
            style=choice.style,
        )
        files = ImageFiles(reader.root, {image: (path,) for image, path in world.files.items() if path.exists()})
        return dataset.loaded(files if images else None, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10 and 50 of the annotated target, and mAP@10 over all relevant images."""
        return dict(_METRICS)

    def _choose_dev(self, fraction: float, seed: int) -> Tensor:
        """[Q] bool, as `dev_rows`: whole families instead of whole targets."""
        families = sorted({query.cluster for query in self.queries})
        random.Random(seed).shuffle(families)
        dev = set(families[: max(1, round(fraction * len(families)))])
        return torch.tensor([query.cluster in dev for query in self.queries])

    @cached_property
    def attribute_codes(self) -> AttributeCodes:
        """Family and look, and the artist where the text names one.

        The family counts as two attributes, so that another thing that looks as asked fits the text, but is not one
        step away from right.
        """
        artist = self.style if self.style in ARTISTS else ""
        ids: dict[str, int] = {}

        def codes_of(emoji: Emoji, by: str) -> list[int]:
            """Number the values in the order in which they first appear."""
            return [ids.setdefault(value, len(ids)) for value in (emoji.family, emoji.family, *emoji.look, by)]

        target_codes = [codes_of(self.asked[query.id], artist) for query in self.queries]
        before = "as before" if artist else ""
        reference_codes = [codes_of(self.shown[query.reference][0], before) for query in self.queries]
        columns = []
        image_codes = []
        for column, image in enumerate(self.images):
            by = image.partition("/")[0] if artist else ""
            for emoji in self.shown[image]:
                columns.append(column)
                image_codes.append(codes_of(emoji, by))
        targets = torch.tensor(target_codes, dtype=torch.int16)
        references = torch.tensor(reference_codes, dtype=torch.int16)
        images = torch.tensor(image_codes, dtype=torch.int16)
        return AttributeCodes(targets, targets != references, images, torch.tensor(columns))


def card(options: PictureChoice) -> DatasetCard:
    """Return the card of the emoji with these options."""
    marks = [options.style, "+".join(options.artists)]
    if set(options.references) != set(options.artists):
        marks.append(f"from-{'+'.join(options.references)}")
    used = [PACKAGES[artist] for artist in ARTISTS if artist in {*options.artists, *options.references}]
    credits_ = "; ".join(f"{package.shown} by {package.author}, {package.licence}" for package in used)
    return DatasetCard(
        name="emoji",
        protocol=f"{'-'.join(marks)}-seed{options.seed}",
        source=f"npm packages {', '.join(f'{p.name}@{p.version}' for p in PACKAGES.values())} "
        "(`negbench data fetch emoji`)",
        licence=f"drawings: {credits_}; queries and texts: Apache-2.0",
        gallery="all pictures of the split's families by the artists named; equal drawings are one",
        exclude_reference=True,
        text_template="'{change}, {change}', each change in one of four wordings"
        + _STYLE_RULES.get(options.style, f"; then the artist: {options.style}"),
        metrics=tuple(_METRICS),
        main="recall_at_10",
    )


_STYLE_RULES = {"kept": "; target by the reference's artist", "free": "; target by any artist"}


# --- pictures ----------------------------------------------------------------------------------------------------


def varied_families(names: Mapping[str, str]) -> dict[str, str]:
    """Filter code points -> name to the families of which the artist draws several looks."""
    looks = group_pairs(parse(codes) for codes in names)
    return {codes: name for codes, name in names.items() if len({*looks[parse(codes).family]}) > 1}


def draw(root: Path, progress: Progress = no_progress) -> int:
    """Draw the pictures of all packages below `root`; returns their number. Raises as `EmojiPictures.load`."""
    packages = [icons(Reader(root), artist) for artist in ARTISTS]
    count = 0
    for package in packages:
        count += len(package.pictures(varied_families(package.names), progress))
    return count


def read_world(packages: Iterable[Icons]) -> EmojiWorld:
    """Read the pictures of some artists, drawing missing ones; equal pixels are one image."""
    images: dict[Emoji, dict[str, str]] = defaultdict(dict)
    looks_shown: dict[str, list[Emoji]] = {}
    files: dict[str, Path] = {}
    plainest: dict[str, tuple[int, str]] = {}  # family -> the icon with the least of a look: attributes set, name
    for package in packages:
        pictures = package.pictures(varied_families(package.names))
        drawings: dict[str, list[tuple[Emoji, str]]] = defaultdict(list)  # pixels -> what they show
        for codes, picture in sorted(pictures.items()):
            drawings[picture.pixels].append((parse(codes), picture.name))
            files[f"{package.artist}/{picture.name}"] = picture.path
        for drawing in drawings.values():
            if len({emoji.family for emoji, _ in drawing}) > 1:
                continue
            _, first_name = drawing[0]
            image = f"{package.artist}/{first_name}"
            looks_shown[image] = [emoji for emoji, _ in drawing]
            for emoji, name in drawing:
                images[emoji][package.artist] = image
                marks = difference(emoji.look, Look())
                if emoji.family not in plainest or marks < plainest[emoji.family][0]:
                    plainest[emoji.family] = (marks, name.replace("-", " "))
    names = {family: name for family, (_, name) in plainest.items()}
    return EmojiWorld(dict(sorted(images.items())), looks_shown, files, names)


def _emoji_of_split(world: EmojiWorld, split: str, seed: int) -> list[Emoji]:
    """List a split's emoji; each set of families varying in the same attributes is split, so none is in val only."""
    kinds: dict[tuple[bool, ...], list[str]] = {}
    for family, looks in group_pairs(world.images).items():
        varied = tuple(len({*values}) > 1 for values in zip(*looks, strict=True))
        kinds.setdefault(varied, []).append(family)

    def sort_key(family: str) -> bytes:
        return hashlib.sha256(f"{seed} {family}".encode()).digest()

    held_out: set[str] = set()
    for families in kinds.values():
        families.sort(key=sort_key)
        held_out.update(families[: round(FIXED.held_out * len(families))])
    return [emoji for emoji in world.images if (emoji.family in held_out) == (split == "val")]


def _images_by(world: EmojiWorld, emoji: Emoji, artists: Iterable[str]) -> list[str]:
    """Return the images of an emoji by some artists, in their order."""
    return [world.images[emoji][artist] for artist in artists if artist in world.images[emoji]]


# --- queries -----------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """A query: the reference's emoji and artist, the emoji asked for, and the target's artist."""

    shown: Emoji
    artist: str
    wanted: Emoji
    target: str


def _asks_of_split(world: EmojiWorld, split: str, options: PictureChoice) -> list[Ask]:
    """List the queries of a split: the families take turns, each with its queries in a seeded order."""
    families = group_pairs((emoji.family, emoji) for emoji in _emoji_of_split(world, split, options.seed))
    asks_of_families = []
    for family, members in families.items():
        asks = list(_possible_asks(world, members, options))
        random.Random(f"{options.seed} {family}").shuffle(asks)  # by a string: the same on every machine
        asks_of_families.append(asks)
    in_turn: list[Ask] = []
    for turn in zip_longest(*asks_of_families):
        in_turn += [ask for ask in turn if ask is not None]
    return in_turn[: options.queries]


def _possible_asks(world: EmojiWorld, members: Sequence[Emoji], options: PictureChoice) -> Iterator[Ask]:
    """Yield every query within a family that changes 1 to `FIXED.changes` attributes of an unambiguous reference."""
    for reference in members:
        sources = []
        for artist in options.references:
            image = world.images[reference].get(artist)
            if image is not None and len(world.shown[image]) == 1:
                sources.append(artist)
        for wanted in members:
            if not 1 <= difference(reference.look, wanted.look) <= FIXED.changes:
                continue
            artists = [artist for artist in options.artists if artist in world.images[wanted]]
            if not artists:
                continue
            for artist in sources:
                if options.style == "kept":
                    target = artist
                elif options.style == "free":
                    target = random.Random(f"{options.seed} {artist} {reference} {wanted}").choice(artists)
                else:
                    target = options.style
                if target in artists:
                    yield Ask(reference, artist, wanted, target)


def _query(world: EmojiWorld, ask: Ask, split: str, options: PictureChoice) -> Query:
    """Return the query of an ask, on train with descriptions of reference and target."""
    reference = world.images[ask.shown][ask.artist]
    target = world.images[ask.wanted][ask.target]
    key = f"{options.seed} {reference} {ask.wanted}"
    artist = ""
    relevant = [target]
    if options.style in ARTISTS:
        artist = PACKAGES[options.style].shown
    else:
        relevant += [image for image in _images_by(world, ask.wanted, options.artists) if image != target]
    family = world.names[ask.shown.family]
    name = f"{reference}>{ask.wanted.family}:{','.join(ask.wanted.look)}"
    text = modification(ask.shown.look, ask.wanted.look, key, artist)
    query = Query(name, reference, text, target, GROUP, tuple(relevant), cluster=family)
    if split != "train":
        return query
    return replace(
        query, reference_text=description(family, ask.shown.look), target_text=description(family, ask.wanted.look)
    )
