"""What a run reports: the regime card of its current model, and remarks on what looks wrong."""

import math
import pkgutil
import time
from collections import Counter
from typing import Any

import pytest

from negbench.api import make_strategy
from negbench.display import Display
from negbench.loop.observe import regime_epochs
from negbench.loop.remarks import remarks_of
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.loop.schedule import phases_of
from negbench.loop.types import State
from negbench.mining.regime import Regime
from negbench.own.audit import audit
from negbench.own.scored_split import open_split
from negbench.plugins.registry import registry
from negbench.settings.command_options import Audit
from negbench.settings.config import resolve
from negbench.store.runfolder import final_values
from tests.runs import config_of, flags_of, run

FIELDS = list(Regime.__dataclass_fields__)


CARD_EPOCHS = [
    ("qure", (), {0, 2, 4, 6, 8, 10}),
    ("in-batch", (), {0, 2, 4, 6, 8, 10}),
    ("all-corpus", (), {0, 2, 4, 6, 8, 10}),
    ("qure", ("schedule.refresh_epochs=[3,5]",), {0, 3, 5}),
    ("qure", ("schedule.refresh_epochs=[0]",), {0, 2, 4, 6, 8, 10}),
    ("cirqrs", ("schedule.n_def=3",), {0, 4, 8}),
    ("qure", ("eval.reported=false",), {0}),
    ("qure", ("schedule.refresh_every=1", "schedule.warmup=1"), {0, 2, 4, 6, 7, 9, 11}),
    ("top-k:3>qure", ("schedule.refresh_epochs=[3,5]",), {0, 2, 3, 5}),
]


@pytest.mark.parametrize(("strategy", "more", "want"), CARD_EPOCHS)
def test_runs_of_one_length_are_looked_at_in_the_same_epochs(strategy, more, want):
    config = resolve(config_of([], strategy, "train.epochs=12", *more))
    phases = phases_of(make_strategy(config.strategy.name, **config.strategy.options), config)
    assert regime_epochs(config, phases) == want


def test_runs_share_what_is_observed_before_their_first_step(vector_sets, tmp_path, monkeypatch):
    calls: list[str] = []
    for name in ("regime", "curves.score_curves", "evaluation.one_modality_ranks", "evaluation.rank_judged"):
        home = f"negbench.loop.observe.{name}"
        real = pkgutil.resolve_name(home)

        def call_slowly(*arguments: Any, real: Any = real, name: str = name) -> Any:
            calls.append(name)
            time.sleep(0.1)
            return real(*arguments)

        monkeypatch.setattr(home, call_slowly)

    def compute(strategy: str, context: RunContext, *more: str) -> tuple[dict[str, Any], Counter[str]]:
        """Return a run's result, and how often each function was called."""
        calls.clear()
        result = compute_or_reuse(config_of(vector_sets, strategy, *more), context).folder.result
        return result, Counter(calls)

    alone, whole = compute("in-batch", RunContext.open(tmp_path / "alone", "none"))
    context = RunContext.open(tmp_path / "beside", "none")
    compute("qure", context)
    beside, rest = compute("in-batch", context)
    assert whole - rest == dict.fromkeys(whole, 1)
    assert beside["seconds"].keys() == alone["seconds"].keys()
    assert beside["seconds"]["evaluate"] > 4 * 0.1  # what the first run took counts for both
    for name in ("metrics", "mistakes", "baselines", "regime", "regime_by_refresh"):
        assert beside[name] == alone[name], name
    _, of_another_setting = compute("in-batch", context, "mining.exclude_relevant=true")
    assert of_another_setting == whole  # another setting, another card


