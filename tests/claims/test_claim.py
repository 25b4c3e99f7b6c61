"""The table of claims: all 34 are present, complete, consistent and resolvable."""

import re
from pathlib import Path

import pytest

from negbench.loop.runs import DATA
from negbench.papers.claim import Condition, all_claims, read_claims, select_claims, settings
from negbench.papers.evidence import NEEDS, lacking
from negbench.papers.measure import Measure
from negbench.papers.planning import ClaimsPlan, plan_claims
from negbench.settings.command_options import Claims
from negbench.settings.config import build_config, resolve
from negbench.systems.system import systems


def test_all_34_claims_are_there_and_fit_together():
    assert [claim.number for claim in all_claims()] == list(range(1, 35))
    names = set().union(*(claim.settings for claim in all_claims()))
    assert names == set(settings())
    assert {str(layer["system"]) for layer in settings().values()} <= set(systems())


@pytest.mark.parametrize("claim", all_claims(), ids=lambda claim: str(claim.number))
def test_a_claim_is_complete(claim):
    assert claim.words.endswith(".")
    assert claim.source
    assert claim.published
    assert claim.tests
    assert set(claim.needs) <= set(NEEDS)


@pytest.mark.parametrize("claim", all_claims(), ids=lambda claim: str(claim.number))
def test_a_claims_tests_can_be_supported_or_refuted_and_not_both(claim):
    for test in claim.tests:
        if test.statistic in ("level", "difference"):
            assert len(test.settings) == {"level": 1, "difference": 2}[test.statistic], str(test)
        assert (test.other is not None) == (test.statistic == "order"), str(test)
        below, above = sorted((test.refutes, test.supports), key=lambda side: side.above)
        assert (below.above, above.above) == (False, True), str(test)
        assert below.bound <= above.bound, f"{test}: both can hold"


