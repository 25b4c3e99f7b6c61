"""Random numbers that depend on a seed and a counter only.

Such a number is the same for any block size, any order of the rows, any split of them over processes and any device.
The function is SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014,
fig. 16-17), in int64 arithmetic, which wraps as uint64 does.
"""

from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # odd number nearest to 2^64 / golden ratio: the step of the counter
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)  # the two multipliers of the paper's mix64variant13
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def splitmix(seed: Tensor, count: Tensor) -> Tensor:
    """Output number `count` (0-based) of the SplitMix64 stream that starts at `seed`.

    Args:
        seed: int64, any shape; its 64 bits are read as they are.
        count: int64, broadcast against `seed`.

    Returns:
        int64 of the broadcast shape: 64 random bits each.
    """
    bits = seed + (count + 1) * _GOLDEN  # from here on in place: half the time
    bits ^= shift_right(bits, 30)
    bits *= _MIX_1
    bits ^= shift_right(bits, 27)
    bits *= _MIX_2
    bits ^= shift_right(bits, 31)
    return bits


def uniform(seed: Tensor, count: Tensor) -> Tensor:
    """Return float64 in (0, 1), never 0 or 1, from `splitmix(seed, count)` and of its shape."""
    return (shift_right(splitmix(seed, count), 12).double() + 0.5) * 2.0**-52  # exact in float64


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical right shift of int64; torch's `>>` copies the sign."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)
