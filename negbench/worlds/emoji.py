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
from negbench.worlds._icons import FILES, PACKAGES, Icons, Progress, icons

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
        for name, given in (("artists", self.artists), ("references", self.references)):
            check_option(name, given, len(set(given)) == len(given), "artists, each once")
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
        sources = choice.references
        kind = card(choice)
        reader = Reader.find(options.root, kind, marker=f"{artists[0]}/icons.json", tree=TREE)
        world = read_world([icons(reader, artist) for artist in ARTISTS if artist in {*artists, *sources}])
        drawn = (image for emoji in _of_split(world, split, choice.seed) for image in _by(world, emoji, artists))
        ids, groups = columns_of({GROUP: list(dict.fromkeys(drawn))})
        asked = _asks_of(world, split, choice)
        queries = [_query(world, ask, split, choice) for ask in asked]
        files = ImageFiles(reader.root, {i: (path,) for i, path in world.files.items() if path.exists()})
        content = hashlib.sha256(json.dumps([reader.content, choice]).encode()).hexdigest()
        wanted = {query.id: ask.wanted for query, ask in zip(queries, asked, strict=True)}
        style = choice.style
        dataset = cls(kind, split, queries, ids, groups, content, shown=world.shown, asked=wanted, style=style)
        return dataset.loaded(files if images else None, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10 and 50 of the annotated target, and mAP@10 over all relevant images."""
        return dict(_METRICS)

    def _moved_to_dev(self, fraction: float, seed: int) -> Tensor:
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
        columns = []
        pictures = []
        drawn = []
        for column, image in enumerate(self.images):
            for emoji in self.shown[image]:
                columns.append(column)
                pictures.append(emoji)
                drawn.append(image.partition("/")[0] if artist else "")
        asked = [self.asked[query.id] for query in self.queries]
        had = [self.shown[query.reference][0] for query in self.queries]
        ids: dict[str, int] = defaultdict(lambda: len(ids))

        def coded(emoji: Sequence[Emoji], artists: Sequence[str]) -> Tensor:
            rows = [(sign.family, sign.family, *sign.look, by) for sign, by in zip(emoji, artists, strict=True)]
            return torch.tensor([[ids[value] for value in row] for row in rows], dtype=torch.int16)

        want = coded(asked, [artist for _ in asked])
        before = coded(had, ["as before" if artist else "" for _ in had])
        return AttributeCodes(want, want != before, coded(pictures, drawn), torch.tensor(columns))


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


def drawn_families(names: Mapping[str, str]) -> dict[str, str]:
    """Filter code points -> name to the families of which the artist draws several looks."""
    looks = group_pairs(map(parse, names))
    return {codes: name for codes, name in names.items() if len({*looks[parse(codes).family]}) > 1}


def draw(root: Path, progress: Progress = lambda done, total: None) -> int:
    """Draw the pictures of all packages below `root`; returns their number. Raises as `EmojiPictures.load`."""
    packages = [icons(Reader(root), artist) for artist in ARTISTS]
    return sum(len(package.pictures(drawn_families(package.names), progress)) for package in packages)


def read_world(packages: Iterable[Icons]) -> EmojiWorld:
    """Read the pictures of some artists, drawing missing ones; equal pixels are one image."""
    images: dict[Emoji, dict[str, str]] = defaultdict(dict)
    shown: dict[str, list[Emoji]] = {}
    files: dict[str, Path] = {}
    names: dict[str, tuple[int, str]] = {}
    for package in packages:
        pictures = package.pictures(drawn_families(package.names))
        drawings: dict[str, list[tuple[Emoji, str]]] = defaultdict(list)
        for codes, picture in sorted(pictures.items()):
            drawings[picture.pixels].append((parse(codes), picture.name))
            files[f"{package.artist}/{picture.name}"] = picture.path
        for drawing in drawings.values():
            emoji = [sign for sign, _ in drawing]
            if len({sign.family for sign in emoji}) > 1:
                continue
            image = f"{package.artist}/{drawing[0][1]}"
            shown[image] = emoji
            for sign, name in drawing:
                images[sign][package.artist] = image
                plain = names.get(sign.family)
                if plain is None or difference(sign.look, Look()) < plain[0]:
                    names[sign.family] = (difference(sign.look, Look()), name.replace("-", " "))
    ordered = dict(sorted(images.items()))
    return EmojiWorld(ordered, shown, files, {family: name for family, (_, name) in names.items()})


def _of_split(world: EmojiWorld, split: str, seed: int) -> list[Emoji]:
    """List a split's emoji; each set of families varying in the same attributes is split, so none is in val only."""
    kinds: dict[tuple[bool, ...], list[str]] = {}
    for family, looks in group_pairs(world.images).items():
        varied = tuple(len({*values}) > 1 for values in zip(*looks, strict=True))
        kinds.setdefault(varied, []).append(family)

    def place(family: str) -> bytes:
        return hashlib.sha256(f"{seed} {family}".encode()).digest()

    held_out: set[str] = set()
    for families in kinds.values():
        families.sort(key=place)
        held_out.update(families[: round(FIXED.held_out * len(families))])
    return [emoji for emoji in world.images if (emoji.family in held_out) == (split == "val")]


def _by(world: EmojiWorld, emoji: Emoji, artists: Iterable[str]) -> list[str]:
    """Return the images of an emoji by some artists, in their order."""
    return [world.images[emoji][artist] for artist in artists if artist in world.images[emoji]]


# --- queries -----------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """A query: the reference's emoji and artist, the emoji asked for, and the target's artist."""

    shown: Emoji
    artist: str
    wanted: Emoji
    target: str


def _asks_of(world: EmojiWorld, split: str, options: PictureChoice) -> list[Ask]:
    """List the queries of a split: the families take turns, each with its queries in a seeded order."""
    families = group_pairs((emoji.family, emoji) for emoji in _of_split(world, split, options.seed))
    turns = []
    for place, (family, members) in enumerate(families.items()):
        asks = list(_askable(world, members, options))
        random.Random(f"{options.seed} {family}").shuffle(asks)  # by a string: the same on every machine
        turns += [(turn, place, ask) for turn, ask in enumerate(asks)]
    return [ask for _, _, ask in sorted(turns)[: options.queries]]


def _askable(world: EmojiWorld, members: Sequence[Emoji], options: PictureChoice) -> Iterator[Ask]:
    """Yield every query within a family that changes 1 to `FIXED.changes` attributes of an unambiguous reference."""
    for shown in members:
        sources = [artist for artist in options.references if artist in world.images[shown]]
        sources = [artist for artist in sources if len(world.shown[world.images[shown][artist]]) == 1]
        for wanted in members:
            if not (sources and 1 <= difference(shown.look, wanted.look) <= FIXED.changes):
                continue
            drawn = [artist for artist in options.artists if artist in world.images[wanted]]
            for artist in sources if drawn else ():
                target = artist if options.style == "kept" else options.style
                if options.style == "free":
                    target = random.Random(f"{options.seed} {artist} {shown} {wanted}").choice(drawn)
                if target in drawn:
                    yield Ask(shown, artist, wanted, target)


def _query(world: EmojiWorld, ask: Ask, split: str, options: PictureChoice) -> Query:
    reference = world.images[ask.shown][ask.artist]
    target = world.images[ask.wanted][ask.target]
    named = options.style in ARTISTS
    key = f"{options.seed} {reference} {ask.wanted}"
    others = [] if named else [image for image in _by(world, ask.wanted, options.artists) if image != target]
    family = world.names[ask.shown.family]
    name = f"{reference}>{ask.wanted.family}:{','.join(ask.wanted.look)}"
    text = modification(ask.shown.look, ask.wanted.look, key, PACKAGES[options.style].shown if named else "")
    query = Query(name, reference, text, target, GROUP, (target, *others), cluster=family)
    if split != "train":
        return query
    texts = description(family, ask.shown.look), description(family, ask.wanted.look)
    return replace(query, reference_text=texts[0], target_text=texts[1])
