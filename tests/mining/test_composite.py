"""Composite strategies: names, options, a union's step against loops, and a switch equal to the warm-up."""

from typing import Any

import pytest
import torch

from negbench.api import make_loss, make_strategy
from negbench.cli.explain import options_of
from negbench.contracts import Strategy, relevance, tunable_ranges
from negbench.errors import NegbenchError
from negbench.grid.axes import labels_of_config, plugin_sections
from negbench.loop.identity import code_version
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import compute_or_reuse
from negbench.loop.schedule import phases_of
from negbench.loop.training_calls import TrainingCalls
from negbench.mining.composite import batch_rule, batch_rules, parts_of, slots_of
from negbench.plugins.registry import registry
from negbench.scoring import evaluation
from negbench.settings.config import resolve
from negbench.store.run_result import RunResult
from negbench.testing.worlds import toy_view
from tests.runs import config_of, run, untrained

# --- names and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qure", "qure+in-batch"])
def test_a_union_chooses_the_pools_of_its_part(name):
    union = make_strategy("in-batch+qure", variant="release")
    assert union.pool(toy_view()).tolist() == make_strategy(name, variant="release").pool(toy_view()).tolist()


def test_a_union_has_the_options_of_its_parts():
    union = make_strategy("in-batch+qure", variant="release")
    assert batch_rule(union) == make_strategy("in-batch")
    assert (union.scope, union.n_def, union.schedule, slots_of(union)) == ("corpus", 6, "multiples", ("target",))
    assert slots_of(make_strategy("hycole+qure")) == ("target", "reference", "modification")
    assert union == make_strategy("in-batch+qure", variant="release")
    assert union != make_strategy("in-batch+qure")


def test_a_switch_has_the_options_of_its_parts():
    switch = make_strategy("top-k:2>after-target", top_k_k=3, after_target_k=4, halve=True)
    assert parts_of(switch) == [(0, make_strategy("top-k", k=3, halve=True)), (2, make_strategy("after-target", k=4))]
    assert set(tunable_ranges(type(switch))) == {"top_k_k", "after_target_k"}


def test_a_range_below_another_option_names_it_as_the_composite_does():
    assert tunable_ranges(registry.get("strategies", "in-batch+dqe"))["alpha"].below == "beta"
    shared = registry.get("strategies", "distance-weighted:2>top-k-abs")
    assert tunable_ranges(shared)["cutoff"].below == "distance_weighted_limit"


def test_parts_of_a_switch_may_be_unions_and_batch_strategies():
    three = make_strategy("all-corpus:1>top-k:3>in-batch+after-target", top_k_k=5)
    assert [at for at, _ in parts_of(three)] == [0, 1, 4]
    assert batch_rule(parts_of(three)[2][1]) == make_strategy("in-batch")
    assert batch_rules(three) == [make_strategy("in-batch")]
    last = make_strategy("all-corpus:1>xbm", queue=5)
    assert last.scope == "batch"
    assert slots_of(last) == ("target", "bank")
    assert batch_rules(last) == [make_strategy("xbm", queue=5)]


def test_a_composite_is_named_wherever_a_strategy_is(vector_sets):
    assert plugin_sections("strategies", "in-batch+qure:variant=release,all-corpus:2>cirqrs") == (
        {"name": "in-batch+qure", "variant": "release"},
        {"name": "all-corpus:2>cirqrs"},
    )
    full = resolve(config_of(vector_sets, "in-batch+qure:variant=release"))
    assert full.strategy.options == {"shared": False, "variant": "release", "consecutive_threshold": 1}
    assert labels_of_config(full)["strategy"] == "in-batch+qure(variant=release)"
    option = next(option for option in options_of("strategies", "in-batch+qure") if option.name == "variant")
    assert (option.type, option.default) == ("paper or release", "paper")
    names = {plugin.name for plugin in registry.parts("strategies", "all-corpus:1>top-k:3>in-batch+after-target")}
    assert names == {"all-corpus", "top-k", "in-batch", "after-target"}
    assert code_version(full) != code_version(resolve(config_of(vector_sets, "qure")))


def test_names_that_mean_nothing_are_one_line(subtests, vector_sets, mistakes):
    for name, message in mistakes["names"].items():
        with subtests.test(name=name):
            with pytest.raises(NegbenchError) as caught:
                resolve(config_of(vector_sets, name))
            assert message in str(caught.value)
            assert "\n" not in str(caught.value)


