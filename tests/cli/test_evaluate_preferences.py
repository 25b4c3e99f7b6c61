"""`negbench evaluate` on people's preferences: scores against plain loops, user errors."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from negbench.contracts import relevance
from negbench.data.scene import DataCache
from negbench.datasets.preferences import PreferenceFormat
from negbench.display import Display
from negbench.errors import DataError
from negbench.loop.runs import plan_run
from negbench.scoring import scorers as scoring
from negbench.settings.config import resolve
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder
from tests import standin
from tests.runs import config_of, flags_of, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, toy_sets: list[str]) -> RunFolder:
    return run(config_of(toy_sets, "all-corpus"), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small hpfiq.json with stand-in images."""
    folder = tmp_path_factory.mktemp("data")
    standin.write_preferences(folder, users=4, judgements=6, images=40)
    return folder


def cells(text: str, metric: str) -> list[str]:
    """Return the values in a metric's row of the table."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{metric}  ")]
    return re.split(" {2,}", line)[1:]


@pytest.fixture
def evaluate(document: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return a function that gives what `negbench evaluate ... --json` prints."""
    return partial(document, "evaluate")


# --- preferences -------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_recall_at_5_of_the_real_file_needs_no_image(shared_data, tmp_path, evaluate):
    data_flags = ["--dataset", "hp-fashioniq", "--data-root", shared_data]
    values = evaluate(*data_flags, "--scorer", "recall-at-5", "--out", tmp_path / "judged.parquet")["metrics"]
    want = {"spearman": 0.1535, "preference_rate": 0.8107, "preference_rate_with_ties": 0.5888, "accuracy": 0.5830}
    for name, value in want.items():
        assert values[name] == pytest.approx(value, abs=5e-5), name
    assert values["preference_rate_equal_recall"] is None  # this scorer has no preference between equal recalls
    assert len(pd.read_parquet(tmp_path / "judged.parquet")) == 3050


def test_a_run_is_judged_by_the_scores_of_its_model(finished, root, tmp_path, run_command):
    out = tmp_path / "judged.parquet"
    data_flags = ["--dataset", "hp-fashioniq", "--data-root", root]
    text, notes = run_command("evaluate", finished.path, *data_flags, "--out", out)
    encoded = scoring.encode_run(finished, [{"dataset": {"name": "hp-fashioniq", "root": str(root)}}], "val", Display())
    data = encoded.dataset
    assert isinstance(data, PreferenceFormat)
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates)
    assert float(scores.min()) < float(scores.max())
    values = data.evaluate(scores)
    assert cells(text, "accuracy") == [f"{values['accuracy']:.4f}"]
    assert cells(text, "spearman") == [f"{values['spearman']:.4f}"]
    assert "trained on synthetic" in notes
    assert "zero-shot" not in notes
    table = pd.read_parquet(out)
    means = [float(scores[row, data.sets[row, 0]].double().mean()) for row in range(len(data.queries))]
    assert table["score_1"].tolist() == pytest.approx(means)
    assert list(table["query"]) == [query.id for query in data.queries]


def test_a_run_may_be_named_as_scorer(finished, root, evaluate, expect_error):
    data_flags = ["--dataset", "hp-fashioniq", "--data-root", root]
    assert evaluate(finished.path, *data_flags) == evaluate("--scorer", finished.path, *data_flags)
    expect_error(
        ["evaluate", "--scorer", str(finished.path)], "synthetic has no preferences between sets: use hp-fashioniq"
    )
    expect_error(["evaluate", "--scorer", "recall-at-5"], "--scorer: name its data set with --dataset")


@pytest.fixture(scope="module")
def also_sets(toy_sets: list[str], root: Path) -> list[str]:
    """Return the settings of a run that is also scored on preferences."""
    return [*toy_sets, f"eval.also='hp-fashioniq:root={root}'"]


