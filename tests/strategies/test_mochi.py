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


def take_answer(answer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is made of a plug-in's answer, which may be a function of the step."""

    def synthetic(self: Mochi, step: BankStep) -> Any:
        return answer(step) if callable(answer) else answer

    monkeypatch.setattr(Mochi, "synthetic", synthetic)
    return ask_for_synthetic(Mochi(), toy_bank_step(Mochi(), bank_view()))


def write_inputs(step: BankStep) -> tuple[torch.Tensor, torch.Tensor]:
    step.images.mul_(-1)
    return tokens(), mask()


def tokens(rows: int = 4, count: int = 1, width: int = 8, value: float = 8**-0.5) -> torch.Tensor:
    return torch.full((rows, 5, count, width), value)


def mask(rows: int = 4) -> torch.Tensor:
    return torch.ones(rows, 5, dtype=torch.bool)


ANSWERS = [
    (None, "must return two tensors: the tokens, and a mask of those that exist"),
    ((tokens(), mask(), mask()), "must return two tensors"),
    ((tokens(), [True] * 5), "must return two tensors"),
    ((tokens()[:, :, 0], mask()), r"must return \[4, S, 1, 8\] tokens, got \(4, 5, 8\)"),
    ((tokens(rows=3), mask(3)), r"must return \[4, S, 1, 8\] tokens, got \(3, 5, 1, 8\)"),
    ((tokens(count=2), mask()), r"got \(4, 5, 2, 8\)"),
    ((tokens(width=7), mask()), r"got \(4, 5, 1, 7\)"),
    ((tokens(), mask()[:, :4]), r"must return a \(4, 5\) bool tensor as the mask, got \(4, 4\) torch.bool"),
    ((tokens(), mask().float()), r"got \(4, 5\) torch.float32"),
    ((tokens().long(), mask()), "must return float tokens on cpu, got torch.int64"),
    ((tokens(value=1.0), mask()), "must return finite tokens of unit norm"),
    ((tokens(value=float("nan")), mask()), "must return finite tokens of unit norm"),
    ((tokens(value=float("nan")), ~mask()), "must return finite tokens of unit norm"),
    (write_inputs, "modified its inputs"),
]


@pytest.mark.parametrize(("answer", "message"), ANSWERS)
def test_what_no_plug_in_may_answer(answer, message, monkeypatch):
    with pytest.raises(NegbenchError, match=f"^Mochi.synthetic.*{message}"):
        take_answer(answer, monkeypatch)


@pytest.mark.parametrize(
    "answer", [(tokens().half(), mask()), (tokens(value=0.0), ~mask()), (tokens()[:, :0], mask()[:, :0])]
)
def test_half_precision_and_absent_zeros_are_taken(answer, monkeypatch):
    assert take_answer(answer, monkeypatch) is answer
