"""Steps with a bank, synthetic negatives and ordered batches: against loops, and resumed bit for bit."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.api import make_loss, make_strategy
from negbench.contracts import BankStep, relevance
from negbench.contracts.splitmix import uniform
from negbench.data.scene import EncodedSplits
from negbench.errors import NegbenchError
from negbench.loop.checkpoint import TrainingParts
from negbench.loop.objective import Batch, Objective, StepResult, check_objective
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import Callbacks, OpenRun, State
from negbench.mining.mined import batch_statistics
from negbench.mining.planes import images_of
from negbench.scoring import evaluation
from negbench.settings.config import HybridConfig, MiningConfig
from tests.runs import config_of, run, untrained

ROWS = torch.tensor([0, 7, 30, 41, 12])
MIXED = {"queue": 64, "hardest": 3, "pairs": 4, "with_query": 2}


@pytest.fixture
def opened(vector_sets: list[str]) -> OpenRun:
    """Return an open run with its backbone in evaluation mode."""
    cell = untrained(config_of(vector_sets, "in-batch"))
    cell.backbone.eval()
    return cell


def objective_of(opened: OpenRun, strategy: str, loss: Any, **options: Any) -> Objective:
    loss = make_loss(loss) if isinstance(loss, str) else loss
    return Objective(
        TrainingCalls(opened.backbone, 0), make_strategy(strategy, **options), loss, opened.scene, opened.config.mining
    )


def batch_of(scene: EncodedSplits, rows: Tensor = ROWS, drawn: Tensor | None = None, **more: Any) -> Batch:
    return Batch(rows, drawn, {name: tokens[rows] for name, tokens in scene.train.tokens.items()}, **more)


def step(objective: Objective, rows: Tensor = ROWS, drawn: Tensor | None = None, **more: Any) -> StepResult:
    with torch.no_grad():
        result: StepResult = objective(batch_of(objective.scene, rows, drawn, **more))
    return result


def tables(opened: OpenRun) -> tuple[Tensor, Tensor, Tensor]:
    """Return [Q, N] scores over the temperature, [N, D] images and [Q] target columns, all without gradients."""
    with torch.no_grad():
        embeddings = evaluation.embed(opened.backbone, opened.scene, opened.scene.train)
        scores = relevance(embeddings.queries, embeddings.candidates) / opened.backbone.temperature
    return scores, images_of(embeddings.candidates), opened.scene.train.dataset.target_columns


# --- a bank ----------------------------------------------------------------------------------------------------------


def gallery(opened: OpenRun, row: int) -> list[int]:
    """Return the columns of the gallery that holds a query's target."""
    dataset = opened.scene.train.dataset
    target = int(dataset.target_columns[row])
    for columns in dataset.groups.values():
        if target in columns.tolist():
            return columns.tolist()
    raise AssertionError(f"no gallery holds column {target}")


@pytest.mark.parametrize("k", [None, 3])
def test_the_bank_is_the_gallery_in_one_softmax(opened, k):
    scores, _, targets = tables(opened)
    result = step(objective_of(opened, "bank", "info-nce", k=k))
    want = 0.0
    count = 0
    for row in ROWS.tolist():
        target = int(targets[row])
        others = [column for column in gallery(opened, row) if column != target]
        hardest = sorted(others, key=lambda column: -float(scores[row, column]))[:k]
        count += len(hardest)
        want -= float(scores[row, [target, *hardest]].log_softmax(0)[0]) / len(ROWS)
    assert result.negative_count == count
    assert float(result.loss) == pytest.approx(want, abs=1e-5)
    assert batch_statistics([result.pools])[0][1]["pool_size"] == (k or 19)


