"""The optimizer, bit by bit against torch's."""

import pytest
import torch

from negbench.loop.optimizer import AdamW


def trained(kind: type[torch.optim.AdamW], steps: int, saved: dict | None = None) -> torch.optim.AdamW:
    """Take seeded steps of three parameters, one of which has a gradient in every third step only."""
    generator = torch.Generator().manual_seed(0)
    own = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((5, 3), (4,), ())]
    groups = [{"params": own[:1], "lr": 0.3, "weight_decay": 0.1}, {"params": own[1:], "lr": 0.2, "weight_decay": 0.0}]
    optimizer = kind(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if saved is not None:
        optimizer.load_state_dict(saved)
    for step in range(steps):
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in own)
        for number, parameter in enumerate(own):
            if number or step % 3 == 0:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        schedule.step()
    return optimizer


@pytest.mark.parametrize("steps", [1, 7])
def test_steps_have_the_bits_of_torch(steps):
    want, got = trained(torch.optim.AdamW, steps), trained(AdamW, steps)
    for one, other in zip(want.param_groups, got.param_groups, strict=True):
        torch.testing.assert_close(other["params"], one["params"], atol=0, rtol=0)
    torch.testing.assert_close(got.state_dict()["state"], want.state_dict()["state"], atol=0, rtol=0)
    assert got.state_dict()["param_groups"] == want.state_dict()["param_groups"]
    resumed = [trained(kind, 2, want.state_dict()).state_dict()["state"] for kind in (torch.optim.AdamW, AdamW)]
    torch.testing.assert_close(resumed[1], resumed[0], atol=0, rtol=0)
