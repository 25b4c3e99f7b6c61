"""Comparisons: cells are computed once, failures stop nothing, tables do not depend on how they were computed."""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient

from negbench.analysis import findings
from negbench.analysis.verdict_record import read_verdicts
from negbench.campaign.plan import plan_comparison, with_recipe
from negbench.cli.main import run as negbench
from negbench.data.scene import DataCache
from negbench.display import Display, duration
from negbench.errors import OptionError
from negbench.grid import cell_task as grid_task
from negbench.grid import compute as grid_compute
from negbench.grid.axes import Axes, plugin_sections
from negbench.grid.axis import short
from negbench.grid.cell_task import Task, compute_task
from negbench.grid.cells import Cell, Outcome, plan_cells, titles_of
from negbench.grid.comparison import ComparisonFolder, check_name
from negbench.grid.compute import Execution
from negbench.grid.executors import Event, InProcess, Processes
from negbench.loop import identity
from negbench.loop.runs import RunContext, compute_or_reuse, plan_run
from negbench.machine.files import read_json, write_json
from negbench.plugins.registry import registry
from negbench.report import finish as finish_of
from negbench.settings.config import RunConfig
from negbench.settings.options import Compare, parse_epochs, parse_negatives, parse_seeds
from negbench.store.copies import PLACE, SUMMARIES
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker, default_uri
from negbench.systems.system import load_config
from negbench.worlds import vectors
from tests.made import cell, outcome_of, typed_columns, without

# files that depend on the cells alone
FILES = (
    *("table.md", "table.tex", "table.csv", "statistics.csv", "statistics.json"),
    *("behaviour.md", "behaviour.csv", "regime.csv"),
)


def axes_of(vector_sets: list[str], strategies: str, **given: Any) -> Axes:
    asked = {"losses": "bradley-terry", "seeds": 2, **given}
    return Axes.of(Compare(strategies=strategies, sets=tuple(vector_sets), **asked))


def planned(axes: Axes, runs: Path) -> list[Cell]:
    return plan_cells(axes.configs(), runs, Display(), DataCache())


def compute(axes: Axes, runs: Path) -> list[Outcome]:
    return grid_compute.compute_and_log(
        ComparisonFolder(runs / "c"), planned(axes, runs), Execution(InProcess(), "none")
    )


def test_all_strategies_are_those_that_every_run_can_have():
    """`all` names every built-in strategy but those that need a guide, a judge or listed negatives."""
    names = {section["name"] for section in plugin_sections("strategies", "all")}
    built_in = {name for name, plugin in registry.plugins("strategies").items() if plugin.origin == "built-in"}
    assert built_in - names == {"gist", "listed", "rocketqa"}


@dataclass
class Scripted:
    """Executor on another machine that answers with events of made cells, each after a note."""

    answers: dict[str, tuple[Any, ...]]
    asked: list[str] = field(default_factory=list)
    workers: ClassVar[int] = 2
    elsewhere: ClassVar[bool] = True

    def run(self, function: Any, tasks: Sequence[Any]) -> Any:
        self.asked += [task.planned.hash for task in tasks]
        for index, task in enumerate(tasks):
            yield Event(index, "note", "slow")
            yield Event(index, *self.answers[task.planned.hash])


