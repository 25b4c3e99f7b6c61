"""The protocol of a run, recorded step by step by a strategy and a loss, against plain loops."""

import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from negbench.backbones.precomputed import Precomputed
from negbench.contracts import Backbone, LossInput, ScoreView, Strategy, TextBatch
from negbench.contracts.splitmix import splitmix
from negbench.data.scene import load_backbone, load_split
from negbench.datasets.dataset import Dataset
from negbench.errors import NegbenchError
from negbench.loop import checkpoint
from negbench.loop import train as loop
from negbench.loop.checkpoint import TrainingParts, stream
from negbench.loop.model_cache import ModelCache
from negbench.loop.objective import Batch
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.loop.schedule import Phase, rate_schedule
from negbench.loop.types import State
from negbench.losses.bradley_terry import BradleyTerry
from negbench.machine.files import SUMS, atomic_write
from negbench.metrics.score_curves import ScoreCurves
from negbench.mining.draws import draw
from negbench.mining.mined import Mined
from negbench.plugins.registry import Plugin, registry
from negbench.settings.config import RunConfig, resolve
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config
from tests.runs import run, untrained

Interrupted = Callable[[RunConfig, Path, int], RunContext]

# --- plug-ins that record --------------------------------------------------------------------------------------------


@dataclass
class Refresh:
    """Pools defined once, and the negatives drawn from them."""

    strategy: str
    steps: int  # taken before this refresh
    weights: dict[str, Tensor]  # at this refresh
    views: list[ScoreView]
    mined: Mined

    @property
    def refresh(self) -> int | None:
        """Number that the strategy saw; None if it is not of this file."""
        if not self.views:
            return None
        (number,) = {view.refresh for view in self.views}
        return number

    @property
    def draws(self) -> int:
        return self.mined.negatives.shape[1]


@dataclass
class Step:
    """One training step."""

    rows: Tensor
    drawn: Tensor | None
    tokens: dict[str, Tensor]
    lr: float
    gradient: float  # norm
    random: int  # seed of the global generator
    positive: Tensor
    negatives: Tensor
    mask: Tensor | None
    temperature: Tensor


VIEWS: list[ScoreView] = []  # of the strategies below, until a tape takes them
LOSSES: list[tuple[Tensor, Tensor, Tensor | None, Tensor]] = []  # arguments of the loss below, in the same way


@dataclass
class Tape:
    """What the hooks of a run were called with."""

    refreshes: list[Refresh] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def refreshed(self, now: ModelCache, phase: Phase, mined: Mined) -> None:
        weights = {name: value.clone() for name, value in now.run.backbone.state_dict().items()}
        self.refreshes.append(Refresh(type(phase.mined).__name__, now.state.step, weights, [*VIEWS], mined))
        VIEWS.clear()

    def stepped(self, parts: TrainingParts, state: State, batch: Batch) -> None:
        groups = parts.optimizer.param_groups
        gradients = []
        for group in groups:
            gradients += [parameter.grad.flatten() for parameter in group["params"] if parameter.grad is not None]
        norm = float(torch.cat(gradients).norm())
        seed = torch.initial_seed()
        self.steps.append(Step(batch.rows, batch.negatives, batch.tokens, groups[0]["lr"], norm, seed, *LOSSES[-1]))
        LOSSES.clear()

    def epochs(self, per_epoch: int) -> list[list[Step]]:
        return [self.steps[i : i + per_epoch] for i in range(0, len(self.steps), per_epoch)]


@dataclass(frozen=True)
class Nearest(Strategy):
    """The k highest-scored images but the target."""

    k: int = 3
    n_def: ClassVar[int] = 3

    def pool(self, view: ScoreView) -> Tensor:
        VIEWS.append(view)
        best = view.scores.masked_fill(~view.allowed, -math.inf).topk(self.k).indices
        return torch.zeros_like(view.allowed).scatter_(1, best, True)


@dataclass(frozen=True)
class Everything(Nearest):
    """A pool that no score changes, but which is refreshed."""

    def pool(self, view: ScoreView) -> Tensor:
        super().pool(view)
        return view.allowed


@dataclass(frozen=True)
class Once(Nearest):
    n_def: ClassVar[int] = 1


@dataclass(frozen=True)
class Oracle(Nearest):
    reads_truth: ClassVar[bool] = True


@dataclass(frozen=True)
class Watched(BradleyTerry):
    def evaluate(self, given: LossInput) -> Tensor:
        temperature = given.temperature.detach().clone()
        LOSSES.append((given.positive.detach().clone(), given.negatives.detach().clone(), given.mask, temperature))
        return super().evaluate(given)


class Dropping(Precomputed):
    """Backbone whose dropout draws from the global generator, as in most models."""

    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        return functional.normalize(functional.dropout(super().queries(features, text), 0.3, self.training), dim=-1)


