"""Weights that are trained on the run's data set already are remarked on: every strategy would begin there."""

import json
from pathlib import Path

import pytest

from negbench.contracts import Backbone, Outline
from negbench.data.images import earlier_training
from negbench.settings.config import RunConfig
from negbench.systems.system import load_config


def config_of(dataset: str, weights: str | None = None) -> RunConfig:
    backbone = {"name": "blip2", "weights": weights}
    return load_config(flags={"strategy": {"name": "qure"}, "dataset": {"name": dataset}, "backbone": backbone})


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
    lines = earlier_training(config_of("cirr"), Outline(Backbone, "clip", files=(file, file.with_name("vocab.txt"))))
    want = [
        "backbone.weights: a run trained them on cirr (qure-clip-s0): every strategy begins where that training ended"
    ]
    assert lines == (want if remarked else [])


def test_weights_that_are_fine_tuned():
    outline = Outline(Backbone, "blip2", fine_tuned="they hold their own visual tower")
    (line,) = earlier_training(config_of("cirr"), outline)
    assert line == "backbone.weights: they hold their own visual tower: every strategy begins where that training ended"
    assert earlier_training(config_of("cirr"), Outline(Backbone, "blip2")) == []


NAMED = {
    "blip": ("model.pth", "cirr", "QuRe publishes its models, trained on fashioniq or cirr, unknown which"),
    "blip of others": (
        "blip.pt",
        "fashioniq",
        "Candidate-Reranking-CIR publishes BLIP, trained on fashioniq or cirr, unknown which",
    ),
    "clip": ("cirr_clip_RN50x4_fullft.pt", "cirr", "CLIP4Cir publishes CLIP, trained on cirr"),
    "clip on fashion": ("fiq_clip_RN50x4_fullft.pt", "fashioniq", "CLIP4Cir publishes CLIP, trained on fashioniq"),
}


@pytest.mark.parametrize(("name", "dataset", "whose"), NAMED.values(), ids=NAMED)
def test_weights_with_the_name_of_published_fine_tuned_ones(name, dataset, whose, tmp_path):
    lines = earlier_training(config_of(dataset), Outline(Backbone, "blip", files=(tmp_path / name,)))
    begins = "every strategy begins where that training ended"
    assert lines == [f"backbone.weights: {name} is the name under which {whose}: {begins}"]


OTHERS = {
    "CLIP4Cir's of CIRR on FashionIQ": ("cirr_clip_RN50x4_fullft.pt", "fashioniq"),
    "CLIP4Cir's of FashionIQ on CIRR": ("fiq_clip_RN50x4_fullft.pt", "cirr"),
    "QuRe's on other data": ("model.pth", "fashion200k"),
    "a name of one's own, on other data": ("blip2_fashioniq.pth", "cirr"),
}


@pytest.mark.parametrize(("name", "dataset"), OTHERS.values(), ids=OTHERS)
def test_weights_that_are_trained_on_other_data_get_no_remark(name, dataset, tmp_path):
    assert earlier_training(config_of(dataset), Outline(Backbone, "blip", files=(tmp_path / name,))) == []


SPELLED = {
    "a repository of the hub": ("someone/blip2-fashioniq@main", "fashioniq", "blip2-fashioniq@main", "fashioniq"),
    "one of open_clip": ("hf-hub:someone/ViT-B-32_FIQ", "fashioniq", "ViT-B-32_FIQ", "fashioniq"),
    "a folder": ("~/weights/Fashion-IQ_blip2", "fashioniq", "Fashion-IQ_blip2", "fashioniq"),
    "a file of LAVIS": ("lavis:weights/cirr.pth,key=model", "cirr", "cirr.pth", "cirr"),
    "two data sets": ("lavis:cirr+circo.pth", "circo", "cirr+circo.pth", "cirr and circo"),
    "two words": ("me/mit_states-clip", "mit-states", "mit_states-clip", "mit-states"),
    "a number": ("me/clip-fashion200k", "fashion200k", "clip-fashion200k", "fashion200k"),
}


@pytest.mark.parametrize(("weights", "dataset", "name", "trained"), SPELLED.values(), ids=SPELLED)
def test_weights_whose_name_spells_the_data_set(weights, dataset, name, trained, tmp_path):
    config = config_of(dataset, weights)
    (line,) = earlier_training(config, Outline(Backbone, "blip2", files=(tmp_path / "model.safetensors",)))
    begins = "every strategy begins where that training ended"
    assert line == f"backbone.weights: by their name, {name}, they are trained on {trained}: {begins}"


UNNAMED = {
    "another data set": "me/blip2-cirr",
    "a longer word": "me/fiqure-blip2",
    "the folder around": "lavis:fashioniq/blip2_pretrained.pth,tower=fashioniq/eva_vit_g.pth",
    "the owner": "fashioniq/blip2",
    "the published ones": "Salesforce/blip2-itm-vit-g",
}


@pytest.mark.parametrize("weights", UNNAMED.values(), ids=UNNAMED)
def test_weights_whose_name_does_not_spell_the_data_set(weights, tmp_path):
    outline = Outline(Backbone, "blip2", files=(tmp_path / "model.safetensors",))
    assert earlier_training(config_of("fashioniq", weights), outline) == []


def test_a_name_says_what_whole_weights_were_fine_tuned_on(tmp_path):
    """BLIP-2 with its own tower is fine-tuned; which data set it was is unknown without a name."""
    tuned = "they hold their own visual tower"
    named = Outline(Backbone, "blip2", fine_tuned=tuned, files=(tmp_path / "qure_cirr.pth",))
    assert "by their name, qure_cirr.pth" in earlier_training(config_of("cirr"), named)[0]
    assert earlier_training(config_of("fashioniq"), named) == []
    unnamed = Outline(Backbone, "blip2", fine_tuned=tuned, files=(tmp_path / "best.pth",))
    assert tuned in earlier_training(config_of("fashioniq"), unnamed)[0]


def test_the_record_of_a_run_counts_more_than_its_name(tmp_path):
    file = weights_of_run(tmp_path / "run", "cirr").with_name("fashioniq.safetensors")
    assert earlier_training(config_of("fashioniq"), Outline(Backbone, "clip", files=(file,))) == []
    (line,) = earlier_training(config_of("cirr"), Outline(Backbone, "clip", files=(file,)))
    assert "a run trained them on cirr" in line


def test_weights_are_remarked_on_once(tmp_path):
    outline = Outline(Backbone, "blip2", fine_tuned="they hold their own visual tower", files=(tmp_path / "model.pth",))
    (line,) = earlier_training(config_of("cirr"), outline)
    assert "model.pth" in line


@pytest.mark.parametrize("name", ["model_large.pth", "model.safetensors", "pytorch_model.bin"])
def test_pretrained_weights_get_no_remark(name, tmp_path):
    assert earlier_training(config_of("cirr"), Outline(Backbone, "blip", files=(tmp_path / name,))) == []
