"""Tables that come in parts, held once."""

from collections.abc import Mapping

from torch import Tensor


def put(tables: dict[str, Tensor], part: Mapping[str, Tensor], rows: Tensor, count: int) -> None:
    """Write [rows, ...] values into [count, ...] tables, made at the first part: concatenation holds all of it twice.

    Args:
        tables, part: by name; a table is on the device of its first part.
        rows: int64 indices of the part's rows in the tables.
        count: rows of a table.
    """
    for name, value in part.items():
        if name not in tables:
            tables[name] = value.new_empty(count, *value.shape[1:])
        tables[name][rows] = value
