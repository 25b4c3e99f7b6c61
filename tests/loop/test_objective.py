"""One step against loops: which negatives are scored, which are allowed, what the loss is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.config import MiningConfig, load_config
from negbench.contracts import Backbone
from negbench.display import Display
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import OpenRun, open_run
from negbench.mining.task import mining_task
from negbench.scene import Scene, Scenes


@pytest.fixture(scope="module")
def cell(toy_root: Path) -> OpenRun:
    config = load_config(
        flags={"strategy": {"name": "qure"}}, sets=[f"dataset.root='{toy_root}'", "backbone.weights='random'"]
    )
    opened = open_run(config, Display(), Scenes())
    opened.backbone.eval()
    return opened


def query(backbone: Backbone, scene: Scene, reference: int, text: int) -> Tensor:
    """One composed query: the reference image of one query with the text of another."""
    split = scene.train
    feature = scene.features(backbone, split.references[reference : reference + 1])
    return backbone.queries(feature, {k: v[text : text + 1] for k, v in split.tokens.items()})[0]


def candidate(backbone: Backbone, scene: Scene, column: int) -> Tensor:
    split = scene.train
    return backbone.candidates(scene.features(backbone, split.images[column : column + 1]))[0]


def score(backbone: Backbone, scene: Scene, reference: int, text: int, column: int) -> float:
    tokens = candidate(backbone, scene, column)
    return max(float(query(backbone, scene, reference, text) @ token) for token in tokens)


def batch_of(scene: Scene, rows: Tensor, negatives: Tensor | None) -> Batch:
    return Batch(rows, negatives, {k: v[rows] for k, v in scene.train.tokens.items()})


@torch.no_grad()
def test_corpus_step_is_the_loss_of_the_drawn_negatives(cell: OpenRun) -> None:
    rows = torch.tensor([3, 40, 11])
    negatives = torch.tensor([[5, 5], [70, 2], [9, 12]])
    objective = Objective(cell.backbone, make_strategy("qure"), make_loss("bradley-terry"), cell.scene, MiningConfig())
    result = objective(batch_of(cell.scene, rows, negatives))
    targets = cell.scene.train.dataset.target_columns[rows].tolist()
    total = 0.0
    for row, target, drawn in zip(rows.tolist(), targets, negatives.tolist(), strict=True):
        positive = score(cell.backbone, cell.scene, row, row, target)
        for column in drawn:
            gap = (score(cell.backbone, cell.scene, row, row, column) - positive) / float(cell.backbone.temperature)
            total += float(torch.nn.functional.softplus(torch.tensor(gap))) / 2 / 3
    assert float(result.loss) == pytest.approx(total, abs=1e-5)
    assert result.negatives == 6


@torch.no_grad()
def test_hycole_step_is_info_nce_over_triples_that_differ_in_one_member(cell: OpenRun) -> None:
    scene, dataset = cell.scene, cell.scene.train.dataset
    repeated = next(  # two queries with one reference: exchanging it changes nothing
        (i, j)
        for i in range(len(dataset.queries))
        for j in range(i)
        if dataset.queries[i].reference == dataset.queries[j].reference
    )
    # the first query twice stands for two queries with one target and one text
    rows = torch.tensor([*repeated, repeated[0], *(r for r in (0, 20, 50) if r not in repeated)])
    objective = Objective(cell.backbone, make_strategy("hycole"), make_loss("info-nce"), scene, MiningConfig())
    result = objective(batch_of(scene, rows, None))
    losses, count = [], 0
    tau = float(cell.backbone.temperature)
    for i in rows.tolist():
        mine = dataset.queries[i]
        target = int(dataset.target_columns[i])
        logits = [score(cell.backbone, scene, i, i, target)]
        for j in rows.tolist():
            other = dataset.queries[j]
            if other.target != mine.target:
                logits.append(score(cell.backbone, scene, i, i, int(dataset.target_columns[j])))
            if other.reference != mine.reference:
                logits.append(score(cell.backbone, scene, j, i, target))
            if other.text != mine.text:
                logits.append(score(cell.backbone, scene, i, j, target))
        count += len(logits) - 1
        losses.append(-torch.log_softmax(torch.tensor(logits) / tau, 0)[0])
    assert result.negatives == count
    assert float(result.loss) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("option", ["exclude_relevant", "exclude_reference"])
def test_what_a_run_excludes_is_no_negative(cell: OpenRun, option: str) -> None:
    scene, dataset = cell.scene, cell.scene.train.dataset
    rows = torch.arange(24)  # all of one category, so that twins and references meet
    strategy, loss = make_strategy("in-batch"), make_loss("info-nce")
    plain = Objective(cell.backbone, strategy, loss, scene, MiningConfig())
    strict = Objective(cell.backbone, strategy, loss, scene, MiningConfig.model_validate({option: True}))
    barred = 0
    for i in rows.tolist():
        for j in rows.tolist():
            mine, other = dataset.queries[i], dataset.queries[j]
            if other.target != mine.target:
                barred += other.target in (mine.relevant if option == "exclude_relevant" else (mine.reference,))
    batch = batch_of(scene, rows, None)
    assert barred > 0
    assert plain(batch).negatives - strict(batch).negatives == barred
    assert plain(batch).statistics["false_negative_rate_pool"] > 0
    if option == "exclude_relevant":
        assert strict(batch).statistics["false_negative_rate_pool"] == 0


@torch.no_grad()
def test_mining_excludes_the_same(cell: OpenRun) -> None:
    dataset = cell.scene.train.dataset
    for option in ("exclude_relevant", "exclude_reference"):
        excluded = mining_task(cell.backbone, cell.scene, MiningConfig.model_validate({option: True})).excluded
        assert excluded is not None
        for i, mine in enumerate(dataset.queries):
            names = {dataset.images[c] for c in excluded.row(i).tolist()}
            assert names == (set(mine.relevant) if option == "exclude_relevant" else {mine.reference})
    assert mining_task(cell.backbone, cell.scene, cell.config.mining).excluded is None
