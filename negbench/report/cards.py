"""Cards of images: a query with what several runs retrieve for it and drew as its negatives."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Relation = Literal["target", "relevant", "other", "unknown", "reference"]

THUMB = 84  # pixels, longer side


@dataclass(frozen=True)
class Thumb:
    """One image with its caption. `relation`: to the query; "unknown" where only the target is annotated."""

    image: str
    source: str  # data URI
    caption: str
    relation: Relation


@dataclass(frozen=True)
class Strip:
    """A row of images under a label."""

    label: str
    thumbs: tuple[Thumb, ...]
    remark: str = ""


@dataclass(frozen=True)
class Card:
    """One query. `why`: what it was chosen for."""

    title: str
    why: str
    text: str
    reference: Thumb
    target: Thumb
    strips: tuple[Strip, ...]


def data_uri(image: Image) -> str:
    """The image as a small JPEG inside a data URI."""
    small = image.convert("RGB")
    small.thumbnail((THUMB, THUMB))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=78, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
