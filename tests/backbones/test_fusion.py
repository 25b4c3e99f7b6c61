import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from negbench.backbones._fusion import Fusion, GatedFusion, make_fusion, unit

DIM = 6


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(rows: int, columns: int, dim: int = DIM, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = _generator(seed)
    image = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    text = torch.randn(columns, dim, generator=generator, dtype=torch.float64)
    return image / image.norm(dim=1, keepdim=True), text / text.norm(dim=1, keepdim=True)


def _fusion(kind: str, dim: int = DIM, seed: int = 0) -> Fusion:
    fusion = make_fusion(kind, dim, _generator(seed)).double().eval()
    # biases start at zero; perturb all parameters so that a forgotten one shows
    generator = _generator(seed + 100)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return fusion


@pytest.mark.parametrize("kind", ["gated", "sum"])
@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_cross_equals_forward_on_every_pair(kind, chunk):
    fusion = _fusion(kind)
    image, text = _inputs(7, 5)
    rows = []
    for x in image:
        rows.append(torch.stack([fusion(x[None], y[None])[0] for y in text]))
    pairs = torch.stack(rows)
    torch.testing.assert_close(fusion.cross(image, text, chunk=chunk), pairs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["gated", "sum"])
def test_gradcheck(kind):
    fusion = _fusion(kind, dim=3)
    image, text = _inputs(4, 4, 3)
    image.requires_grad_()
    text.requires_grad_()
    assert torch.autograd.gradcheck(fusion, (image, text))
    assert torch.autograd.gradcheck(fusion.cross, (image[:2], text[:3]))


def test_gated_is_the_formula():
    fusion = _fusion("gated")
    assert isinstance(fusion, GatedFusion)
    image, text = _inputs(5, 5)
    for x, y, fused in zip(image, text, fusion(image, text), strict=True):
        z = torch.cat([x, y, x * y, x - y])
        weight = fusion.linear.weight
        bias = fusion.linear.bias
        h = F.gelu(weight[:DIM] @ z + bias[:DIM])
        g = torch.sigmoid(weight[DIM:] @ z + bias[DIM:])
        torch.testing.assert_close(fused, F.normalize(g * h + (1 - g) * x, dim=0))


@pytest.mark.parametrize("dim", [64, 256])
def test_untrained_gated_begins_near_the_sum_where_that_is_asked_for(dim):
    image, text = _inputs(50, 50, dim)
    image = image.float()
    text = text.float()
    near_sum = make_fusion("gated", dim, _generator(), "sum")
    plain = make_fusion("gated", dim, _generator(), "xavier")
    assert torch.cosine_similarity(near_sum(image, text), image + text).min() > 0.95
    assert torch.cosine_similarity(plain(image, text), image + text).mean() < 0.9


def test_gated_is_drawn_as_two_xavier_layers():
    bound = (6 / (4 * 50 + 50)) ** 0.5
    assert 0.99 * bound < GatedFusion(50, _generator()).linear.weight.abs().max() <= bound


@pytest.mark.parametrize("enabled", [False, True], ids=["float32", "bf16"])
def test_sums_in_place_keep_the_precision_of_the_formula(enabled):
    """`cross` equals the formula bit for bit, also under autocast, where bfloat16 products are added in float32."""
    generator = torch.Generator().manual_seed(0)
    fusion = GatedFusion(16, generator)
    x = F.normalize(torch.randn(9, 16, generator=generator), dim=-1)
    y = F.normalize(torch.randn(9, 16, generator=generator), dim=-1)
    a, b, c, e = fusion.linear.weight.chunk(4, dim=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        z = (x[:, None] * y[None]) @ c.T + (x @ (a + e).T + fusion.linear.bias)[:, None] + (y @ (b - e).T)[None]
        h, g = z.chunk(2, dim=-1)
        want = F.normalize((x[:, None] + torch.sigmoid(g) * (F.gelu(h) - x[:, None])).float(), dim=-1)
        assert torch.equal(fusion.cross(x, y), want)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(64, 4, 64), (3, 7), (500, 33), (2, 1), (64, 64, 64)])
def test_unit_has_the_bits_of_autograd(shape, turned, monkeypatch):
    """Also for rows of norm 0, for rows so short that the least norm divides them, and for a turned gradient."""
    monkeypatch.setattr("negbench.backbones._fusion._LARGE", 0)
    start = torch.randn(shape, generator=_generator(0))
    start[0] = 0.0
    start[1] *= 1e-15
    weight = torch.randn(shape, generator=_generator(1))
    if turned:
        weight = weight.transpose(0, -1).contiguous().transpose(0, -1)
    rows = start.clone().requires_grad_()
    result = unit(rows)
    result.backward(weight)
    plain = start.clone().requires_grad_()
    want = plain / torch.linalg.vector_norm(plain, dim=-1, keepdim=True).clamp_min(1e-12)
    want.backward(weight)
    assert torch.equal(result, want)
    assert torch.equal(unit(start), want)
    assert torch.equal(rows.grad, plain.grad)
    assert rows.grad.stride() == plain.grad.stride()
