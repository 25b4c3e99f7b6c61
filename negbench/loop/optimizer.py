"""torch's AdamW without the imports of torch.compile, and on a CPU without most of its Python."""

from collections.abc import Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with the same results, in eager mode only, for its default options but rate and decay.

    torch wraps these methods so that `torch.compile` leaves them alone, and the wrappers import all of torch._dynamo
    when the first is called: two seconds of every process, though nothing here is compiled. Its step looks at each
    option of each parameter anew, which takes several times as long as the numbers of a small model.
    """

    _all_at_once = torch.no_grad()(unwrap(torch.optim.AdamW.step))  # torch's: one kernel for all parameters of a GPU
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nothing here passes a closure
        """Move every parameter that has a gradient."""
        if self.param_groups[0]["params"][0].device.type != "cpu":
            self._all_at_once()
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _move(parameter, parameter.grad, self.state[parameter], group)

    step.hooked = True  # type: ignore[attr-defined]  # else torch wraps it, for its profiler and for hooks

    def zero_grad(self) -> None:  # type: ignore[override]
        """Forget all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _move(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
    """Update a parameter and its state by torch's operations in torch's order: the same bits."""
    if not state:
        state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter)}
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    lr, (beta, beta_of_square) = group["lr"], group["betas"]
    state["step"] += 1
    step, mean, square = state["step"].item(), state["exp_avg"], state["exp_avg_sq"]
    if group["weight_decay"]:
        parameter.mul_(1 - lr * group["weight_decay"])
    mean.lerp_(gradient, 1 - beta)
    square.mul_(beta_of_square).addcmul_(gradient, gradient, value=1 - beta_of_square)
    length = (square.sqrt() / (1 - beta_of_square**step) ** 0.5).add_(group["eps"])
    parameter.addcdiv_(mean, length, value=-(lr / (1 - beta**step)))
