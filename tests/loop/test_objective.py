"""One step against loops: which negatives are scored, which are allowed, what the loss is made of."""

import dataclasses
import gc
import itertools
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.contracts import Backbone, LossInput
from negbench.contracts.splitmix import splitmix
from negbench.data.scene import EncodedSplits
from negbench.datasets.dataset import Dataset
from negbench.errors import OptionError
from negbench.loop.objective import Batch, Objective, _rows_of, check_objective
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun
from negbench.losses.info_nce import InfoNCE
from negbench.mining.mined import batch_statistics
from negbench.settings.config import HybridConfig, MiningConfig
from tests.runs import config_of, untrained


@pytest.fixture(scope="module")
def weighted(toy_root: Path) -> OpenRun:
    """Return an open run with colour and shape sub-queries."""
    sets = [f"dataset.root='{toy_root}'", "backbone.weights='random'", "backbone.attribute_weights=true"]
    return untrained(config_of(sets, "dqe"))


def query(backbone: Backbone, scene: EncodedSplits, reference: int, text: int) -> Tensor:
    """Compose one query: the reference image of one query with the text of another."""
    split = scene.train
    feature = scene.features(backbone, split.references[reference : reference + 1])
    return backbone.queries(feature, {k: v[text : text + 1] for k, v in split.tokens.items()})[0]


def candidate(backbone: Backbone, scene: EncodedSplits, column: int) -> Tensor:
    return backbone.candidates(scene.features(backbone, scene.train.images[column : column + 1]))[0]


def score(backbone: Backbone, scene: EncodedSplits, reference: int, text: int, column: int) -> float:
    tokens = candidate(backbone, scene, column)
    return max(float(query(backbone, scene, reference, text) @ token) for token in tokens)


def batch_of(scene: EncodedSplits, rows: Tensor, negatives: Tensor | None) -> Batch:
    return Batch(rows, negatives, {k: v[rows] for k, v in scene.train.tokens.items()})


def two_with_one_reference(dataset: Dataset) -> tuple[int, int]:
    """Return the rows of two queries that have the same reference."""
    first: dict[str, int] = {}
    for row, query in enumerate(dataset.queries):
        if query.reference in first:
            return row, first[query.reference]
        first[query.reference] = row
    raise AssertionError("every query has a reference of its own")


@torch.no_grad()
@pytest.mark.parametrize("slots", ["sum", "joint"])
def test_hycole_step_is_info_nce_over_triples_that_differ_in_one_member(cell, slots):
    scene = cell.scene
    dataset = cell.scene.train.dataset
    one, other = two_with_one_reference(dataset)  # exchanging it changes nothing
    # the first query twice stands for two queries with one target and one text
    rows = torch.tensor([one, other, one, *(row for row in (0, 20, 50) if row not in (one, other))])
    hybrid = HybridConfig.model_validate({"slots": slots})
    strategy = make_strategy("hycole")
    loss = make_loss("info-nce")
    result = Objective(TrainingCalls(cell.backbone, 0), strategy, loss, scene, MiningConfig(), hybrid)(
        batch_of(scene, rows, None)
    )
    losses = []
    count = 0
    tau = float(cell.backbone.temperature)

    def nce(positive: float, *negatives: float) -> float:
        return -float(torch.log_softmax(torch.tensor([positive, *negatives]) / tau, 0)[0])

    for i in rows.tolist():
        query = dataset.queries[i]
        target = int(dataset.target_columns[i])
        positive = score(cell.backbone, scene, i, i, target)
        by_slot: dict[str, list[float]] = {"target": [], "reference": [], "modification": []}
        for j in rows.tolist():
            other = dataset.queries[j]
            if other.target != query.target:
                by_slot["target"].append(score(cell.backbone, scene, i, i, int(dataset.target_columns[j])))
            if other.reference != query.reference:
                by_slot["reference"].append(score(cell.backbone, scene, j, i, target))
            if other.text != query.text:
                by_slot["modification"].append(score(cell.backbone, scene, i, j, target))
        assert [] not in by_slot.values(), i  # so that every slot's mean runs over all rows
        every = list(itertools.chain(*by_slot.values()))
        count += len(every)
        parts = [every] if slots == "joint" else list(by_slot.values())
        losses.append(sum(nce(positive, *part) for part in parts))
    assert result.negative_count == count
    assert float(result.loss) == pytest.approx(sum(losses) / len(losses), abs=2e-4)


