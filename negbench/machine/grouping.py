"""Group what is no data frame: lists of items by a key, in the order in which the keys occur."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return key -> the items that have it, both in the order in which they occur.

    >>> group_by(["cat", "ox", "dog"], len)
    {3: ['cat', 'dog'], 2: ['ox']}
    """
    return group_pairs((key(item), item) for item in items)


def group_pairs(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Return key -> its items, both in the order in which they occur.

    >>> group_pairs([("dress", 1), ("shirt", 2), ("dress", 3)])
    {'dress': [1, 3], 'shirt': [2]}
    """
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
