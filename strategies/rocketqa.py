"""Denoised hard negatives: high-ranked images that a guide is sure do not answer the query.

Rule: of the k highest-scored images, in rank order, the first n whose guide score is below `limit`; where there is
none, any image from rank k on.
Source: RocketQA (arXiv:2010.08191), "denoised hard negatives"; its construct_marco_train_de.py (read 2022-12-03) takes
k 50, n 4 and a cross-encoder's probability below 0.1.
Departures: the released script fills up to n at random from rank k on; here only a query without any such image draws
from there, because a pool is drawn from evenly. The paper's guide is a cross-encoder: give its probabilities as a file.
For a backbone as guide, whose scores are cosines, 0.1 means something else: set `limit`. RocketQA trains on other
queries' negatives as well: `in-batch+rocketqa`.
Needs: a guide, `--set mining.guide=FILE.trec` or BACKBONE; an image that it does not score is not taken.
Fallback: with at most k images and none below the limit, the pool is empty.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.metrics.ranks import at_least_float32
from negbench.strategies._ranked import PoolSize, images

PAPER = "RocketQA, arXiv:2010.08191"


@dataclass(frozen=True, kw_only=True)
class Rocketqa(Strategy):
    """Pool: the first n of the k highest-scored allowed images with g < limit; ties by corpus index.

    Args:
        k: depth of the ranking that is searched, images >= 1 or a share of the gallery ("0.6%").
        n: maximum pool size, images >= 1 or a share of the gallery ("0.6%").
        limit: guide score below which an image counts as a true negative.
    """

    reads = ("guide",)

    k: PoolSize = tunable(50, low=10, high=1000, log=True)
    n: PoolSize = tunable(4, low=1, high=100, log=True)
    limit: float = tunable(0.1, low=0.0, high=0.9)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        top = view.window(view.allowed, images(self.k, view))
        clean = view.window(top & (at_least_float32(view.plane("guide")) < self.limit), images(self.n, view))
        return torch.where(clean.any(1, keepdim=True), clean, view.allowed & ~top)