@pytest.mark.parametrize("strategy", ["qure", "in-batch"])
def test_the_cards_are_of_the_model_as_it_is(strategy, vector_sets, tmp_path):
    finished = run(config_of(vector_sets, strategy, "schedule.refresh_epochs=[2]"), tmp_path)
    result = finished.folder.result
    epochs = [0, 2] if strategy == "qure" else [0, 1, 2, 3]
    assert [card["epoch"] for card in result["regime_by_refresh"]] == epochs
    assert result["regime"]["epoch"] == 4
    options = Audit(queries=0)
    subject = open_split(resolve(finished.folder.config), "train", Display(), finished.folder)
    ended = audit(subject, {"all": make_strategy("all-corpus")}, options)
    assert list(ended.regime) == FIELDS
    for name, value in ended.regime.items():
        assert result["regime"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    points = [point for point in finished.folder.metrics() if "regime/images" in point]
    assert [point["epoch"] for point in points] == [*epochs, 4]
    for point, card in zip(points, [*result["regime_by_refresh"], result["regime"]], strict=True):
        want = {f"regime/{name}": card[name] for name in FIELDS}
        assert {name: point.get(name) for name in want} == want, f"epoch {point['epoch']}"
    want = {f"regime_end/{name}": result["regime"][name] for name in FIELDS}
    at_end = final_values(result)
    assert {name: at_end[name] for name in want} == want
    ranks = {card["target_rank_median"] for card in result["regime_by_refresh"]}
    assert len(ranks | {result["regime"]["target_rank_median"]}) > 1


def test_val_is_ranked_by_the_model_of_the_card_however_often_it_is_scored(vector_sets, tmp_path):
    def cards_of(every: int) -> list[dict[str, float]]:
        result = run(config_of(vector_sets, "in-batch", f"eval.every={every}"), tmp_path).folder.result
        return [*result["regime_by_refresh"], result["regime"]]

    cards = cards_of(1)
    assert cards_of(2) == cards
    assert len({card["recall_val"] for card in cards}) > 1
    for card in cards:
        assert card["fit_gap"] == card["recall_train"] - card["recall_val"], f"epoch {card['epoch']}"


# --- remarks on made-up states: each appears when it should and not a step earlier ------------------------------------


def remarks(vector_sets: list[str], loss: str = "bradley-terry", **state: Any) -> list[str]:
    config = resolve(config_of(vector_sets, "qure"))
    return remarks_of(config, registry.make("losses", loss), State(**state), queries=100)


def losses(*values: float) -> list[dict[str, float]]:
    return [{"epoch": float(epoch), "train/loss": value} for epoch, value in enumerate(values)]


def test_nothing_is_said_of_a_healthy_run(vector_sets):
    behaviour = [{"epoch": 1.0, "stale": 0.0, "fallback_below": 4.0, "fallback_any": 6.0}]
    points = [*losses(0.69, 0.6, 0.5, 0.4), {"epoch": 3.0, "val/query_concentration": 0.97}]
    assert remarks(vector_sets, behaviour=behaviour, points=points) == []


def test_fallbacks_stale_pools_and_ties(subtests, vector_sets):
    rows = [
        {"epoch": 1.0, "stale": 0.0, "fallback_below": 5.0, "fallback_any": 6.0, "copies": 7.0},
        {"epoch": 3.0, "copies": 7.0, "stale": 1.0, "fallback_below": math.nan, "cut_ties": 1200.0},
        {"epoch": 5.0, "cut_ties": 3.0},
    ]
    copies, *others = remarks(vector_sets, behaviour=rows)
    assert copies.startswith("7 of 100 targets have the same embedding as another image, which may be drawn: leave")
    assert others == [
        "epoch 1: 11% of the queries had an empty pool and drew from a fallback",
        "epoch 3: the refresh changed no pool",
        "1,203 pools cut a tie: of images with one score they hold those first in the corpus",
    ]
    for kind in ("fallback_below", "fallback_any"):  # the other kind counts 0
        with subtests.test(kind=kind):
            assert len(remarks(vector_sets, behaviour=[{"epoch": 1.0, kind: 10.0}])) == 0
            assert len(remarks(vector_sets, behaviour=[{"epoch": 1.0, kind: 11.0}])) == 1


def test_draws_that_repeat_are_counted(vector_sets):
    (line,) = remarks(vector_sets, behaviour=[{"epoch": 1.0, "distinct": 0.98}, {"epoch": 2.0, "distinct": 0.4}])
    assert line.startswith("draws repeat: of 1 negatives per query and step 0.4 are different images, as pools are")
    assert remarks(vector_sets, behaviour=[{"epoch": 1.0, "distinct": 0.99}]) == []


def test_collapsed_embeddings_once(vector_sets):
    points = [{"epoch": float(e), "val/query_concentration": v} for e, v in ((0, 0.9), (1, 0.99), (2, 1.0))]
    assert remarks(vector_sets, points=points) == ["epoch 2: collapsed, all queries point the same way (0.990)"]


@pytest.mark.parametrize(("loss", "level"), [("bradley-terry", math.log(2)), ("triplet", 0.2)])
def test_a_loss_that_stays_where_all_scores_are_equal(vector_sets, loss, level):
    """With one negative, equal scores give log 2 (logistic losses) or the margin (hinge): the remark appears there."""
    pinned = [level * 1.5, level * 1.1, level * 1.005, level * 0.995]
    (line,) = remarks(vector_sets, loss, points=losses(*pinned))
    assert line.startswith(f"the loss stays at {level:.3f}")
    assert remarks(vector_sets, loss, points=losses(*pinned[:3], level * 0.98)) == []
    assert remarks(vector_sets, loss, points=losses(*pinned[:2], level * 1.1, level)) == []  # two at least
    assert remarks(vector_sets, loss, points=losses(level, level, level)) == []  # too short to tell
    assert remarks(vector_sets, loss, points=losses(0.0, 0.0, 0.0, 0.0)) == []
    assert len(remarks(vector_sets, loss, points=losses(*[level * 1.1] * 9, level, level, level))) == 1  # a quarter


def test_the_end_of_a_run_prints_them(vector_sets, tmp_path, run_command):
    """The remark on unchanged pools is printed for a model that does not move, also when its run is reused."""
    sets = flags_of([*vector_sets, "train.lr=1e-12", "schedule.n_def=null", "schedule.refresh_epochs=[1,2]"])
    command = ["run", "--strategy", "after-target", *sets, "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    for number in range(2):  # the second call reuses the run
        assert "note: epoch 2: the refresh changed no pool" in run_command(*command).err.splitlines(), f"start {number}"
