"""How much passes a backbone at once: a function of the backbone and of the size of its inputs, never of free memory.

A matrix product may round differently for another number of rows. Were a batch's size an option, or what happens to
fit, two machines would give one run two results.
"""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.overrides import TorchFunctionMode

EMBED_BATCH = 512  # texts, queries or images embedded at a time, at most
ENCODE_BATCH = 128  # images whose features are stored that are encoded at a time, at most
_BYTES = 2**21  # of an item: the largest operation of EMBED_BATCH takes at most a gibibyte, of ENCODE_BATCH a quarter
_MULTIPLE = 8  # of which a smaller batch is one


def batch_size(limit: int, operation_bytes: int) -> int:
    """Return how many items pass at once: `limit`, or fewer where an item takes much memory.

    Args:
        limit: EMBED_BATCH or ENCODE_BATCH.
        operation_bytes: what the largest operation reads and writes for one item (`largest_operation`).
    """
    fitting = limit * _BYTES // max(1, operation_bytes)
    if fitting >= limit:
        return limit
    if fitting >= _MULTIPLE:
        return fitting // _MULTIPLE * _MULTIPLE
    return max(1, fitting)


def largest_operation(compute: Callable[[int], object]) -> int:
    """Return the bytes that the largest operation of a computation reads and writes for each item.

    Args:
        compute: called with 1 and with 2, the number of items. What an operation reads besides them (weights) is the
            same for both.
    """
    one = _operations(compute, 1)
    two = _operations(compute, 2)
    if len(one) != len(two):  # other operations for one item: weights cannot be told apart
        return max(two, default=0) // 2
    return max((after - before for before, after in zip(one, two, strict=True)), default=0)


def _operations(compute: Callable[[int], object], items: int) -> list[int]:
    """Return the bytes that each operation read and wrote."""
    with _Operations() as operations:
        compute(items)
    sizes: list[int] = operations.bytes
    return sizes


class _Operations(TorchFunctionMode):
    """Notes the bytes of the tensors that each function of torch read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = list[int]()

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.bytes.append(_bytes_of(args) + _bytes_of((kwargs or {}).values()) + _bytes_of([result]))
        return result


def _bytes_of(values: Iterable[object]) -> int:
    """Return the bytes of the tensors among values, and in tuples and lists among them."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.nbytes
        elif isinstance(value, tuple | list):
            total += _bytes_of(value)
    return total
