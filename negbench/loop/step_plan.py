"""How a run computes its steps: whole or in micro-batches, with which activations kept, in how many processes.

None of it is part of a run's identity: it changes the last bits of gradients, no more. Pages name plans, so torch is
imported only where a backbone is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from negbench.errors import OptionError
from negbench.settings.config import RunConfig

if TYPE_CHECKING:
    from negbench.contracts import Backbone


@dataclass(frozen=True)
class StepPlan:
    """How the steps of a run are computed.

    Attributes:
        micro_batch: queries or images that pass the trained part at a time (`loop.training_calls`); 0: all at once.
        recompute: whether activations are computed again in the backward pass, layer by layer.
        processes: how many processes share each step; a resumed run may have another number.
    """

    micro_batch: int = 0
    recompute: bool = False
    processes: int = 1

    @classmethod
    def of(cls, config: RunConfig, backbone: Backbone, started: Mapping[str, Any]) -> Self:
        """Return the plan of a run: as configured, else as it was started, else whole batches (but see `fitting`).

        Args:
            config: of the run.
            backbone: loaded, on its device.
            started: what the manifest of an interrupted run says of its start; empty for a new one.

        Raises:
            OptionError: the backbone cannot compute so.
        """
        compute = config.compute
        default = cls()
        micro_batch = compute.micro_batch
        if micro_batch == "auto":
            micro_batch = started.get("micro_batch", default.micro_batch)
        recompute = compute.recompute
        if recompute == "auto":
            recompute = started.get("recompute", default.recompute)
        plan = cls(micro_batch, recompute, compute.processes)
        plan.check(backbone)
        return plan

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> list[Self]:
        """Return the plans by which a finished run (result.json) computed its steps; none if it does not say."""
        plans = []
        for row in result.get("computed", []):
            settings = {name: value for name, value in row.items() if name != "epoch"}
            plans.append(cls(**settings))
        return plans

    def check(self, backbone: Backbone) -> None:
        """Raise OptionError if the backbone cannot be computed by this plan."""
        if self.recompute and not backbone.recomputes:
            backbone.recompute(True)  # says why not
        if self.micro_batch:
            check_rows(backbone, "compute.micro_batch")
        if self.processes > 1:
            check_rows(backbone, "compute.processes")

    def __str__(self) -> str:
        """'whole batches', or 'micro-batches of 8, activations computed again, 2 processes'."""
        parts = [f"micro-batches of {self.micro_batch}" if self.micro_batch else "whole batches"]
        if self.recompute:
            parts.append("activations computed again")
        if self.processes > 1:
            parts.append(f"{self.processes} processes")
        return ", ".join(parts)


def splits_rows(backbone: Backbone) -> bool:
    """Whether what a row becomes is the same whatever else is computed with it (`check_rows`)."""
    from negbench.contracts import torch_dropout

    return not torch_dropout(backbone) and not _batch_norms(backbone)


def check_rows(backbone: Backbone, option: str) -> None:
    """Raise OptionError, naming the option, if what a row becomes depends on what else is computed with it.

    Torch's dropout draws one mask for all rows of a call, and batch normalisation in training mode averages over them.
    """
    from negbench.contracts import torch_dropout

    name = backbone.identity.name
    drawn = torch_dropout(backbone)
    if drawn:
        raise OptionError(
            f"{option}: backbone '{name}' draws dropout from torch's generators ({drawn[0]}), so a batch in parts "
            "would have other masks: call `negbench.contracts.by_rows(self)` at the end of its constructor, or leave "
            "the option out"
        )
    averaged = _batch_norms(backbone)
    if averaged:
        raise OptionError(
            f"{option}: backbone '{name}' normalises over the rows of a batch ({averaged[0]}), so a batch in parts "
            "would train otherwise: keep its normalisation in evaluation mode (`train`), or leave the option out"
        )


def _batch_norms(backbone: Backbone) -> list[str]:
    """Return the names of the modules that normalise over a batch when the backbone trains."""
    from torch.nn.modules.batchnorm import _BatchNorm

    modes = {module: module.training for module in backbone.modules()}
    backbone.train()
    names = [name for name, module in backbone.named_modules() if module.training and isinstance(module, _BatchNorm)]
    for module, mode in modes.items():
        module.training = mode
    return names
