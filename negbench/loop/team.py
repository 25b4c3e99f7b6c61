"""Processes that compute one run together, each on a GPU of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Team:
    """This process among those that share a run.

    Attributes:
        number: its place, 0 .. count - 1; the first has the run's folder.
        count: how many there are.
    """

    number: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the run's results."""
        return self.number == 0

    def share(self, rows: int) -> slice:
        """Return this process's share of so many rows: all shares are of equal size, give or take one."""
        return slice(rows * self.number // self.count, rows * (self.number + 1) // self.count)

    def gather(self, own: Tensor, rows: int) -> Tensor:
        """Return all shares put together, [rows, ...]; `own` is this process's."""
        return own

    def add_up_gradient(self, tensor: Tensor) -> None:
        """Sum the gradients that the processes have for a tensor."""

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients that the processes have for the parameters."""


ALONE = Team()
