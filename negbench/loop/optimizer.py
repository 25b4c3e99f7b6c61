"""torch's AdamW without the imports of torch.compile."""

from inspect import unwrap

import torch


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW with the same results, in eager mode only.

    torch wraps these methods so that `torch.compile` leaves them alone, and the wrappers import all of torch._dynamo
    when the first is called: two seconds of every process, though nothing here is compiled.
    """

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