PLUGINS = {
    "strategies": {"nearest": Nearest, "everything": Everything, "once": Once, "oracle": Oracle},
    "losses": {"watched": Watched},
    "backbones": {"dropping": Dropping},
}


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Iterator[None]:
    """Register the plug-ins of this file."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, classes in PLUGINS.items():
            for name, cls in classes.items():
                patch.setitem(registry._classes, (kind, name), cls)
                patch.setitem(registry._files, (kind, name), Plugin(kind, name, __name__, Path(__file__), "this test"))
        yield


def config_of(sets: list[str], *more: str, strategy: str = "nearest", loss: str = "watched") -> RunConfig:
    return load_config(flags={"strategy": {"name": strategy}, "loss": {"name": loss}}, sets=[*sets, *more])


def with_dropout(sets: list[str]) -> list[str]:
    return [text.replace(".name=precomputed", ".name=dropping") for text in sets]


def record_run(config: RunConfig, where: Path) -> tuple[Tape, RunResult]:
    tape = Tape()
    VIEWS.clear()
    return tape, run(config, where, refreshed=tape.refreshed, stepped=tape.stepped)


# --- oracles: one query and one image at a time, by id ---------------------------------------------------------------


def part_of(config: RunConfig, split: str) -> Dataset:
    return load_split(config.dataset, split, images=False)


def backbone_at(config: RunConfig, weights: dict[str, Tensor] | None = None) -> Backbone:
    backbone = load_backbone(config.backbone, config.seed)
    backbone.load_state_dict(weights or {}, strict=False)
    return backbone.eval()


def images_of(backbone: Backbone, dataset: Dataset) -> list[Tensor]:
    return [backbone.candidates(backbone.features_of([image]))[0] for image in dataset.images]


def queries_of(backbone: Backbone, dataset: Dataset) -> list[Tensor]:
    return [backbone.queries(backbone.features_of([q.reference]), [q.text])[0] for q in dataset.queries]


@torch.no_grad()
def table(queries: list[Tensor], images: list[Tensor]) -> Tensor:
    """Return [Q, N] scores: each query against the best of each image's tokens."""
    rows = []
    for query in queries:
        rows.append(torch.stack([max(token @ query for token in image) for image in images]))
    return torch.stack(rows)


def scores_of(backbone: Backbone, dataset: Dataset) -> Tensor:
    return table(queries_of(backbone, dataset), images_of(backbone, dataset))


def batches_of(seed: int, epochs: int, queries: int = 48, size: int = 16) -> list[list[int]]:
    generator = stream(seed, "batches")
    batches = []
    for _ in range(epochs):
        order = torch.randperm(queries, generator=generator)
        batches += [batch.tolist() for batch in order.split(size)]
    return batches


# --- one run, watched ------------------------------------------------------------------------------------------------

EPOCHS = 7
STEPS = 3
DRAWS = 2
REFRESHES = (2, 3, 5)
LR = 0.05
FLOOR = 0.2
RISE = 1.5
DECAY = 0.1


@dataclass(frozen=True)
class Story:
    """A run of 7 epochs of 3 steps, the last a short one, refreshed before epochs 2, 3 and 5, two negatives a query."""

    config: RunConfig
    tape: Tape
    result: RunResult
    train: Dataset
    val: Dataset


