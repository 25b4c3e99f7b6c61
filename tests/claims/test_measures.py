"""Measures: hand-computed for hand-made folders, and against brute-force loops for trained models."""

import json
import math
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from negbench.contracts import relevance
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.score_curves import ScoreCurves
from negbench.papers import evidence as evidence_module
from negbench.papers import measure as claims_measure
from negbench.papers.evidence import Evidence, MissingEvidence, SettingRun
from negbench.papers.measure import Measure
from negbench.scoring.values import Values
from negbench.settings.config import PluginConfig
from negbench.store.runfolder import RunFolder
from tests.made import RESULT, settings_frame
from tests.runs import config_of, run


def measure(name: str, run: SettingRun, **options: Any) -> list[float]:
    """Return what a measure gives for a run: a value of each query, or one of the run."""
    values = Measure(name, tuple(options.items())).of(run).values
    return np.atleast_1d(values).tolist()


# --- by hand -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hand(tmp_path: Path) -> SettingRun:
    """Write a hand-made run folder with five epochs and three refreshes."""
    losses = [4.0, 3.0, 3.5, 2.5, 3.0]
    recalls = [0.1, 0.3, 0.2, 0.5, 0.4]
    points = [{"step": 0, "epoch": -1, "val/r": 0.0}]
    for epoch, (loss, recall) in enumerate(zip(losses, recalls, strict=True)):
        points.append({"step": 1, "epoch": epoch, "train/loss": loss})
        points.append({"step": 1, "epoch": epoch, "val/r": recall})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    result = {**RESULT, "main_metric": "r", "metrics": {"r": 0.4}, "reported_epoch": 5, "refresh_epochs": [2, 4]}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "config.json").write_text(json.dumps({"config": {}, "hash": "0" * 64, "dataset": {"scored": "val"}}))
    refreshes = [
        {"pool_size": [10, 5], "band_mean": [0.1, 0.2]},
        {"pool_size": [20, 5], "band_mean": [0.3, math.nan]},
        {"pool_size": [24, 2], "band_mean": [0.2, 0.4]},
    ]
    for number, columns in enumerate(refreshes):
        pd.DataFrame(columns).to_parquet(tmp_path / f"mining-{number:02d}.parquet")
    curves(np.array([[9, 5], [10, 0], [-1, -1]])).save(tmp_path / "curves-start.npz")
    curves(np.array([[2, 0], [8, 2], [4, 2]])).save(tmp_path / "curves-warm.npz")
    ranks = QueryRanks(
        query=("p", "q", "r"),
        group=("x", "x", "y"),
        target_rank=torch.tensor([2, 11, 1]),
        gallery_size=torch.tensor([12, 12, 12]),
        relevant_ranks=Ragged.of([[2, 1, 12], [11, 3], [1]]),
        subset_rank=torch.tensor([1, 2, 3]),
        cluster=("m", "m", "n"),
    )
    ranks.to_frame().to_parquet(tmp_path / "ranks.parquet")
    return Evidence(settings_frame({"hand": {0: RunFolder(tmp_path)}})).run("hand", 0)


def curves(drops: np.ndarray) -> ScoreCurves:
    """Return curves of three rankings of 11 images."""
    return ScoreCurves(queries=np.arange(3), length=np.full(3, 11), drops=drops, scores=np.empty(0))


def test_curves_by_hand(hand):
    assert measure("falls", hand) == [pytest.approx(0.1)]
    assert measure("late-slope", hand) == [pytest.approx(-0.1)]
    # changes: loss -1, .5, -1, .5; recall .2, -.1, .3, -.1; pools are refreshed at epochs 2 and 4
    assert measure("loss-at-refresh", hand) == [pytest.approx(((0.5 + 1) + (0.5 + 1)) / 2)]
    assert measure("recall-at-refresh", hand) == [pytest.approx(((-0.1 - 0.25) + (-0.1 - 0.3)) / 2)]


def test_the_regime_is_the_mean_over_the_definitions_of_pools(hand):
    shares = {0: 0.1, 2: 0.5, 3: 0.9, 4: 0.8}  # pools are defined at epochs 2 and 4
    cards = [{"epoch": epoch, "top": share, "shape": None} for epoch, share in shares.items()]
    hand.result["regime_by_refresh"] = cards
    assert measure("regime", hand, number="top") == pytest.approx([0.65])
    with pytest.raises(MissingEvidence, match="have no shape here"):
        measure("regime", hand, number="shape")