def test_a_run_is_computed_once_in_the_order_of_the_plan_and_a_failure_stops_nothing(tmp_path, logged):
    """`b` has two places, `c` is finished; a fault of ours is kept with its traceback and computed again by a rerun."""
    a, b, c = cell("a", 0), cell("b", 0), replace(cell("c", 0, done=True), folder="run-c")
    planned = [a, b, c, replace(b, columns={**b.columns, "strategy": "x"})]
    fault = ("failed", "ZeroDivisionError: division by zero", "Traceback")
    folder, executor = ComparisonFolder(tmp_path / "c"), Scripted({"a0": fault, "b0": ("done", ("run-b", True))})
    forecast: Any = SimpleNamespace(add_computed=lambda *_: False)
    execution = Execution(executor, "none", forecast)
    outcomes = grid_compute.compute_and_log(folder, planned, execution, [outcome_of(cell("z", 0))])
    assert executor.asked == ["a0", "b0"]
    assert [outcome.cell for outcome in outcomes] == planned
    assert [o.run_id for o in outcomes] == [None, "run-b", "run-c", "run-b"]
    assert [o.reused for o in outcomes] == [False, True, True, True]
    assert [o.error for o in outcomes] == [fault[1], None, None, None]
    assert (tmp_path / "c" / "fault-a0.txt").read_text() == "Traceback"
    said = [record.getMessage() for record in logged]
    assert said[:2] == ["a seed 0: slow", f"[2/3]    0.0 s  a seed 0 FAILED: {fault[1]}"]
    assert said[2:] == ["b seed 0: slow", f"FAILED a seed 0: {fault[1]}"]
    assert [row["run"] for row in folder.cells()] == [None, "run-b", "run-c", "run-b", "run-z0"]
    executor.answers["a0"] = ("done", ("run-a", False))
    (mended,) = grid_compute.compute_and_log(folder, [a], execution)
    assert (mended.run_id, mended.error) == ("run-a", None)
    before = held(tmp_path)
    (again,) = grid_compute.compute_and_log(folder, [replace(a, done=True, folder="run-a")], execution)
    assert (again.run_id, again.reused, held(tmp_path)) == ("run-a", True, before)


def test_a_cell_leaves_no_memory_that_torch_only_caches(monkeypatch, tmp_path):
    emptied = list[int]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(grid_task, "compute_or_reuse", lambda *_: SimpleNamespace(run_id="r", reused=False))
    assert compute_task(Task(cell("a", 0).run, tmp_path, "none", {}), print) == ("r", False)
    assert emptied == [1]


def test_cells_of_one_seed_stand_together(vector_sets):
    """Cells are sorted by seed: they share initial weights, and a process keeps only one backbone for long."""
    axes = axes_of(vector_sets, "qure,in-batch", losses="bradley-terry,info-nce")
    order = [(config.seed, config.loss.name, config.strategy.name) for config in axes.configs()]
    assert order == list(product((0, 1), ("bradley-terry", "info-nce"), ("qure", "in-batch")))


ENCODED = {
    "an image tower": ("clip", ("",) * 5, [0, 2, 3]),
    "cells that were started elsewhere": ("clip", ("", "bf16", "", "", "bf16"), [0, 1, 2, 3, 4]),
    "features of its own": ("vectors", ("",) * 5, [0]),
}


@pytest.mark.parametrize(("backbone", "started", "expected"), ENCODED.values(), ids=ENCODED)
def test_images_are_encoded_once_for_each_data_set_backbone_and_precision(
    backbone, started, expected, monkeypatch, tmp_path
):
    """Of five cells on data sets a, a, b, c and b; of a backbone that brings its features, one world is opened."""
    opened: list[int] = []
    monkeypatch.setattr(grid_compute, "open_run", lambda run, *_: opened.append(run.place))
    monkeypatch.setattr(grid_compute, "started_precision", lambda run, _: started[run.place] or None)
    cells = [_cell_of(backbone, data, place) for place, data in enumerate("aabcb")]
    grid_compute.encode_cells(cells, tmp_path, Display())
    assert opened == expected


def _cell_of(backbone: str, data: str, place: int) -> Any:
    """Return a cell of the data set `world` with only the fields that encoding reads."""
    config = SimpleNamespace(backbone=SimpleNamespace(name=backbone), train=SimpleNamespace(precision="auto"))
    run = SimpleNamespace(data=data, place=place)
    return SimpleNamespace(run=run, config=config, labels={"backbone": backbone, "dataset": "world"})


