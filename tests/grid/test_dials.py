"""Dials: their points, the cells at each point, and their record in comparison.json."""

import itertools
from typing import Any

import pytest

from negbench.analysis.answer import answer_of
from negbench.analysis.findings import read_findings
from negbench.api import compare
from negbench.campaign.plan import plan_comparison
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axis import (
    Axis,
    dials_of,
    lines_along,
    parse_dial,
    plain_dials,
    point_text,
    points_of,
    short_names,
    varied_text,
)
from negbench.report.tables import paper_table, tables
from negbench.settings.options import Compare
from tests.made import typed_columns, without
from tests.runs import flags_of

DIALS = ("train.lr=0.003,0.03", "train.epochs=1,2")


def test_dials_are_read_as_set_reads():
    assert parse_dial("dataset.twins=1, 2,4") == dial("dataset.twins", 1, 2, 4)
    assert parse_dial("train.precision=fp32,bf16") == dial("train.precision", "fp32", "bf16")


@pytest.mark.parametrize("wrong", ["twins=1,2", "dataset.twins", "dataset.twins=", "dataset.twins=1,1", "a.b.c=1"])
def test_wrong_dials_are_refused(wrong):
    with pytest.raises(OptionError, match="--dial"):
        parse_dial(wrong)


def dial(key: str, *values: Any) -> Axis:
    return Axis(key, values, key)


def test_points_are_all_combinations():
    axes = [dial("a.x", 1, 2), dial("a.y", "s", "t", "u"), dial("a.z", 0.5, 1.5)]
    assert points_of(axes) == list(itertools.product((1, 2), ("s", "t", "u"), (0.5, 1.5)))
    assert dials_of({"dials": plain_dials(axes)}) == axes
    assert points_of([]) == dials_of({"cells": []}) == []
    assert lines_along(axes[:2], 0) == [[(1, "s"), (2, "s")], [(1, "t"), (2, "t")], [(1, "u"), (2, "u")]]
    assert lines_along(axes[:2], 1) == [[(1, "s"), (1, "t"), (1, "u")], [(2, "s"), (2, "t"), (2, "u")]]


def test_points_are_named_by_short_keys():
    axes = [dial("dataset.twins", 1, 2), dial("dataset.tokens", "s"), Axis("train.epochs", (3, 9), "epochs")]
    assert short_names(axes) == ["twins", "tokens", "epochs"]
    assert point_text(short_names(axes), (1, "s", 9)) == "twins=1, tokens=s, epochs=9"
    assert varied_text(axes, (1, "s", 9)) == "twins=1, epochs=9"
    assert varied_text(axes, (1, "s", 9), without=(0,)) == "epochs=9"
    both = [dial("dataset.width", 1), dial("backbone.width", 2)]
    assert short_names(both) == ["dataset.width", "backbone.width"]


TWICE: dict[str, dict[str, Any]] = {
    "a dial twice": {"dials": ("train.lr=1,2", "train.lr=3")},
    "budgets, and a dial of them": {"dials": ("train.epochs=1,2",), "epochs": [3]},
    "numbers of negatives, and a dial of them": {"dials": ("train.num_negatives=1,2",), "negatives": [3]},
}


@pytest.mark.parametrize("options", TWICE.values(), ids=TWICE)
def test_a_key_is_one_axis(options):
    key = options["dials"][0].partition("=")[0]
    with pytest.raises(OptionError, match=f"--dial {key}=.* set the same key"):
        Compare(strategies="qure", **options)


def test_cells_lie_at_their_points(vector_sets, tmp_path):
    """The dials' values win over those of a recipe."""
    sets = without(vector_sets, "train.lr", "train.epochs")
    recipe = tmp_path / "r.toml"
    recipe.write_text("[train]\nlr = 1.0\nepochs = 9\n", encoding="utf-8")
    options = {"strategies": "all-corpus,top-k", "seeds": 2, "dials": DIALS, "sets": sets, "name": "d"}
    plan = plan_comparison(Compare(recipe=recipe, **options), tmp_path)
    assert len(plan.cells) == 16
    for cell in plan.cells:
        assert cell.labels["point"] == f"lr={cell.config.train.lr}, epochs={cell.config.train.epochs}", cell.labels
        varied = {"train.lr": cell.config.train.lr, "train.epochs": cell.config.train.epochs}
        assert typed_columns(cell) == {"plugin": cell.config.strategy.name, **varied}, cell.labels
    assert plan.folder.path == tmp_path / "d"
    assert plan.folder.about == {
        "dials": [{"key": "train.lr", "values": [0.003, 0.03]}, {"key": "train.epochs", "values": [1, 2]}],
        "remarks": [
            "strategy does nothing for top-k lr=0.003, epochs=1, top-k lr=0.03, epochs=1: a warm-up of 1 epoch leaves "
            "none of 1 to the pools: train longer, or take it out with schedule.warmup=0"
        ],
    }
    assert plan.line() == "16 cells (4 points x 2 strategies x 2 seeds), 0 already finished"


