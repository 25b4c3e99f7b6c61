"""Examples: a query with the images that several runs retrieve for it and drew as its negatives."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Relation = Literal["target", "relevant", "other", "unknown", "reference"]

THUMB = 84  # pixels, longer side


@dataclass(frozen=True)
class Thumbnail:
    """One image with its caption. `relation`: to the query; "unknown" where only the target is annotated."""

    image: str
    picture: str  # key in `Pictures.images`
    caption: str
    relation: Relation


@dataclass(frozen=True)
class ImageRow:
    """A row of images under a label."""

    label: str
    thumbs: tuple[Thumbnail, ...]
    remark: str = ""


@dataclass(frozen=True)
class Example:
    """One query. `why`: the reason why it was chosen."""

    title: str
    why: str
    text: str
    reference: Thumbnail
    target: Thumbnail
    strips: tuple[ImageRow, ...]


@dataclass
class Pictures:
    """Thumbnails of a page, each image once. `images`: key -> (data URI, width, height in pixels)."""

    prefix: str
    images: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, open_image: "Callable[[], Image]") -> str:
        """Return an image's key; opens and shrinks the image the first time its name occurs."""
        if name not in self._keys:
            small = open_image().convert("RGB")
            small.thumbnail((THUMB, THUMB))
            buffer = io.BytesIO()
            small.save(buffer, format="WEBP", quality=60, method=4)
            uri = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
            self._keys[name] = f"{self.prefix}{len(self._keys)}"
            self.images[self._keys[name]] = (uri, *small.size)
        return self._keys[name]
