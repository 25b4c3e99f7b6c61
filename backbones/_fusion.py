"""Fusion modules: reference-image and text embeddings -> one composed embedding, and cheaply so for all pairs."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

from negbench.metrics.ranks import at_least_float32

FusionKind = Literal["gated", "sum"]
FusionInit = Literal["xavier", "sum"]
_LEAST_NORM = 1e-12
_LARGE = 2**14  # numbers: below, calling Python in the backward pass costs what it saves


def unit(x: Tensor) -> Tensor:
    """Normalise x along the last dimension, in float32 or wider, so that autocast keeps the unit norm too."""
    x = at_least_float32(x)
    if torch.is_grad_enabled() and x.requires_grad and x.numel() >= _LARGE:
        normalised: Tensor = _Unit.apply(x)
        return normalised
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_LEAST_NORM)


class _Unit(torch.autograd.Function):
    """x / max(|x|, 1e-12): the bits of autograd, but most of the backward pass in place: half as much memory moves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        y = x / norm.clamp_min(_LEAST_NORM)
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, norm = ctx.saved_tensors
        least = norm.clamp_min(_LEAST_NORM)
        scaled = y / least
        same = scaled.stride() == gradient.stride()  # otherwise autograd would sum in the gradient's own order
        through = scaled.mul_(gradient) if same else gradient * scaled  # by way of the norm
        along = through.sum(-1, keepdim=True).neg_().masked_fill_(~(norm >= _LEAST_NORM), 0.0)
        return (gradient / least).add_(torch.mul(y, along, out=through))


def make_linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Make an nn.Linear with Xavier-uniform weights from `generator` and zero bias; global generators do not move."""
    with torch.random.fork_rng(devices=[]):  # the constructor draws, too (on the meta device it imports sympy instead)
        layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _add(total: Tensor, part: Tensor) -> Tensor:
    """Return `total` + `part`, in place if precision allows (no gradient needs `total`): all pairs take many bytes."""
    return total.add_(part) if torch.promote_types(total.dtype, part.dtype) == total.dtype else total + part


class Fusion(nn.Module, ABC):
    """Composes image and text embeddings of one width D. Inputs should have unit norm; the output has."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Row by row: [B, D] and [B, D] -> [B, D]."""
        return unit(self._mix(image, text, self._of_image(image), self._of_text(text)))

    def cross(self, image: Tensor, text: Tensor, *, chunk: int = 1024) -> Tensor:
        """Every image with every text: [R, D] and [P, D] -> [R, P, D]; equals `forward` on all pairs.

        What depends on one side only is computed R + P times; `chunk` images at a time bound the memory beyond the
        output if no gradient is recorded.
        """
        of_image = self._of_image(image)
        of_text = self._of_text(text)
        parts = []
        for images, of_images in zip(torch.split(image, chunk), torch.split(of_image, chunk), strict=True):
            parts.append(unit(self._mix(images[:, None], text[None], of_images[:, None], of_text[None])))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @abstractmethod
    def _of_image(self, image: Tensor) -> Tensor:
        """[R, D] -> [R, ...], the part that needs the image alone."""

    @abstractmethod
    def _of_text(self, text: Tensor) -> Tensor:
        """[P, D] -> [P, ...], the part that needs the text alone."""

    @abstractmethod
    def _mix(self, image: Tensor, text: Tensor, of_image: Tensor, of_text: Tensor) -> Tensor:
        """Combine all of it, before the norm, on leading dimensions that broadcast against each other."""


