"""`negbench evaluate`: rescoring a run, also on other data; ranked lists; stored ranks and rankings without a model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import negbench
from negbench.contracts import relevance
from negbench.display import Display
from negbench.scoring.scorers import cirqrs_of_file, encode_run
from negbench.store.runfolder import RunFolder
from tests import runs
from tests.datasets.toys import put


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, toy_sets: list[str]) -> RunFolder:
    """Return a finished run on the toy garments."""
    return runs.run(runs.config_of(toy_sets, "qure"), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="session")
def benchmarks(standin: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a toy CIRR (val, test1) with stand-in images."""
    root = tmp_path_factory.mktemp("benchmarks")
    for split, prefix in (("val", "dev"), ("test1", "test1")):
        ids = [f"{prefix}-{n}-0-img0" for n in range(60)]
        entries: list[dict[str, Any]] = []
        for n in range(20):
            members = [ids[(n + 7 * m) % 60] for m in range(6)]
            entry: dict[str, Any] = {"pairid": n, "reference": members[n % 6], "caption": f"is dress {n}"}
            entry["img_set"] = {"members": members}
            if split != "test1":
                entry["target_hard"] = members[(n + 1) % 6]
            entries.append(entry)
        put(root / f"cirr/captions/cap.rc2.{split}.json", entries)
        put(root / f"cirr/image_splits/split.rc2.{split}.json", {name: f"./{prefix}/{name}.png" for name in ids})
        standin.write_images(root / "cirr" / prefix, ids)
    return root


@pytest.fixture
def call(
    run_command: Callable[..., tuple[str, str]], run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Return a function that runs `negbench evaluate ...` and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def evaluate(*arguments: object) -> str:
        return "".join(run_command("evaluate", *arguments, "--runs-dir", run.path.parent))

    return evaluate


@pytest.fixture
def wrong(expect_error: Callable[..., str], run: RunFolder) -> Callable[..., None]:
    """Return a check of the one-line error of `negbench evaluate ...`."""

    def check(message: str, *arguments: object) -> None:
        expect_error(["evaluate", *map(str, arguments), f"--runs-dir={run.path.parent}"], message)

    return check


def metrics_in(printed: str) -> dict[str, str]:
    """Parse a printed table into values by metric, prefixed with its part."""
    lines = printed[printed.index("metric") :].splitlines()
    (_, *parts), *rows = [re.split(" {2,}", line) for line in lines if "  " in line]
    metrics = {}
    for name, *values in rows:
        for part, value in zip(parts, values, strict=True):
            if value != "-":
                metrics[name if part == "all" else f"{part} {name}"] = value
    return metrics


def as_printed(metrics: dict[str, float]) -> dict[str, str]:
    from negbench.analysis.words import label_of

    return {label_of(name).replace("_", " "): f"{100 * value:.2f}" for name, value in metrics.items()}


# --- a run -------------------------------------------------------------------------------------------------------


def test_a_run_scored_again_gives_its_own_ranks(run, call, tmp_path):
    printed = call(run.run_id, "--out", tmp_path / "again.parquet")
    assert metrics_in(printed).items() >= as_printed(run.result["metrics"] | run.result["mistakes"]).items()
    assert run.manifest["dataset"]["val"] in printed
    assert run.manifest["dataset"]["split"] == "val"
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "again.parquet"), run.ranks())
    # differs from the untrained model, so the weights were loaded
    assert run.result["baselines"]["untrained"] != run.result["metrics"]


def test_another_data_set_is_zero_shot(run, call, benchmarks, tmp_path):
    printed = call(run.run_id, "--dataset", "cirr", *("--data-root", benchmarks, "--out", tmp_path / "ranks.parquet"))
    assert f"trained on {run.manifest['dataset']['train']}: this is zero-shot" in printed
    assert "all val: 20 queries, but 4,181 are published" in printed
    assert negbench.load_dataset("cirr", root=str(benchmarks), images=False).identity in printed
    ranks = pd.read_parquet(tmp_path / "ranks.parquet")
    assert set(ranks["gallery_size"]) == {59}
    assert metrics_in(printed)["R@10"] == f"{100 * (ranks['target_rank'] <= 10).mean():.2f}"
    assert metrics_in(printed)["Rs@1"] == f"{100 * (ranks['subset_rank'] == 1).mean():.2f}"


