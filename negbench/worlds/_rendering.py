"""Pictures of the synthetic garments: a renderer whose pixels are the same on any machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from negbench.datasets.stream import Stream
from negbench.worlds._garments import COLOURS, LENGTHS, SLEEVES, WIDTHS, Attributes, Nuisance

Pixels = NDArray[np.uint8]
_Ints = NDArray[np.int32]
_Mask = NDArray[np.bool_]
_Paints = NDArray[np.int16]
Colour = tuple[int, int, int]

# 1024 * the outward normals of a pentagon: a point that lies inside four of the five sides is in the pentagram
_PENTAGON = ((0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316))


@dataclass(frozen=True)
class DrawingNumbers:
    """How a garment is drawn; lengths in units of which a picture is 1024 wide, y from above, x from the middle.

    Args:
        size: pixels of a side of the picture; it is drawn at twice the size, then averaged over blocks of 2 x 2.
        colours: red, green and blue of each colour, of 255.
        centre: y of the middle of the picture.
        top: y of the shoulders.
        waist: y of the waist.
        bottom: y where the last width is reached.
        widths: half widths of each category at the shoulders, the waist and the bottom.
        lengths: y of the hem for each length of a category.
        fall: the shoulders fall by one unit in so many.
        sleeves: length of each kind of sleeve.
        arm: where a sleeve begins: x from the shoulder's end inwards, y below the shoulder, and how far above.
        cuff: half width of a sleeve where it begins, and in how many units it narrows by one.
        round_neck: radius of half a circle.
        v_neck: slope of its sides, and its depth.
        square_neck: half width and depth.
        collar_neck: slope of its sides, and its depth.
        rim: width of the outline, in half pixels.
        light: weights of red, green and blue in a colour's brightness, and the sum from which it counts as light.
        dark_accent: colour of prints and marks on light cloth.
        light_accent: colour of prints and marks on dark cloth.
        lining: weight of black in the lining's colour, of 256.
        mark: weight of the accent in the pattern's colour, of 256.
        outline: weight of black in the outline's colour, of 256.
        flap: weight of the accent in the collar's colour, of 256.
        seam: weight of black in the seams' colour, of 256.
        blotch: side of a blotch of the background, in half pixels.
        dots: 100 times the square of a dot's radius, in periods of the pattern.
        block: how far below the waist the second colour of a colourblock begins.
        print_centre: y of the middle of a print.
        print_patch: radius of the plain patch around a print.
        star: distance of its sides from the middle, and its radius.
        heart: x and y of a lobe's middle, from the print's middle, its radius, and where the sides meet.
        heart_dip: from which y on its sides narrow.
        logo: half height, from line to line, height of a line, half width of the long lines, and by how much the short
            ones are shorter.
        collar_flap: depth of its corner, half width, and depth beside the neck.
        collar_slope: in so many units the flap's lower edge rises by one.
        closing: half width of the front closing under a collar.
        levels: a pixel's values are multiples of it.
    """

    size: int = 64
    colours: Mapping[str, Colour] = field(default_factory=lambda: COLOURS)
    centre: int = 475
    top: int = 150
    waist: int = 400
    bottom: int = 960
    widths: Mapping[str, Sequence[int]] = field(default_factory=lambda: WIDTHS)
    lengths: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: LENGTHS)
    fall: int = 5
    sleeves: Mapping[str, int] = field(default_factory=lambda: SLEEVES)
    arm: tuple[int, int, int] = (42, 72, 60)
    cuff: tuple[int, int] = (62, 22)
    round_neck: int = 88
    v_neck: tuple[int, int] = (2, 184)
    square_neck: tuple[int, int] = (88, 104)
    collar_neck: tuple[int, int] = (3, 130)
    rim: int = 2
    light: tuple[int, int, int, int] = (2, 5, 1, 1024)
    dark_accent: Colour = (20, 20, 24)
    light_accent: Colour = (250, 250, 250)
    lining: int = 150
    mark: int = 150
    outline: int = 130
    flap: int = 200
    seam: int = 140
    blotch: int = 16
    dots: int = 9
    block: int = 20
    print_centre: int = 392
    print_patch: int = 124
    star: tuple[int, int] = (36, 100)
    heart: tuple[int, int, int, int] = (45, 30, 57, 95)
    heart_dip: int = 10
    logo: tuple[int, int, int, int, int] = (80, 60, 36, 108, 36)
    collar_flap: tuple[int, int, int] = (400, 132, 150)
    collar_slope: int = 2
    closing: int = 14
    levels: int = 8

    @property
    def grid(self) -> int:
        """Half pixels of a side: it is drawn at twice the size."""
        return 2 * self.size


FIXED = DrawingNumbers()


def render(attributes: Attributes, nuisance: Nuisance) -> Pixels:
    """Render a garment as [size, size, 3] uint8 RGB, a pure function of the arguments, in integer arithmetic only."""
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
    grid = FIXED.grid
    step = 512 // grid  # units of half a half pixel
    axis = 2 * np.arange(grid, dtype=np.int32) + 1 - grid
    x = axis[None, :] - nuisance.shift[0]
    y = axis[:, None] - nuisance.shift[1]
    u = (step * 256 * x + step * nuisance.tilt * y // 4) // nuisance.scale
    v = (step * 256 * y - step * nuisance.tilt * x // 4) // nuisance.scale
    return (-u if nuisance.mirror else u), v + FIXED.centre


def _silhouette(attributes: Attributes, nuisance: Nuisance, side: _Ints, v: _Ints) -> tuple[_Mask, _Mask]:
    """Masks of the torso and of both sleeves."""
    shoulder, waist, bottom = FIXED.widths[attributes.category]
    upper = shoulder + (waist - shoulder) * (v - FIXED.top) // (FIXED.waist - FIXED.top)
    lower = waist + (bottom - waist) * (v - FIXED.waist) // (FIXED.bottom - FIXED.waist)
    width = np.where(v < FIXED.waist, upper, lower)
    slant = FIXED.top + side // FIXED.fall
    torso = (v >= slant) & (v <= FIXED.lengths[attributes.category][attributes.length]) & (side <= width)
    length = FIXED.sleeves[attributes.sleeve]
    if not length:
        return torso, np.zeros_like(torso)
    sine, cosine = nuisance.arm
    inwards, below, above = FIXED.arm
    half, narrowing = FIXED.cuff
    across_x = side - (shoulder - inwards)
    down = v - (FIXED.top + below)
    along = (across_x * sine + down * cosine) >> 10
    across = np.abs((across_x * cosine - down * sine) >> 10)
    sleeves = (along >= -above) & (along <= length) & (across <= half - along // narrowing) & (v >= slant)
    return torso, sleeves


def _opening(neckline: str, side: _Ints, v: _Ints) -> _Mask:
    """Mask of the neck opening."""
    depth = v - FIXED.top
    if neckline == "round":
        return side * side + depth * depth <= FIXED.round_neck**2
    if neckline == "square":
        half, deepest = FIXED.square_neck
        return (side <= half) & (depth <= deepest)
    slope, deepest = FIXED.v_neck if neckline == "v" else FIXED.collar_neck
    return slope * side + depth <= deepest


def _rim(mask: _Mask) -> _Mask:
    """Pixels of a mask whose neighbour, an outline's width up, down, left or right, is outside."""
    wide = FIXED.rim
    inner = mask.copy()
    inner[:wide] = inner[-wide:] = False
    inner[:, :wide] = inner[:, -wide:] = False
    inner[wide:] &= mask[:-wide]
    inner[:-wide] &= mask[wide:]
    inner[:, wide:] &= mask[:, :-wide]
    inner[:, :-wide] &= mask[:, wide:]
    return mask & ~inner


