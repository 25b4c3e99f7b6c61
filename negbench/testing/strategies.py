"""The conformance suite of strategies: what mining relies on, checked on toy score tables."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from operator import itemgetter, methodcaller

import pytest
import torch
from torch import Tensor

from negbench.contracts import BatchStrategy, Epoch, OrderedBatches, ScoreView, Strategy, SyntheticStrategy
from negbench.errors import NegbenchError
from negbench.mining.ask import ask_for_synthetic
from negbench.testing.worlds import SIGNS, check_frozen, check_quoted, global_generators, toy_bank_step, toy_view

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _views(strategy: Strategy) -> Iterator[ScoreView]:
    """Yield tables of every sign, with and without ties, narrower than most k, and square for a batch strategy."""
    for columns, sign, ties in itertools.product((8, 40), SIGNS, (False, True)):
        rows = columns if isinstance(strategy, BatchStrategy) else 8
        yield _hide_undeclared(strategy, toy_view(rows, columns, seed=columns, sign=sign, ties=ties))


def _hide_undeclared(strategy: Strategy, view: ScoreView) -> ScoreView:
    """Return the view with only the planes that the strategy declares, so that it cannot read others."""
    return _change_view(view, planes={name: view.planes[name] for name in strategy.reads})


def _change_view(view: ScoreView, **changes: object) -> ScoreView:
    return dataclasses.replace(view, **changes)  # type: ignore[arg-type]


def _of_tables(view: ScoreView, change: Callable[[Tensor], Tensor], target: Tensor) -> ScoreView:
    """Return the view with `change` applied to all its [B, N] tables, and another target."""
    assert view.relevant is not None
    tables = {name: change(getattr(view, name)) for name in ("scores", "allowed", "relevant")}
    kinds = None if view.kinds is None else change(view.kinds)
    planes = {name: change(plane) for name, plane in view.planes.items()}
    return _change_view(view, target=target, kinds=kinds, planes=planes, **tables)


def _check_pool(pool: Tensor, view: ScoreView) -> None:
    """Assert that a pool is [B, N], a mask or finite weights >= 0, on allowed images only."""
    assert pool.shape == view.scores.shape
    assert pool.dtype == torch.bool or pool.is_floating_point()
    assert bool((pool.isfinite() & (pool >= 0)).all())
    assert not ((pool > 0) & ~view.allowed).any()


def _same(pool: Tensor, want: Tensor, why: str) -> None:
    """Assert equal masks, or weights equal up to rounding; `why` they must be is a part of the message."""
    if pool.dtype == want.dtype == torch.bool:
        assert torch.equal(pool, want), why
    else:
        torch.testing.assert_close(pool, want, msg=lambda text: f"{why}\n{text}")


class StrategyTestCase:
    """Subclass it as ``TestX`` and define a fixture `strategy` that returns an instance.

    Every toy view has ground truth (`relevant`), for rules that need more than scores.
    """

    @pytest.fixture
    def strategy(self) -> Strategy:
        """The strategy under test."""
        raise NotImplementedError("define the fixture `strategy` in your test class")

    def test_is_a_frozen_dataclass(self, strategy: Strategy) -> None:
        """Its fields are its hyperparameters: an instance can be compared, replaced, and not written to."""
        check_frozen(strategy)

    def test_bad_options_are_quoted(self, strategy: Strategy) -> None:
        """A value that no option can have raises a NegbenchError of one line that names the option and the value."""
        for field in dataclasses.fields(strategy):
            check_quoted(strategy, field.name, "no such value")

    def test_form(self, strategy: Strategy) -> None:
        """[B, N] on the scores' device: a mask, or finite weights >= 0, for every precision and sign."""
        for small, dtype, device in itertools.product(_views(strategy), DTYPES, DEVICES):
            view = _of_tables(small, methodcaller("to", device), small.target.to(device))
            planes = {name: plane.to(dtype) for name, plane in view.planes.items()}
            view = _change_view(view, scores=view.scores.to(dtype), planes=planes)
            pool = strategy.pool(view)
            assert pool.device == view.scores.device
            assert not pool.requires_grad
            _check_pool(pool, view)
            assert not (pool > 0).gather(1, view.target[:, None]).any()

    def test_precision(self, strategy: Strategy) -> None:
        """Scores that every precision holds exactly give the same pool in each."""
        for sign in SIGNS:
            exact = (torch.float16, torch.float32, torch.float64)
            views = [toy_view(12, 12, seed=3, sign=sign, dtype=dtype) for dtype in exact]
            pools = [strategy.pool(_hide_undeclared(strategy, view)) > 0 for view in views]
            assert torch.equal(pools[0], pools[1])
            assert torch.equal(pools[1], pools[2])

    def test_small_and_flat_tables(self, strategy: Strategy) -> None:
        """Corpora of one to five images, at any refresh; no queries; scores that are all equal."""
        for columns, number in itertools.product(range(1, 6), range(3)):
            view = _hide_undeclared(strategy, toy_view(columns, columns, seed=columns, sign=SIGNS[number]))
            _check_pool(strategy.pool(_change_view(view, refresh=(0, 1, 100)[(columns + number) % 3])), view)
        assert strategy.pool(_hide_undeclared(strategy, toy_view(0, 8))).shape == (0, 8)
        view = _hide_undeclared(strategy, toy_view(8, 8, seed=1))
        flat = _change_view(view, scores=torch.full_like(view.scores, -0.25))
        _check_pool(strategy.pool(flat), flat)

    def test_pure(self, strategy: Strategy) -> None:
        """The same view gives the same pool, from a new instance too; no global generator moves, no input changes.

        The pool shares no memory with the view: mining may write into a pool.
        """
        state = global_generators()
        for view in _views(strategy):
            names = ("scores", "target", "allowed", "relevant", "kinds")
            tensors = {name: getattr(view, name) for name in names} | dict(view.planes)
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            pool = strategy.pool(view)
            _same(dataclasses.replace(strategy).pool(_change_view(view)), pool, "the same view must give the same pool")
            pool.zero_()
            for name, tensor in tensors.items():
                assert torch.equal(tensor, before[name]), name
        assert global_generators() == state

    def test_rows_are_independent(self, strategy: Strategy) -> None:
        """A corpus strategy treats each score row on its own; a batch strategy does not depend on the rows' order."""
        for view in _views(strategy):
            order = torch.randperm(len(view.target), generator=torch.Generator().manual_seed(7))
            parts = [order] if isinstance(strategy, BatchStrategy) else order.split(2)
            rows = [strategy.pool(_of_tables(view, itemgetter(part), view.target[part])) for part in parts]
            why = "a query's pool must not depend on the order of the queries"
            if not isinstance(strategy, BatchStrategy):
                why = "a query's pool must not depend on which other queries are in the view: use no random numbers"
            _same(torch.cat(rows), strategy.pool(view)[order], why)

    def test_columns_are_permutable(self, strategy: Strategy) -> None:
        """Where no scores tie, the corpus index does not matter."""
        for sign in SIGNS:
            view = _hide_undeclared(strategy, toy_view(30, 30, seed=11, sign=sign))
            order = torch.randperm(30, generator=torch.Generator().manual_seed(7))
            moved = _of_tables(view, itemgetter((slice(None), order)), order.argsort()[view.target])
            _same(strategy.pool(moved), strategy.pool(view)[:, order], "the order of the images must not matter")

    def test_disallowed_images_are_as_if_absent(self, strategy: Strategy) -> None:
        """The score of a disallowed image has no effect."""
        for view in _views(strategy):
            absent = ~view.allowed.scatter(1, view.target[:, None], True)
            want = strategy.pool(view)
            for score in (-0.96875, 0.96875):
                planes = {name: plane.masked_fill(absent, score) for name, plane in view.planes.items()}
                other = _change_view(view, scores=view.scores.masked_fill(absent, score), planes=planes)
                _same(strategy.pool(other), want, "scores of images that are not `view.allowed` must not matter")

    def test_only_oracles_read_the_ground_truth(self, strategy: Strategy) -> None:
        """A strategy that knows the relevant images declares `reads_truth`, and refuses to run without them."""
        if strategy.reads_truth:
            with pytest.raises(NegbenchError, match="needs ground truth"):
                strategy.pool(_change_view(_hide_undeclared(strategy, toy_view(8, 8)), relevant=None))
            return
        for view in _views(strategy):
            blind = strategy.pool(_change_view(view, relevant=None, kinds=None))
            _same(blind, strategy.pool(view), "a rule that reads `view.relevant` must declare reads_truth = True")

    def test_planes_may_be_partial(self, strategy: Strategy) -> None:
        """A file of scores may lack pairs: their scores are NaN, which must not reach a pool."""
        for view in _views(strategy):
            hole = torch.rand(view.scores.shape, generator=torch.Generator().manual_seed(5)) < 0.4
            planes = {name: plane.masked_fill(hole, torch.nan) for name, plane in view.planes.items()}
            _check_pool(strategy.pool(_change_view(view, planes=planes)), view)

    def test_synthetic(self, strategy: Strategy) -> None:
        """Finite tokens of unit norm, the same for the same random numbers, only for queries with a pool."""
        if not isinstance(strategy, SyntheticStrategy):
            pytest.skip("the strategy makes no negatives of embeddings")
        state = global_generators()
        for tokens in (1, 3):
            view = toy_view(8, 30, seed=1, sign="negative")
            column = torch.zeros_like(view.target)
            allowed = view.allowed.scatter(1, column[:, None], False)
            view = _hide_undeclared(strategy, _change_view(view, target=column, allowed=allowed))
            negatives, present = ask_for_synthetic(strategy, toy_bank_step(strategy, view, tokens=tokens))
            assert bool(present.any())
            assert not bool(present[~allowed.any(1)].any())
            again, _ = ask_for_synthetic(strategy, toy_bank_step(strategy, view, tokens=tokens))
            assert torch.equal(negatives, again)
        assert global_generators() == state

    def test_order(self, strategy: Strategy) -> None:
        """A permutation of the queries, random only through the epoch's generator, for any batch size."""
        if not isinstance(strategy, OrderedBatches):
            pytest.skip("the strategy leaves the order of the queries to chance")
        generator = torch.Generator().manual_seed(3)
        queries = torch.nn.functional.normalize(torch.randn(23, 8, generator=generator), dim=1)
        target = torch.randint(9, (23,), generator=generator)
        before = global_generators()
        for size in (2, 5, 23, 64):
            seeded = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
            orders = [strategy.order(Epoch(1, target, size, generator, lambda: queries)) for generator in seeded]
            assert all(torch.equal(order.sort().values, torch.arange(23)) for order in orders)
            assert torch.equal(orders[0], orders[1])
            assert not torch.equal(orders[0], orders[2])
        assert global_generators() == before
