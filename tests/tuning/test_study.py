"""Trials of the engine on the dev part only, their MLflow copies, and the whole command."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from mlflow.tracking import MlflowClient
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.console import Console

from negbench import api
from negbench.analysis.words import settings_text
from negbench.cli.main import run as negbench
from negbench.data import scene
from negbench.errors import NegbenchError, RunError, UnknownNameError
from negbench.grid.compute import Execution
from negbench.grid.executors import InProcess
from negbench.loop.runs import DATA, plan_run
from negbench.metrics.fixed import DEV_QUERIES
from negbench.report.loaded import StudyResult
from negbench.report.study import finish, importance_frame, trials_frame
from negbench.settings.config import resolve
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker, default_uri
from negbench.systems.system import load_config
from negbench.tuning import final
from negbench.tuning.book import StudyStore, open_book
from negbench.tuning.final import completed_trials, importance
from negbench.tuning.search_space import build_space
from negbench.tuning.spec import StudySpec, first_refresh
from negbench.tuning.study_answer import study_answer
from negbench.tuning.trials import Job, Trials, TrialSearch
from negbench.worlds.synthetic import Synthetic
from tests.made import without
from tests.runs import flags_of

# --- trials of the engine --------------------------------------------------------------------------------------------


DEV = ("eval.dev_fraction=0.3",)


def spec_of(sets: list[str], **settings: Any) -> StudySpec:
    base = load_config(flags={"strategy": {"name": "dqe"}}, sets=[*sets, *DEV])
    return StudySpec.of(base, build_space(base), **settings)


def small_study(sets: list[str], runs: Path, *, trials: int = 3, uri: str = "none", **settings: Any) -> StudyStore:
    job = Job(runs / "s", spec_of(sets, **settings), None, trials, uri)
    book = job.open()
    TrialSearch([(book, job)]).run(Execution(InProcess()))
    return book


def _check_named_per_cent(book: StudyStore, name: str) -> None:
    """Check what Optuna's plots show of a study: the metric's name, and values and curves in per cent."""
    assert book.study.metric_names == [name]
    for trial, stored in zip(book.frozen(), book.study.trials, strict=True):
        assert stored.value == 100 * trial.value, f"trial {trial.number}"
        assert trial.value == trial.user_attrs["score"], f"trial {trial.number}"
        last = stored.intermediate_values[stored.last_step]
        assert last == pytest.approx(stored.value), f"trial {trial.number}"


@pytest.mark.parametrize("generated", [True, False])
def test_trials_and_seeds_share_a_dev_part_and_never_touch_the_reported_split(
    generated, toy_sets, tmp_path, monkeypatch
):
    loaded: list[str] = []
    load_split = scene.load_split
    monkeypatch.setattr(Synthetic, "generates_dev", generated)

    def note_split(config: Any, split: str, **options: Any) -> Any:
        loaded.append(split)
        return load_split(config, split, **options)

    monkeypatch.setattr(scene, "load_split", note_split)
    DATA.clear()
    short = [*toy_sets, "train.epochs=1", "schedule.n_def=1"]
    book = small_study(short, tmp_path, trials=2 if generated else 1, seeds=2)
    _check_named_per_cent(book, "average recall (%)")
    assert loaded == (["train", "dev"] if generated else ["train"])  # once for all trials, and no other split
    queries_of_runs = set()
    for trial in book.frozen():
        runs = [RunFolder(tmp_path / "s" / "cells" / run) for run in trial.user_attrs["runs"]]
        mean = np.mean([run.result["metrics"]["average/recall"] for run in runs])
        assert trial.value == pytest.approx(mean), f"trial {trial.number}"
        assert [run.config.seed for run in runs] == [0, 1], f"trial {trial.number}"
        for run in runs:
            assert run.manifest["dataset"]["scored"] == "dev", f"trial {trial.number}"
            names = set().union(*run.metrics())
            assert not [name for name in names if name.startswith("val/")], f"trial {trial.number}"
            queries_of_runs.add(tuple(run.ranks()["query"]))
    (dev_queries,) = queries_of_runs  # all trials and seeds share them
    if generated:
        assert len(dev_queries) >= DEV_QUERIES
    else:
        train = load_split(runs[0].config.dataset, "train", images=False)
        assert set(dev_queries) < {query.id for query in train.queries}


@pytest.fixture
def install_pruner(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], bool]], None]:
    """Return a function that installs the pruner's answer to a trial's number and step."""

    def start(answer: Callable[[int, int], bool]) -> None:
        def prune(self: Any, study: Any, trial: FrozenTrial) -> bool:
            return answer(trial.number, trial.last_step or 0)

        monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", prune)

    return start


def test_nothing_is_pruned_before_its_first_refresh(longer, tmp_path, install_pruner):
    calls: list[tuple[int, int]] = []

    def prune_all_but_the_first(number: int, step: int) -> bool:
        calls.append((number, step))
        return number > 0

    install_pruner(prune_all_but_the_first)
    book = small_study([*longer, "train.epochs=6"], tmp_path, trials=4)
    firsts = {}
    for trial in book.frozen():
        firsts[trial.number] = first_refresh(book.spec.space.config(book.spec.config, trial.params, 0))
    assert len(set(firsts.values())) > 1
    for number, step in calls:
        assert step >= firsts[number], f"trial {number}"
    for trial in book.frozen()[1:]:
        assert trial.state == TrialState.PRUNED, f"trial {trial.number}"
        # it stopped in the epoch in which it was pruned
        assert trial.last_step == firsts[trial.number], f"trial {trial.number}"
    cells = [RunFolder(path.parent) for path in (tmp_path / "s" / "cells").glob("*/config.json")]
    assert {cell.status for cell in cells} == {"finished", "interrupted"}
    for name in ("checkpoint.pt", "model.safetensors"):  # those of forty trials take gigabytes
        assert not list((tmp_path / "s" / "cells").glob(f"*/{name}")), name


def test_a_rerun_is_judged_by_its_own_reports(longer, tmp_path, monkeypatch):
    """The dead run's reports stay in Optuna, its last one the best of all; a checkpoint is not there."""
    straight = small_study(longer, tmp_path / "straight", trials=1)
    curves: list[dict[int, float]] = []
    real = optuna.pruners.MedianPruner.prune

    def prune(self: Any, study: Any, trial: FrozenTrial) -> bool:
        curves.append(dict(trial.intermediate_values))
        if len(curves) == 2:
            raise KeyboardInterrupt
        return real(self, study, trial)

    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", prune)
    with pytest.raises(KeyboardInterrupt):
        small_study(longer, tmp_path, trials=1)
    book = open_book(tmp_path, "s")
    (dead,) = book.frozen()
    book.study._storage.set_trial_intermediate_value(dead._trial_id, 3, 900.0)
    for path in (tmp_path / "s" / "cells").glob("*/checkpoint.pt"):
        path.unlink()
    (trial,) = small_study(longer, tmp_path, trials=1).frozen()
    want = straight.frozen()[0].intermediate_values
    assert [sorted(curve) for curve in curves] == [[0, 1, 2], [0, 1, 2, 3]] * 2
    for curve in curves[2:]:
        assert curve == {step: want[step] for step in curve}, f"{len(curve)} steps"
    assert trial.intermediate_values == want