def test_workers_are_prepared_where_there_is_something_for_them_to_do(vector_sets, tmp_path, monkeypatch):
    """Workers are prepared before images are encoded; a finished comparison prepares none."""
    calls: list[str] = []
    monkeypatch.setattr(Processes, "prepare", lambda self, function: calls.append(function.__name__))
    monkeypatch.setattr(Processes, "run", lambda self, function, tasks: InProcess().run(function, tasks))
    monkeypatch.setattr(grid_compute, "encode_cells", lambda *given: calls.append("encoded"))

    def calls_of_a_comparison() -> list[str]:
        calls.clear()
        cells = planned(axes_of(vector_sets, "in-batch", seeds=1), tmp_path)
        execution = Execution(Processes(2), "none")
        (outcome,) = grid_compute.compute_and_log(ComparisonFolder(tmp_path / "c"), cells, execution)
        assert outcome.error is None
        return calls

    assert calls_of_a_comparison() == ["compute_task", "encoded"]
    assert calls_of_a_comparison() == []  # finished


SEEDS = {"3": (0, 1, 2), 3: (0, 1, 2), "4,": (4,), (4,): (4,), "7,2": (7, 2)}


@pytest.mark.parametrize("given", SEEDS, ids=repr)
def test_seeds(given):
    assert parse_seeds(given) == SEEDS[given]


@pytest.mark.parametrize("wrong", [",", "", "0", "1,1", "two", [0, -1], [], None], ids=repr)
def test_wrong_seeds_are_refused(wrong):
    with pytest.raises(OptionError, match="--seeds"):
        parse_seeds(wrong)


@pytest.mark.parametrize("given", ["1, 5,63", [1, 5, 63]], ids=repr)
def test_numbers_of_negatives(given):
    assert parse_negatives(given) == (1, 5, 63)


@pytest.mark.parametrize("wrong", [",", "", " , ", "0", "1,1", "many", None], ids=repr)
def test_wrong_numbers_of_negatives_are_refused(wrong):
    with pytest.raises(OptionError, match="--negatives"):
        parse_negatives(wrong)


@pytest.mark.parametrize("wrong", [",", "", " , ", "0", "1,1", "long", None], ids=repr)
def test_wrong_numbers_of_epochs_are_refused(wrong):
    with pytest.raises(OptionError, match="--epochs"):
        parse_epochs(wrong)


@pytest.mark.parametrize("axis", ["strategies", "losses", "backbones", "datasets", "systems"])
@pytest.mark.parametrize("names", [",", "", []], ids=repr)
def test_an_axis_that_names_nothing_is_refused(tmp_path, axis, names):
    with pytest.raises(OptionError, match=f"{axis} .* names nothing"):
        plan_comparison(Compare(**{axis: names}), tmp_path)


def test_a_recipes_table_lies_below_what_is_asked_for(tmp_path, mistakes, expect_error, subtests):
    recipe = tmp_path / "r.toml"
    table = 'strategies = ["qure", {name = "dqe", alpha = 0.3, beta = 0.7}]\nseeds = [4]\nmargin = 2\n'
    recipe.write_text(f"[compare]\n{table}[train]\nepochs = 2\n", encoding="utf-8")
    asked = with_recipe(Compare(recipe=recipe, margin=1))
    assert asked.margin == 1
    axes = Axes.of(asked)
    assert axes.values("strategy") == ({"name": "qure"}, {"name": "dqe", "alpha": 0.3, "beta": 0.7})
    assert axes.values("seed") == (4,)
    assert [c.train.epochs for c in axes.configs()] == [2, 2]
    assert Axes.of(with_recipe(Compare(recipe=recipe, seeds=2))).values("seed") == (0, 1)
    for wrong, message in mistakes["compare-recipe"].items():
        with subtests.test(wrong):
            recipe.write_text(f"[compare]\n{wrong}\n", encoding="utf-8")
            expect_error(["compare", "--recipe", str(recipe), "--dry-run", "--runs-dir", str(tmp_path)], message)


