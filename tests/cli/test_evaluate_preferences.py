"""`negbench evaluate` by people's choices and by CIRQRS: runs scored against loops, rankings from files, mistakes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.config import PluginConfig
from negbench.contracts import relevance
from negbench.data.scene import load_split
from negbench.datasets._preferences import PreferenceFormat
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.loop.runs import Bench, run_config
from negbench.runfolder import RunFolder
from negbench.scoring import scorers as scoring
from negbench.scoring.result import judged
from negbench.scoring.stored import preferences_of
from negbench.systems.system import load_config


def trained(where: Path, toy_sets: list[str], seed: int) -> RunFolder:
    config = load_config(flags={"strategy": {"name": "all-corpus"}, "seed": seed}, sets=toy_sets)
    return run_config(config, Bench.open(where, "none")).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, toy_sets: list[str]) -> tuple[RunFolder, RunFolder]:
    """Two runs that differ in their seed."""
    where = tmp_path_factory.mktemp("runs")
    return trained(where, toy_sets, 0), trained(where, toy_sets, 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, standin: Any) -> Path:
    """A small hpfiq.json with stand-in images."""
    folder = tmp_path_factory.mktemp("data")
    standin.write_preferences(folder, users=4, judgements=6, images=40)
    return folder


def cells(text: str, metric: str) -> list[str]:
    """Values of the table's row of a metric."""
    (line,) = [line for line in text.splitlines() if re.match(rf"^│ {re.escape(metric)} +│", line)]
    return [part.strip() for part in line.strip("│").split("│")[1:]]


# --- preferences -------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_recall_at_5_of_the_real_file_needs_no_image(shared_data: Path) -> None:
    section = PluginConfig.model_validate({"name": "hp-fashioniq", "root": str(shared_data)})
    dataset = preferences_of(load_split(section, "val", images=False))
    found = judged(dataset, dataset.hits.double(), "recall-at-5")

    def values(metric: str) -> list[float]:
        return [value for key, value in found.metrics.items() if key.rpartition("/")[2] == metric]

    assert values("spearman") == pytest.approx([0.1535, 0.1540], abs=5e-5)
    assert values("preference_rate") == pytest.approx([0.8107, 0.8157], abs=5e-5)
    assert values("preference_rate_with_ties") == pytest.approx([0.5888, 0.5903], abs=5e-5)
    assert all(map(math.isnan, values("preference_rate_equal_recall")))  # never ahead where recalls are equal
    assert values("accuracy") == pytest.approx([0.5830, 0.5850], abs=5e-5)
    assert values("spearman_p")[0] == pytest.approx(1.8e-33, rel=0.05)
    assert any("drops 32 of 3,050" in remark for remark in found.remarks)
    assert len(found.queries) == 3050