def test_a_pruners_answer_outlives_its_worker(longer, tmp_path, install_pruner, monkeypatch):
    """Hyperband answers once for each rung."""
    numbers: list[int] = []
    real = Trials._drop_large_files

    def prune_once(number: int, step: int) -> bool:
        numbers.append(number)
        return numbers.count(1) == 1 and number == 1

    def die(self: Trials, planned: Any) -> None:
        monkeypatch.setattr(Trials, "_drop_large_files", real)
        raise KeyboardInterrupt

    install_pruner(prune_once)
    small_study(longer, tmp_path, trials=1)
    monkeypatch.setattr(Trials, "_drop_large_files", die)
    with pytest.raises(KeyboardInterrupt):
        small_study(longer, tmp_path, trials=2)
    trials = small_study(longer, tmp_path, trials=2).frozen()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE, TrialState.PRUNED]


def test_a_finished_cell_is_read_where_its_worker_died_before_it_said_so(vector_sets, tmp_path, watch_epochs):
    values: list[float] = []
    job = Job(tmp_path / "s", spec_of(vector_sets), None, 1, None)
    book = job.open()

    def compute_and_die(trial: Trial) -> float:
        values.append(Trials(job)(trial))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        book.work(compute_and_die, print)
    (before,) = book.frozen()
    watch_epochs(lambda epoch: pytest.fail("it was trained"))
    TrialSearch([(book, job)]).run(Execution(InProcess()))
    (again,) = book.frozen()
    assert [100 * again.value] == values  # Optuna holds per cent
    assert again.user_attrs["runs"] == before.user_attrs["runs"]
    copies = [run.info.status for run in mlflow_runs(tmp_path, "s") if "trial" in run.data.tags]
    assert copies == ["FINISHED"]  # it replaces the interrupted one


