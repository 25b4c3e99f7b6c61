"""Measures: hand-computed for hand-made folders, and against brute-force loops for trained models."""

import json
import math
import shutil
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
from tests.made import settings_frame
from tests.runs import config_of, run


def of(name: str, run: SettingRun, **options: Any) -> list[float]:
    values = Measure(name, tuple(options.items())).of(run).values
    return [float(values)] if values.ndim == 0 else values.tolist()


# --- by hand -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hand(tmp_path: Path) -> SettingRun:
    """Write a hand-made run folder with five epochs and three refreshes."""
    main = [0.1, 0.3, 0.2, 0.5, 0.4]
    points = [{"step": 0, "epoch": -1, "val/r": 0.0}]
    for epoch, value in enumerate(main):
        points += [{"step": 1, "epoch": epoch, "train/loss": [4.0, 3.0, 3.5, 2.5, 3.0][epoch]}]
        points += [{"step": 1, "epoch": epoch, "val/r": value}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    counts = {"reported_epoch": 5, "steps": 1, "negatives_seen": 1}
    nothing = {"behaviour": {}, "behaviour_by_refresh": [], "seconds": {}, "peak_memory_mib": {}, "remarks": []}
    result = {"main_metric": "r", "metrics": {"r": 0.4}, "refresh_epochs": [2, 4], "selected_on": "last"}
    result |= {**counts, **nothing}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "config.json").write_text(json.dumps({"config": {}, "hash": "0" * 64, "dataset": {"scored": "val"}}))
    mined = [((10, 5), (0.1, 0.2)), ((20, 5), (0.3, math.nan)), ((24, 2), (0.2, 0.4))]
    for refresh, (sizes, shares) in enumerate(mined):
        pd.DataFrame({"pool_size": sizes, "band_mean": shares}).to_parquet(tmp_path / f"mining-{refresh:02d}.parquet")
    for moment, drops in (("start", [[9, 5], [10, 0], [-1, -1]]), ("warm", [[2, 0], [8, 2], [4, 2]])):
        curves(np.array(drops)).save(tmp_path / f"curves-{moment}.npz")
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
    assert of("falls", hand) == [pytest.approx(0.1)]
    assert of("late-slope", hand) == [pytest.approx(-0.1)]
    # changes: loss -1, .5, -1, .5; recall .2, -.1, .3, -.1; pools are refreshed at epochs 2 and 4
    assert of("loss-at-refresh", hand) == [pytest.approx(((0.5 + 1) + (0.5 + 1)) / 2)]
    assert of("recall-at-refresh", hand) == [pytest.approx(((-0.1 - 0.25) + (-0.1 - 0.3)) / 2)]


def test_the_regime_is_the_mean_over_the_definitions_of_pools(hand):
    shares = {0: 0.1, 2: 0.5, 3: 0.9, 4: 0.8}  # pools are defined at epochs 2 and 4
    hand.result["regime_by_refresh"] = [{"epoch": e, "top": share, "shape": None} for e, share in shares.items()]
    assert of("regime", hand, number="top") == pytest.approx([0.65])
    with pytest.raises(MissingEvidence, match="have no shape here"):
        of("regime", hand, number="shape")


def test_falls_of_seeds_are_from_where_the_others_are_best(hand, tmp_path):
    folders = [hand.folder]
    for seed, main in ((1, [0.1, 0.4, 0.3, 0.2, 0.2]), (2, [0.1, 0.7, 0.5, 0.3, 0.5])):
        path = shutil.copytree(hand.folder.path, tmp_path / f"seed-{seed}", ignore=shutil.ignore_patterns("seed-*"))
        points = [{"step": 1, "epoch": epoch, "val/r": value} for epoch, value in enumerate(main)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
        folders.append(RunFolder(path))
    evidence = Evidence(settings_frame({"hand": dict(enumerate(folders))}))
    runs = [evidence.run("hand", seed) for seed in range(3)]
    falls = [float(each.values) for each in Measure("falls").of_seeds(runs)]
    assert falls == pytest.approx([0.3 - 0.4, 0.4 - 0.2, 0.7 - 0.5])  # the mean of the other seeds is best at epoch 1
    with (folders[2].path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "epoch": 9, "val/r": 0.1}) + "\n")
    with pytest.raises(MissingEvidence, match="evaluated at different epochs"):
        Measure("falls").of_seeds([evidence.run("hand", seed) for seed in range(3)])


