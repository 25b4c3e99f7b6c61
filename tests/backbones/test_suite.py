"""`BackboneTestCase` detects faults that are put into the tiny backbone one at a time."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from negbench.backbones import _composed, _hashing, tiny
from negbench.backbones._attributes import AttributeWeights
from negbench.backbones.tiny import TextEncoder, Tiny
from negbench.contracts import Backbone, bound_below
from negbench.testing import BackboneTestCase

Patch = Callable[[pytest.MonkeyPatch], None]
GENUINE = {name: getattr(Tiny, name) for name in ("queries", "candidates", "cross_queries", "text_queries", "load")}


def on(name: str, fault: Callable[..., Any], owner: Any = Tiny) -> Patch:
    return lambda patch: patch.setattr(owner, name, fault)


def later(self: Tiny) -> Any:
    return dataclasses.replace(self._identity, sha256=_hashing.module_sha256(self))


def groups(self: Tiny, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    trained = [p for p in self.parameters() if p.requires_grad]
    return [{"params": trained, "lr": lr, "weight_decay": weight_decay}, {"params": trained[:1], "lr": lr}]


def draw_and_load(options: Any, seed: int) -> Tiny:
    torch.rand(1)
    return GENUINE["load"](options, seed)


def overflow(self: TextEncoder, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode texts with an earlier bug: masking with the lowest float32 overflows under autocast."""
    tokens = torch.relu(F.embedding(ids, self.embedding.weight[:, : tiny.WIDTH]))
    logits = self.attention(tokens).squeeze(-1).masked_fill(ids == 0, torch.finfo(tokens.dtype).min)
    return tokens, self.output(torch.einsum("bs,bsc->bc", logits.softmax(1), tokens))


def always(self: AttributeWeights, query: Any, tokens: Any, masks: Any) -> Any:
    subs = GENUINE_SUBS(self, query, tokens, masks)
    return {name: dataclasses.replace(sub, present=torch.ones_like(sub.present)) for name, sub in subs.items()}


GENUINE_SUBS = AttributeWeights.forward

FAULTS: dict[str, tuple[str, Patch]] = {
    "no unit norm": ("test_queries", on("queries", lambda self, f, t: 2 * GENUINE["queries"](self, f, t))),
    "mixes the rows": ("test_queries", on("queries", lambda self, f, t: GENUINE["queries"](self, f.roll(1, 0), t))),
    "reads no image": (
        "test_queries_depend_on_both_sides",
        on("queries", lambda self, f, t: GENUINE["text_queries"](self, t)),
    ),
    "centres the batch": (
        "test_candidates",
        on("candidates", lambda self, f: F.normalize(GENUINE["candidates"](self, f) - f.mean(), dim=-1)),
    ),
    "wrong pairs": (
        "test_crossed_queries_equal_loops",
        on("cross_queries", lambda self, f, t, chunk=9: GENUINE["cross_queries"](self, f.flip(0), t)),
    ),
    "hash of now": ("test_identity_is_that_of_the_weights_as_loaded", on("identity", property(later))),
    "parameter twice": ("test_parameter_groups", on("parameter_groups", groups)),
    "no seed": ("test_the_seed_decides_the_weights", on("load", lambda options, seed: GENUINE["load"](options, 0))),
    "global generator": ("test_global_generators_are_untouched", on("load", draw_and_load)),
    "random pixels": ("test_transform", on("preprocess", lambda self, image: torch.rand(3, 8, 8))),
    "no gradient": ("test_gradients", on("_text", lambda self, t: tuple(x.detach() for x in GENUINE_TEXT(self, t)))),
    "present where absent": ("test_sub_queries", on("forward", always, AttributeWeights)),
    "overflow": ("test_autocast", on("forward", overflow, TextEncoder)),
    "narrow norm": ("test_autocast", on("unit", lambda x: F.normalize(x, dim=-1), tiny)),
    "lost state": ("test_state_survives_saving", on("load_state_dict", lambda self, state: None)),
    "fixed temperature": ("test_identity", on("bound_below", lambda free, least: free.detach(), _composed)),
    "lost rows": ("test_tokens", on("tokenize", lambda self, texts: {"ids": torch.ones(max(1, len(texts)), 2).long()})),
}
GENUINE_TEXT = Tiny._text


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_every_fault_is_found(fault, monkeypatch):
    case = BackboneTestCase()

    def make(seed: int) -> Backbone:
        return Tiny.load(tiny.TinyOptions(attribute_weights=True), seed)

    genuine = make(0).eval()
    fixtures: dict[str, Any] = {"make": make, "dtype": torch.bfloat16, "device": "cpu"}
    fixtures |= {"tokens": genuine.tokenize(case.texts), "features": case.encoded(genuine)}

    def run(name: str) -> None:
        test = getattr(case, name)
        fixtures["backbone"] = make(0).eval()
        test(**{key: fixtures[key] for key in inspect.signature(test).parameters})

    if fault is None:
        for name in {name for name, _ in FAULTS.values()}:
            run(name)
        return
    name, patch = FAULTS[fault]
    patch(monkeypatch)
    with pytest.raises(RuntimeError if fault == "overflow" else AssertionError):
        run(name)


def test_the_bound_lets_a_temperature_rise_again():
    free = torch.tensor(0.004, requires_grad=True)
    assert bound_below(free, 0.01).item() == pytest.approx(0.01)
    bound_below(free, 0.01).backward()
    assert free.grad == 1
    assert bound_below(torch.tensor(0.5), 0.01) == 0.5
