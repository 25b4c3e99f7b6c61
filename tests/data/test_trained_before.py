"""Weights that are trained for the task already are remarked on: every strategy would begin there."""

import json
from pathlib import Path

import pytest

from negbench.contracts import Backbone, Outline
from negbench.data.held import trained_before
from negbench.settings.config import RunConfig
from negbench.systems.system import load_config


def config_of(dataset: str) -> RunConfig:
    return load_config(flags={"strategy": {"name": "qure"}, "dataset": {"name": dataset}})


def weights_of_run(folder: Path, dataset: str, *, finished: bool = True) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"config": {"dataset": {"name": dataset}}}), encoding="utf-8")
    if finished:
        (folder / "result.json").write_text("{}", encoding="utf-8")
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("trained", "finished", "remarked"),
    [("cirr", True, True), ("fashioniq", True, False), ("cirr", False, False)],
    ids=["on the same data", "on other data", "no run's folder"],
)
def test_weights_of_a_run_on_the_same_data(tmp_path, trained, finished, remarked):
    file = weights_of_run(tmp_path / "qure-clip-s0", trained, finished=finished)
    lines = trained_before(config_of("cirr"), Outline(Backbone, "clip", files=(file, file.with_name("vocab.txt"))))
    want = [
        "backbone.weights: a run trained them on cirr (qure-clip-s0): every strategy begins where that training ended"
    ]
    assert lines == (want if remarked else [])


def test_weights_that_are_fine_tuned():
    outline = Outline(Backbone, "blip2", fine_tuned="they hold their own visual tower")
    (line,) = trained_before(config_of("cirr"), outline)
    assert line == "backbone.weights: they hold their own visual tower: every strategy begins where that training ended"
    assert trained_before(config_of("cirr"), Outline(Backbone, "blip2")) == []


NAMED = {
    "blip": ("model.pth", "QuRe publishes its models, trained on FashionIQ or CIRR"),
    "blip of others": ("blip.pt", "Candidate-Reranking-CIR publishes BLIP, trained on FashionIQ or CIRR"),
    "clip": ("cirr_clip_RN50x4_fullft.pt", "CLIP4Cir publishes CLIP, trained on CIRR"),
}


@pytest.mark.parametrize(("name", "whose"), NAMED.values(), ids=NAMED)
def test_weights_with_the_name_of_published_fine_tuned_ones(name, whose, tmp_path):
    lines = trained_before(config_of("cirr"), Outline(Backbone, "blip", files=(tmp_path / name,)))
    begins = "every strategy begins where that training ended"
    assert lines == [f"backbone.weights: {name} is the name under which {whose}: {begins}"]


def test_weights_are_remarked_on_once(tmp_path):
    outline = Outline(Backbone, "blip2", fine_tuned="they hold their own visual tower", files=(tmp_path / "model.pth",))
    (line,) = trained_before(config_of("cirr"), outline)
    assert "visual tower" in line


@pytest.mark.parametrize("name", ["model_large.pth", "model.safetensors", "pytorch_model.bin"])
def test_pretrained_weights_get_no_remark(name, tmp_path):
    assert trained_before(config_of("cirr"), Outline(Backbone, "blip", files=(tmp_path / name,))) == []
