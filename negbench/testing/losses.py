"""The conformance suite of losses: what training relies on, checked on toy scores."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from negbench.contracts import AspectScores, Loss, LossInput
from negbench.errors import NegbenchError
from negbench.testing.worlds import check_frozen, check_quoted, toy_scores

TEMPERATURES = (0.01, 0.07, 1.0)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _gradients(value: Tensor, *inputs: Tensor) -> Sequence[Tensor]:
    return torch.autograd.grad(value, inputs)


class LossTestCase:
    """Subclass it as ``TestX`` and define a fixture `loss` that returns an instance with `tau` left out."""

    @pytest.fixture
    def loss(self) -> Loss:
        """The loss under test."""
        raise NotImplementedError("define the fixture `loss` in your test class")

    def test_is_a_frozen_dataclass(self, loss: Loss) -> None:
        """Its fields are its hyperparameters: an instance can be compared, replaced, and not written to."""
        check_frozen(loss)

    def test_bad_options_are_quoted(self, loss: Loss) -> None:
        """NaN raises a NegbenchError of one line that names the option and the value.

        A negative number does, too, unless the option's default is one.
        """
        for field in dataclasses.fields(loss):
            value = getattr(loss, field.name)
            if field.name != "tau" and not isinstance(value, float):
                continue
            check_quoted(loss, field.name, math.nan)
            if value is None or value >= 0:
                check_quoted(loss, field.name, -1.0)

    def test_scalar_and_finite(self, loss: Loss) -> None:
        """A finite scalar and finite gradients, in every precision, at low temperatures, for huge and tiny scores."""
        cases = [(dtype, temperature, 1.0) for dtype, temperature in itertools.product(DTYPES, TEMPERATURES)]
        for dtype, temperature, scale in [*cases, (torch.float32, 0.07, 1e4), (torch.float32, 0.07, 1e-30)]:
            toy = toy_scores(scale=scale, dtype=dtype)
            positive = toy.positive.clone().requires_grad_()
            negatives = toy.negatives.clone().requires_grad_()
            value = loss(positive, negatives, toy.mask, toy.weights, temperature=temperature)
            assert value.shape == ()
            assert value.isfinite()
            assert all(g.isfinite().all() for g in _gradients(value, positive, negatives))

    def test_direction(self, loss: Loss) -> None:
        """The loss falls when a target's score rises and rises when a negative's does; masked entries have no effect.

        A loss that is not `monotone` must not rise when a target's score rises, nor when all negatives of a row fall
        together, and must fall for some row: it may be flat, and single negatives may have the opposite effect.
        """
        for seed in range(5):
            toy = toy_scores(seed=seed)
            positive = toy.positive.clone().requires_grad_()
            negatives = toy.negatives.clone().requires_grad_()
            value = loss(positive, negatives, toy.mask, toy.weights, temperature=0.5)
            of_positive, of_negatives = _gradients(value, positive, negatives)
            if loss.monotone:
                flat = "a loss that is flat in a score, or falls as a negative's rises, must declare monotone = False"
                assert (of_positive < 0).all(), flat
                assert (of_negatives[toy.mask] > 0).all(), flat
            else:
                assert (of_positive <= 0).all()
                assert (of_negatives.sum(1) >= -1e-12).all()
                assert (of_positive < 0).any()
                assert (of_negatives.sum(1) > 0).any()
            assert (of_negatives[~toy.mask] == 0).all()

    def test_gradients_are_those_of_the_value(self, loss: Loss) -> None:
        """Gradients match numerical differentiation in float64, including the temperature's."""
        toy = toy_scores(3, 3, seed=2)
        inputs = [toy.positive, toy.negatives, torch.tensor(0.3, dtype=torch.float64)]

        def value(positive: Tensor, negatives: Tensor, temperature: Tensor) -> Tensor:
            return loss(positive, negatives, toy.mask, toy.weights, temperature=temperature)

        assert torch.autograd.gradcheck(value, [tensor.clone().requires_grad_() for tensor in inputs])

    def test_mask_equals_removal(self, loss: Loss) -> None:
        """A masked negative affects neither value nor gradient, whatever its score."""
        for seed in range(5):
            toy = toy_scores(1, 6, seed=seed)
            columns = toy.mask[0]
            want = loss(toy.positive, toy.negatives[:, columns], None, toy.weights[:, columns])
            for garbage in (0.0, 1e30, math.inf, math.nan):
                filled = toy.negatives.masked_fill(~toy.mask, garbage).requires_grad_()
                temperature = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
                value = loss(toy.positive, filled, toy.mask, toy.weights, temperature=temperature)
                torch.testing.assert_close(value, want)
                inputs = (filled, temperature) if loss.uses_temperature else (filled,)
                assert all(g.isfinite().all() for g in _gradients(value, *inputs))

    def test_weights_of_one_equal_none(self, loss: Loss) -> None:
        """Weights of 1 and a mask of True throughout change nothing."""
        toy = toy_scores(seed=1)
        ones = torch.ones_like(toy.negatives)
        torch.testing.assert_close(
            loss(toy.positive, toy.negatives, ones.bool(), ones), loss(toy.positive, toy.negatives), rtol=0, atol=0
        )

    def test_weight_of_zero_equals_masked(self, loss: Loss) -> None:
        """A weight of 0 equals masking, in value and gradient."""
        toy = toy_scores(seed=4)
        negatives = toy.negatives.clone().requires_grad_()
        masked = loss(toy.positive, negatives, toy.mask, toy.weights)
        weighted = loss(toy.positive, negatives, None, toy.weights * toy.mask)
        torch.testing.assert_close(weighted, masked)
        torch.testing.assert_close(_gradients(weighted, negatives)[0], _gradients(masked, negatives)[0])

    def test_order_does_not_matter(self, loss: Loss) -> None:
        """The order of negatives and of queries has no effect."""
        toy = toy_scores(seed=5)
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(5, generator=generator)
        columns = torch.randperm(4, generator=generator)
        moved = [t[rows][:, columns] for t in (toy.negatives, toy.mask, toy.weights)]
        want = loss(*toy)
        torch.testing.assert_close(loss(toy.positive[rows], *moved), want)

    def test_rows_without_negatives_add_nothing(self, loss: Loss) -> None:
        """The value is that of the other rows, and such a row has no gradient."""
        for how in ("masked", "of no weight"):
            toy = toy_scores(seed=6)
            positive = toy.positive.clone().requires_grad_()
            mask = toy.mask.clone()
            weights = toy.weights.clone()
            (mask if how == "masked" else weights)[2] = 0
            rest = torch.tensor([0, 1, 3, 4])
            value = loss(positive, toy.negatives, mask, weights)
            torch.testing.assert_close(value, loss(positive[rest], toy.negatives[rest], mask[rest], weights[rest]))
            assert _gradients(value, positive)[0][2] == 0

    def test_no_negatives_at_all(self, loss: Loss) -> None:
        """A zero that can still be differentiated: a step on such a batch changes nothing."""
        for count in (0, 3):
            toy = toy_scores(4, 3, seed=7)
            positive, negatives = (t.clone().requires_grad_() for t in (toy.positive, toy.negatives[:, :count]))
            value = loss(positive, negatives, torch.zeros_like(negatives, dtype=torch.bool))
            assert value == 0
            assert all((g == 0).all() for g in _gradients(value, positive, negatives))

    def test_tau(self, loss: Loss) -> None:
        """A number fixes the temperature; else the caller's counts, or 0.07; a loss without one refuses `tau`."""
        toy = toy_scores(seed=8)
        if not loss.uses_temperature:
            assert loss(*toy, temperature=0.2) == loss(*toy, temperature=1.0)
            with pytest.raises(NegbenchError, match="tau must be left out"):
                dataclasses.replace(loss, tau=0.2)
            return
        fixed = dataclasses.replace(loss, tau=0.2)
        assert fixed(*toy, temperature=1.0) == loss(*toy, temperature=0.2)
        assert loss(*toy) == loss(*toy, temperature=0.07)
        unread = "a loss that reads no temperature must declare uses_temperature = False"
        assert loss(*toy, temperature=0.2) != loss(*toy, temperature=1.0), unread

    def test_aspects(self, loss: Loss) -> None:
        """A loss without a term for sub-queries refuses them; one with a term changes with them."""
        toy = toy_scores(seed=9)
        other = toy_scores(seed=10)
        weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        present = torch.tensor([True, True, False, True, True])
        aspects = (AspectScores("colour", other.positive - 1, other.negatives, weight, present),)
        if not loss.uses_aspects:
            with pytest.raises(ValueError, match="aspects"):
                loss.evaluate(LossInput(toy.positive, toy.negatives, aspects=aspects))
            return
        inputs = LossInput(toy.positive, toy.negatives, toy.mask, aspects=aspects)
        value = loss.evaluate(inputs)
        assert value > loss(toy.positive, toy.negatives, toy.mask)
        assert _gradients(value, weight)[0] > 0
        # a row without a word of the aspect is left out, whatever its scores
        moved = dataclasses.replace(aspects[0], positive=aspects[0].positive - 9 * (~present).double())
        assert loss.evaluate(dataclasses.replace(inputs, aspects=[moved])) == value

    def test_candidates(self, loss: Loss) -> None:
        """A loss that takes none refuses them; one that does changes with them, and ignores masked ones.

        It rises if the target is ranked against them; further positives may pull either way.
        """
        toy = toy_scores(seed=11)
        other = toy_scores(seed=12)
        if loss.candidate_set == "pair":
            with pytest.raises(ValueError, match="candidates"):
                loss.evaluate(LossInput(*toy, candidates=other.negatives))
            return
        candidates = other.negatives.masked_fill(~other.mask, math.nan).requires_grad_()
        value = loss.evaluate(LossInput(*toy, candidates=candidates, candidate_mask=other.mask))
        gradient = _gradients(value, candidates)[0]
        if loss.candidate_set == "relevant":
            assert value != loss(*toy)
            assert (gradient[other.mask] != 0).all()
        else:
            assert value > loss(*toy)
            assert (gradient[other.mask] > 0).all()
        assert (gradient[~other.mask] == 0).all()
