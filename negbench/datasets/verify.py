"""Check a data set on disk: counts against its card, every image file, and copies."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.datasets.dataset import Dataset
from negbench.datasets.overlap import overlap
from negbench.errors import DataError, OptionError
from negbench.files.image_files import THREADS, NothingLeftError, decode_ahead
from negbench.files.picture_kinds import picture_remarks
from negbench.plugins.registry import option_defaults, registry

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_SPLITS = ("train", "val")  # what a run reads

Progress = Callable[[int, int], None]  # images checked, images in all


def _no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Problem:
    """One problem found.

    Args:
        kind: `load` (a split that cannot be read, e.g. with a target outside its gallery), `counts` (not the
            published number), `missing` (no file, or an empty one), `undecodable`, or `duplicate` (images of equal
            pixels).
        detail: one line.
        images: ids concerned.
        split: split with the problem; empty for decoding, as each file is decoded once for all splits.
    """

    kind: str
    detail: str
    images: tuple[str, ...] = ()
    split: str = ""


@dataclass(frozen=True)
class CheckedSplit:
    """A split that could be read."""

    split: str
    identity: str
    queries: int
    gallery: dict[str, int]
    published: bool  # whether its card has counts to compare with


@dataclass
class CheckedDataset:
    """Result of `verify`; clean if `problems` is empty."""

    dataset: str
    splits: list[CheckedSplit] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: int = 0  # decoded


def verify(
    name: str,
    options: Mapping[str, Any],
    *,
    splits: Sequence[str] = (),
    images: bool = True,
    workers: int = THREADS,
    progress: Progress = _no_progress,
) -> CheckedDataset:
    """Check one data set.

    Args:
        name: registry key.
        options: options of its `load` (root, ...), without split, images and allow_missing.
        splits: splits to check; if left out, train and val, as far as the data set has them.
        images: whether to check image files; otherwise counts and targets only.
        workers: threads that decode images, >= 1.
        progress: called with (images checked, images in all).

    Raises:
        DataError: no split can be read.
        OptionError: an option that the data set does not have.
    """
    reserved = sorted({"split", "images", "allow_missing"} & set(options))
    if reserved:
        raise OptionError(f"{reserved[0]} is set by the check itself: leave it out")
    result = CheckedDataset(name)
    faults: list[Exception] = []
    files: dict[str, Path] = {}
    parts: dict[str, Dataset] = {}
    for split in splits or DEFAULT_SPLITS:
        try:
            data: Dataset = registry.make("datasets", name, **options, split=split, images=False)
            parts[split] = data
            _check_annotations(result, split, data)
            if images and data.has_images:
                files |= _locate_images(result, name, options, split, data)
        except OptionError as error:  # a split that the data set does not have, unless it was asked for
            if splits:
                raise
            faults.append(error)
            result.notes.append(f"{split} is left out: {error}")
        except DataError as error:
            faults.append(error)
            result.problems.append(Problem("load", str(error), split=split))
    if {"train", "val"} <= parts.keys():
        result.notes += overlap(parts["train"], parts["val"])
    if not images:
        result.notes.append("images are not checked")
    if not result.splits:
        raise next((fault for fault in faults if isinstance(fault, DataError)), faults[0])
    with warnings.catch_warnings(action="ignore"):  # metadata that PIL finds odd does not change the pixels
        _check_images(result, files, workers, progress)
        result.notes += _kinds_of_pictures(name, options, files)
    return result


def _kinds_of_pictures(name: str, options: Mapping[str, Any], files: Mapping[str, Path]) -> list[str]:
    """Count pictures that are read otherwise than viewers show them, for benchmarks, too."""
    as_shown = None
    if "as_shown" in option_defaults(registry.get("datasets", name)):
        as_shown = bool(options.get("as_shown"))
    return picture_remarks(files.values(), as_shown=as_shown)


def _check_annotations(result: CheckedDataset, split: str, data: Dataset) -> None:
    """Check counts against the card, and note relevant images outside the gallery, which scores leave out."""
    counts = data.counts
    remarks = data.card.remarks(data.split, counts)
    result.problems.extend(Problem("counts", remark, split=split) for remark in remarks)
    result.notes.extend(remark for remark in data.remarks if remark not in (*remarks, *result.notes))
    galleries = {group: set(ids) for group, ids in data.images_by_group().items()}
    outside = 0
    for query in data.queries:
        outside += sum(image not in galleries[query.group] for image in query.relevant)
    if outside:
        result.notes.append(f"{split}: {outside:,} relevant images are outside the gallery of their query")
    gallery = {group: count.gallery for group, count in counts.items()}
    published = bool(data.card.expected.get(data.split))
    result.splits.append(CheckedSplit(split, data.identity, len(data.queries), gallery, published))


def _locate_images(
    result: CheckedDataset, name: str, options: Mapping[str, Any], split: str, data: Dataset
) -> dict[str, Path]:
    """Return the file of each image of a split that has one; report the others, and a split that loses all queries."""
    try:
        files = registry.make("datasets", name, **options, split=split, allow_missing=True).files
    except NothingLeftError as error:
        result.problems.append(Problem("load", str(error), split=split))
        files = error.files
    lacking = files.missing(data.all_images)
    for image, why in lacking.items():
        result.problems.append(Problem("missing", f"{image}: {why}", (image,), split))
    return {image: files.path(image) for image in data.all_images if image not in lacking}


def _check_images(result: CheckedDataset, files: Mapping[str, Path], workers: int, progress: Progress) -> None:
    """Decode every file once, and find images of equal pixels."""
    same: dict[str, list[str]] = {}
    for image, pixels in zip(files, decode_ahead(files.values(), _pixels, threads=workers), strict=True):
        result.images += 1
        if isinstance(pixels, DataError):
            result.problems.append(Problem("undecodable", str(pixels), (image,)))
        else:
            same.setdefault(pixels, []).append(image)
        progress(result.images, len(files))
    for images in same.values():
        if len(images) > 1:
            result.problems.append(Problem("duplicate", f"equal pixels: {', '.join(images)}", tuple(images)))


def _pixels(image: "Image") -> str:
    """Return the SHA-256 of a picture's size and pixels."""
    pixels = image.convert("RGBA")
    return hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()
