"""Losses compared, against sums by hand; headlines of many tables; what else an answer says of its rows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from negbench.analysis.answer import _tally
from negbench.analysis.collapse import Ends
from negbench.analysis.contrasts import CONTRAST, OF_LOSS, contrast_tables, contrast_text, temperatures
from negbench.analysis.deciding import decided_text, rules_of
from negbench.analysis.setting_choice import SettingChoice
from negbench.analysis.turns import turns
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import OVER_ALL, Rules, VerdictTable, distinct_of, join_over_all, verdicts_of
from negbench.analysis.words import shorten_names
from negbench.campaign.plan import with_recipe
from negbench.errors import UnknownNameError
from negbench.grid.axis import AXES
from negbench.grid.setting import TrialSetting
from negbench.scoring.values import Values
from negbench.settings.config import build_config
from negbench.settings.layers import parse_plugin
from negbench.settings.options import Compare
from tests.made import verdict

LABELS = {"dataset": "d", "backbone": "b"}
SEEDS = {"x": (0, 1, 2, 3), "y": (3, 2, 1), "z": (0, 1, 2)}  # of three strategies


def table(loss: str, lift: float, ends: dict[str, Ends] | None = None) -> VerdictTable:
    """Return a table whose queries differ; `lift` raises all of them, and y by half as much again."""
    difficulty = np.random.default_rng(0).uniform(0.2, 0.5, 400)
    values = {}
    for name, seeds in SEEDS.items():
        lift_of_strategy = 1.5 * lift if name == "y" else lift
        rows = [difficulty + 0.001 * seed + lift_of_strategy for seed in seeds]
        values[name] = Values(np.stack(rows), seeds, None)
    return VerdictTable({**LABELS, "loss": loss}, "m", {"m": values}, ends=ends or {})


def test_a_contrast_is_the_mean_over_shared_strategies_and_seeds():
    (contrast,) = contrast_tables([table("l1", 0.05), table("l2", 0.0)])
    assert (contrast.labels["loss"], {*contrast.values["m"]}) == (OVER_ALL, {"l1", "l2"})
    high, low = sorted(verdicts_of(contrast, Rules()), key=lambda row: -row.mean.value)
    assert (high.strategy, high.seeds, high.facts) == ("l1", 2, {CONTRAST: "loss", "strategies": 3})  # seeds 1 and 2
    assert low.behind_best.value == pytest.approx((0.05 + 0.075 + 0.05) / 3)
    assert low.standing == "worse"
    interval = f"[{100 * low.behind_best.low:.2f}, {100 * low.behind_best.high:.2f}]"
    text = f"m averaged over 3 strategies: l1 is 5.83 {interval} points above l2 (better)."
    assert contrast_text([low, high]) == text
    open_row = replace(low, standing="undecided")
    assert contrast_text([open_row, high]) == text.replace("better", "undecided")


def test_a_strategy_of_which_a_run_collapsed_is_left_out_of_a_contrast():
    collapsed = {"y": Ends(collapsed=frozenset({1}))}
    (contrast,) = contrast_tables([table("l1", 0.05), table("l2", 0.0, collapsed)])
    rows = {row.strategy: row for row in verdicts_of(contrast, Rules())}
    assert rows["l2"].behind_best.value == pytest.approx(0.05)


def test_without_two_losses_or_a_common_strategy_there_is_no_contrast():
    first = table("l1", 0.05)
    second = table("l2", 0.0)
    assert contrast_tables([first]) == []
    other = replace(second, values={"m": {"w": second.values["m"]["x"]}})
    assert contrast_tables([first, other]) == []


def trials(seed: int, gap: float) -> tuple[SettingChoice, ...]:
    """Return trials of two rates on 300 queries, of which the chosen one is ahead by about `gap`."""
    rng = np.random.default_rng(seed)

    def values(recall: float) -> Values:
        return Values((rng.random((3, 300)) < recall).astype(float), (0, 1, 2), None)

    by_rate = {TrialSetting(1.0): values(0.5), TrialSetting(3.0): values(0.5 - gap)}
    return (SettingChoice(TrialSetting(1.0), by_rate),)


def with_trials(verdict_table: VerdictTable, seed: int, gap: float) -> VerdictTable:
    """Return the table with trials by which its strategies chose their rates."""
    choices = {name: trials(seed + number, gap) for number, name in enumerate(sorted(verdict_table.values["m"]))}
    return replace(verdict_table, choices={"m": choices})


def tables_over(axis: str, gap: float) -> list[VerdictTable]:
    """Return two tables that differ in one axis, with trials."""
    tables = []
    for number, lift in enumerate((0.05, 0.0)):
        without_trials = table("l1", lift)
        labels = {**without_trials.labels, axis: f"{axis}{number}"}
        tables.append(with_trials(replace(without_trials, labels=labels), 10 * number, gap))
    return tables


OVER = {
    "losses": ("loss", contrast_tables),
    "backbones": ("backbone", contrast_tables),
    "all backbones": ("backbone", join_over_all),
    "all data sets": ("dataset", join_over_all),
}


def width(verdict_table: VerdictTable) -> float:
    """Return the width of the interval of who is behind the highest."""
    for row in verdicts_of(verdict_table, Rules()):
        if row.behind_highest is not None:
            return row.behind_highest.high - row.behind_highest.low
    raise AssertionError("no row is behind the highest")


@pytest.mark.parametrize(("axis", "join"), OVER.values(), ids=OVER)
def test_a_table_over_several_contains_the_choice_of_rates(axis, join):
    """Doubtful choices widen its intervals; choices beyond doubt leave those of given rates."""
    doubtful, *_ = join(tables_over(axis, 0.0))
    certain, *_ = join(tables_over(axis, 0.4))
    given_rates, *_ = join([replace(one, choices={}) for one in tables_over(axis, 0.0)])
    counts = {name: len(choices) for name, choices in doubtful.choices["m"].items()}
    assert counts == dict.fromkeys(doubtful.values["m"], 3 if join is contrast_tables else 2)
    assert width(certain) == pytest.approx(width(given_rates), rel=1e-3)
    assert width(doubtful) > 1.1 * width(given_rates)


def row(strategy: str, mean: float, **labels: object) -> Verdict:
    columns = {"dataset": "d", "loss": "l", "backbone": "b", "alpha": 0.05, "negatives": 1.0} | labels
    return verdict(strategy=strategy, metric="m", mean=mean, baseline="", verdict="not compared", seeds=2, **columns)


def test_many_tables_have_one_headline_and_orders_turn_along_every_axis():
    tables = [
        [row("a", 0.2, loss="l1", standing="best"), row("b", 0.1, loss="l1", beaten_by=("a",))],
        [row("a", 0.1, loss="l2", beaten_by=("b",)), row("b", 0.2, loss="l2", standing="highest")],
        [row("a", 0.3, loss="l3", standing="highest"), row("b", 0.2, loss="l3")],
    ]
    assert _tally(tables) == (
        "m in 3 tables with 3 blocks of equally many negatives: highest is a at 2 (ahead of all others at 1), "
        "b at 1 (ahead of all others at 0)."
    )
    (turn,) = turns([row for rows in tables for row in rows])
    assert turn.startswith("The order reverses: with l1 a is ahead of b; with l2 it is the other way round")
    assert "each table alone at 95 %" in turn


def batch_beside_a_rule(loss: str) -> tuple[pd.DataFrame, VerdictTable]:
    """Return the cells of the batch alone under a loss such as 'info-nce:tau=0.1', and its table."""
    section = parse_plugin(loss)
    if section["name"] == "triplet":
        divisor = "none"
    elif "tau" in section:
        divisor = "tau"
    else:
        divisor = "backbone"
    config = build_config([{"strategy": "in-batch", "loss": section, "train": {"lr": 0.01}}])
    backbone = {"details": {"temperature": 0.07}}
    stored = SimpleNamespace(config=config, manifest={"divisor": divisor, "backbone": backbone})
    labels = {**LABELS, "loss": loss}
    cells = pd.DataFrame([{**dict.fromkeys(AXES, ""), **labels, "strategy": "in-batch", "stored": stored}])
    names = ("in-batch", "in-batch+top-k")
    values = {name: Values(np.zeros((2, 4)), (0, 1), None) for name in names}
    return cells, VerdictTable(labels, "m", {"m": values}, facts={name: {"plugin": name} for name in names})


BEGUN = "learned from 0.07"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        pytest.param(["info-nce", "info-nce:tau=0.1"], [("", {BEGUN, "0.1"})], id="one loss"),
        pytest.param(["info-nce", "hcl:tau=0.1"], [], id="a temperature of another loss"),
        pytest.param(["info-nce", "triplet"], [], id="a loss without a temperature"),
        pytest.param(
            ["info-nce", "triplet", "info-nce:tau=0.1"], [("info-nce", {BEGUN, "0.1"})], id="and one with two"
        ),
        pytest.param(
            ["info-nce", "hcl", "info-nce:tau=0.1", "hcl:tau=0.2"],
            [("info-nce", {BEGUN, "0.1"}), ("hcl", {BEGUN, "0.2"})],
            id="two losses with two",
        ),
    ],
)
def test_temperatures_are_compared_within_a_loss(losses, expected):
    groups, tables = zip(*map(batch_beside_a_rule, losses), strict=True)
    compared = []
    for temperature_table in temperatures(groups, tables):
        (loss,) = {facts.get(OF_LOSS, "") for facts in temperature_table.facts.values()}
        compared.append((loss, set(temperature_table.values["m"])))
    assert compared == expected


def test_names_of_worlds_are_shortened_to_what_differs(spelled, subtests):
    for names, short in spelled["worlds"]:
        with subtests.test(names=names):
            assert list(shorten_names(names).values()) == short


def test_a_union_counts_the_members_that_are_drawn_by_no_rule():
    """61 negatives, of which the rule draws 2 that are 1 image: 60 different ones."""

    def cells(strategy: str) -> pd.DataFrame:
        config = build_config([{"strategy": strategy, "train": {"num_negatives": 2}}])
        return pd.DataFrame({"stored": [SimpleNamespace(config=config)] * 2, **numbers})

    numbers = {"behaviour/distinct": [1.0, 1.0], "negatives_per_query": [61.0, 61.0]}
    assert distinct_of(cells("in-batch+qure")) == 60.0
    assert distinct_of(cells("qure")) == 1.0


def test_looks_say_which_strategies_collapsed():
    rows = [row("a", 0.3), row("b", 0.1, collapsed=2), row("c", 0.1, collapsed=1)]
    assert decided_text(rows[:1], "best") == "first place is decided"
    assert decided_text(rows, "best") == "first place is decided, as b and c collapsed and cannot be first"
    assert decided_text(rows[1:], "best") == "every strategy collapsed: more seeds decide nothing"
    assert decided_text(rows, "all") == "all pairs are decided"


def test_a_recipes_baseline_that_is_not_compared_is_left_out(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nbaseline = "in-batch"\nstrategies = ["in-batch", "qure"]\n', encoding="utf-8")
    run = SimpleNamespace(card=SimpleNamespace(metrics=["m"]))

    def rules(name: str = "qure", **flags: str) -> Rules:
        cell = SimpleNamespace(labels={"strategy": name, "dataset": "d"}, columns={"plugin": name}, run=run)
        options = with_recipe(Compare(recipe=recipe, strategies="qure", **flags))
        return rules_of(options, [cell])  # type: ignore[list-item]

    assert rules("in-batch").baseline == "in-batch"
    assert rules().baseline is None
    assert "the recipe's baseline 'in-batch' is none of these strategies" in capsys.readouterr().err
    with pytest.raises(UnknownNameError, match="--baseline 'top-k'"):
        rules(baseline="top-k")
    assert rules(baseline="qure").baseline == "qure"
