from __future__ import annotations

import pytest
import torch

from negbench.contracts import BankStep, ScoreView
from negbench.errors import NegbenchError
from negbench.mining.checked import synthetic_of
from negbench.strategies.mochi import Mochi
from negbench.testing import toy_bank_step


def bank_view(rows: int = 4, images: int = 9) -> ScoreView:
    """Negative scores; the last row allows no image."""
    scores = -torch.rand(rows, 1 + images, generator=torch.Generator().manual_seed(1)) - 0.1
    allowed = torch.ones_like(scores, dtype=torch.bool)
    allowed[-1] = False
    return ScoreView(scores, torch.zeros(rows, dtype=torch.int64), allowed)


def test_type_one_lies_between_two_of_the_hardest() -> None:
    for tokens in [1, 3]:
        shown = toy_bank_step(Mochi(), bank_view(), tokens=tokens)
        mixed, there = Mochi(hardest=2, pairs=50, with_query=0).synthetic(shown)
        assert mixed.shape == (4, 50, tokens, 8)
        assert there.tolist() == [[True] * 50] * 3 + [[False] * 50]
        torch.testing.assert_close(mixed.norm(dim=-1)[:3], torch.ones(3, 50, tokens))
        for row in range(3):
            hardest = shown.view.scores[row, 1:].topk(2).indices
            for token in range(tokens):
                pair = shown.images[hardest, token]  # [2, 8]
                weights = torch.linalg.lstsq(pair.T, mixed[row, :, token].T).solution
                torch.testing.assert_close(pair.T @ weights, mixed[row, :, token].T)  # in the span of the two
                assert (weights > -1e-5).all()
                kinds = (weights > 1e-5).sum(0)  # the same image twice, or both
                assert {int(kind) for kind in kinds} == {1, 2}


def test_type_two_is_nearer_to_the_negative_than_to_the_query() -> None:
    shown = toy_bank_step(Mochi(), bank_view())
    mixed, _ = Mochi(hardest=1, pairs=0, with_query=200).synthetic(shown)
    for row in range(3):
        pair = torch.stack([shown.queries[row], shown.images[shown.view.scores[row, 1:].argmax(), 0]])
        weights = torch.linalg.lstsq(pair.T, mixed[row, :, 0].T).solution
        share = weights[0] / weights.sum(0)
        assert 0 < float(share.min()) < 0.05
        assert 0.45 < float(share.max()) < 0.5
        assert abs(float(share.mean()) - 0.25) < 0.04


class Answers(Mochi):
    """Gives back whatever it was made to."""

    answer: object = None

    def synthetic(self, step: BankStep) -> tuple[torch.Tensor, torch.Tensor]:
        found = type(self).answer
        return found(step) if callable(found) else found  # type: ignore[no-any-return, return-value]


def wrote(step: BankStep) -> tuple[torch.Tensor, torch.Tensor]:
    step.images.mul_(-1)
    return one(), there()


def one(rows: int = 4, tokens: int = 1, width: int = 8, value: float = 8**-0.5) -> torch.Tensor:
    return torch.full((rows, 5, tokens, width), value)


def there(rows: int = 4) -> torch.Tensor:
    return torch.ones(rows, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return two tensors, the tokens and which of them there are"),
        ((one(), there(), there()), "must return two tensors"),
        ((one(), [True] * 5), "must return two tensors"),
        ((one()[:, :, 0], there()), r"must return \[4, S, 1, 8\] tokens, got \(4, 5, 8\)"),
        ((one(rows=3), there(3)), r"must return \[4, S, 1, 8\] tokens, got \(3, 5, 1, 8\)"),
        ((one(tokens=2), there()), r"got \(4, 5, 2, 8\)"),
        ((one(width=7), there()), r"got \(4, 5, 1, 7\)"),
        ((one(), there()[:, :4]), r"must say which there are by a \(4, 5\) bool tensor, got \(4, 4\) torch.bool"),
        ((one(), there().float()), r"got \(4, 5\) torch.float32"),
        ((one().long(), there()), "must return float tokens on cpu, got torch.int64"),
        ((one(value=1.0), there()), "must return finite tokens of unit norm"),
        ((one(value=float("nan")), there()), "must return finite tokens of unit norm"),
        ((one(value=float("nan")), ~there()), "must return finite tokens of unit norm"),
        (wrote, "wrote into what it was shown"),
    ],
)
def test_what_no_plug_in_may_answer(answer: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "answer", answer)
    with pytest.raises(NegbenchError, match=f"^Answers.synthetic.*{message}"):
        synthetic_of(Answers(), toy_bank_step(Mochi(), bank_view()))


def test_half_precision_and_absent_zeros_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ((one().half(), there()), (one(value=0.0), ~there()), (one()[:, :0], there()[:, :0])):
        monkeypatch.setattr(Answers, "answer", answer)
        assert synthetic_of(Answers(), toy_bank_step(Mochi(), bank_view())) is answer
