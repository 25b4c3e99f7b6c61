"""What is set beside an axis reaches each of its values, or is refused."""

from pathlib import Path
from typing import Any

import pytest

from negbench.campaign.plan import plan_comparison, with_recipe
from negbench.errors import NegbenchError, OptionError
from negbench.own.scored_split import configure
from negbench.settings.command_options import Audit
from negbench.settings.config import ResolvedConfig
from negbench.settings.options import Compare
from negbench.systems.system import load_config
from negbench.worlds.synthetic import Spec, ensure

SMALL = ("dataset.train_images=60", "dataset.train_queries=64", "dataset.val_images=60", "train.epochs=8")
WORLD = {"backbones": "vectors", "datasets": "vectors", "strategies": "in-batch", "seeds": 1, "lr": "fixed"}


def plan_configs(runs: Path, *sets: str, **options: Any) -> list[ResolvedConfig]:
    compare = Compare(sets=(*SMALL, *sets), **{**WORLD, **options})
    return [cell.config for cell in plan_comparison(with_recipe(compare), runs).cells]


def test_a_setting_reaches_every_value_and_a_values_own_option_wins(tmp_path):
    first, second = plan_configs(tmp_path, "loss.tau=0.01", losses="bradley-terry,info-nce:tau=0.2")
    assert (first.loss.name, first.loss.options["tau"]) == ("bradley-terry", 0.01)
    assert (second.loss.name, second.loss.options["tau"]) == ("info-nce", 0.2)
    strategies = [{"name": "top-k"}, {"name": "after-target", "k": 7}]
    first, second = plan_configs(tmp_path, "strategy.k=5", strategies=strategies)
    assert (first.strategy.options["k"], second.strategy.options["k"]) == (5, 7)
    first, second = plan_configs(tmp_path, "backbone.tokens=2", backbones="vectors,vectors:dim=16")
    assert (first.backbone.options["tokens"], first.backbone.options["dim"]) == (2, 64)
    assert (second.backbone.options["tokens"], second.backbone.options["dim"]) == (2, 16)
    configs = plan_configs(tmp_path, datasets="vectors:twins=2,vectors:twins=4")
    assert {config.dataset.options["train_images"] for config in configs} == {60}


def test_a_setting_names_the_plugin_where_there_is_no_axis(tmp_path):
    (config,) = plan_configs(tmp_path, "loss=info-nce")
    assert config.loss.name == "info-nce"


def test_a_recipes_section_reaches_the_values_of_its_own_axis(subtests, tmp_path):
    recipe = tmp_path / "r.toml"
    table = '[compare]\nlosses = ["bradley-terry", "info-nce"]\n'
    for head, want in (("", [0.1, 0.1]), ('name = "info-nce"\n', [None, 0.1])):  # a name keeps its options to itself
        with subtests.test(head=head):
            recipe.write_text(f"[loss]\n{head}tau = 0.1\n{table}", encoding="utf-8")
            assert [config.loss.options["tau"] for config in plan_configs(tmp_path, recipe=recipe)] == want
    recipe.write_text("[loss]\ntau = 0.1\n", encoding="utf-8")
    flags = {"strategy": {"name": "in-batch"}, "loss": {"name": "info-nce"}}
    assert load_config(recipe=recipe, flags=flags).loss.options == {"tau": 0.1}


def test_systems_take_what_is_set_for_their_own_parts(tmp_path):
    sets = ("strategy.variant=release", "loss.tau=0.05")
    (config,) = plan_configs(tmp_path, *sets, systems="qure", strategies="own", backbones="vectors")
    assert (config.strategy.options["variant"], config.loss.options["tau"]) == ("release", 0.05)


def test_what_can_reach_no_value_or_not_all_is_refused(subtests, mistakes, tmp_path):
    for case in mistakes["axes"]:
        with subtests.test(case=case):
            with pytest.raises(NegbenchError) as caught:
                plan_configs(tmp_path, *case["sets"], **case["given"])
            assert case["message"] in str(caught.value)


def test_an_audit_reads_its_strategies_alike():
    options = Audit(dataset="vectors", backbone="vectors", sets=("strategy.k=5",))
    _, strategies, _ = configure(options, "top-k,after-target:k=7")
    assert list(strategies) == ["top-k(k=5)", "after-target(k=7)"]
    with pytest.raises(OptionError, match="no option of qure"):
        configure(options, "top-k,qure")


def test_two_folders_that_hold_different_worlds_are_two_data_sets(tmp_path):
    datasets = []
    for world in (1, 2):
        spec = Spec(world=world, twins=2, train_images=12, train_queries=8, val_images=10, val_queries=6)
        datasets.append({"name": "synthetic", "root": str(ensure(tmp_path, spec))})
    sets = ("train.epochs=8", "train.batch_size=4")
    options = Compare(sets=sets, **{**WORLD, "backbones": "tiny", "datasets": datasets})
    labels = [cell.labels["dataset"] for cell in plan_comparison(options, tmp_path / "runs").cells]
    assert len(set(labels)) == 2
