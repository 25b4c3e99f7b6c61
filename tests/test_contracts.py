"""Contract types shared by modules: what they check, fill in and reject."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench import contracts
from negbench.contracts import BatchStrategy, LossInput, Range, ScoreView, Strategy, relevance, tunable
from negbench.errors import NegbenchError, OptionError
from negbench.plugins.registry import registry

SCORES = torch.tensor([[-0.5, -0.1, -0.5, -0.9], [0.25, 0.5, 0.25, 0.25]])
TARGET = torch.tensor([2, 1])

# --- Backbone ---------------------------------------------------------------------------------------------------------


def test_pairs_are_crossed_whatever_device_the_tokens_are_on():
    """The meta device stands for a GPU: its tensors cannot index those of the CPU."""
    features = torch.ones(3, 1, 8, device="meta")
    rows = list[int]()

    def queries(some: Tensor, tokens: dict[str, Tensor]) -> Tensor:
        rows.extend(tokens["row"].tolist())
        return some[:, 0]

    backbone: Any = SimpleNamespace(queries=queries)
    assert contracts.Backbone.cross_queries(backbone, features, {"row": torch.arange(5)}, chunk=4).shape == (3, 5, 8)
    assert rows == 3 * list(range(5))


# --- ScoreView --------------------------------------------------------------------------------------------------------


def test_a_view_completes_its_arguments():
    view = ScoreView(SCORES, TARGET)
    assert view.allowed.tolist() == [[True, True, False, True], [True, False, True, True]]
    assert view.positive.tolist() == [-0.5, 0.5]
    assert view.order.tolist() == [[1, 0, 2, 3], [1, 0, 2, 3]]  # ties are ordered by column
    assert view.order is view.order
    assert (view.refresh, view.relevant, view.temperature, view.dim) == (0, None, contracts.DEFAULT_TEMPERATURE, 0)
    empty = ScoreView(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert (empty.allowed.shape, empty.positive.shape, empty.order.shape) == ((0, 5), (0,), (0, 5))


def test_view_takes_arrays():
    planes = {"target": SCORES.numpy()}
    view = ScoreView(SCORES.numpy(), TARGET.numpy(), SCORES.numpy() > -0.4, relevant=SCORES.numpy() > 0, planes=planes)
    assert torch.equal(view.scores, SCORES)
    assert torch.equal(view.plane("target"), SCORES)
    assert view.allowed.tolist() == [[False, True, False, False], [True, False, True, True]]
    assert view.window(view.allowed, 1).tolist() == [[False, True, False, False], [True, False, False, False]]
    with pytest.raises(NegbenchError, match=r"plane 'judge' is not in this view \(it has target\): declare it in"):
        view.plane("judge")


def test_view_takes_the_target_out_of_a_copy():
    allowed = torch.ones(2, 4, dtype=torch.bool)
    allowed[0, 0] = False
    view = ScoreView(SCORES, TARGET, allowed)
    assert view.allowed.tolist() == [[False, True, False, True], [True, False, True, True]]
    assert allowed[0].tolist() == [False, True, True, True]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scores": SCORES[0]}, r"scores must be a \[B, N\] float tensor, got \(4,\)"),
    ({"scores": SCORES.long()}, r"scores must be .* torch.int64"),
    ({"target": TARGET[:1]}, r"target must be a \(2,\) int64 tensor, got \(1,\)"),
    ({"target": TARGET.int()}, r"target must be .* torch.int32"),
    ({"target": torch.tensor([0, 4])}, r"target must be in 0..3, got 0..4"),
    ({"target": torch.tensor([-1, 1])}, r"target must be in 0..3, got -1..1"),
    ({"allowed": torch.ones(2, 3, dtype=torch.bool)}, r"allowed must be a \(2, 4\) bool tensor, got \(2, 3\)"),
    ({"allowed": torch.ones(2, 4)}, r"allowed must be .* torch.float32"),
    ({"relevant": torch.ones(1, 4, dtype=torch.bool)}, r"relevant must be a \(2, 4\) bool tensor"),
    ({"planes": {"guide": SCORES[:1]}}, r"plane guide must be a \(2, 4\) float tensor, got \(1, 4\)"),
    ({"planes": {"guide": SCORES.long()}}, r"plane guide must be .* torch.int64"),
]


def test_view_refuses_what_does_not_fit(subtests):
    for changes, message in REFUSED:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            ScoreView(**{"scores": SCORES, "target": TARGET, **changes})


# --- options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fields:
    fixed: int = 1
    k: int = tunable(100, low=10, high=1000, log=True)
    how: str = tunable("a", choices=("a", "b"))


def test_ranges_stand_beside_the_defaults(subtests):
    assert (_Fields().k, _Fields().how) == (100, "a")
    ranges = contracts.tunable_ranges(_Fields)
    assert list(ranges.items()) == [("k", Range(10, 1000, log=True)), ("how", Range(choices=("a", "b")))]
    for span in [{}, {"low": 1}, {"high": 1}, {"low": 1, "high": 2, "choices": (1,)}]:
        with subtests.test(span=span), pytest.raises(ValueError, match="either low and high, or choices"):
            tunable(1, **span)


def test_check_option_quotes_the_value():
    contracts.check_option("k", 3, True, ">= 1")
    with pytest.raises(OptionError, match=r"^k must be >= 1, got 'three'$"):
        contracts.check_option("k", "three", False, ">= 1")


def test_a_strategy_must_define_pool():
    @dataclass(frozen=True)
    class Nothing(Strategy):
        pass

    with pytest.raises(TypeError, match="pool"):
        Nothing()
    assert (Strategy.scope, Strategy.n_def) == ("corpus", 6)
    assert (BatchStrategy.scope, BatchStrategy.corrupts, BatchStrategy.n_def) == ("batch", ("target",), 1)


DECLARED: list[tuple[type, dict[str, object], str]] = [
    (Strategy, {"scope": "batch"}, "Mine: subclass negbench.BatchStrategy"),
    (Strategy, {"scope": "both"}, "Mine: subclass negbench.BatchStrategy"),
    (BatchStrategy, {"scope": "both"}, "Mine: subclass negbench.BatchStrategy"),
    (Strategy, {"corrupts": ("target",)}, "do not set `scope`"),
    (Strategy, {"scope": "batch", "corrupts": ("target",)}, "Mine: subclass negbench.BatchStrategy"),
    (BatchStrategy, {"scope": "corpus"}, "Mine: subclass negbench.BatchStrategy"),
    (BatchStrategy, {"corrupts": ("targets",)}, "unknown slot 'targets' in Mine.corrupts: did you mean 'target'"),
    (BatchStrategy, {"corrupts": ()}, r"Mine.corrupts must be a tuple of reference, .*, got \(\)"),
    (BatchStrategy, {"corrupts": "target"}, "Mine.corrupts must be a tuple of .*, got 'target'"),
    (BatchStrategy, {"corrupts": ("bank",)}, "the slot 'bank' and negbench.BankStrategy require each other"),
    (contracts.BankStrategy, {"corrupts": ("target",)}, "the slot 'bank' and negbench.BankStrategy require each other"),
    (Strategy, {"reads": ("guides",)}, "unknown plane 'guides' in Mine.reads: did you mean 'guide'"),
    (Strategy, {"reads": ["guide"]}, "Mine.reads must be a tuple of"),
    (Strategy, {"schedule": 3}, "unknown schedule '3' in Mine.schedule"),
]


def test_what_a_strategy_declares_exists(subtests):
    for base, declared, message in DECLARED:
        with subtests.test(message), pytest.raises(NegbenchError, match=message):
            type("Mine", (base,), declared)


def test_what_a_backbone_offers_is_asked_of_its_methods():
    tiny = registry.make("backbones", "tiny", weights="random")
    offers = (contracts.HoldsFeatures, contracts.FreezesTexts, contracts.HasSubQueries, contracts.ComposesTexts)
    assert [isinstance(tiny, offer) for offer in offers] == [False, True, True, True]
    assert [issubclass(registry.get("backbones", "vectors"), offer) for offer in offers] == [True] * 4
    assert not issubclass(registry.get("backbones", "blip2"), contracts.ComposesTexts)


# --- Loss -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen(contracts.Loss):
    """Check that all arguments are filled in, then return the temperature."""

    def value(self, given: LossInput) -> Tensor:
        assert given.mask.dtype == given.candidate_mask.dtype == torch.bool
        assert given.mask.shape == given.weights.shape == given.negatives.shape
        assert given.mask.all()
        assert (given.weights == 1).all()
        assert given.candidates.shape == given.candidate_mask.shape == (2, 0)
        return torch.as_tensor(given.temperature)


def test_loss_completes_its_arguments():
    call = (torch.zeros(2), torch.zeros(2, 3))
    assert _Seen()(*call) == pytest.approx(contracts.DEFAULT_TEMPERATURE)
    assert _Seen()(*call, temperature=0.5) == 0.5
    assert _Seen(tau=0.25)(*call, temperature=0.5) == 0.25


def test_loss_refuses_what_does_not_fit():
    positive = torch.zeros(2)
    negatives = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"got \(2, 1\) and \(2, 3\)"):
        _Seen()(positive[:, None], negatives)
    with pytest.raises(ValueError, match=r"mask must be \(2, 3\), got \(2, 2\)"):
        _Seen()(positive, negatives, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"weights must be \(2, 3\), got \(2,\)"):
        _Seen()(positive, negatives, None, positive)
    aspect = contracts.AspectScores("colour", positive, negatives, torch.tensor(1.0), positive > 0)
    with pytest.raises(ValueError, match="_Seen has no term for aspects"):
        _Seen().evaluate(LossInput(positive, negatives, aspects=[aspect]))
    with pytest.raises(ValueError, match="_Seen uses no candidates"):
        _Seen().evaluate(LossInput(positive, negatives, candidates=negatives))


# --- relevance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3])
def test_relevance_is_the_best_token(tokens):
    for learns in [False, True]:
        generator = torch.Generator().manual_seed(0)
        queries = torch.randn(2, 4, generator=generator)
        candidates = -queries.sum(0) * torch.rand(5, tokens, 4, generator=generator)
        want = torch.zeros(2, 5)
        for row, query in enumerate(queries):
            for column, image in enumerate(candidates):
                want[row, column] = max(float(query @ token) for token in image)
        assert (want < 0).any(), f"learns: {learns}"
        with torch.set_grad_enabled(learns):
            torch.testing.assert_close(relevance(queries, candidates), want)


def test_paired_relevance_is_relevance_of_ones_own_images():
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(3, 4, generator=generator)
    images = torch.randn(6, 2, 4, generator=generator)
    columns = torch.tensor([[0, 5], [2, 2], [4, 1]])
    want = relevance(queries, images).gather(1, columns)
    torch.testing.assert_close(contracts.paired_relevance(queries, images[columns]), want)


def test_evaluation_mode_leaves_every_module_in_its_own():
    """Every module, also a frozen tower in evaluation mode, gets its own mode back, even after an error."""
    backbone = registry.make("backbones", "tiny", weights="random").train()
    next(module for module in backbone.children() if next(module.children(), None) is not None).eval()
    before = [module.training for module in backbone.modules()]
    assert {True, False} == set(before)
    within = list[bool]()

    def fail() -> None:
        with backbone.evaluating():
            within.extend(module.training for module in backbone.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert set(within) == {False}
    assert [module.training for module in backbone.modules()] == before
