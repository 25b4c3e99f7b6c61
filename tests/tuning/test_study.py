"""Trials of the engine on the dev part only, their MLflow copies, the command from start to test, and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from optuna.trial import Trial, TrialState

from negbench import api
from negbench.cli.main import run as negbench
from negbench.config import RunConfig
from negbench.data import scene
from negbench.errors import NegbenchError
from negbench.executors import Here
from negbench.grid.cells import SCENES
from negbench.loop import runs as engine
from negbench.loop import train as loop
from negbench.report.loaded import StudyResult
from negbench.report.page import write_page
from negbench.report.study import study_page
from negbench.runfolder import RunFolder
from negbench.systems.system import load_config
from negbench.tracking import Pruned, default_uri
from negbench.tuning.book import Book, open_book
from negbench.tuning.final import finished, front
from negbench.tuning.serve import open_study, run_study
from negbench.tuning.space import build_space
from negbench.tuning.spec import StudySpec, first_refresh
from negbench.tuning.trials import Trials

# --- trials of the engine --------------------------------------------------------------------------------------------


DEV = ("eval.dev_fraction=0.3",)


def base_of(strategy: str, *sets: str) -> RunConfig:
    return load_config(flags={"strategy": {"name": strategy}}, sets=sets)


def spec_of(base: RunConfig, **changed: Any) -> StudySpec:
    space = changed.pop("space", None) or build_space(base)
    return StudySpec.of(base, space, **changed)


def silent(text: str) -> None:
    pass


def toy_study(toy_sets: list[str], runs: Path, *, trials: int = 3, uri: str = "none", **changed: Any) -> Book:
    spec = spec_of(base_of("dqe", *toy_sets, *DEV), **changed)
    book, job = open_study(runs, "s", spec, trials=trials, tracking_uri=uri)
    run_study(job, Here(), silent)
    return book


def test_trials_and_seeds_share_a_dev_part_and_the_reported_split_is_never_touched(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, load_split = list[str](), scene.load_split

    def watched(config: Any, split: str, **options: Any) -> Any:
        asked.append(split)
        return load_split(config, split, **options)

    monkeypatch.setattr(scene, "load_split", watched)
    SCENES.clear()
    book = toy_study(toy_sets, tmp_path, trials=2, seeds=2, pruner="none")
    assert asked == ["train"]  # once for all trials, and nothing else
    runs = [[RunFolder(tmp_path / "s" / "cells" / run) for run in t.user_attrs["runs"]] for t in book.frozen()]
    train = {q.id for q in load_split(runs[0][0].config.dataset, "train", images=False).queries}
    (shared,) = {tuple(run.ranks()["query"]) for mine in runs for run in mine}
    assert set(shared) < train
    for trial, mine in zip(book.frozen(), runs, strict=True):
        assert trial.values == pytest.approx([np.mean([run.result["metrics"]["average/recall"] for run in mine])])
        assert [run.config.seed for run in mine] == [0, 1]
        for run in mine:
            assert run.manifest["dataset"]["scored"] == "dev"
            assert not [name for point in run.metrics() for name in point if name.startswith("val/")]


def test_images_are_encoded_once(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    opened: list[int] = []
    real = scene.open_scene

    def watched(*arguments: Any) -> Any:
        found = real(*arguments)
        opened.append(found.encoded)
        return found

    monkeypatch.setattr(scene, "open_scene", watched)
    SCENES.clear()
    toy_study(toy_sets, tmp_path / "runs", trials=3)
    assert opened == [3 * 32]


def test_the_same_study_twice_gives_the_same_values(toy_sets: list[str], tmp_path: Path) -> None:
    found = [toy_study(toy_sets, tmp_path / name, trials=4).frozen() for name in ("a", "b")]
    assert [t.params for t in found[0]] == [t.params for t in found[1]]
    assert [t.values for t in found[0]] == [t.values for t in found[1]]
    assert [t.intermediate_values for t in found[0]] == [t.intermediate_values for t in found[1]]
    assert len(list(tmp_path.glob("?/s/cells/*/result.json"))) == 8
    assert not list(tmp_path.glob("?/s/cells/*/model.safetensors"))  # forty of them would be gigabytes


def test_nothing_is_pruned_before_its_first_refresh(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def always(self: Any) -> bool:
        trial = self._get_latest_trial()
        asked.append((trial.number, trial.last_step))
        return trial.number > 0

    monkeypatch.setattr(Trial, "should_prune", always)
    book = toy_study([*toy_sets, "train.epochs=6"], tmp_path, trials=6)
    base = RunConfig.model_validate(book.spec.base)
    firsts = {t.number: first_refresh(book.spec.space.config(base, t.params, 0)) for t in book.frozen()}
    assert len(set(firsts.values())) > 1
    for number, step in asked:
        assert step >= firsts[number]
    for trial in book.frozen()[1:]:
        assert trial.state == TrialState.PRUNED
        assert trial.last_step == firsts[trial.number]  # stopped within the epoch that condemned it
    assert book.spec.first_refresh <= min(firsts.values())
    assert not list((tmp_path / "s" / "cells").glob("*/checkpoint.pt"))


def test_a_killed_trial_goes_on_from_its_checkpoint(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = toy_study(toy_sets, tmp_path / "straight", trials=1)
    real, epochs, asked = loop.train_epoch, list[int](), list[int]()

    def interrupted(run: Any, moving: Any, state: Any, batches: Any) -> Any:
        epochs.append(state.epoch)
        if len(epochs) == 4:
            raise KeyboardInterrupt
        return real(run, moving, state, batches)

    monkeypatch.setattr(loop, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy_study(toy_sets, tmp_path / "halves", trials=1)
    monkeypatch.setattr(Trial, "should_prune", lambda self: asked.append(self._get_latest_trial().last_step))
    book = toy_study(toy_sets, tmp_path / "halves", trials=1)
    assert epochs == [0, 1, 2, 3, 3]
    assert asked == [2, 3]  # at the last stored point again: the kill may have come before the pruner answered
    (again,) = book.frozen()
    assert again.values == straight.frozen()[0].values
    assert again.intermediate_values == straight.frozen()[0].intermediate_values


def test_a_finished_cell_is_read_where_its_worker_died_before_it_said_so(
    toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, values = spec_of(base_of("dqe", *toy_sets, *DEV)), list[float]()
    book, job = open_study(tmp_path, "s", spec, trials=1, tracking_uri=None)

    def dying(trial: Trial) -> list[float]:
        values.extend(Trials(job)(trial))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        book.work(dying, silent)
    (before,) = book.frozen()
    monkeypatch.setattr(loop, "train_epoch", lambda *given: pytest.fail("it was trained"))
    run_study(job, Here(), silent)
    (again,) = book.frozen()
    assert again.values == values
    assert again.intermediate_values == before.intermediate_values
    assert again.user_attrs["runs"] == before.user_attrs["runs"]
    copies = [run.info.status for run in mlflow_runs(tmp_path, "s") if "trial" in run.data.tags]
    assert copies == ["FINISHED"]  # in place of the interrupted one


def test_two_objectives_give_a_front_and_prune_nothing(toy_sets: list[str], tmp_path: Path) -> None:
    book = toy_study(toy_sets, tmp_path, trials=5, minimise="false-negative-rate")
    assert book.counts()["finished"] == 5
    best = front(book)
    values = [t.values for t in book.frozen()]
    for trial in book.frozen():
        beaten = any(v[0] >= trial.values[0] and v[1] <= trial.values[1] and v != trial.values for v in values)
        assert (trial.number in {t.number for t in best}) == (not beaten)
    assert {t.number for t in best} == {t.number for t in book.study.best_trials}  # optuna's own
    for trial in book.frozen():
        (run,) = trial.user_attrs["runs"]
        details = RunFolder(tmp_path / "s" / "cells" / run).result
        assert trial.values[1] == details["behaviour"]["false_negative_rate_draws"]


def mlflow_runs(runs: Path, name: str) -> list[Any]:
    client = MlflowClient(default_uri(runs))
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_mlflow_statuses_and_curves(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.train

    def failing(run: Any, folder: Any, log: Any) -> Any:
        if run.config.strategy.options["alpha"] != 0.2 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise NegbenchError("mend this")
        return real(run, folder, log)

    monkeypatch.setattr(engine, "train", failing)
    monkeypatch.setattr(Trial, "should_prune", lambda self: self.number == 2)
    book = toy_study(toy_sets, tmp_path, trials=4, uri=default_uri(tmp_path))
    found = mlflow_runs(tmp_path, "s")
    (parent,) = [run for run in found if run.data.tags["negbench.kind"] == "study"]
    trials = {int(run.data.tags["trial"]): run for run in found if run.data.tags["negbench.kind"] == "trial"}
    assert {n: run.info.status for n, run in trials.items()} == {0: "FINISHED", 1: "FAILED", 2: "KILLED", 3: "FINISHED"}
    assert [t.state.name for t in book.frozen()] == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    for number, run in trials.items():
        frozen = book.frozen()[number]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params["strategy.beta-alpha"] == str(frozen.params["strategy.beta-alpha"])
        points = MlflowClient(default_uri(tmp_path)).get_metric_history(run.info.run_id, "dev/average/recall")
        assert {p.step - 1: p.value for p in points} == frozen.intermediate_values
    assert trials[3].data.metrics["objective/recall"] == book.frozen()[3].values[0]


# --- the command -----------------------------------------------------------------------------------------------------


def command(toy_sets: list[str], runs: Path, *more: str) -> list[str]:
    sets = [part for text in (*toy_sets, *DEV) for part in ("--set", text)]
    return ["study", "--strategy", "dqe", *sets, "--runs-dir", str(runs), "--name", "s", *more]


def test_final_runs_go_on_until_the_best_is_decided(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate at which nothing is learned against one at which everything is: two seeds leave it open, or decide it."""
    recipe = tmp_path / "r.toml"
    recipe.write_text("[study]\nuntil = 'decided'\nmax_seeds = 3\n", encoding="utf-8")
    grid = ("--search", "train.lr=0.000001|0.03", "--fix", "num_negatives", "--sampler", "grid", "--trials", "2")
    sets = [part for text in (*vector_sets, "train.lr=0.000001", "train.epochs=2") for part in ("--set", text)]
    asked = ["study", "--strategy", "all-corpus", "--recipe", str(recipe), *grid, *sets, "--runs-dir", str(tmp_path)]
    assert negbench([*asked, "--name", "s", "--final-seeds", "2", "--tracking-uri", "none"]) == 0
    out = capsys.readouterr().out
    final = json.loads((tmp_path / "s" / "final.json").read_text())
    open_after_two = "look 1, 2 seeds: 1 pair is undecided" in out
    assert final["seeds"] == [1, 2, 3][: 2 + open_after_two]
    assert "all pairs are decided" in out or open_after_two
    cells = json.loads((tmp_path / "s-final" / "comparison.json").read_text())["cells"]
    assert len(cells) == 2 * len(final["seeds"])
    assert negbench([*asked, "--name", "s", "--final-seeds", "1"]) == 2


