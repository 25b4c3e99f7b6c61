from collections.abc import Callable
from types import ModuleType

import pytest


def test_it_learns(example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = example("plain_pytorch").main()
    assert before < 0.05
    assert after > 0.5
    assert capsys.readouterr().out.count("refresh ") == 10
