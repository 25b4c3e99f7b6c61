"""The processes that compute one run together (`compute.processes`), each on a GPU of its own.

The first process has the run: it draws, mines, ranks, and writes everything. Before a step it tells the others, its
helpers, which batch it is (`announce`); all of them then compute the same loss from embeddings of which each has made
its share, and step alike. A helper that starts, or that resumes a run, reads the run's checkpoint; it writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET = 2**24  # numbers whose gradients are summed together


@dataclass(frozen=True)
class Team:
    """This process among those of a run; a run of one process is a team, too, which sends nothing.

    Attributes:
        number: 0 .. count - 1; 0 is the first.
        count: how many there are.
    """

    number: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process has the run."""
        return self.number == 0

    def share(self, rows: int) -> slice:
        """Return this process's share of so many rows: all shares are equal, give or take one row."""
        return slice(rows * self.number // self.count, rows * (self.number + 1) // self.count)

    def announce(self, what: str, *values: Any) -> None:
        """Tell the helpers what comes next; they announce nothing themselves."""
        if self.first and self.count > 1:
            dist.broadcast_object_list([(what, values)], src=0, device=torch.device("cpu"))

    def listen(self) -> tuple[str, tuple[Any, ...]]:
        """Return what the first process announces next."""
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, device=torch.device("cpu"))
        what, values = heard[0]
        return what, values

    def gather(self, values: Tensor, rows: int) -> Tensor:
        """Return the shares of all processes put together, [rows, ...]; `values` is this process's."""
        if self.count == 1:
            return values
        shares = [Team(number, self.count).share(rows) for number in range(self.count)]
        sizes = [share.stop - share.start for share in shares]
        plain = values.to(torch.uint8) if values.dtype == torch.bool else values
        sent = plain.new_zeros(max(sizes), *values.shape[1:])  # of one size in all processes
        sent[: len(values)] = plain
        received = [torch.empty_like(sent) for _ in sizes]
        dist.all_gather(received, sent)
        return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)]).to(values.dtype)

    def divides(self, blocks: Sequence[Tensor]) -> bool:
        """Whether there are enough blocks of rows for each process to compute one."""
        return 1 < self.count <= len(blocks)

    def blocks_of_process(self, blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the blocks of this process, every one whole, so that their values have the bits of one process."""
        return blocks[self.number :: self.count]

    def merge(self, tables: dict[str, Tensor], rows: Tensor) -> None:
        """Put the others' rows into this process's tables, in which it has filled the rows [n] int64."""
        for table in tables.values():
            others = torch.ones(len(table), dtype=torch.bool, device=table.device)
            others[rows.to(table.device)] = False
            table[others] = 0  # for a sum of all processes
            dist.all_reduce(table)

    def add_up_gradient(self, tensor: Tensor) -> None:
        """Sum the gradients that the processes have for a tensor; none is 0."""
        if self.count > 1:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            dist.all_reduce(tensor.grad)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients that the processes have for the parameters; a parameter without any keeps none."""
        if self.count == 1:
            return
        device = parameters[0].device
        has_gradient = torch.tensor(
            [parameter.grad is not None for parameter in parameters], dtype=torch.uint8, device=device
        )
        dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX)
        gradients: list[Tensor] = []
        for parameter, has_one in zip(parameters, has_gradient.tolist(), strict=True):
            if has_one:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            summed = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(summed)
            parts = summed.split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def share_weights(self, module: nn.Module) -> None:
        """Give the helpers the first process's trained parameters and its buffers."""
        if self.count > 1:
            with torch.no_grad():
                trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
                for tensor in (*trained, *module.buffers()):
                    dist.broadcast(tensor.data, src=0)


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group gradients of one type that stand in a row, up to a size."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for gradient in gradients:
        if not buckets or filled + gradient.numel() > _BUCKET or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += gradient.numel()
    return buckets


ALONE = Team()
