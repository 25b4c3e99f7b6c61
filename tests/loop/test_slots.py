"""Slots of a step against hand tables: the sum of one softmax per slot, or one softmax over all."""

import math

import pytest
import torch

from negbench.contracts import AspectScores, Slot
from negbench.loop.slots import Corrupted, LossExtras, loss_of_slots
from negbench.losses.bradley_terry import BradleyTerry
from negbench.losses.info_nce import InfoNCE
from negbench.losses.margin_kl import MarginKL

# S_R, S_M, S_T of HyCoLe eq. 3 for a batch of two, the positives 0.6 and 0.2 on each diagonal
MATRICES: dict[Slot, list[list[float]]] = {
    "reference": [[0.6, 0.1], [-0.3, 0.2]],
    "modification": [[0.6, 0.4], [0.0, 0.2]],
    "target": [[0.6, -0.2], [0.5, 0.2]],
}
TAU = 0.5
OTHERS = ~torch.eye(2, dtype=torch.bool)


def slots_of(matrices: dict[Slot, list[list[float]]]) -> dict[Slot, Corrupted]:
    return {slot: Corrupted(torch.tensor(matrix), OTHERS) for slot, matrix in matrices.items()}


def value(loss: InfoNCE | BradleyTerry | MarginKL, how: str, slots: dict[Slot, Corrupted], extras: LossExtras) -> float:
    return float(loss_of_slots(loss, how, torch.tensor([0.6, 0.2]), slots, torch.tensor(TAU), extras))


@pytest.mark.parametrize("loss", [InfoNCE(), BradleyTerry(), MarginKL()])
def test_one_slot_is_the_loss_itself(loss):
    slots = slots_of({"target": MATRICES["target"]})
    want = float(loss(torch.tensor([0.6, 0.2]), torch.tensor(MATRICES["target"]), OTHERS, temperature=TAU))
    for how in ("sum", "joint"):
        assert value(loss, how, slots, LossExtras()) == pytest.approx(want, rel=1e-6)


def test_bradley_terry_adds_means_where_joint_averages_them():
    each = [value(BradleyTerry(), "sum", slots_of({slot: m}), LossExtras()) for slot, m in MATRICES.items()]
    assert value(BradleyTerry(), "sum", slots_of(MATRICES), LossExtras()) == pytest.approx(sum(each), rel=1e-6)
    assert value(BradleyTerry(), "joint", slots_of(MATRICES), LossExtras()) == pytest.approx(sum(each) / 3, rel=1e-6)


def test_weights_of_one_slot_stay_with_it():
    slots = slots_of(MATRICES)
    weighted = slots | {"target": Corrupted(slots["target"].scores, OTHERS, OTHERS.float() * 4)}
    extra = [math.log1p(4 * math.exp(g / TAU)) - math.log1p(math.exp(g / TAU)) for g in (-0.8, 0.3)]
    plain = value(InfoNCE(), "sum", slots, LossExtras())
    assert value(InfoNCE(), "sum", weighted, LossExtras()) == pytest.approx(plain + sum(extra) / 2, rel=1e-6)
    joint = [
        math.log1p(math.exp(-1.0) + math.exp(-0.4) + 4 * math.exp(-1.6)),
        math.log1p(math.exp(-1.0) + math.exp(-0.4) + 4 * math.exp(0.6)),
    ]
    assert value(InfoNCE(), "joint", weighted, LossExtras()) == pytest.approx(sum(joint) / 2, rel=1e-6)


@pytest.mark.parametrize("how", ["sum", "joint"])
def test_aspects_and_candidates_belong_to_the_target_slot(how):
    scores = torch.tensor([[0.3, 0.25], [0.1, 0.4]])
    present = torch.ones(2, dtype=torch.bool)
    aspect = AspectScores("colour", scores.diagonal(), scores, torch.tensor(2.0), present)  # margin 0.2: 0.15 and 0
    candidates = torch.tensor([[0.7], [-0.4]])
    loss = MarginKL(lambda_rank=0.0, margin_aspect=0.2)
    plain = value(loss, how, slots_of(MATRICES), LossExtras())
    spread = 3 if how == "joint" else 1  # the joint mean runs over the negatives of all slots
    got = value(loss, how, slots_of(MATRICES), LossExtras([aspect]))
    assert got - plain == pytest.approx(2 * (0.15 + 0.0) / 2 / spread, rel=1e-4)
    gaps = (
        [[0.1 - 0.6, 0.4 - 0.6, -0.2 - 0.6], [-0.3 - 0.2, 0.0 - 0.2, 0.5 - 0.2]]
        if how == "joint"
        else [[-0.2 - 0.6], [0.5 - 0.2]]
    )
    added = 0.0
    for row, gap in zip(gaps, (0.7 - 0.6, -0.4 - 0.2), strict=True):
        total = 1 + sum(math.exp(g / TAU) for g in row)
        added += math.log(total + math.exp(gap / TAU)) - math.log(total)
    got = value(loss, how, slots_of(MATRICES), LossExtras(candidates=candidates))
    assert got - plain == pytest.approx(added / 2, rel=1e-4)
    # without a target slot there is no sub-query, and the candidates go to the first slot
    partial = {slot: part for slot, part in slots_of(MATRICES).items() if slot != "target"}
    assert value(loss, how, partial, LossExtras([aspect])) == value(loss, how, partial, LossExtras())
    assert value(loss, how, partial, LossExtras(candidates=candidates)) > value(loss, how, partial, LossExtras())
