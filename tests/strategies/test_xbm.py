from __future__ import annotations

import pytest

from negbench.errors import NegbenchError
from negbench.strategies.xbm import Xbm
from negbench.testing import as_sets, toy_view


def test_the_pool_is_what_is_allowed() -> None:
    """Its steps are in tests/loop/test_extensions.py."""
    view = toy_view(6, 20, sign="negative")
    assert as_sets(Xbm().pool(view)) == [{j for j in range(20) if view.allowed[i, j]} for i in range(6)]
    assert (Xbm().queue, Xbm(queue=3).queue) == (8192, 3)


def test_bad_options_are_quoted() -> None:
    with pytest.raises(NegbenchError, match="queue must be a whole number >= 1, got 0"):
        Xbm(queue=0)
