"""Sums."""

from dataclasses import MISSING, dataclass
from typing import Annotated

from pydantic import Field

from negbench import Backbone, check_option, tunable

PAPER = "none"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options.

    Args:
        width: How wide.
        rate, names: Others.
    """

    width: int = tunable(MISSING, low=1, high=9)
    rate: Annotated[float, Field(ge=0)] = 1.0
    names: tuple[str, ...] = ("a",)

    def __post_init__(self):
        check_option("rate", self.rate, self.width < 9 or self.rate == 1, "1 where width is 9")


class Sums(Backbone):
    """Gives what `load` is given."""

    identity = feature_key = temperature = None
    image_features = candidates = queries = text_queries = tokenize = None

    @classmethod
    def load(cls, options: Options, seed: Annotated[int, Field(ge=0)] = 0):
        """Return everything."""
        return options.width, options.rate, options.names, seed
