"""Preprocessing against hand-computed sizes and a short independent implementation."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from negbench.backbones._preprocess import CLIP_MEAN, CLIP_STD, Preprocess


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    if mode == "P":
        image = Image.frombytes("P", (width, height), pixels.tobytes())
        image.putpalette(np.random.default_rng(seed + 1).integers(1, 256, 768, dtype=np.uint8).tobytes())
        return image
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def by_hand(image: Image.Image, size: int, ratio: float | None) -> torch.Tensor:
    """Paste on a zero canvas, resize with PIL, slice the centre, convert, normalise: no torchvision."""
    width, height = image.size
    if ratio is not None and max(width, height) / min(width, height) >= ratio:
        side = max(width, height) / ratio
        left = max(int((side - width) / 2), 0)
        top = max(int((side - height) / 2), 0)
        canvas = Image.new(image.mode, (width + 2 * left, height + 2 * top), 0)
        if image.mode == "P":
            canvas.putpalette(image.getpalette())
        canvas.paste(image, (left, top))
        image = canvas
        width, height = canvas.size
    if width <= height:
        new_width = size
        new_height = int(size * height / width)
    else:
        new_width = int(size * width / height)
        new_height = size
    image = image.resize((new_width, new_height), Image.Resampling.BICUBIC)
    left = round((new_width - size) / 2)
    top = round((new_height - size) / 2)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)).convert("RGB"), dtype=np.float64) / 255
    return torch.from_numpy(((pixels - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1))


# the last four: exactly the ratio, 0.8 pixels per side, two pixels per side, a half that is rounded down
SIZES = [(61, 30), (30, 61), (97, 23), (33, 35), (60, 60), (125, 100), (127, 100), (130, 100), (101, 250)]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
@pytest.mark.parametrize(("pad", "ratio"), [("none", None), ("target", 1.25), ("target", 1.5), ("square", 1.0)])
def test_equals_the_computation_by_hand(subtests, pad, ratio, mode):
    transform = Preprocess(pad=pad, size=20)
    if pad == "target":
        transform = Preprocess(pad=pad, size=20, target_ratio=ratio)
    for size in SIZES:
        with subtests.test(size=size):
            image = noise(*size, mode)
            pixels = transform(image)
            assert pixels.shape == (3, 20, 20)
            assert pixels.dtype == torch.float32
            torch.testing.assert_close(pixels.double(), by_hand(image, 20, ratio), atol=1e-5, rtol=0)


def test_sixteen_bit_grey_keeps_its_shades():
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "png")
    image = Image.open(buffer)
    assert image.mode == "I;16"
    row = Preprocess(pad="none", size=64, mean=(0, 0, 0), std=(1, 1, 1))(image)[0, 0]
    torch.testing.assert_close(row, torch.linspace(0, 1, 64), atol=0.006, rtol=0)


def test_description():
    assert Preprocess().description == "target-pad 1.25, bicubic 224, mean/std clip"
    other = Preprocess(pad="none", size=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.25), interpolation="bilinear")
    assert other.description == "centre crop, bilinear 64, mean/std 0.5/0.5/0.5 0.5/0.5/0.25"
    assert Preprocess(pad="square").description.startswith("square-pad, ")