# --- unions ----------------------------------------------------------------------------------------------------------

ROWS = torch.tensor([0, 7, 30, 41])
DRAWN = torch.tensor([[1, 5], [2, 2], [33, 21], [25, 36]])


def step_of(
    sets: list[str], name: str, loss: str, rows: torch.Tensor, drawn: torch.Tensor, **options: Any
) -> tuple[float, int, torch.Tensor, torch.Tensor]:
    """Return loss and negatives of a step, all scores [Q, N] over the temperature, and the target columns."""
    opened = untrained(config_of(sets, name))
    opened.backbone.eval()
    train = opened.scene.train
    with torch.no_grad():
        embeddings = evaluation.embed(opened.backbone, opened.scene, train)
        parts = (make_strategy(name), make_loss(loss, **options), opened.scene, opened.config.mining)
        batch = Batch(rows, drawn, {k: v[rows] for k, v in train.tokens.items()})
        result = Objective(TrainingCalls(opened.backbone, 0), *parts)(batch)
    scores = relevance(embeddings.queries, embeddings.candidates) / opened.backbone.temperature.item()
    return float(result.loss), result.negative_count, scores, train.dataset.target_columns[rows]


def test_a_union_is_the_draws_and_the_other_targets_in_one_softmax(vector_sets):
    loss, count, scores, targets = step_of(vector_sets, "in-batch+qure", "info-nce", ROWS, DRAWN)
    assert len(set(targets.tolist())) == 4
    want = 0.0
    for i, row in enumerate(ROWS.tolist()):
        columns = [*DRAWN[i].tolist(), *(t for t in targets.tolist() if t != int(targets[i]))]
        want -= float(scores[row, [int(targets[i]), *columns]].log_softmax(0)[0]) / 4
    assert count == 4 * (2 + 3)  # M own, B - 1 others
    assert loss == pytest.approx(want, abs=1e-5)


def test_a_union_with_three_slots_adds_the_other_slots(vector_sets):
    whole, count, *_ = step_of(vector_sets, "hycole+qure", "info-nce", ROWS, DRAWN)
    union, *_ = step_of(vector_sets, "in-batch+qure", "info-nce", ROWS, DRAWN)
    slots, all_three, *_ = step_of(vector_sets, "hycole", "info-nce", ROWS, None)
    target, *_ = step_of(vector_sets, "in-batch", "info-nce", ROWS, None)
    assert whole == pytest.approx(union + slots - target, abs=1e-5)
    assert count == all_three + 4 * 2


def test_a_loss_that_ranks_the_corpus_leaves_the_members_out_of_its_candidates(vector_sets):
    """margin-kl over the corpus leaves out images that already are negatives, by loops."""
    rows = torch.tensor([0, 7])
    targets = untrained(config_of(vector_sets, "qure")).scene.train.dataset.target_columns[rows]
    free = [column for column in range(20) if column not in targets.tolist()]
    drawn = torch.tensor([free[:2], free[3:5]])
    loss, _, scores, _ = step_of(vector_sets, "in-batch+qure", "margin-kl", rows, drawn, kl_over="corpus")
    batch, *_ = step_of(vector_sets, "in-batch+qure", "margin-kl", rows, drawn, kl_over="batch")
    want = 0.0
    for row, target, drawn_columns in zip(rows.tolist(), targets.tolist(), drawn.tolist(), strict=True):
        corpus = list(range(20))  # both rows are of one gallery
        members = [*targets.tolist(), *drawn_columns]
        want -= float(scores[row, corpus].log_softmax(0)[corpus.index(target)]) / 2
        want += float(scores[row, members].log_softmax(0)[members.index(target)]) / 2
    assert loss - batch == pytest.approx(want, abs=1e-4)


def test_a_composite_reads_the_planes_that_its_parts_read_as_set(vector_sets, tmp_path):
    assert make_strategy("in-batch+top-k").reads == ()
    assert make_strategy("in-batch+top-k", by="text").reads == ("text",)
    assert make_strategy("top-k:2>fnc", by="reference").reads == ("reference", "target")
    runs = [run(config_of(vector_sets, f"in-batch+top-k:k=2:by={by}"), tmp_path) for by in ("query", "text")]
    assert runs[0].metrics != runs[1].metrics


