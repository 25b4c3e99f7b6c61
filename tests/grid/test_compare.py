"""Comparisons: cells are computed once, failures stop nothing, tables do not depend on how they were computed."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
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
from negbench.grid.cells import Cell, _shorten_labels, plan_cells, titles_of
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
from negbench.store.copies import POSITION, SUMMARIES
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker, default_uri
from negbench.systems.system import load_config
from negbench.worlds import vectors
from tests.made import cell, outcome_of, typed_columns, without
from tests.runs import flags_of

# files that depend on the cells alone
FILES = (
    *("table.md", "table.tex", "table.csv", "statistics.csv", "statistics.json"),
    *("behaviour.md", "behaviour.csv", "regime.csv"),
)


def axes_of(vector_sets: list[str], strategies: str, **changes: Any) -> Axes:
    options = {"losses": "bradley-terry", "seeds": 2, **changes}
    return Axes.of(Compare(strategies=strategies, sets=tuple(vector_sets), **options))


def plan(axes: Axes, runs: Path) -> list[Cell]:
    return plan_cells(axes.configs(), runs, Display(), DataCache())


def test_all_strategies_are_those_that_every_run_can_have():
    """`all` names every built-in strategy but those that need a guide, a judge or listed negatives."""
    names = {section["name"] for section in plugin_sections("strategies", "all")}
    built_in = {name for name, plugin in registry.plugins("strategies").items() if plugin.origin == "built-in"}
    assert built_in - names == {"gist", "listed", "rocketqa"}


@dataclass
class Scripted:
    """Executor on another machine that answers with events of made cells, each after a note."""

    answers: dict[str, tuple[Any, ...]]
    hashes: list[str] = field(default_factory=list)
    workers: ClassVar[int] = 2
    elsewhere: ClassVar[bool] = True

    def run(self, function: Any, tasks: Sequence[Any]) -> Any:
        self.hashes += [task.planned.hash for task in tasks]
        for index, task in enumerate(tasks):
            yield Event(index, "note", "slow")
            yield Event(index, *self.answers[task.planned.hash])


ERROR = "ZeroDivisionError: division by zero"


@pytest.fixture
def scripted(tmp_path: Path) -> SimpleNamespace:
    """Compute four cells: a fault in `a`, `b` in two cells, and `c`, which is finished."""
    a = cell("a", 0)
    b = cell("b", 0)
    cells = [a, b, replace(cell("c", 0, done=True), folder="run-c"), replace(b, columns={**b.columns, "strategy": "x"})]
    folder = ComparisonFolder(tmp_path / "c")
    executor = Scripted({"a0": ("failed", ERROR, "Traceback"), "b0": ("done", ("run-b", True))})
    forecast: Any = SimpleNamespace(add_computed=lambda *_: False, later=(0.0, 0.0))
    execution = Execution(executor, "none", forecast)
    outcomes = grid_compute.compute_and_log(folder, cells, execution, [outcome_of(cell("z", 0))])
    return SimpleNamespace(folder=folder, cells=cells, executor=executor, execution=execution, outcomes=outcomes)


def test_a_run_is_computed_once_in_the_order_of_the_plan_and_a_failure_stops_nothing(logged, scripted):
    assert scripted.executor.hashes == ["a0", "b0"]
    outcomes = scripted.outcomes
    assert [outcome.cell for outcome in outcomes] == scripted.cells
    assert [outcome.run_id for outcome in outcomes] == [None, "run-b", "run-c", "run-b"]
    assert [outcome.reused for outcome in outcomes] == [False, True, True, True]
    assert [outcome.error for outcome in outcomes] == [ERROR, None, None, None]
    assert [row["run"] for row in scripted.folder.cells()] == [None, "run-b", "run-c", "run-b", "run-z0"]
    assert [record.getMessage() for record in logged] == [
        "a seed 0: slow",
        f"[2/3]    0.0 s  a seed 0 FAILED: {ERROR}",
        "b seed 0: slow",
        f"FAILED a seed 0: {ERROR}",
    ]


def test_a_fault_is_kept_with_its_traceback_and_computed_again_by_a_rerun(scripted):
    folder = scripted.folder
    a = scripted.cells[0]
    assert (folder.path / "fault-a0.txt").read_text() == "Traceback"
    scripted.executor.answers["a0"] = ("done", ("run-a", False))
    (outcome,) = grid_compute.compute_and_log(folder, [a], scripted.execution)
    assert (outcome.run_id, outcome.error) == ("run-a", None)
    before = file_states(folder.path)
    finished = replace(a, done=True, folder="run-a")
    (outcome,) = grid_compute.compute_and_log(folder, [finished], scripted.execution)
    assert (outcome.run_id, outcome.reused) == ("run-a", True)
    assert file_states(folder.path) == before


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


ENCODED = {  # backbone, precisions of cells that were started, and which cells are opened
    "an image tower": ("clip", (None,) * 5, [0, 2, 3]),
    "cells that were started elsewhere": ("clip", (None, "bf16", None, None, "bf16"), [0, 1, 2, 3, 4]),
    "features of its own": ("vectors", (None,) * 5, [0]),
}


@pytest.mark.parametrize(("backbone", "precisions", "expected"), ENCODED.values(), ids=ENCODED)
def test_images_are_encoded_once_for_each_data_set_backbone_and_precision(
    backbone, precisions, expected, monkeypatch, tmp_path
):
    """Of five cells on data sets a, a, b, c and b; of a backbone that brings its features, one world is opened."""
    opened: list[int] = []
    monkeypatch.setattr(grid_compute, "open_run", lambda run, *_: opened.append(run.number))
    monkeypatch.setattr(grid_compute, "started_precision", lambda run, _: precisions[run.number])
    cells = [_cell_of(backbone, data, number) for number, data in enumerate("aabcb")]
    grid_compute.encode_cells(cells, tmp_path, Display())
    assert opened == expected


def _cell_of(backbone: str, data: str, number: int) -> Any:
    """Return a cell of the data set `world` with only the fields that encoding reads."""
    config = SimpleNamespace(backbone=SimpleNamespace(name=backbone), train=SimpleNamespace(precision="auto"))
    run = SimpleNamespace(data=data, number=number)
    return SimpleNamespace(run=run, config=config, labels={"backbone": backbone, "dataset": "world"})


def test_workers_are_prepared_where_there_is_something_for_them_to_do(vector_sets, tmp_path, monkeypatch):
    """Workers are prepared before images are encoded; a finished comparison prepares none."""
    calls: list[str] = []
    monkeypatch.setattr(Processes, "prepare", lambda self, function: calls.append(function.__name__))
    monkeypatch.setattr(Processes, "run", lambda self, function, tasks: InProcess().run(function, tasks))
    monkeypatch.setattr(grid_compute, "encode_cells", lambda *_: calls.append("encoded"))

    def calls_of_a_comparison() -> list[str]:
        calls.clear()
        cells = plan(axes_of(vector_sets, "in-batch", seeds=1), tmp_path)
        execution = Execution(Processes(2), "none")
        (outcome,) = grid_compute.compute_and_log(ComparisonFolder(tmp_path / "c"), cells, execution)
        assert outcome.error is None
        return calls

    assert calls_of_a_comparison() == ["compute_task", "encoded"]
    assert calls_of_a_comparison() == []  # finished


@pytest.mark.parametrize(
    ("value", "seeds"), [("3", (0, 1, 2)), (3, (0, 1, 2)), ("4,", (4,)), ((4,), (4,)), ("7,2", (7, 2))], ids=repr
)
def test_seeds(value, seeds):
    assert parse_seeds(value) == seeds


@pytest.mark.parametrize("wrong", [",", "", "0", "1,1", "two", [0, -1], [], None], ids=repr)
def test_wrong_seeds_are_refused(wrong):
    with pytest.raises(OptionError, match="--seeds"):
        parse_seeds(wrong)


@pytest.mark.parametrize("value", ["1, 5,63", [1, 5, 63]], ids=repr)
def test_numbers_of_negatives(value):
    assert parse_negatives(value) == (1, 5, 63)


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
    options = with_recipe(Compare(recipe=recipe, margin=1))
    assert options.margin == 1
    axes = Axes.of(options)
    assert axes.values("strategy") == ({"name": "qure"}, {"name": "dqe", "alpha": 0.3, "beta": 0.7})
    assert axes.values("seed") == (4,)
    assert [config.train.epochs for config in axes.configs()] == [2, 2]
    assert Axes.of(with_recipe(Compare(recipe=recipe, seeds=2))).values("seed") == (0, 1)
    for wrong, message in mistakes["compare-recipe"].items():
        with subtests.test(wrong):
            recipe.write_text(f"[compare]\n{wrong}\n", encoding="utf-8")
            expect_error(["compare", "--recipe", str(recipe), "--dry-run", "--runs-dir", str(tmp_path)], message)


@pytest.fixture(scope="module")
def both(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a command with a report and a store, its folder, and what it printed; tests change only copies."""
    runs = tmp_path_factory.mktemp("both")
    out = StringIO()
    err = StringIO()
    command = command_of(vector_sets, runs, "--seeds", "2", "--name", "both")
    with redirect_stdout(out), redirect_stderr(err):
        assert negbench(command) == 0
    return SimpleNamespace(runs=runs, command=command, out=out.getvalue(), err=err.getvalue())