def test_no_gradient_flows_through_a_bank(opened):
    """Images get gradients as targets of the batch only; the images of the bank are constants."""
    embeddings: list[Tensor] = []
    real = opened.backbone.candidates

    def note_candidates(features: Tensor) -> Tensor:
        embedded = real(features).detach().requires_grad_(torch.is_grad_enabled())
        embeddings.append(embedded)
        return embedded

    opened.backbone.candidates = note_candidates
    objective = objective_of(opened, "bank", "info-nce")
    objective(batch_of(opened.scene)).loss.backward()
    of_batch, of_bank = embeddings
    assert of_batch.grad is not None
    assert of_bank.grad is None


def test_a_queue_holds_the_last_targets_as_they_were(opened):
    """The second loss is that of its batch plus that against the queue of both batches, by loops."""
    scores, _, targets = tables(opened)
    objective = objective_of(opened, "xbm", "info-nce", queue=8)
    second = torch.tensor([3, 20, 35, 44, 26])
    step(objective, ROWS)
    with torch.no_grad():  # queued embeddings do not follow the model
        objective.memory.tokens.mul_(0.5)
    result = step(objective, second)
    queue = [(int(targets[row]), 0.5) for row in ROWS]
    queue += [(int(targets[row]), 1.0) for row in second]
    queue = queue[-8:]
    want = 0.0
    count = 0
    for row in second.tolist():
        target = int(targets[row])
        of_batch = [scores[row, int(targets[r])] for r in second.tolist() if int(targets[r]) != target]
        of_queue = [scores[row, column] * factor for column, factor in queue if column != target]
        count += len(of_batch) + len(of_queue)
        for negatives in (of_batch, of_queue):
            want -= float(torch.stack([scores[row, target], *negatives]).log_softmax(0)[0]) / 5
    assert result.negative_count == count
    assert float(result.loss) == pytest.approx(want, abs=1e-5)
    assert objective.memory.columns.tolist() == [c for c, _ in queue]
    assert not objective.memory.tokens.requires_grad


def test_planes_and_filters_reach_a_bank(subtests, opened):
    """`mining.max_target` drops images too similar to the target, in the bank as in the batch, by loops."""
    _, images, targets = tables(opened)
    mining = opened.config.mining.model_copy(update={"max_target": 0.1})
    in_batch = [int(targets[row]) for row in ROWS.tolist()]
    calls = TrainingCalls(opened.backbone, 0)
    for name in ("bank", "xbm"):
        with subtests.test(name=name):
            objective = Objective(calls, make_strategy(name), make_loss("info-nce"), opened.scene, mining)
            count = 0
            for row, target in zip(ROWS.tolist(), in_batch, strict=True):
                # the queue holds the batch itself in its first step
                columns = gallery(opened, row) if name == "bank" else in_batch * 2
                for column in columns:
                    count += column != target and float(images[target] @ images[column]) <= 0.1
            assert step(objective).negative_count == count


def test_what_a_bank_holds_is_no_candidate_again(opened):
    """With the whole corpus in the bank, margin-kl over the corpus equals margin-kl over a batch of one gallery."""
    rows = torch.tensor([0, 7, 12])
    corpus = step(objective_of(opened, "bank", make_loss("margin-kl", kl_over="corpus")), rows)
    batch = step(objective_of(opened, "bank", make_loss("margin-kl", kl_over="batch")), rows)
    assert float(corpus.loss) == pytest.approx(float(batch.loss), abs=1e-6)


REMEMBERING = [  # each with the strategy without its queue
    ("in-batch:1>xbm:queue=20", "in-batch"),
    ("mochi+top-k:k=5:queue=20", "in-batch+top-k:k=5"),
    ("no-duplicates:2>ngame", ""),
    ("ngame+top-k:top_k_k=5", ""),
]