@pytest.fixture(scope="module")
def plan(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> ClaimsPlan:
    """Return the plan of all claims on tiny and synthetic."""
    sets = (f"dataset.root='{toy_root}'", "train.epochs=12")
    plan = plan_claims(Claims(sets=sets, seeds=1, runs_dir=tmp_path_factory.mktemp("runs")))
    assert plan.cells  # which fill `undefined`, too
    return plan


def test_every_setting_is_planned_or_says_why_not(plan):
    assert set(plan.undefined) == {"hycole-slow", "hycole-still", "hycole-fast"}
    for name, reason in plan.undefined.items():
        assert "unknown option 'frozen' in backbone 'tiny'" in reason, name
    assert {cell.labels["system"] for cell in plan.cells} == set(settings()) - set(plan.undefined)
    assert len({cell.hash for cell in plan.cells}) == len(plan.cells)


def test_every_claim_is_planned_or_says_what_it_lacks(plan):
    assert set(plan.lacking) == {20, 21, 23, 30, 31, 33, 34}
    for number in (30, 31, 33, 34):
        assert "--dataset fashioniq" in plan.lacking[number], number
    for number in (20, 21, 23):
        assert "the target is a random one of several" in plan.lacking[number], number


def test_settings_are_resolved_with_their_own_options(plan):
    config = {cell.labels["system"]: cell.config for cell in plan.cells}
    assert config["qure"].schedule.refresh_epochs == (2, 4, 6, 8, 10)
    assert config["qure-no-warmup"].schedule.refresh_epochs == (0, 2, 4, 6, 8, 10)
    assert config["qure-3-negatives"].train.num_negatives == 3
    assert [config[name].strategy.options["n_neg"] for name in ("cirqrs", "cirqrs-largest")] == ["0.3%", "6%"]
    assert config["fixed"].schedule == config["cirqrs"].schedule
    assert config["dqe-30-70"].strategy.options == {"alpha": 0.3, "beta": 0.7, "scale": "absolute"}
    dqe = config["dqe"]
    other_objective = config["bradley-terry-objective"]
    assert (dqe.strategy, dqe.mining, dqe.train) == (
        other_objective.strategy,
        other_objective.mining,
        other_objective.train,
    )
    assert (dqe.loss.name, other_objective.loss.name) == ("margin-kl", "bradley-terry")
    assert config["in-batch"].loss.name == "info-nce"
    assert config["hycole-no-text-composition"].hybrid.alpha == 0 < config["hycole-no-text-composition"].hybrid.beta


def test_clip_can_move_slowly(toy_root, tmp_path):
    sets = ("backbone.name=clip", "backbone.init=random", "backbone.size=toy", f"dataset.root='{toy_root}'")
    plan = plan_claims(Claims(only="26,28,29", sets=sets, seeds=1, runs_dir=tmp_path))
    config = {cell.labels["system"]: cell.config.backbone.options for cell in plan.cells}
    assert [config[f"hycole-{rate}"]["gamma"] for rate in ("slow", "still", "fast")] == [0.001, 1e-12, 1.0]
    assert config["hycole-slow"]["frozen"] is False
    assert (config["hycole"]["projection"], config["hycole"]["fusion"]) == (True, "gated")
    assert config["hycole-sum"]["fusion"] == "sum"
    assert [config[name]["attribute_weights"] for name in ("dqe", "dqe-no-attributes")] == [True, False]
    assert len({cell.hash for cell in plan.cells}) == len(plan.cells) == 7
    assert plan.undefined == plan.remarks == {}


def test_a_list_stands_for_a_test_of_each(tmp_path):
    test = 'statistic = "difference", of = ["a", "b"], against = "c", measure = "recall"'
    test += ', supports = "> 0", refutes = "< 0"'
    head = 'id = 1\nwords = "w"\nsource = "s"\npublished = "p"'
    (tmp_path / "claims.toml").write_text(f"[[claim]]\n{head}\ntests = [{{ {test} }}]\n")
    (claim,) = read_claims(tmp_path / "claims.toml")
    assert [str(test) for test in claim.tests] == ["recall: a - c", "recall: b - c"]
    assert claim.settings == ("a", "c", "b")


def test_a_condition_is_above_or_below_a_number():
    with pytest.raises(ValueError, match="expected '> NUMBER'"):
        Condition.parse(">= 0")


def test_claims_are_chosen_by_number_and_measures_name_their_options():
    assert [claim.number for claim in select_claims("17, 5")] == [17, 5]  # test_command.py tests wrong numbers
    assert str(Measure("recall")) == "recall"
    assert str(Measure("false-negatives", (("band", "501-"),))) == "false-negatives (band 501-)"


def test_the_list_shows_all_claims_in_80_columns(tmp_path, run_command):
    lines = run_command("claims", "--list", "--runs-dir", str(tmp_path)).out.splitlines()
    assert max(map(len, lines)) == 80
    numbers = [int(line[2:4]) for line in lines if re.match(r"│ \d", line)]
    assert numbers == list(range(1, 35))
    assert list(tmp_path.iterdir()) == []


def test_claims_on_cirqrs_sets_suppose_that_what_lies_below_the_target_is_wrong():
    numbers = {}
    for claim in all_claims():
        for premise in claim.premises:
            if "false_negatives_below" in str(premise):
                numbers.setdefault(premise, set()).add(claim.number)
    (premise,) = numbers
    assert numbers[premise] == {5, 6, 7, 8, 24}
    assert (premise.setting, premise.holds) == ("cirqrs", Condition.parse("< 0.5"))


@pytest.mark.parametrize(("backbone", "is_lacking"), [("vectors", True), ("tiny", False)])
def test_a_sum_by_construction_says_nothing_about_gated_fusion(backbone, is_lacking):
    config = build_config([{"strategy": {"name": "hycole"}, "backbone": {"name": backbone}}])
    (claim,) = select_claims("28")
    reason = lacking(claim.needs, resolve(config), DATA)
    assert (reason is not None and "by construction" in reason) == is_lacking
