"""Steps with several positives, a bank, ordered batches and weighted queries: against loops, and resumed to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.config import RunConfig, parse_plugin
from negbench.contracts import relevance
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.loop.objective import Batch, Objective, StepResult
from negbench.loop.runs import Bench, OpenRun, RunResult, open_run, plan_run, resume, run_config
from negbench.loop.train import Loop
from negbench.mining.planes import images_of
from negbench.scene import Scenes
from negbench.scoring import evaluation
from negbench.systems.system import load_config

ROWS = torch.tensor([0, 7, 30, 41, 12])


def config_of(sets: list[str], strategy: str, *more: str, loss: str = "info-nce") -> RunConfig:
    return load_config(flags={"strategy": parse_plugin(strategy), "loss": {"name": loss}}, sets=[*sets, *more])


@pytest.fixture
def opened(vector_sets: list[str]) -> OpenRun:
    """A run whose backbone is in evaluation mode."""
    found = open_run(config_of(vector_sets, "in-batch"), Display(), Scenes())
    found.backbone.eval()
    return found


def objective_of(opened: OpenRun, strategy: str, loss: str, **options: Any) -> Objective:
    return Objective(
        opened.backbone, make_strategy(strategy, **options), make_loss(loss), opened.scene, opened.config.mining
    )


def step(objective: Objective, rows: Tensor = ROWS, drawn: Tensor | None = None, **more: Any) -> StepResult:
    tokens = {k: v[rows] for k, v in objective.scene.train.tokens.items()}
    with torch.no_grad():
        result: StepResult = objective(Batch(rows, drawn, tokens, **more))
    return result


def tables(opened: OpenRun) -> tuple[Tensor, Tensor, Tensor]:
    """[Q, N] scores over the temperature, [N, D] images, [Q] target columns, none with a gradient."""
    with torch.no_grad():
        found = evaluation.embed(opened.backbone, opened.scene, opened.scene.train)
        scores = relevance(found.queries, found.candidates) / opened.backbone.temperature
    return scores, images_of(found.candidates), opened.scene.train.dataset.target_columns


def stopped(config: RunConfig, where: Path, monkeypatch: pytest.MonkeyPatch, epoch: int = 2) -> Bench:
    """The bench of a run that was stopped in this epoch."""
    real, bench = Loop.train_epoch, Bench.open(where, "none")

    def until(self: Loop) -> None:
        if self.state.epoch == epoch:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train_epoch", until)
        with pytest.raises(KeyboardInterrupt):
            run_config(config, bench)
    return bench


def resumes_to_the_bit(config: RunConfig, where: Path, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    """A run, equal to itself interrupted and resumed."""
    whole = run_config(config, Bench.open(where / "whole", "none"))
    again = resume(whole.run_id, stopped(config, where / "halves", monkeypatch))
    left, right = whole.folder.weights(), again.folder.weights()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert whole.folder.metrics() == again.folder.metrics()
    return whole


def alone(config: RunConfig) -> str:
    """Why it is not stacked."""
    return plan_run(config, Scenes()).alone


# --- several positives -----------------------------------------------------------------------------------------------


def test_attraction_is_the_mean_of_the_logarithms_over_all_positives(opened: OpenRun) -> None:
    scores, images, targets = tables(opened)
    result = step(objective_of(opened, "fnc-attraction", "sup-con", threshold=0.0, k=2))
    rows, found = ROWS.tolist(), 0
    want, negatives = list[float](), 0
    for row in rows:
        own = int(targets[row])
        others = [int(targets[other]) for other in rows if int(targets[other]) != own]
        near = sorted(others, key=lambda c: -float(images[own] @ images[c]))[:2]
        near = [c for c in near if float(images[own] @ images[c]) > 0]
        log_p = scores[row, [own, *others]].log_softmax(0)
        picked = [own, *near]
        found += len(near)
        negatives += len(others) - len(near)
        if len(others) > len(near):
            want.append(-sum(float(log_p[[own, *others].index(c)]) for c in picked) / len(picked))
    assert found
    assert result.negatives == negatives
    assert float(result.loss) == pytest.approx(sum(want) / len(want), abs=1e-5)


def test_positives_beside_own_draws(opened: OpenRun) -> None:
    """A union: the draws are further negatives of the same softmax."""
    scores, images, targets = tables(opened)
    drawn = torch.tensor([[1, 5], [2, 3], [33, 21], [25, 36], [6, 8]])
    strategy = {"threshold": 0.0, "k": 2}
    result = step(
        objective_of(opened, "fnc-attraction+top-k", "sup-con", threshold=0.0, fnc_attraction_k=2), ROWS, drawn
    )
    plain = step(objective_of(opened, "fnc-attraction", "sup-con", **strategy))
    assert result.negatives == plain.negatives + 10
    want = 0.0
    for at, row in enumerate(ROWS.tolist()):
        own = int(targets[row])
        others = [int(targets[other]) for other in ROWS.tolist() if int(targets[other]) != own]
        near = sorted(others, key=lambda c: -float(images[own] @ images[c]))[:2]
        near = [c for c in near if float(images[own] @ images[c]) > 0]
        log_p = scores[row, [own, *others, *drawn[at].tolist()]].log_softmax(0)
        want -= sum(float(log_p[[own, *others].index(c)]) for c in [own, *near]) / (1 + len(near)) / len(ROWS)
    assert float(result.loss) == pytest.approx(want, abs=1e-5)


def test_joint_slots_keep_the_positives(opened: OpenRun) -> None:
    """Other slots have none but the target, so "joint" over one slot is "sum"."""
    from negbench.loop.slots import Corrupted

    one = Corrupted(torch.rand(2, 3), torch.ones(2, 3) > 0, None, torch.eye(2, 3))
    both = Corrupted.side_by_side([Corrupted(torch.rand(2, 2), torch.ones(2, 2) > 0), one])
    assert both.positives is not None
    assert torch.equal(both.positives, torch.cat([torch.zeros(2, 2), torch.eye(2, 3)], dim=1))
    assert both.weights is None


def test_a_loss_of_one_positive_is_refused(vector_sets: list[str]) -> None:
    for name in ("fnc-attraction", "in-batch:2>fnc-attraction", "fnc-attraction+qure"):
        with pytest.raises(NegbenchError, match="several positives of a query, and InfoNCE takes one: --loss sup-con"):
            plan_run(config_of(vector_sets, name), Scenes())


def test_a_run_of_several_positives_is_trained_by_itself(vector_sets: list[str], tmp_path: Path) -> None:
    config = config_of(vector_sets, "fnc-attraction:threshold=0.0", "train.stacked=true", loss="sup-con")
    sets = [*vector_sets, "train.stacked=true"]
    assert "has several positives of a query" in alone(config)
    assert alone(config_of(sets, "in-batch")) == ""
    assert run_config(config, Bench.open(tmp_path, "none")).details["negatives_seen"]
