"""Whole runs: temperatures, budgets, draws, pairs that change with the epoch, failures, and the files they leave."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.benchmarks.triplets import Triplets
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.loop.checkpoint import TrainingParts
from negbench.loop.mining_task import mining_task
from negbench.loop.model_cache import ModelCache
from negbench.loop.objective import Batch, Objective
from negbench.loop.optimizer import with_temperature_rate
from negbench.loop.runs import open_run
from negbench.loop.schedule import Phase, cosine
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import State
from negbench.mining.mined import Mined
from negbench.settings.config import RunConfig, resolve
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config
from negbench.testing.worlds import global_generators
from tests.runs import run, untrained

TERMS = ("hybrid.alpha=0.4", "hybrid.beta=0.1")
FOUR = ("train.num_negatives=4", "mining.replacement=false")
RunOf = Callable[..., tuple[RunResult, list[list[int]], list[tuple[int, int]]]]


def config_of(strategy: str, toy_sets: list[str], *more: str, loss: str = "info-nce") -> RunConfig:
    flags = {"strategy": {"name": strategy}, "loss": {"name": loss}}
    return load_config(flags=flags, sets=[*toy_sets, "train.epochs=3", *more])


def test_a_shrinking_pool_refreshed_more_often_shrinks_as_often(tmp_path, vector_sets):
    sets = ("train.epochs=12", "schedule.n_def=3", "schedule.refresh_every=2", "strategy.n_neg=8")
    folder = run(config_of("cirqrs", vector_sets, *sets), tmp_path).folder
    sizes = [int(folder.table(f"mining-{number:02d}")["pool_size"].max()) for number in range(4)]
    assert sizes == [8, 8, 4, 4]  # at epochs 4, 6, 8, 10; n_def = 3 halves at 8


def test_own_temperatures_are_trained_and_written_down(subtests, tmp_path, toy_sets):
    result = run(config_of("hycole", toy_sets, *TERMS), tmp_path)
    points = [p for p in result.folder.metrics() if "train/temperature" in p]
    for term in ("icm", "tcm", "ritm", "titm"):
        with subtests.test(term=term):
            curve = [p[f"train/temperature_{term}"] for p in points]
            assert len(set(curve)) == 3
            assert abs(math.log(curve[0]) + 1) < 0.2  # starts at e^-1
            assert result.details["temperatures"][term] == curve[-1]
    # the divisor of the loss on images; no term uses the backbone's temperature, so that stays
    assert [p["train/temperature"] for p in points] == [p["train/temperature_icm"] for p in points]
    assert result.details["temperatures"]["backbone"] == pytest.approx(0.07)
    fixed = run(config_of("hycole", toy_sets, "loss.tau=0.2", "train.epochs=1"), tmp_path).folder.metrics()
    assert [p["train/temperature"] for p in fixed if "train/temperature" in p] == [0.2]
    plain = run(config_of("hycole", toy_sets, "train.epochs=2"), tmp_path)
    assert list(plain.details["temperatures"]) == ["backbone"]
    assert len({p["train/temperature"] for p in plain.folder.metrics() if "train/temperature" in p}) == 2


def test_temperatures_are_trained_at_the_full_rate_and_without_decay(toy_sets):
    config = resolve(config_of("hycole", toy_sets, *TERMS))
    opened = untrained(config)
    strategy = make_strategy("hycole")
    loss = make_loss("info-nce")
    objective = Objective(TrainingCalls(opened.backbone, 0), strategy, loss, opened.scene, config.mining, config.hybrid)
    (group,) = torch.optim.AdamW(objective.parameter_groups(0.25), weight_decay=0.5).param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0)
    assert {id(p) for p in group["params"]} == {id(p) for p in objective.scalars.parameters()}
    assert len(group["params"]) == 4


def test_a_loss_learns_its_bias_from_where_its_option_starts(vector_sets, tmp_path):
    result = run(config_of("in-batch", vector_sets, "loss.bias=-3", "train.lr=0.01", loss="siglip"), tmp_path)
    curve = [point["train/bias"] for point in result.folder.metrics() if "train/bias" in point]
    assert len(curve) == 3
    steps = result.details["steps"]
    assert 0 < abs(curve[-1] + 3) <= 0.01 * steps  # Adam moves a scalar by no more than the rate in a step
    assert len(set(curve)) == 3


def test_terms_beside_the_loss_refuse_a_learned_bias(toy_sets):
    with pytest.raises(NegbenchError, match=r"^hybrid\.alpha and hybrid\.beta add terms .* bias of SigLIP .*alpha=0"):
        untrained(config_of("hycole", toy_sets, *TERMS, loss="siglip"))


@pytest.mark.parametrize("rate", [0.0, 1.0, 20.0])
def test_the_temperature_moves_at_its_own_rate(tmp_path, vector_sets, rate):
    """AdamW's first step moves a parameter without decay by its learning rate: log tau by `rate` times the run's."""
    sets = ("train.epochs=1", "train.batch_size=128", "train.lr=0.005", f"train.temperature_rate={rate}")
    result = run(config_of("qure", vector_sets, *sets), tmp_path)
    assert result.details["steps"] == 1
    moved = abs(math.log(result.details["temperatures"]["backbone"] / 0.07))
    assert moved == pytest.approx(0.005 * rate, rel=1e-3, abs=1e-6)


def test_a_temperature_stays_above_its_bound(tmp_path, vector_sets):
    config = resolve(config_of("qure", vector_sets, "train.temperature_least=0.05"))
    opened = untrained(config)
    parts = (make_strategy("qure"), make_loss("info-nce"), opened.scene, config.mining, config.hybrid)
    objective = Objective(TrainingCalls(opened.backbone, 0), *parts)
    assert objective.divisor == pytest.approx(0.07)
    with torch.no_grad():
        opened.backbone.log_temperature.fill_(math.log(0.03))
    assert objective.divisor == pytest.approx(0.05)
    assert float(opened.backbone.log_temperature.exp().detach()) == pytest.approx(0.03)
    assert mining_task(opened.backbone, opened.scene, config.mining).temperature == pytest.approx(0.05)
    objective.temperature("icm").backward()  # the temperature can rise again
    assert opened.backbone.log_temperature.grad == pytest.approx(0.03)
    with pytest.raises(OptionError, match=r"temperature_least = 0.1 is above the temperature at the start, 0.07:"):
        run(config_of("qure", vector_sets, "train.temperature_least=0.1"), tmp_path)


def test_a_bound_is_the_run_s_own(vector_sets):
    """Runs of a process share a backbone; a bound below the family's holds, too."""
    cache = DataCache()
    for least, expected in ((0.05, 0.05), (None, 0.01), (0.002, 0.002)):
        more = () if least is None else (f"train.temperature_least={least}",)
        opened = open_run(resolve(config_of("qure", vector_sets, *more)), Display(), cache)
        with torch.no_grad():
            opened.backbone.log_temperature.fill_(math.log(0.001))
        assert float(opened.backbone.bounded_temperature.detach()) == pytest.approx(expected), least