def test_a_cell_that_another_process_computes_keeps_its_files(vector_sets, tmp_path):
    job = Job(tmp_path / "s", spec_of(vector_sets), None, 1, None)
    book = job.open()
    book.work(Trials(job), print)
    (run,) = book.frozen()[0].user_attrs["runs"]
    cell = RunFolder(job.folder / "cells" / run)
    trials = Trials(job)
    planned = plan_run(cell.config, trials._bench.cache)
    (cell.path / "checkpoint.pt").touch()
    with cell.lock():
        trials._drop_large_files(planned)
        assert (cell.path / "checkpoint.pt").exists()
    trials._drop_large_files(planned)
    assert not (cell.path / "checkpoint.pt").exists()


def test_the_end_of_the_command_says_why_a_trial_failed(vector_sets, tmp_path, capsys):
    book = StudyStore(tmp_path / "s", spec_of(vector_sets), trials=3)

    def objective(trial: Trial) -> float:
        if trial.number == 1:
            raise NegbenchError("mend [this]")
        return 0.5

    book.work(objective, print)
    capsys.readouterr()
    finish(Console(width=300), book, None, "none")
    printed = capsys.readouterr().out
    failed = open_book(tmp_path, "s").frozen()[1]
    assert failed.user_attrs["error"] == "mend [this]"
    assert f"Trial 1 failed: mend [this] ({settings_text(failed.params)}).\n1 of 3 trials failed: rerun" in printed


def mlflow_runs(runs: Path, name: str) -> list[Any]:
    client = MlflowClient(default_uri(runs))
    return list(client.search_runs([client.get_experiment_by_name(name).experiment_id]))


def test_mlflow_statuses(vector_sets, tmp_path, before_training, install_pruner):
    def fail_once(run: Any) -> None:
        if run.config.strategy.options["alpha"] != 0.2 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise NegbenchError("mend this")

    before_training(fail_once)
    install_pruner(lambda number, step: number in (0, 2))  # trial 0 is never pruned
    book = small_study(vector_sets, tmp_path, trials=4, uri=default_uri(tmp_path))
    runs = mlflow_runs(tmp_path, "s")
    (parent,) = [run for run in runs if run.data.tags["negbench.kind"] == "study"]
    trials = {int(run.data.tags["trial"]): run for run in runs if run.data.tags["negbench.kind"] == "trial"}
    statuses = {number: run.info.status for number, run in trials.items()}
    assert statuses == {0: "FINISHED", 1: "FAILED", 2: "KILLED", 3: "FINISHED"}
    assert [trial.state.name for trial in book.frozen()] == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    for number, run in trials.items():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id, f"trial {number}"
        alpha = book.frozen()[number].params["strategy.alpha"]
        assert run.data.params["strategy.alpha"] == str(alpha), f"trial {number}"
    assert trials[3].data.metrics["objective/recall"] == book.frozen()[3].value


def test_the_copy_of_a_trial_has_the_settings_of_its_first_seed(vector_sets, tmp_path):
    small_study(vector_sets, tmp_path, trials=1, seeds=2, uri=default_uri(tmp_path))
    (trial,) = [run for run in mlflow_runs(tmp_path, "s") if run.data.tags["negbench.kind"] == "trial"]
    assert trial.data.params["seed"] == "0"


