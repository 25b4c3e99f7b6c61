"""Your own strategy: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Your own strategy
#
# A strategy is one function: given the scores of a query, which images may be drawn as its negatives? Here: the k
# images just below the target.

# %%
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import PositiveInt
from torch import Tensor

import negbench

# %% [markdown]
# ## The rule
#
# `view.scores` is [B, N], one row per query; higher is better, any sign. `view.positive` is [B], the target's score.
# `view.allowed` is [B, N]: images that may be negatives at all. `view.window(eligible, k)` is the k best of some.
# Return a mask [B, N], or weights >= 0, which are drawn in proportion.
#
# A rule uses no random numbers, and a query's pool depends on its own scores alone: which other queries share the view
# differs between machines. Chance comes with the draws, made for all strategies alike: return a wider pool, or
# weights. What should change over time may depend on `view.refresh`, the count of this refresh.


# %%
@dataclass(frozen=True)
class Below(negbench.Strategy):
    """The `k` best of the allowed images that score below the target."""

    k: PositiveInt = negbench.tunable(20, low=5, high=100)

    def pool(self, view: negbench.ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.window(view.allowed & (view.scores < view.positive[:, None]), self.k)


# %% [markdown]
# ## Check it by hand
#
# Five images; the target is second, so the pool of two holds the third and fourth. Scores may be negative.

# %%
scores = torch.tensor([[-0.1, -0.2, -0.3, -0.4, -0.5]])
view = negbench.ScoreView(scores, target=torch.tensor([1]))
pool = Below(k=2).pool(view)
print(pool.int().tolist())  # [[0, 0, 1, 1, 0]]

# %% [markdown]
# ## Test it
#
# This runs the test suite that every strategy passes; it needs pytest. It says which rule a pool breaks.
#
# ```python
# import pytest
# from negbench.testing import StrategyTestCase
# from below import Below
#
#
# class TestBelow(StrategyTestCase):
#     @pytest.fixture
#     def strategy(self):
#         return Below()
# ```
#
# What else a strategy may read and declare is in [contributing](../contributing.md).
#
# ## In a comparison
#
# The same class in a file of its own is a plug-in: no fork, no installation. `in-batch` is the batch alone, the
# baseline; `in-batch+below` adds an image that the rule draws for each query. The data set `vectors` knows all relevant
# images and trains in about a second per run; leave out `--datasets vectors` to use rendered images.

# %%
SOURCE = '''
"""The k best below the target."""

from dataclasses import dataclass

from pydantic import PositiveInt

import negbench

PAPER = "ours"


@dataclass(frozen=True)
class Below(negbench.Strategy):
    """The `k` best of the allowed images that score below the target."""

    k: PositiveInt = negbench.tunable(20, low=5, high=100)

    def pool(self, view):
        return view.window(view.allowed & (view.scores < view.positive[:, None]), self.k)
'''
Path("below.py").write_text(SOURCE)

# %%
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

status = negbench_command(
    "compare --plugin below.py --strategies in-batch,in-batch+below,in-batch+top-k --losses info-nce "
    "--seeds 2 --lr 0.01 --datasets vectors --backbones vectors --set train.epochs=2 "
    "--set dataset.train_images=200 --set dataset.train_queries=100 --set dataset.val_images=200 "
    "--set dataset.val_queries=100 "
    "--name first-try --tracking-uri none --no-report".split()
)
print("exit status", status)

# %% [markdown]
# The last lines are the answer, mostly undecided after two seeds of two epochs, and what to do. `negbench report
# first-try` writes the page; `negbench study --strategy below --plugin below.py` searches `k` in the range that
# `tunable` gives.