def test_falls_of_seeds_are_from_where_the_others_are_best(hand, tmp_path):
    folders = [hand.folder]
    for seed, recalls in ((1, [0.1, 0.4, 0.3, 0.2, 0.2]), (2, [0.1, 0.7, 0.5, 0.3, 0.5])):
        path = shutil.copytree(hand.folder.path, tmp_path / f"seed-{seed}", ignore=shutil.ignore_patterns("seed-*"))
        points = [{"step": 1, "epoch": epoch, "val/r": recall} for epoch, recall in enumerate(recalls)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
        folders.append(RunFolder(path))
    evidence = Evidence(settings_frame({"hand": dict(enumerate(folders))}))
    runs = [evidence.run("hand", seed) for seed in range(3)]
    falls = [float(measured.values) for measured in Measure("falls").of_seeds(runs)]
    assert falls == pytest.approx([0.3 - 0.4, 0.4 - 0.2, 0.7 - 0.5])  # the mean of the other seeds is best at epoch 1
    with (folders[2].path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "epoch": 9, "val/r": 0.1}) + "\n")
    with pytest.raises(MissingEvidence, match="evaluated at different epochs"):
        Measure("falls").of_seeds([evidence.run("hand", seed) for seed in range(3)])


def test_no_effect_of_a_refresh_without_quiet_epochs(hand):
    hand.result["refresh_epochs"] = [1, 2, 3, 4]
    with pytest.raises(MissingEvidence, match=r"epochs between two refreshes: --set train\.epochs=\d+$"):
        measure("loss-at-refresh", hand)


def test_pools_by_hand(hand):
    assert measure("pool-trend", hand) == pytest.approx([7.0, -1.5])
    assert measure("mined", hand, column="band_mean") == pytest.approx([0.2, math.nan], nan_ok=True)
    assert measure("drops-place", hand) == pytest.approx([0.7, 0.5, math.nan], nan_ok=True)
    assert measure("drops-rise", hand) == pytest.approx([0.6, 0.0, math.nan], nan_ok=True)
    with pytest.raises(MissingEvidence, match="no score curves at 'end'"):
        measure("drops-place", hand, moment="end")
    hand.evidence.cache.clear()
    for file in hand.folder.path.glob("mining-0[12].parquet"):
        file.unlink()
    with pytest.raises(MissingEvidence, match=r"only once here: --set train\.epochs=\d+$"):
        measure("pool-trend", hand)
    hand.evidence.cache.clear()
    (hand.folder.path / "mining-00.parquet").unlink()
    with pytest.raises(MissingEvidence, match="mines no pools"):
        measure("mined", hand, column="band_mean")


def test_ranks_by_hand(hand, subtests):
    assert measure("subset-recall", hand, k=2) == [1, 1, 0]  # the benchmark's own subsets
    assert measure("average-precision", hand) == pytest.approx([2 / 3, (1 / 3) / 2, 1.0])
    assert Measure("average-precision").of(hand).strata.tolist() == ["x", "x", "y"]  # type: ignore[union-attr]
    for name, options in (("average-precision", ()), ("subset-recall", ()), ("suppression", (("split", "val"),))):
        with subtests.test(name=name):
            assert Measure(name, options).of(hand).clusters.tolist() == ["m", "m", "n"]  # type: ignore[union-attr]
    assert measure("suppression", hand, split="val") == pytest.approx([0.5, -1.0, math.nan], nan_ok=True)
    # above the target: rank 1 of p and 1-10 of q, of which two are relevant; 11-50 without targets: 11, 12; 12; 11, 12
    assert measure("false-negatives", hand, band="above the target", split="val") == [pytest.approx(2 / 11)]
    assert measure("false-negatives", hand, band="11-50", split="val") == [pytest.approx(1 / 5)]
    with pytest.raises(MissingEvidence, match="in the part '501-'"):
        measure("false-negatives", hand, band="501-", split="val")


# --- of trained models -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, toy_sets: list[str]) -> Evidence:
    where = tmp_path_factory.mktemp("runs")
    runs = {}
    for name in ("all-corpus", "in-batch"):
        runs[name] = {0: run(config_of(toy_sets, name, "train.epochs=2"), where).folder}
    return Evidence(settings_frame(runs))


def scores_of(run: SettingRun, split: str = "val") -> torch.Tensor:
    """Return [Q, N] cosines, with -2 outside the query's gallery."""
    encoded = run.encode(split)
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates).double()
    groups = list(encoded.dataset.groups.values())
    outside = torch.ones_like(scores, dtype=torch.bool)
    for row, group in enumerate(encoded.dataset.group_index.tolist()):
        outside[row, groups[group]] = False
    return scores.masked_fill(outside, -2)


def rank_of(scores: torch.Tensor, column: int) -> int:
    return int((scores >= scores[column]).sum())