@pytest.mark.parametrize(("name", "plain"), REMEMBERING)
def test_queues_and_orders_are_resumed_to_the_bit(name, plain, vector_sets, tmp_path, interrupted):
    config = config_of(vector_sets, name)
    whole = run(config, tmp_path / "whole")
    again = compute_or_reuse(config, interrupted(config, tmp_path / "halves", 2))
    weights = whole.folder.weights()
    weights_again = again.folder.weights()
    assert weights.keys() == weights_again.keys()
    for weight_name, weight in weights.items():
        assert torch.equal(weight, weights_again[weight_name]), weight_name
    assert whole.folder.metrics() == again.folder.metrics()
    if plain:
        without = run(config_of(vector_sets, plain), tmp_path / "plain")
        assert whole.details["negatives_seen"] > without.details["negatives_seen"]
        assert sum("mining/hardness" in point for point in without.folder.metrics()) == (2 if "+" in name else 4)


def mix_by_hand(query: Tensor, images: Tensor, seed: int) -> list[Tensor]:
    """Return the four mixtures of two hard images each, and the two of the query with an image, before their norm."""
    numbers = uniform(torch.tensor(seed), torch.arange(4 * 3 + 2 * 2)).tolist()
    firsts = numbers[:4]
    seconds = numbers[4:8]
    shares = numbers[8:12]
    query_shares = numbers[12:14]
    partners = numbers[14:]

    def image(number: float) -> Tensor:
        return images[int(number * len(images))]

    mixtures = []
    for first, second, share in zip(firsts, seconds, shares, strict=True):
        mixtures.append(share * image(first) + (1 - share) * image(second))
    for share, partner in zip(query_shares, partners, strict=True):
        mixtures.append(share / 2 * query + (1 - share / 2) * image(partner))
    return mixtures


def test_mixed_negatives_stand_in_the_softmax_of_the_bank(subtests, opened):
    """The loss of `mochi` equals loops over the same random numbers; its mixtures carry no gradients."""
    objective = objective_of(opened, "mochi", "info-nce", **MIXED)
    steps: list[BankStep] = []
    seed = torch.arange(5) * 7919
    strategy = objective.strategy

    class Watched(type(strategy)):
        def synthetic(self, step: BankStep) -> tuple[Tensor, Tensor]:
            steps.append(step)
            tokens, mask = super().synthetic(step)
            assert not tokens.requires_grad
            assert not step.queries.requires_grad
            assert not step.images.requires_grad
            return tokens, mask

    objective.use_strategy(Watched(**dataclasses.asdict(strategy)))
    batch = batch_of(opened.scene, seed=seed)
    result = objective(batch)
    scores, _, targets = tables(opened)
    (bank,) = steps
    temperature = float(opened.backbone.temperature.detach())
    columns = targets[ROWS].tolist()
    want = 0.0
    count = 0
    pool_sizes = []
    for i, row in enumerate(ROWS.tolist()):
        target = columns[i]
        others = [j for j, column in enumerate(columns) if column != target]
        hardest = sorted(sorted(others, key=lambda j: -float(scores[row, columns[j]]))[:3])
        query = bank.queries[i]
        negatives = [float(scores[row, columns[j]]) for j in others]
        for mixture in mix_by_hand(query, bank.images[hardest], int(seed[i])):
            # mixed token by token; the best token counts
            negatives.append(float((normalize(mixture, dim=-1) @ query).max()) / temperature)
        count += len(negatives)
        pool_sizes.append(len(others))
        want -= float(torch.tensor([float(scores[row, target]), *negatives]).log_softmax(0)[0]) / len(ROWS)
    assert result.negative_count == count
    assert float(result.loss.detach()) == pytest.approx(want, abs=1e-5)
    ((_, statistics),) = batch_statistics([result.pools])
    assert statistics["pool_size"] == pytest.approx(sum(pool_sizes) / 5)
    result.loss.backward()
    for other in (seed, seed + 1):
        with subtests.test(other=other):
            again = step(objective_of(opened, "mochi", "info-nce", **MIXED), seed=other)
            assert torch.equal(again.loss, result.loss) is (other is seed)  # the same seed, the same mixtures


