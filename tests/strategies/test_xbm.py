from __future__ import annotations

from negbench.strategies.xbm import Xbm


def test_the_queue_is_an_option() -> None:
    """Its steps are in tests/loop/test_extensions.py."""
    assert (Xbm().queue, Xbm(queue=3).queue) == (8192, 3)
