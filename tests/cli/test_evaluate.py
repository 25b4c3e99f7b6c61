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
            entry = {"pairid": n, "reference": members[n % 6], "caption": f"is dress {n}"}
            entry |= {"img_set": {"members": members}}
            entries.append(entry if split == "test1" else entry | {"target_hard": members[(n + 1) % 6]})
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

    return lambda *arguments: "".join(run_command("evaluate", *arguments, "--runs-dir", run.path.parent))


@pytest.fixture
def wrong(expect_error: Callable[..., str], run: RunFolder) -> Callable[..., None]:
    """Return a check of the one-line error of `negbench evaluate ...`."""
    return lambda message, *given: expect_error(
        ["evaluate", *map(str, given), f"--runs-dir={run.path.parent}"], message
    )


def metrics_in(printed: str) -> dict[str, str]:
    """Parse a printed table into values by metric, prefixed with its part."""
    lines = printed[printed.index("metric") :].splitlines()
    (_, *parts), *rows = [re.split(" {2,}", line) for line in lines if "  " in line]
    cells = {(part, name): value for name, *values in rows for part, value in zip(parts, values, strict=True)}
    return {(name if part == "all" else f"{part} {name}"): text for (part, name), text in cells.items() if text != "-"}


def shown(metrics: dict[str, float]) -> dict[str, str]:
    from negbench.analysis.words import label_of

    return {label_of(name).replace("_", " "): f"{100 * value:.2f}" for name, value in metrics.items()}


# --- a run -------------------------------------------------------------------------------------------------------


def test_a_run_scored_again_gives_its_own_ranks(run, call, tmp_path):
    printed = call(run.run_id, "--out", tmp_path / "again.parquet")
    assert metrics_in(printed).items() >= shown(run.result["metrics"] | run.result["mistakes"]).items()
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
            assert all(len(listed) == len(set(listed)) == count for listed in value.values())


def test_lists_of_an_open_split_score_as_the_run(run, call, wrong, benchmarks, tmp_path):
    place = ("--dataset=cirr", "--data-root", benchmarks)
    call(run.run_id, *place, "--submission", tmp_path)
    printed = metrics_in(call(run.run_id, *place))
    ranked = tmp_path / "cirr-val-recall.json"
    assert metrics_in(call("--ranks", ranked, *place)) == printed
    lists = json.loads(ranked.read_text())
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps({key: each if isinstance(each, str) else each[:10] for key, each in lists.items()}))
    scored = call("--ranks", cut, *place, "--out", tmp_path / "ranks.parquet")
    assert "cut.json omits what recall_at_50" in scored
    names = [f"R@{k}" for k in (1, 5, 10)]
    assert [metrics_in(scored)[name] for name in names] == [printed[name] for name in names]
    assert not {"R@50", "average"} & metrics_in(scored).keys()
    document = json.JSONDecoder().raw_decode(call("--ranks", cut, *place, "--json"))[0]  # notes follow
    assert {"recall_at_50", "average"} <= set(document["unknown"])
    assert not set(document["unknown"]) & document["metrics"].keys()
    ranks = pd.read_parquet(tmp_path / "ranks.parquet")
    assert (ranks.loc[ranks["target_rank_is_exact"], "target_rank"] <= 10).all()
    assert (ranks.loc[~ranks["target_rank_is_exact"], "target_rank"] == 59).all()
    subset = metrics_in(call("--ranks", tmp_path / "cirr-val-recall_subset.json", *place))
    assert subset == {name: value for name, value in printed.items() if name.startswith("Rs@")}
    (tmp_path / "more.json").write_text(json.dumps(json.loads(ranked.read_text()) | {"77": []}))
    wrong("unknown query '77' in the rankings", "--ranks", tmp_path / "more.json", *place)


def test_weights_that_do_not_fit(run, wrong, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    folder = RunFolder(copy)
    state = run.weights()
    name = next(iter(state))
    for change, odd in (
        ({k: v for k, v in state.items() if k != name}, name),
        (state | {"extra": torch.zeros(1)}, "extra"),
        (state | {name: torch.zeros(3, 3, 3)}, name),
    ):
        folder.write_weights(change, {})
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


def test_a_run_that_wants_the_impossible(run, wrong, benchmarks, tmp_path, mistakes):
    names = {"run": run.run_id, "data": benchmarks, "out": tmp_path}
    for arguments, message in mistakes["evaluate"].items():
        wrong(message, *(word.format(**names) for word in arguments.split()))


def test_cirqrs_of_rankings_is_the_scorers_mean_over_temperature(run, wrong, toy_root, tmp_path):
    """A table of categories as CIRQRS' table 6: means of each, of the categories, and of both depths."""
    encoded = encode_run(run, [], "val", Display())
    data, scores = encoded.dataset, relevance(encoded.embeddings.queries, encoded.embeddings.candidates)
    galleries = {name: [data.images[column] for column in group] for name, group in data.groups.items()}
    lists = {
        query.id: [image for image in galleries[query.group][place % 3 :] if image != query.reference]
        for place, query in enumerate(data.queries)
    }
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    place = ("--ranks", tmp_path / "lists.json", "--metric", "cirqrs", "--scorer", run.run_id)
    wrong("lists fewer than 50 images", *place, "--dataset", "synthetic", "--data-root", toy_root)
    wanted: dict[str, list[float]] = {}
    for row, query in enumerate(data.queries):
        columns = [data.column_of[image] for image in lists[query.id][:10]]
        mean = float(scores[row, columns].double().mean()) / encoded.temperature
        wanted.setdefault(query.group, []).append(mean)
    got = cirqrs_of_file(tmp_path / "lists.json", encoded, (5, 10)).metrics
    for group, values in wanted.items():
        assert got[f"{group}/cirqrs_at_10"] == pytest.approx(sum(values) / len(values), rel=1e-5), group
    means = [sum(values) / len(values) for values in wanted.values()]
    assert len(means) > 1
    assert got["average/cirqrs_at_10"] == pytest.approx(sum(means) / len(means), rel=1e-5)
    assert got["average/cirqrs"] == pytest.approx((got["average/cirqrs_at_5"] + got["average/cirqrs_at_10"]) / 2)
