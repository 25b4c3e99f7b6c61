"""Image preprocessing of the CIR models: pad, bicubic resize, centre crop, normalise; with a description for results.

Facts: the target padding is that of CLIP4Cir (Baldrati et al., 2022; their `targetpad`), which SPRC and QuRe use as it
is with a ratio of 1.25. Their order is pad, resize, crop, and only then RGB: a palette image is therefore padded with
its palette's first colour and resized by nearest neighbour, an image with transparency is resized with it and then
loses it, and CMYK is padded with its zero, white. EXIF orientation is not applied, there as here.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

Pad = Literal["target", "square", "none"]
Interpolation = Literal["bicubic", "bilinear"]


@dataclass(frozen=True)
class Preprocess:
    """Callable: PIL image of any mode -> [3, size, size] float32 pixels. Deterministic.

    Args:
        pad: "target" pads an image whose sides differ by `target_ratio` or more with zeros until they differ by just
            that; "square" pads it to a square; "none" is CLIP's own crop.
        target_ratio: longer side / shorter side after target padding, >= 1 (CLIP4Cir, SPRC and QuRe 1.25, CIRQRS 1.5).
        size: side of the result in pixels; the shorter side is resized to it, the longer one cropped at the centre.
        mean: of the three channels, in 0..1.
        std: of the three channels, > 0.
        interpolation: of the resize.
    """

    pad: Pad = "target"
    target_ratio: float = 1.25
    size: int = 224
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    interpolation: Interpolation = "bicubic"

    def __call__(self, image: Image.Image) -> Tensor:
        """PIL image -> [3, size, size] float32."""
        image = _eight_bit(image)
        columns, rows = self.padding(*image.size)
        if columns or rows:
            image = _add_border(image, columns, rows)
        width, height = image.size
        if width <= height:
            new_width = self.size
            new_height = self.size * height // width
        else:
            new_width = self.size * width // height
            new_height = self.size
        image = image.resize((new_width, new_height), Image.Resampling[self.interpolation.upper()])
        left = round((new_width - self.size) / 2)
        top = round((new_height - self.size) / 2)
        image = image.crop((left, top, left + self.size, top + self.size)).convert("RGB")
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        return (pixels - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]

    def padding(self, width: int, height: int) -> tuple[int, int]:
        """Return the pixels added at left and right each, and at top and bottom each."""
        longer = max(width, height)
        shorter = min(width, height)
        if self.pad == "none" or (self.pad == "target" and longer / shorter < self.target_ratio):
            return 0, 0
        least = longer / self.target_ratio if self.pad == "target" else longer  # of each side
        return max(int((least - width) / 2), 0), max(int((least - height) / 2), 0)

    @property
    def description(self) -> str:
        """Text for a result's row, e.g. "target-pad 1.25, bicubic 224, mean/std clip"."""
        pad = {"target": f"target-pad {self.target_ratio:g}", "square": "square-pad", "none": "centre crop"}[self.pad]
        numbers = f"{_format_colour(self.mean)} {_format_colour(self.std)}"
        if (self.mean, self.std) == (CLIP_MEAN, CLIP_STD):
            numbers = "clip"
        return f"{pad}, {self.interpolation} {self.size}, mean/std {numbers}"


def _format_colour(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:g}" for value in values)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Reduce a 16-bit grey image to its upper byte (PIL's own conversion would clip nearly all of it to white)."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _add_border(image: Image.Image, columns: int, rows: int) -> Image.Image:
    """Add so many columns of zeros on either side, and so many rows above and below."""
    bordered = ImageOps.expand(image, (columns, rows, columns, rows), fill=0)
    if image.mode == "P":  # the pixels keep their numbers: so must the palette
        bordered.putpalette(image.getpalette() or [])
    return bordered
