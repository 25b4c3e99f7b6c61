"""The search space, its options, and the settings of a study."""

import json
from pathlib import Path
from typing import Any

import pytest

from negbench.errors import NegbenchError, OptionError
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig, resolve
from negbench.settings.options import Study
from negbench.systems.system import load_config
from negbench.tuning.search import plan_study
from negbench.tuning.search_space import SearchSpace, build_space
from negbench.tuning.spec import StudySpec

# --- the space -----------------------------------------------------------------------------------------------------


def base_of(strategy: str, *sets: str) -> RunConfig:
    """Return a configuration on data without pictures, as those of the default would have to be drawn first."""
    flags = {"strategy": {"name": strategy}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    return load_config(flags=flags, sets=("train.epochs=12", *sets))


def ranges_of(space: SearchSpace) -> dict[str, Any]:
    return {searched.key: searched.choices or (searched.low, searched.high, searched.log) for searched in space.ranges}


SCHEDULE = {"schedule.n_def": (2, 3, 4, 6, 12), "schedule.warmup": (1, 4, False)}


SPACES: dict[str, dict[str, Any]] = {
    "dqe": {"strategy.alpha": (0.0, 0.4, False), "strategy.beta-alpha": (0.1, 1.0, False), **SCHEDULE},
    "qure": {"strategy.variant": ("paper", "release"), **SCHEDULE},
    "cirqrs": {"strategy.n_neg": (10, 500, True), **SCHEDULE, "schedule.n_def": (2, 3, 4, 5, 12)},
    "top-k": {"strategy.k": (10, 1000, True), **SCHEDULE},
    "shifted-top-k": {"strategy.start+1": (1, 501, True), "strategy.stop-start": (2, 1000, True), **SCHEDULE},
}


def test_the_space_of_a_strategy_and_trial_0_is_its_default(subtests):
    for strategy, expected in SPACES.items():
        with subtests.test(strategy=strategy):
            assert ranges_of(build_space(base_of(strategy))) == expected
            for epochs in (2, 4, 7, 12, 30, 50):
                with subtests.test(epochs=epochs):
                    base = base_of(strategy, f"train.epochs={epochs}")
                    space = build_space(base)
                    assert resolve(space.config(base, space.default, 0, closed=False)) == resolve(base)


def test_a_share_of_the_gallery_stays_as_it_is():
    assert ranges_of(build_space(base_of("top-k", "strategy.k=0.6%"))) == SCHEDULE
    with pytest.raises(NegbenchError, match="is not a number; set one first"):
        build_space(base_of("top-k", "strategy.k=0.6%"), search=["strategy.k=10:100"])


@pytest.mark.parametrize("epochs", [4, 7, 12, 30, 50])
def test_every_number_of_definitions_gives_another_schedule(epochs):
    choices = ranges_of(build_space(base_of("qure", f"train.epochs={epochs}")))["schedule.n_def"]
    schedules = set()
    for n_def in choices:
        config = resolve(base_of("qure", f"train.epochs={epochs}", f"schedule.n_def={n_def}"))
        schedules.add(tuple(config.schedule.refresh_epochs))
    assert len(schedules) == len(choices)
    assert 6 in choices


def test_start_and_width_become_the_band():
    base = base_of("dqe")
    space = build_space(base)

    def band(start: float, width: float) -> tuple[float, float]:
        options = space.config(base, {"strategy.alpha": start, "strategy.beta-alpha": width}, 0).strategy.options
        return options["alpha"], options["beta"]

    assert band(0.1, 0.15) == (0.1, 0.25)  # right below the target
    assert band(0.4, 0.9) == (0.4, 1.0)  # cut at the end of the field's own range
    assert set(ranges_of(build_space(base, fix=["strategy.beta"]))) == {"strategy.alpha", *SCHEDULE}


def test_a_fixed_start_leaves_the_width():
    fixed = base_of("dqe", "strategy.alpha=0.3")
    narrow = build_space(fixed, fix=["strategy.alpha"])
    assert "strategy.alpha" not in ranges_of(narrow)
    assert narrow.config(fixed, {"strategy.beta-alpha": 0.25}, 0).strategy.options["beta"] == 0.55


def test_a_default_beyond_its_range_is_the_end():
    wide = base_of("shifted-top-k", "strategy.stop=2000")
    point = {"strategy.start+1": 51, "strategy.stop-start": 3000}
    assert build_space(wide).config(wide, point, 0).strategy.options["stop"] == 2000


def test_a_window_is_searched_on_a_log_scale_from_rank_0(subtests):
    base = base_of("shifted-top-k")
    for search, start in (
        ([], {"strategy.start+1": 1}),
        (["strategy.start=0:200:log"], {"strategy.start+1": 1}),
        (["strategy.start=0|7", "strategy.stop-start=2|16"], {"strategy.start": 0}),
    ):
        with subtests.test(search=search):
            space = build_space(base, search=search)
            point = {**start, "strategy.stop-start": 2}
            options = space.config(base, point, 0).strategy.options
            assert (options["start"], options["stop"]) == (0, 2)
    assert ranges_of(build_space(base, search=["strategy.start=0:200:log"]))["strategy.start+1"] == (1, 201, True)
    assert ranges_of(build_space(base, search=["strategy.start=0:200"]))["strategy.start"] == (0, 200, False)


def test_a_window_ends_with_the_gallery():
    small = base_of("shifted-top-k", "dataset.name=vectors", "backbone.name=vectors", "dataset.train_images=200")
    space = build_space(small)
    assert ranges_of(space)["strategy.start+1"] == (1, 200, True)  # up to the last rank, 199
    assert space.config(small, {"strategy.start+1": 200, "strategy.stop-start": 2}, 0).strategy.options["start"] == 199
    assert ranges_of(build_space(base_of("shifted-top-k", 'strategy.start="1%"', 'strategy.stop="4%"'))) == SCHEDULE


def test_every_strategys_own_range_makes_strategies():
    """Strategies accept every searched option at its ends and a third of the way between; integers stay integers."""
    for name in registry.plugins("strategies"):
        base = base_of(name)
        try:
            space = build_space(base)
        except NegbenchError as error:
            assert "nothing left to tune" in str(error), name  # noqa: PT017
            continue
        for searched in space.ranges:
            if searched.choices:
                assert searched.default in searched.choices, name
                continue
            assert type(searched.low) is type(searched.high) is type(searched.default), name
            between = type(searched.low)(searched.low + (searched.high - searched.low) / 3)
            for value in (searched.low, between, searched.high):
                config = space.config(base, {**space.default, searched.key: value}, 0)
                registry.make("strategies", name, **config.strategy.options)


def test_ranges_from_the_command_line():
    space = build_space(
        base_of("dqe"),
        search=["strategy.alpha=0:0.5", "schedule.warmup=1|2", "train.lr=1e-4:1e-2:log"],
        fix=["schedule.n_def"],
    )
    ranges = ranges_of(space)
    assert ranges["strategy.alpha"] == (0.0, 0.5, False)
    assert ranges["schedule.warmup"] == (1, 2)
    assert ranges["train.lr"] == (1e-4, 1e-2, True)
    assert "schedule.n_def" not in ranges
    assert isinstance(space.ranges[0].low, float)


def test_ranges_that_cannot_be(subtests, mistakes):
    base = base_of("dqe")
    assert build_space(base, search=["strategy.alpha=0.3:0.4"]).default["strategy.alpha"] == 0.3  # the nearest end
    with pytest.raises(OptionError, match="has nothing left to tune"):
        build_space(base_of("in-batch"))
    for search, message in mistakes["search"].items():
        with subtests.test(search=search):
            with pytest.raises(NegbenchError, match=message) as error:
                build_space(base, search=[search])
            assert "\n" not in str(error.value)


def test_what_is_fixed_keeps_its_value_and_is_not_searched():
    plan = plan_study(Study(strategy="dqe", sets=("strategy.beta=0.7",), fix=("strategy.beta", "schedule.n_def")))
    assert plan.job.spec.config.strategy.options["beta"] == 0.7
    assert set(ranges_of(plan.job.spec.space)) == {"strategy.alpha", "schedule.warmup"}


def test_a_grid_lists_every_combination_once_and_the_default_first():
    base = base_of("qure")
    points = build_space(base, search=["strategy.variant=release|paper", "train.num_negatives=1|3"], grid=True).grid()
    assert points[0] == {"strategy.variant": "paper", "train.num_negatives": 1}
    assert len(points) == len({json.dumps(point) for point in points}) == 4
    with pytest.raises(OptionError, match=r"a grid needs listed values for strategy\.alpha"):
        build_space(base_of("dqe"), search=["strategy.alpha=0:1"], grid=True)
    with pytest.raises(OptionError, match="nothing left to tune"):
        build_space(base, grid=True)


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_spec_survives_json(subtests):
    base = base_of("dqe")
    for space in (build_space(base), build_space(base, search=["strategy.alpha=0.2|0.3"], grid=True)):
        with subtests.test(space=space):
            spec = StudySpec.of(base, space, seeds=2)
            read = StudySpec.load(json.loads(json.dumps(spec.dump())))
            assert read == spec
            assert [type(r.low) for r in read.space.ranges] == [type(r.low) for r in space.ranges]
            assert list(spec.dump()["space"]) == ["knobs"]  # as earlier versions stored it


def recipe_of(folder: Path, text: str) -> Path:
    path = folder / "r.toml"
    path.write_text(text)
    return path


def test_recipes_are_overridden_by_flags(tmp_path):
    table = '[study]\nseeds = 3\nfix = ["schedule.n_def"]\ntrials = 5\n'
    recipe = recipe_of(tmp_path, f'[strategy]\nname = "dqe"\n[schedule]\nn_def = 3\n{table}')
    plan = plan_study(Study(trials=9, recipe=recipe))
    spec = plan.job.spec
    assert (plan.job.trials, spec.seeds, plan.fresh) == (9, (0, 1, 2), (3, 4, 5))
    assert spec.config.schedule.n_def == 3
    assert "schedule.n_def" not in ranges_of(spec.space)
    assert spec.config.eval.dev_fraction == 0.2
    text = '[strategy]\nname = "qure"\n[study]\nsampler = "grid"\nsearch = ["schedule.n_def=3|6"]\n'
    job = plan_study(Study(recipe=recipe_of(tmp_path, text))).job
    assert (job.trials, job.spec.sampler, job.spec.pruner) == (2, "grid", "none")


def test_values_of_the_wrong_type_are_one_line(tmp_path, expect_error, mistakes, subtests):
    """In recipes and flags, values of wrong types end the command with code 2 and one line."""
    for text, message in mistakes["study-recipe"].items():
        with subtests.test(text=text):
            expect_error(["study", "--strategy", "dqe", "--recipe", str(recipe_of(tmp_path, text))], message)
    for flags, message in mistakes["study"].items():
        with subtests.test(flags):
            expect_error(["study", "--strategy", "dqe", *flags.split(), "--runs-dir", str(tmp_path)], message)


def test_a_closed_val_cannot_be_selected_on():
    with pytest.raises(OptionError, match="selects on the reported split"):
        resolve(base_of("qure", "eval.reported=false", "eval.select=val"))
