"""What a run remembers of its own steps: the last targets' embeddings, and each query's last loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from negbench.contracts import Strategy
from negbench.errors import OptionError


class Memory:
    """A queue of target embeddings, and the losses of the queries; all of it stands in a checkpoint.

    Attributes:
        tokens: [K, T, D], detached, the oldest first; [0, 0, 0] before the first step.
        columns: [K] int64, the images that they are of; on the CPU.
        losses: [Q] float64, of each train query when it was last trained on; NaN before.

    Args:
        queries: Q.
    """

    def __init__(self, queries: int) -> None:
        self.tokens = torch.zeros(0, 0, 0)
        self.columns = torch.empty(0, dtype=torch.int64)
        self.losses = torch.full((queries,), torch.nan, dtype=torch.float64)

    def push(self, tokens: Tensor, columns: Tensor, size: int) -> None:
        """Append [B, T, D] embeddings of [B] images, and keep the last `size`."""
        own = tokens.detach()
        before = self.tokens.to(own.device) if len(self.columns) else own[:0]
        self.tokens = torch.cat([before, own])[-size:]
        self.columns = torch.cat([self.columns, columns.cpu()])[-size:]

    def note(self, rows: Tensor, losses: Tensor) -> None:
        """Keep the [B] losses of these queries."""
        self.losses[rows.cpu()] = losses.detach().double().cpu()

    def state_dict(self) -> dict[str, Tensor]:
        """All of it."""
        return {"tokens": self.tokens, "columns": self.columns, "losses": self.losses}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Set back to what `state_dict` gave."""
        self.tokens, self.columns, self.losses = saved["tokens"], saved["columns"], saved["losses"]


def check_one_process(strategy: Strategy, processes: int) -> None:
    """Raise OptionError where a run of several processes would remember another part of its steps in each."""
    if processes > 1 and any(part.reads_losses or part.queue for part in strategy.every_part):
        raise OptionError(
            f"{type(strategy).__name__} remembers the steps before, which {processes} processes do not share: use one"
        )