def test_both_directions_of_a_batch_allow_the_same_pairs(cell):
    rows = torch.arange(48)
    mining = MiningConfig(exclude_reference=True)
    targets = cell.scene.train.batch_allowed("target", rows, mining)
    queries = cell.scene.train.batch_allowed("query", rows, mining)
    assert torch.equal(queries, targets.T)
    assert not torch.equal(queries, targets)  # a target may be the reference of another query


@pytest.mark.parametrize("rule", ["in-batch", "in-batch+qure", "qure"])
def test_the_hardest_negatives_share_of_the_gradient_is_that_of_their_softmax(cell, rule):
    """InfoNCE pulls at a negative by its share of the softmax; a target that the batch repeats is no negative."""
    rows = torch.arange(16)
    backbone = cell.backbone
    scene = cell.scene
    targets = scene.train.dataset.target_columns[rows].tolist()
    drawn = torch.arange(16 * 12).reshape(16, 12) % len(scene.train.images) if "qure" in rule else None
    objective = Objective(
        TrainingCalls(backbone, 0), make_strategy(rule), make_loss("info-nce", tau=0.1), scene, MiningConfig()
    )
    objective(batch_of(scene, rows, drawn)).loss.backward()
    backbone.zero_grad()
    shares = []
    for row, target in enumerate(targets):
        columns = [] if drawn is None else drawn[row].tolist()
        if "in-batch" in rule:
            columns += [column for column in targets if column != target]
        with torch.no_grad():
            scores = torch.tensor([score(backbone, scene, row, row, column) for column in columns])
        pulls = (scores / 0.1).softmax(0).sort(descending=True).values
        shares.append(float(pulls[:10].sum()))
        assert len(columns) > 10, row
    assert objective.hardest_share == pytest.approx(sum(shares) / len(shares), abs=1e-4)
    objective.use_epoch(scene)
    assert math.isnan(objective.hardest_share)


def test_a_step_leaves_nothing_to_the_garbage_collector(cell, monkeypatch):
    """The graph of a step is as large as the model's activations."""
    negatives: list[weakref.ref[Tensor]] = []
    real = InfoNCE.value

    def value(self: InfoNCE, given: LossInput) -> Tensor:
        negatives.append(weakref.ref(given.negatives))
        return real(self, given)

    monkeypatch.setattr(InfoNCE, "value", value)
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy("in-batch"), make_loss("info-nce"), cell.scene, MiningConfig()
    )
    gc.collect()
    gc.disable()
    try:
        objective(batch_of(cell.scene, torch.arange(16), None)).loss.backward()
        assert [tensor() for tensor in negatives] == [None]
    finally:
        gc.enable()
        cell.backbone.zero_grad()
    assert objective.hardest_share > 0


# --- candidates beside the negatives -------------------------------------------------------------------------------


def divergence_by_hand(cell: OpenRun, rows: list[int], candidates: list[list[int]]) -> float:
    """Return the mean over queries of -log softmax of the target among itself and these columns."""
    tau = float(cell.backbone.temperature)
    total = 0.0
    for row, columns in zip(rows, candidates, strict=True):
        target = int(cell.scene.train.dataset.target_columns[row])
        logits = torch.tensor([score(cell.backbone, cell.scene, row, row, c) for c in (target, *columns)])
        total -= float((logits / tau).log_softmax(0)[0]) / len(rows)
    return total


