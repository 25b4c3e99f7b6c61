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
# negative), `weights` [B, M], `temperature`. Scores may have any sign, and may be NaN where `mask` is False; `gap`,
# s- - s+ of each negative, is safe to use. `mean_over_rows` averages the valid negatives of each query, then the
# queries. The class is a frozen dataclass; its fields are the options, checked by their types.
#
# Two declarations in the class say what a loss lacks: `uses_temperature = False` if it reads no temperature, and
# `monotone = False` if it can be flat in a score, as a hinge, or can fall while a negative's score rises. The test
# suite below names the one that is missing.

# %%
SOURCE = '''
"""Soft margin: softplus of how far a negative comes within `margin` of the target."""

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import softplus

import negbench

PAPER = "mine"


@dataclass(frozen=True, kw_only=True)
class SoftMargin(negbench.Loss):
    """Mean over queries of the weighted mean over negatives of softplus((s- - s+ + margin) / tau)."""

    margin: NonNegativeFloat = negbench.tunable(0.1, low=0.0, high=0.5)  # the type is checked

    def value(self, given: negbench.LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        terms = softplus((given.gap + self.margin) / given.temperature)
        return negbench.mean_over_rows(terms, given.mask, given.weights)
'''
Path("soft_margin.py").write_text(SOURCE)

# %% [markdown]
# ## In a comparison
#
# `--plugin` registers the plug-in under the file's name, `soft-margin`. In a recipe, write
# `plugins = ["soft_margin.py"]`.

# %%
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

status = negbench_command(
    "compare --plugin soft_margin.py --losses soft-margin,info-nce --strategies in-batch,in-batch+top-k "
    "--seeds 1 --lr 0.01 --datasets vectors --backbones vectors --set train.epochs=2 "
    "--set dataset.train_images=200 --set dataset.train_queries=100 --set dataset.val_images=200 "
    "--set dataset.val_queries=100 --name own-loss --tracking-uri none --no-report".split()
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