def test_a_lost_copy_is_told_and_made_later(vector_sets, tmp_path, monkeypatch, capsys, run_command):
    """The store is down during a study of an option whose name MLflow does not take."""
    base = load_config(flags={"strategy": {"name": "shifted-top-k"}}, sets=[*vector_sets, *DEV])
    spec = StudySpec.of(base, build_space(base, search=["strategy.start=0:5:log"], fix=["strategy.stop-start"]))
    job = Job(tmp_path / "s", spec, None, 2, "http://127.0.0.1:9")
    book = job.open()
    TrialSearch([(book, job)]).run(Execution(InProcess()))
    assert capsys.readouterr().err.count("2 of 2 runs, and the summary of 's' are not copied: rerun") == 1
    monkeypatch.setattr(os, "execve", lambda *command: None)
    monkeypatch.setattr(subprocess, "Popen", lambda command: None)
    for command in (("ui", "s"), ("doctor",)):
        runs = tmp_path / command[0]
        shutil.copytree(tmp_path / "s", runs / "s")
        Tracker.open(runs).client()  # `doctor` makes no store
        note = "copied 2 trials and the summary of s that"
        assert note in run_command(*command, "--runs-dir", runs).out, command
        assert note not in run_command(*command, "--runs-dir", runs).out, command
        check_copies(runs, book)
    runs = tmp_path / "rerun"
    shutil.copytree(tmp_path / "s", runs / "s")
    Tracker.open(runs).client()
    for _ in range(2):
        replace(job, folder=runs / "s", uri=None).parent.complete()
    check_copies(runs, book)


def check_copies(where: Path, book: StudyStore) -> None:
    runs = {run.data.tags.get("trial", "parent"): run for run in mlflow_runs(where, "s")}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for trial in book.frozen():
        run = runs[str(trial.number)]
        assert run.data.tags["mlflow.parentRunId"] == runs["parent"].info.run_id, f"trial {trial.number}"
        start = trial.params["strategy.start+1"]
        assert run.data.params["strategy.start plus 1"] == str(start), f"trial {trial.number}"
        assert run.data.metrics["objective/recall"] == trial.value, f"trial {trial.number}"
    assert not list((where / "s").glob("*/*/*.partial"))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_from_start_to_test(longer, tmp_path, run_command, monkeypatch):
    """A rate too low to learn against a good one: a third seed runs only if two seeds leave the pair undecided.

    The trials are in a database with a password, which no output and no JSON file contains.
    """
    real = optuna.storages.get_storage

    def refuse_without_password(url: Any) -> Any:
        if isinstance(url, str) and "=hidden" not in url:
            raise PermissionError("no password")
        return real(url)

    monkeypatch.setattr(optuna.storages, "get_storage", refuse_without_password)
    storage = f"sqlite:///file:{tmp_path}/s.db?uri=true&password=hidden"
    recipe = tmp_path / "r.toml"
    recipe.write_text("[study]\nuntil = 'decided'\nmax_seeds = 3\n", encoding="utf-8")
    sets = flags_of([*without(longer, "schedule.n_def"), *DEV, "train.lr=0.000001"])
    grid = ["--search", "train.lr=0.000001|0.03", "--sampler", "grid", "--storage", storage, "--name", "s"]
    command = ["study", "--strategy", "all-corpus", "--recipe", str(recipe), *sets, *grid, "--runs-dir", str(tmp_path)]
    arguments = [*command, "--final-seeds", "2"]
    out, err = run_command(*arguments)
    assert "hidden" not in out + err
    assert not [path for path in tmp_path.rglob("*.json*") if "hidden" in path.read_text()]
    assert "  trial 0: " in err
    assert "no trial reads val" in out
    assert "2 of 2 trials finished: too few to say which searched option matters (10 needed)" in out
    assert "optuna-dashboard --host 127.0.0.1 'sqlite:///file:" in out
    book = open_book(tmp_path, "s", storage)
    assert book.counts()["finished"] == 2
    best = completed_trials(book)[0]
    assert best.number == 1
    assert best.params == {"train.lr": 0.03}
    if "look 1, 2 seeds: 1 difference from the baseline is undecided" in out:
        check_final_runs(tmp_path, [1, 2, 3])
    else:
        assert " decided" in out
        check_final_runs(tmp_path, [1, 2])
    answer = (tmp_path / "s" / "answer.md").read_text()
    assert answer.startswith("The best of 2 finished trials is lr=0.03: ")
    assert "queries that no trial saw it is " in answer
    check_tracked_study(tmp_path, answer)
    out, err = run_command(*arguments, "--json")  # rerun: nothing is computed, the output is the same
    assert " trial " not in err
    study = api.load("s", tmp_path, storage=storage)
    assert isinstance(study, StudyResult)
    assert "study s: best train.lr = 0.03" in repr(study)
    check_document(json.loads(out), study, answer)
    assert negbench([*command, "--final-seeds", "1"]) == 2