def test_no_effect_of_a_refresh_without_quiet_epochs(hand):
    hand.result["refresh_epochs"] = [1, 2, 3, 4]
    with pytest.raises(MissingEvidence, match=r"epochs between two refreshes: --set train\.epochs=\d+$"):
        of("loss-at-refresh", hand)


def test_pools_by_hand(hand):
    assert of("pool-trend", hand) == pytest.approx([7.0, -1.5])
    assert of("mined", hand, column="band_mean") == pytest.approx([0.2, math.nan], nan_ok=True)
    assert of("drops-place", hand) == pytest.approx([0.7, 0.5, math.nan], nan_ok=True)
    assert of("drops-rise", hand) == pytest.approx([0.6, 0.0, math.nan], nan_ok=True)
    with pytest.raises(MissingEvidence, match="no score curves at 'end'"):
        of("drops-place", hand, moment="end")
    hand.evidence.cache.clear()
    for file in hand.folder.path.glob("mining-0[12].parquet"):
        file.unlink()
    with pytest.raises(MissingEvidence, match=r"only once here: --set train\.epochs=\d+$"):
        of("pool-trend", hand)
    hand.evidence.cache.clear()
    (hand.folder.path / "mining-00.parquet").unlink()
    with pytest.raises(MissingEvidence, match="mines no pools"):
        of("mined", hand, column="band_mean")


def test_ranks_by_hand(hand, subtests):
    assert of("subset-recall", hand, k=2) == [1, 1, 0]  # the benchmark's own subsets
    assert of("average-precision", hand) == pytest.approx([2 / 3, (1 / 3) / 2, 1.0])
    assert Measure("average-precision").of(hand).strata.tolist() == ["x", "x", "y"]  # type: ignore[union-attr]
    for name, options in (("average-precision", ()), ("subset-recall", ()), ("suppression", (("split", "val"),))):
        with subtests.test(name=name):
            assert Measure(name, options).of(hand).clusters.tolist() == ["m", "m", "n"]  # type: ignore[union-attr]
    assert of("suppression", hand, split="val") == pytest.approx([0.5, -1.0, math.nan], nan_ok=True)
    # above the target: rank 1 of p and 1-10 of q, of which two are relevant; 11-50 without targets: 11, 12; 12; 11, 12
    assert of("false-negatives", hand, band="above the target", split="val") == [pytest.approx(2 / 11)]
    assert of("false-negatives", hand, band="11-50", split="val") == [pytest.approx(1 / 5)]
    with pytest.raises(MissingEvidence, match="in the part '501-'"):
        of("false-negatives", hand, band="501-", split="val")


# --- of trained models -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, toy_sets: list[str]) -> Evidence:
    where, runs = tmp_path_factory.mktemp("runs"), {}
    for name in ("all-corpus", "in-batch"):
        runs[name] = {0: run(config_of(toy_sets, name, "train.epochs=2"), where).folder}
    return Evidence(settings_frame(runs))


def scores_of(run: SettingRun, split: str = "val") -> torch.Tensor:
    """Return [Q, N] cosines, with -2 outside the query's gallery."""
    encoded = run.encode(split)
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates).double()
    outside = torch.ones_like(scores, dtype=torch.bool)
    for row, group in enumerate(encoded.dataset.group_index.tolist()):
        outside[row, list(encoded.dataset.groups.values())[group]] = False
    return scores.masked_fill(outside, -2)


def rank_of(scores: torch.Tensor, column: int) -> int:
    return int((scores >= scores[column]).sum())