def test_submissions_of_closed_splits(subtests, run, call, benchmarks, tmp_path):
    printed = call(run.run_id, "--dataset=cirr", "--split=test1", "--data-root", benchmarks, "--submission", tmp_path)
    recall = json.loads((tmp_path / "cirr-test1-recall.json").read_text())
    subset = json.loads((tmp_path / "cirr-test1-recall_subset.json").read_text())
    assert str(tmp_path / "cirr-test1-recall.json") in printed
    for value, metric, count in ((recall, "recall", 50), (subset, "recall_subset", 3)):
        with subtests.test(metric=metric, count=count):
            assert (value.pop("version"), value.pop("metric")) == ("rc2", metric)
            assert sorted(value, key=int) == [str(n) for n in range(20)]
            for query, images in value.items():
                assert len(images) == len(set(images)) == count, query


@pytest.fixture
def cirr(benchmarks: Path) -> tuple[object, ...]:
    return ("--dataset=cirr", "--data-root", benchmarks)


@pytest.fixture
def lists(run: RunFolder, call: Callable[..., str], cirr: tuple[object, ...], tmp_path: Path) -> Path:
    """Write the run's ranked lists on val, as for a submission; the lists of subsets are beside them."""
    call(run.run_id, *cirr, "--submission", tmp_path)
    return tmp_path / "cirr-val-recall.json"


@pytest.fixture
def cut(lists: Path) -> Path:
    """Write the lists with ten images each."""
    document = {}
    for key, value in json.loads(lists.read_text()).items():
        document[key] = value if isinstance(value, str) else value[:10]
    path = lists.with_name("cut.json")
    path.write_text(json.dumps(document))
    return path


def test_lists_of_an_open_split_score_as_the_run(run, call, cirr, lists):
    of_the_run = metrics_in(call(run.run_id, *cirr))
    assert metrics_in(call("--ranks", lists, *cirr)) == of_the_run
    subset = metrics_in(call("--ranks", lists.with_name("cirr-val-recall_subset.json"), *cirr))
    assert subset == {name: value for name, value in of_the_run.items() if name.startswith("Rs@")}


def test_short_lists_have_the_metrics_that_they_suffice_for(run, call, cirr, cut, tmp_path):
    printed = call("--ranks", cut, *cirr, "--out", tmp_path / "ranks.parquet")
    assert "cut.json omits what recall_at_50" in printed
    metrics = metrics_in(printed)
    of_the_run = metrics_in(call(run.run_id, *cirr))
    names = [f"R@{k}" for k in (1, 5, 10)]
    assert [metrics[name] for name in names] == [of_the_run[name] for name in names]
    assert not {"R@50", "average"} & metrics.keys()
    ranks = pd.read_parquet(tmp_path / "ranks.parquet")
    assert (ranks.loc[ranks["target_rank_is_exact"], "target_rank"] <= 10).all()
    assert (ranks.loc[~ranks["target_rank_is_exact"], "target_rank"] == 59).all()


def test_metrics_of_short_lists_as_json(call, cirr, cut):
    printed = call("--ranks", cut, *cirr, "--json")
    document, _ = json.JSONDecoder().raw_decode(printed)  # notes follow
    assert {"recall_at_50", "average"} <= set(document["unknown"])
    assert not set(document["unknown"]) & document["metrics"].keys()


def test_a_list_of_an_unknown_query_is_named(wrong, cirr, lists, tmp_path):
    (tmp_path / "more.json").write_text(json.dumps(json.loads(lists.read_text()) | {"77": []}))
    wrong("unknown query '77' in the rankings", "--ranks", tmp_path / "more.json", *cirr)


