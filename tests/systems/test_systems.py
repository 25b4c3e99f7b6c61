"""Systems: what each consists of, one base for all, and what a backbone or a data set does not support."""

from typing import Any

import pytest

from negbench.cli.main import run as negbench
from negbench.errors import UnknownNameError
from negbench.loop.runs import DATA
from negbench.settings.config import build_config, resolve
from negbench.settings.layers import plugin_section
from negbench.systems.system import FACTORS, PLAIN, load_config, systems, with_system

NAMES = (PLAIN, "cirqrs", "clip4cir", "dqe", "hycole", "qure", "sprc")  # tests/test_recipes.py has the papers' settings


def test_all_systems_are_named_here():
    assert tuple(systems()) == NAMES


def test_the_plain_system_is_info_nce_over_the_batch(toy_root):
    base = [{"dataset": {"name": "synthetic", "root": str(toy_root)}}]
    layer, remarks = with_system([*base, {"system": PLAIN}], DATA)
    flat = resolve(build_config([layer, *base])).flat()
    assert (flat["strategy.name"], flat["loss.name"], flat["train.num_negatives"]) == ("in-batch", "info-nce", None)
    assert list(remarks) == []


def test_what_cannot_be_carried_is_said(subtests, vector_sets):
    from negbench.settings.layers import set_layer

    base = [*map(set_layer, vector_sets)]
    for name, words in (("dqe", ["attribute weights"]), ("hycole", ["text composition", "matching", "added", "fine"])):
        with subtests.test(name=name):
            layer, remarks = with_system([*base, {"system": name}], DATA)
            assert len(remarks) == len(words)
            for word, remark in zip(words, remarks, strict=True):
                assert word in remark, remark
                assert "\n" not in remark, remark
            fusion = build_config([layer, *base]).backbone.options.get("fusion")
            assert fusion == layer.get("backbone", {}).get("fusion")  # kept where a layer above names the backbone
            resolve(build_config([layer, *base]))  # what is left can run


@pytest.mark.parametrize(("options", "candidates"), [({}, "corpus"), ({"frozen": False}, "batch")])
def test_dqe_takes_its_kl_over_the_batch_where_the_image_tower_is_trained(options, candidates):
    base = [{"dataset": "fashioniq", "backbone": {"name": "clip", **options}}]
    layer, remarks = with_system([*base, {"system": "dqe"}], DATA)
    assert resolve(build_config([layer, *base])).loss.options["kl_over"] == candidates
    if candidates == "corpus":
        assert list(remarks) == []
    else:
        (remark,) = remarks
        assert remark.startswith(
            "DQE-CIR without its KL over the whole corpus (sec. 3.4, alg. 1): backbone 'clip' trains its image tower,"
        )


