"""Pictures as viewers show them, and not as their pixels are stored: a path FOLDER/@shown/NAME reads FOLDER/NAME so."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.machine.received import open_picture, open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

_SHOWN = "/@shown/"


def shown_path(path: Path) -> Path:
    """Return the path that reads a picture as viewers show it; of a file inside a tar file the path itself."""
    return path if ".tar/@" in str(path) else path.parent / _SHOWN.strip("/") / path.name


def plain_path(path: Path | str) -> Path | None:
    """Return the file that such a path reads; None for any other path."""
    folder, mark, name = str(path).rpartition(_SHOWN)
    return Path(folder, name) if mark and "/" not in name else None


def is_transparent(image: "Image") -> bool:
    """Whether a part of a picture is not opaque."""
    if "transparency" in image.info and image.mode != "P":
        return True
    if "transparency" not in image.info and image.mode not in ("RGBA", "LA", "PA", "RGBa", "La"):
        return False
    extrema: Any = image.convert("RGBA").getchannel("A").getextrema()
    lowest, _ = extrema
    return bool(lowest < 255)


def shown_picture(path: Path) -> bytes:
    """Return a picture as viewers show it, as a PNG: turned as its EXIF says, transparent parts on white."""
    from PIL import Image as pil
    from PIL import ImageOps

    with open_regular(path) as file, open_picture(path, file) as image:
        image.load()
        turned = ImageOps.exif_transpose(image)
        if is_transparent(image):
            layer = turned.convert("RGBA")
            white = pil.new("RGBA", layer.size, "white")
            turned = pil.alpha_composite(white, layer).convert("RGB")
        elif turned.mode not in ("1", "L", "P", "RGB", "I;16"):
            turned = turned.convert("RGB")
        png = io.BytesIO()
        turned.save(png, "png", compress_level=1)
        return png.getvalue()
