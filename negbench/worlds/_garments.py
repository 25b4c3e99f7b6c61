"""Garments of the synthetic data: attributes, nuisance, and a renderer whose pixels are the same on any machine."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from negbench.datasets.stream import Stream

Pixels = NDArray[np.uint8]
_Ints = NDArray[np.int32]
_Mask = NDArray[np.bool_]
_Paints = NDArray[np.int16]

SIZE = 64  # pixels of a side
_GRID = 2 * SIZE  # drawn at twice the size, then averaged over 2x2 blocks: soft edges
_STEP = 4  # canonical units per half pixel of the grid: the picture is 1024 units wide and high at scale 1

READS = ("_garments.toml",)
CATEGORIES = ("dress", "shirt", "toptee")
ATTRIBUTES = ("colour", "sleeve", "neckline", "pattern", "length", "print")
_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
COLOURS: dict[str, tuple[int, int, int]] = _TABLES["colours"]
SLEEVES: dict[str, int] = _TABLES["sleeves"]
LENGTHS: dict[str, dict[str, int]] = _TABLES["lengths"]
_VALUES = {"colour": COLOURS, "sleeve": SLEEVES, **_TABLES["shapes"]}  # of attributes that are alike in every category
_CENTRE = 475  # y of the middle of the picture
_TOP, _WAIST, _BOTTOM = 150, 400, 960  # y of the shoulder, the waist and where the last width is reached
_ARMS = ((290, 982), (392, 946), (490, 899), (587, 839), (679, 766))  # 1024 * (sin, cos) of 17..42 degrees
# 1024 * the outward normals of a pentagon: a point that lies inside four of the five sides is in the pentagram
_PENTAGON = ((0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316))


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

    def changed(self, other: Self) -> tuple[str, ...]:
        """Names of the attributes that differ, in the order of ATTRIBUTES."""
        return tuple(name for name in ATTRIBUTES if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class Nuisance:
    """Variation between images of one garment; the fields are integers, with 256 for 1."""

    shift: tuple[int, int]  # half pixels right and down
    tilt: int  # clockwise, 1024 * tangent
    mirror: bool
    arm: int  # index into the table of arm angles
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
        scale: 256 times the size.
        brightness: of 256.
        cast: of 256, of each colour of the light.
        slope: most by which one side is brighter than the other, of 256.
        period: of the cloth's pattern, in 1024ths of the picture.
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
    scale: tuple[int, int] = (215, 305)
    brightness: tuple[int, int] = (180, 296)
    cast: tuple[int, int] = (224, 288)
    slope: int = 70
    period: tuple[int, int] = (84, 124)
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
    return Attributes(category, **{n: values(category, n)[c] for n, c in zip(ATTRIBUTES, codes, strict=True)})


def sample_attributes(stream: Stream, category: str) -> Attributes:
    """Draw a garment of a category, every attribute uniform over its values."""
    return Attributes(category, **{name: stream.pick(values(category, name)) for name in ATTRIBUTES})


def mutate(stream: Stream, attributes: Attributes, count: int) -> Attributes:
    """Set `count` random attributes of a garment to other values."""
    chosen = stream.shuffled(ATTRIBUTES)[:count]
    new = {f.name: getattr(attributes, f.name) for f in fields(attributes)}
    for name in chosen:
        new[name] = stream.pick([v for v in values(attributes.category, name) if v != new[name]])
    return Attributes(**new)


def sample_nuisance(stream: Stream) -> Nuisance:
    """Draw pose, scale, shade, background and noise of one picture."""
    colours = FIXED.pale_colours if stream.chance(FIXED.pale) else FIXED.other_colours
    first = tuple(stream.between(*colours) for _ in range(3))
    apart = FIXED.second_colour
    second = tuple(min(255, max(0, c + stream.between(-apart, apart))) for c in first)
    return Nuisance(
        shift=(stream.between(-FIXED.right, FIXED.right), stream.between(-FIXED.down, FIXED.down)),
        tilt=stream.between(-FIXED.tilt, FIXED.tilt),
        mirror=stream.chance(FIXED.mirrored),
        arm=stream.below(len(_ARMS)),
        scale=stream.between(*FIXED.scale),
        brightness=stream.between(*FIXED.brightness),
        cast=(stream.between(*FIXED.cast), stream.between(*FIXED.cast), stream.between(*FIXED.cast)),
        slope=stream.between(-FIXED.slope, FIXED.slope),
        period=stream.between(*FIXED.period),
        phase=stream.below(1024),
        backdrop=stream.pick(BACKDROPS),
        backdrop_colours=((first[0], first[1], first[2]), (second[0], second[1], second[2])),
        backdrop_period=stream.between(*FIXED.backdrop_period),
        noise=stream.pick(FIXED.noise),
        grain=stream.raw(),
    )


def render(attributes: Attributes, nuisance: Nuisance) -> Pixels:
    """Render a garment as [SIZE, SIZE, 3] uint8 RGB, a pure function of the arguments, in integer arithmetic only."""
    u, v = _canonical(nuisance)
    side = np.abs(u)
    torso, sleeves = _silhouette(attributes, nuisance, side, v)
    opening = _opening(attributes.neckline, side, v)
    cloth = (torso | sleeves) & ~opening
    paints = _backdrop(nuisance)
    paints[torso & opening] = _LINING
    front = _pattern(attributes, nuisance, u, v, sleeves & ~torso)
    if attributes.neckline == "collar":
        _draw_collar(front, side, v)
    if attributes.print != "none":
        _draw_print(front, attributes.print, u, v)
    front[_rim(cloth) | (_rim(torso) & sleeves & torso)] = _OUTLINE
    paints[cloth] = front[cloth]
    return _photograph(_palette(attributes, nuisance)[paints], nuisance)


# --- geometry ----------------------------------------------------------------------------------------------------


def _canonical(nuisance: Nuisance) -> tuple[_Ints, _Ints]:
    """Map each grid pixel to the garment: x from -512 (left) to 512 and y from the top down, at scale 1."""
    axis = 2 * np.arange(_GRID, dtype=np.int32) + 1 - _GRID
    x = axis[None, :] - nuisance.shift[0]
    y = axis[:, None] - nuisance.shift[1]
    u = (_STEP * 256 * x + _STEP * nuisance.tilt * y // 4) // nuisance.scale
    v = (_STEP * 256 * y - _STEP * nuisance.tilt * x // 4) // nuisance.scale
    return (-u if nuisance.mirror else u), v + _CENTRE


def _silhouette(attributes: Attributes, nuisance: Nuisance, side: _Ints, v: _Ints) -> tuple[_Mask, _Mask]:
    """Masks of the torso and of both sleeves."""
    shoulder, waist, bottom = _TABLES["widths"][attributes.category]
    upper = shoulder + (waist - shoulder) * (v - _TOP) // (_WAIST - _TOP)
    lower = waist + (bottom - waist) * (v - _WAIST) // (_BOTTOM - _WAIST)
    width = np.where(v < _WAIST, upper, lower)
    slant = _TOP + side // 5  # the shoulders fall off to the sides
    torso = (v >= slant) & (v <= LENGTHS[attributes.category][attributes.length]) & (side <= width)
    length = SLEEVES[attributes.sleeve]
    if not length:
        return torso, np.zeros_like(torso)
    sine, cosine = _ARMS[nuisance.arm]
    across_x = side - (shoulder - 42)
    down = v - (_TOP + 72)
    along = (across_x * sine + down * cosine) >> 10
    across = np.abs((across_x * cosine - down * sine) >> 10)
    sleeves = (along >= -60) & (along <= length) & (across <= 62 - along // 22) & (v >= slant)
    return torso, sleeves


def _opening(neckline: str, side: _Ints, v: _Ints) -> _Mask:
    """Mask of the neck opening."""
    depth = v - _TOP
    if neckline == "round":
        return 4 * side * side + 4 * depth * depth <= 4 * 88 * 88
    if neckline == "v":
        return 2 * side + depth <= 184
    if neckline == "square":
        return (side <= 88) & (depth <= 104)
    return 3 * side + depth <= 130  # under a collar


def _rim(mask: _Mask) -> _Mask:
    """Pixels of a mask whose neighbour, two grid pixels up, down, left or right, is outside."""
    inner = mask.copy()
    inner[:2] = inner[-2:] = False
    inner[:, :2] = inner[:, -2:] = False
    inner[2:] &= mask[:-2]
    inner[:-2] &= mask[2:]
    inner[:, 2:] &= mask[:, :-2]
    inner[:, :-2] &= mask[:, 2:]
    return mask & ~inner


# --- paints: every pixel of the grid is a row of the palette ------------------------------------------------------

_LINING, _BASE, _MARK, _ACCENT, _OUTLINE, _FLAP, _SEAM = range(257, 264)  # 0..256 blend the two backdrop colours


def _palette(attributes: Attributes, nuisance: Nuisance) -> _Ints:
    """[264, 3] colours of the paints."""
    first, second = (np.array(c, np.int32) for c in nuisance.backdrop_colours)
    backdrop = first + ((second - first) * np.arange(257, dtype=np.int32)[:, None] >> 8)
    base = np.array(COLOURS[attributes.colour], np.int32)
    black = np.zeros(3, np.int32)
    light = base @ (2, 5, 1) > 8 * 128
    accent = np.array((20, 20, 24) if light else (250, 250, 250), np.int32)  # black on light, white on dark
    # of each paint of the cloth: the colour that is mixed in, and its weight, of 256
    mixed = ((black, 150), (base, 256), (accent, 150), (accent, 256), (black, 130), (accent, 200), (black, 140))
    return np.concatenate([backdrop, [base * (256 - weight) + other * weight >> 8 for other, weight in mixed]])


def _backdrop(nuisance: Nuisance) -> _Paints:
    """[grid, grid] paints of the background."""
    axis = np.arange(_GRID, dtype=np.int16)
    x = axis[None, :]
    y = axis[:, None]
    period = nuisance.backdrop_period
    paints = np.zeros((_GRID, _GRID), np.int16)
    if nuisance.backdrop == "gradient":
        paints[:] = 2 * y
    elif nuisance.backdrop == "checks":
        paints[:] = 256 * ((x // period + y // period) % 2)
    elif nuisance.backdrop == "bands":
        paints[:] = 256 * (((x + y) // period) % 2)
    elif nuisance.backdrop == "blotches":
        cells = Stream(nuisance.grain, "blotches").array(64) & np.uint64(255)
        paints[:] = cells.astype(np.int16)[(y // 16) * 8 + x // 16]
    return paints


def _pattern(attributes: Attributes, nuisance: Nuisance, u: _Ints, v: _Ints, on_sleeve: _Mask) -> _Paints:
    """[grid, grid] paints of the cloth, as if it covered the whole picture."""
    cloth = np.full((_GRID, _GRID), _BASE, np.int16)
    period = nuisance.period
    half = nuisance.period // 2
    if attributes.pattern == "striped":
        marked = (v + nuisance.phase) % period < half
    elif attributes.pattern == "checked":
        marked = ((u + nuisance.phase) % period < half // 2) | ((v + nuisance.phase) % period < half // 2)
    elif attributes.pattern == "dotted":
        across = (u + nuisance.phase) % period - half
        down = (v + nuisance.phase) % period - half
        marked = across**2 + down**2 < 9 * period * period // 100
    elif attributes.pattern == "colourblock":
        marked = on_sleeve | (v > _WAIST + 20)
    else:
        return cloth
    cloth[marked] = _MARK
    return cloth


def _draw_print(cloth: _Paints, name: str, u: _Ints, v: _Ints) -> None:
    """Draw what is printed on the chest, on a patch of the plain colour that keeps it apart from the pattern."""
    y = v - 392
    square = u * u + y * y
    if name == "star":
        sides = sum((((u * a - y * b) >> 10) <= 36).astype(np.int8) for a, b in _PENTAGON)
        shape = (sides >= 4) & (square <= 100 * 100)
    elif name == "heart":
        lobe = np.abs(u) - 45
        shape = lobe * lobe + (y + 30) * (y + 30) <= 57 * 57
        shape |= (y >= 0) & (np.abs(u) + np.maximum(y, 10) <= 95)  # down to the tip, tangent to the two lobes
    else:  # the lines of a logo
        line = (y + 80) // 60
        shape = (np.abs(y) <= 80) & ((y + 80) % 60 < 36) & (np.abs(u) <= 108 - 36 * (line % 2))
    cloth[square <= 124 * 124] = _BASE
    cloth[shape] = _ACCENT


def _draw_collar(cloth: _Paints, side: _Ints, v: _Ints) -> None:
    """Draw the two flaps of a collar and the front closing under it."""
    depth = v - _TOP
    hang = 3 * side + depth
    flap = (hang > 130) & (hang <= 400) & (side <= 132) & (depth <= 150 - side // 2)
    cloth[(side <= 14) & (hang > 130)] = _SEAM
    cloth[flap] = _FLAP
    cloth[_rim(flap)] = _SEAM


# --- the camera --------------------------------------------------------------------------------------------------


def _photograph(picture: _Ints, nuisance: Nuisance) -> Pixels:
    """Average 2x2 blocks, then light, noise and coarse levels (multiples of 8 keep the files small)."""
    rows = picture[0::2] + picture[1::2]
    small = (rows[:, 0::2] + rows[:, 1::2]) >> 2
    slope = nuisance.slope * (2 * np.arange(SIZE, dtype=np.int32) - SIZE) // SIZE
    light = nuisance.brightness + slope[None, :, None]
    small = ((small * light) >> 8) * np.array(nuisance.cast, np.int32) >> 8
    grain = Stream(nuisance.grain).array(SIZE * SIZE * 3) >> np.uint64(40)
    grain = (grain * np.uint64(2 * nuisance.noise + 1)) >> np.uint64(24)
    noisy = small + grain.astype(np.int32).reshape(SIZE, SIZE, 3) - nuisance.noise
    levels: _Ints = ((np.clip(noisy, 0, 255) + 4) // 8 * 8).clip(0, 255)
    return levels.astype(np.uint8)