@pytest.fixture(scope="module")
def story(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Story:
    more = [f"train.epochs={EPOCHS}", f"train.num_negatives={DRAWS}", f"schedule.refresh_epochs={list(REFRESHES)}"]
    more += ["train.batch_size=20", f"train.lr={LR}", f"train.min_lr_ratio={FLOOR}", f"train.lr_warmup_epochs={RISE}"]
    config = config_of(vector_sets, *more, f"train.weight_decay={DECAY}", "seed=3")
    tape, result = record_run(config, tmp_path_factory.mktemp("story"))
    config = result.folder.config
    return Story(config, tape, result, part_of(config, "train"), part_of(config, "val"))


def test_refreshes_are_counted_from_zero_at_the_listed_epochs(story):
    refreshes = [(r.strategy, r.refresh, r.steps // STEPS, r.draws // DRAWS) for r in story.tape.refreshes]
    assert refreshes == [("AllCorpus", None, 0, 2), ("Nearest", 0, 2, 1), ("Nearest", 1, 3, 2), ("Nearest", 2, 5, 2)]
    assert [row["epoch"] for row in story.result.details["behaviour_by_refresh"]] == list(REFRESHES)
    assert story.result.details["refresh_epochs"] == list(REFRESHES)
    points = {p["epoch"]: p["mining/pool_size"] for p in story.result.folder.metrics() if "mining/pool_size" in p}
    assert points == {0: 19, 2: 3, 3: 3, 5: 3}  # the warm-up is logged, but no behaviour of the strategy
    assert sorted(p.name for p in story.result.path.glob("mining-*")) == [f"mining-{n:02d}.parquet" for n in range(3)]
    assert not list(story.result.path.glob("pools-*"))


def test_the_strategy_sees_the_model_as_it_is(story):
    """The scores of each refresh equal those of loops over ids, with the weights of that moment."""
    tables = []
    for refresh in story.tape.refreshes[1:]:
        scores = scores_of(backbone_at(story.config, refresh.weights), story.train)
        assert len(refresh.views) == len(story.train.groups), f"refresh after {refresh.steps} steps"
        for view, (group, columns) in zip(refresh.views, story.train.groups.items(), strict=True):
            rows = [n for n, query in enumerate(story.train.queries) if query.group == group]
            torch.testing.assert_close(view.scores, scores[rows][:, columns], atol=1e-5, rtol=1e-5)
            targets = [story.train.images[columns[t]] for t in view.target.tolist()]
            assert targets == [story.train.queries[row].target for row in rows], group
            assert view.relevant is None, group
            assert (~view.allowed).nonzero().tolist() == list(map(list, enumerate(view.target.tolist()))), group
        tables.append(scores)
    first, second, _ = tables
    assert not torch.allclose(first, second, atol=1e-2)


def test_overlap_is_with_the_refresh_before(story):
    def pools_of(refresh: Refresh) -> dict[int, set[int]]:
        """Return each query's three best allowed images."""
        pools = {}
        for view, (group, columns) in zip(refresh.views, story.train.groups.items(), strict=True):
            rows = [n for n, query in enumerate(story.train.queries) if query.group == group]
            best = view.scores.masked_fill(~view.allowed, -math.inf).topk(3).indices
            for row, positions in zip(rows, best, strict=True):
                pools[row] = set(columns[positions].tolist())
        return pools

    def jaccard(a: dict[int, set[int]], b: dict[int, set[int]]) -> list[float]:
        return [len(a[n] & b[n]) / len(a[n] | b[n]) for n in range(48)]

    first, second, third = (pools_of(refresh) for refresh in story.tape.refreshes[1:])
    overlaps = [pd.read_parquet(story.result.path / f"mining-{n:02d}.parquet")["overlap"] for n in range(3)]
    assert overlaps[0].isna().all()
    assert overlaps[1].tolist() == pytest.approx(jaccard(first, second))
    assert overlaps[2].tolist() == pytest.approx(jaccard(second, third))
    assert overlaps[2].tolist() != pytest.approx(jaccard(first, third))
    means = [row["overlap"] for row in story.result.details["behaviour_by_refresh"]]
    assert means[0] is None or math.isnan(means[0])
    assert means[2] == pytest.approx(sum(jaccard(second, third)) / 48)


def rates() -> list[float]:
    """Return the learning rate of every step: 4 steps of rise (1.5 epochs of 3, rounded), then half a cosine."""
    rise = 4  # 4.5 rounds to the even number
    rest = EPOCHS * STEPS - rise
    up = [LR * (step + 1) / rise for step in range(rise)]
    return up + [LR * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * step / rest)) / 2) for step in range(rest)]


def test_learning_rate_of_every_step(story):
    assert [step.lr for step in story.tape.steps] == pytest.approx(rates())
    logged = [p["train/lr"] for p in story.result.folder.metrics() if "train/lr" in p]
    assert logged == pytest.approx([*rates()[STEPS::STEPS], LR * FLOOR])  # the log has the rate of the next step


COSINES = [
    ((), [1, 0.01 + 0.99 * 0.75, 0.01 + 0.99 * 0.25, 0.01, 0.01]),
    (("train.min_lr_ratio=0.1", "train.lr_warmup_epochs=1"), [1, 1, 0.55, 0.1, 0.1]),
    (("train.min_lr_ratio=1",), [1, 1, 1, 1, 1]),
    (("train.lr_warmup_epochs=2",), [1 / 2, 1, 1, 0.01, 0.01]),
    (("train.min_lr_ratio=0", "train.lr_warmup_epochs=9"), [1 / 9, 2 / 9, 3 / 9, 4 / 9, 5 / 9]),
]


@pytest.mark.parametrize(("sets", "want"), COSINES)
def test_cosine_by_hand(vector_sets, sets, want):
    """The schedule by hand: three epochs of one step each, and two steps beyond."""
    config = resolve(load_config(flags={"strategy": {"name": "top-k"}}, sets=[*vector_sets, "train.epochs=3", *sets]))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = rate_schedule(optimizer, config.train, 1)
    factors = []
    for _ in want:
        factors.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        schedule.step()
    assert factors == pytest.approx(want)


