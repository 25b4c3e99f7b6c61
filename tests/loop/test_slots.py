"""Slots of a step: the sum of one softmax per slot, or one softmax over all, from what a loss gives for each or all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from negbench.contracts import AspectScores, BatchStrategy, LossInput, ScoreView, Slot
from negbench.loop.chosen import ChoiceInputs, choose
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
POSITIVE = torch.tensor([0.6, 0.2])
TAU = torch.tensor(0.5)
SUB_QUERY = torch.tensor([[0.3, 0.25], [0.1, 0.4]])
OTHERS = ~torch.eye(2, dtype=torch.bool)
PLAIN = torch.ones(2, 2)
WEIGHTS = torch.tensor([[1.0, 4.0], [0.5, 1.0]])
CANDIDATES = torch.tensor([[0.7, 0.1], [-0.4, 0.9]])
CANDIDATE_MASK = torch.tensor([[True, True], [True, False]])


@pytest.mark.parametrize("loss", [InfoNCE(), BradleyTerry(), MarginKL(margin_aspect=0.2)], ids=["nce", "bt", "kl"])
@pytest.mark.parametrize("names", [("target",), ("modification", "reference"), ("reference", "target", "modification")])
@pytest.mark.parametrize("weighted", ["modification", "target"])
def test_a_loss_takes_each_slot_or_all_together(loss, names, weighted):
    """Weights stay with their slot; sub-queries belong to the target slot, candidates to that or else to the first."""
    more = isinstance(loss, MarginKL)  # the others read nothing but the negatives
    weights = {slot: WEIGHTS if slot == weighted else PLAIN for slot in names}
    slots = {slot: SlotNegatives(SCORES[slot], OTHERS, WEIGHTS if slot == weighted else None) for slot in names}

    def aspects(among: Sequence[Slot]) -> list[AspectScores]:
        if not more or "target" not in among:
            return []
        negatives = torch.cat([SUB_QUERY if slot == "target" else torch.full((2, 2), -99.0) for slot in among], 1)
        present = torch.tensor([True, True])
        return [AspectScores("colour", SUB_QUERY.diagonal(), negatives, torch.tensor(2.0), present)]

    def value(*among: Slot) -> float:
        """Return the loss of these slots together."""
        scores = torch.cat([SCORES[slot] for slot in among], 1)
        mask = torch.cat([OTHERS for _ in among], 1)
        weight = torch.cat([weights[slot] for slot in among], 1)
        inputs = LossInput(POSITIVE, scores, mask, weight, TAU, aspects(among))
        has_candidates = "target" in among or (names[0] in among and "target" not in names)
        if more and has_candidates:
            inputs = replace(inputs, candidates=CANDIDATES, candidate_mask=CANDIDATE_MASK)
        return float(loss.evaluate(inputs))

    extras = LossExtras(aspects(["target"]), CANDIDATES, CANDIDATE_MASK) if more else LossExtras([])
    one_by_one = sum(value(name) for name in names)
    assert float(loss_of_slots(loss, "sum", POSITIVE, slots, TAU, extras)) == pytest.approx(one_by_one, rel=1e-6)
    together = value(*names)
    assert float(loss_of_slots(loss, "joint", POSITIVE, slots, TAU, extras)) == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize(
    ("slots", "counted"),
    [
        (("target",), "target"),
        (("reference", "modification", "target"), "target"),
        (("reference", "modification"), "reference"),
        (("modification", "reference"), "modification"),
    ],
)
def test_statistics_are_of_the_target_slot_or_else_of_the_first(slots, counted):
    @dataclass(frozen=True)
    class Positive(BatchStrategy):
        """Choose the members with a positive score: others in each slot."""

        corrupts: ClassVar[tuple[Slot, ...]] = slots

        def pool(self, view: ScoreView) -> Tensor:
            return view.allowed & (view.scores > 0)

    allowed = dict.fromkeys(slots, OTHERS)
    chosen, pools = choose(Positive(), SCORES, allowed, ChoiceInputs(temperature=1.0, queries=torch.zeros(2, 4)))
    assert torch.equal(pools.scores, SCORES[counted])
    assert torch.equal(pools.pool, chosen[counted].mask)