# --- paints: every pixel of the grid is a row of the palette ------------------------------------------------------

_LINING, _BASE, _MARK, _ACCENT, _OUTLINE, _FLAP, _SEAM = range(257, 264)  # 0..256 blend the two backdrop colours


def _palette(attributes: Attributes, nuisance: Nuisance) -> _Ints:
    """Return the [264, 3] colours of the paints."""
    first, second = (np.array(c, np.int32) for c in nuisance.backdrop_colours)
    backdrop = first + ((second - first) * np.arange(257, dtype=np.int32)[:, None] >> 8)
    base = np.array(FIXED.colours[attributes.colour], np.int32)
    black = np.zeros(3, np.int32)
    *weights, threshold = FIXED.light
    light = base @ tuple(weights) > threshold
    accent = np.array(FIXED.dark_accent if light else FIXED.light_accent, np.int32)
    # of each paint of the cloth: the colour that is mixed in, and its weight, of 256
    mixtures = (
        (black, FIXED.lining),
        (base, 256),
        (accent, FIXED.mark),
        (accent, 256),
        (black, FIXED.outline),
        (accent, FIXED.flap),
        (black, FIXED.seam),
    )
    cloth = [base * (256 - weight) + colour * weight >> 8 for colour, weight in mixtures]
    return np.concatenate([backdrop, cloth])