@torch.no_grad()
@pytest.mark.parametrize("strategy", ["qure", "in-batch"])
@pytest.mark.parametrize("kl_over", ["batch", "corpus"])
@pytest.mark.parametrize("exclude", [{}, {"exclude_relevant": True, "exclude_reference": True}], ids=["all", "strict"])
def test_margin_kl_ranks_the_target_against_each_candidate_once(cell, strategy, kl_over, exclude):
    dataset = cell.scene.train.dataset
    rows = [3, 40, 11, 5, 3]  # a target twice
    targets = dataset.target_columns[rows].tolist()
    drawn = [[5, 5], [targets[2], 2], [9, 12], [31, 0], [1, 3]]  # a repeat, and a target of the batch
    loss = make_loss("margin-kl", kl_over=kl_over, lambda_rank=0.0)
    mining = MiningConfig.model_validate(exclude)
    objective = Objective(TrainingCalls(cell.backbone, 0), make_strategy(strategy), loss, cell.scene, mining)
    negatives = None if strategy == "in-batch" else torch.tensor(drawn)
    result = objective(batch_of(cell.scene, torch.tensor(rows), negatives))
    candidates = []
    for row, target, drawn_columns in zip(rows, targets, drawn, strict=True):
        query = dataset.queries[row]
        members = dataset.groups[query.group].tolist() if kl_over == "corpus" else targets
        barred = {target}
        if exclude:
            barred |= {dataset.column_of[image] for image in (*query.relevant, query.reference)}
        if strategy == "in-batch":  # a batch is used whole: a repeated target counts twice
            first = [column for column in targets if column not in barred]
        else:
            first = drawn_columns
        candidates.append([*first, *sorted(set(members) - barred - set(first))])
    assert float(result.loss) == pytest.approx(divergence_by_hand(cell, rows, candidates), abs=2e-4)


def test_a_corpus_embedded_in_parts_has_the_gradient_of_all_its_images():
    """700 images take two parts; the softmax of eq. 5 runs over all of them."""
    world = {"name": "vectors", "train_images": 700, "train_queries": 20, "val_images": 40, "val_queries": 20}
    run = untrained(config_of([], "in-batch", dataset=world, backbone={"name": "vectors", "dim": 16}))
    rows = torch.tensor([3, 11])
    split = run.scene.train
    loss = make_loss("margin-kl", kl_over="corpus", lambda_rank=0.0)
    objective = Objective(TrainingCalls(run.backbone, 0), make_strategy("in-batch"), loss, run.scene, MiningConfig())
    queries = run.backbone.queries(
        run.scene.features(run.backbone, split.references[rows]), {k: v[rows] for k, v in split.tokens.items()}
    )
    tokens = run.backbone.candidates(run.scene.features(run.backbone, split.images))
    logits = torch.einsum("bd,ntd->bnt", queries, tokens).amax(2) / run.backbone.temperature
    want = torch.nn.functional.cross_entropy(logits, split.dataset.target_columns[rows])
    value = objective(batch_of(run.scene, rows, None)).loss
    assert float(value.detach()) == pytest.approx(float(want.detach()), abs=2e-4)
    trained = {name: weight for name, weight in run.backbone.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    wanted_gradients = torch.autograd.grad(want, list(trained.values()), allow_unused=True)
    compared = 0
    for name, gradient, wanted_gradient in zip(trained, gradients, wanted_gradients, strict=True):
        if wanted_gradient is not None:
            assert gradient is not None, name
            torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-3, atol=1e-5, msg=name)
            compared += 1
    assert compared > 2


def test_rows_of_a_table_have_the_bits_of_indexing():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(9, 4, 33, generator=generator)
    weight = torch.randn(50, 3, 4, 33, generator=generator)
    index = torch.randint(9, (50, 3), generator=generator)  # most rows many times
    table = start.clone().requires_grad_()
    rows = _rows_of(table, index)
    (rows * weight).sum().backward()
    plain = start.clone().requires_grad_()
    want = plain[index]
    (want * weight).sum().backward()
    assert torch.equal(rows, want)
    assert torch.equal(table.grad, plain.grad)


def test_the_corpus_needs_stored_features(cell):
    loss = make_loss("margin-kl", kl_over="corpus")
    dataset = cell.scene.train.dataset
    strategy = make_strategy("qure")
    check_objective(strategy, loss, HybridConfig(), cell.backbone, dataset, MiningConfig())
    cell.backbone.frozen_images = False
    try:
        with pytest.raises(OptionError, match=r"^loss\.kl_over = 'corpus' scores the whole corpus .* 'tiny'") as caught:
            check_objective(strategy, loss, HybridConfig(), cell.backbone, dataset, MiningConfig())
        assert "\n" not in str(caught.value)
        check_objective(strategy, make_loss("margin-kl"), HybridConfig(), cell.backbone, dataset, MiningConfig())
        plain = (make_loss("info-nce"), HybridConfig(), cell.backbone, dataset, MiningConfig())
        with pytest.raises(OptionError, match=r"^the bank of Bank scores the whole corpus in every step"):
            check_objective(make_strategy("bank"), *plain)
        check_objective(make_strategy("xbm"), *plain)  # its queue holds earlier embeddings
    finally:
        cell.backbone.frozen_images = True