def test_a_run_is_judged_by_the_scores_of_its_model(
    runs: tuple[RunFolder, RunFolder], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "judged.parquet"
    arguments = ["evaluate", str(runs[0].path), "--dataset", "hp-fashioniq", "--data-root", str(root)]
    assert negbench([*arguments, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    layers = [{"dataset": {"name": "hp-fashioniq", "root": str(root)}}]
    encoded = scoring.encode_run(runs[0], layers, "val", Display())
    data = encoded.dataset
    assert isinstance(data, PreferenceFormat)
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates)
    assert float(scores.min()) < float(scores.max())
    values = data.evaluate(scores)
    assert cells(text, "accuracy") == [f"{values[f'{part}/accuracy']:.4f}" for part in ("all", "consistent")]
    assert cells(text, "spearman") == [f"{values[f'{part}/spearman']:.4f}" for part in ("all", "consistent")]
    assert "trained on synthetic" in text
    assert "zero-shot" not in text
    table = pd.read_parquet(out)
    means = [float(scores[row, data.sets[row, 0]].double().mean()) for row in range(len(data.queries))]
    assert table["score_1"].tolist() == pytest.approx(means)
    assert list(table["query"]) == [query.id for query in data.queries]


# --- CIRQRS ------------------------------------------------------------------------------------------------------


def loop(ranker: RunFolder, scorer: RunFolder, k: int) -> dict[str, float]:
    """Each query's mean score of the first k, image by image; divided by the scorer's temperature (CIRQRS eq. 1)."""
    first, second = (scoring.encode_run(folder, [], "val", Display()) for folder in (ranker, scorer))
    data = first.dataset
    ranked = relevance(first.embeddings.queries, first.embeddings.candidates)
    scored = relevance(second.embeddings.queries, second.embeddings.candidates)
    (name,) = [name for name in scorer.weights() if "temperature" in name]
    tau = float(scorer.weights()[name].exp())
    assert tau < 0.5
    found = {}
    for row, query in enumerate(data.queries):
        columns = sorted(data.groups[query.group].tolist(), key=lambda column: (-float(ranked[row, column]), column))
        found[query.id] = sum(float(scored[row, column]) / tau for column in columns[:k]) / len(columns[:k])
    return found


def test_cirqrs_against_a_loop(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table 6: several k, macro means over the categories, the mean of all; a gallery has 16 images."""
    out, cutoffs = tmp_path / "values.parquet", (3, 1, 100)
    arguments = ["evaluate", str(runs[0].path), "--scorer", str(runs[1].path), "--k", "3,1,100"]
    assert negbench([*arguments, "--out", str(out)]) == 0
    printed, table, averages = capsys.readouterr().out, pd.read_parquet(out), []
    assert "metric (score / 0.0" in printed
    for k in cutoffs:
        want = loop(*runs, k)
        found = table[f"cirqrs_at_{k}"]
        assert dict(zip(table["query"], found, strict=True)) == pytest.approx(want, abs=2e-5)
        groups = found.groupby(table["group"], sort=False).mean()
        averages.append(groups.mean())
        assert [float(cell) for cell in cells(printed, f"CIRQRS@{k}")] == pytest.approx(
            [*groups, averages[-1]], abs=6e-5
        )
    assert float(cells(printed, "CIRQRS, mean")[-1]) == pytest.approx(sum(averages) / 3, abs=6e-5)


def test_a_run_prefers_its_own_first_ten(runs: tuple[RunFolder, RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    values = []
    for ranker in runs:
        assert negbench(["evaluate", str(ranker.path), "--scorer", str(runs[1].path)]) == 0
        values.append(float(cells(capsys.readouterr().out, "CIRQRS@10")[-1]))
    assert values[1] > values[0]  # no other ten images can score higher under the scorer


def test_a_scorer_reads_the_rankers_data(
    runs: tuple[RunFolder, RunFolder], toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["dataset.name='fashioniq'", toy_sets[0], "dataset.caption_mode='comma'"]
    config = load_config(flags={"strategy": {"name": "all-corpus"}}, sets=[*toy_sets, *data])
    other = run_config(config, Bench.open(tmp_path, "none")).folder
    assert negbench(["evaluate", str(runs[0].path), "--scorer", str(other.path)]) == 0
    out = capsys.readouterr().out
    assert f"{other.run_id}: trained on fashioniq@" in out
    assert f"{runs[0].run_id} on {runs[0].manifest['dataset']['val']}, scored by {other.run_id}" in out
    assert negbench(["evaluate", str(other.path), "--scorer", str(runs[0].path)]) == 0
    assert f"{other.run_id} on {other.manifest['dataset']['val']}, scored by" in capsys.readouterr().out


def test_models_that_saw_different_queries_are_not_mixed(runs: tuple[RunFolder, RunFolder]) -> None:
    ranking, scorer = (
        scoring.encode_run(folder, [], split, Display()) for folder, split in zip(runs, ("val", "train"), strict=True)
    )
    with pytest.raises(NegbenchError, match="both must see the same queries and images"):
        scoring.cirqrs(ranking, scorer, [3])


# --- mistakes ----------------------------------------------------------------------------------------------------


MISTAKES: list[tuple[list[str], str]] = [
    (["x", "--k", "3,x"], "--k '3,x': must be whole numbers >= 1 with commas between"),
    (["x", "--k", "3,3"], "--k '3,3': must be"),
    (["x", "--k", "0"], "--k '0': must be whole numbers >= 1"),
    (["--scorer", "y"], "--scorer scores what a run ranks"),
    (["x", "--scorer", "y", "--trec", "t"], "need a run's own scores"),
    (["x", "--scorer", "y", "--runs-dir", "nowhere"], "there is no run 'x'"),
]


def test_a_mistake_is_one_line(
    runs: tuple[RunFolder, RunFolder],
    toy_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in MISTAKES:
        assert negbench(["evaluate", *arguments]) == 2
        captured = capsys.readouterr().err
        assert captured.startswith("negbench: error: ")
        assert captured.count("\n") == 1
        assert message in captured, arguments


def test_training_on_preferences_is_told(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--strategy", "qure", "--dataset", "hp-fashioniq", "--data-root", str(root)]
    assert negbench([*arguments, "--set", "backbone.weights='random'", "--runs-dir", str(tmp_path)]) == 2
    assert "hp-fashioniq has nothing to train on" in capsys.readouterr().err
