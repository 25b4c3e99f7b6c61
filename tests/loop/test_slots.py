"""Slots of a step: the sum of one softmax per slot, or one softmax over all, from what a loss gives for each or all."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from negbench.contracts import AspectScores, LossInput, Slot
from negbench.loop.slots import LossExtras, SlotNegatives, loss_of_slots
from negbench.losses.bradley_terry import BradleyTerry
from negbench.losses.info_nce import InfoNCE
from negbench.losses.margin_kl import MarginKL

# S_R, S_M, S_T of HyCoLe eq. 3 for a batch of two, the positives 0.6 and 0.2 on each diagonal
SCORES: dict[Slot, Tensor] = {
    "reference": torch.tensor([[0.6, 0.1], [-0.3, 0.2]]),
    "modification": torch.tensor([[0.6, 0.4], [0.0, 0.2]]),
    "target": torch.tensor([[0.6, -0.2], [0.5, 0.2]]),
}
POSITIVE, TAU, SUB_QUERY = torch.tensor([0.6, 0.2]), torch.tensor(0.5), torch.tensor([[0.3, 0.25], [0.1, 0.4]])
OTHERS, PLAIN, WEIGHTS = ~torch.eye(2, dtype=torch.bool), torch.ones(2, 2), torch.tensor([[1.0, 4.0], [0.5, 1.0]])
BESIDE = (torch.tensor([[0.7, 0.1], [-0.4, 0.9]]), torch.tensor([[True, True], [True, False]]))  # candidates


@pytest.mark.parametrize("loss", [InfoNCE(), BradleyTerry(), MarginKL(margin_aspect=0.2)], ids=["nce", "bt", "kl"])
@pytest.mark.parametrize("names", [("target",), ("modification", "reference"), ("reference", "target", "modification")])
@pytest.mark.parametrize("weighted", ["modification", "target"])
def test_a_loss_takes_each_slot_or_all_together(loss, names, weighted):
    """Weights stay with their slot; sub-queries belong to the target slot, candidates to that or else to the first."""
    more = isinstance(loss, MarginKL)  # the others read nothing but the negatives
    weights = {slot: WEIGHTS if slot == weighted else PLAIN for slot in names}
    slots = {slot: SlotNegatives(SCORES[slot], OTHERS, WEIGHTS if slot == weighted else None) for slot in names}

    def aspects(among: Sequence[Slot]) -> list[AspectScores]:
        seen = torch.cat([SUB_QUERY if slot == "target" else torch.full((2, 2), -99.0) for slot in among], 1)
        there = torch.tensor([True, True])
        colour = AspectScores("colour", SUB_QUERY.diagonal(), seen, torch.tensor(2.0), there)
        return [colour] if more and "target" in among else []

    def value(*among: Slot) -> float:
        tables = zip(*((SCORES[slot], OTHERS, weights[slot]) for slot in among), strict=True)
        inputs = (torch.cat(parts, 1) for parts in tables)
        beside = BESIDE if more and ("target" in among or (names[0] in among and "target" not in names)) else ()
        return float(loss.evaluate(LossInput(POSITIVE, *inputs, TAU, aspects(among), *beside)))

    extras = LossExtras(aspects(["target"]), *(BESIDE if more else ()))
    for how, want in (("sum", sum(map(value, names))), ("joint", value(*names))):
        assert float(loss_of_slots(loss, how, POSITIVE, slots, TAU, extras)) == pytest.approx(want, rel=1e-6), how