def test_the_command_prints_tables(both):
    out = both.out
    assert "4 cells" in out
    assert "R@10 behind the best with as many negatives in points" in " ".join(out.split())
    assert [text for text in ("R@10", "stored", "index.html") if text not in out] == []
    assert [text for text in ("FN pool %", "cost: ") if text in out] == []
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
    before = file_states(both.runs)
    monkeypatch.setattr(finish_of, "judge_comparison", None)
    assert run_command(*both.command).out == both.out.replace("0 already", "4 already")
    assert file_states(both.runs) == before


@pytest.fixture(scope="module")
def logged_runs(both: SimpleNamespace) -> dict[str, list[Any]]:
    """Return the runs that the comparison has in MLflow, by kind."""
    client = MlflowClient(default_uri(both.runs))
    runs: dict[str, list[Any]] = {"cell": [], "comparison": [], "summary": []}
    for run in client.search_runs([client.get_experiment_by_name("both").experiment_id]):
        runs[run.data.tags["negbench.kind"]].append(run)
    return runs


def test_the_store_has_a_run_of_each_cell_and_a_summary_of_each_strategy(logged_runs):
    assert {kind: len(runs) for kind, runs in logged_runs.items()} == {"cell": 4, "comparison": 1, "summary": 2}
    (parent,) = logged_runs["comparison"]
    for kind, runs in logged_runs.items():
        for run in runs:
            case = f"{kind} {run.info.run_name}"
            assert run.data.tags.get("mlflow.parentRunId", parent.info.run_id) == parent.info.run_id, case
            has_means_of_mining = any(name.startswith("mined/") for name in run.data.metrics)
            assert has_means_of_mining == (kind == "summary"), case