def test_a_moved_option_of_the_loss_is_the_points_not_the_labels(vector_sets, tmp_path):
    """Labels keep the plain name of the loss, so that all points of the dial share a table and a line."""
    dials = ("loss.tau=0.05,0.1,0.2",)
    options = Compare(strategies="all-corpus,top-k", seeds=2, dials=dials, sets=tuple(vector_sets), name="d")
    plan = plan_comparison(options, tmp_path)
    assert {cell.labels["loss"] for cell in plan.cells} == {"bradley-terry"}
    assert {cell.config.loss.options["tau"] for cell in plan.cells} == {0.05, 0.1, 0.2}


def test_a_point_that_cannot_be_computed_is_left_out_and_named(tmp_path, vector_sets, run_command):
    sets = without(vector_sets, "train.batch_size", "schedule.n_def")
    options = Compare(strategies="all-corpus", seeds=1, dials=("train.batch_size=16,1",), sets=sets)
    plan = plan_comparison(options, tmp_path)
    (left_out,) = plan.folder.about["left_out"]
    assert left_out["point"] == "batch_size=1"
    assert left_out["reason"].startswith("train.batch_size = 1")
    assert {cell.labels["point"] for cell in plan.cells} == {"batch_size=16"}
    with pytest.raises(NegbenchError, match=r"train.batch_size = 1"):
        plan_comparison(options.model_copy(update={"dials": ("train.batch_size=1",)}), tmp_path)
    command = ["compare", "--strategies", "all-corpus", "--seeds", "1", "--dry-run", "--runs-dir", str(tmp_path)]
    notes = run_command(*command, *flags_of(sets), "--dial", "train.batch_size=16,1").err
    assert "note: point batch_size=1 skipped: train.batch_size = 1" in notes


STEPS: dict[str, list[str] | None] = {  # None: no column, as all have the same number or epochs say it
    "train.batch_size=24,16": ["4", "6"],
    "train.weight_decay=0.1,0.2": None,
    "train.epochs=1,2": None,
}


@pytest.mark.parametrize(("dial", "steps"), STEPS.items(), ids=STEPS)
def test_points_of_unequal_steps_are_named(vector_sets, tmp_path, dial, steps):
    """48 queries, two epochs: 4 steps in batches of 24, 6 in batches of 16."""
    sets = without(vector_sets, "train.batch_size", "schedule.n_def", dial.partition("=")[0])
    options = {"strategies": "in-batch", "seeds": 1, "sets": sets, "lr": "fixed", "name": "c", "tracking_uri": "none"}
    compare(Compare(**options, dials=(dial,), runs_dir=tmp_path, report=False))
    findings = read_findings(tmp_path, "c")
    (frame,) = [table.frame for table in tables(findings) if table.name == "points"]
    in_answer = any("numbers of steps" in line for line in answer_of(findings).lines)
    if steps is None:
        assert "steps" not in frame
        assert not in_answer
    else:
        assert list(frame["steps"]) == steps
        assert in_answer


SET_BESIDE = {  # what is set beside a dial, and the labels that name it at every point
    "loss": ("margin-kl", ("loss.margin=0.5",), "loss.lambda_rank=1,2", {"loss": "margin-kl(margin=0.5)"}),
    "strategy": (
        None,
        ("strategy.variant=release",),
        "strategy.consecutive_threshold=1,2",
        {"strategy": "qure(variant=release)"},
    ),
}


@pytest.mark.parametrize(("loss", "sets", "dial", "labels"), SET_BESIDE.values(), ids=SET_BESIDE)
def test_labels_name_what_is_set_beside_a_dial_and_leave_the_dial_to_the_point(
    loss, sets, dial, labels, vector_sets, tmp_path
):
    all_sets = [*vector_sets, *sets]
    if loss:
        all_sets.append(f"loss.name={loss}")
    plan = plan_comparison(Compare(strategies="qure", seeds=1, dials=(dial,), sets=all_sets), tmp_path)
    assert len(plan.cells) == 2
    for cell in plan.cells:
        assert {key: cell.labels[key] for key in labels} == labels, f"seed {cell.seed}, {cell.labels['strategy']}"


@pytest.mark.parametrize("dials", [(), ("loss.lambda_rank=1,2",)], ids=["no dial", "a dial of the loss"])
def test_every_table_names_a_departure_of_the_loss(dials, vector_sets, tmp_path):
    sets = (*vector_sets, "loss.name=margin-kl", "loss.kl_over=corpus", "loss.kl_bound=0.01")
    options = {"strategies": "all-corpus,top-k", "sets": sets, "dials": dials, "seeds": 1, "lr": "fixed", "name": "c"}
    compare(Compare(**options, tracking_uri="none", runs_dir=tmp_path, report=False))
    label = "margin-kl(kl_over=corpus, kl_bound=0.01)"
    all_tables = tables(read_findings(tmp_path, "c"))
    assert any(table.name == "points" for table in all_tables) == bool(dials)
    for table in all_tables:
        text = "\n".join([table.title, *table.common, table.visible_frame.to_csv()])
        assert label in text, (table.name, table.where)
    leader = next(table for table in all_tables if table.name == "table")
    for form in ("latex", "markdown"):
        assert label in paper_table(leader, form).replace("\\_", "_"), form
