"""Garments of the synthetic data: their attributes, and how pictures of one garment differ; `_rendering` draws them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

from negbench.datasets.stream import Stream

READS = ("_garments.toml",)
CATEGORIES = ("dress", "shirt", "toptee")
ATTRIBUTES = ("colour", "sleeve", "neckline", "pattern", "length", "print")
_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
COLOURS: dict[str, tuple[int, int, int]] = _TABLES["colours"]
SLEEVES: dict[str, int] = _TABLES["sleeves"]
LENGTHS: dict[str, dict[str, int]] = _TABLES["lengths"]
WIDTHS: dict[str, list[int]] = _TABLES["widths"]
_VALUES = {"colour": COLOURS, "sleeve": SLEEVES, **_TABLES["shapes"]}  # of attributes that are alike in every category


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a garment; two images with equal attributes are relevant to the same queries."""

    category: str
    colour: str
    sleeve: str
    neckline: str
    pattern: str
    length: str
    print: str

    def differences(self, other: Self) -> tuple[str, ...]:
        """Return the names of the attributes that differ, in the order of ATTRIBUTES."""
        return tuple(name for name in ATTRIBUTES if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class Nuisance:
    """Variation between images of one garment; the fields are integers, with 256 for 1."""

    shift: tuple[int, int]  # half pixels right and down
    tilt: int  # clockwise, 1024 * tangent
    mirror: bool
    arm: tuple[int, int]  # 1024 times the sine and cosine of the arms' angle
    scale: int
    brightness: int
    cast: tuple[int, int, int]  # colour of the light
    slope: int  # how much brighter one side is than the other
    period: int  # of the pattern, in canonical units
    phase: int
    backdrop: str  # one of BACKDROPS
    backdrop_colours: tuple[tuple[int, int, int], tuple[int, int, int]]
    backdrop_period: int  # in pixels of the grid
    noise: int  # half range of the pixel noise, of 255
    grain: int  # key of the noise's random stream


BACKDROPS = ("plain", "gradient", "checks", "bands", "blotches")


@dataclass(frozen=True)
class PictureNumbers:
    """How pictures of one garment differ; of two numbers the first is the least, the second the most.

    Args:
        pale: per cent of the pictures with a pale background, as shop pictures mostly have.
        pale_colours: of 255, of a pale background.
        other_colours: of 255, of another background.
        second_colour: most by which the background's second colour differs from the first, of 255.
        right: half pixels to the right or left, at most.
        down: half pixels down or up, at most.
        tilt: most, 1024 times the tangent of the angle.
        mirrored: per cent.
        arms: 1024 times the sine and the cosine of the angle by which the arms stand off; each is as likely.
        scale: 256 times the size.
        brightness: of 256.
        cast: of 256, of each colour of the light.
        slope: most by which one side is brighter than the other, of 256.
        period: of the cloth's pattern, in 1024ths of the picture.
        phase: end of the range of the pattern's shift, in 1024ths of the picture.
        backdrop_period: of the background's pattern, in half pixels.
        noise: half ranges of the pixel noise, of 255; each is as likely.
    """

    pale: int = 60
    pale_colours: tuple[int, int] = (150, 250)
    other_colours: tuple[int, int] = (30, 220)
    second_colour: int = 60
    right: int = 18
    down: int = 14
    tilt: int = 200
    mirrored: int = 50
    arms: tuple[tuple[int, int], ...] = ((290, 982), (392, 946), (490, 899), (587, 839), (679, 766))  # 17 to 42 degrees
    scale: tuple[int, int] = (215, 305)
    brightness: tuple[int, int] = (180, 296)
    cast: tuple[int, int] = (224, 288)
    slope: int = 70
    period: tuple[int, int] = (84, 124)
    phase: int = 1024
    backdrop_period: tuple[int, int] = (12, 40)
    noise: tuple[int, ...] = (4, 8, 16, 28)


FIXED = PictureNumbers()


@cache
def values(category: str, attribute: str) -> tuple[str, ...]:
    """Values that an attribute (one of ATTRIBUTES) may take in a category."""
    return tuple(LENGTHS[category] if attribute == "length" else _VALUES[attribute])


def codes_of(attributes: Attributes) -> list[int]:
    """Return the index of each attribute's value, in the order of ATTRIBUTES and `values`."""
    return [values(attributes.category, name).index(getattr(attributes, name)) for name in ATTRIBUTES]


def of_codes(category: str, codes: Sequence[int]) -> Attributes:
    """Return the garment with these indices, the inverse of `codes_of`. Raises IndexError if there is none."""
    named = {name: values(category, name)[code] for name, code in zip(ATTRIBUTES, codes, strict=True)}
    return Attributes(category, **named)


def sample_attributes(stream: Stream, category: str) -> Attributes:
    """Draw a garment of a category, every attribute uniform over its values."""
    return Attributes(category, **{name: stream.pick(values(category, name)) for name in ATTRIBUTES})


def mutate(stream: Stream, attributes: Attributes, count: int) -> Attributes:
    """Set `count` random attributes of a garment to other values."""
    new = {field.name: getattr(attributes, field.name) for field in fields(attributes)}
    for name in stream.shuffle(ATTRIBUTES)[:count]:
        new[name] = stream.pick([value for value in values(attributes.category, name) if value != new[name]])
    return Attributes(**new)


def sample_nuisance(stream: Stream) -> Nuisance:
    """Draw pose, scale, shade, background and noise of one picture."""
    colours = FIXED.pale_colours if stream.chance(FIXED.pale) else FIXED.other_colours
    first = tuple(stream.between(*colours) for _ in range(3))
    most = FIXED.second_colour
    second = tuple(min(255, max(0, value + stream.between(-most, most))) for value in first)
    return Nuisance(
        shift=(stream.between(-FIXED.right, FIXED.right), stream.between(-FIXED.down, FIXED.down)),
        tilt=stream.between(-FIXED.tilt, FIXED.tilt),
        mirror=stream.chance(FIXED.mirrored),
        arm=stream.pick(FIXED.arms),
        scale=stream.between(*FIXED.scale),
        brightness=stream.between(*FIXED.brightness),
        cast=(stream.between(*FIXED.cast), stream.between(*FIXED.cast), stream.between(*FIXED.cast)),
        slope=stream.between(-FIXED.slope, FIXED.slope),
        period=stream.between(*FIXED.period),
        phase=stream.below(FIXED.phase),
        backdrop=stream.pick(BACKDROPS),
        backdrop_colours=((first[0], first[1], first[2]), (second[0], second[1], second[2])),
        backdrop_period=stream.between(*FIXED.backdrop_period),
        noise=stream.pick(FIXED.noise),
        grain=stream.raw(),
    )
