"""Queue of the target embeddings of a run's last steps."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Memory:
    """A queue of target embeddings, saved in checkpoints.

    Attributes:
        tokens: [K, T, D], detached, the oldest first; [0, 0, 0] before the first step.
        columns: [K] int64, the embedded images, on the CPU.
    """

    def __init__(self) -> None:
        self.tokens = torch.zeros(0, 0, 0)
        self.columns = torch.empty(0, dtype=torch.int64)

    def push(self, tokens: Tensor, columns: Tensor, size: int) -> None:
        """Append [B, T, D] embeddings of [B] images, and keep the last `size`."""
        tokens = tokens.detach()
        earlier = self.tokens.to(tokens.device) if len(self.columns) else tokens[:0]
        self.tokens = torch.cat([earlier, tokens])[-size:]
        self.columns = torch.cat([self.columns, columns.cpu()])[-size:]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the queue's tensors."""
        return {"tokens": self.tokens, "columns": self.columns}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.tokens = saved["tokens"]
        self.columns = saved["columns"]
