"""Configuration: precedence, unknown keys, resolution, schedules, finite and bounded numbers, plug-ins as text."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from torch import Tensor

from negbench import errors
from negbench.contracts import ScoreView, Strategy
from negbench.errors import NegbenchError, OptionError
from negbench.plugins.registry import make_options
from negbench.settings.config import ResolvedConfig, RunConfig, Section, build_config, refresh_epochs, resolve
from negbench.settings.layers import parse_plugin, parse_set
from negbench.systems.system import load_config

BOOK = tomllib.loads((Path(__file__).parent / "golden" / "settings.toml").read_text(encoding="utf-8"))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text('[strategy]\nname = "cirqrs"\nn_neg = 7\n[train]\nepochs = 9\nlr = 0.5\n', encoding="utf-8")
    return path


def test_default_then_recipe_then_flag_then_set(recipe):
    assert RunConfig.model_validate({"strategy": {"name": "qure"}}).train.num_negatives is None
    from_recipe = load_config(recipe=recipe)
    assert (from_recipe.train.epochs, from_recipe.train.lr, from_recipe.strategy.options) == (9, 0.5, {"n_neg": 7})
    flagged = load_config(recipe=recipe, flags={"train": {"epochs": 5}})
    assert (flagged.train.epochs, flagged.train.lr) == (5, 0.5)
    both = load_config(recipe=recipe, flags={"train": {"epochs": 5}}, sets=["train.epochs=3", "strategy.n_neg=8"])
    assert both.train.epochs == 3
    assert both.strategy.options == {"n_neg": 8}


def test_an_option_alone_keeps_the_default_plugin():
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=["backbone.fusion='sum'"])
    assert (config.backbone.name, config.backbone.options) == ("tiny", {"fusion": "sum"})


def test_set_values(subtests):
    for text, keys, value in BOOK["sets"]:
        with subtests.test(text=text, keys=keys):
            assert parse_set(text) == (keys.split("."), value)


def test_mistakes_are_one_line(subtests):
    long = (f"train.epochs={'9' * 5000}", f"strategy.alpha={'[' * 3000}{']' * 3000}")
    BOOK["NegbenchError"]["dqe"] |= dict.fromkeys(long, ": the value is too long or nested")
    for kind in ("NegbenchError", "UnknownNameError", "OptionError"):
        for strategy, rows in BOOK[kind].items():
            for text, message in rows.items():
                with subtests.test(strategy=strategy, text=text[:100]):
                    with pytest.raises(getattr(errors, kind)) as caught:
                        resolve(load_config(flags={"strategy": {"name": strategy}}, sets=[text]))
                    assert message in str(caught.value)
                    assert "\n" not in str(caught.value)
    for layers in (["plugins=1", "plugins=[0]"], ["plugins=[[1]]", "plugins=[[1]]"]):
        with (
            subtests.test(layers=layers),
            pytest.raises(NegbenchError, match=r"^plugins.* = \S+: input should be a valid"),
        ):
            load_config(flags={"strategy": {"name": "dqe"}}, sets=layers)
    with pytest.raises(NegbenchError, match="no strategy is named"):
        load_config()


def test_a_recipe_that_cannot_be_read_is_one_line(tmp_path, subtests):
    for content in (b"[train\n", b"\xff\xfe", f"seed = {'9' * 5000}".encode()):
        with subtests.test(content=content[:10]):
            (tmp_path / "bad.toml").write_bytes(content)
            with pytest.raises(NegbenchError, match="not a TOML file"):
                load_config(recipe=tmp_path / "bad.toml")
    with pytest.raises(NegbenchError, match="No such file"):
        load_config(recipe=tmp_path / "absent.toml")


def test_resolution_writes_every_default_out_and_is_idempotent():
    full = resolve(load_config(flags={"strategy": {"name": "cirqrs"}}, sets=["train.epochs=10"]))
    assert full.strategy.options == {"n_neg": 50}
    assert full.schedule.n_def == 5
    assert full.schedule.refresh_epochs == (2, 4, 6, 8)
    assert full.train.batch_size is not None
    assert full.train.lr is not None
    assert resolve(full) == full


def test_pools_of_one_age_shrink_at_the_same_shares_of_training():
    def schedule(epochs: int, *sets: str) -> Any:
        flags = {"strategy": {"name": "cirqrs"}, "train": {"epochs": epochs}}
        return resolve(load_config(flags=flags, sets=("schedule.refresh_every=5", *sets))).schedule

    # under cirqrs' own five definitions: 4, 8, 12, 16 and 24, 48, 72, 96
    short = schedule(20)
    long = schedule(120)
    assert (short.refresh_epochs, short.refresh_counts) == ((4, 9, 14, 19), (0, 1, 2, 3))
    assert (short.warmup, long.warmup) == (4, 24)  # the published fifth
    assert long.refresh_epochs == tuple(range(24, 120, 5))
    assert long.refresh_counts == (0,) * 5 + (1,) * 5 + (2,) * 5 + (3,) * 5
    assert schedule(20, "schedule.warmup=0").refresh_epochs == (0, 5, 10, 15)
    zone = [schedule(25, "schedule.refresh_every=1", f"strategy.name={name}") for name in ("qure", "cirqrs", "dqe")]
    assert [plan.warmup for plan in zone] == [4, 5, 4]  # a sixth, a fifth for cirqrs
    full = resolve(load_config(flags={"strategy": {"name": "cirqrs"}}, sets=("schedule.refresh_every=2",)))
    assert resolve(RunConfig.model_validate(full.model_dump())) == full  # as a stored run is read
    with pytest.raises(OptionError, match="refresh_counts must have 2 numbers"):
        schedule(20, "schedule.refresh_epochs=[4,8]", "schedule.refresh_counts=[0]")


def test_refresh_epochs(subtests):
    for rule, rows in BOOK["schedules"].items():
        for epochs, n_def, warmup, want in rows:
            with subtests.test(rule=rule, epochs=epochs, n_def=n_def, warmup=warmup):
                option = None if warmup < 0 else warmup
                assert refresh_epochs(epochs, n_def, rule=rule, warmup=option) == tuple(want)
    assert refresh_epochs(12, 5) == (2, 4, 6, 8, 10)  # the default rule


def test_the_strategy_declares_its_rule(subtests):
    for strategy, sets, want in BOOK["rules"]:
        with subtests.test(strategy=strategy, sets=sets):
            full = resolve(load_config(flags={"strategy": {"name": strategy}}, sets=["train.epochs=50", *sets]))
            assert full.schedule.refresh_epochs == tuple(want)
            assert full.schedule.warmup == want[0]


@pytest.mark.parametrize("strategy", ["all-corpus", "in-batch", "hycole", "oracle-all"])
def test_pools_that_do_not_depend_on_scores_are_never_redefined(strategy):
    full = resolve(load_config(flags={"strategy": {"name": strategy}}, sets=["schedule.n_def=6"]))
    assert full.schedule.refresh_epochs == ((0,) if strategy in ("all-corpus", "oracle-all") else ())
    assert full == resolve(load_config(flags={"strategy": {"name": strategy}}))


# --- resolved configurations are complete, numbers are finite and bounded ---------------------------------------------


def open_fields(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if type(None) in get_args(field.annotation)}


def test_a_resolved_configuration_leaves_open_only_what_none_means_something_for(subtests):
    full = resolve(build_config([{"strategy": "qure", "seed": 3}]))
    assert isinstance(full, ResolvedConfig)
    still_open = set[str]()
    for name, section in full:
        if isinstance(section, Section) and name != "mining":  # where None says that an option is off
            still_open.update(f"{name}.{field}" for field in open_fields(type(section)))
    assert still_open == {
        "train.max_grad_norm",
        "train.num_negatives",
        "train.clean_after",
        "train.lr_schedule_epochs",
        "train.temperature_least",
        "schedule.refresh_every",
        "eval.also",
        "compute.workers",
        "compute.feature_memory_gib",
    }
    assert full.eval.dev_seed == 3
    assert resolve(build_config([full.model_dump(mode="json")])) == full
    for section in (full, full.train, full.schedule):
        with subtests.test(section=type(section).__name__), pytest.raises(ValidationError, match="frozen"):
            section.seed = section.epochs = section.n_def = 3


def leaves() -> list[str]:
    """Return the keys of all numeric settings outside plug-ins."""
    keys = []
    for name, field in RunConfig.model_fields.items():
        section = field.default
        if name == "seed":
            keys.append(name)
        elif isinstance(section, Section):
            for key, inner in type(section).model_fields.items():
                if {int, float} & {inner.annotation, *get_args(inner.annotation)}:
                    keys.append(f"{name}.{key}")
    return keys


def test_numbers_are_finite(subtests):
    for key in (*leaves(), "strategy.alpha", "loss.tau", "backbone.fusion"):
        for value in ("inf", "-inf", "nan", "1e400"):
            with (
                subtests.test(key=key, value=value),
                pytest.raises(OptionError, match=rf"^{key} = .*: expected a finite number$"),
            ):
                load_config(flags={"strategy": {"name": "dqe"}}, sets=[f"{key}={value}"])


def test_an_option_that_its_plugin_does_not_check_is_finite_too(subtests):
    @dataclass(frozen=True)
    class Own(Strategy):
        rate: float = 1.0
        pair: tuple[float, ...] = ()

        def pool(self, view: ScoreView) -> Tensor:
            return view.allowed

    for value in (math.inf, -math.inf, math.nan):
        for options in ({"rate": value}, {"pair": [1.0, value]}):
            (name,) = options
            with subtests.test(options=options), pytest.raises(OptionError, match=f"strategy.{name}"):
                make_options(Own, options)
    assert make_options(Own, {"rate": 2, "pair": [3]}) == Own(rate=2.0, pair=(3.0,))


def test_counts_have_an_upper_bound_unless_memory_does_not_follow(subtests):
    load_config(flags={"strategy": {"name": "dqe"}}, sets=["eval.dev_fraction=0.9"])
    for key in set(leaves()) - {"seed", "eval.dev_seed", "eval.dev_fraction"}:
        with subtests.test(key=key):
            layers: dict[str, Any] = {"flags": {"strategy": {"name": "dqe"}}, "sets": [f"{key}={10**9}"]}
            if key in ("train.max_grad_norm", "hybrid.alpha", "hybrid.beta"):  # memory does not depend on these
                load_config(**layers)
            else:
                with pytest.raises(
                    OptionError, match=rf"^{key} = 1000000000: input should be less than (or equal to )?1?"
                ):
                    load_config(**layers)


# --- plug-ins as text -------------------------------------------------------------------------------------------------


def test_plugins_as_text(subtests):
    for text, want in BOOK["plugins"]:
        with subtests.test(text=text, want=want):
            assert parse_plugin(text) == want
    window = "shifted-top-k:start=1:stop=5"
    for wrong in (f"{window}:start=2", f"{window}:60>{window}"):
        with (
            subtests.test(wrong=wrong),
            pytest.raises(OptionError, match="start is given twice; in a switch or union, options of the parts"),
        ):
            parse_plugin(wrong)
    for wrong in ("qure:variant", "qure:", ":k=3:", "qure:name=dqe"):
        with subtests.test(wrong=wrong):
            with pytest.raises(NegbenchError) as error:
                resolve(build_config([{"strategy": parse_plugin(wrong)}]))
            assert "\n" not in str(error.value)


def test_null_undoes_what_a_recipe_sets():
    sets = ["strategy.k=null", "schedule.warmup=3", "schedule.warmup=null"]
    config = load_config(flags={"strategy": {"name": "in-batch-cube"}}, sets=sets)
    assert config.schedule.warmup is None
    assert resolve(config).strategy.options == {"k": None}


# --- the temperature at the start ------------------------------------------------------------------------------------


def config_of(*sets: str) -> RunConfig:
    return load_config(flags={"strategy": {"name": "qure"}}, sets=list(sets))


TEMPERATURES = {"backbone.temperature": 0.05, "train.temperature_rate": 10.0, "train.temperature_least": 0.02}
WORLD = ("backbone.name=vectors", "dataset.name=vectors")
OF_TERMS = ("backbone.name=clip", "dataset.name=fashioniq", "hybrid.alpha=0.4")


@pytest.mark.parametrize("option", TEMPERATURES)
@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ((*WORLD, "loss.tau=0.1"), r"loss.tau = 0.1 fixes the temperature"),
        ((*WORLD, "loss.name=triplet"), r"loss 'triplet' has no temperature"),
        ((*WORLD, "hybrid.temperature=own"), r"learn temperatures of their own"),
        (OF_TERMS, r"learn temperatures of their own"),
    ],
    ids=["fixed", "no temperature", "own", "own by the terms"],
)
def test_an_option_of_a_temperature_that_nothing_reads_is_refused(sets, reason, option):
    value = TEMPERATURES[option]
    with pytest.raises(OptionError, match=rf"^{option} = {value} would do nothing: .*{reason}.*; leave one"):
        resolve(config_of(*sets, f"{option}={value}"))


@pytest.mark.parametrize(
    "sets",
    [
        (*WORLD, "backbone.temperature=0.05"),
        (*OF_TERMS, "backbone.temperature=0.05", "hybrid.temperature=backbone"),
        (*WORLD, "backbone.temperature=0.07", "loss.tau=0.1"),  # the default
    ],
    ids=["learned", "the backbone's for all terms", "not set"],
)
def test_a_start_that_is_read_is_accepted(sets):
    assert resolve(config_of(*sets)).backbone.options["temperature"] in (0.05, 0.07)


def test_a_guide_has_no_temperature():
    with pytest.raises(OptionError, match=r"^backbone 'tiny' of a guide or judge: leave out temperature"):
        resolve(config_of("mining.guide=tiny:temperature=0.05", "mining.guide_margin=0.1"))


def test_an_option_at_its_default_stays_out_of_the_identity():
    unset = resolve(config_of(*WORLD)).identity()
    default = resolve(config_of(*WORLD, "backbone.temperature=0.07")).identity()
    other = resolve(config_of(*WORLD, "backbone.temperature=0.05")).identity()
    assert unset == default
    assert "temperature" not in unset["backbone"]
    assert other["backbone"]["temperature"] == 0.05


@pytest.mark.parametrize("value", ["0.009", "11", "nan", "warm", "true"])
def test_a_start_out_of_range_is_refused(value):
    with pytest.raises(OptionError, match=r"temperature"):
        resolve(config_of(*WORLD, f"backbone.temperature={value}"))