class GatedFusion(Fusion):
    """The gated fusion of HyCoLe-HNM (Wang et al., Findings of EMNLP 2022, eq. 2).

    For an image (or text) embedding x in the reference's place and a modification y::

        z = [x; y; x*y; x-y]     g = sigmoid(W_g z + b_g)     h = GELU(W_h z + b_h)     out = unit(g*h + (1-g)*x)

    The gate has one value per dimension. The linear map of z, [A B C E] z, equals (A+E)x + (B-E)y + C(x*y), so only its
    last term costs anything per pair.

    Args:
        dim: width D.
        generator: the initial weights' only source of randomness.
        initial: "xavier": W_g and W_h Xavier-uniform; the paper names no other start. "sum": a tenth of it, and W_h
            with 2 on the diagonal of its block for y. As GELU(2y) is y to first order and g is 1/2, the untrained
            module then returns about unit(x + y): a start for encoders whose sides agree already (ours).
    """

    def __init__(self, dim: int, generator: torch.Generator, initial: FusionInit = "xavier") -> None:
        super().__init__(dim)
        self.linear = make_linear(4 * dim, 2 * dim, generator)  # rows: h, then g
        with torch.no_grad():
            # as two Xavier layers of D outputs each, not one of 2D
            self.linear.weight.mul_(math.sqrt((4 + 2) / (4 + 1)))
            if initial == "sum":
                self.linear.weight.mul_(0.1)
                self.linear.weight[:dim, dim : 2 * dim] += 2 * torch.eye(dim)

    def _of_image(self, image: Tensor) -> Tensor:
        a, _, _, e = self.linear.weight.chunk(4, dim=1)
        return image @ (a + e).T + self.linear.bias

    def _of_text(self, text: Tensor) -> Tensor:
        _, b, _, e = self.linear.weight.chunk(4, dim=1)
        return text @ (b - e).T

    def _mix(self, image: Tensor, text: Tensor, of_image: Tensor, of_text: Tensor) -> Tensor:
        c = self.linear.weight.chunk(4, dim=1)[2]
        h, g = _add(_add((image * text) @ c.T, of_image), of_text).chunk(2, dim=-1)
        return _add(torch.sigmoid(g) * gelu(h).sub_(image), image)


class SumFusion(Fusion):
    """unit(x + y); no parameters. HyCoLe's ablation "without gated fusion", CLIP4CIR's simplest baseline."""

    def _of_image(self, image: Tensor) -> Tensor:
        return image

    def _of_text(self, text: Tensor) -> Tensor:
        return text

    def _mix(self, image: Tensor, text: Tensor, of_image: Tensor, of_text: Tensor) -> Tensor:
        return image + text


class WideFusion(Fusion):
    """A fusion f with a hidden layer beside it (ours): unit(f(x, y) + W_o relu(W_x x + W_y y + b)), f before its norm.

    The layer's width sets the capacity: with a wide one the model can memorise single queries.

    Args:
        inner: f.
        hidden: width of the layer, >= 1.
        generator: the initial weights' only source of randomness; the layer starts near zero.
    """

    def __init__(self, inner: Fusion, hidden: int, generator: torch.Generator) -> None:
        super().__init__(inner.dim)
        self.inner = inner
        self.hidden = make_linear(2 * inner.dim, hidden, generator)
        self.output = make_linear(hidden, inner.dim, generator, bias=False)
        with torch.no_grad():
            self.output.weight.mul_(0.1)

    def _of_image(self, image: Tensor) -> Tensor:
        hidden = image @ self.hidden.weight[:, : self.dim].T + self.hidden.bias
        return torch.cat([hidden, self.inner._of_image(image)], dim=-1)

    def _of_text(self, text: Tensor) -> Tensor:
        return torch.cat([text @ self.hidden.weight[:, self.dim :].T, self.inner._of_text(text)], dim=-1)

    def _mix(self, image: Tensor, text: Tensor, of_image: Tensor, of_text: Tensor) -> Tensor:
        width = self.hidden.out_features
        mixed: Tensor = self.output(torch.relu(of_image[..., :width] + of_text[..., :width]))
        return mixed + self.inner._mix(image, text, of_image[..., width:], of_text[..., width:])


def make_fusion(
    kind: FusionKind, dim: int, generator: torch.Generator, initial: FusionInit = "xavier", hidden: int = 0
) -> Fusion:
    """Make a fusion module of width `dim`, its initial weights drawn from `generator` (on the CPU).

    Args:
        kind: "gated" (HyCoLe eq. 2) or "sum".
        dim: width D of both inputs and of the output.
        generator: the only source of randomness.
        initial: initial weights of "gated", see `GatedFusion`.
        hidden: width of a hidden layer beside it (`WideFusion`); 0 adds none.
    """
    if hidden:
        return WideFusion(make_fusion(kind, dim, generator, initial), hidden, generator)
    return GatedFusion(dim, generator, initial) if kind == "gated" else SumFusion(dim)