@pytest.fixture(scope="module")
def summaries(logged_runs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the data of the summaries in MLflow, by strategy."""
    return {run.info.run_name: run.data for run in logged_runs["summary"]}


@pytest.mark.parametrize("strategy", ["in-batch", "qure"])
def test_a_summary_has_the_mean_of_its_cells(logged_runs, summaries, strategy):
    cells = [run.data for run in logged_runs["cell"] if run.data.tags["strategy"] == strategy]
    recalls = [cell.metrics["recall_at_10"] for cell in cells]
    summary = summaries[strategy]
    assert summary.tags["strategy"] == strategy
    assert summary.metrics["R/10"] == pytest.approx(np.mean(recalls))
    assert summary.metrics["sd/R 10"] == pytest.approx(np.std(recalls, ddof=1))


def test_a_summary_has_its_verdict(both, summaries):
    rows = {row.strategy: row for row in read_verdicts(both.runs / "both") if row.main}
    in_batch = summaries["in-batch"]
    qure = summaries["qure"]
    assert in_batch.tags["verdict"] == "baseline"
    assert qure.tags["verdict"] == rows["qure"].verdict
    assert qure.tags["baseline"] == "in-batch"
    for column, chart in (("p_adjusted", "vs/p"), ("difference", "vs/diff"), ("diff_low", "vs/diff low")):
        assert qure.metrics[chart] == pytest.approx(rows["qure"].flat()[column]), column
    assert "vs/diff" not in in_batch.metrics


def test_the_page_of_the_store_begins_with_the_answer(both):
    client = MlflowClient(default_uri(both.runs))
    experiment = client.get_experiment_by_name("both")
    _check_what_mlflow_shows_first(client, experiment.experiment_id, 2)
    (answer, *_) = (both.runs / "both" / "answer.md").read_text(encoding="utf-8").splitlines()
    assert experiment.tags["mlflow.note.content"].splitlines()[0] == answer
    assert f"/experiments/{experiment.experiment_id}/runs" in Tracker.open(both.runs).address("both")


def _check_what_mlflow_shows_first(client: MlflowClient, experiment: str, count: int) -> None:
    """Check, by the orders of MLflow's pages, that recall comes first and that cut titles differ."""
    summaries = client.search_runs([experiment], SUMMARIES, order_by=[f"tags.`{POSITION}` ASC"])
    means = [run.data.metrics["vs/mean"] for run in summaries]
    assert means == sorted(means, reverse=True)
    assert len(means) == count
    for run in summaries:
        logged = list(client.get_run(run.info.run_id).data.metrics)
        assert logged[0] == "R/10", run.info.run_name  # on the page that compares runs
        assert min(logged).startswith("R/"), run.info.run_name  # JavaScript sorts by code unit, too
        cut = {name[:10]: name for name in logged}
        assert sorted(cut.values()) == sorted(logged), run.info.run_name


def command_of(vector_sets: list[str], runs: Path, *more: str) -> list[str]:
    words = ["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--lr", "fixed", "--runs-dir", str(runs)]
    return [*words, *flags_of(vector_sets), *more]


def file_states(runs: Path) -> dict[str, tuple[int, int]]:
    """Return every file below a folder with its inode and modification time."""
    stats = {path: path.stat() for path in sorted(runs.rglob("*")) if path.is_file()}
    return {str(path): (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.fixture
def copied(both: SimpleNamespace, vector_sets: list[str], tmp_path: Path) -> SimpleNamespace:
    """Copy the finished comparison, without its store; return the copy's runs, its folder and its command."""
    runs = Path(shutil.copytree(both.runs, tmp_path / "runs", ignore=shutil.ignore_patterns("mlflow*")))
    flags = ("--seeds", "2", "--name", "both", "--tracking-uri", "none", "--no-report")
    return SimpleNamespace(runs=runs, folder=runs / "both", command=command_of(vector_sets, runs, *flags))


@pytest.fixture
def judged(spy_on: Callable[[object, str], list[Any]]) -> list[Any]:
    """Collect the arguments with which the end of a comparison judges it."""
    return spy_on(finish_of, "judge_comparison")


def test_a_comparison_whose_output_is_missing_or_damaged_is_made_again(both, copied, judged):
    """`test_the_command_again_...` has the rerun that writes nothing."""
    assert negbench(copied.command) == 0
    (copied.folder / "table.md").unlink()
    assert negbench(copied.command) == 0
    for name in ("inputs.json", "statistics.json"):
        (copied.folder / name).write_text("{}", encoding="utf-8")
        assert negbench(copied.command) == 0, name
    assert (copied.folder / "table.md").read_bytes() == (both.runs / "both" / "table.md").read_bytes()
    assert len(judged) == 4


def test_a_comparison_with_another_rule_changed_runs_or_fewer_cells_is_made_again(copied, judged, run_command):
    command = [*copied.command, "--margin", "30"]
    assert negbench(command) == 0
    assert read_verdicts(copied.folder)[0].margin == 0.3
    assert len(judged) == 1
    for path in copied.runs.glob("*/result.json"):
        run = RunFolder(path.parent)
        run.write_result({**run.result, "seconds": {"train": 1234.5}})
    assert re.search("1,?234", run_command(*command, "-v").out)  # in the table of costs
    assert len(judged) == 2
    assert negbench([*command, "--strategies", "qure"]) == 0
    assert len(read_json(copied.folder / "comparison.json")["cells"]) == 2


def test_a_finished_comparison_in_a_read_only_folder_is_printed(both, run_command, monkeypatch, subtests):
    before = file_states(both.runs)
    access = os.access  # this process may write everywhere

    def access_read_only(path: Any, mode: int, **options: Any) -> bool:
        return mode != os.W_OK and access(path, mode, **options)

    monkeypatch.setattr("os.access", access_read_only)
    for more in ([], ["--margin", "30"], ["--tracking-uri", "none"]):
        with subtests.test(more=more):
            out = run_command(*both.command, *more).out
            assert "R@10" in out
            assert ("cannot be written: nothing was stored" in out) == ("--margin" in more)
    assert file_states(both.runs) == before


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Write a folder of each kind, a store and a file, which must stay as they are."""
    write_json(tmp_path / "of-claims" / "comparison.json", {"kind": "claims", "cells": []})
    write_json(tmp_path / "of-a-study" / "study.json", {})
    write_json(tmp_path / "of-a-run" / "config.json", {})
    write_json(tmp_path / "compared" / "comparison.json", {"kind": "comparison", "cells": []})
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "a-file").touch()
    before = file_states(tmp_path)
    yield tmp_path
    assert file_states(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "kind"), [("of-claims", "claims"), ("of-a-study", "a study"), ("of-a-run", "a run"), ("a-file", "a file")]
)
def test_a_name_of_something_else_is_refused(vector_sets, folders, expect_error, name, kind):
    line = expect_error(command_of(vector_sets, folders, "--name", name), f"negbench: error: --name {name}: ")
    assert line.endswith(f" is already {kind}: give another --name")


@pytest.mark.parametrize("name", ["mlflow.db", "mlflow.db-wal", "artifacts"])  # also before there is a store
def test_a_name_of_the_store_is_refused(vector_sets, folders, expect_error, name):
    command = command_of(vector_sets, folders, "--name", name)
    expect_error(command, "the MLflow store of the runs folder has this name")


@pytest.mark.parametrize("kind", ["claims", "study", "final"])
def test_the_name_of_a_comparison_is_none_of_another_kind(folders, kind):
    with pytest.raises(OptionError, match="compared is already a comparison"):
        check_name(folders / "compared", kind)
    check_name(folders / "new", kind)


@pytest.mark.parametrize(
    ("name", "kind"), [("compared", "comparison"), ("of-claims", "claims"), ("of-a-study", "study")]
)
def test_a_name_may_be_that_of_a_folder_of_its_kind(folders, name, kind):
    check_name(folders / name, kind)


def test_a_runs_folder_that_is_none_is_one_line(expect_error, subtests):
    for command in ("compare", "run", "study", "claims"):
        with subtests.test(command):
            words = [command, "--backbone", "vectors", "--dataset", "vectors", "--set", "train.epochs=2"]
            if command in ("run", "study"):
                words += ["--strategy", "qure"]
            problem = "cannot write" if command == "run" else "--runs-dir"
            expect_error([*words, "--runs-dir", os.devnull], f"error: {problem} {os.devnull}")


def test_a_dry_run_stops_after_the_plan(vector_sets, tmp_path, run_command):
    out = run_command(*command_of(vector_sets, tmp_path, "--dry-run", "--workers", "2")).out
    assert "2 cells (2 strategies), 0 already finished" in out
    assert "the 2 runs: 1 s of computing; " in out  # timed: each takes 0.3 s to be stored
    assert "MiB of memory for each worker (timed on this machine)\n" in out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_after_a_pilot_prices_further_seeds_by_its_runs(both, run_command):
    out = run_command(*both.command, "--dry-run", "--seeds", "5").out
    results = [read_json(path) for path in both.runs.glob("*/result.json")]
    seconds = sum(sum(result["seconds"].values()) for result in results) / 4
    memory = max(result["peak_memory_mib"]["process"] for result in results)
    text = f"the other 6 runs: {duration(6 * seconds)} of computing; {memory:,.0f} MiB of memory for each worker"
    assert f"{text}\n" in out


def test_mistakes_stop_before_anything_is_computed(vector_sets, tmp_path, expect_error, mistakes, subtests):
    for flags, message in mistakes["compare"].items():
        with subtests.test(flags):
            expect_error(command_of(vector_sets, tmp_path, *flags.split()), message)
    assert not list(tmp_path.iterdir())


def test_titles_tell_cells_apart(vector_sets, tmp_path):
    cells = plan(axes_of(vector_sets, "qure", seeds=2), tmp_path)
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
    one = "precomputed(images=/a/b/x.npz, texts=~/t.npz)"
    two = "precomputed(images=/a/c/x.npz, texts=~/t.npz)"
    assert list(short([one, "tiny", one]).values()) == ["precomputed(images=x.npz, texts=t.npz)", "tiny"]
    labels = short([one, two]).values()  # a part of the path's hash, never the path, which others would read
    assert len(set(labels)) == 2
    for label in labels:
        assert re.fullmatch(r"precomputed\(images=x\.npz, texts=t\.npz\) #[0-9a-f]{4}", label), label
    assert short(["clip(weights=lavis:/m/model.pth)", "qure(a/b=1)"]) == {
        "clip(weights=lavis:/m/model.pth)": "clip(weights=lavis:model.pth)", "qure(a/b=1)": "qure(a/b=1)",
    }  # fmt: skip


@pytest.mark.parametrize("axis", ["strategy", "loss", "backbone"])
def test_a_cell_is_labelled_with_names_of_files(axis):
    of_file = cell("a", 0)
    of_file = replace(of_file, columns={**of_file.columns, axis: "/a/b/mine.py"})
    other = cell("b", 0)
    assert [one.labels[axis] for one in _shorten_labels([of_file, other])] == ["mine.py", other.labels[axis]]


def test_systems_bring_their_own_losses_whatever_the_recipe_compares():
    assert with_recipe(Compare(recipe=Path("demo-single"), systems="all")).losses is None
    assert with_recipe(Compare(recipe=Path("demo-single"))).losses == ["bradley-terry"]


_WORLD = ("train_images=40", "train_queries=24", "val_images=40", "val_queries=20", "twins=2")
_SMALL = (*(f"dataset.{text}" for text in ("name=vectors", *_WORLD)), "backbone.name=vectors", "train.epochs=1")


@pytest.mark.parametrize("more", [(), ("dataset.world=0", "eval.select=dev", "eval.dev_fraction=0.2")], ids=str)
def test_a_finished_run_on_a_made_world_is_planned_without_making_it(more, tmp_path, monkeypatch, spy_on, subtests):
    """From its record, if that is what would be computed; that the strategy reads the truth changes nothing here."""
    worlds = spy_on(vectors, "_parts")
    flags: dict[str, Any] = {"strategy": {"name": "oracle-after-target"}}
    config = load_config(flags=flags, sets=[*_SMALL, *more])
    run = compute_or_reuse(config, RunContext.open(tmp_path, "none"))

    def is_planned_without(config: RunConfig = config) -> bool:
        """Whether no world is made for the plan, which is that of a made world in any case."""
        worlds.clear()
        from_record = plan_run(config, DataCache(), tmp_path)
        made_none = not worlds
        from_world = plan_run(config, DataCache())
        assert {**vars(from_record), "hash": from_record.hash} == {**vars(from_world), "hash": from_world.hash}
        return made_none

    (tmp_path / f"{run.run_id}-2").mkdir()
    (tmp_path / f"{run.run_id}-2" / "config.json").write_text("{", encoding="utf-8")
    assert is_planned_without()
    for other in (["dataset.world=5", "backbone.world=0"], ["dataset.twins=3"], ["train.epochs=2"]):
        with subtests.test(other=other):
            assert not is_planned_without(load_config(flags=flags, sets=[*_SMALL, *more, *other]))
    manifest = run.folder.manifest
    with monkeypatch.context() as changed:
        changed.setattr(identity, "code_version", lambda _: "other")
        assert not is_planned_without()
    run.folder.write_manifest({**manifest, "dataset": {**manifest["dataset"], "val": "forged"}})
    assert not is_planned_without()
    run.folder.write_manifest(manifest)
    assert is_planned_without(config.model_copy(update={"compute": config.compute.model_copy(update={"threads": 2})}))
    (run.path / "result.json").unlink()
    assert not is_planned_without()
