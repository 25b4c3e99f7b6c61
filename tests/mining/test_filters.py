"""Filters against loops: what they drop in the corpus and in a batch, for any strategy, and their effect on a run."""

import math

import pytest
import torch

from negbench.api import make_loss, make_strategy
from negbench.contracts import ScoreView
from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.loop.mining_task import mining_task
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import plan_run
from negbench.loop.training_calls import TrainingCalls
from negbench.mining.filters import Filters
from negbench.settings.config import MiningConfig, resolve
from negbench.testing.worlds import toy_view, toy_views
from tests.mining.test_mining import run, scored_task
from tests.runs import config_of, untrained

SETTINGS = [
    {"margin": 0.25},
    {"margin": -0.25},
    {"relative_margin": 0.5},
    {"guide_margin": 0.0},
    {"guide_margin": 0.3, "margin": 0.1},
    {"max_judge": 0.2},
    {"max_target": 0.1, "max_reference": -0.2},
]


def dropped(view: ScoreView, row: int, column: int, settings: dict[str, float]) -> bool:
    """Tell whether the rules, as the configuration states them, drop one image of one query."""
    score, positive = float(view.scores[row, column]), float(view.positive[row])

    def plane(name: str, at: int = column) -> float:
        return float(view.planes[name][row, at])

    rules = {
        "margin": lambda m: score > positive - m,
        "relative_margin": lambda m: score > positive - m * abs(positive),
        "guide_margin": lambda m: plane("guide") > plane("guide", int(view.target[row])) - m,
        "max_judge": lambda m: plane("judge") > m,
        "max_target": lambda m: plane("target") > m,
        "max_reference": lambda m: plane("reference") > m,
    }
    return any(rules[name](value) for name, value in settings.items())


def test_filters_against_loops(subtests):
    for settings in SETTINGS:
        with subtests.test(settings=settings):
            filters = Filters.of(MiningConfig.model_validate(settings))
            assert filters.active
            some = 0
            for number, view in enumerate(toy_views()):
                keep = filters.keep(view)
                want = [[not dropped(view, i, j, settings) for j in range(view.scores.shape[1])] for i in range(6)]
                assert keep.tolist() == want, f"view {number}"
                some += int((~keep).sum())
            assert some
            assert set(filters.reads) <= {"guide", "judge", "target", "reference"}


def test_what_nobody_scored_is_not_dropped():
    view = toy_view(4, 6)
    hole = torch.full_like(view.scores, math.nan)
    blind = ScoreView(view.scores, view.target, planes={"guide": hole, "judge": hole})
    assert Filters(guide_margin=0.0, max_judge=-1.0).keep(blind).all()
    assert not Filters().active


def test_every_strategy_draws_from_what_is_left(subtests):
    """s+ = 0.5, margin 0.2: 0.45 and 0.6 are dropped, so that the hardest two are 0.25 and -0.1."""
    task = scored_task([[0.5, 0.45, 0.6, 0.25, -0.1, -0.8]], [0], filters=Filters(margin=0.2))
    for name, want in (("top-k", {3, 4}), ("after-target", {3, 4}), ("all-corpus", {3, 4, 5})):
        with subtests.test(name=name):
            mined = run(task, make_strategy(name, **({} if name == "all-corpus" else {"k": 2})), draws=6)
            assert set(mined.negatives[0].tolist()) == want
            assert mined.target_rank.item() == 2  # statistics cover all allowed images: a filter hides none
            assert mined.band_start.item() == pytest.approx(2 / 4)


def test_a_batch_is_filtered_by_its_own_scores(subtests, vector_sets):
    opened = untrained(config_of(vector_sets, "in-batch"))
    opened.backbone.eval()
    rows, settings = torch.arange(0, 48, 4), {"margin": 0.1, "max_target": 0.6}
    mining = MiningConfig.model_validate(settings)
    task = mining_task(opened.backbone, opened.scene, mining, reads=("target",))
    assert task.filters == Filters(margin=0.1, max_target=0.6)
    columns = task.target[rows]
    view = ScoreView(
        torch.stack([(task.queries[r] @ task.candidates[columns].flatten(0, 1).T).view(-1, 2).amax(1) for r in rows]),
        torch.arange(len(rows)),
        opened.scene.train.allowed_images(rows, columns, MiningConfig()),
        planes={"target": task.planes["target"].block(rows, columns)},
    )
    turned = ScoreView(view.scores.T, view.target, view.allowed.T, planes={"target": view.planes["target"].T})
    there, back = (
        sum(not dropped(table, i, j, settings) for i, j in table.allowed.nonzero().tolist()) for table in (view, turned)
    )
    batch = Batch(rows, None, {k: v[rows] for k, v in opened.scene.train.tokens.items()})
    for name, count in (("in-batch", there), ("in-batch-both", there + back)):
        with subtests.test(name=name):
            parts = (TrainingCalls(opened.backbone, 0), make_strategy(name), make_loss("info-nce"), opened.scene)
            step = Objective(*parts, mining)(batch)
            assert 0 < step.negatives == count < Objective(*parts, MiningConfig())(batch).negatives


def test_a_filter_makes_any_pool_one_of_scores(vector_sets):
    """With a filter on scores, all-corpus is refreshed like other strategies."""
    assert resolve(config_of(vector_sets, "all-corpus")).schedule.refresh_epochs == (0,)
    config = config_of(vector_sets, "all-corpus", "mining.margin=0.2", "train.num_negatives=2")
    assert resolve(config).schedule.refresh_epochs == (1,)
    assert resolve(config_of(vector_sets, "all-corpus", "mining.max_judge=0.5")).schedule.refresh_epochs == (0,)
    assert resolve(config_of(vector_sets, "in-batch", "mining.margin=0.2")).schedule.refresh_epochs == ()


def test_what_is_filtered_is_part_of_what_a_run_is(vector_sets):
    assert resolve(config_of(vector_sets, "qure")).identity()["mining"] == {}
    assert resolve(config_of(vector_sets, "qure", "mining.margin=0")).identity()["mining"] == {"margin": 0.0}
    with pytest.raises(OptionError, match="a mining filter reads the plane 'guide', but the run has none"):
        plan_run(config_of(vector_sets, "qure", "mining.guide_margin=0"), DataCache())
    with pytest.raises(OptionError, match=r"mining\.relative_margin = -1"):
        config_of(vector_sets, "qure", "mining.relative_margin=-1")


def test_known_groups_are_left_out(vector_sets):
    """`exclude_subset` removes the query's own image group (CIRR) from the negatives, in the corpus and in a batch."""
    train = untrained(config_of(vector_sets, "qure")).scene.train
    data, mining = train.dataset, MiningConfig(exclude_subset=True)
    assert train.excluded(MiningConfig()) is None
    object.__setattr__(data.queries[0], "subset", (data.images[3], data.images[8], "an image of another gallery"))
    try:
        assert [train.excluded(mining).row(i).tolist() for i in (0, 1)] == [[3, 8], []]
        columns = torch.tensor([2, 3, 8, 9])
        free = train.allowed_images(torch.tensor([0, 1]), columns, MiningConfig())
        kept = train.allowed_images(torch.tensor([0, 1]), columns, mining)
        assert torch.equal(kept, free & torch.tensor([[True, False, False, True], [True] * 4]))
    finally:
        object.__setattr__(data.queries[0], "subset", ())
