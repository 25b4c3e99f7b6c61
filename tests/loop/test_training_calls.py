"""A batch in parts has the gradients of the whole batch, for every strategy, loss, slot and call of a backbone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from negbench.api import make_strategy
from negbench.contracts import Calls, Strategy
from negbench.display import Display
from negbench.errors import OptionError
from negbench.loop.batches import epoch_batches
from negbench.loop.fitting import fitting_plan, possible_plans
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import DATA, compute_or_reuse, open_run
from negbench.loop.step_memory import step_memory
from negbench.loop.step_plan import StepPlan
from negbench.loop.train import training_parts
from negbench.loop.training_calls import _parts
from negbench.loop.types import OpenRun, State
from negbench.plugins.registry import registry
from negbench.settings.config import MiningConfig
from tests.runs import config_of, run
from tests.spies import spy
from tests.steps import LOSS_SETS, batch_of, check_equal, gradients_of, objective_of

CALLS = {name for name in vars(Calls) if not name.startswith("_")}


# --- strategies and losses ---------------------------------------------------------------------------------------


def pairs() -> Iterator[tuple[str, str]]:
    """Yield every strategy with a loss, so that every loss has several of both scopes."""
    losses = cycle(registry.plugins("losses"))
    # these data list and judge no negatives
    names = [name for name in registry.plugins("strategies") if name != "oracle-kind"]
    names = [name for name in names if "listed" not in registry.get("strategies", name).reads]
    yield from zip([*names, "in-batch+qure"], losses, strict=False)
    for loss in registry.plugins("losses"):
        yield "qure", loss


def first_batch(opened: OpenRun, strategy: Strategy) -> tuple[Objective, Batch]:
    """Return a run's objective and the first batch of its first epoch, with negatives at random."""
    parts = training_parts(opened, strategy)
    state = State()
    if strategy.scope == "corpus":
        queries = len(opened.scene.train.dataset.queries)
        images = len(opened.scene.train.dataset.images)
        state.negatives = torch.randint(images, (queries, 4), generator=torch.Generator().manual_seed(1))
    return parts.objective, next(iter(epoch_batches(opened, parts.objective, state, parts.streams, strategy)))