def settings_of(system: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return all settings of a system, or of factors of several, and what it leaves out."""
    base = {"dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    whole, remarks = with_system([base, {"system": system}], DATA)
    return resolve(build_config([whole])).flat(), remarks


def test_all_factors_of_one_system_are_the_system():
    assert settings_of(dict.fromkeys(FACTORS, "dqe")) == settings_of("dqe")
    assert settings_of({}) == settings_of("plain")


def test_each_factor_is_that_of_the_system_named_for_it(subtests):
    plain, _ = settings_of("plain")
    dqe, _ = settings_of("dqe")
    keys = {"negatives": "strategy.name", "objective": "loss.name", "architecture": "backbone.attribute_weights"}
    for factor, key in keys.items():
        with subtests.test(factor=factor):
            mixed, _ = settings_of({factor: "dqe"})
            assert plain[key] != dqe[key]
            assert {name: mixed[name] for name in keys.values()} == {
                **{name: plain[name] for name in keys.values()},
                key: dqe[key],
            }


def test_an_architecture_has_the_head_of_its_system():
    settings, _ = settings_of({"architecture": "hycole", "negatives": "qure"})
    assert settings["backbone.fusion"] == "gated"


def test_parts_that_were_not_asked_for_are_not_missed():
    _, remarks = settings_of({"negatives": "hycole"})
    assert remarks == ()


@pytest.mark.parametrize(
    ("factors", "message"),
    [({"loss": "qure"}, "unknown factor of a system 'loss'"), ({"negatives": "x"}, "unknown system")],
)
def test_unknown_factors_and_systems_are_named(factors, message):
    with pytest.raises(UnknownNameError, match=message):
        settings_of(factors)


@pytest.mark.parametrize("name", NAMES)
def test_every_system_starts_from_one_base(name):
    base = [{"dataset": "vectors", "backbone": {"name": "vectors", "dim": 16}}]
    layer, _ = with_system([*base, {"system": name}], DATA)
    options = resolve(build_config([layer, *base])).backbone.options
    fusion = "gated" if name == "hycole" else "sum"
    weights = name == "dqe"
    assert (options["dim"], options["fusion"], options["hidden"]) == (16, fusion, 0)
    assert options["attribute_weights"] is weights
    other = "sum" if fusion == "gated" else "gated"
    flags = {"dataset": "vectors", "backbone": {"name": "vectors", "fusion": other, "hidden": 8}}  # they override it
    whole, _ = with_system([{"system": name}, flags], DATA)
    assert (whole["backbone"]["fusion"], whole["backbone"]["hidden"]) == (other, 8)


def test_a_run_of_a_system_says_what_it_leaves_out(vector_flags, tmp_path, run_command):
    printed = run_command("run", "--system", "dqe", "--runs-dir", tmp_path, "--tracking-uri", "none", *vector_flags).err
    assert "note: DQE-CIR without its attribute weights (eq. 1, 7)" in " ".join(printed.split())
    assert len(list(tmp_path.glob("dqe-margin-kl-*"))) == 1


def test_list_shows_them(run_command):
    assert '{ fusion = "gated" }' in run_command("list", "systems", "hycole").out
    assert negbench(["list", "systems", "nosuch"]) == 2


def test_the_strategies_of_the_papers_are_there():
    """`cir` names the papers' own strategies and their opponents, the negatives of all systems among them."""
    from negbench.grid.axes import CIR, plugin_sections
    from negbench.plugins.registry import registry
    from negbench.systems.system import systems

    assert set(CIR) <= set(registry.plugins("strategies"))
    assert {system.negatives["strategy"]["name"] for system in systems().values()} <= set(CIR)
    assert [section["name"] for section in plugin_sections("strategies", "cir")] == list(CIR)
    assert len(plugin_sections("strategies", "all")) > len(CIR)


@pytest.mark.parametrize(
    ("options", "replacement"),
    [
        ({}, True),
        ({"strategy": {"variant": "paper"}}, True),
        ({"strategy": {"variant": "release"}}, False),
        ({"strategy": {"name": "qure", "variant": "release"}}, False),
        ({"strategy": {"name": "simans", "variant": "release"}}, True),  # another strategy's variant
        ({"strategy": {"variant": "release"}, "mining": {"replacement": True}}, True),  # what is given wins
    ],
    ids=["default", "paper", "release", "named", "another", "given"],
)
def test_a_released_variant_brings_what_else_the_release_does(options, replacement):
    layer, _ = with_system([{"system": "qure"}, options], DATA)
    assert build_config([layer]).mining.replacement == replacement


@pytest.mark.parametrize(
    ("strategy", "replacement", "lines"),
    [("qure:variant=release", "true", 1), ("qure:variant=release", "false", 0), ("qure", "true", 0)],
)
def test_a_variant_without_its_system_is_remarked_on(strategy, replacement, lines):
    notes: list[str] = []
    flags = {"strategy": plugin_section("strategies", strategy)}
    load_config(flags=flags, sets=[f"mining.replacement={replacement}"], note=notes.append)
    line = "qure:variant=release with mining.replacement=true: that variant goes with --set mining.replacement=false, "
    assert notes == [line + "as --system qure sets it"] * lines


def test_baselines_bring_their_optimiser_and_say_what_they_leave_out(vector_sets):
    """Of data with one caption a query, and a backbone whose tower is given: lines; the rest is as published."""
    from negbench.settings.layers import set_layer

    base = [*map(set_layer, vector_sets)]
    for name, settings, reasons in (
        ("sprc", {"beta2": 0.98, "lr_schedule": "one-cycle"}, ["keeps no two captions", "has no option pooling"]),
        ("clip4cir", {"beta2": 0.999, "lr_schedule": "cosine"}, ["keeps no two captions", "has no option frozen"]),
    ):
        layer, remarks = with_system([*base, {"system": name}], DATA)
        train = resolve(build_config([layer, *base])).train.model_dump()
        assert train.items() >= {"eps": 1e-7, "drop_last": True, "vary_captions": False, **settings}.items(), name
        for reason, remark in zip(reasons, remarks, strict=True):
            assert reason in remark, name
    world = [{"dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}]
    layer, _ = with_system([*world, {"system": "sprc"}], DATA)
    assert build_config([layer, *world]).train.vary_captions
