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


@torch.no_grad()
@pytest.mark.parametrize("slots", ["sum", "joint"])
def test_hycole_step_is_info_nce_over_triples_that_differ_in_one_member(cell, slots):
    scene, dataset = cell.scene, cell.scene.train.dataset
    repeated = next(  # two queries with one reference: exchanging it changes nothing
        (i, j)
        for i in range(len(dataset.queries))
        for j in range(i)
        if dataset.queries[i].reference == dataset.queries[j].reference
    )
    # the first query twice stands for two queries with one target and one text
    rows = torch.tensor([*repeated, repeated[0], *(r for r in (0, 20, 50) if r not in repeated)])
    hybrid = HybridConfig.model_validate({"slots": slots})
    strategy, loss = make_strategy("hycole"), make_loss("info-nce")
    result = Objective(TrainingCalls(cell.backbone, 0), strategy, loss, scene, MiningConfig(), hybrid)(
        batch_of(scene, rows, None)
    )
    losses, count = [], 0
    tau = float(cell.backbone.temperature)

    def nce(positive: float, *negatives: float) -> float:
        return -float(torch.log_softmax(torch.tensor([positive, *negatives]) / tau, 0)[0])

    for i in rows.tolist():
        own = dataset.queries[i]
        target = int(dataset.target_columns[i])
        positive = score(cell.backbone, scene, i, i, target)
        by_slot: dict[str, list[float]] = {"target": [], "reference": [], "modification": []}
        for j in rows.tolist():
            other = dataset.queries[j]
            if other.target != own.target:
                by_slot["target"].append(score(cell.backbone, scene, i, i, int(dataset.target_columns[j])))
            if other.reference != own.reference:
                by_slot["reference"].append(score(cell.backbone, scene, j, i, target))
            if other.text != own.text:
                by_slot["modification"].append(score(cell.backbone, scene, i, j, target))
        assert all(by_slot.values()), i  # so that every slot's mean runs over all rows
        count += sum(map(len, by_slot.values()))
        parts = [list(itertools.chain(*by_slot.values()))] if slots == "joint" else list(by_slot.values())
        losses.append(sum(nce(positive, *part) for part in parts))
    assert result.negatives == count
    assert float(result.loss) == pytest.approx(sum(losses) / len(losses), abs=2e-4)


def test_both_directions_of_a_batch_allow_the_same_pairs(cell):
    rows, mining = torch.arange(48), MiningConfig(exclude_reference=True)
    there, back = (cell.scene.train.batch_allowed(slot, rows, mining) for slot in ("target", "query"))
    assert torch.equal(back, there.T)
    assert not torch.equal(back, there)  # a target may be the reference of another query


@pytest.mark.parametrize("rule", ["in-batch", "in-batch+qure", "qure"])
def test_the_hardest_negatives_share_of_the_gradient_is_that_of_their_softmax(cell, rule):
    """InfoNCE pulls at a negative by its share of the softmax; a target that the batch repeats is no negative."""
    rows, backbone, scene = torch.arange(16), cell.backbone, cell.scene
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
        columns += [column for column in targets if column != target] if "in-batch" in rule else []
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
    made = list[weakref.ref[Tensor]]()
    real = InfoNCE.value

    def value(self: InfoNCE, given: LossInput) -> Tensor:
        made.append(weakref.ref(given.negatives))
        return real(self, given)

    monkeypatch.setattr(InfoNCE, "value", value)
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy("in-batch"), make_loss("info-nce"), cell.scene, MiningConfig()
    )
    gc.collect()
    gc.disable()
    try:
        objective(batch_of(cell.scene, torch.arange(16), None)).loss.backward()
        assert [tensor() for tensor in made] == [None]
    finally:
        gc.enable()
        cell.backbone.zero_grad()
    assert objective.hardest_share > 0


# --- candidates beside the negatives -------------------------------------------------------------------------------


