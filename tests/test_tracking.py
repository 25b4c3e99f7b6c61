"""The MLflow copy of runs: its contents, resumed runs, concurrent processes, failing stores."""

import multiprocessing
import re
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from sqlalchemy import Engine, event

from negbench import api
from negbench.cli.main import run as negbench
from negbench.errors import RunError
from negbench.loop import progress
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.loop.types import Callbacks
from negbench.machine import signals
from negbench.machine.files import read_json, write_json
from negbench.settings.options import Compare
from negbench.store import patience, tracking
from negbench.store.copies import NOTE, PARENT
from negbench.store.parents import Parent, restore
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder, final_values
from negbench.store.tracking import Tracker, default_uri, log_values
from tests.runs import config_of


def run(sets: list[str], where: Path) -> RunResult:
    return compute_or_reuse(config_of(sets, "qure"), RunContext.open(where))


@pytest.fixture(scope="module")
def stored(toy_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Return a run with its copy in the store; tests leave its runs folder as it is."""
    return run(toy_sets, tmp_path_factory.mktemp("stored"))


def runs_in(where: Path) -> list[Any]:
    client = MlflowClient(default_uri(where))
    ids = [e.experiment_id for e in client.search_experiments() if e.name == "negbench"]
    return list(client.search_runs(ids)) if ids else []


@pytest.fixture
def copy(stored: RunResult) -> Any:
    """Return the store's only run: the copy of `stored`."""
    (copied,) = runs_in(stored.path.parent)
    return copied


def test_the_copy_of_a_run_is_finished(stored, copy):
    assert stored.tracking_error is None
    assert copy.info.status == "FINISHED"


def test_the_copy_has_parameters_and_tags_of_its_run(stored, copy):
    backbone = stored.folder.manifest["backbone"]
    assert copy.data.params["strategy.name"] == "qure"
    assert copy.data.params["strategy.variant"] == "paper"
    tags = {
        "seed": "0",
        "negbench.run": stored.run_id,
        "backbone.sha256": backbone["sha256"],
        "backbone.temperature": str(backbone["details"]["temperature"]),
        "backbone.temperature_from": "default",
        "dataset": stored.folder.manifest["dataset"]["val"],
        "gallery": "dress 16, shirt 16, toptee 16",
    }
    assert {name: copy.data.tags.get(name) for name in tags} == tags


def test_the_copy_has_the_final_values_of_its_run(stored, copy):
    assert "@" not in "".join(copy.data.metrics)
    values = final_values(stored.details)
    for name, value in values.items():
        assert copy.data.metrics[name] == pytest.approx(value), name
    parts = [name.split("/")[0] for name in sorted(values)]
    assert parts[0] == "average"  # the most important part sorts first
    assert {"mined", "regime_end", "used"} < {*parts}


def test_the_copy_has_the_curves_of_its_run_and_not_those_of_each_refresh(stored, copy):
    name = "val/average/recall_at_10"
    points = [point for point in stored.folder.metrics() if name in point]
    curve = MlflowClient(default_uri(stored.path.parent)).get_metric_history(copy.info.run_id, name)
    assert [(point.step, point.value) for point in curve] == [(point["step"], point[name]) for point in points]
    curves = set[str]()
    for point in stored.folder.metrics():
        curves |= point.keys() - {"step", "epoch"}
    only_folder = {name for name in curves if name.startswith(("mining/", "regime/", "train/lr", "train/temperature"))}
    assert len(only_folder) > 20
    assert copy.data.metrics.keys() == (curves - only_folder) | final_values(stored.details).keys()


def test_the_copy_has_the_files_of_its_run(stored, copy):
    where = stored.path.parent
    client = MlflowClient(default_uri(where))
    artifacts = {"config.json", "result.json", "metrics.jsonl", "ranks.parquet", "model.safetensors"}
    assert {file.path for file in client.list_artifacts(copy.info.run_id)} == artifacts
    assert copy.info.artifact_uri.startswith((where / "artifacts").as_uri())


def test_a_resumed_run_has_each_point_once(vector_sets, tmp_path, monkeypatch):
    """Stopped within its second epoch, when the store has points of both; in the end one run has all, once."""
    monkeypatch.setattr(tracking, "_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(progress, "POINT", 1)
    monkeypatch.setattr(signals, "_noted", [])

    def stop(parts: Any, state: Any, batch: Any) -> None:
        if state.epoch == 1 and len(state.losses) == 1:
            signals._noted.append((15, time.monotonic()))

    config = config_of(vector_sets, "in-batch", "train.epochs=2", "train.batch_size=10")
    context = RunContext.open(tmp_path)
    with pytest.raises(signals.Stopped):
        compute_or_reuse(config, replace(context, callbacks=Callbacks(stepped=stop)))
    signals._noted.clear()
    (stopped,) = runs_in(tmp_path)
    client = MlflowClient(default_uri(tmp_path))
    before = [point.step for point in client.get_metric_history(stopped.info.run_id, "train/step_loss")]
    assert before
    done = compute_or_reuse(config, context)
    (copy,) = runs_in(tmp_path)
    for name in ("train/loss", "train/step_loss", "val/recall_at_10"):
        curve = [(point["step"], point[name]) for point in done.folder.metrics() if name in point]
        sent = [(point.step, point.value) for point in client.get_metric_history(copy.info.run_id, name)]
        assert sent == curve, name
        assert len({step for step, _ in sent}) == len(sent) > 0, name


def test_the_client_divides_what_exceeds_a_batch(tmp_path):
    client = Tracker.open(tmp_path).client()
    run_id = client.create_run("0").info.run_id
    log_values(client, run_id, {f"p{i}": i for i in range(250)}, [(f"m{i % 2}", i, i) for i in range(2_500)])
    assert len(client.get_run(run_id).data.params) == 250
    assert [point.value for point in client.get_metric_history(run_id, "m1")] == list(range(1, 2_500, 2))


def test_ui_copies_nothing_that_the_store_has(stored, ui_commands):
    runs = stored.path.parent
    (before,) = runs_in(runs)
    assert negbench(["ui", "--runs-dir", str(runs)]) == 0
    assert [run.info.run_id for run in runs_in(runs)] == [before.info.run_id]


@pytest.mark.usefixtures("ui_commands")
def test_a_port_that_is_taken_is_one_line(stored, expect_error):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = f"--port {port}: Address already in use: give another one"
        expect_error(["ui", "--runs-dir", str(stored.path.parent), "--port", port], line)


@pytest.mark.usefixtures("ui_commands")
def test_ui_copies_what_the_store_lacks(stored, tmp_path, run_command):
    """The run of another runs folder; not one that was deleted on MLflow's pages, or that another process copies."""
    run_id = stored.run_id
    shutil.copytree(stored.path, tmp_path / run_id)
    assert "copied 1 run that" in run_command("ui", "--runs-dir", str(tmp_path)).out
    (before,) = runs_in(stored.path.parent)
    (after,) = runs_in(tmp_path)
    assert after.data.metrics == before.data.metrics
    assert after.data.params == before.data.params
    client = MlflowClient(default_uri(tmp_path))
    client.delete_run(after.info.run_id)  # as in MLflow's web pages
    assert Tracker.open(tmp_path).copy_missing() == []
    client.restore_run(after.info.run_id)
    client.update_run(after.info.run_id, status="FAILED")  # interrupted while copying
    with RunFolder(tmp_path / run_id).lock():
        assert Tracker.open(tmp_path).copy_missing() == []  # another process is copying it
    assert Tracker.open(tmp_path).copy_missing() == [run_id]
    assert [run.info.status for run in runs_in(tmp_path)] == ["FINISHED"]


def test_a_run_that_is_not_finished_is_not_copied(stored, tmp_path):
    shutil.copytree(stored.path, tmp_path / stored.run_id)
    (tmp_path / stored.run_id / "result.json").unlink()
    write_json(tmp_path / stored.run_id / "mlflow.json", {"uri": "elsewhere", "run_id": "1"})
    assert Tracker.open(tmp_path).copy_missing() == []


def test_a_deleted_experiment_has_a_way_out(tmp_path):
    (tmp_path / "runs").mkdir()
    tracker = Tracker.open(tmp_path / "runs")
    client = tracker.client()
    number = tracker.experiment(client, "negbench")
    client.delete_experiment(number)
    with pytest.raises(RunError) as error, tracker.answering():
        client.create_run(tracker.experiment(client, "negbench"))
    message = str(error.value)
    assert "the experiment was deleted; restore it, `" in message
    restore, remove = re.findall(r"`(.*?)`", message)[-2:]
    assert restore.endswith(f"mlflow experiments restore -x {number}")
    assert remove == f"mlflow gc --backend-store-uri {tracker.uri} --experiment-ids {number}"
    client.restore_experiment(number)  # what the first line does
    assert client.create_run(tracker.experiment(client, "negbench")).info.experiment_id == number


def test_statuses_of_all_runs_are_what_each_run_is_asked_for(tmp_path):
    tracker = Tracker.open(tmp_path)
    client = tracker.client()
    want = {}
    for number, status in enumerate(("FINISHED", "FAILED", "KILLED", "RUNNING", "deleted")):
        experiment = client.create_experiment(f"experiment {number}")
        run_id = client.create_run(experiment).info.run_id
        if status == "deleted":
            client.delete_run(run_id)
        elif status != "RUNNING":
            client.set_terminated(run_id, status)
        want[run_id] = status
        write_json(tmp_path / f"run-{number}" / NOTE, {"uri": tracker.printable_uri, "run_id": run_id, "token": ""})
    client.delete_experiment(experiment)
    assert tracker.statuses() == want
    assert tracking._statuses_by_pages(client) == want
    notes = [tmp_path / f"run-{number}" / NOTE for number in range(len(want))]
    assert [tracker.state(note) for note in notes] == [*want.values()]


def test_pages_of_a_server_are_all_read(tmp_path, monkeypatch):
    tracker = Tracker.open(tmp_path)
    client = tracker.client()
    run_ids = {client.create_run("0").info.run_id for _ in range(5)}
    monkeypatch.setattr(tracking, "_PAGE", 2)
    assert tracking._statuses_by_pages(client).keys() == run_ids


def test_ui_asks_the_store_for_no_single_run_that_is_whole(tmp_path, vector_sets, spy_on):
    run(vector_sets, tmp_path)
    questions = spy_on(Tracker, "state")
    assert Tracker.open(tmp_path).copy_missing() == []
    assert questions == []


def test_many_runs_ask_no_more_of_the_store_than_one(tmp_path, subtests):
    """What `ui` and `doctor` do before anything else, for thousands of runs."""
    tracker = Tracker.open(tmp_path)
    client = tracker.client()
    statements = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    counts = []
    event.listen(Engine, "before_cursor_execute", note)
    try:
        for number in (1, 5):
            with subtests.test(number=number):
                for index in range(number):
                    folder = tmp_path / f"run-{number}-{index}"
                    run_id = client.create_run("0").info.run_id
                    client.set_terminated(run_id)
                    write_json(folder / "config.json", {})
                    write_json(folder / "result.json", {})
                    write_json(
                        folder / NOTE, {"uri": tracker.printable_uri, "run_id": run_id, "token": "", "whole": True}
                    )
                statements.clear()
                assert list(restore(tracker)) == []
                counts.append(len(statements))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert counts[0] == counts[1] > 0


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Start a server that accepts connections but never answers; the timeout for stores is set to one second."""
    monkeypatch.setattr(patience, "PATIENCE", 1)
    monkeypatch.setattr(patience, "SILENT", {})
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "PGCONNECT_TIMEOUT"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it after the test
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg", "refused"])
def test_a_store_that_does_not_answer_costs_a_line_and_ui_copies_later(scheme, silent, vector_flags, tmp_path, capfd):
    host, port = silent.getsockname()
    if scheme == "refused":
        silent.close()
        scheme = "postgresql+psycopg"
    uri = f"{scheme}://alice:secret@{host}:{port}/store"
    command = ["compare", "--strategies", "qure,dqe", "--lr", "fixed", "--seeds", "1", "--no-report"]
    begun = time.monotonic()
    assert negbench([*command, "--name", "c", *vector_flags, "--runs-dir", str(tmp_path), "--tracking-uri", uri]) == 0
    waited = time.monotonic() - begun
    out, err = capfd.readouterr()
    assert "secret" not in out + err
    first, last = [line for line in err.splitlines() if " fails (" in line]
    assert "no MLflow run for 'c'" in first
    assert "2 of 2 runs, and the summary of 'c' are not copied: rerun the command, or `negbench ui`" in last
    assert "retried" not in err
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    assert waited < 30
    assert len(Tracker.open(tmp_path).copy_missing()) == 2


def _log_one(where: Path, number: int, failures: Any) -> None:
    try:
        tracker = Tracker.open(where)
        folder = RunFolder(where / f"run-{number}")
        folder.path.mkdir(parents=True)
        folder.write_metrics([{"step": 1, "epoch": 0, "a": float(number)}])
        with tracker.run(folder, {"p": number}, {}) as log:
            for step in range(5):
                log.metrics({"b": float(step)}, step)
        if log.error:
            failures.put(log.error)
    except Exception as error:
        failures.put(repr(error))


@pytest.mark.slow
def test_two_processes_start_on_an_empty_store(tmp_path, fast_mode, monkeypatch):
    monkeypatch.setattr(Tracker, "client", fast_mode)  # without the copied store, so each process creates tables
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    processes = [context.Process(target=_log_one, args=(tmp_path, number, failures)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert failures.empty(), failures.get()
    assert sorted(run.data.metrics["a"] for run in runs_in(tmp_path)) == [0, 1]


def test_a_moved_folder_gets_a_new_store(tmp_path, vector_sets):
    before = tmp_path / "before"
    after = tmp_path / "a name [with] signs %"
    result = run(vector_sets, before)
    before.rename(after)
    assert Tracker.open(after).copy_missing() == [result.run_id]
    (copy,) = runs_in(after)
    assert copy.info.artifact_uri.startswith((after / "artifacts").as_uri())
    client = MlflowClient(default_uri(after))
    assert "result.json" in {artifact.path for artifact in client.list_artifacts(copy.info.run_id)}
    assert (after / "mlflow-moved.db").exists()
    assert not before.exists()
    assert Tracker.open(after).copy_missing() == []


def test_a_run_whose_process_died_before_it_noted_the_id_is_ended(vector_sets, tmp_path, monkeypatch):
    """Its note has no id yet: the store's run is found by the token."""
    create_run = MlflowClient.create_run

    def create_and_die(*args: Any, **options: Any) -> None:
        create_run(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(MlflowClient, "create_run", create_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(vector_sets, tmp_path)
    (note,) = tmp_path.glob(f"*/{NOTE}")
    assert read_json(note)["run_id"] == ""
    assert [abandoned.info.status for abandoned in runs_in(tmp_path)] == ["RUNNING"]
    assert Tracker.open(tmp_path).end_abandoned() == [note.parent.name]
    assert [ended.info.status for ended in runs_in(tmp_path)] == ["KILLED"]


def test_an_address_is_of_the_named_experiment_or_of_the_newest_run(stored, expect_error):
    tracker = Tracker.open(stored.path.parent)
    experiment = tracker.client().get_experiment_by_name("negbench")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert tracker.address() == f"/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
    assert tracker.address("negbench") == tracker.address()
    expect_error(["ui", "another", "--runs-dir", str(tracker.root)], "no experiment 'another'")


def test_a_cell_that_was_copied_before_its_comparison_gets_its_parent_later(vector_sets, tmp_path):
    options = {"strategies": "qure", "seeds": 1, "lr": "fixed", "name": "c", "sets": tuple(vector_sets)}
    api.compare(Compare(**options, runs_dir=tmp_path, tracking_uri="none", report=False))
    tracker = Tracker.open(tmp_path)
    assert len(tracker.copy_missing()) == 1
    Parent(tracker, tmp_path / "c").copy()
    parent = read_json(tmp_path / "c" / NOTE)["run_id"]
    client = tracker.client()
    (experiment,) = [found.experiment_id for found in client.search_experiments() if found.name == "c"]
    (cell,) = client.search_runs([experiment], "tags.`negbench.kind` = 'cell'")
    assert cell.data.tags[PARENT] == parent