@torch.no_grad()
def test_rows_without_an_attribute_word_are_left_out(weighted):
    scene = weighted.scene
    backbone = weighted.backbone
    tokens = scene.train.tokens
    has = tokens["colour"].any(1)
    rows = torch.cat([has.nonzero()[:2, 0], (~has).nonzero()[:2, 0]])
    assert len(rows) == 4
    negatives = torch.tensor([[1], [2], [4], [5]])
    loss = make_loss("margin-kl", kl_over="pair", lambda_rank=0.0, margin_aspect=0.5)
    losses = []
    for some_loss in (loss, make_loss("bradley-terry")):
        objective = Objective(TrainingCalls(backbone, 0), make_strategy("dqe"), some_loss, scene, MiningConfig())
        losses.append(float(objective(batch_of(scene, rows, negatives)).loss))
    with_aspects, plain = losses
    references = scene.features(backbone, scene.train.references[rows])
    subs = backbone.sub_queries(references, {name: value[rows] for name, value in tokens.items()})
    want = 0.0
    for name, sub in subs.items():
        hinges = []
        for i, row in enumerate(rows.tolist()):
            if bool(tokens[name][row].any()):
                target = candidate(backbone, scene, int(scene.train.dataset.target_columns[row]))
                negative = candidate(backbone, scene, int(negatives[i, 0]))
                target_score = float((sub.embeddings[i] @ target.T).max())
                negative_score = float((sub.embeddings[i] @ negative.T).max())
                hinges.append(max(0.0, 0.5 - target_score + negative_score))
        want += float(sub.weight) * sum(hinges) / max(1, len(hinges))
    assert with_aspects - plain == pytest.approx(want, abs=1e-5)


# --- all triples, equal budgets ------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_cube_that_would_not_fit_is_refused(cell, monkeypatch):
    strategy = make_strategy("in-batch-cube", k=1)
    loss = make_loss("info-nce")
    objective = Objective(TrainingCalls(cell.backbone, 0), strategy, loss, cell.scene, MiningConfig())
    batch = batch_of(cell.scene, torch.arange(4), None)
    monkeypatch.setattr("negbench.loop.slots._MOST_SCORES", 4**3)
    objective(batch)
    monkeypatch.setattr("negbench.loop.slots._MOST_SCORES", 4**3 - 1)
    with pytest.raises(OptionError, match=r"4 x 16 = 64 numbers.*--set train\.batch_size=1,"):
        objective(batch)


@torch.no_grad()
@pytest.mark.parametrize("k", [7, None])
@pytest.mark.parametrize("exclude", [{}, {"exclude_relevant": True, "exclude_reference": True}], ids=["all", "strict"])
def test_cube_step_is_info_nce_over_the_hardest_triples(cell, k, exclude):
    scene = cell.scene
    dataset = cell.scene.train.dataset
    rows = [0, 1, 2, 3, 0]  # a query twice: its triple at the other position is its own as well
    targets = dataset.target_columns[rows].tolist()
    right = set()  # triples that are no negatives
    for row, target in zip(rows, targets, strict=True):
        query = dataset.queries[row]
        right.add((query.reference, query.text, target))
        if exclude:
            right |= {(query.reference, query.text, dataset.column_of[image]) for image in query.relevant}
    scores = []
    for a, b, c in itertools.product(range(5), repeat=3):
        reference = dataset.queries[rows[a]].reference
        barred = bool(exclude) and dataset.column_of.get(reference) == targets[c]
        if (reference, dataset.queries[rows[b]].text, targets[c]) not in right and not barred:
            scores.append(score(cell.backbone, scene, rows[a], rows[b], targets[c]))
    hardest = torch.tensor(sorted(scores, reverse=True)[:k])
    mining = MiningConfig.model_validate(exclude)
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy("in-batch-cube", k=k), make_loss("info-nce"), scene, mining
    )
    result = objective(batch_of(scene, torch.tensor(rows), None))
    positive = torch.tensor([score(cell.backbone, scene, r, r, t) for r, t in zip(rows, targets, strict=True)])
    logits = torch.cat([positive[:, None], hardest.expand(5, -1)], dim=1) / float(cell.backbone.temperature)
    assert float(result.loss) == pytest.approx(float(-logits.log_softmax(1)[:, 0].mean()), abs=1e-4)
    assert result.negative_count == 5 * len(hardest)
    ((_, statistics),) = batch_statistics([result.pools])
    assert statistics["pool_size"] == len(hardest)
    assert statistics["hardness"] == pytest.approx(float((positive[:, None] - hardest).mean()), abs=1e-5)
    assert math.isnan(statistics["false_negative_rate_pool"])


