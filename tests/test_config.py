"""Precedence, unknown keys, resolution, schedules, identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from negbench.config import (
    RunConfig,
    ScheduleConfig,
    build_config,
    config_hash,
    load_config,
    parse_set,
    refresh_epochs,
    resolved,
)
from negbench.errors import NegbenchError, OptionError, UnknownNameError


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text('[strategy]\nname = "cirqrs"\nn_neg = 7\n[train]\nepochs = 9\nlr = 0.5\n', encoding="utf-8")
    return path


def test_default_then_recipe_then_flag_then_set(recipe: Path) -> None:
    assert RunConfig.model_validate({"strategy": {"name": "qure"}}).train.num_negatives is None
    from_recipe = load_config(recipe=recipe)
    assert (from_recipe.train.epochs, from_recipe.train.lr, from_recipe.strategy.options) == (9, 0.5, {"n_neg": 7})
    flagged = load_config(recipe=recipe, flags={"train": {"epochs": 5, "lr": None}})
    assert (flagged.train.epochs, flagged.train.lr) == (5, 0.5)
    both = load_config(recipe=recipe, flags={"train": {"epochs": 5}}, sets=["train.epochs=3", "strategy.n_neg=8"])
    assert both.train.epochs == 3
    assert both.strategy.options == {"n_neg": 8}


def test_naming_another_plugin_drops_the_recipes_options(recipe: Path) -> None:
    assert load_config(recipe=recipe, flags={"strategy": {"name": "qure"}}).strategy.options == {}
    assert load_config(recipe=recipe, flags={"strategy": {"name": "cirqrs"}}).strategy.options == {"n_neg": 7}


def test_an_option_alone_keeps_the_default_plugin() -> None:
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=["backbone.fusion='sum'"])
    assert (config.backbone.name, config.backbone.options) == ("tiny", {"fusion": "sum"})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("train.epochs=3", (["train", "epochs"], 3)),
        ("strategy.variant=release", (["strategy", "variant"], "release")),
        ("strategy.variant='release'", (["strategy", "variant"], "release")),
        ("schedule.refresh_epochs=[1, 2]", (["schedule", "refresh_epochs"], [1, 2])),
        ("mining.exclude_relevant=true", (["mining", "exclude_relevant"], True)),
        ("dataset.root=/a/b=c", (["dataset", "root"], "/a/b=c")),
        ("seed=4", (["seed"], 4)),
    ],
)
def test_set_values(text: str, want: tuple[list[str], object]) -> None:
    assert parse_set(text) == want


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["train.epoch=3"], "unknown key 'train.epoch': did you mean 'train.epochs'?"),
        (["trian.epochs=3"], "unknown section 'trian': did you mean 'train'?"),
        (["train.epochs=0"], "train.epochs = 0: input should be greater than or equal to 1"),
        (["train.epochs=many"], "train.epochs = 'many': input should be a valid integer"),
        (["train=3"], "train = 3: is a section; set one of its keys, e.g. train.KEY=value"),
        (["train.epochs"], "--set 'train.epochs': want section.key=value, e.g. --set train.epochs=12"),
        (["a.b.c=3"], "--set 'a.b.c=3': want section.key=value, e.g. --set train.epochs=12"),
        (["train.precision=fp8"], "train.precision = 'fp8': input should be 'auto', 'fp32', 'bf16' or 'fp16'"),
    ],
)
def test_mistakes_are_one_line(sets: list[str], message: str) -> None:
    with pytest.raises(NegbenchError) as error:
        load_config(flags={"strategy": {"name": "qure"}}, sets=sets)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_strategy() -> None:
    with pytest.raises(NegbenchError, match="no strategy is named"):
        load_config()


@pytest.mark.parametrize(
    ("content", "message"), [(b"[train\n", "not a TOML file"), (b"\xff\xfe", "not a TOML file"), (None, "No such file")]
)
def test_bad_recipe(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NegbenchError, match=message):
        load_config(recipe=path)


@pytest.mark.parametrize(
    ("sets", "error", "message"),
    [
        (
            ["strategy.varaint=paper"],
            UnknownNameError,
            "unknown option 'varaint' in strategy 'qure': did you mean 'variant'",
        ),
        (["strategy.variant=both"], OptionError, "strategy.variant = 'both'"),
        (["backbone.seed=3"], OptionError, "backbone.seed is set by the run itself"),
        (["dataset.split=test"], OptionError, "dataset.split is set by the run itself"),
        (["loss.tau=-1"], OptionError, "tau must be > 0"),
        (["schedule.refresh_epochs=[3, 2]"], OptionError, "must rise"),
    ],
)
def test_resolution_checks_plugins(sets: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("[", r"\[")):
        resolved(load_config(flags={"strategy": {"name": "qure"}}, sets=sets))


def test_resolution_writes_every_default_out_and_is_idempotent() -> None:
    full = resolved(load_config(flags={"strategy": {"name": "cirqrs"}}, sets=["train.epochs=10"]))
    assert full.strategy.options == {"n_neg": 50}
    assert full.schedule.n_def == 5
    assert full.schedule.refresh_epochs == (2, 4, 6, 8)
    assert full.train.batch_size is not None
    assert full.train.lr is not None
    assert resolved(full) == full


# QuRe's table and the released schedules (field-notes 0.2); the rule with an explicit warm-up starts there
@pytest.mark.parametrize(
    ("epochs", "n_def", "warmup", "want"),
    [
        (30, 6, None, [5, 10, 15, 20, 25]),
        (50, 6, None, [8, 16, 24, 32, 40, 48]),
        (30, 5, None, [6, 12, 18, 24]),
        (3, 6, None, [1, 2]),
        (30, 1, None, []),
        (12, 6, 1, [1, 3, 5, 7, 9, 11]),
        (12, 6, 0, [0, 2, 4, 6, 8, 10]),
        (12, 3, 6, [6, 10]),
    ],
)
def test_refresh_epochs(epochs: int, n_def: int, warmup: int | None, want: list[int]) -> None:
    assert refresh_epochs(epochs, n_def, ScheduleConfig(warmup=warmup)) == want


def test_pools_that_do_not_depend_on_scores_are_never_redefined() -> None:
    for strategy in ("all-corpus", "in-batch", "hycole", "oracle-all"):
        full = resolved(load_config(flags={"strategy": {"name": strategy}}, sets=["schedule.n_def=6"]))
        assert full.schedule.refresh_epochs == ((0,) if strategy in ("all-corpus", "oracle-all") else ())
        assert full == resolved(load_config(flags={"strategy": {"name": strategy}}))


def test_explicit_refresh_epochs_win() -> None:
    assert refresh_epochs(9, 3, ScheduleConfig(refresh_epochs=(0, 7), warmup=1)) == [0, 7]
    with pytest.raises(OptionError, match=r"within 0\.\.8"):
        refresh_epochs(9, 3, ScheduleConfig(refresh_epochs=(9,)))


def test_the_hash_is_of_what_determines_the_outcome() -> None:
    base = resolved(build_config([{"strategy": "qure"}]))

    def hash_of(*layers: dict[str, object], data: str = "d") -> str:
        return config_hash(resolved(build_config([{"strategy": "qure"}, *layers])), data=data)

    same = config_hash(base, data="d")
    assert hash_of() == same
    assert hash_of({"strategy": {"name": "qure", "variant": "paper"}}) == same  # the default, spelt out
    assert hash_of({"compute": {"workers": 3}}) == same
    assert hash_of({"dataset": {"root": "elsewhere"}}) == same  # the data's identity stands for its place
    for other in ({"seed": 1}, {"train": {"epochs": 3}}, {"strategy": {"variant": "release"}}, {"loss": "info-nce"}):
        assert hash_of(other) != same
    assert hash_of(data="e") != same


def test_negatives_per_query_are_one_of_a_pool_and_all_of_a_batch() -> None:
    for strategy, sets, wanted in (
        ("qure", [], 1),
        ("in-batch", [], None),
        ("qure", ["train.num_negatives=3"], 3),
        ("in-batch", ["train.num_negatives=3"], 3),
    ):
        config = load_config(flags={"strategy": {"name": strategy}}, sets=sets)
        assert resolved(config).train.num_negatives == wanted


def test_none_undoes_what_a_recipe_sets() -> None:
    sets = ["strategy.k=none", "schedule.warmup=3", "schedule.warmup=none"]
    config = resolved(load_config(flags={"strategy": {"name": "in-batch-cube"}}, sets=sets))
    assert config.strategy.options == {"k": None}
    assert config.schedule.warmup is None
