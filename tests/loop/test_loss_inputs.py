"""What some losses get besides the scores of target and negatives, by loops: a guide's scores, further positives."""

import math

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.contracts import relevance
from negbench.errors import NegbenchError
from negbench.loop.mining_task import offline_planes
from negbench.loop.objective import Batch, Objective, StepResult
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun
from negbench.scoring import evaluation
from tests.runs import config_of, run, untrained

ROWS = torch.tensor([0, 7, 30, 41])  # two queries of each gallery group
DRAWN = torch.tensor([[3, 5], [2, 4], [33, 21], [25, 36]])
EXCLUDE = "mining.exclude_relevant=true"


def open_toy_run(sets: list[str], strategy: str, loss: str, *more: str) -> OpenRun:
    opened_run = untrained(config_of(sets, strategy, *more, loss={"name": loss}))
    opened_run.backbone.eval()
    return opened_run


def step(opened_run: OpenRun, drawn: Tensor | None) -> StepResult:
    config = opened_run.config
    scene = opened_run.scene
    loss = make_loss(config.loss.name, **config.loss.options)
    planes = offline_planes(loss.reads, config, scene, opened_run.display)
    strategy = make_strategy(config.strategy.name, **config.strategy.options)
    objective = Objective(TrainingCalls(opened_run.backbone, 0), strategy, loss, scene, config.mining, offline=planes)
    with torch.no_grad():
        return objective(Batch(ROWS, drawn, {key: value[ROWS] for key, value in scene.train.tokens.items()}))


def scores_of(opened_run: OpenRun) -> Tensor:
    """[4, N], before the temperature."""
    with torch.no_grad():
        embeddings = evaluation.embed(opened_run.backbone, opened_run.scene, opened_run.scene.train)
    return relevance(embeddings.queries[ROWS], embeddings.candidates).detach()


def negatives_of(opened_run: OpenRun, row: int, drawn: Tensor | None, *, batch: bool) -> list[int]:
    """The columns of a query's negatives: its draws, and the batch's other targets that it may have."""
    data = opened_run.scene.train.dataset
    target = int(data.target_columns[ROWS[row]])
    assert data.answers is not None
    excluded = set(data.answers.row(int(ROWS[row])).tolist()) if opened_run.config.mining.exclude_relevant else set()
    columns = [] if drawn is None else drawn[row].tolist()
    if batch:
        targets = data.target_columns[ROWS].tolist()
        columns += [column for column in targets if column != target and column not in excluded]
    return columns


UNIONS = [("in-batch", False), ("qure", True), ("in-batch+qure", True)]


@pytest.mark.parametrize(("strategy", "mined"), UNIONS)
def test_every_known_relevant_image_is_a_positive(vector_sets, strategy, mined):
    opened_run = open_toy_run(vector_sets, strategy, "multi-positive", EXCLUDE)
    data = opened_run.scene.train.dataset
    scores = scores_of(opened_run)
    tau = opened_run.backbone.temperature.item()
    assert data.answers is not None
    drawn = DRAWN if mined else None
    losses = []
    several = 0
    for i, query in enumerate(ROWS.tolist()):
        positives = {int(data.target_columns[query]), *data.answers.row(query).tolist()}
        several += len(positives) > 1
        negatives = negatives_of(opened_run, i, drawn, batch="in-batch" in strategy)
        terms = [math.exp(float(scores[i, column]) / tau) for column in (*positives, *negatives)]
        logs = [float(scores[i, column]) / tau - math.log(sum(terms)) for column in positives]
        losses.append(-sum(logs) / len(logs))
    assert several
    assert float(step(opened_run, drawn).loss) == pytest.approx(sum(losses) / len(losses), abs=2e-4)


@pytest.mark.parametrize(("strategy", "mined"), [*UNIONS, ("in-batch+qure:shared=true", True), ("xbm", False)])
def test_the_guide_scores_target_and_negatives(sets, strategy, mined):
    """Of other weights than the model; `xbm`'s queue, a slot of its own, holds the batch itself in its first step."""
    opened_run = open_toy_run(sets, strategy, "guide-kl", "loss.guide_tau=0.2")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in opened_run.backbone.parameters():
            if weight.ndim:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    data = opened_run.scene.train.dataset
    scores = scores_of(opened_run)
    tau = opened_run.backbone.temperature.item()
    drawn = DRAWN if mined else None
    plane = offline_planes(("guide",), opened_run.config, opened_run.scene, opened_run.display)["guide"]
    guide = plane.block(ROWS, torch.arange(len(data.images)))
    losses = []
    for i in range(len(ROWS)):
        target = int(data.target_columns[ROWS[i]])
        columns = [target, *negatives_of(opened_run, i, drawn, batch=strategy != "qure")]
        if "shared" in strategy:
            others = torch.cat([DRAWN[:i], DRAWN[i + 1 :]]).flatten().tolist()
            columns += [column for column in others if column != target]
        labels = (guide[i, columns] / 0.2).log_softmax(0)
        predicted = (scores[i, columns] / tau).log_softmax(0)
        losses.append(float((labels.exp() * (labels - predicted)).sum()))
    assert max(losses) > 0.01
    slots = 2 if strategy == "xbm" else 1
    assert float(step(opened_run, drawn).loss) == pytest.approx(slots * sum(losses) / len(losses), abs=2e-4)


REFUSED = [
    ("qure", "multi-positive", (), r"^MultiPositive takes known relevant .* --set mining\.exclude_relevant=true"),
    ("qure", "guide-kl", ("mining.guide=null",), r"^loss GuideKL reads the plane 'guide', but the run has none: --set"),
    ("hycole", "guide-kl", (), r"^GuideKL needs .* has none of those of slot modification and reference: use a strat"),
    ("mochi", "guide-kl", (), r"^GuideKL needs .* has none of those made from embeddings: use a strategy"),
    ("in-batch", "guide-kl", ("hybrid.alpha=1",), "^hybrid.alpha and hybrid.beta|no texts of references"),
]


@pytest.mark.parametrize(("strategy", "loss", "more", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_a_loss_cannot_get_is_refused(sets, strategy, loss, more, message):
    with pytest.raises(NegbenchError, match=message) as caught:
        open_toy_run(sets, strategy, loss, *more)
    assert "\n" not in str(caught.value)


def test_a_run_follows_its_guide(sets, tmp_path):
    result = run(config_of(sets, "in-batch+qure", loss={"name": "guide-kl"}), tmp_path)
    assert [remark for remark in result.details["remarks"] if "mining.guide" in remark] == []
    losses = [point["train/loss"] for point in result.folder.metrics() if "train/loss" in point]
    assert len(losses) == 2