# --- switches --------------------------------------------------------------------------------------------------------


def test_the_warm_up_is_a_switch_from_all_of_the_corpus(vector_sets, tmp_path):
    """`schedule.warmup=2` and the switch `all-corpus:2>cirqrs` give the same run."""
    sets = [*vector_sets, "train.epochs=4", "schedule.n_def=4"]
    by_option = run(config_of(sets, "cirqrs", "schedule.warmup=2"), tmp_path)
    named = run(config_of(sets, "all-corpus:2>cirqrs"), tmp_path)
    assert named.folder.config.schedule == by_option.folder.config.schedule
    assert named.metrics == by_option.metrics
    assert list(named.folder.metrics()) == list(by_option.folder.metrics())
    assert named.run_id.startswith("all-corpus_2_cirqrs-")


def plan_phases(sets: list[str], name: str, *more: str) -> list[tuple[int, str, tuple[int, ...], bool]]:
    """Return end, strategy, refreshes and whether it is the last, of the phases of a run of 12 epochs."""
    without_schedule = [text for text in sets if not text.startswith("schedule")]
    full = resolve(config_of(without_schedule, name, "train.epochs=12", *more))
    strategy: Strategy = registry.make("strategies", full.strategy.name, **full.strategy.options)
    phases = phases_of(strategy, full)
    return [(phase.end, type(phase.mined).__name__, phase.refreshes, phase.is_last) for phase in phases]


@pytest.mark.parametrize(
    ("name", "more", "phases"),
    [
        ("qure", (), [(2, "AllCorpus", (0,), False), (12, "Qure", (2, 4, 6, 8, 10), True)]),
        ("qure", ("schedule.refresh_epochs=[]",), [(12, "AllCorpus", (0,), False), (12, "Qure", (), True)]),
        ("in-batch", (), [(12, "InBatch", (), True)]),
        ("all-corpus", (), [(12, "AllCorpus", (0,), True)]),
        ("all-corpus:5>qure", (), [(5, "AllCorpus", (0,), False), (12, "Qure", (5, 7, 9, 11), True)]),
        ("qure:5>in-batch", (), [(5, "Qure", (0, 2, 4), False), (12, "InBatch", (), True)]),
        ("in-batch:5>all-corpus", (), [(5, "InBatch", (), False), (12, "AllCorpus", (5,), True)]),
        (
            "in-batch:1>qure:3>dqe",
            (),
            [(1, "InBatch", (), False), (4, "Qure", (1, 3), False), (12, "Dqe", (4, 5, 7, 8, 10), True)],
        ),
        ("all-corpus:5>qure", ("schedule.n_def=1",), [(5, "AllCorpus", (0,), False), (12, "Qure", (5,), True)]),
    ],
)
def test_phases_of_a_run(vector_sets, name, more, phases):
    assert plan_phases(vector_sets, name, *more) == phases


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("schedule.warmup=3", r"schedule\.warmup is 3: leave it out"),
        ("schedule.refresh_epochs=[4,6]", "must begin with 5"),
    ],
)
def test_a_schedule_that_contradicts_a_switch_is_refused(vector_sets, setting, message):
    with pytest.raises(NegbenchError, match=message):
        plan_phases(vector_sets, "all-corpus:5>qure", setting)


def losses_of(result: RunResult) -> list[float]:
    """Return the training loss of each epoch."""
    return [point["train/loss"] for point in result.folder.metrics() if "train/loss" in point]


@pytest.mark.usefixtures("every_epoch")
def test_a_switch_goes_on_with_what_came_before(vector_sets, tmp_path, interrupted):
    """The first epoch equals the first strategy bit for bit, the second does not; resumed, the run is the same."""
    sets = [*vector_sets, "train.epochs=3"]
    config = config_of(sets, "in-batch:1>top-k:k=5")
    whole = run(config, tmp_path / "whole")
    first = run(config_of(sets, "in-batch"), tmp_path / "first")
    pairs = zip(losses_of(whole), losses_of(first), strict=True)
    assert [loss == other for loss, other in pairs] == [True, False, False]
    assert compute_or_reuse(config, interrupted(config, tmp_path / "h", 2)).metrics == whole.metrics
