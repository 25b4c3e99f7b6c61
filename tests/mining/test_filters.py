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


def is_dropped(view: ScoreView, row: int, column: int, settings: dict[str, float]) -> bool:
    """Tell whether the rules, as the configuration states them, drop one image of one query."""
    score = float(view.scores[row, column])
    positive = float(view.positive[row])

    def plane(name: str, at: int = column) -> float:
        return float(view.planes[name][row, at])

    for name, value in settings.items():
        if name == "margin":
            drops = score > positive - value
        elif name == "relative_margin":
            drops = score > positive - value * abs(positive)
        elif name == "guide_margin":
            drops = plane("guide") > plane("guide", int(view.target[row])) - value
        else:
            drops = plane(name.removeprefix("max_")) > value
        if drops:
            return True
    return False


def test_filters_against_loops(subtests):
    for settings in SETTINGS:
        with subtests.test(settings=settings):
            filters = Filters.of(MiningConfig.model_validate(settings))
            assert filters.active
            dropped = 0
            for number, view in enumerate(toy_views()):
                keep = filters.keep(view)
                for row in range(6):
                    want = [not is_dropped(view, row, column, settings) for column in range(view.scores.shape[1])]
                    assert keep[row].tolist() == want, f"view {number}, row {row}"
                assert len(keep) == 6
                dropped += int((~keep).sum())
            assert dropped > 0
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
    for name, options, want in (
        ("top-k", {"k": 2}, {3, 4}),
        ("after-target", {"k": 2}, {3, 4}),
        ("all-corpus", {}, {3, 4, 5}),
    ):
        with subtests.test(name=name):
            mined = run(task, make_strategy(name, **options), draws=6)
            assert set(mined.negatives[0].tolist()) == want
            assert mined.target_rank.item() == 2  # statistics cover all allowed images: a filter hides none
            assert mined.band_start.item() == pytest.approx(2 / 4)


def count_left(view: ScoreView, settings: dict[str, float]) -> int:
    """Count the allowed images that no rule drops."""
    count = 0
    for row, column in view.allowed.nonzero().tolist():
        if not is_dropped(view, row, column, settings):
            count += 1
    return count


def test_a_batch_is_filtered_by_its_own_scores(subtests, vector_sets):
    opened = untrained(config_of(vector_sets, "in-batch"))
    opened.backbone.eval()
    rows = torch.arange(0, 48, 4)
    settings = {"margin": 0.1, "max_target": 0.6}
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
    transposed = ScoreView(view.scores.T, view.target, view.allowed.T, planes={"target": view.planes["target"].T})
    targets = count_left(view, settings)
    queries = count_left(transposed, settings)
    batch = Batch(rows, None, {name: values[rows] for name, values in opened.scene.train.tokens.items()})
    for name, count in (("in-batch", targets), ("in-batch-both", targets + queries)):
        with subtests.test(name=name):
            parts = (TrainingCalls(opened.backbone, 0), make_strategy(name), make_loss("info-nce"), opened.scene)
            step = Objective(*parts, mining)(batch)
            assert 0 < step.negative_count == count < Objective(*parts, MiningConfig())(batch).negative_count


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
    data = train.dataset
    mining = MiningConfig(exclude_subset=True)
    assert train.excluded_columns(MiningConfig()) is None
    object.__setattr__(data.queries[0], "subset", (data.images[3], data.images[8], "an image of another gallery"))
    try:
        assert [train.excluded_columns(mining).row(i).tolist() for i in (0, 1)] == [[3, 8], []]
        columns = torch.tensor([2, 3, 8, 9])
        free = train.allowed_images(torch.tensor([0, 1]), columns, MiningConfig())
        allowed = train.allowed_images(torch.tensor([0, 1]), columns, mining)
        assert torch.equal(allowed, free & torch.tensor([[True, False, False, True], [True] * 4]))
    finally:
        object.__setattr__(data.queries[0], "subset", ())