def _backdrop(nuisance: Nuisance) -> _Paints:
    """Return the [grid, grid] paints of the background."""
    grid = FIXED.grid
    axis = np.arange(grid, dtype=np.int32)
    x = axis[None, :]
    y = axis[:, None]
    period = nuisance.backdrop_period
    paints = np.zeros((grid, grid), np.int16)
    if nuisance.backdrop == "gradient":
        paints[:] = 256 * y // grid
    elif nuisance.backdrop == "checks":
        paints[:] = 256 * ((x // period + y // period) % 2)
    elif nuisance.backdrop == "bands":
        paints[:] = 256 * (((x + y) // period) % 2)
    elif nuisance.backdrop == "blotches":
        across = -(-grid // FIXED.blotch)
        cells = Stream(nuisance.grain, "blotches").array(across * across) & np.uint64(255)
        paints[:] = cells.astype(np.int16)[(y // FIXED.blotch) * across + x // FIXED.blotch]
    return paints


def _pattern(attributes: Attributes, nuisance: Nuisance, u: _Ints, v: _Ints, on_sleeve: _Mask) -> _Paints:
    """Return the [grid, grid] paints of the cloth, as if it covered the whole picture."""
    cloth = np.full((FIXED.grid, FIXED.grid), _BASE, np.int16)
    period = nuisance.period
    half = nuisance.period // 2
    if attributes.pattern == "striped":
        marked = (v + nuisance.phase) % period < half
    elif attributes.pattern == "checked":
        marked = ((u + nuisance.phase) % period < half // 2) | ((v + nuisance.phase) % period < half // 2)
    elif attributes.pattern == "dotted":
        across = (u + nuisance.phase) % period - half
        down = (v + nuisance.phase) % period - half
        marked = across**2 + down**2 < FIXED.dots * period * period // 100
    elif attributes.pattern == "colourblock":
        marked = on_sleeve | (v > FIXED.waist + FIXED.block)
    else:
        return cloth
    cloth[marked] = _MARK
    return cloth


def _draw_print(cloth: _Paints, name: str, u: _Ints, v: _Ints) -> None:
    """Draw what is printed on the chest, on a patch of the plain colour that keeps it apart from the pattern."""
    y = v - FIXED.print_centre
    square = u * u + y * y
    if name == "star":
        inner, outer = FIXED.star
        sides = np.zeros(square.shape, np.int8)  # of how many sides a point is inside
        for right, up in _PENTAGON:
            sides += ((u * right - y * up) >> 10) <= inner
        shape = (sides >= 4) & (square <= outer * outer)
    elif name == "heart":
        right, up, radius, tip = FIXED.heart
        lobe = np.abs(u) - right
        shape = lobe * lobe + (y + up) * (y + up) <= radius * radius
        shape |= (y >= 0) & (np.abs(u) + np.maximum(y, FIXED.heart_dip) <= tip)  # tangent to the two lobes
    else:  # the lines of a logo
        half, step, thick, wide, shorter = FIXED.logo
        line = (y + half) // step
        shape = (np.abs(y) <= half) & ((y + half) % step < thick) & (np.abs(u) <= wide - shorter * (line % 2))
    cloth[square <= FIXED.print_patch**2] = _BASE
    cloth[shape] = _ACCENT


def _draw_collar(cloth: _Paints, side: _Ints, v: _Ints) -> None:
    """Draw the two flaps of a collar and the front closing under it."""
    depth = v - FIXED.top
    slope, neck = FIXED.collar_neck
    corner, half, deepest = FIXED.collar_flap
    hang = slope * side + depth
    flap = (hang > neck) & (hang <= corner) & (side <= half) & (depth <= deepest - side // FIXED.collar_slope)
    cloth[(side <= FIXED.closing) & (hang > neck)] = _SEAM
    cloth[flap] = _FLAP
    cloth[_rim(flap)] = _SEAM


# --- the camera --------------------------------------------------------------------------------------------------


def _photograph(picture: _Ints, nuisance: Nuisance) -> Pixels:
    """Average 2x2 blocks, then light, noise and coarse levels, which keep the files small."""
    size = FIXED.size
    rows = picture[0::2] + picture[1::2]
    small = (rows[:, 0::2] + rows[:, 1::2]) >> 2
    slope = nuisance.slope * (2 * np.arange(size, dtype=np.int32) - size) // size
    light = nuisance.brightness + slope[None, :, None]
    small = ((small * light) >> 8) * np.array(nuisance.cast, np.int32) >> 8
    grain = Stream(nuisance.grain).array(size * size * 3) >> np.uint64(40)
    grain = (grain * np.uint64(2 * nuisance.noise + 1)) >> np.uint64(24)
    noisy = small + grain.astype(np.int32).reshape(size, size, 3) - nuisance.noise
    step = FIXED.levels
    levels: _Ints = ((np.clip(noisy, 0, 255) + step // 2) // step * step).clip(0, 255)
    return levels.astype(np.uint8)
