"""Dropout by rows: masks against single rows, their statistics, and passes that are cut or computed again."""

import itertools
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from negbench.contracts import (
    RowDropout,
    Rows,
    by_rows,
    checking_generators,
    computing,
    current_rows,
    recomputing,
    torch_dropout,
)
from negbench.errors import NegbenchError, OptionError

IDS = torch.tensor([7, 0, 3, 2**40, 7])


def rows(ids: Tensor = IDS, *, seed: int = 1, step: int = 2, side: str = "query") -> Rows:
    return Rows.of(seed, step, side, ids)  # type: ignore[arg-type]


def mask(rows: Rows, shape: tuple[int, ...] = (16,), *, p: float = 0.5, layer: int = 0) -> Tensor:
    dropout = RowDropout(p)
    dropout.layer = layer
    with computing(rows):
        return dropout(torch.ones(len(rows.streams), *shape)) > 0


@pytest.mark.parametrize("shape", [(16,), (5,), (1,), (3, 7), (2, 3, 5)], ids=str)
def test_a_row_has_its_mask_in_any_batch(shape):
    """Whole, cut, in another order, and one at a time."""
    whole = mask(rows(), shape)
    for row in range(len(IDS)):
        assert torch.equal(mask(rows(IDS[[row]]), shape)[0], whole[row]), row
    order = torch.tensor([4, 1, 3])
    assert torch.equal(mask(rows(IDS[order]), shape), whole[order])
    assert torch.equal(whole[0], whole[4])  # one picture in two rows


DIFFERENT = {"seed": {"seed": 2}, "step": {"step": 3}, "side": {"side": "image"}, "id": {"ids": IDS + 1}}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_every_part_of_the_key_changes_the_masks(change):
    one = mask(rows(), (256,), p=0.5)
    other = mask(rows(**change), (256,), p=0.5)
    assert 0.4 < (one == other).float().mean() < 0.6


def test_layers_passes_and_pairs_have_masks_of_their_own():
    crossed = Rows(rows(IDS[:2]).streams, rows(IDS[1:4], side="modification").streams)
    masks = [mask(rows(), (256,), layer=layer)[0] for layer in (0, 1, 2)]
    masks += [mask(rows().again(number), (256,))[0] for number in (1, 2)]
    masks += list(mask(crossed.pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])), (256,)))
    for (first, one), (second, other) in itertools.combinations(enumerate(masks), 2):
        assert 0.3 < (one == other).float().mean() < 0.7, f"masks {first} and {second}"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_everywhere(p):
    """Over all numbers, over rows at every position, over positions in every row: within five standard deviations."""
    kept_numbers = mask(rows(torch.arange(2000)), (500,), p=p).double()
    spread = (p * (1 - p)) ** 0.5
    assert abs(float(kept_numbers.mean()) - (1 - p)) < 5 * spread / 1000
    assert float((kept_numbers.mean(0) - (1 - p)).abs().max()) < 5 * spread / 2000**0.5
    assert float((kept_numbers.mean(1) - (1 - p)).abs().max()) < 5 * spread / 500**0.5
    neighbours = (kept_numbers[:, 1:] - (1 - p)) * (kept_numbers[:, :-1] - (1 - p))
    assert abs(float(neighbours.mean())) < 5 * spread**2 / 1000


def test_values_and_gradient_are_scaled():
    """As dropout is defined: x / (1 - p) where kept; float16 and bfloat16 stay so."""
    dropout = RowDropout(0.25)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with computing(rows()):
        y = dropout(x)
        assert dropout(x.half()).dtype == torch.float16
        assert dropout(x.bfloat16()).dtype == torch.bfloat16
    y.sum().backward()
    is_kept = y != 0
    assert 0 < is_kept.sum() < is_kept.numel()
    torch.testing.assert_close(y, torch.where(is_kept, x / 0.75, 0))
    torch.testing.assert_close(x.grad, is_kept / 0.75)
    x.grad = None
    assert dropout.eval()(x) is x


def test_mistakes_are_named():
    with pytest.raises(NegbenchError, match="needs to know its rows"):
        RowDropout(0.1)(torch.ones(5, 2))
    with computing(rows()), pytest.raises(NegbenchError, match="got 4 rows within a call that computes 5"):
        RowDropout(0.1)(torch.ones(4, 2))
    with pytest.raises(ValueError, match="below 1, got 1"):
        RowDropout(1.0)
    with pytest.raises(NegbenchError, match="crossed with no texts"):
        rows().pairs(IDS, IDS)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.ReLU()) for _ in range(3))

    def forward(self, x: Tensor, *, again: bool = False) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=recomputing) if again else layer(x)
        return x


def block() -> Block:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Block()
    by_rows(module)
    return module


def gradients(module: Block, x: Tensor, parts: int = 5, *, again: bool = False) -> Tensor:
    module.zero_grad()
    for part in torch.arange(len(x)).split(parts):
        with computing(rows(IDS[part])):
            out = module(x[part], again=again)
        with computing(rows(IDS[part] + 1)):  # another call before the backward pass
            (out**2).sum().backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def test_torch_dropout_is_replaced_and_numbered():
    module = block()
    assert [part.layer for part in module.modules() if isinstance(part, RowDropout)] == [0, 1, 2]
    assert torch_dropout(module) == []
    attention = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2, dropout=0.1), "ff": nn.Dropout(0.1)}).eval()
    assert torch_dropout(attention) == ["attention", "ff"]
    assert not any(part.training for part in attention.modules())
    by_rows(attention)
    assert torch_dropout(attention) == ["attention"]
    assert torch_dropout(nn.Dropout(0.0)) == []


def test_gradients_of_cut_and_recomputed_passes_are_those_of_the_whole(subtests):
    module = block()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    whole = gradients(module, x)
    assert torch.equal(gradients(module, x, again=True), whole)
    for parts in (1, 2, 4):
        with subtests.test(parts=parts):
            cut = gradients(module, x, parts, again=True)
            assert float((cut - whole).abs().max()) <= 1e-6 * float(whole.abs().max())
    assert torch.equal(torch.get_rng_state(), before)


def test_recomputing_restores_the_generators_of_torch():
    """Of a plug-in whose dropout is torch's own; the step ends with the generators of one that is not recomputed."""
    module = Block()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

    def compute(*, again: bool) -> tuple[Tensor, Tensor]:
        """Return the gradients, and the state of the generator after the step."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            return gradients(module, x, again=again), torch.get_rng_state()

    whole, state = compute(again=False)
    recomputed, state_after_recomputing = compute(again=True)
    assert torch_dropout(module) == ["layers.0.1", "layers.1.1", "layers.2.1"]
    assert torch.equal(recomputed, whole)
    assert torch.equal(state_after_recomputing, state)


def test_a_thread_has_rows_of_its_own():
    rows_of_thread = list[Rows | None]()

    def note_rows() -> None:
        rows_of_thread.append(current_rows())

    with computing(rows()):
        thread = threading.Thread(target=note_rows)
        thread.start()
        thread.join()
        assert current_rows() is not None
    assert rows_of_thread == [None]
    assert current_rows() is None


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


def test_random_numbers_of_torch_are_noticed_whoever_draws_them():
    module = Functional()
    device = torch.device("cpu")
    with (
        pytest.raises(
            OptionError, match=r"compute\.micro_batch: Functional draws .* use negbench.contracts.RowDropout"
        ),
        torch.random.fork_rng(devices=[]),
        checking_generators(module, device, "compute.micro_batch"),
    ):
        module(torch.ones(3))
    with checking_generators(module, device, "compute.micro_batch"):
        module.eval()(torch.ones(3))