@pytest.mark.parametrize("over", ["batch", "corpus"])
def test_candidates_beside_mixed_negatives(opened, over):
    """Synthetic negatives are no images and remove none of margin-kl's candidates."""
    loss = make_loss("margin-kl", kl_over=over)
    batch = batch_of(opened.scene, seed=ROWS)
    plain = objective_of(opened, "mochi", loss, **{**MIXED, "pairs": 0, "with_query": 0})._batch_scores(batch)
    mixed = objective_of(opened, "mochi", loss, **{**MIXED, "pairs": 9, "with_query": 9})._batch_scores(batch)
    assert mixed.slots["bank"].scores.shape[1] == plain.slots["bank"].scores.shape[1] + 18
    assert torch.equal(plain.extras.mask, mixed.extras.mask)


def test_what_a_plug_in_synthesizes_is_checked_in_a_step(opened):
    objective = objective_of(opened, "mochi", "info-nce", **MIXED)

    class Longer(type(objective.strategy)):
        def synthetic(self, step: BankStep) -> tuple[Tensor, Tensor]:
            tokens, mask = super().synthetic(step)
            return 2 * tokens, mask

    objective.use_strategy(Longer(**dataclasses.asdict(objective.strategy)))
    with pytest.raises(NegbenchError, match=r"^Longer\.synthetic must return finite tokens of unit norm"):
        step(objective, seed=torch.arange(5))


def test_mixed_negatives_are_thinned_with_the_others(opened):
    """`train.num_negatives` limits all negatives of the loss, mixed ones included."""
    objective = objective_of(opened, "mochi", "info-nce", **{**MIXED, "pairs": 8, "with_query": 8})
    assert step(objective, keep=6, seed=torch.arange(5)).negative_count == 6 * 5


def test_what_a_bank_does_not_go_with(opened, subtests):
    dataset = opened.scene.train.dataset
    queries = [dataclasses.replace(q, reference_text="a", target_text="b") for q in dataset.queries]
    textual = dataclasses.replace(dataset, queries=queries)
    more = (make_loss("info-nce"), HybridConfig(alpha=0.4), opened.backbone, textual, MiningConfig())
    for name in ("bank", "xbm+qure"):
        with (
            subtests.test(name=name),
            pytest.raises(NegbenchError, match=r"--set hybrid\.alpha=0 --set hybrid\.beta=0"),
        ):
            check_objective(make_strategy(name), *more)


# --- order of queries ------------------------------------------------------------------------------------------------


def test_a_run_has_the_order_of_its_strategy(vector_sets, tmp_path):
    """With no-duplicates, no batch of a run repeats a target; random batches do."""
    repeats = Counter[str]()

    def stepped(parts: TrainingParts, state: State, batch: Batch) -> None:
        targets = parts.objective.scene.train.dataset.target_columns[batch.rows]
        repeats[name] += len(targets) - len(targets.unique())

    context = dataclasses.replace(RunContext.open(tmp_path, "none"), callbacks=Callbacks(stepped=stepped))
    for name in ("in-batch", "no-duplicates"):
        compute_or_reuse(config_of(vector_sets, name, "train.epochs=1"), context)
    assert repeats["in-batch"] > 0
    assert repeats["no-duplicates"] == 0


def test_an_order_that_is_none_is_told(vector_sets, tmp_path, monkeypatch):
    monkeypatch.setattr(type(make_strategy("ngame")), "order", lambda self, epoch: torch.zeros(48, dtype=torch.int64))
    with pytest.raises(NegbenchError, match=r"Ngame\.order must return a permutation of the 48 queries"):
        run(config_of(vector_sets, "ngame"), tmp_path)


def test_statistics_are_those_of_all_batches_however_many_are_held(vector_sets, tmp_path, monkeypatch):
    config = config_of(vector_sets, "in-batch", "train.epochs=2")
    together = run(config, tmp_path / "together").folder.result["behaviour"]
    monkeypatch.setattr("negbench.loop.train._WAITING", 1)
    assert run(config, tmp_path / "each").folder.result["behaviour"] == together
