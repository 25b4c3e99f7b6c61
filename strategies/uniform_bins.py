"""Images drawn evenly over distance: as many from each of 100 bins of equal width, however full a bin is.

Rule: cut the range of distances sqrt(2 - 2 s) into equal bins; the weight of an image is 1 / images in its bin.
Source: pytorch-metric-learning, miners/uniform_histogram_miner.py (2024-12-11): 100 bins, 10 negatives from each, with
replacement.
Departures: the released miner bins all pairs of a batch together; here each query's allowed images, between the nearest
and the farthest. Draws are without replacement, each bin that still holds an image being equally likely.
Fallback: a query without allowed images has an empty pool.
"""

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._scores import distance

PAPER = "pytorch-metric-learning, UniformHistogramMiner"


@dataclass(frozen=True, kw_only=True)
class UniformBins(Strategy):
    """Pool: all allowed images, weighted by 1 / the number of images in their bin.

    Args:
        bins: number of equal-width bins between the query's nearest and farthest allowed image, >= 1.
    """

    bins: PositiveInt = tunable(100, low=5, high=500, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] float64 weights."""
        far = distance(view)
        low = far.masked_fill(~view.allowed, torch.inf).amin(1, keepdim=True)
        span = far.masked_fill(~view.allowed, -torch.inf).amax(1, keepdim=True) - low
        bin_index = ((far - low) / torch.where(span > 0, span, 1.0) * self.bins).floor()
        bin_index = bin_index.masked_fill(~view.allowed, 0).clamp(min=0, max=self.bins - 1).long()
        count = far.new_zeros(len(far), self.bins).scatter_add_(1, bin_index, view.allowed.to(far.dtype))
        return view.allowed / count.gather(1, bin_index).clamp(min=1)
