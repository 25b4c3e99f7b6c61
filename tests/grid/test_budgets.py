"""Training budgets as an axis: tables, schedules and rates of their own; orders that turn."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from negbench.analysis.answer import answer_of, steps_of, warm_ups
from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.frame import config_of, first_run, shared_value
from negbench.analysis.pivots import at_point, points_frame
from negbench.analysis.turns import turns
from negbench.analysis.words import label_of
from negbench.api import compare
from negbench.campaign.plan import with_recipe
from negbench.report.along import budgets_chart, dial_charts
from negbench.report.build import comparison_page
from negbench.report.charts import _figure
from negbench.report.tables import tables
from negbench.settings.options import Compare


@pytest.fixture(scope="module")
def runs(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budgets")
    sets = tuple(text for text in vector_sets if not text.startswith("train.epochs="))
    axes = {"strategies": "qure,in-batch", "seeds": 1, "sets": sets, "epochs": "2,4", "lr": "fixed"}
    compare(Compare(runs_dir=folder, report=False, name="budgets", tracking_uri="none", **axes))
    return folder


def test_each_budget_has_tables_and_schedules_of_its_own(runs):
    findings = read_findings(runs, "budgets")
    groups = {(shared_value(group, "epochs"), shared_value(group, "strategy")): group for group in findings.groups}
    assert len(groups) == 2 * 2
    for (epochs, strategy), group in groups.items():
        assert config_of(group).train.epochs == int(epochs), f"{strategy}, {epochs} epochs"
    assert comparison_page(runs / "budgets", findings, (), 0).lead == 2
    assert first_run(groups["2", "qure"]).result["refresh_epochs"] == [1]
    assert first_run(groups["4", "qure"]).result["refresh_epochs"] == [2]
    assert {row.alpha for row in findings.main_verdicts} == {0.025}  # both budgets hold at once
    (axes,) = _figure(budgets_chart(findings.groups, findings.main_verdicts), narrow=False).axes
    assert list(axes.get_xticks()) == sorted(steps_of(findings.groups).values())  # a tick for each budget


@pytest.fixture(scope="module")
def with_dial(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Compare two strategies at two weight decays, after two budgets, with two numbers of negatives."""
    folder = tmp_path_factory.mktemp("dial")
    options = Compare(
        name="c",
        strategies="qure,in-batch",
        dials=("train.weight_decay=0.1,0.2",),
        epochs="1,2",
        negatives="1,3",
        seeds=1,
        lr="fixed",
        sets=tuple(text for text in vector_sets if not text.startswith("train.epochs=")),
        runs_dir=folder,
        tracking_uri="none",
        report=False,
    )
    compare(options)
    return read_findings(folder, "c")


def test_dials_times_budgets_times_numbers_of_negatives(with_dial):
    """Every point is a value of each; strategies are compared within it."""
    findings = with_dial
    assert len(findings.groups) == 2 * 2 * 2 * 2
    frame = points_frame(findings.point_axes, findings.main_verdicts)
    columns = ["weight_decay", "epochs", "num_negatives"]
    assert sorted(map(tuple, frame[columns].to_numpy())) == sorted(product(("0.1", "0.2"), "12", "13"))
    for number, line in frame.iterrows():
        assert line["best"].endswith(f" x{line['num_negatives']}"), f"row {number}"
        point = f"weight_decay={line['weight_decay']}, epochs={line['epochs']}, num_negatives=3"
        strategies = {row.strategy for row in at_point(findings.main_verdicts, point)}
        assert strategies == {"qure x3", "in-batch x3"}, f"row {number}"
    assert answer_of(findings).lines[0].startswith("8 points (")
    keys = {chart.key for chart in dial_charts(findings.point_axes, findings.main_verdicts)}
    assert keys == {"best", "along-weight_decay", "along-epochs"}


def test_orders_that_reverse_are_told_with_their_point(with_dial):
    """At the weight decay 0.1, qure is made to beat in-batch after 1 epoch, and to lose after 2; by R@1 it loses."""
    metrics = dict.fromkeys(row.metric for row in with_dial.verdicts)
    main = with_dial.main_verdicts[0].metric
    other = next(metric for metric in metrics if metric != main)
    qure_loses = {(main, "2"), (other, "1")}
    changed = []
    for row in with_dial.verdicts:
        if (row.metric, row.epochs) in qure_loses:
            winner, loser = "in-batch x3", "qure x3"
        else:
            winner, loser = "qure x3", "in-batch x3"
        decided = row.point == "weight_decay=0.1" and row.strategy == loser
        changed.append(replace(row, beaten_by=(winner,) if decided else ()))
    lines = answer_of(replace(with_dial, verdicts=tuple(changed))).lines
    turned = "after 1 epoch qure x3 is ahead of in-batch x3; after 2 epochs it is the other way round."
    assert f"The order reverses, weight_decay=0.1: {turned}" in lines
    start = f"By {label_of(other)}, weight_decay=0.1, 1 epoch the order of qure x3 and in-batch x3 reverses"
    assert any(line.startswith(start) for line in lines)


def test_the_answer_says_steps_and_unlike_warm_ups(runs):
    """48 train queries in batches of 24 are two steps an epoch."""
    findings = read_findings(runs, "budgets")
    lines = " ".join(answer_of(findings).lines)
    assert "2 epochs (4 steps): " in lines
    assert "4 epochs (8 steps): " in lines
    assert "warm-up" not in lines
    qure = next(group for group in findings.groups if shared_value(group, "strategy") == "qure")
    other = qure.assign(strategy="cirqrs")
    schedule = config_of(qure).schedule.model_copy(update={"refresh_epochs": (0, 1)})
    config = config_of(qure).model_copy(update={"schedule": schedule})
    stored_runs = []
    for run in other["stored"]:
        parts = {"result": run.result, "points": run.points, "manifest": run.manifest}
        stored_runs.append(SimpleNamespace(config=config, **parts))
    other["stored"] = stored_runs
    text = "Epochs of warm-up on the whole corpus: 0 of 2 for cirqrs; 1 of 2 for qure; 2 of 4 for qure."
    assert warm_ups([*findings.groups, other]) == text
    both = replace(findings, results=pd.concat([findings.results, other]))
    assert text in answer_of(both).lines
    leader = next(table for table in tables(both) if table.name == "table")
    assert text in leader.text


def test_turns_are_decided_at_both_budgets(runs):
    winners = {("2", "in-batch"): ("qure",), ("4", "qure"): ("in-batch",)}
    rows = []
    for row in read_findings(runs, "budgets").main_verdicts:
        rows.append(replace(row, beaten_by=winners.get((row.epochs, row.strategy), ())))
    assert turns(rows) == [
        "The order reverses: after 2 epochs qure is ahead of in-batch; after 4 epochs it is the other way round."
    ]
    assert turns([replace(row, beaten_by=()) for row in rows]) == [
        "No decided order reverses between the training budgets 2 and 4."
    ]
    assert turns([replace(row, epochs="") for row in rows]) == []


def test_flags_replace_a_recipes_budgets(tmp_path, subtests):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nstrategies = ["in-batch"]\nepochs = [2, 4]\n', encoding="utf-8")
    assert with_recipe(Compare(recipe=recipe)).epochs == (2, 4)
    assert with_recipe(Compare(recipe=recipe, epochs="3")).epochs == (3,)
    for options in ({"sets": ("train.epochs=5",)}, {"dials": ("train.epochs=5,6",)}):
        with subtests.test(options=options):
            assert with_recipe(Compare(recipe=recipe, **options)).epochs == ()
