"""The option `shared` of unions: draws of the batch's other queries as negatives, by loops and by another library."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.contracts import ScoreView, Strategy, relevance
from negbench.errors import NegbenchError, OptionError
from negbench.loop.objective import Batch, Objective, StepResult
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun
from negbench.mining.composite import compose
from negbench.scoring import evaluation
from tests.runs import config_of, run, untrained

ROWS = torch.tensor([0, 7, 30, 41])  # two queries of each gallery group
DRAWN = torch.tensor([[3, 5], [2, 2], [33, 21], [25, 36]])


def open_toy_run(sets: list[str], *more: str) -> OpenRun:
    opened_run = untrained(config_of(sets, "in-batch+qure:shared=true", *more))
    opened_run.backbone.eval()
    return opened_run


def step(
    opened_run: OpenRun, drawn: Tensor, name: str = "in-batch+qure", loss: str = "info-nce", **options: Any
) -> StepResult:
    train = opened_run.scene.train
    strategy = make_strategy(name, shared=True)
    objective = Objective(
        TrainingCalls(opened_run.backbone, 0),
        strategy,
        make_loss(loss, **options),
        opened_run.scene,
        opened_run.config.mining,
    )
    with torch.no_grad():
        return objective(Batch(ROWS, drawn, {key: value[ROWS] for key, value in train.tokens.items()}))


def scores_of(opened_run: OpenRun) -> Tensor:
    """[4, N] over the temperature."""
    with torch.no_grad():
        embeddings = evaluation.embed(opened_run.backbone, opened_run.scene, opened_run.scene.train)
    scores: Tensor = relevance(embeddings.queries[ROWS], embeddings.candidates) / opened_run.backbone.temperature.item()
    return scores


def columns_of(opened_run: OpenRun, drawn: Tensor, excluded: list[set[int]]) -> list[list[int]]:
    """Each query's own draws, the batch's other targets, and the draws of others that it may have; by loops."""
    targets = opened_run.scene.train.dataset.target_columns[ROWS].tolist()
    columns_by_query = []
    for i in range(len(ROWS)):
        columns = drawn[i].tolist()
        others = [targets[j] for j in range(len(ROWS)) if j != i]
        for j in range(len(ROWS)):
            if j != i:
                others += drawn[j].tolist()
        columns += [column for column in others if column != targets[i] and column not in excluded[i]]
        columns_by_query.append(columns)
    return columns_by_query


def softmax_loss(scores: Tensor, targets: list[int], columns: list[list[int]]) -> float:
    rows = [-float(scores[i, [targets[i], *columns[i]]].log_softmax(0)[0]) for i in range(len(ROWS))]
    return sum(rows) / len(rows)


def test_the_draws_of_the_batchs_other_queries_join_the_softmax(vector_sets):
    opened_run = open_toy_run(vector_sets)
    data = opened_run.scene.train.dataset
    targets = data.target_columns[ROWS].tolist()
    drawn = DRAWN.clone()
    drawn[1, 0] = targets[0]  # some query's target is left out for that query alone
    columns = columns_of(opened_run, drawn, [set()] * 4)
    assert targets[0] not in columns[0]
    assert columns[1].count(targets[0]) == 2  # its own draw, and the other query's target
    result = step(opened_run, drawn)
    assert float(result.loss) == pytest.approx(softmax_loss(scores_of(opened_run), targets, columns), abs=1e-5)
    assert result.negative_count == sum(map(len, columns))


@pytest.mark.parametrize("exclude", [False, True])
def test_known_relevant_images_are_left_out_on_request_and_counted_otherwise(subtests, vector_sets, exclude):
    opened_run = open_toy_run(vector_sets, f"mining.exclude_relevant={str(exclude).lower()}")
    data = opened_run.scene.train.dataset
    targets = data.target_columns[ROWS].tolist()
    assert data.answers is not None
    answers = [set(data.answers.row(row).tolist()) for row in ROWS.tolist()]
    drawn = DRAWN.clone()
    drawn[0, 0] = next(iter(answers[1] - {targets[1]}))  # drawn for the first query, and right for the second
    columns = columns_of(opened_run, drawn, answers if exclude else [set()] * 4)
    result = step(opened_run, drawn)
    assert float(result.loss) == pytest.approx(softmax_loss(scores_of(opened_run), targets, columns), abs=1e-5)
    assert result.shared is not None
    members = columns_of(opened_run, drawn[:, :0], answers if exclude else [set()] * 4)
    for i in range(4):
        with subtests.test(i=i):
            of_others = columns[i][2 + len(members[i]) :]
            wrong = [column for column in of_others if column in answers[i]]
            if answers[i]:
                assert result.shared[i].tolist() == [len(of_others), len(wrong)]
            else:  # nobody knows which are wrong
                assert result.shared[i].tolist() == [0, 0]
    assert result.shared[1, 1] == (0 if exclude else 1)


def test_filters_apply_to_the_draws_of_others(vector_sets):
    opened_run = open_toy_run(vector_sets, "mining.margin=0.05")
    free = open_toy_run(vector_sets)
    targets = opened_run.scene.train.dataset.target_columns[ROWS].tolist()
    scores = scores_of(opened_run) * opened_run.backbone.temperature.item()
    high = [{int(c) for c in (scores[i] > scores[i, targets[i]] - 0.05).nonzero()} for i in range(4)]
    left_out = [high[i] & set(columns[2:]) for i, columns in enumerate(columns_of(free, DRAWN, [set()] * 4))]
    assert set.union(*left_out)
    want = softmax_loss(scores_of(opened_run), targets, columns_of(opened_run, DRAWN, high))
    assert float(step(opened_run, DRAWN).loss) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("hardness", [0.0, 5.0])
def test_the_loss_is_that_of_sentence_transformers(vector_sets, hardness):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    opened_run = open_toy_run(vector_sets)
    train = opened_run.scene.train
    by_target = {int(train.dataset.target_columns[row]): row for row in range(24)}  # of one gallery
    rows = torch.tensor(list(by_target.values())[:4])
    targets = train.dataset.target_columns[rows]
    free = [column for column in range(20) if column not in targets.tolist()]
    drawn = torch.tensor(free[:12]).reshape(4, 3)
    tokens = {key: value[rows] for key, value in train.tokens.items()}
    strategy = make_strategy("in-batch+qure", shared=True)
    loss = make_loss("info-nce", hardness=hardness)
    objective = Objective(
        TrainingCalls(opened_run.backbone, 0), strategy, loss, opened_run.scene, opened_run.config.mining
    )
    ours = objective(Batch(rows, drawn, tokens)).loss
    embeddings = evaluation.embed(opened_run.backbone, opened_run.scene, train)
    images = embeddings.candidates

    def similarity(queries: Tensor, flat: Tensor) -> Tensor:
        scores: Tensor = relevance(queries, flat.unflatten(1, images.shape[1:]))
        return scores

    options = {"hardness_mode": "all_negatives", "hardness_strength": hardness} if hardness else {}
    scale = 1 / opened_run.backbone.temperature.item()
    theirs = MultipleNegativesRankingLoss(None, scale=scale, similarity_fct=similarity, **options)
    documents = [images[columns].flatten(1) for columns in (targets, *drawn.T)]
    want = theirs.compute_loss_from_embeddings([embeddings.queries[rows], *documents], None)
    assert float(ours) == pytest.approx(float(want), rel=1e-6)


@pytest.mark.parametrize("kl_over", ["batch", "corpus"])
def test_candidates_of_a_loss_are_no_draws_of_others(vector_sets, kl_over):
    """What margin-kl ranks besides the negatives: each image once, and none that is a negative already."""
    opened_run = open_toy_run(vector_sets)
    data = opened_run.scene.train.dataset
    targets = data.target_columns[ROWS].tolist()
    columns = columns_of(opened_run, DRAWN, [set()] * 4)
    names = list(data.groups)
    for i in range(4):
        corpus = data.groups[names[int(data.group_index[ROWS[i]])]].tolist()
        more = corpus if kl_over == "corpus" else targets
        columns[i] += [column for column in more if column != targets[i] and column not in columns[i]]
    options = {"kl_over": kl_over, "lambda_rank": 1e-9, "margin": 0.0}
    result = step(opened_run, DRAWN, loss="margin-kl", **options)
    assert float(result.loss) == pytest.approx(softmax_loss(scores_of(opened_run), targets, columns), abs=1e-5)


def test_a_run_counts_its_negatives_and_the_false_ones_among_the_shared(vector_sets, tmp_path):
    alone = run(config_of(vector_sets, "in-batch+top-k:k=5"), tmp_path)
    shared = run(config_of(vector_sets, "in-batch+top-k:k=5:shared=true"), tmp_path)
    assert shared.folder.result["negatives_per_query"] > 1.7 * alone.folder.result["negatives_per_query"]
    assert shared.metrics != alone.metrics
    curve = [point["mining/false_negative_rate_shared"] for point in shared.folder.metrics() if "train/loss" in point]
    assert min(curve) >= 0
    assert max(curve) < 1
    assert [point for point in alone.folder.metrics() if "mining/false_negative_rate_shared" in point] == []
    last = shared.folder.result["behaviour_by_refresh"][-1]
    assert last["false_negative_rate_shared"] == pytest.approx(curve[-1])
    assert not math.isnan(last["pool_size"])


def test_a_part_with_an_option_of_that_name_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Sharing(Strategy):
        shared: bool = False

        def pool(self, view: ScoreView) -> Tensor:
            return view.allowed

    parts: dict[str, type[Strategy]] = {"sharing": Sharing, "in-batch": type(make_strategy("in-batch"))}
    with pytest.raises(OptionError, match="'sharing' has an option of its own named 'shared'"):
        compose("in-batch+sharing", parts.__getitem__)


def test_other_strategies_have_no_such_option(subtests):
    for name in ("top-k", "in-batch", "in-batch:1>top-k"):
        with subtests.test(name=name), pytest.raises(NegbenchError, match="shared"):
            make_strategy(name, shared=True)