def test_recall_is_the_reported_metric(trained, monkeypatch):
    run = trained.run("in-batch", 0)
    recall = Measure("recall").of(run)
    means = [recall.values[recall.strata == name].mean() for name in np.unique(recall.strata)]
    assert float(np.mean(means)) == pytest.approx(run.result["metrics"]["average/recall"])
    with pytest.raises(MissingEvidence, match="no subset of look-alikes for a query: needs cirr"):
        of("subset-recall", run)
    families = np.array(["m"] * recall.values.size)
    stored = {run.result["main_metric"]: Values(recall.values[None], (0,), None, families)}
    monkeypatch.setattr(claims_measure, "values_of", lambda runs, metrics: stored)
    run.evidence.cache.clear()
    assert Measure("recall").of(run).clusters is families


def test_suppression_on_train_by_loops(trained):
    run = trained.run("in-batch", 0)
    data, scores = run.encode("train").dataset, scores_of(run, "train")
    want = []
    for row, query in enumerate(data.queries):
        others = [rank_of(scores[row], data.column_of[i]) <= 3 for i in query.relevant if i != query.target]
        hit = rank_of(scores[row], int(data.target_columns[row])) <= 3
        want.append(hit - sum(others) / len(others) if others else math.nan)
    assert of("suppression", run, k=3) == pytest.approx(want, nan_ok=True)
    assert np.nanstd(want) > 0


def test_cirqrs_by_loops(trained):
    ranker, judge = scores_of(trained.run("in-batch", 0)), scores_of(trained.run("all-corpus", 0))
    means = {
        k: [float(judge[row, ranker[row].argsort(descending=True)[:k]].mean()) for row in range(len(ranker))]
        for k in (2, 7)
    }
    run = trained.run("in-batch", 0)
    assert of("cirqrs", run, scorer="all-corpus", k=2) == pytest.approx(means[2], abs=1e-6)
    fall = np.array(means[2]) - np.array(means[7])
    assert of("cirqrs-fall", run, scorer="all-corpus", k=2, last=7) == pytest.approx(fall.tolist(), abs=1e-6)
    assert Measure("cirqrs-fall", (("scorer", "all-corpus"),)).settings == ("all-corpus",)


def test_separation_by_loops(trained):
    run = trained.run("in-batch", 0)
    encoded = run.encode("val")
    queries, vectors = encoded.dataset.queries, encoded.embeddings.queries.double()
    cosines = [
        float(vectors[i] @ vectors[j])
        for i, one in enumerate(queries)
        for j, other in enumerate(queries)
        if i < j and one.reference == other.reference and one.text != other.text
    ]
    assert of("semantic-separation", run) == [pytest.approx(np.mean(cosines))]


def test_people_by_their_own_file(trained, judgements, monkeypatch, toy_root):
    section = {"name": "hp-fashioniq", "root": str(judgements)}

    def known(name: str, root: Path) -> bool:
        return evidence_module.judgements_of(PluginConfig.model_validate({"name": name, "root": str(root)})) is not None

    run = trained.run("in-batch", 0)
    with pytest.raises(MissingEvidence, match="nobody has judged"):
        of("preference", run)
    places = (("fashioniq", judgements), ("fashioniq", toy_root), ("synthetic", judgements))
    assert [known(*place) for place in places] == [True, False, False]
    monkeypatch.setattr(evidence_module, "judgements_of", lambda dataset: section)
    encoded = run.encode_people()
    data = encoded.dataset
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates).double()
    want, advantage = [], []
    for row, judged in enumerate(data._judged):  # type: ignore[attr-defined]
        mean = [np.mean([float(scores[row, data.column_of[i]]) for i in members]) for members in judged.sets]
        hit = [data.queries[row].target in members for members in judged.sets]
        chosen, other = (0, 1) if judged.first else (1, 0)
        want.append(float(mean[chosen] > mean[other]))
        advantage.append(want[-1] - (1 + hit[chosen] - hit[other]) / 2)
    assert of("preference", run) == want
    assert of("agreement-over-recall", run) == advantage
    assert 0 < np.mean(want) < 1


@pytest.fixture(scope="module")
def judgements(tmp_path_factory: pytest.TempPathFactory, standin: Any) -> Path:
    root = tmp_path_factory.mktemp("people")
    standin.write_preferences(root, users=1, judgements=12, images=30)
    return root