def rates_of(groups: list[dict[str, Any]]) -> dict[int, float]:
    """Return each parameter's learning rate."""
    rates = {}
    for group in groups:
        for parameter in group["params"]:
            rates[id(parameter)] = group["lr"]
    return rates


def test_only_the_temperature_gets_its_own_rate(toy_sets):
    backbone = untrained(resolve(config_of("qure", toy_sets))).backbone
    before = backbone.parameter_groups(0.5, 0.1)
    after = with_temperature_rate(before, backbone.temperature, 10.0)
    rates = rates_of(before)
    rates[id(backbone.log_temperature)] = 5.0
    assert rates_of(after) == rates
    assert sum(len(group["params"]) for group in after) == len(rates)
    assert with_temperature_rate(before, backbone.temperature, 1.0) == before


@pytest.fixture(scope="module")
def run_of(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return a function that gives a run, computed once, with the rows of its batches and the seed of each row."""
    runs = tmp_path_factory.mktemp("drawn")

    @cache
    def compute(strategy: str, *more: str) -> tuple[RunResult, list[list[int]], list[tuple[int, int]]]:
        rows: list[list[int]] = []
        seeds: list[tuple[int, int]] = []

        def note_batch(parts: TrainingParts, state: State, batch: Batch) -> None:
            rows.append(batch.rows.tolist())
            if batch.seed is not None:
                seeds.extend(zip(batch.rows.tolist(), batch.seed.tolist(), strict=True))

        result = run(config_of(strategy, vector_sets, *more), runs, stepped=note_batch)
        return result, rows, seeds

    return compute


def test_a_batch_strategy_keeps_as_many_negatives_as_it_is_told(run_of):
    whole, *_ = run_of("in-batch")
    thinned, *_ = run_of("in-batch", "train.num_negatives=4")
    mined, *_ = run_of("all-corpus", *FOUR)
    assert thinned.details["negatives_seen"] == mined.details["negatives_seen"] == 3 * 48 * 4
    assert whole.details["negatives_seen"] > thinned.details["negatives_seen"]
    assert whole.details["draws"] == {"per_query": None, "replacement": None, "redraw": None}
    assert thinned.details["draws"] == {"per_query": 4, "replacement": None, "redraw": None}
    assert thinned.folder.path != whole.folder.path


def test_with_replacement_an_epoch_may_repeat_a_negative(subtests, run_of):
    repeats = {}
    for replacement, more in ((False, FOUR), (True, (*FOUR, "mining.replacement=true"))):
        with subtests.test(replacement=replacement):
            result, *_ = run_of("all-corpus", *more)
            assert result.details["draws"] == {"per_query": 4, "replacement": replacement, "redraw": True}
            negatives = result.folder.table("mining-00")["negatives"].tolist()
            assert [len(row) for row in negatives] == [12] * 48
            repeats[replacement] = sum(12 - len(set(row)) for row in negatives)
    # 19 images: of 12 draws, 12 - 19 * (1 - (18 / 19) ** 12) = 2.9 are repeats on average, 141 of all
    assert repeats[False] == 0
    assert 100 < repeats[True] < 180


def test_one_draw_serves_all_epochs_of_an_interval(vector_sets, tmp_path):
    used: dict[int, dict[int, list[int]]] = {}  # by epoch and query

    def note_negatives(parts: TrainingParts, state: State, batch: Batch) -> None:
        assert batch.negatives is not None
        of_epoch = used.setdefault(state.epoch, {})
        of_epoch.update(zip(batch.rows.tolist(), batch.negatives.tolist(), strict=True))

    sets = (*FOUR, "mining.redraw=false", "train.epochs=6", "schedule.n_def=3")
    result = run(config_of("after-target", vector_sets, *sets), tmp_path, stepped=note_negatives)
    assert result.details["refresh_epochs"] == [2, 4]
    assert result.details["draws"] == {"per_query": 4, "replacement": False, "redraw": False}
    assert used[0] == used[1]
    assert used[2] == used[3]
    assert used[4] == used[5]
    assert used[1] != used[2] != used[4]
    stored = result.folder.table("mining-00")["negatives"].tolist()
    assert [list(row) for row in stored] == [used[2][query] for query in range(48)]


@pytest.mark.parametrize(("rise", "expected"), [(0, "released"), (1, "warm")])
def test_a_rate_that_moves_once_an_epoch_is_that_of_the_released_code(rise, expected):
    steps = 3
    epochs = 5
    lr = 1e-5
    floor = 1e-7
    sets = [f"train.lr={lr}", "train.epochs=5", "train.lr_update=epoch", f"train.lr_warmup_epochs={rise}"]
    config = resolve(load_config(flags={"strategy": {"name": "qure"}}, sets=sets))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.train.lr)
    schedule = cosine(optimizer, config.train, steps)
    rates = []
    for _ in range(steps * epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    by_epoch = [rates[epoch * steps : (epoch + 1) * steps] for epoch in range(epochs)]
    if expected == "warm":
        assert by_epoch.pop(0) == pytest.approx([lr / 3, lr * 2 / 3, lr])
    # train_qure.py: cosine_lr_schedule(optimizer, epoch, max_epochs, init_lr, init_lr / 100) before each epoch
    falling = epochs - rise
    for epoch, rates_of_epoch in enumerate(by_epoch):
        released = (lr - floor) * 0.5 * (1 + math.cos(math.pi * epoch / falling)) + floor
        assert rates_of_epoch == pytest.approx([released] * steps), epoch
    assert len(by_epoch) == falling


def test_thinning_draws_from_the_runs_own_stream(run_of):
    """Thinning draws anew for each query and epoch, differs under another seed, and leaves the batches unchanged."""
    _, plain_rows, plain_seeds = run_of("in-batch")
    _, rows, seeds = run_of("in-batch", "train.num_negatives=4")
    _, other_rows, other_seeds = run_of("in-batch", "train.num_negatives=4", "seed=1")
    assert plain_rows == rows != other_rows
    assert plain_seeds == []
    assert len(set(seeds)) == len(seeds) == 3 * 48
    assert len({seed for _, seed in seeds + other_seeds}) == 2 * 3 * 48


# --- what a run leaves behind ----------------------------------------------------------------------------------------


def test_a_run_leaves_its_files_and_the_global_generators_alone(tmp_path, toy_sets):
    before = global_generators()
    result = run(config_of("qure", toy_sets), tmp_path)
    assert global_generators() == before
    ranks = result.folder.ranks()
    assert len(ranks) == 36
    assert result.metrics["dress/recall_at_10"] == (ranks[ranks["group"] == "dress"]["target_rank"] <= 10).mean()


def test_a_diverged_model_is_one_line(tmp_path, vector_sets):
    with pytest.raises(NegbenchError, match=r"loss is (nan|inf) in epoch \d: --set train\.lr=100000,|NaN") as error:
        run(config_of("in-batch", vector_sets, "train.lr=1e6", loss="bradley-terry"), tmp_path)
    assert "\n" not in str(error.value)
    folder = RunFolder(next(tmp_path.glob("in-batch*")))
    assert folder.status == "failed"
    assert str(error.value) in (folder.path / "error.txt").read_text(encoding="utf-8")


def test_a_run_has_its_threads_and_a_resumed_one_is_failed_no_more(tmp_path, vector_sets):
    before = torch.get_num_threads()
    states: list[tuple[str, int]] = []

    def stop(*_: object) -> None:
        folder = RunFolder(sorted(tmp_path.glob("in-batch*"))[-1])  # the latest attempt's
        states.append((folder.status, torch.get_num_threads()))
        raise NegbenchError("mend this")

    for number in range(2):
        with pytest.raises(NegbenchError, match="mend this"):
            run(config_of("in-batch", vector_sets, f"compute.threads={before + 1}"), tmp_path, stepped=stop)
        assert RunFolder(next(tmp_path.glob("in-batch*"))).status == "failed", f"start {number}"
    assert states == [("interrupted", before + 1)] * 2
    assert torch.get_num_threads() == before


def test_a_bug_is_noted_and_the_run_computed_again(tmp_path, vector_sets):
    def fail(*_: object) -> None:
        raise ValueError("odd")

    config = config_of("in-batch", vector_sets)
    with pytest.raises(ValueError, match="odd"):
        run(config, tmp_path, point=fail)
    assert (next(tmp_path.glob("in-batch*")) / "error.txt").read_text(encoding="utf-8").strip() == "ValueError: odd"
    assert [run(config, tmp_path).reused for _ in range(2)] == [False, True]


def test_progress_reaches_its_total(tmp_path, vector_sets, monkeypatch):
    stages: dict[str, list[tuple[int | None, int, str]]] = {}

    @contextmanager
    def stage(self: Display, name: str, *, total: int | None = None, note: str = "") -> Iterator[Callable[[int], None]]:
        counts: list[int] = []
        yield counts.append
        stages.setdefault(name, []).append((total, sum(counts), note))

    monkeypatch.setattr(Display, "stage", stage)
    sets = ("train.epochs=2", "train.batch_size=20", "schedule.refresh_epochs=[0,1]")
    run(config_of("qure", vector_sets, *sets), tmp_path)
    assert stages["train"] == [(3, 3, "epoch 1/2"), (3, 3, "epoch 2/2")]  # two batches of 20 and one of 8
    assert stages["mine"] == [(48, 48, "epoch 1"), (48, 48, "epoch 2")]


# --- pairs that change with the epoch --------------------------------------------------------------------------------


PAIRS_OF_EPOCHS = [
    ("in-batch", True, [0, 1, 2, 3, 4, 5]),
    ("after-target", True, [0, 0, 2, 2, 4, 4]),
    ("after-target", False, [0, 1, 2, 3, 4, 5]),  # only the texts change
]


@pytest.mark.parametrize(("strategy", "redraws", "pairs_of_epoch"), PAIRS_OF_EPOCHS)
def test_pairs_are_those_of_the_epoch_or_interval(
    vector_sets, tmp_path, monkeypatch, strategy, redraws, pairs_of_epoch
):
    mined: list[Tensor] = []

    def at_epoch(self: Triplets, epoch: int, seed: int) -> Triplets:
        queries = []
        for query in first.queries:
            of_group = [one for one in first.queries if one.group == query.group]
            other = of_group[(of_group.index(query) + 3 * seed + epoch) % len(of_group)]
            target = other.target if redraws else query.target
            queries.append(dataclasses.replace(query, target=target, text=other.text, relevant=()))
        return dataclasses.replace(self, queries=queries)

    def check_batch(parts: TrainingParts, state: State, batch: Batch) -> None:
        pairs = first.at_epoch(pairs_of_epoch[state.epoch], 2)
        assert torch.equal(parts.objective.scene.train.dataset.target_columns, pairs.target_columns)
        texts = parts.objective.backbone.tokenize([query.text for query in pairs.queries])
        for name, rows in texts.items():
            assert torch.equal(batch.tokens[name], rows[batch.rows]), name

    def note_targets(now: ModelCache, phase: Phase, _: Mined) -> None:
        mined.append(now.task(now.scene_to_mine(), phase.mined).target)

    config = config_of(strategy, vector_sets, "train.epochs=6", "train.batch_size=16", "schedule.n_def=3", "seed=2")
    first = DataCache().dataset(config.dataset, "train", images=False)
    monkeypatch.setattr(Triplets, "at_epoch", at_epoch)
    monkeypatch.setattr(Triplets, "redraws", property(lambda self: redraws and self.split == "train"))
    run(config, tmp_path, stepped=check_batch, refreshed=note_targets)
    refreshes = [0, 2, 4] if strategy == "after-target" else []
    for targets, epoch in zip(mined, refreshes, strict=True):
        assert torch.equal(targets, first.at_epoch(epoch, 2).target_columns), epoch
