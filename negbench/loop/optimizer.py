"""torch's AdamW without the imports of torch.compile."""

from inspect import unwrap
from typing import Any

import torch
from torch.optim.adam import _single_tensor_adam

_adam: Any = _single_tensor_adam
_UNREAD = ("params", "betas", "foreach", "fused", "initial_lr")  # of a group, by the function of one tensor


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with the same results, in eager mode only.

    torch wraps these methods so that `torch.compile` leaves them alone, and the wrappers import all of torch._dynamo
    when the first is called: two seconds of every process, though nothing here is compiled.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move the parameters; on a CPU without choosing an implementation, which takes as long as the step itself."""
        if self.param_groups[0]["params"][0].device.type != "cpu":
            return unwrap(torch.optim.AdamW.step)(self)
        for group in self.param_groups:
            lists: list[list[Any]] = [[] for _ in range(6)]
            self._init_group(group, *lists)  # type: ignore[no-untyped-call]
            settings = {name: value for name, value in group.items() if name not in _UNREAD}
            beta1, beta2 = group["betas"]
            _adam(*lists, None, None, has_complex=False, beta1=beta1, beta2=beta2, **settings)

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it for its profiler
