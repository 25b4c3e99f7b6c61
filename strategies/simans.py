"""Ambiguous images: of the k highest-scored, those with scores near the target's are drawn most often.

Rule: p_j in proportion to exp(-a (s_j - s+ - b)^2) over the k highest-scored images.
Source: SimANS (arXiv:2210.11773, EMNLP 2022); its README states the formula, a 0.5, b 0; the script for NQ passes b 1.
Variants: the released utils/util_wiki.py and MARCO_until_Doc.py compute exp(-a (s_j - s+ + b)^2): b of the other sign.
MARCO_until_new.py computes exp(-3 |s_j - s+|): "absolute" with a 3. (Read in microsoft/SimXNS, 2024-01-09.)
Departures: the released code draws from a stored list of candidates, whose length is unverified (k), and takes the last
ids of that list where the target's score is 0, its mark for a missing score. The paper's scores are dot
products that spread over tens; on cosines a 0.5 is nearly flat, so `a` is searched up to 1000.
Fallback: a query without allowed images has an empty pool.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.strategies._ranked import PoolSize, images
from negbench.strategies._scores import gap, weights_of

PAPER = "SimANS, arXiv:2210.11773"


@dataclass(frozen=True, kw_only=True)
class Simans(Strategy):
    """Pool: the k highest-scored allowed images, ties by corpus index, weighted as `variant` says.

    Args:
        a: how fast the weight falls, >= 0; 0 draws uniformly.
        b: how far above the target the most likely score lies ("release": below it), score units; 0 in "absolute".
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
        variant: "paper": exp(-a (s - s+ - b)^2); "release": exp(-a (s - s+ + b)^2); "absolute": exp(-a |s - s+|).
    """

    a: NonNegativeFloat = tunable(0.5, low=0.1, high=1000.0, log=True)
    b: float = 0.0
    k: PoolSize = tunable(100, low=10, high=1000, log=True)
    variant: Literal["paper", "release", "absolute"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("b", self.b, self.b == 0 or self.variant != "absolute", "left out if variant is 'absolute'")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] float64 weights, > 0 for at most k images per row."""
        above = -gap(view).double()
        centre = -self.b if self.variant == "release" else self.b
        off = above.abs() if self.variant == "absolute" else (above - centre) ** 2
        return weights_of(-self.a * off, view.window(view.allowed, images(self.k, view)))
