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


def planned(runs: Path, *sets: str, **given: Any) -> list[ResolvedConfig]:
    asked = Compare(sets=(*SMALL, *sets), **{**WORLD, **given})
    return [cell.config for cell in plan_comparison(with_recipe(asked), runs).cells]


def test_a_setting_reaches_every_value_and_a_values_own_option_wins(tmp_path):
    both = planned(tmp_path, "loss.tau=0.01", losses="bradley-terry,info-nce:tau=0.2")
    assert [(each.loss.name, each.loss.options["tau"]) for each in both] == [("bradley-terry", 0.01), ("info-nce", 0.2)]
    pools = planned(tmp_path, "strategy.k=5", strategies=[{"name": "top-k"}, {"name": "after-target", "k": 7}])
    assert [each.strategy.options["k"] for each in pools] == [5, 7]
    towers = planned(tmp_path, "backbone.tokens=2", backbones="vectors,vectors:dim=16")
    assert [(each.backbone.options["tokens"], each.backbone.options["dim"]) for each in towers] == [(2, 64), (2, 16)]
    worlds = planned(tmp_path, datasets="vectors:twins=2,vectors:twins=4")
    assert {each.dataset.options["train_images"] for each in worlds} == {60}
    assert [each.loss.name for each in planned(tmp_path, "loss=info-nce")] == ["info-nce"]  # no axis: it names the one


def test_a_recipes_section_reaches_the_values_of_its_own_axis(subtests, tmp_path):
    recipe = tmp_path / "r.toml"
    table = '[compare]\nlosses = ["bradley-terry", "info-nce"]\n'
    for head, want in (("", [0.1, 0.1]), ('name = "info-nce"\n', [None, 0.1])):  # a name keeps its options to itself
        with subtests.test(head=head):
            recipe.write_text(f"[loss]\n{head}tau = 0.1\n{table}", encoding="utf-8")
            assert [each.loss.options["tau"] for each in planned(tmp_path, recipe=recipe)] == want
    recipe.write_text("[loss]\ntau = 0.1\n", encoding="utf-8")
    flags = {"strategy": {"name": "in-batch"}, "loss": {"name": "info-nce"}}
    assert load_config(recipe=recipe, flags=flags).loss.options == {"tau": 0.1}


def test_systems_take_what_is_set_for_their_own_parts(tmp_path):
    sets = ("strategy.variant=release", "loss.tau=0.05")
    (own,) = planned(tmp_path, *sets, systems="qure", strategies="own", backbones="vectors")
    assert (own.strategy.options["variant"], own.loss.options["tau"]) == ("release", 0.05)


def test_what_can_reach_no_value_or_not_all_is_refused(subtests, mistakes, tmp_path):
    for case in mistakes["axes"]:
        with subtests.test(case=case):
            with pytest.raises(NegbenchError) as caught:
                planned(tmp_path, *case["sets"], **case["given"])
            assert case["message"] in str(caught.value)


def test_an_audit_reads_its_strategies_alike():
    asked = Audit(dataset="vectors", backbone="vectors", sets=("strategy.k=5",))
    _, strategies, _ = configure(asked, "top-k,after-target:k=7")
    assert list(strategies) == ["top-k(k=5)", "after-target(k=7)"]
    with pytest.raises(OptionError, match="no option of qure"):
        configure(asked, "top-k,qure")


def test_two_folders_that_hold_different_worlds_are_two_data_sets(tmp_path):
    roots = [
        ensure(tmp_path, Spec(world=world, twins=2, train_images=12, train_queries=8, val_images=10, val_queries=6))
        for world in (1, 2)
    ]
    given = {**WORLD, "backbones": "tiny", "datasets": [{"name": "synthetic", "root": str(root)} for root in roots]}
    asked = Compare(sets=("train.epochs=8", "train.batch_size=4"), **given)
    labels = [cell.labels["dataset"] for cell in plan_comparison(asked, tmp_path / "runs").cells]
    assert len(set(labels)) == 2
