"""Preprocess against hand-made sizes and an independent few-line computation."""

from __future__ import annotations

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
        left, top = max(int((side - width) / 2), 0), max(int((side - height) / 2), 0)
        canvas = Image.new(image.mode, (width + 2 * left, height + 2 * top), 0)
        if image.mode == "P":
            canvas.putpalette(image.getpalette())
        canvas.paste(image, (left, top))
        image, (width, height) = canvas, canvas.size
    new = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    image = image.resize(new, Image.Resampling.BICUBIC)
    left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)).convert("RGB"), dtype=np.float64) / 255
    return torch.from_numpy(((pixels - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("pad", "ratio", "size", "want"),
    [
        ("target", 1.25, (200, 100), (0, 30)),  # 200 / 1.25 = 160: 30 above, 30 below
        ("target", 1.25, (100, 200), (30, 0)),
        ("target", 1.25, (101, 250), (49, 0)),  # (200 - 101) / 2 = 49.5: rounded down
        ("target", 1.25, (124, 100), (0, 0)),
        ("target", 1.25, (125, 100), (0, 0)),  # the ratio itself: nothing is missing
        ("target", 1.25, (127, 100), (0, 0)),  # 0.8 pixel a side is below one
        ("target", 1.25, (130, 100), (0, 2)),
        ("target", 1.5, (200, 100), (0, 16)),  # CIRQRS: 133.33
        ("target", 1.5, (149, 100), (0, 0)),
        ("square", 1.25, (200, 101), (0, 49)),
        ("square", 1.25, (100, 100), (0, 0)),
        ("none", 1.25, (400, 100), (0, 0)),
    ],
)
def test_padding_of_known_sizes(pad, ratio, size, want):
    assert Preprocess(pad=pad, target_ratio=ratio).padding(*size) == want


@pytest.mark.parametrize("size", [(61, 30), (30, 61), (97, 23), (33, 35)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
@pytest.mark.parametrize("ratio", [None, 1.25])
def test_equals_the_computation_by_hand(size, mode, ratio):
    image = noise(*size, mode)
    transform = Preprocess(pad="none", size=20) if ratio is None else Preprocess(target_ratio=ratio, size=20)
    pixels = transform(image)
    assert pixels.shape == (3, 20, 20)
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels.double(), by_hand(image, 20, ratio), atol=1e-5, rtol=0)


def test_palette_is_padded_with_its_first_colour():
    image = Image.new("P", (80, 20), 1)
    image.putpalette([10, 20, 30, 200, 200, 200])
    pixels = Preprocess(pad="square", size=80, mean=(0, 0, 0), std=(1, 1, 1))(image) * 255
    assert pixels[:, 0, 0].round().tolist() == [10, 20, 30]
    assert pixels[:, 40, 40].round().tolist() == [200, 200, 200]


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