def test_recall_is_the_reported_metric(trained, monkeypatch):
    run = trained.run("in-batch", 0)
    recall = Measure("recall").of(run)
    means = [recall.values[recall.strata == name].mean() for name in np.unique(recall.strata)]
    assert float(np.mean(means)) == pytest.approx(run.result["metrics"]["average/recall"])
    with pytest.raises(MissingEvidence, match="no subset of look-alikes for a query: needs cirr"):
        measure("subset-recall", run)
    families = np.array(["m"] * recall.values.size)
    stored = {run.result["main_metric"]: Values(recall.values[None], (0,), None, families)}
    monkeypatch.setattr(claims_measure, "values_of", lambda runs, metrics: stored)
    run.evidence.cache.clear()
    assert Measure("recall").of(run).clusters is families


def test_suppression_on_train_by_loops(trained):
    run = trained.run("in-batch", 0)
    data = run.encode("train").dataset
    scores = scores_of(run, "train")
    want = []
    for row, query in enumerate(data.queries):
        others = [image for image in query.relevant if image != query.target]
        if others:
            others_found = [rank_of(scores[row], data.column_of[image]) <= 3 for image in others]
            target_found = rank_of(scores[row], int(data.target_columns[row])) <= 3
            want.append(target_found - sum(others_found) / len(others))
        else:
            want.append(math.nan)
    assert measure("suppression", run, k=3) == pytest.approx(want, nan_ok=True)
    assert np.nanstd(want) > 0


def test_cirqrs_by_loops(trained):
    run = trained.run("in-batch", 0)
    ranker = scores_of(run)
    judge = scores_of(trained.run("all-corpus", 0))

    def means_of_first(k: int) -> np.ndarray:
        means = []
        for row in range(len(ranker)):
            columns = ranker[row].argsort(descending=True)[:k]
            means.append(float(judge[row, columns].mean()))
        return np.array(means)

    assert measure("cirqrs", run, scorer="all-corpus", k=2) == pytest.approx(means_of_first(2), abs=1e-6)
    fall = means_of_first(2) - means_of_first(7)
    assert measure("cirqrs-fall", run, scorer="all-corpus", k=2, last=7) == pytest.approx(fall, abs=1e-6)
    assert Measure("cirqrs-fall", (("scorer", "all-corpus"),)).settings == ("all-corpus",)


def test_separation_by_loops(trained):
    run = trained.run("in-batch", 0)
    encoded = run.encode("val")
    vectors = encoded.embeddings.queries.double()
    cosines = []
    for (i, one), (j, other) in combinations(enumerate(encoded.dataset.queries), 2):
        if one.reference == other.reference and one.text != other.text:
            cosines.append(float(vectors[i] @ vectors[j]))
    assert measure("semantic-separation", run) == [pytest.approx(np.mean(cosines))]


@pytest.mark.parametrize(
    ("dataset", "folder", "judged"),
    [("fashioniq", "judgements", True), ("fashioniq", "toy_root", False), ("synthetic", "judgements", False)],
)
def test_judgements_are_found_in_the_folder_of_fashioniq(request, dataset, folder, judged):
    root = str(request.getfixturevalue(folder))
    section = PluginConfig.model_validate({"name": dataset, "root": root})
    assert (evidence_module.judgements_of(section) is not None) == judged


def test_people_by_their_own_file(trained, judgements, monkeypatch):
    run = trained.run("in-batch", 0)
    with pytest.raises(MissingEvidence, match="nobody has judged"):
        measure("preference", run)
    section = {"name": "hp-fashioniq", "root": str(judgements)}
    monkeypatch.setattr(evidence_module, "judgements_of", lambda dataset: section)
    encoded = run.encode_people()
    data = encoded.dataset
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates).double()
    agreements = []
    advantages = []
    for row, judged in enumerate(data._judgement_of_query):  # type: ignore[attr-defined]
        first, second = judged.sets
        preferred, other = (first, second) if judged.first else (second, first)
        mean_of_preferred = np.mean([float(scores[row, data.column_of[image]]) for image in preferred])
        mean_of_other = np.mean([float(scores[row, data.column_of[image]]) for image in other])
        agrees = float(mean_of_preferred > mean_of_other)
        target = data.queries[row].target
        agreements.append(agrees)
        advantages.append(agrees - (1 + (target in preferred) - (target in other)) / 2)
    assert measure("preference", run) == agreements
    assert measure("agreement-over-recall", run) == advantages
    assert 0 < np.mean(agreements) < 1


@pytest.fixture(scope="module")
def judgements(tmp_path_factory: pytest.TempPathFactory, standin: Any) -> Path:
    root = tmp_path_factory.mktemp("people")
    standin.write_preferences(root, users=1, judgements=12, images=30)
    return root
