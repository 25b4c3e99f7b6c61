"""The backbone interface: embeddings of images and of composed queries."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from negbench.contracts.dropout import computing, current_rows
from negbench.errors import OptionError

if TYPE_CHECKING:
    from PIL.Image import Image


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class BackboneIdentity:
    """Exact identity of a backbone, recorded with every result (never a nickname)."""

    name: str  # registry key
    weights: str  # hub id, file name, "random:SEED" or "shipped"
    revision: str  # hub revision, "local" or ""
    sha256: str  # of the initial parameters and buffers, by sorted name
    parameters: int
    trainable_parameters: int
    embedding_dim: int  # D
    tokens_per_image: int  # T
    preprocessing: str  # e.g. "target-pad 1.25, bicubic 224, mean/std clip"
    composition: str = ""  # how reference and text are fused
    activation: str = ""  # resolved, e.g. "quick_gelu" (open_clip's silent trap)
    details: Mapping[str, Any] = field(default_factory=dict)


def bound_below(free: Tensor, least: float) -> Tensor:
    """Bound a learned temperature from below.

    Below the bound the gradient is that of the unbounded value, so that the temperature can rise again.
    """
    return free + (free.clamp(min=least) - free).detach()


TextBatch = Sequence[str] | Mapping[str, Tensor]  # raw strings, or the output of `Backbone.tokenize`


class Backbone(nn.Module, ABC):
    """A composed-image-retrieval model. Subclasses live one family per file in `backbones/`.

    Shapes: B images or queries, L stored feature rows of width C per image, T candidate tokens, D embedding width.
    `image_features` is the frozen part: its output is stored once per (weights, preprocessing, image set) and
    shared by every run. A fine-tuned backbone sets `frozen_images = False`; then nothing is stored, and
    `image_features` runs, with gradients, in every step. Dropout must be `negbench.contracts.RowDropout`, whose masks
    belong to rows; other random numbers in training make micro-batches and several processes impossible.

    Subclasses offer a classmethod `load(options, seed)`: a frozen dataclass of what a user sets, its fields typed as a
    strategy's, and the run's seed of the initial weights. Heavy imports belong inside it. Optional capabilities are in
    `negbench.contracts.optional`.
    """

    frozen_images: bool = True
    precision: str = "fp32"  # "fp32", "bf16" or "fp16": what all towers compute in; a run sets it (`train.precision`)
    least_temperature: float = 0.0  # what losses divide by at least; a run may set another (`train.temperature_least`)
    learned_from: tuple[str, ...] = ()  # the only data sets whose images trained its weights; empty: unspecified
    fine_tuned: str = ""  # how its weights are known to be trained for retrieval already, as a clause; empty: unknown
    # PIL image (any mode) -> [3, H, W] float32 pixels: deterministic; called in threads
    transform: "Callable[[Image], Tensor]"
    # a run's defaults unless a flag or recipe overrides them; keys are those of RunConfig's section [train]
    recommended: ClassVar[Mapping[str, float | int]] = {}

    @classmethod
    def freezes(cls, options: Any) -> bool:
        """Return `frozen_images` of the backbone that `load` builds from these options, without reading any weights."""
        return cls.frozen_images

    @property
    @abstractmethod
    def identity(self) -> BackboneIdentity:
        """Resolved identity; its `sha256` is that of the weights as loaded, before any training."""

    @property
    @abstractmethod
    def feature_key(self) -> str:
        """Hash of what determines `image_features`, but for the precision: the frozen weights and preprocessing."""

    def preprocess(self, image: "Image") -> Tensor:
        """PIL image (any mode) -> [3, H, W] float32 pixels; deterministic."""
        return self.transform(image)

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, L, C], the features that are stored."""

    @abstractmethod
    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, T, D], unit norm."""

    @abstractmethod
    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, L, C] and B texts -> composed query embeddings [B, D], unit norm."""

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """Compose every reference with every text: [R, L, C] and P texts -> [R, P, D], for negatives of all slots.

        Runs `queries` on all R * P pairs, `chunk` at a time, unless a family has a cheaper way.
        """
        tokens = text if isinstance(text, Mapping) else self.tokenize(text)
        count = len(next(iter(tokens.values())))
        # on the CPU, as indices from there fit tensors on any device: features and tokens need not share one
        rows = torch.arange(len(features)).repeat_interleave(count)
        columns = torch.arange(count).repeat(len(features))
        crossed = current_rows()
        parts = list[Tensor]()
        for row, column in zip(rows.split(chunk), columns.split(chunk), strict=True):
            texts = {name: tensor[column] for name, tensor in tokens.items()}
            with computing(None if crossed is None else crossed.pairs(row, column)):
                parts.append(self.queries(features[row], texts))
        return torch.cat(parts).reshape(len(features), count, -1)

    @abstractmethod
    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D] unit-norm embeddings without any image: the text-only baseline."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """B strings -> dict of tensors whose first dimension is B; rows can be indexed and passed back as `text`."""

    @property
    def stored_key(self) -> str:
        """What stored features depend on: `feature_key`, and the precision unless it is float32."""
        return self.feature_key if self.precision == "fp32" else f"{self.feature_key}-{self.precision}"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which this backbone computes in its `precision`."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, _DTYPES[self.precision])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute in evaluation mode and in `precision`; then restore each module's own mode (a frozen tower's too)."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            with self.autocast():
                yield
        finally:
            for module in training:
                module.training = True

    @property
    def recomputes(self) -> bool:
        """Whether `recompute` can be switched on: the family overrides both."""
        return False

    def recompute(self, on: bool) -> None:
        """Keep few activations of the trained layers, and compute the others again in the backward pass; or keep all.

        Raises:
            OptionError: the family, or a frozen part of it, has nothing to compute again.
        """
        if on:
            name = self.identity.name
            raise OptionError(
                f"compute.recompute: backbone '{name}' has no trained layers that it could compute again: leave it "
                "out; compute.micro_batch saves memory with every backbone"
            )

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    @abstractmethod
    def temperature(self) -> Tensor:
        """Learned temperature, scalar > 0; divides scores in training losses only."""

    def set_least_temperature(self, least: float | None) -> None:
        """Set `least_temperature`; None: that of the class."""
        self.least_temperature = type(self).least_temperature if least is None else least

    @property
    def bounded_temperature(self) -> Tensor:
        """`temperature`, but at least `least_temperature`; scalar."""
        return bound_below(self.temperature, self.least_temperature)

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Return AdamW groups; by default one group of all parameters that require a gradient."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": lr, "weight_decay": weight_decay}]
