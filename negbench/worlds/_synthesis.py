"""Generate the synthetic data set: garments, queries, and the folder in FashionIQ's layout."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from negbench.contracts import Query, check_option
from negbench.datasets.galleries import AttributeCodes
from negbench.datasets.stream import Stream
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.machine.files import lock_file, sha256_of
from negbench.machine.grouping import group_pairs
from negbench.machine.received import read_json_text
from negbench.worlds import _garments
from negbench.worlds._garments import ATTRIBUTES, CATEGORIES, Attributes, codes_of, mutate, sample_attributes
from negbench.worlds._rendering import render
from negbench.worlds._wording import attribute_words, caption_pair

GENERATOR = 2  # raised by every change to a pixel, a word, a query or an id
MANIFEST = "synthetic.json"
SPLITS = ("train", "val")

_HUFFMAN = 2  # zlib's Z_HUFFMAN_ONLY: for noisy pixels the fastest, and the smallest


@dataclass(frozen=True)
class GarmentNumbers:
    """Which garments and queries there are.

    Args:
        changes: how many attributes a query changes; each entry is as likely.
        line: garments of a line, in worlds whose garments come in lines.
        apart: attributes in which the other garments of a line differ from its first.
        fresh: per cent of the draws that bring two new garments, one a neighbour of the other, where there are no
            lines; the other draws bring a neighbour of a garment that is there.
        mutated: most attributes in which a neighbour differs.
        most: share of the possible garments of a category that a world may use, as the last ones take long to draw;
            a world of `vectors` that needs more has three categories.
    """

    changes: tuple[int, ...] = (1, 1, 1, 2, 2, 2, 2, 3, 3)
    line: int = 2
    apart: int = 3
    fresh: int = 10
    mutated: int = 3
    most: float = 0.9


FIXED = GarmentNumbers()


@dataclass(frozen=True)
class Spec:
    """Parameters that determine the data set to the pixel; sizes are per category.

    Args:
        world: seed of all random choices.
        twins: mean over the queries of the number of relevant images, the target included; 1 makes every garment
            unique, 4.5 is about CIRCO's density (Baldrati et al., ICCV 2023: 4.53 ground truths per query).
        train_images: images of each category.
        train_queries: queries of each category.
        val_images: as `train_images`.
        val_queries: as `train_queries`.

    Raises:
        OptionError: a value out of range; fewer than 8 images or 1 query, or `twins` outside 1 .. a quarter of the
            smaller image count.
    """

    world: int = 0
    twins: float = 4.5
    train_images: int = 1000
    train_queries: int = 1000
    val_images: int = 600
    val_queries: int = 700  # 2,100 in all: scoring costs little beside training

    def __post_init__(self) -> None:
        check_option("world", self.world, self.world >= 0, ">= 0")
        for name, least in (("train_images", 8), ("val_images", 8), ("train_queries", 1), ("val_queries", 1)):
            check_option(name, getattr(self, name), least <= getattr(self, name) <= 10**6, f"in {least}..1,000,000")
        most = min(self.train_images, self.val_images) / 4
        check_option("twins", self.twins, 1 <= self.twins <= most, f"in 1..{most:g} (a quarter of the images)")

    def images(self, split: str) -> int:
        """Images of each category of a split."""
        return self.train_images if split == "train" else self.val_images

    def queries(self, split: str) -> int:
        """Queries of each category of a split."""
        return self.train_queries if split == "train" else self.val_queries

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Images and queries of train, then of val."""
        return self.train_images, self.train_queries, self.val_images, self.val_queries

    @property
    def fingerprint(self) -> str:
        """Six characters in every image id, so that an id means the same pixels everywhere."""
        return hashlib.sha256(self.folder.encode()).hexdigest()[:6]

    @property
    def folder(self) -> str:
        """Name of its folder in the cache."""
        return f"synthetic-v{GENERATOR}-world{self.world}-twins{self.twins:g}-{'-'.join(map(str, self.sizes))}"