def test_the_command_from_start_to_test(
    toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(toy_sets, tmp_path, "--trials", "4", "--final-seeds", "2")
    assert negbench(arguments) == 0
    told = capsys.readouterr()
    out = told.out
    assert "  trial 0: " in told.err
    assert "val stays closed" in out
    assert "sampler tpe; pruner median" in out
    assert f"optuna-dashboard --host 127.0.0.1 {tmp_path / 's' / 'optuna.journal'}" in out.replace("\n", "")
    book = open_book(tmp_path, "s")
    counts = book.counts()
    assert counts["finished"] + counts["pruned"] == 4
    best = finished(book)[0]
    if best.number != 0:
        final = json.loads((tmp_path / "s" / "final.json").read_text())
        assert final["seeds"] == [1, 2]
        runs = json.loads((tmp_path / "s-final" / "comparison.json").read_text())["cells"]
        seeds = [(name, seed) for name in ("dqe best", "dqe default") for seed in (1, 2)]
        assert sorted((row["strategy"], row["seed"]) for row in runs) == seeds
        values = {}
        for row in runs:
            details = RunFolder(tmp_path / row["run"]).result
            values.setdefault(row["strategy"], []).append(details["metrics"]["average/recall"])
        assert final["best"]["mean"] == pytest.approx(np.mean(values["dqe best"]))
        assert final["test"]["value"] == pytest.approx(np.mean(values["dqe best"]) - np.mean(values["dqe default"]))
    (parent,) = [run for run in mlflow_runs(tmp_path, "s") if run.data.tags["negbench.kind"] == "study"]
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["mlflow.note.content"].startswith(f"The best of {counts['finished']} finished trials: ")
    experiment = MlflowClient(default_uri(tmp_path)).get_experiment_by_name("s")
    view = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.negbench"])["state"])
    assert view["selectedColumns"] == [
        "metrics.`objective/recall`", "tags.`trial`", *(f"params.`{key}`" for key in best.params)
    ]  # fmt: skip
    listed = MlflowClient(default_uri(tmp_path)).search_runs([experiment.experiment_id], view["searchFilter"])
    assert {run.data.tags["trial"] for run in listed} == {str(trial) for trial in range(sum(counts.values()))}
    assert set(best.params) <= listed[0].data.params.keys()
    assert negbench(arguments) == 0  # again: nothing is computed, the same is said
    assert " trial " not in capsys.readouterr().err
    assert negbench([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"] == best.params
    assert len(document["trials"]) == sum(counts.values())
    found = api.load("s", tmp_path)
    assert isinstance(found, StudyResult)
    assert found.best == best.params
    assert f"study s: best {next(iter(best.params))} = " in repr(found)
    assert "<table" in found._repr_html_()
    page = tmp_path / "s" / "report" / "index.html"
    before = page.read_text(encoding="utf-8")
    assert negbench(["report", "s", "--runs-dir", str(tmp_path)]) == 0
    assert page.read_text(encoding="utf-8") == before
    assert {path.stem for path in page.parent.glob("figures/*.png")} >= {"history"}
    logged = {a.path for a in MlflowClient(default_uri(tmp_path)).list_artifacts(parent.info.run_id)}
    assert {"figures", "trials.csv"} <= logged


def test_the_page_draws_what_was_found(tmp_path: Path) -> None:
    book = Book(tmp_path / "toy", spec_of(base_of("dqe"), pruner="none"), None, 16)
    book.work(lambda trial: [0.5 - (float(trial.params["strategy.alpha"]) - 0.1) ** 2], silent)
    page = study_page(book)
    sections = [section for found in page.chapters.values() for section in found]
    parts = {part.key: part for section in sections for part in section.parts if hasattr(part, "key")}
    assert {"history", "importance", "trials"} <= set(parts)
    history = {line.get_label(): line for line in drawn(parts["history"].panels[0]).lines}
    best = list(history["best so far"].get_ydata())
    assert best == sorted(best)
    assert best[-1] == max(history["finished"].get_ydata())
    assert page.answer[0].startswith("The best of 16 finished trials: ")
    figures = tmp_path / "report" / "figures"
    figures.mkdir(parents=True)
    (figures / ".history.png.abc.partial").write_bytes(b"of a killed process")
    assert write_page(tmp_path / "report", page)[0].exists()
    assert not list(figures.glob("*.partial"))


def drawn(panel: Any) -> Any:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    panel.draw(axes)
    return axes


def test_pruned_is_not_an_error_of_a_run(toy_sets: list[str], tmp_path: Path) -> None:
    def watch(epoch: int, values: Any, new: bool) -> None:
        if epoch == 1:
            raise Pruned

    bench, config = engine.Bench.open(tmp_path, "none"), base_of("qure", *toy_sets)
    with pytest.raises(Pruned):
        engine.run_config(config, bench, watch=watch)
    (folder,) = (RunFolder(path) for path in tmp_path.glob("qure-*"))
    assert folder.status == "interrupted"
    resumed = engine.resume("qure", bench)
    assert resumed.metrics == engine.run_config(config, engine.Bench.open(tmp_path / "straight", "none")).metrics