@pytest.mark.parametrize(("name", "loss"), [*pairs()])
def test_every_strategy_and_loss(name, loss, sets):
    """A step in parts draws the same negatives from the same seeds."""
    config = config_of(sets, name, "train.num_negatives=4", *LOSS_SETS.get(loss, ()), loss={"name": loss})
    opened = open_run(config, Display(), DATA)
    objective, batch = first_batch(opened, make_strategy(name))
    whole = gradients_of(objective, batch, 0)
    objective, batch = first_batch(opened, make_strategy(name))
    in_parts = gradients_of(objective, batch, 7)
    check_equal(whole, in_parts)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embed 32 images at a time instead of 512."""
    monkeypatch.setattr("negbench.loop.objective.EMBED_BATCH", 32)
    monkeypatch.setattr("negbench.loop.training_calls.EMBED_BATCH", 32)


@pytest.fixture
def corpus_step(sets: list[str], few_at_once: None) -> tuple[OpenRun, Objective, Batch]:
    """Return a step whose loss compares the target with every image of the corpus."""
    config = config_of(sets, "in-batch", loss={"name": "margin-kl", "kl_over": "corpus"})
    opened = open_run(config, Display(), DATA)
    return opened, *first_batch(opened, make_strategy("in-batch"))


@pytest.mark.parametrize("micro_batch", [0, 5])
def test_a_corpus_of_many_activations_passes_in_parts(corpus_step, micro_batch, monkeypatch):
    _, objective, batch = corpus_step
    whole = gradients_of(objective, batch, 0)
    monkeypatch.setattr("negbench.loop.training_calls._KEPT_ACTIVATIONS", 0)
    check_equal(gradients_of(objective, batch, micro_batch), whole)


@pytest.mark.parametrize("kept_parts", [None, 0, 1], ids=["all", "nothing", "a part"])
def test_a_corpus_is_embedded_twice_and_read_once_as_far_as_memory_is_allowed(
    kept_parts, corpus_step, monkeypatch, spy_on
):
    opened, objective, batch = corpus_step
    monkeypatch.setattr("negbench.loop.training_calls._KEPT_ACTIVATIONS", 0)
    want = gradients_of(objective, batch, 0)  # measures the activations of an image
    if kept_parts is not None:
        part = opened.scene.source(torch.arange(32)).nbytes
        monkeypatch.setattr("negbench.loop.training_calls.KEPT_BYTES", kept_parts * part)
    embedded = spy_on(opened.backbone, "candidates")
    read: list[tuple[Any, ...]] = []
    monkeypatch.setattr(objective, "scene", replace(opened.scene, source=spy(opened.scene.source, read)))
    check_equal(gradients_of(objective, batch, 0), want)
    size = len(batch.rows)
    corpus = len(objective._gallery(batch.rows))
    assert corpus > 32
    assert sum(len(images) for (images,) in embedded) == size + 2 * corpus  # the batch's targets, and the corpus
    read_again = 0 if kept_parts is None else corpus - 32 * kept_parts
    assert sum(len(rows) for (rows,) in read) == 2 * size + corpus + read_again


@pytest.mark.parametrize("micro_batch", [0, 5])
@pytest.mark.parametrize("strategy", ["in-batch", "qure"])
def test_images_of_little_weight_get_no_gradient_of_their_own(
    strategy, micro_batch, sets, few_at_once, monkeypatch, spy_on
):
    """The loss is that of the whole corpus; the gradient is that of the loss with those images' embeddings fixed."""
    steps = []
    for bound in (0.0, 0.05):
        loss = {"name": "margin-kl", "kl_over": "corpus", "tau": 0.05, "kl_bound": bound}
        opened = open_run(config_of(sets, strategy, loss=loss), Display(), DATA)
        steps.append(first_batch(opened, make_strategy(strategy)))
    (exact, batch), (objective, _) = steps
    whole = gradients_of(exact, batch, micro_batch)
    many = exact.calls.many_candidates
    calls = spy_on(objective.calls, "spare")
    bounded = gradients_of(objective, batch, micro_batch)
    (spared,) = calls[0]
    assert 0 < int(spared.sum()) < len(spared)
    loss, _ = bounded
    whole_loss, _ = whole
    assert loss == pytest.approx(whole_loss, rel=1e-6)

    def fix_spared(*arguments: Any, **options: Any) -> Tensor:
        embedded = many(*arguments, **options)
        return torch.where(spared[:, None, None], embedded.detach(), embedded)

    monkeypatch.setattr(exact.calls, "many_candidates", fix_spared)
    check_equal(bounded, gradients_of(exact, batch, 0))
    with pytest.raises(AssertionError):
        check_equal(bounded, whole)


# --- calls -------------------------------------------------------------------------------------------------------


STEPS = ["qure", "in-batch", "hycole", "in-batch-cube", "in-batch+qure"]


@pytest.mark.parametrize("loss", ["info-nce", "margin-kl"])
@pytest.mark.parametrize("strategy", STEPS)
def test_terms_slots_and_aspects_of_a_trained_tower(strategy, loss, tuned):
    """Every call, the tower's included; a part of one row, and one that does not divide the batch."""
    objective = objective_of(tuned, strategy, loss)
    batch = batch_of(tuned, strategy)
    check_equal(gradients_of(objective, batch, 0), gradients_of(objective, batch, 4))