def wanted_divergence(cell: OpenRun, rows: list[int], candidates: list[list[int]]) -> float:
    """Return the mean over queries of -log softmax of the target among itself and these columns."""
    tau, total = float(cell.backbone.temperature), 0.0
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
    wanted = []
    for row, own, chosen in zip(rows, targets, drawn, strict=True):
        query = dataset.queries[row]
        members = dataset.groups[query.group].tolist() if kl_over == "corpus" else targets
        barred = {own}
        if exclude:
            barred |= {dataset.column_of[image] for image in (*query.relevant, query.reference)}
        # a batch is used whole: a repeated target counts twice
        first = [c for c in targets if c not in barred] if strategy == "in-batch" else chosen
        wanted.append([*first, *sorted(set(members) - barred - set(first))])
    assert float(result.loss) == pytest.approx(wanted_divergence(cell, rows, wanted), abs=2e-4)


def test_a_corpus_embedded_in_parts_has_the_gradient_of_all_its_images():
    """700 images take two parts; the softmax of eq. 5 runs over all of them."""
    world = {"name": "vectors", "train_images": 700, "train_queries": 20, "val_images": 40, "val_queries": 20}
    run = untrained(config_of([], "in-batch", dataset=world, backbone={"name": "vectors", "dim": 16}))
    rows, split = torch.tensor([3, 11]), run.scene.train
    loss = make_loss("margin-kl", kl_over="corpus", lambda_rank=0.0)
    objective = Objective(TrainingCalls(run.backbone, 0), make_strategy("in-batch"), loss, run.scene, MiningConfig())
    queries = run.backbone.queries(
        run.scene.features(run.backbone, split.references[rows]), {k: v[rows] for k, v in split.tokens.items()}
    )
    tokens = run.backbone.candidates(run.scene.features(run.backbone, split.images))
    logits = torch.einsum("bd,ntd->bnt", queries, tokens).amax(2) / run.backbone.temperature
    wanted = torch.nn.functional.cross_entropy(logits, split.dataset.target_columns[rows])
    value = objective(batch_of(run.scene, rows, None)).loss
    assert float(value.detach()) == pytest.approx(float(wanted.detach()), abs=2e-4)
    trained = [p for p in run.backbone.parameters() if p.requires_grad]
    pairs = [torch.autograd.grad(loss, trained, allow_unused=True) for loss in (value, wanted)]
    reached = [(one, other) for one, other in zip(*pairs, strict=True) if one is not None and other is not None]
    assert len(reached) == sum(each is not None for each in pairs[1]) > 2
    for one, other in reached:
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_rows_of_a_table_have_the_bits_of_indexing():
    generator = torch.Generator().manual_seed(0)
    start, weight = torch.randn(9, 4, 33, generator=generator), torch.randn(50, 3, 4, 33, generator=generator)
    index = torch.randint(9, (50, 3), generator=generator)  # most rows many times
    table, plain = (start.clone().requires_grad_() for _ in range(2))
    for rows in (made := _rows_of(table, index), want := plain[index]):
        (rows * weight).sum().backward()
    assert torch.equal(made, want)
    assert torch.equal(table.grad, plain.grad)


def test_the_corpus_needs_stored_features(cell):
    loss, dataset = make_loss("margin-kl", kl_over="corpus"), cell.scene.train.dataset
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
    scene, backbone = weighted.scene, weighted.backbone
    tokens = scene.train.tokens
    has = tokens["colour"].any(1)
    rows = torch.cat([has.nonzero()[:2, 0], (~has).nonzero()[:2, 0]])
    assert len(rows) == 4
    negatives = torch.tensor([[1], [2], [4], [5]])
    loss = make_loss("margin-kl", kl_over="pair", lambda_rank=0.0, margin_aspect=0.5)
    losses = []
    for chosen in (loss, make_loss("bradley-terry")):
        objective = Objective(TrainingCalls(backbone, 0), make_strategy("dqe"), chosen, scene, MiningConfig())
        losses.append(float(objective(batch_of(scene, rows, negatives)).loss))
    references = scene.features(backbone, scene.train.references[rows])
    subs = backbone.sub_queries(references, {k: v[rows] for k, v in tokens.items()})
    wanted = 0.0
    for name, sub in subs.items():
        hinges = []
        for i, row in enumerate(rows.tolist()):
            if bool(tokens[name][row].any()):
                own, other = int(scene.train.dataset.target_columns[row]), int(negatives[i, 0])
                gap = [float((sub.embeddings[i] @ candidate(backbone, scene, c).T).max()) for c in (own, other)]
                hinges.append(max(0.0, 0.5 - gap[0] + gap[1]))
        wanted += float(sub.weight) * sum(hinges) / max(1, len(hinges))
    assert losses[0] - losses[1] == pytest.approx(wanted, abs=1e-5)


