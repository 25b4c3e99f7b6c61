"""Every system runs on FashionIQ's real annotation files, with stand-in images and random weights."""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import negbench
from negbench.analysis.words import label_of
from negbench.cli.main import run as command
from negbench.loop.runs import DATA
from negbench.settings.config import build_config
from negbench.settings.layers import set_layer
from negbench.systems.system import with_system
from tests import standin
from tests.datasets import toys
from tests.runs import run

pytestmark = pytest.mark.data

ENTRIES = 12  # of each caption file
TOY = ["backbone.init=random", "backbone.size=toy", "train.epochs=2", "train.batch_size=36", "compute.device=cpu"]
NO_TEXTS = (
    "HyCoLe-HNM without its text composition term (eq. 4): fashioniq has no texts of references and targets",
    "HyCoLe-HNM without its matching terms of images and their texts (eq. 1): "
    "fashioniq has no texts of references and targets",
)


@pytest.fixture(scope="module")
def fashioniq(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the first entries of each real caption file, the list of their images, and a picture for each."""
    real = shared_data / "fashioniq"
    out = tmp_path_factory.mktemp("standin")
    for folder in ("captions", "image_splits"):
        (out / folder).mkdir()
    for category, split in product(("dress", "shirt", "toptee"), ("train", "val")):
        entries = json.loads((real / f"captions/cap.{category}.{split}.json").read_text())[:ENTRIES]
        names = sorted({entry["candidate"] for entry in entries} | {entry["target"] for entry in entries})
        (out / f"captions/cap.{category}.{split}.json").write_text(json.dumps(entries))
        (out / f"image_splits/split.{category}.{split}.json").write_text(json.dumps(names))
        standin.write_images(out / "images" / category, names)
    return out


def run_two_steps(name: str, sets: list[str], folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run a system for two steps and return its result.json and what it leaves out."""
    base = [set_layer(text) for text in sets]
    layer, remarks = with_system([*base, {"system": name}], DATA)
    details = run(build_config([layer, *base]), folder).details
    assert details["steps"] == 2
    return details, remarks


@pytest.mark.parametrize(("name", "backbone"), [("sprc", "blip2"), ("clip4cir", "clip")])
def test_a_baseline_of_the_papers_tables_runs_whole(name, backbone, fashioniq, tmp_path):
    sets = [f"backbone.name={backbone}", "dataset.name=fashioniq", f"dataset.root='{fashioniq}'", *TOY]
    details, remarks = run_two_steps(name, sets, tmp_path)
    assert remarks == ()
    assert details["negatives_seen"] == 2 * 36 * 35


@pytest.mark.parametrize(("name", "backbone"), [("qure", "blip2"), ("cirqrs", "clip"), ("dqe", "clip")])
def test_a_corpus_system_runs(name, backbone, fashioniq, tmp_path):
    sets = [f"backbone.name={backbone}", "dataset.name=fashioniq", f"dataset.root='{fashioniq}'", *TOY]
    details, remarks = run_two_steps(name, sets, tmp_path)
    assert remarks == ()
    assert details["refresh_epochs"] == [1]
    assert details["draws"] == {"per_query": 1, "replacement": True, "redraw": True}


@pytest.mark.parametrize("texts", [False, True])
def test_hycole_runs(texts, fashioniq, tmp_path):
    """Terms on attributes are left out on the real files, which have none, and present where they are added."""
    root = tmp_path / "root"
    root.mkdir()
    for part in fashioniq.iterdir():
        (root / part.name).symlink_to(part)
    if texts:
        for path in (fashioniq / "image_splits").glob("split.*.train.json"):
            words = {image: [[image[-1]], [image[-2:]]] for image in json.loads(path.read_text())}
            (root / path.name.replace("split", "asin2attr")).write_text(json.dumps(words))
    sets = ["backbone.name=clip", "dataset.name=fashioniq", f"dataset.root='{root}'", *TOY]
    details, remarks = run_two_steps("hycole", sets, tmp_path / "runs")
    assert remarks == (() if texts else NO_TEXTS)
    terms = {"icm", "tcm", "ritm", "titm"} if texts else {"icm"}
    assert set(details["temperatures"]) == {"backbone", *terms}


RECALLS = {
    "fashioniq": ["average/recall_at_10", "average/recall_at_50"],
    "cirr": ["recall_at_10", "recall_at_50", "subset_recall_at_1", "subset_recall_at_2", "subset_recall_at_3"],
}


@pytest.mark.parametrize("dataset", RECALLS)
def test_practice_own_encodes_once_and_ends_in_recalls_and_a_card(dataset, request, tmp_path, monkeypatch, capsys):
    """The two commands of the recipe, with few rows, one rate, one batch size and one temperature."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    root = toys.cirr(tmp_path)["root"] if dataset == "cirr" else request.getfixturevalue("fashioniq")
    data = ["--dataset", dataset, "--data-root", str(root)]
    toy = ["--set", "backbone.init=random", "--set", "backbone.size=toy", "--set", "compute.device=cpu"]
    assert command(["data", "encode", "--backbone", "clip", *data, *toy]) == 0
    assert " encoded, 0 stored before" in capsys.readouterr().out
    size = {"fashioniq": 18, "cirr": 6}[dataset]
    few = ["--strategies", "in-batch,in-batch+all-corpus", "--seeds", "1", "--epochs", "1", "--set", "eval.every=1"]
    few += ["--dial", f"train.batch_size={size}", "--lr", "0.001"]
    few += ["--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    assert command(["compare", "--recipe", "practice-own", *data, *toy, *few, "--no-report", "--name", "own"]) == 0
    results = negbench.load("own", runs_dir=tmp_path).results
    assert {*results["settings"]} == {"common", "own"}
    for metric in RECALLS[dataset]:
        assert results[metric].between(0, 100).all(), metric
    assert command(["report", "own", "--card", "--galleries", "0", "--runs-dir", str(tmp_path)]) == 0
    table = (tmp_path / "own" / "table.csv").read_text()
    card = json.loads((tmp_path / "own" / "card.json").read_text())
    assert {row["strategy"] for row in card["rows"]} == {"in-batch", "in-batch+all-corpus"}
    for metric in RECALLS[dataset]:
        without_metric = [row["strategy"] for row in card["rows"] if metric not in row["metrics"]]
        assert without_metric == [], metric
        assert label_of(metric).removeprefix("average ") in table, metric


@pytest.mark.parametrize("words", ["data encode --backbone clip", "compare --recipe practice-own"])
def test_practice_own_without_pictures_says_which_are_missing(words, tmp_path, expect_error):
    root = toys.cirr(tmp_path)["root"]
    shutil.rmtree(root / "dev")
    toy = ["--set", "backbone.init=random", "--set", "backbone.size=toy", "--set", "compute.device=cpu"]
    expect_error(
        [*words.split(), "--dataset", "cirr", "--data-root", str(root), *toy],
        f"12 of 12 images are missing below {root}: dev-0-0-img0",
    )