def test_no_call_has_more_rows_than_a_part(tuned, monkeypatch):
    """Every method of `Calls` passes the backbone in parts: nothing in a step reaches it by another way."""
    most_rows = dict.fromkeys(CALLS, 0)

    def count_rows(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        for argument in arguments:
            table = next(iter(argument.values())) if isinstance(argument, dict) else argument
            most_rows[name] = max(most_rows[name], len(table))
        return method(*arguments)

    for name in CALLS:
        monkeypatch.setattr(tuned.backbone, name, partial(count_rows, name, getattr(tuned.backbone, name)))
    for strategy in ("hycole", "qure"):
        mining = MiningConfig(max_reference=0.99)  # a plane of the current model
        gradients_of(objective_of(tuned, strategy, "margin-kl", mining), batch_of(tuned, strategy), 4)
    assert most_rows == dict.fromkeys(CALLS, 4)


@pytest.mark.parametrize(
    ("sizes", "size", "pairwise", "want"),
    [
        ((5,), 2, False, [(2,), (2,), (1,)]),
        ((5,), 0, False, [(5,)]),
        ((3, 3), 2, False, [(2, 2), (2, 1), (1, 2), (1, 1)]),
        ((3, 3), 2, True, [(1, 2), (1, 1), (1, 2), (1, 1), (1, 2), (1, 1)]),
        ((4, 4), 8, True, [(2, 4), (2, 4)]),
    ],
    ids=["rows", "whole", "blocks", "few pairs", "many pairs"],
)
def test_parts_of_a_call(sizes, size, pairwise, want):
    rows, *others = sizes
    parts = _parts(slice(0, rows), tuple(others), size, pairwise)
    lengths = []
    for part in parts:
        lengths.append(tuple(side.stop - side.start for side in part))
    assert lengths == want
    covered = torch.zeros(sizes)
    for part in parts:
        covered[part] += 1
    assert bool((covered == 1).all())


# --- recomputing -------------------------------------------------------------------------------------------------


def test_activations_computed_again_have_the_same_gradients(tuned):
    objective = objective_of(tuned, "hycole", "info-nce")
    batch = batch_of(tuned, "hycole")
    plain = gradients_of(objective, batch, 0)
    tuned.backbone.recompute(True)
    try:
        for micro_batch in (0, 4):
            check_equal(plain, gradients_of(objective, batch, micro_batch))
    finally:
        tuned.backbone.recompute(False)


# --- what fits ---------------------------------------------------------------------------------------------------


# bytes of a step of the batch of six, by (micro-batch, recompute)
@pytest.mark.parametrize(
    ("settings", "started", "expected"),
    [
        ({}, {}, StepPlan()),
        ({}, {"micro_batch": 4, "recompute": True}, StepPlan(4, recompute=True)),
        ({"micro_batch": 2}, {"micro_batch": 4, "recompute": True}, StepPlan(2, recompute=True)),
        ({"recompute": False}, {"micro_batch": 4, "recompute": True}, StepPlan(4)),
        ({"processes": 2}, {"processes": 3}, StepPlan(processes=2)),
    ],
    ids=["new", "as started", "micro-batch set", "recompute set", "processes set"],
)
def test_a_plan_is_as_configured_else_as_the_run_was_started(settings, started, expected, tuned):
    compute = tuned.config.compute.model_copy(update=settings)
    config = tuned.config.model_copy(update={"compute": compute})
    assert StepPlan.of(config, tuned.backbone, started) == expected


BYTES = {(0, False): 100, (0, True): 60, (3, False): 55, (1, False): 40, (3, True): 30, (1, True): 10}


@pytest.fixture
def on_a_card(tuned: OpenRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpenRun]:
    """Return a function of memory and settings that returns the run as it stands on a GPU of so many bytes."""

    def open_run_on_card(memory: int, **settings: Any) -> OpenRun:
        properties = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "mem_get_info", None)  # what is free must not count
        compute = tuned.config.compute.model_copy(update=settings)
        config = tuned.config.model_copy(update={"compute": compute})
        return replace(tuned, config=config, precision=replace(tuned.precision, device=torch.device("cuda")))

    return open_run_on_card