@pytest.fixture(scope="module")
def both(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a command with a report and a store, its folder, and what it printed; tests change only copies."""
    runs, out, err = tmp_path_factory.mktemp("both"), StringIO(), StringIO()
    command = command_of(vector_sets, runs, "--seeds", "2", "--name", "both")
    with redirect_stdout(out), redirect_stderr(err):
        assert negbench(command) == 0
    return SimpleNamespace(runs=runs, command=command, out=out.getvalue(), err=err.getvalue())


def test_the_command_prints_tables(both):
    out = both.out
    assert "4 cells" in out
    assert "R@10 behind the best with as many negatives in points" in " ".join(out.split())
    assert [word in out for word in ("R@10", "stored", "index.html", "FN pool %", "cost: ")] == [True] * 3 + [False] * 2
    assert "3 more to compute: about" in both.err


def test_the_command_writes_tables_and_on_embeddings_a_report_without_images(both):
    folder = both.runs / "both"
    for name in (*FILES, "cost.csv", "comparison.json"):
        assert (folder / name).stat().st_size > 0, name
    assert "report/index.html" in read_json(folder / "inputs.json")["made"]
    assert "there are no images to show" in (folder / "report" / "index.html").read_text(encoding="utf-8")
    tex = (folder / "table.tex").read_text(encoding="utf-8")
    assert r"\toprule" in tex
    assert r"R@10 & behind the best \\" in tex


def test_the_command_again_reads_and_prints_what_it_wrote(both, run_command, monkeypatch):
    before = held(both.runs)
    monkeypatch.setattr(finish_of, "judge_comparison", None)
    assert run_command(*both.command).out == both.out.replace("0 already", "4 already")
    assert held(both.runs) == before


@pytest.fixture(scope="module")
def logged_runs(both: SimpleNamespace) -> dict[str, list[Any]]:
    """Return the runs that the comparison has in MLflow, by kind."""
    client = MlflowClient(default_uri(both.runs))
    runs: dict[str, list[Any]] = {"cell": [], "comparison": [], "summary": []}
    for run in client.search_runs([client.get_experiment_by_name("both").experiment_id]):
        runs[run.data.tags["negbench.kind"]].append(run)
    return runs


def test_the_store_has_a_run_of_each_cell_and_a_summary_of_each_strategy(logged_runs):
    kinds, runs = logged_runs, [run for of_kind in logged_runs.values() for run in of_kind]
    assert {kind: len(of_kind) for kind, of_kind in kinds.items()} == {"cell": 4, "comparison": 1, "summary": 2}
    parent = kinds["comparison"][0].info.run_id
    assert all(r.data.tags.get("mlflow.parentRunId", parent) == parent for r in runs)
    for kind, of_kind in kinds.items():
        mined = [any(name.startswith("mined/") for name in r.data.metrics) for r in of_kind]
        assert mined == [kind == "summary"] * len(of_kind), kind  # the summaries' means


def test_a_summary_has_the_mean_of_its_cells_and_its_verdict(both, logged_runs):
    kinds = logged_runs
    tested = {r.info.run_name: r.data for r in kinds["summary"]}
    for strategy, summary in tested.items():
        cells = [r.data.metrics["recall_at_10"] for r in kinds["cell"] if r.data.tags["strategy"] == strategy]
        assert summary.tags["strategy"] == strategy, strategy
        assert summary.metrics["R/10"] == pytest.approx(np.mean(cells)), strategy
        assert summary.metrics["sd/R 10"] == pytest.approx(np.std(cells, ddof=1)), strategy
    rows = {row.strategy: row for row in read_verdicts(both.runs / "both") if row.main}
    assert tested["in-batch"].tags["verdict"] == "baseline"
    assert tested["qure"].tags["verdict"] == rows["qure"].verdict
    assert tested["qure"].tags["baseline"] == "in-batch"
    for column, chart in (("p_adjusted", "vs/p"), ("difference", "vs/diff"), ("diff_low", "vs/diff low")):
        assert tested["qure"].metrics[chart] == pytest.approx(rows["qure"].flat()[column]), column
    assert "vs/diff" not in tested["in-batch"].metrics


def test_the_page_of_the_store_begins_with_the_answer(both):
    client = MlflowClient(default_uri(both.runs))
    experiment = client.get_experiment_by_name("both")
    _check_what_mlflow_shows_first(client, experiment.experiment_id, 2)
    (answer, *_) = (both.runs / "both" / "answer.md").read_text(encoding="utf-8").splitlines()
    assert experiment.tags["mlflow.note.content"].splitlines()[0] == answer
    assert f"/experiments/{experiment.experiment_id}/runs" in Tracker.open(both.runs).address("both")


def _check_what_mlflow_shows_first(client: MlflowClient, experiment: str, count: int) -> None:
    """Check, by the orders of MLflow's pages, that recall comes first and that cut titles differ."""
    listed = client.search_runs([experiment], SUMMARIES, order_by=[f"tags.`{PLACE}` ASC"])
    means = [run.data.metrics["vs/mean"] for run in listed]
    assert means == sorted(means, reverse=True)
    assert len(means) == count
    for run in listed:
        logged = list(client.get_run(run.info.run_id).data.metrics)
        assert logged[0] == "R/10", run.info.run_name  # on the page that compares runs
        assert min(logged).startswith("R/"), run.info.run_name  # JavaScript sorts by code unit, too
        cut = {name[:10]: name for name in logged}
        assert sorted(cut.values()) == sorted(logged), run.info.run_name


def command_of(vector_sets: list[str], runs: Path, *more: str) -> list[str]:
    sets = [part for text in vector_sets for part in ("--set", text)] + ["--lr", "fixed"]
    return ["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--runs-dir", str(runs), *sets, *more]


def held(runs: Path) -> dict[str, tuple[int, int]]:
    """Return every file below a folder with its inode and modification time."""
    stats = {path: path.stat() for path in sorted(runs.rglob("*")) if path.is_file()}
    return {str(path): (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


def test_a_finished_comparison_is_made_again_where_something_changed(
    both, vector_sets, tmp_path, run_command, monkeypatch
):
    """An input, a rule or an output; `test_the_command_ends_...` has the rerun that writes nothing."""
    runs = shutil.copytree(both.runs, tmp_path / "runs", ignore=shutil.ignore_patterns("mlflow*"))
    more = ("--seeds", "2", "--name", "both", "--tracking-uri", "none", "--no-report")
    command, c, judged = command_of(vector_sets, runs, *more), runs / "both", list[int]()
    monkeypatch.setattr(
        finish_of, "judge_comparison", lambda *given: judged.append(1) or findings.judge_comparison(*given)
    )
    assert negbench(command) == 0
    (c / "table.md").unlink()
    assert negbench(command) == 0
    for name in ("inputs.json", "statistics.json"):  # a damaged file is made again
        (c / name).write_text("{}", encoding="utf-8")
        assert negbench(command) == 0, name
    assert (c / "table.md").read_bytes() == (both.runs / "both" / "table.md").read_bytes()
    assert len(judged) == 4
    judged.clear()
    assert negbench([*command, "--margin", "30"]) == 0
    assert read_verdicts(c)[0].margin == 0.3
    assert len(judged) == 1
    for run in (RunFolder(path.parent) for path in runs.glob("*/result.json")):
        run.write_result({**run.result, "seconds": {"train": 1234.5}})
    assert "1,234" in run_command(*command, "--margin", "30", "-v").out.replace(
        "1234", "1,234"
    )  # in the table of costs
    assert len(judged) == 2
    assert negbench([*command, "--strategies", "qure", "--margin", "30"]) == 0  # two cells fewer
    assert len(read_json(c / "comparison.json")["cells"]) == 2


def test_a_finished_comparison_in_a_read_only_folder_is_printed(both, run_command, monkeypatch, subtests):
    before, real = held(both.runs), os.access  # this process may write everywhere
    monkeypatch.setattr("os.access", lambda path, mode, **more: mode != os.W_OK and real(path, mode, **more))
    for more in ([], ["--margin", "30"], ["--tracking-uri", "none"]):
        with subtests.test(more=more):
            out = run_command(*both.command, *more).out
            assert "R@10" in out
            assert ("cannot be written: nothing was stored" in out) == ("--margin" in more)
    assert held(both.runs) == before


def test_a_name_belongs_to_one_kind_of_folder(vector_sets, tmp_path, expect_error, subtests):
    for file, content in {
        "of-claims/comparison.json": {"kind": "claims", "cells": []},
        "of-a-study/study.json": {},
        "of-a-run/config.json": {},
        "compared/comparison.json": {"kind": "comparison", "cells": []},
    }.items():
        write_json(tmp_path / file, content)
    for name in ("mlflow.db", "a-file"):
        (tmp_path / name).touch()
    before = held(tmp_path)
    kinds = (("of-claims", "claims"), ("of-a-study", "a study"), ("of-a-run", "a run"), ("a-file", "a file"))
    for name, there in kinds:
        line = expect_error(command_of(vector_sets, tmp_path, "--name", name), f"negbench: error: --name {name}: ")
        assert line.endswith(f" is already {there}: give another --name"), name
    for name in ("mlflow.db", "mlflow.db-wal", "artifacts"):  # also before there is a store
        with subtests.test(name=name):
            command = command_of(vector_sets, tmp_path, "--name", name)
            expect_error(command, "the MLflow store of the runs folder has this name")
    for kind in ("claims", "study", "final"):
        with subtests.test(kind=kind):
            with pytest.raises(OptionError, match="compared is already a comparison"):
                check_name(tmp_path / "compared", kind)
            check_name(tmp_path / "new", kind)
    check_name(tmp_path / "compared", "comparison")
    check_name(tmp_path / "of-claims", "claims")
    check_name(tmp_path / "of-a-study", "study")
    assert held(tmp_path) == before


def test_a_runs_folder_that_is_none_is_one_line(expect_error, subtests):
    for command in ("compare", "run", "study", "claims"):
        with subtests.test(command):
            more = ["--strategy", "qure"] if command in ("run", "study") else []
            few = ["--backbone", "vectors", "--dataset", "vectors", "--set", "train.epochs=2", *more]
            problem = "cannot write" if command == "run" else "--runs-dir"
            expect_error([command, *few, "--runs-dir", os.devnull], f"error: {problem} {os.devnull}")


def test_a_dry_run_stops_after_the_plan(both, vector_sets, tmp_path, run_command):
    out = run_command(*command_of(vector_sets, tmp_path, "--dry-run", "--workers", "2")).out
    assert "2 cells (2 strategies), 0 already finished" in out
    assert "the 2 runs: 1 s of computing; " in out  # timed: each takes 0.3 s to be stored
    assert "MiB of memory for each worker (timed on this machine)\n" in out
    assert not list(tmp_path.iterdir())
    after_a_pilot = run_command(*both.command, "--dry-run", "--seeds", "5").out
    results = [read_json(path) for path in both.runs.glob("*/result.json")]
    took = sum(sum(result["seconds"].values()) for result in results) / 4
    memory = max(result["peak_memory_mib"]["process"] for result in results)
    text = f"the other 6 runs: {duration(6 * took)} of computing; {memory:,.0f} MiB of memory for each worker"
    assert f"{text}\n" in after_a_pilot


def test_mistakes_stop_before_anything_is_computed(vector_sets, tmp_path, expect_error, mistakes, subtests):
    for flags, message in mistakes["compare"].items():
        with subtests.test(flags):
            expect_error(command_of(vector_sets, tmp_path, *flags.split()), message)
    assert not list(tmp_path.iterdir())


def test_titles_tell_cells_apart(vector_sets, tmp_path):
    cells = planned(axes_of(vector_sets, "qure", seeds=2), tmp_path)
    assert list(titles_of(cells).values()) == ["qure seed 0", "qure seed 1"]
    other = replace(cells[1], columns={**cells[1].columns, "backbone": "clip"})
    backbone = cells[0].labels["backbone"]
    assert list(titles_of([cells[0], other]).values()) == [f"qure {backbone} seed 0", "qure clip seed 1"]


def test_negatives_are_an_axis(vector_sets, tmp_path):
    options = {"strategies": "in-batch,all-corpus", "seeds": 1, "negatives": [1, 5], "lr": "fixed"}
    cells = plan_comparison(Compare(sets=without(vector_sets, "schedule.n_def"), **options), tmp_path).cells
    assert [typed_columns(cell) for cell in cells[1:3]] == [
        {"plugin": "in-batch", "num_negatives": 5}, {"plugin": "all-corpus", "num_negatives": 1},
    ]  # fmt: skip
    want = [("in-batch x1", 1), ("in-batch x5", 5), ("all-corpus x1", 1), ("all-corpus x5", 5)]
    assert [(cell.labels["strategy"], cell.config.train.num_negatives) for cell in cells] == want


def test_labels_name_files_without_their_folders_unless_two_are_alike():
    one, two = "precomputed(images=/a/b/x.npz, texts=~/t.npz)", "precomputed(images=/a/c/x.npz, texts=~/t.npz)"
    assert list(short([one, "tiny", one]).values()) == ["precomputed(images=x.npz, texts=t.npz)", "tiny"]
    apart = list(short([one, two]).values())  # a part of the path's hash, never the path, which others would read
    assert len(set(apart)) == 2
    assert all(re.fullmatch(r"precomputed\(images=x\.npz, texts=t\.npz\) #[0-9a-f]{4}", label) for label in apart)
    assert short(["clip(weights=lavis:/m/model.pth)", "qure(a/b=1)"]) == {
        "clip(weights=lavis:/m/model.pth)": "clip(weights=lavis:model.pth)", "qure(a/b=1)": "qure(a/b=1)",
    }  # fmt: skip


def test_systems_bring_their_own_losses_whatever_the_recipe_compares():
    assert with_recipe(Compare(recipe=Path("demo-single"), systems="all")).losses is None
    assert with_recipe(Compare(recipe=Path("demo-single"))).losses == ["bradley-terry"]


_WORLD = ("train_images=40", "train_queries=24", "val_images=40", "val_queries=20", "twins=2")
_SMALL = (*(f"dataset.{text}" for text in ("name=vectors", *_WORLD)), "backbone.name=vectors", "train.epochs=1")


@pytest.mark.parametrize("more", [(), ("dataset.world=0", "eval.select=dev", "eval.dev_fraction=0.2")], ids=str)
def test_a_finished_run_on_a_made_world_is_planned_without_making_it(more, tmp_path, monkeypatch, subtests):
    """From its record, if that is what would be computed; that the strategy reads the truth changes nothing here."""
    made, parts = list[str](), vectors._parts
    monkeypatch.setattr(vectors, "_parts", lambda *spec, **lines: made.append("") or parts(*spec, **lines))
    flags: dict[str, Any] = {"strategy": {"name": "oracle-after-target"}}
    config = load_config(flags=flags, sets=[*_SMALL, *more])
    run = compute_or_reuse(config, RunContext.open(tmp_path, "none"))

    def found(config: RunConfig = config) -> bool:
        """Whether the run is planned, and equal to one whose world was made; True if none was made."""
        made.clear()
        kept, plain = plan_run(config, DataCache(), tmp_path), len(made)
        again = plan_run(config, DataCache())
        assert {**vars(kept), "hash": kept.hash} == {**vars(again), "hash": again.hash}
        return plain == 0

    (tmp_path / f"{run.run_id}-2").mkdir()
    (tmp_path / f"{run.run_id}-2" / "config.json").write_text("{", encoding="utf-8")
    assert found()
    for other in (["dataset.world=5", "backbone.world=0"], ["dataset.twins=3"], ["train.epochs=2"]):
        with subtests.test(other=other):
            assert not found(load_config(flags=flags, sets=[*_SMALL, *more, *other]))
    manifest = run.folder.manifest
    with monkeypatch.context() as changed:
        changed.setattr(identity, "code_version", lambda _: "other")
        assert not found()
    run.folder.write_manifest({**manifest, "dataset": {**manifest["dataset"], "val": "forged"}})
    assert not found()
    run.folder.write_manifest(manifest)
    assert found(config.model_copy(update={"compute": config.compute.model_copy(update={"threads": 2})}))
    (run.path / "result.json").unlink()
    assert not found()
