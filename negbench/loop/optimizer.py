"""torch's AdamW without the imports of torch.compile, and the temperature's own group of it."""

from collections.abc import Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with the same results, in eager mode only.

    torch wraps these methods so that `torch.compile` leaves them alone, and the wrappers import all of torch._dynamo
    when the first is called: two seconds of every process, though nothing here is compiled.
    """

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)


def with_temperature_rate(groups: Sequence[dict[str, Any]], temperature: Tensor, rate: float) -> list[dict[str, Any]]:
    """Give the parameters of a learned temperature groups of their own, which follow those that they leave.

    Args:
        groups: AdamW groups of a backbone (`Backbone.parameter_groups`).
        temperature: scalar, computed from its parameters with gradients.
        rate: their learning rate relative to that of the group that they leave; 1 leaves the groups as they are.
    """
    if rate == 1:
        return list(groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    gradients = torch.autograd.grad(temperature, parameters, allow_unused=True)
    of_temperature = {id(parameter) for parameter, grad in zip(parameters, gradients, strict=True) if grad is not None}
    parts = list[dict[str, Any]]()
    for group in groups:
        rest: list[nn.Parameter] = []
        own: list[nn.Parameter] = []
        for parameter in group["params"]:
            if id(parameter) in of_temperature:
                own.append(parameter)
            else:
                rest.append(parameter)
        if rest:
            parts.append({**group, "params": rest})
        if own:
            parts.append({**group, "params": own, "lr": group["lr"] * rate})
    return parts