@pytest.mark.parametrize(
    ("memory", "settings", "want"),
    [
        (100, {}, StepPlan()),
        (99, {}, StepPlan(0, recompute=True)),
        (59, {}, StepPlan(3)),
        (54, {}, StepPlan(1)),
        (39, {}, StepPlan(3, recompute=True)),
        (29, {}, StepPlan(1, recompute=True)),
        (9, {}, StepPlan(1, recompute=True)),
        (59, {"recompute": True}, StepPlan(3, recompute=True)),
        (99, {"recompute": False}, StepPlan(3)),
        (59, {"micro_batch": 0}, StepPlan(0, recompute=True)),
        (39, {"micro_batch": 3}, StepPlan(3, recompute=True)),
        (50, {"processes": 2}, StepPlan(processes=2)),
        (49, {"processes": 2}, StepPlan(0, recompute=True, processes=2)),
    ],
    ids=str,
)
def test_the_cheapest_way_that_fits_is_taken(memory, settings, want, on_a_card, monkeypatch):
    """Of two processes each takes half here."""

    def bytes_of(architecture: Any, rows: Any, plan: StepPlan, *, gpu: bool) -> dict[str, int]:
        return {"activations": BYTES[plan.micro_batch, plan.recompute] // plan.processes}

    monkeypatch.setattr("negbench.loop.fitting.step_bytes", bytes_of)
    assert fitting_plan(on_a_card(memory, **settings)) == want


def test_on_a_cpu_nothing_is_chosen(tuned, monkeypatch):
    monkeypatch.setattr("negbench.loop.fitting.step_bytes", None)
    assert fitting_plan(tuned) == StepPlan()


def test_the_estimate_of_a_real_step_decides(tuned, on_a_card):
    plans = possible_plans(tuned.config.compute, 6, tuned.backbone)
    needs = {plan: sum(step_memory(on_a_card(0), plan).values()) for plan in plans}
    for plan, most in needs.items():
        assert needs[fitting_plan(on_a_card(most))] <= most, plan
    assert fitting_plan(on_a_card(min(needs.values()) - 1)) == plans[-1]


# --- settings ----------------------------------------------------------------------------------------------------


def test_a_run_writes_down_how_it_was_computed_and_resumes_so(sets, tmp_path, interrupted):
    """Its hash stays."""
    plain = config_of(sets, "qure")
    config = config_of(sets, "qure", "compute.micro_batch=5")
    straight = run(config, tmp_path / "straight")
    half = interrupted(config, tmp_path / "half", 1)
    started = next((tmp_path / "half").glob("qure*/config.json"))
    assert '"micro_batch": 5' in started.read_text()
    resumed = compute_or_reuse(plain, half)
    assert resumed.details["computed"] == [{"epoch": 0, "micro_batch": 5, "recompute": False, "processes": 1}]
    weights = straight.folder.weights()
    for name, value in resumed.folder.weights().items():
        assert torch.equal(value, weights[name]), name
    assert resumed.folder.manifest["hash"] == run(plain, tmp_path / "whole").folder.manifest["hash"]


def test_another_setting_of_a_resumed_run_counts_from_there_on(sets, tmp_path, interrupted):
    half = interrupted(config_of(sets, "qure"), tmp_path / "half", 1)
    resumed = compute_or_reuse(config_of(sets, "qure", "compute.micro_batch=5"), half)
    assert [row["micro_batch"] for row in resumed.details["computed"]] == [0, 5]
    assert [row["epoch"] for row in resumed.details["computed"]] == [0, 1]


def test_what_a_backbone_cannot_recompute_is_refused(sets, tmp_path):
    with pytest.raises(OptionError, match="backbone 'precomputed' has no trained layers"):
        run(config_of(sets, "qure", "compute.recompute=true"), tmp_path)


@pytest.mark.parametrize(
    ("layer", "want"),
    [
        (nn.Dropout(0.1), "draws dropout from torch's generators (more), so a batch in parts would have other masks"),
        (nn.BatchNorm1d(4), "normalises over the rows of a batch (more), so a batch in parts would train otherwise"),
    ],
    ids=["dropout", "normalisation"],
)
def test_a_backbone_whose_rows_depend_on_each_other_is_refused(layer, want, tuned, monkeypatch):
    monkeypatch.setitem(tuned.backbone._modules, "more", layer)
    with pytest.raises(OptionError) as error:
        StepPlan(micro_batch=4).check(tuned.backbone)
    assert want in str(error.value)
    StepPlan().check(tuned.backbone)
    assert {plan.micro_batch for plan in possible_plans(tuned.config.compute, 6, tuned.backbone)} == {0}


@pytest.mark.parametrize(
    ("setting", "want"),
    [
        ("compute.micro_batch=-1", "compute.micro_batch = -1: expected auto, or a whole number from 0"),
        ("compute.micro_batch=true", "compute.micro_batch = True: expected auto, or a whole number from 0"),
        ("compute.recompute=2", "compute.recompute = 2: expected auto, true or false"),
        ("train.accumulate=4", "train.accumulate: a large batch passes in parts"),
        ("train.gradient_accumulation_steps=4", "by --set compute.micro_batch=8"),
    ],
    ids=["negative", "true", "number", "accumulate", "other name"],
)
def test_settings_out_of_range_are_one_line(setting, want, sets):
    with pytest.raises(OptionError) as error:
        config_of(sets, "qure", setting)
    assert want in str(error.value)


@pytest.mark.parametrize(("old", "new"), [("true", True), ("false", "auto")])
def test_the_option_of_earlier_recipes_and_runs_is_read(old, new):
    sets = ["backbone.frozen=false", f"backbone.grad_checkpointing={old}"]
    config = config_of(sets, "qure", backbone={"name": "clip"})
    assert config.compute.recompute == new
    assert "grad_checkpointing" not in config.backbone.options


def test_the_precision_that_backbones_had_is_read_as_that_of_the_run():
    blip = {"name": "blip", "precision": "bf16"}
    config = config_of([], "qure", backbone=blip)
    assert config.train.precision == "bf16"
    assert "precision" not in config.backbone.options
    assert config_of(["train.precision=fp32"], "qure", backbone=blip).train.precision == "fp32"