def check_final_runs(runs: Path, seeds: list[int]) -> None:
    """Check that the final comparison has the best and the default rate at these seeds, and a report."""
    cells = json.loads((runs / "s-final" / "comparison.json").read_text())["cells"]
    rows = [(row["strategy"], row["seed"], RunFolder(runs / row["run"]).config.train.lr) for row in cells]
    want = [("all-corpus best", seed, 0.03) for seed in seeds]
    want += [("all-corpus default", seed, 0.000001) for seed in seeds]
    assert rows == want
    assert (runs / "s-final" / "report" / "index.html").exists()


def check_tracked_study(runs: Path, answer: str) -> None:
    """Check that MLflow has the study's answer and its tables."""
    (parent,) = [run for run in mlflow_runs(runs, "s") if run.data.tags["negbench.kind"] == "study"]
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["mlflow.note.content"] == answer.rstrip("\n")
    artifacts = MlflowClient(default_uri(runs)).list_artifacts(parent.info.run_id)
    assert {artifact.path for artifact in artifacts} == {"trials.csv", "importance.csv", "answer.md"}


def check_document(document: dict[str, Any], study: StudyResult, answer: str) -> None:
    """Check what `--json` prints of the study."""
    assert document["best"] == {"train.lr": 0.03}
    assert len(document["trials"]) == 2
    assert "\n\n".join(document["answer"]) + "\n" == answer
    assert document["final"]["answer"] == study.final.answer
    verdicts = {row["strategy"]: row["verdict"] for row in document["final"]["statistics"] if row["main"]}
    assert verdicts.keys() == {"all-corpus best", "all-corpus default"}


def test_trials_are_scored_and_judged_by_another_metric(longer, tmp_path, run_command):
    """By recall at 7, which no result.json holds: it follows from the ranks of the trials."""
    settings = (*without(longer, "schedule.n_def"), *DEV, "train.lr=0.000001")
    sets = flags_of(settings)
    grid = ["--search", "train.lr=0.000001|0.03", "--sampler", "grid", "--metric", "R@7", "--name", "s"]
    arguments = ["study", "--strategy", "all-corpus", *sets, *grid, "--final-seeds", "2", "--runs-dir", str(tmp_path)]
    out, _ = run_command(*arguments, "--tracking-uri", "none")
    assert "scored by average R@7 on a dev part" in out
    book = open_book(tmp_path, "s")
    assert book.spec.metric == "average/recall_at_7"
    assert book.spec.pruner == "none"  # curves have none
    for trial in book.frozen():
        (run,) = trial.user_attrs["runs"]
        frame = RunFolder(tmp_path / "s" / "cells" / run).ranks()
        by_hand = (frame["target_rank"] <= 7).groupby(frame["group"]).mean().mean()
        assert trial.value == pytest.approx(by_hand), f"trial {trial.number}"
    verdicts = json.loads((tmp_path / "s-final" / "statistics.json").read_text())["verdicts"]
    assert {row["metric"] for row in verdicts if row["main"]} == {"average/recall_at_7"}
    assert "% by average R@7 on the dev part" in (tmp_path / "s" / "answer.md").read_text()
    rerun = partial(
        api.study,
        strategy="all-corpus",
        sets=settings,
        sampler="grid",
        search=("train.lr=0.000001|0.03",),
        name="s",
        runs_dir=tmp_path,
        tracking_uri="none",
    )
    with pytest.raises(UnknownNameError, match="--metric"):
        rerun(metric="R@x")
    with pytest.raises(RunError, match="different metric"):  # as with any other setting of its trials
        rerun()