# --- which garments, which queries -------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorldPart:
    """One category of one split.

    Attributes:
        category: of all its images.
        split: train or val.
        images: ids.
        attributes: of each image.
        queries: (reference, target) as positions in `images`; the captions say how they differ.
        captions: two per query.
        lines: each image's line if garments come in lines, else empty.
    """

    category: str
    split: str
    images: list[str]
    attributes: list[Attributes]
    queries: list[tuple[int, int]]
    captions: list[tuple[str, str]]
    lines: Sequence[int] = ()

    def relevant(self) -> list[list[str]]:
        """Return per query the target, then every other image with the target's attributes."""
        alike = group_pairs((attributes, index) for index, attributes in enumerate(self.attributes))
        lists = []
        for _, target in self.queries:
            others = [image for image in alike[self.attributes[target]] if image != target]
            lists.append([self.images[image] for image in (target, *others)])
        return lists


def plan(spec: Spec, split: str, category: str, *, in_lines: bool = False) -> WorldPart:
    """Plan garments, queries and captions of one category of one split; renders nothing.

    Args:
        spec: the world.
        split: train or val.
        category: of the garments.
        in_lines: garments come in pairs that differ in three attributes, and a query turns one into the other.

    Raises:
        OptionError: more different garments are needed than the attributes can make.
    """
    stream = Stream(spec.world, "plan", split, category)
    sizes = _group_sizes(stream, spec.images(split), spec.twins)
    _check_possible(category, len(sizes))
    if in_lines:
        lines = [min(number // FIXED.line, len(sizes) // FIXED.line - 1) for number in range(len(sizes))]
        garments = _garments_in_lines(stream, category, lines)
    else:
        lines = [0 for _ in sizes]
        garments = _free_garments(stream, category, len(sizes))
    groups: list[int] = []  # of each image
    for group, size in enumerate(sizes):
        groups += [group] * size
    groups = stream.shuffle(groups)
    queries = _queries(stream, garments, groups, sizes, lines, spec.queries(split))
    attributes = [garments[group] for group in groups]
    captions = [caption_pair(stream, attributes[reference], attributes[target]) for reference, target in queries]
    digits = max(4, len(str(len(groups))))
    images = [f"{category}-{split}-{spec.fingerprint}-{index:0{digits}}" for index in range(len(groups))]
    image_lines = [lines[group] for group in groups] if in_lines else ()
    return WorldPart(category, split, images, attributes, queries, captions, image_lines)


def attribute_codes(
    queries: Sequence[Query], images: Sequence[str], garments: Mapping[str, Attributes]
) -> AttributeCodes:
    """Return what tells the kinds of a world's images, given all garments by id; the category is an attribute, too."""
    codes = {image: (CATEGORIES.index(garment.category), *codes_of(garment)) for image, garment in garments.items()}
    targets = [str(query.target) for query in queries]
    references = [query.reference for query in queries]

    def table(ids: Sequence[str]) -> torch.Tensor:
        return torch.tensor([codes[image] for image in ids], dtype=torch.int8)

    target_codes = table(targets)
    reference_codes = table(references)
    return AttributeCodes(target_codes, target_codes != reference_codes, table(images))


def nuisance_of(spec: Spec, part: WorldPart, index: int) -> _garments.Nuisance:
    """Return the nuisance of picture `index` of a part, fixed by world, split, category and index."""
    return _garments.sample_nuisance(Stream(spec.world, "picture", part.split, part.category, index))


def _group_sizes(stream: Stream, images: int, twins: float) -> list[int]:
    """Draw sizes for groups of equal garments: they sum to `images`, and an image's group holds `twins` on average.

    An image's group size is first uniform on 1 .. 2 * twins - 1 (its mean is `twins`); then single images move between
    groups until the sum of squares, which is images * mean, is right to the nearest integer.
    """
    largest = 2 * twins - 1
    whole = int(largest)
    fraction = int((largest - whole) * 65536)
    sizes: list[int] = []
    remaining = images
    while remaining > 0:
        size = 1 + stream.below(whole + (stream.below(65536) < fraction))
        if stream.below(size) == 0:  # a group of s images counts s times in a mean over images
            sizes.append(min(size, remaining))
            remaining -= size
    excess = sum(size * size for size in sizes) - round(twins * images)
    for _ in range(100 * images):
        if abs(excess) <= 1:
            break
        giver = stream.below(len(sizes))
        taker = stream.below(len(sizes) + 1)  # one above the last: a new group
        taker_size = sizes[taker] if taker < len(sizes) else 0
        change = 2 * (taker_size - sizes[giver]) + 2
        if giver != taker and abs(excess + change) < abs(excess):
            excess += change
            sizes[giver] -= 1
            sizes[taker : taker + 1] = [taker_size + 1]
            sizes = [size for size in sizes if size]
    return sizes


def fits_one(spec: Spec, category: str) -> bool:
    """Whether one category has enough different garments for each split."""
    most = FIXED.most * _possible(category)
    for split in SPLITS:
        images = spec.images(split)
        if images <= most:
            continue
        stream = Stream(spec.world, "plan", split, category)
        if len(_group_sizes(stream, images, spec.twins)) > most:
            return False
    return True


def _possible(category: str) -> int:
    """Count the different garments of a category."""
    return prod(len(_garments.values(category, name)) for name in ATTRIBUTES)


def _check_possible(category: str, count: int) -> None:
    possible = _possible(category)
    if count > FIXED.most * possible:
        raise OptionError(
            f"{count:,} different garments of category {category} are needed, but only {FIXED.most:.0%} of the "
            f"{possible:,} possible ones may be used: ask for fewer images or more twins"
        )


def _free_garments(stream: Stream, category: str, count: int) -> list[Attributes]:
    """Draw `count` different garments; each differs in one to three attributes from another one."""
    garments = [sample_attributes(stream, category)]
    seen = {*garments}
    while len(garments) < count:
        fresh = stream.chance(FIXED.fresh) and len(garments) + 2 <= count  # with a neighbour of its own
        base = sample_attributes(stream, category) if fresh else stream.pick(garments)
        neighbour = mutate(stream, base, stream.between(1, FIXED.mutated))
        for garment in (base, neighbour):
            if garment not in seen:
                garments.append(garment)
                seen.add(garment)
    return garments


def _garments_in_lines(stream: Stream, category: str, lines: Sequence[int]) -> list[Attributes]:
    """Draw a different garment for each entry of `lines`: a line's first one is new, the others are mutations of it."""
    garments: dict[Attributes, int] = {}
    first: dict[int, Attributes] = {}
    while len(garments) < len(lines):
        line = lines[len(garments)]
        garment = mutate(stream, first[line], FIXED.apart) if line in first else sample_attributes(stream, category)
        if garment not in garments:
            garments[garment] = line
            first.setdefault(line, garment)
    return list(garments)


def _queries(
    stream: Stream,
    garments: list[Attributes],
    image_groups: list[int],
    sizes: list[int],
    lines: Sequence[int],
    count: int,
) -> list[tuple[int, int]]:
    """Draw (reference, target) of every query within one line; targets are spread evenly over all images.

    Args:
        stream: of random numbers.
        garments: of each group.
        image_groups: group of each image.
        sizes: images of each group.
        lines: line of each group.
        count: number of queries.
    """
    codes = np.array([codes_of(garment) for garment in garments])
    line = np.array(lines)
    images = len(image_groups)
    members = group_pairs((group, image) for image, group in enumerate(image_groups))
    by_size = sorted(stream.shuffle(range(images)), key=lambda image: sizes[image_groups[image]])

    @lru_cache(maxsize=1024)
    def distances_to(group: int) -> tuple[Any, list[int]]:
        """Return [groups] int8 distances, and the possible ones by weight; for a lone garment, the nearest one's."""
        distance = np.where(line == line[group], (codes != codes[group]).sum(1), 0).astype(np.int8)
        possible = [changes for changes in FIXED.changes if changes in distance]
        return distance, possible or [distance[distance > 0].min()]

    queries = []
    for number in range(count):
        target = by_size[(2 * number + 1) * images // (2 * count)]
        distance, possible = distances_to(image_groups[target])
        groups = np.flatnonzero(distance == stream.pick(possible)).tolist()
        queries.append((stream.pick(members[stream.pick(groups)]), target))
    return stream.shuffle(queries)


# --- the folder --------------------------------------------------------------------------------------------------


def ensure(cache: Path, spec: Spec) -> Path:
    """Return the data set's folder below `cache`, built if missing; of several processes one builds, others wait.

    Raises:
        DataError: the cache cannot be written.
    """
    folder = cache / spec.folder
    if (folder / MANIFEST).exists():
        return folder
    try:
        with lock_file(cache / f".{spec.folder}.lock"):
            for left_over in cache.glob(f".{spec.folder}.building-*"):  # a live maker would hold the lock
                shutil.rmtree(left_over)
            if not folder.exists():
                _build(folder, spec)
    except DataError:
        raise
    except (OSError, NegbenchError) as error:  # the latter from the lock's folder
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{folder} cannot be written ({why}): set NEGBENCH_CACHE to a writable folder") from error
    return folder


def garments_of(folder: Path) -> dict[str, Attributes]:
    """Read image id -> attributes of a folder that `check` has found sound."""
    table = json.loads(read_json_text(folder / "attributes.json"))
    return {image: Attributes(**attributes) for image, attributes in table.items()}


def check(folder: Path) -> Spec:
    """Check a folder's annotation files by the hashes in `synthetic.json`, and return what it was made from.

    Raises:
        DataError: no manifest, one that is not ours or of another generator, or an annotation file changed or lost.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(read_json_text(path))
        generator = int(raw["generator"])
        files = dict(raw["files"])
        raw["pixels"]  # must be there
        if generator != GENERATOR:
            raise DataError(f"{folder} was made by generator {generator}, this is {GENERATOR}: leave root out")
        spec = Spec(**{field.name: raw["spec"][field.name] for field in fields(Spec)})
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{folder} has no {MANIFEST}: leave root out, and the data set is built in the cache"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OptionError) as error:
        raise DataError(
            f"cannot read {path} ({error}): leave root out, or set NEGBENCH_CACHE, to build it anew"
        ) from error
    for name, digest in files.items():
        file = folder / name
        if not file.is_file():
            raise DataError(f"{file} is missing: leave root out")
        if sha256_of(file) != digest:
            raise DataError(f"{file} was changed: move the folder elsewhere and make it again")
    return spec


def _build(folder: Path, spec: Spec) -> None:
    """Build in a temporary folder, then rename it."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.building-", dir=folder.parent) as scratch:
        building = Path(scratch) / folder.name
        building.mkdir()
        parts = [plan(spec, split, category) for split, category in product(SPLITS, CATEGORIES)]
        manifest = {
            "generator": GENERATOR,
            "spec": asdict(spec),
            "files": _write_annotations(building, parts),
            "pixels": _write_images(building, spec, parts),
        }
        _write_json(building / MANIFEST, manifest)
        building.rename(folder)


def _write_annotations(folder: Path, parts: list[WorldPart]) -> dict[str, str]:
    """Write every file but the images; return path below `folder` -> SHA-256."""
    contents: dict[str, Any] = {}
    relevance: dict[str, dict[str, list[list[str]]]] = {}
    all_attributes: dict[str, dict[str, str]] = {}
    for part in parts:
        captions = []
        for (reference, target), pair in zip(part.queries, part.captions, strict=True):
            captions.append(
                {"target": part.images[target], "candidate": part.images[reference], "captions": list(pair)}
            )
        tags = {}
        for image, attributes in zip(part.images, part.attributes, strict=True):
            tags[image] = attribute_words(attributes)
            all_attributes[image] = asdict(attributes)
        name = f"{part.category}.{part.split}.json"
        contents[f"image_splits/split.{name}"] = part.images
        contents[f"captions/cap.{name}"] = captions
        contents[f"tags/asin2attr.{name}"] = tags
        relevance.setdefault(part.split, {})[part.category] = part.relevant()
    contents["relevance.json"] = relevance
    contents["attributes.json"] = all_attributes
    return {name: _write_json(folder / name, content) for name, content in contents.items()}


def _write_json(path: Path, content: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    raw = (json.dumps(content, indent=1) + "\n").encode()
    path.write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


def _write_images(folder: Path, spec: Spec, parts: list[WorldPart]) -> str:
    """Write every picture as PNG; return the SHA-256 over the pixels of all."""
    from PIL import Image

    digest = hashlib.sha256()
    for part in parts:
        target = folder / "images" / part.category
        target.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(part.images):
            pixels = render(part.attributes[index], nuisance_of(spec, part, index))
            digest.update(pixels.tobytes())
            Image.fromarray(pixels).save(target / f"{image}.png", compress_type=_HUFFMAN)
    return digest.hexdigest()
