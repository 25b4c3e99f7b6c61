from __future__ import annotations

import pytest

from negbench.errors import NegbenchError
from negbench.strategies.xbm import Xbm


def test_the_queue_is_an_option() -> None:
    """Its steps are in tests/loop/test_extensions.py."""
    assert (Xbm().queue, Xbm(queue=3).queue) == (8192, 3)


def test_bad_options_are_quoted() -> None:
    with pytest.raises(NegbenchError, match="queue must be a whole number >= 1, got 0"):
        Xbm(queue=0)
