"""Checks a data set on disk: counts against its card, every image file, copies, and a manifest of hashes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from negbench.contracts import check_option
from negbench.datasets.dataset import Dataset
from negbench.datasets.image_files import ImageFiles
from negbench.errors import DataError, OptionError
from negbench.registry import registry

DEFAULT_SPLITS = ("train", "val")  # what a run reads

Progress = Callable[[int, int], None]  # images checked, images in all


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        kind: `load` (a split that cannot be read, with a target outside its gallery for one), `counts` (not the
            published number), `missing`, `empty`, `undecodable`, or `duplicate` (images of equal pixels).
        splits: where it was found; empty for what was decoded, each file once for all splits.
        images: ids concerned.
        detail: one line.
    """

    kind: str
    splits: tuple[str, ...]
    images: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Checked:
    """A split that could be read."""

    split: str
    identity: str
    content: str  # hash of the annotation files
    queries: int
    gallery: dict[str, int]
    published: bool  # whether its card has counts to compare with


@dataclass(frozen=True)
class Entry:
    """An image in the manifest: path relative to the data set's folder where it lies in it, bytes and SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass
class Verification:
    """What `verify` found. Clean where `problems` is empty."""

    dataset: str
    splits: list[Checked] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    manifest: dict[str, Entry] = field(default_factory=dict)

    def to_dict(self, *, manifest: bool) -> dict[str, Any]:
        """For JSON, with or without the manifest."""
        values = {**asdict(self), "images": len(self.manifest)}
        return values if manifest else {key: value for key, value in values.items() if key != "manifest"}


def verify(
    name: str,
    options: Mapping[str, Any],
    *,
    splits: Sequence[str] = (),
    images: bool = True,
    workers: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Check one data set.

    Args:
        name: registry key.
        options: of its `load` (root, ...), without split, images and allow_missing.
        splits: to check; left out, train and val, as far as the data set has them.
        images: whether image files are checked; without, counts and targets alone.
        workers: threads that decode images; 0 is one.
        progress: called with (images checked, images in all).

    Raises:
        DataError: no split can be read.
        OptionError: an option that is not the data set's.
    """
    check_option("workers", workers, workers >= 0, ">= 0")
    taken = {"split", "images", "allow_missing"} & set(options)
    if taken:
        raise OptionError(f"{sorted(taken)[0]} is set by the check itself: leave it out")
    found = Verification(name)
    faults: list[Exception] = []
    files: dict[str, ImageFiles] = {}
    bad: dict[str, tuple[str, list[str]]] = {}
    for split in splits or DEFAULT_SPLITS:
        try:
            annotated: Dataset = registry.make("datasets", name, **options, split=split, images=False)
        except OptionError as error:  # a split that the data set does not have, unless it was asked for
            if splits:
                raise
            faults.append(error)
            found.notes.append(f"{split} is left out: {error}")
            continue
        except DataError as error:
            faults.append(error)
            found.problems.append(Problem("load", (split,), (), str(error)))
            continue
        _check_annotations(found, split, annotated)
        located = _locate(found, name, options, split) if images and annotated.has_images else None
        if located is not None:
            lacking = located.missing(annotated.all_images)
            for image, why in lacking.items():
                bad.setdefault(image, (why, []))[1].append(split)
            files |= {image: located for image in annotated.all_images if image not in lacking}
    if not images:
        found.notes.append("images are not checked")
    if not found.splits:
        raise next((fault for fault in faults if isinstance(fault, DataError)), faults[0])
    for image, (why, of) in bad.items():
        kind = "empty" if why == "empty file" else "missing"
        found.problems.append(Problem(kind, tuple(of), (image,), f"{image}: {why}"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # metadata that PIL finds odd does not change the pixels
        _check_images(found, files, workers, progress)
    return found


def _check_annotations(found: Verification, split: str, data: Dataset) -> None:
    """Counts against the card; relevant images that are in no gallery are noted: they are left out of scores."""
    counts = data.counts
    remarks = data.card.remarks(data.split, counts)
    found.problems.extend(Problem("counts", (split,), (), remark) for remark in remarks)
    found.notes.extend(remark for remark in data.remarks if remark not in (*remarks, *found.notes))
    inside = {group: {data.images[c] for c in columns.tolist()} for group, columns in data.groups.items()}
    outside = sum(image not in inside[query.group] for query in data.queries for image in query.relevant)
    if outside:
        found.notes.append(f"{split}: {outside:,} relevant images are outside the gallery of their query")
    found.splits.append(
        Checked(
            split=split,
            identity=data.identity,
            content=data.content,
            queries=len(data.queries),
            gallery={group: count.gallery for group, count in counts.items()},
            published=bool(data.card.expected.get(data.split)),
        )
    )


def _locate(found: Verification, name: str, options: Mapping[str, Any], split: str) -> ImageFiles | None:
    """Where the images of a split lie; None, and a problem, where too little is there to load it."""
    try:
        data: Dataset = registry.make("datasets", name, **options, split=split, images=True, allow_missing=True)
    except DataError as error:  # no image at all, or two different files of one id
        found.problems.append(Problem("load", (split,), (), str(error)))
        return None
    return data.files


def _shown(files: ImageFiles, image: str) -> str:
    """How the manifest names an image's file: relative to the data set's folder where it lies in it."""
    path = files.path(image)
    return (path.relative_to(files.root) if path.is_relative_to(files.root) else path).as_posix()


def _check_images(
    found: Verification, files: Mapping[str, ImageFiles], workers: int, progress: Progress | None
) -> None:
    """Decode every file once, fill the manifest, and find images of equal pixels."""
    same: dict[str, list[str]] = {}
    paths = [located.path(image) for image, located in files.items()]
    pool = ThreadPoolExecutor(workers or 1)
    try:
        for done, (image, each) in enumerate(zip(files, pool.map(_decode, paths), strict=True), start=1):
            shown = _shown(files[image], image)
            found.manifest[image] = Entry(shown, each.size, each.sha256)
            if each.error:
                found.problems.append(Problem("undecodable", (), (image,), f"{shown}: {each.error}"))
            else:
                same.setdefault(each.pixels, []).append(image)
            if progress is not None:
                progress(done, len(paths))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for the images in hand alone
    for images in same.values():
        if len(images) > 1:
            found.problems.append(Problem("duplicate", (), tuple(images), f"equal pixels: {', '.join(images)}"))


class _Decoded(NamedTuple):
    """One image file: its size and SHA-256, the SHA-256 of its pixels, and why it cannot be decoded, if so."""

    size: int
    sha256: str
    pixels: str
    error: str


def _decode(path: Path) -> _Decoded:
    """Read and decode one file; a fault of the file is in `error`, on one line."""
    from PIL import Image as pil

    try:
        raw = path.read_bytes()
    except OSError as error:
        return _Decoded(0, "", "", error.strerror or str(error))
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        with pil.open(path) as opened:  # its errors name the file
            shown = opened.convert("RGBA")
    except Exception as error:  # a damaged file can make PIL raise anything
        return _Decoded(len(raw), sha256, "", (str(error).splitlines() or [type(error).__name__])[0])
    digest = hashlib.sha256(f"{shown.size}".encode())
    digest.update(shown.tobytes())
    return _Decoded(len(raw), sha256, digest.hexdigest(), "")