# --- all triples, equal budgets ------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_cube_that_would_not_fit_is_refused(cell, monkeypatch):
    strategy, loss = make_strategy("in-batch-cube", k=1), make_loss("info-nce")
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
    scene, dataset = cell.scene, cell.scene.train.dataset
    rows = [0, 1, 2, 3, 0]  # a query twice: its triple at the other position is its own as well
    targets = dataset.target_columns[rows].tolist()
    own = {(dataset.queries[r].reference, dataset.queries[r].text, t) for r, t in zip(rows, targets, strict=True)}
    if exclude:
        for r in rows:
            query = dataset.queries[r]
            own |= {(query.reference, query.text, dataset.column_of[image]) for image in query.relevant}
    scores = []
    for a, b, c in itertools.product(range(5), repeat=3):
        reference = dataset.queries[rows[a]].reference
        barred = bool(exclude) and dataset.column_of.get(reference) == targets[c]
        if (reference, dataset.queries[rows[b]].text, targets[c]) not in own and not barred:
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
    assert result.negatives == 5 * len(hardest)
    assert batch_statistics([result.pools])[0][1]["pool_size"] == len(hardest)
    assert batch_statistics([result.pools])[0][1]["hardness"] == pytest.approx(
        float((positive[:, None] - hardest).mean()), abs=1e-5
    )
    assert math.isnan(batch_statistics([result.pools])[0][1]["false_negative_rate_pool"])


@torch.no_grad()
@pytest.mark.parametrize("strategy", ["in-batch", "hycole", "in-batch-cube"])
@pytest.mark.parametrize("kept", [1, 4, 1000])
def test_a_batch_strategy_is_thinned_to_its_budget(cell, strategy, kept):
    rows = torch.arange(20)
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy(strategy), make_loss("info-nce"), cell.scene, MiningConfig()
    )
    whole = objective(batch_of(cell.scene, rows, None))
    plain = batch_of(cell.scene, rows, None)
    seeds = [splitmix(torch.tensor(s), rows) for s in (1, 1, 2)]
    thinned = [objective(dataclasses.replace(plain, keep=kept, seed=seed)) for seed in seeds]
    if kept == 1000:
        assert [t.negatives for t in thinned] == [whole.negatives] * 3
        assert [t.loss for t in thinned] == [whole.loss] * 3
        return
    assert [t.negatives for t in thinned] == [20 * kept] * 3
    assert thinned[0].loss == thinned[1].loss != thinned[2].loss
    of_whole = batch_statistics([whole.pools])[0][1]
    for number, t in enumerate(thinned):  # same pool, fewer draws
        of_part = batch_statistics([t.pools])[0][1]
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
    (value, gradients), (want, wanted) = outcomes
    assert value == pytest.approx(want, rel=2e-2)
    assert gradients.keys() == wanted.keys()
    assert {f"scalars.log.{term}" for term in ("icm", "tcm", "ritm", "titm")} <= gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), wanted[name].flatten(), dim=0)
        assert wanted[name].norm() < 1e-4 or cosine > 0.97, name


@torch.no_grad()
def test_scores_are_float32_under_autocast(cell):
    """Under bfloat16 autocast only the embeddings are rounded, not the scores that a low temperature divides."""
    rows = torch.arange(12)
    strategy, loss = make_strategy("in-batch"), make_loss("info-nce", tau=0.01)
    objective = Objective(TrainingCalls(cell.backbone, 0), strategy, loss, cell.scene, MiningConfig())
    seen = []

    class Watched:
        candidate_set, uses_aspects, tau, least_weight, reads = "pair", False, 0.01, 0.0, ()

        def evaluate(self, given: LossInput) -> Tensor:
            seen.append(given.negatives)
            return loss.evaluate(given)

    objective.loss = Watched()
    with torch.autocast("cpu", torch.bfloat16):
        objective(batch_of(cell.scene, rows, None))
    assert seen[0].dtype == torch.float32
    assert (seen[0] != seen[0].bfloat16().float()).float().mean() > 0.9