def test_training_is_a_plain_loop(story):
    """A plain loop (the seed's batches, recorded draws, Bradley-Terry's formula, AdamW) ends with the same weights."""
    backbone = backbone_at(story.config)
    optimizer = torch.optim.AdamW(backbone.parameter_groups(LR, DECAY))
    images = story.train.images
    train = story.train
    temperatures = []
    losses = []
    steps = zip(batches_of(3, EPOCHS, size=20), rates(), story.tape.steps, strict=True)
    for number, (rows, lr, step) in enumerate(steps):
        refresh = [refresh for refresh in story.tape.refreshes if refresh.steps <= number][-1]
        first = (number // STEPS - refresh.steps // STEPS) * DRAWS
        drawn = refresh.mined.negatives[:, first : first + DRAWS]  # this epoch's
        tau = backbone.temperature
        positives = []
        negatives = []
        value = torch.zeros(())
        for row in rows:
            query = train.queries[row]
            vector = backbone.queries(backbone.features_of([query.reference]), [query.text])[0]
            names = [str(query.target), *(images[column] for column in drawn[row].tolist())]
            target, *others = [(backbone.candidates(backbone.features_of([n]))[0] @ vector).max() for n in names]
            positives.append(target)
            negatives.append(torch.stack(others))
            value = value + functional.softplus((torch.stack(others) - target) / tau).mean() / len(rows)
        assert step.rows.tolist() == rows, number
        torch.testing.assert_close(step.positive, torch.stack(positives).detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(step.negatives, torch.stack(negatives).detach(), atol=1e-5, rtol=1e-5)
        temperatures.append(float(tau.detach()))
        losses.append(float(value.detach()) * len(rows))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert [float(step.temperature) for step in story.tape.steps] == pytest.approx(temperatures, rel=1e-4)
    assert temperatures[0] == pytest.approx(0.07)
    assert abs(temperatures[-1] - 0.07) > 0.01  # the temperature is learned
    points = [p for p in story.result.folder.metrics() if "train/loss" in p]
    means = [sum(losses[i : i + STEPS]) / 48 for i in range(0, len(losses), STEPS)]
    assert [p["train/loss"] for p in points] == pytest.approx(means, rel=1e-3)
    after = [*temperatures[STEPS::STEPS], float(backbone.temperature.detach())]
    assert [p["train/temperature"] for p in points] == pytest.approx(after, rel=1e-4)
    assert [(p["step"], p["epoch"]) for p in points] == [((e + 1) * STEPS, e) for e in range(EPOCHS)]
    for name, value in story.result.folder.weights().items():
        torch.testing.assert_close(value, backbone.state_dict()[name], atol=2e-4, rtol=1e-3)


def test_curves_are_kept_at_their_moments(story):
    assert sorted(p.name for p in story.result.path.glob("curves-*")) == ["curves-start.npz", "curves-warm.npz"]
    for moment, refresh in (("start", 0), ("warm", 1)):
        curves = ScoreCurves.load(story.result.path / f"curves-{moment}.npz")
        scores = scores_of(backbone_at(story.config, story.tape.refreshes[refresh].weights), story.train)
        best = [float(scores[row, story.train.groups[q.group]].max()) for row, q in enumerate(story.train.queries)]
        assert curves.scores[0] == pytest.approx(sum(best) / 48, abs=1e-5), moment


def test_a_run_that_reports_nothing_keeps_no_curves(vector_sets, tmp_path):
    quiet = run(config_of(vector_sets, "eval.reported=false", "train.epochs=1"), tmp_path)
    assert not list(quiet.path.glob("curves-*"))


# --- baselines and the metrics of each epoch -------------------------------------------------------------------------


@torch.no_grad()
def baselines_of(backbone: Backbone, dataset: Dataset, name: str) -> dict[str, float]:
    images = images_of(backbone, dataset)
    by_id = dict(zip(dataset.images, images, strict=True))
    if "image" in name:  # the normalised mean of the reference's own tokens
        queries = [functional.normalize(by_id[q.reference].mean(0), dim=0) for q in dataset.queries]
    elif "text" in name:
        queries = [backbone.text_queries([q.text])[0] for q in dataset.queries]
    else:
        queries = queries_of(backbone, dataset)
    return dataset.evaluate(table(queries, images))


def test_baselines_are_those_of_loops(story):
    baselines = story.result.details["baselines"]
    assert set(baselines) == {"untrained", "untrained_image_only", "untrained_text_only", "image_only", "text_only"}
    assert story.result.folder.manifest["backbone"]["tokens_per_image"] == 2
    for name, values in baselines.items():
        weights = None if "untrained" in name else story.result.folder.weights()
        assert values == pytest.approx(baselines_of(backbone_at(story.config, weights), story.val, name)), name
    assert len({str(values) for values in baselines.values()}) == 5
    trained = baselines_of(backbone_at(story.config, story.result.folder.weights()), story.val, "composed")
    assert story.result.metrics == pytest.approx(trained)


def test_scored_every_so_many_epochs_and_at_the_end(subtests, vector_sets, tmp_path, story):
    config = config_of(vector_sets, "train.epochs=3", "eval.every=2", strategy="in-batch", loss="info-nce")
    for result, want in ((run(config, tmp_path), [-1, 1, 2]), (story.result, [*range(-1, EPOCHS)])):
        with subtests.test(result=result):
            points = [p for p in result.folder.metrics() if "val/recall_at_10" in p]
            assert [p["epoch"] for p in points] == want
            assert [p["step"] for p in points] == [3 * (epoch + 1) for epoch in want]
            assert points[-1]["val/recall_at_10"] == result.metrics["recall_at_10"]


def test_the_epoch_is_chosen_where_the_run_says(subtests, vector_sets, tmp_path):
    """Where dev, val and the last epoch disagree, each choice reports the model of its own epoch."""
    weights: dict[int, dict[str, Tensor]] = {}  # epoch -> weights after its last step

    def note_weights(parts: TrainingParts, state: State, batch: Batch) -> None:
        weights[state.epoch] = {name: value.clone() for name, value in parts.objective.backbone.state_dict().items()}

    sets = ("train.epochs=6", "train.lr=0.1", "eval.dev_fraction=0.4", "eval.dev_seed=1", "seed=0")
    reported = {}
    for select in ("dev", "val", "last"):
        with subtests.test(select=select):
            config = config_of(vector_sets, *sets, f"eval.select={select}", strategy="in-batch", loss="info-nce")
            result = run(config, tmp_path, stepped=note_weights)
            curve = [p for p in result.folder.metrics() if "val/recall_at_10" in p][1:]  # without the untrained model
            if select == "last":
                best = len(curve) - 1
            else:
                values = [p[f"{select}/recall_at_10"] for p in curve]
                best = values.index(max(values))  # the first of equals
            assert result.details["reported_epoch"] == best + 1
            assert result.details["selected_on"] == select
            assert result.metrics == {name: curve[best][f"val/{name}"] for name in result.metrics}
            for name, weight in result.folder.weights().items():
                assert torch.equal(weight, weights[best][name]), name
            reported[select] = best
            if select == "dev":
                other = [p["val/recall_at_10"] for p in curve]
                assert other.index(max(other)) != best  # otherwise this run could not tell dev from val
                assert [name for name in curve[0] if "dev/" in name]
            else:
                names = set().union(*curve)
                assert [name for name in names if "dev/" in name] == []
    assert reported["dev"] != reported["last"]


def test_of_equal_epochs_the_first_is_chosen(vector_sets, tmp_path):
    sets = ("train.epochs=2", "train.lr=1e-12", "eval.select=val")
    result = run(config_of(vector_sets, *sets, strategy="in-batch", loss="info-nce"), tmp_path)
    assert len({p["val/recall_at_10"] for p in result.folder.metrics() if "val/recall_at_10" in p}) == 1
    assert result.details["reported_epoch"] == 1


def test_dev_is_taken_from_train(vector_sets, tmp_path):
    config = config_of(vector_sets, "eval.select=dev", "eval.dev_fraction=0.25", "train.epochs=2")
    opened = untrained(config)
    train = opened.scene.train.dataset
    dev = opened.splits.dev
    assert opened.scene.dev.dataset is dev
    assert opened.scene.val.dataset.split == "val"
    whole = part_of(resolve(config), "train").queries
    assert {q.id for q in train.queries} | {q.id for q in dev.queries} == {q.id for q in whole}
    assert not {q.target for q in train.queries} & {q.target for q in dev.queries}
    assert len(dev.queries) == pytest.approx(12, abs=2)
    tape, _ = record_run(config, tmp_path)
    first, *_ = tape.epochs(3)
    rows = torch.cat([step.rows for step in first])
    assert sorted(rows.tolist()) == list(range(len(train.queries)))


# --- streams of the seed ---------------------------------------------------------------------------------------------


def test_purposes_have_streams_of_their_own(story):
    seeds = set()
    for seed, purpose in itertools.product(range(3), ("batches", "draws", "dropout")):
        seeds.add(stream(seed, purpose).initial_seed())
    assert len(seeds) == 9
    assert {step.random for step in story.tape.steps} == {stream(3, "dropout").initial_seed()}
    expected = stream(3, "draws")
    for refresh in story.tape.refreshes:
        base = torch.randint(2**63 - 1, (1,), generator=expected)
        for index, columns in enumerate(story.train.groups.values()):
            rows = (story.train.group_index == index).nonzero()[:, 0]
            if refresh.views:
                pool = Nearest().pool(refresh.views[index])
            else:
                pool = columns[None, :] != story.train.target_columns[rows][:, None]
            want = columns[draw(pool, splitmix(base, rows), refresh.draws)]
            assert torch.equal(refresh.mined.negatives[rows], want), f"after {refresh.steps} steps, group {index}"


def test_batches_and_draws_know_nothing_of_each_other_the_strategy_and_dropout(vector_sets, tmp_path):
    sets = [*vector_sets, "train.epochs=2"]
    draws = {}
    variants = {
        "plain": (sets, "everything"),
        "dropout": (with_dropout(sets), "everything"),
        "other batches": ([*sets, "train.batch_size=7"], "everything"),
        "more refreshes": ([*sets, "schedule.refresh_epochs=[0,1]"], "nearest"),
        "more draws": ([*sets, "train.num_negatives=5"], "nearest"),
        "batch strategy": (sets, "in-batch"),
        "seed": ([*sets, "seed=1"], "in-batch"),
    }
    for variant, (settings, strategy) in variants.items():
        tape, _ = record_run(config_of(settings, strategy=strategy), tmp_path)
        if strategy == "everything":
            draws[variant] = [refresh.mined.negatives for refresh in tape.refreshes]
        if variant != "other batches":
            assert ([step.rows.tolist() for step in tape.steps] == batches_of(0, 2)) is (variant != "seed"), variant
    first, second = draws["plain"]
    assert not torch.equal(first, second)  # each refresh draws anew
    for variant in ("dropout", "other batches"):
        same, same_second = draws[variant]
        assert torch.equal(same, first), variant
        assert torch.equal(same_second, second), variant


def test_mining_and_scoring_see_no_dropout(vector_sets, tmp_path):
    config = config_of(with_dropout(vector_sets), "schedule.refresh_epochs=[0]", "train.epochs=1")
    tape, result = record_run(config, tmp_path)
    (refresh,) = tape.refreshes  # at epoch 0: there is no warm-up
    assert not (result.path / "curves-warm.npz").exists()
    dataset = part_of(resolve(config), "train")
    scores = scores_of(backbone_at(resolve(config), refresh.weights), dataset)
    for view, (group, columns) in zip(refresh.views, dataset.groups.items(), strict=True):
        rows = [n for n, query in enumerate(dataset.queries) if query.group == group]
        torch.testing.assert_close(view.scores, scores[rows][:, columns], atol=1e-5, rtol=1e-5)
    val = part_of(resolve(config), "val")
    trained = scores_of(backbone_at(resolve(config), result.folder.weights()), val)
    assert result.metrics == pytest.approx(val.evaluate(trained))
    # training uses dropout: the first step's positives differ from those without it
    resting = scores[torch.arange(48), dataset.target_columns][tape.steps[0].rows]
    assert not torch.allclose(tape.steps[0].positive, resting, atol=1e-3)


# --- what is mined, and what is not ----------------------------------------------------------------------------------


def test_a_strategy_of_one_definition_is_mined_once_before_the_first_epoch(vector_sets, tmp_path):
    tape, _ = record_run(config_of(vector_sets, "schedule.n_def=3", strategy="once"), tmp_path)
    assert [(r.strategy, r.refresh, r.steps, r.draws) for r in tape.refreshes] == [("Once", 0, 0, 4)]


def test_an_earlier_stage_counts_its_own_refreshes(vector_sets, tmp_path):
    """Each phase counts its refreshes from 0, and the run reports those of the last phase."""
    sets = ("train.epochs=6", "schedule.refresh_epochs=[4,5]")
    tape, result = record_run(config_of(vector_sets, *sets, strategy="nearest:4>everything"), tmp_path)
    refreshes = [(r.strategy, r.refresh, r.steps // STEPS, r.draws) for r in tape.refreshes]
    assert refreshes == [("Nearest", 0, 0, 2), ("Nearest", 1, 2, 2), ("Everything", 0, 4, 1), ("Everything", 1, 5, 1)]
    assert [row["epoch"] for row in result.details["behaviour_by_refresh"]] == [4, 5]


def test_batch_strategies_are_never_mined(vector_sets, tmp_path):
    tape, result = record_run(config_of(vector_sets, strategy="in-batch"), tmp_path)
    assert tape.refreshes == []
    assert result.details["refresh_epochs"] == []
    assert [step.drawn for step in tape.steps] == [None] * len(tape.steps)
    targets = [query.target for query in part_of(result.folder.config, "train").queries]
    pairs = 0
    for batch in batches_of(0, 4):
        pairs += sum(targets[a] != targets[b] for a, b in itertools.product(batch, batch))
    assert result.details["negatives_seen"] == pairs
    assert sum(int(step.mask.sum()) for step in tape.steps if step.mask is not None) == pairs
    assert [row["epoch"] for row in result.details["behaviour_by_refresh"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("option", ["none", "exclude_relevant", "exclude_reference"])
def test_only_an_oracle_is_shown_what_is_relevant(vector_sets, tmp_path, option):
    more = () if option == "none" else (f"mining.{option}=true",)
    sets = ("schedule.refresh_epochs=[0]", "train.epochs=1", *more)
    tape, result = record_run(config_of(vector_sets, *sets, strategy="oracle"), tmp_path)
    dataset = part_of(result.folder.config, "train")
    for view, (group, columns) in zip(tape.refreshes[0].views, dataset.groups.items(), strict=True):
        names = [dataset.images[column] for column in columns.tolist()]
        queries = [query for query in dataset.queries if query.group == group]
        for row, query in enumerate(queries):
            relevant = {name for name, flag in zip(names, view.relevant[row].tolist(), strict=True) if flag}
            assert relevant == {query.target, *query.relevant}, (group, row)
            excluded = {name for name, flag in zip(names, view.allowed[row].tolist(), strict=True) if not flag}
            want = {query.target}
            if option == "exclude_relevant":
                want |= {*query.relevant}
            elif option == "exclude_reference":
                want.add(query.reference)
            assert excluded == want, (group, row)


# --- summaries of a run ---------------------------------------------------------------------------------------------


def test_query_concentration_is_the_length_of_the_mean_query(story):
    """The logged value is the length of the mean query; tests/loop/test_observe.py tests the remark on it."""
    assert [line for line in story.result.details["remarks"] if "draws repeat" not in line] == []
    points = [p["val/query_concentration"] for p in story.result.folder.metrics() if "val/query_concentration" in p]
    backbone = backbone_at(story.config, story.result.folder.weights())
    with torch.no_grad():
        mean = torch.stack(queries_of(backbone, story.val)).mean(0)
    assert points[-1] == pytest.approx(float(mean.norm()), rel=1e-4)


def test_behaviour_of_an_epoch_is_the_mean_over_its_batches():
    """By rows: a batch without negatives has pools of size 0, but no hardness; a value that no batch has is NaN."""
    names = ("pool_size", "hardness", "false_negative_rate_pool", "empty")
    rows = [(4, (3.0, 0.5, math.nan, 0.0)), (4, (math.nan, math.nan, math.nan, 4.0)), (2, (1.0, 0.2, math.nan, 1.0))]
    means = loop.batch_behaviour([(count, dict(zip(names, values, strict=True))) for count, values in rows])
    want = {"pool_size": 1.4, "hardness": 0.4, "false_negative_rate_pool": math.nan, "empty": 1.8}
    assert means == pytest.approx(want, nan_ok=True)


def test_gradients_are_clipped_only_where_asked(story, vector_sets, tmp_path):
    tape, _ = record_run(config_of(vector_sets, "train.epochs=1", "train.max_grad_norm=0.05"), tmp_path)
    assert [step.gradient for step in tape.steps] == pytest.approx([0.05] * STEPS, rel=1e-3)
    assert min(step.gradient for step in story.tape.steps) > 0.05


# --- interrupted and resumed -----------------------------------------------------------------------------------------


def outcome(folder: RunFolder) -> dict[str, Any]:
    """Return all that must not depend on how a run was computed: all but times, memory and encoded images."""
    result = {k: v for k, v in folder.result.items() if k not in ("seconds", "peak_memory_mib", "images_encoded")}
    tables = {file.name: pd.read_parquet(file).to_json() for file in folder.path.glob("*.parquet")}
    files = {file.name: file.read_bytes() for file in folder.path.iterdir() if file.suffix in (".bits", ".npz")}
    return result | {"points": folder.metrics(), "tables": tables, "files": files}


HALVES = [  # stopped before the first checkpoint, in a refreshed epoch, before the last score, after the last epoch
    ("nearest", ("schedule.refresh_epochs=[1,2]", "train.num_negatives=2"), (0, 1, 3, 4)),
    # the best epoch so far, the temperature and what is thinned are kept
    ("hycole", ("eval.select=dev", "hybrid.temperature=own", "train.num_negatives=5"), (2, 4)),
]


@pytest.mark.parametrize(("strategy", "more", "stops"), HALVES)
def test_interrupted_and_resumed_gives_the_same_bits(vector_sets, tmp_path, strategy, more, stops):
    """A run interrupted in an epoch or after the last gives the same bits when resumed, with global dropout."""
    config = config_of(with_dropout(vector_sets), *more, "train.epochs=4", "eval.every=2", strategy=strategy)
    tape, straight = record_run(config, tmp_path / "straight")
    per_epoch = len(tape.steps) // 4
    for stop_at in stops:
        steps: list[int] = []

        def stop(values: Mapping[str, float], step: int, epoch: int, stop_at: int = stop_at) -> None:
            if epoch == stop_at and ("train/loss" in values or epoch == 4):  # that epoch's work is lost
                raise KeyboardInterrupt

        def count(parts: TrainingParts, state: State, batch: Batch, steps: list[int] = steps) -> None:
            steps.append(state.step)

        runs = tmp_path / str(stop_at)
        with pytest.raises(KeyboardInterrupt):
            run(config, runs, point=stop, stepped=count)
        assert RunFolder(runs / straight.run_id).status == "interrupted", f"stopped at epoch {stop_at}"
        assert len(steps) == per_epoch * min(4, stop_at + 1), f"stopped at epoch {stop_at}"
        torch.manual_seed(stop_at)  # another process has another global state
        resumed = run(config, runs, stepped=count)
        trained = 4 if stop_at == 4 else 5  # finished epochs are not trained again
        assert len(steps) == per_epoch * trained, f"stopped at epoch {stop_at}"
        assert outcome(resumed.folder) == outcome(straight.folder), f"stopped at epoch {stop_at}"
        weights = resumed.folder.weights()
        want = straight.folder.weights()
        assert weights.keys() == want.keys(), f"stopped at epoch {stop_at}"
        for name, weight in weights.items():
            assert torch.equal(weight, want[name]), f"stopped at epoch {stop_at}, {name}"
        assert not (resumed.path / "checkpoint.pt").exists(), f"stopped at epoch {stop_at}"


def test_checkpoints_pause_in_proportion_to_what_they_cost(vector_sets, tmp_path, interrupted, monkeypatch):
    """The first epoch is always saved; what came after the last checkpoint is computed again, bit for bit."""
    sets = ("train.epochs=4", "schedule.refresh_epochs=[0,1,2,3]")
    config = config_of(vector_sets, *sets, strategy="qure", loss="info-nce")
    straight = run(config, tmp_path / "straight")
    monkeypatch.setattr(checkpoint, "PAUSE", 1e9)
    context = interrupted(config, tmp_path / "halves", 3)
    folder = RunFolder(tmp_path / "halves" / straight.run_id)
    assert folder.checkpoint()["state"]["epoch"] == 1
    pools = {path.name for path in folder.path.glob("pools-*")}  # the checkpoint's and the last refresh's
    assert pools == {"pools-00.bits", "pools-03.bits"}
    assert outcome(compute_or_reuse(config, context).folder) == outcome(straight.folder)


@pytest.fixture(scope="module")
def stopped_runs(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory, interrupted: Interrupted) -> Path:
    """Return the runs folder of a run of two epochs that was interrupted in the second."""
    runs = tmp_path_factory.mktemp("stopped")
    interrupted(config_of(vector_sets, "train.epochs=2", strategy="qure", loss="info-nce"), runs, 1)
    return runs


@pytest.fixture
def half(stopped_runs: Path, tmp_path: Path) -> RunFolder:
    """Return a copy of the interrupted run."""
    shutil.copytree(stopped_runs, tmp_path / "half")
    return RunFolder(next((tmp_path / "half").glob("qure*")))


def test_the_time_before_an_interruption_counts(half):
    saved = half.checkpoint()
    assert 0 < saved["state"]["seconds"]["train"] < 1000
    saved["state"]["seconds"]["train"] += 1000
    half.write_checkpoint(saved)
    resumed = run(half.config, half.path.parent)
    assert resumed.details["seconds"]["train"] > saved["state"]["seconds"]["train"]


DAMAGES = [
    (lambda saved: saved["optimizer"]["param_groups"][0].update(lr="0.01"), "different optimizer"),
    (lambda saved: saved["optimizer"]["state"][0].update(step=torch.zeros(2)), "step and moments do not fit"),
    (lambda saved: saved["optimizer"]["state"][0].update(step=torch.tensor(-1.0)), "step and moments do not fit"),
    (lambda saved: saved["state"].update(epoch="1"), "error for int"),
    (lambda saved: saved["state"].update(negatives=saved["state"]["negatives"][:-1]), "other queries"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_a_checkpoint_of_other_types_or_queries_is_refused(change, message, half):
    saved = half.checkpoint()
    change(saved)
    half.write_checkpoint(saved)
    with pytest.raises(NegbenchError, match=f"cannot read .*checkpoint.pt: (.|\n)*{message}"):
        run(half.config, half.path.parent)


def test_a_loss_without_a_gradient_is_refused(vector_sets, tmp_path, monkeypatch):
    monkeypatch.setattr(registry.get("losses", "info-nce"), "value", lambda *_: torch.tensor(1.0))
    with pytest.raises(NegbenchError, match="'info-nce' returned a number without a gradient"):
        run(config_of(vector_sets, strategy="in-batch", loss="info-nce"), tmp_path)


# --- durability ------------------------------------------------------------------------------------------------------


def test_every_file_reaches_the_disk_before_it_gets_its_name(vector_sets, tmp_path, monkeypatch):
    events: list[tuple[str, int, int]] = []  # event, inode, size in bytes
    named: list[tuple[str, int]] = []  # name, number of events before it
    replace = Path.replace

    def note_sync(handle: int) -> None:
        stat = os.fstat(handle)
        events.append(("sync", stat.st_ino, stat.st_size))

    def check_replace(self: Path, target: Path) -> Path:
        written = [self]
        if (target.parent / SUMS).exists():
            written.append(target.parent / SUMS)
        for path in written:
            stat = path.stat()
            assert ("sync", stat.st_ino, stat.st_size) in events, (target, path)
        named.append((target.name, len(events)))
        events.append(("name", target.parent.stat().st_ino, 0))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", check_replace)
    with atomic_write(tmp_path / "a") as file:
        file.write("x" * 100_000)
    run(config_of(vector_sets, "train.epochs=2", strategy="top-k", loss="info-nce"), tmp_path)
    names = [name for name, _ in named]
    assert {"a", "config.json", "checkpoint.pt", "result.json", "ranks.parquet", "model.safetensors"} <= set(names)
    assert names.count("checkpoint.pt") == 2  # one per epoch
    for name, number in named:  # a name is safe once its folder is synced
        _, folder, _ = events[number]
        event, inode, _ = events[number + 1]
        assert (event, inode) == ("sync", folder), name