def test_tables_of_what_was_found(tmp_path, vector_sets, monkeypatch):
    monkeypatch.setattr(final, "_DRAWS", 2)  # each takes a third of a second; the next test has ten
    book = StudyStore(tmp_path / "toy", spec_of(vector_sets, sampler="random"), trials=24)
    assert importance(book) == {}
    book.work(lambda trial: 0.5 - (float(trial.params["strategy.alpha"]) - 0.1) ** 2, print)
    trials = trials_frame(book)
    spec = book.spec
    assert set(trials["epochs"]) == {str(resolve(spec.config).train.epochs * len(spec.seeds))}
    assert list(trials["recall %"]) == [f"{100 * (trial.value or 0):.2f}" for trial in book.frozen()]
    shares = importance(book)
    assert next(iter(shares)) == "strategy.alpha"
    assert importance_frame(book)["knob"][0] == "strategy.alpha"
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    whole = optuna.importance.get_param_importances(
        book.study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    assert StudyResult(book.folder).plain()["importance"] == shares == whole


def test_an_order_that_resampling_turns_is_not_shown(tmp_path, vector_sets, monkeypatch, subtests):
    book = StudyStore(tmp_path / "toy", spec_of(vector_sets, sampler="random"), trials=10)
    book.work(lambda trial: trial.number / 10, print)
    whole = {"a": 0.6, "b": 0.4}
    for turned, want in ((1, whole), (2, {})):  # of ten draws
        with subtests.test(turned=turned):
            orders = iter([whole, *[{"b": 0.6, "a": 0.4}] * turned, *[{"a": 0.9, "b": 0.1}] * 10])
            monkeypatch.setattr(final, "_fanova", lambda trials, orders=orders: next(orders))
            assert importance(book) == want


def test_the_answer_says_what_trial_0_was_and_how_flat_the_optimum_is(vector_sets, tmp_path, golden):
    """Trials 1 and 2 try one point."""
    base = load_config(flags={"strategy": {"name": "dqe"}}, sets=[*vector_sets, *DEV])
    answers: dict[str, list[str]] = {}
    for search in ((), ("strategy.alpha=0.3:0.4",)):
        for values in ({0: 0.5}, {1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5, 3: 0.495}):
            spec = StudySpec.of(base, build_space(base, search=search))
            book = StudyStore(tmp_path / str(len(answers)), spec, trials=4)
            for _ in range(2):
                book.study.enqueue_trial({**spec.space.default, "strategy.alpha": 0.35})
            book.work(lambda trial, values=values: values.get(trial.number, 0.3), print)
            name = f"{values} with {search[0]}" if search else f"{values}"
            answers[name] = study_answer(book, None)
    golden("study", answers)


def test_the_answer_names_bands_as_ranks(vector_sets, tmp_path):
    """Against the pools of the trials' runs."""
    book = small_study(vector_sets, tmp_path, trials=3)
    lines = study_answer(book, None)
    best = completed_trials(book)[0]
    for line, trial in zip(lines, [best, book.frozen()[0]], strict=False):
        (name,) = trial.user_attrs["runs"]
        result = RunFolder(book.folder / "cells" / name).result
        images = result["regime_by_refresh"][-1]["images"] - 1
        start = 1 + result["behaviour"]["band_start"] * (images - 1)
        end = 1 + result["behaviour"]["band_end"] * (images - 1)
        shares = f"{100 * start / images:.1f} to {100 * end / images:.1f} % of the gallery"
        assert f"negatives from ranks {start:.0f} to {end:.0f} ({shares})" in line, f"trial {trial.number}"