@pytest.fixture(scope="module")
def also_scored(also_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(config_of(also_sets, "all-corpus"), tmp_path_factory.mktemp("also"))


def test_a_run_judges_preferences_at_each_point_of_its_curve(also_scored, root, evaluate):
    """Point by point: of the untrained model, and in the end what `negbench evaluate` says of the stored weights."""
    curve = [point for point in also_scored.folder.metrics() if "hp-fashioniq/accuracy" in point]
    assert [point["epoch"] for point in curve] == [-1, 0, 1]
    values = evaluate(also_scored.path, "--dataset", "hp-fashioniq", "--data-root", root)["metrics"]
    last = {name: value for name, value in curve[-1].items() if name.startswith("hp-")}
    assert last == pytest.approx({f"hp-fashioniq/{name}": value for name, value in values.items() if value is not None})


def test_a_second_data_set_changes_a_runs_name_and_nothing_else(finished, also_scored):
    assert also_scored.metrics == finished.result["metrics"]
    assert also_scored.run_id != finished.run_id


def test_a_runs_name_knows_what_the_second_data_set_is_and_not_where(also_scored, root, toy_sets, tmp_path):
    copy = shutil.copytree(root, tmp_path / "moved")
    moved = config_of(toy_sets, "all-corpus", f"eval.also='hp-fashioniq:root={copy}'")
    assert plan_run(moved, DataCache()).name == also_scored.run_id
    judged = copy / "hpfiq.json"
    judged.write_text(judged.read_text().replace("darker", "lighter"))
    assert plan_run(moved, DataCache()).name != also_scored.run_id


def test_a_plan_names_the_second_data_set(also_sets, tmp_path, run_command):
    plan, _ = run_command("run", "--strategy", "qure", "--runs-dir", tmp_path, *flags_of(also_sets), "--dry-run")
    assert re.search(r"at each point hp-fashioniq@sets-of-5-\w+, 24 queries", plan)


def test_a_trial_has_no_second_data_set(also_sets):
    assert resolve(config_of([*also_sets, "eval.reported=false"], "qure")).eval.also is None


def test_a_second_data_set_without_a_root_has_that_of_the_first(toy_sets):
    config = config_of([*toy_sets, "eval.also=hp-fashioniq"], "qure")
    assert resolve(config).eval.also.options["root"] == config.dataset.options["root"]


def test_a_picture_of_another_data_set_is_not_taken_for_the_runs_own(toy_root, toy_sets, root, tmp_path):
    """Two data sets may name one picture alike, or two pictures; only the second is refused."""
    folder = shutil.copytree(root, tmp_path / "hp")
    judged = min(folder.rglob("B*.png"))
    ours = min(toy_root.rglob("*.png"))
    text = (folder / "hpfiq.json").read_text().replace(f"{judged.stem}.jpg", f"{ours.stem}.jpg")
    (folder / "hpfiq.json").write_text(text)
    shutil.copy(ours, judged.with_stem(ours.stem))
    sets = [*toy_sets, "train.epochs=1", "schedule.n_def=1", f"eval.also='hp-fashioniq:root={folder}'"]
    config = config_of(sets, "all-corpus")
    run(config, tmp_path / "runs")
    shutil.copy(judged, judged.with_stem(ours.stem))
    with pytest.raises(DataError, match=f"eval.also: {ours.stem} is .* in the data set of eval.also, .* in the run's"):
        run(config, tmp_path / "runs")


def test_a_generated_data_set_cannot_be_scored_beside(expect_error):
    arguments = ["run", "--strategy", "qure", "--set", "eval.also=vectors"]
    expect_error(arguments, "eval.also: vectors is generated for one backbone; name a data set of files")


def test_training_on_preferences_is_told(tmp_path, root, expect_error):
    arguments = ["run", "--strategy", "qure", "--dataset", "hp-fashioniq", "--data-root", str(root)]
    arguments += ["--set", "backbone.weights='random'", "--runs-dir", str(tmp_path)]
    expect_error(arguments, "hp-fashioniq has nothing to train on")
