from typing import Any

import pytest
import torch

from negbench.contracts import BankStep, ScoreView
from negbench.errors import NegbenchError
from negbench.mining.ask import ask_for_synthetic
from negbench.strategies.mochi import Mochi
from negbench.testing import toy_bank_step


def bank_view(rows: int = 4, images: int = 9) -> ScoreView:
    """Return a view of negative scores; its last row allows no image."""
    scores = -torch.rand(rows, 1 + images, generator=torch.Generator().manual_seed(1)) - 0.1
    allowed = torch.ones_like(scores, dtype=torch.bool)
    allowed[-1] = False
    return ScoreView(scores, torch.zeros(rows, dtype=torch.int64), allowed)


def answered(answer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is made of a plug-in's answer, which may be a function of the step."""
    monkeypatch.setattr(Mochi, "synthetic", lambda self, step: answer(step) if callable(answer) else answer)
    return ask_for_synthetic(Mochi(), toy_bank_step(Mochi(), bank_view()))


def wrote(step: BankStep) -> tuple[torch.Tensor, torch.Tensor]:
    step.images.mul_(-1)
    return one(), there()


def one(rows: int = 4, tokens: int = 1, width: int = 8, value: float = 8**-0.5) -> torch.Tensor:
    return torch.full((rows, 5, tokens, width), value)


def there(rows: int = 4) -> torch.Tensor:
    return torch.ones(rows, 5, dtype=torch.bool)


ANSWERS = [
    (None, "must return two tensors: the tokens, and a mask of those that exist"),
    ((one(), there(), there()), "must return two tensors"),
    ((one(), [True] * 5), "must return two tensors"),
    ((one()[:, :, 0], there()), r"must return \[4, S, 1, 8\] tokens, got \(4, 5, 8\)"),
    ((one(rows=3), there(3)), r"must return \[4, S, 1, 8\] tokens, got \(3, 5, 1, 8\)"),
    ((one(tokens=2), there()), r"got \(4, 5, 2, 8\)"),
    ((one(width=7), there()), r"got \(4, 5, 1, 7\)"),
    ((one(), there()[:, :4]), r"must return a \(4, 5\) bool tensor as the mask, got \(4, 4\) torch.bool"),
    ((one(), there().float()), r"got \(4, 5\) torch.float32"),
    ((one().long(), there()), "must return float tokens on cpu, got torch.int64"),
    ((one(value=1.0), there()), "must return finite tokens of unit norm"),
    ((one(value=float("nan")), there()), "must return finite tokens of unit norm"),
    ((one(value=float("nan")), ~there()), "must return finite tokens of unit norm"),
    (wrote, "modified its inputs"),
]


@pytest.mark.parametrize(("answer", "message"), ANSWERS)
def test_what_no_plug_in_may_answer(answer, message, monkeypatch):
    with pytest.raises(NegbenchError, match=f"^Mochi.synthetic.*{message}"):
        answered(answer, monkeypatch)


@pytest.mark.parametrize(
    "answer", [(one().half(), there()), (one(value=0.0), ~there()), (one()[:, :0], there()[:, :0])]
)
def test_half_precision_and_absent_zeros_are_taken(answer, monkeypatch):
    assert answered(answer, monkeypatch) is answer
