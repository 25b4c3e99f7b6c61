"""Your own loss: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Your own loss
#
# A loss is one function of scores: those of the targets and those of the negatives that a strategy has drawn. It never
# chooses negatives, so every strategy can be compared under it.

# %%
from pathlib import Path

import torch

import negbench

# %% [markdown]
# ## The file
#
# `given` is a `negbench.LossInput`: `positive` [B], `negatives` [B, M], `mask` [B, M] (False where there is no
# negative), `weights` [B, M], `temperature`. Scores may have any sign. Where `mask` is False, values may be
# NaN, so replace them before computing anything. The class is a frozen dataclass; its fields are the options.

# %%
SOURCE = '''
"""Soft margin: softplus of how far a negative comes within `margin` of the target."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

import negbench

PAPER = "mine"


@dataclass(frozen=True, kw_only=True)
class SoftMargin(negbench.Loss):
    """Mean over queries of the weighted mean over negatives of softplus((s- - s+ + margin) / tau)."""

    key = "soft-margin"
    margin: float = negbench.tunable(0.1, low=0.0, high=0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        negbench.check_option("margin", self.margin, self.margin >= 0, ">= 0")

    def value(self, given: negbench.LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        wide = torch.promote_types(given.positive.dtype, torch.float32)
        negatives = given.negatives.to(wide).masked_fill(~given.mask, 0.0)
        terms = softplus((negatives - given.positive.to(wide)[:, None] + self.margin) / given.temperature)
        weights = given.weights.to(wide) * given.mask
        total = weights.sum(1)
        rows = (weights * terms).sum(1) / torch.where(total > 0, total, 1.0)
        return rows.sum() / (total > 0).sum().clamp(min=1)  # a query without negatives adds nothing
'''
Path("soft_margin.py").write_text(SOURCE)

# %% [markdown]
# ## In a comparison
#
# `--plugin` registers the file under the class's `key` (if it has none, under the file's name). In a recipe, write
# `plugins = ["soft_margin.py"]`.

# %%
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

status = negbench_command(
    "compare --plugin soft_margin.py --losses soft-margin,bradley-terry --strategies top-k,in-batch "
    "--seeds 1 --datasets vectors --backbones vectors --set train.epochs=2 "
    "--set dataset.train_images=200 --set dataset.train_queries=100 --set dataset.val_images=200 "
    "--set dataset.val_queries=100 --name own-loss --tracking-uri none".split()
)
print("exit status", status)

# %% [markdown]
# ## Check it by hand
#
# One query, one negative 0.1 below the target: with a margin of 0.1 the loss is softplus(0) = ln 2 = 0.6931.

# %%
loss = negbench.make_loss("soft-margin")
print(f"{float(loss(torch.tensor([0.5]), torch.tensor([[0.4]]))):.4f}")

# %% [markdown]
# ## Test it
#
# This runs the test suite that every loss passes; it needs pytest.
#
# ```python
# import pytest
# from negbench.testing import LossTestCase
# from soft_margin import SoftMargin
#
#
# class TestSoftMargin(LossTestCase):
#     @pytest.fixture
#     def loss(self):
#         return SoftMargin()
# ```