def test_weights_that_do_not_fit(subtests, run, wrong, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    folder = RunFolder(copy)
    state = run.weights()
    name = next(iter(state))
    without_one = {key: tensor for key, tensor in state.items() if key != name}
    cases = {
        "missing": (without_one, name),
        "unexpected": (state | {"extra": torch.zeros(1)}, "extra"),
        "of another shape": (state | {name: torch.zeros(3, 3, 3)}, name),
    }
    for case, (weights, odd) in cases.items():
        with subtests.test(case):
            folder.write_weights(weights, {})
            wrong(f"do not match this backbone (missing, unexpected or of another shape): {odd}", copy)
    (copy / "model.safetensors").write_bytes(b"abc")
    wrong("is damaged", copy)
    (copy / "model.safetensors").unlink()
    wrong("has no weights", copy)
    manifest = run.manifest
    manifest["backbone"]["sha256"] = "0" * 64
    folder.write_manifest(manifest)
    wrong("started from backbone weights 000000000000", copy)


def test_other_embeddings_in_files_score_a_run_again(run, finished, call, wrong, vector_sets, tmp_path):
    """Scaled embeddings are unit vectors again: the same ranks; turned round, others; for `tiny`, refused."""
    folder = finished("select='last'")
    (images,) = (text.partition("=")[2].strip("'") for text in vector_sets if "backbone.images" in text)
    for name, factor in (("images", 2.0), ("turned", -1.0)):
        stored = dict(np.load(images))
        np.savez(tmp_path / f"{name}.npz", **{**stored, "features": factor * stored["features"]})
    printed = metrics_in(call(folder.path))
    again = call(folder.path, "--set", f"backbone.images='{tmp_path / 'images.npz'}'")
    assert metrics_in(again) == printed
    assert "note: embeddings of images.npz + texts.npz: by the encoder of the run's own" in again
    assert metrics_in(call(folder.path, "--set", f"backbone.images='{tmp_path / 'turned.npz'}'")) != printed
    wrong("only embeddings in files", run.run_id, "--set", "backbone.fusion=sum")


def test_a_run_that_wants_the_impossible(subtests, run, wrong, benchmarks, tmp_path, mistakes):
    names = {"run": run.run_id, "data": benchmarks, "out": tmp_path}
    for arguments, message in mistakes["evaluate"].items():
        with subtests.test(arguments):
            wrong(message, *(word.format(**names) for word in arguments.split()))


def test_cirqrs_of_rankings_is_the_scorers_mean_over_temperature(run, wrong, toy_root, tmp_path):
    """A table of categories as CIRQRS' table 6: means of each, of the categories, and of both depths."""
    encoded = encode_run(run, [], "val", Display())
    data = encoded.dataset
    scores = relevance(encoded.embeddings.queries, encoded.embeddings.candidates)
    lists = {}
    for number, query in enumerate(data.queries):
        gallery = [data.images[column] for column in data.groups[query.group]]
        lists[query.id] = [image for image in gallery[number % 3 :] if image != query.reference]
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    ranks_flags = ("--ranks", tmp_path / "lists.json", "--metric", "cirqrs", "--scorer", run.run_id)
    wrong("lists fewer than 50 images", *ranks_flags, "--dataset", "synthetic", "--data-root", toy_root)
    values: dict[str, list[float]] = {}
    for row, query in enumerate(data.queries):
        columns = [data.column_of[image] for image in lists[query.id][:10]]
        mean = float(scores[row, columns].double().mean()) / encoded.temperature
        values.setdefault(query.group, []).append(mean)
    means = {group: sum(of_queries) / len(of_queries) for group, of_queries in values.items()}
    metrics = cirqrs_of_file(tmp_path / "lists.json", encoded, (5, 10)).metrics
    for group, mean in means.items():
        assert metrics[f"{group}/cirqrs_at_10"] == pytest.approx(mean, rel=1e-5), group
    assert len(means) > 1
    assert metrics["average/cirqrs_at_10"] == pytest.approx(sum(means.values()) / len(means), rel=1e-5)
    both_depths = (metrics["average/cirqrs_at_5"] + metrics["average/cirqrs_at_10"]) / 2
    assert metrics["average/cirqrs"] == pytest.approx(both_depths)
