"""Decoding image files in worker processes: light to import, so that a worker starts at once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from negbench.executors import Report


class Decoded(NamedTuple):
    """One image file: its size and SHA-256, the SHA-256 of its pixels, and why it cannot be decoded, if so."""

    image: str
    size: int
    sha256: str
    pixels: str
    error: str


def decode_all(items: Sequence[tuple[str, str]], report: Report) -> list[Decoded]:
    """(id, path) of each image -> what it holds; a task of an `Executor`."""
    return [decode(image, Path(path)) for image, path in items]


def decode(image: str, path: Path) -> Decoded:
    """Read and decode one file; a fault of the file is in `error`, on one line."""
    from PIL import Image as pil

    try:
        raw = path.read_bytes()
    except OSError as error:
        return Decoded(image, 0, "", "", error.strerror or str(error))
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # metadata that PIL finds odd does not change the pixels
            with pil.open(path) as opened:
                shown = opened.convert("RGBA")
    except Exception as error:  # a damaged file can make PIL raise anything
        return Decoded(image, len(raw), sha256, "", (str(error).splitlines() or [type(error).__name__])[0])
    digest = hashlib.sha256(f"{shown.size}".encode())
    digest.update(shown.tobytes())
    return Decoded(image, len(raw), sha256, digest.hexdigest(), "")