@torch.no_grad()
@pytest.mark.parametrize("strategy", ["in-batch", "hycole", "in-batch-cube"])
@pytest.mark.parametrize("budget", [1, 4, 1000])
def test_a_batch_strategy_is_thinned_to_its_budget(cell, strategy, budget):
    rows = torch.arange(20)
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy(strategy), make_loss("info-nce"), cell.scene, MiningConfig()
    )
    whole = objective(batch_of(cell.scene, rows, None))
    plain = batch_of(cell.scene, rows, None)
    seeds = [splitmix(torch.tensor(s), rows) for s in (1, 1, 2)]
    thinned = [objective(dataclasses.replace(plain, keep=budget, seed=seed)) for seed in seeds]
    if budget == 1000:
        assert [result.negative_count for result in thinned] == [whole.negative_count] * 3
        assert [result.loss for result in thinned] == [whole.loss] * 3
        return
    assert [result.negative_count for result in thinned] == [20 * budget] * 3
    first, same_seed, other_seed = thinned
    assert first.loss == same_seed.loss != other_seed.loss
    ((_, of_whole),) = batch_statistics([whole.pools])
    for number, result in enumerate(thinned):  # same pool, fewer draws
        ((_, of_part),) = batch_statistics([result.pools])
        assert of_part["pool_size"] == of_whole["pool_size"], f"draw {number}"
        assert of_part["hardness"] != of_whole["hardness"], f"draw {number}"


# --- precision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["bradley-terry", "info-nce", "margin-kl"])
@pytest.mark.parametrize("strategy", ["qure", "in-batch", "hycole", "in-batch-cube"])
def test_bf16_is_close_to_float32(subtests, weighted, strategy, loss):
    """Loss and gradients under CPU autocast are close to float32, hybrid terms, sub-queries, temperatures included."""
    opened = weighted
    hybrid = HybridConfig(alpha=0.4, beta=0.1)
    rows = torch.arange(12)
    negatives = None if make_strategy(strategy).scope == "batch" else (rows[:, None] + torch.tensor([[3, 5]])) % 32
    outcomes = []
    for half in (True, False):
        with subtests.test(half=half):
            parts = (make_strategy(strategy), make_loss(loss), opened.scene, MiningConfig(), hybrid)
            objective = Objective(TrainingCalls(opened.backbone, 0), *parts)
            opened.backbone.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                value = objective(batch_of(opened.scene, rows, negatives)).loss
            assert value.dtype == torch.float32
            value.backward()
            gradients = {n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None}
            outcomes.append((float(value.detach()), gradients))
    (value, gradients), (want, exact_gradients) = outcomes
    assert value == pytest.approx(want, rel=2e-2)
    assert gradients.keys() == exact_gradients.keys()
    assert {f"scalars.log.{term}" for term in ("icm", "tcm", "ritm", "titm")} <= gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        exact = exact_gradients[name]
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), exact.flatten(), dim=0)
        assert exact.norm() < 1e-4 or cosine > 0.97, name


@torch.no_grad()
def test_scores_are_float32_under_autocast(cell):
    """Under bfloat16 autocast only the embeddings are rounded, not the scores that a low temperature divides."""
    rows = torch.arange(12)
    strategy = make_strategy("in-batch")
    loss = make_loss("info-nce", tau=0.01)
    objective = Objective(TrainingCalls(cell.backbone, 0), strategy, loss, cell.scene, MiningConfig())
    scores = []

    class Watched:
        candidate_set = "pair"
        uses_aspects = False
        tau = 0.01
        least_weight = 0.0
        reads = ()

        def evaluate(self, given: LossInput) -> Tensor:
            scores.append(given.negatives)
            return loss.evaluate(given)

    objective.loss = Watched()
    with torch.autocast("cpu", torch.bfloat16):
        objective(batch_of(cell.scene, rows, None))
    (negatives,) = scores
    assert negatives.dtype == torch.float32
    assert (negatives != negatives.bfloat16().float()).float().mean() > 0.9
