import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from negbench.backbones import tiny
from negbench.backbones.tiny import BUCKETS, FORMAT, MAX_WORDS, SHIPPED, Encoders, Tiny, load_encoders, read_metadata
from negbench.datasets.stream import Stream
from negbench.errors import WeightsError
from negbench.plugins.registry import build
from negbench.worlds._garments import CATEGORIES, sample_attributes, sample_nuisance
from negbench.worlds._rendering import render
from negbench.worlds._wording import VOCABULARY, describe

TEXTS = [
    "is red and has long sleeves",
    "Is darker.",
    "zebra-like kimono with 3/4 sleeves, quokka",
    "",
    "is a blue top with navy dots and a v-neck instead of a collar",
]


@pytest.fixture(scope="module")
def example(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """Import the script that made the shipped weights."""
    return load_file(Path(__file__).parents[2] / "examples" / "pretrain_tiny.py")


@cache
def _tiny(**options: object) -> Tiny:
    return build(Tiny, **options).eval()


@cache
def _garments(count: int = 300) -> tuple[Tensor, list[str], list[str]]:
    """Return new preprocessed pictures, descriptions and colours from a random stream that no other code uses."""
    pixels = []
    texts = []
    colours = []
    for index in range(count):
        stream = Stream(7, "test of tiny", index)
        attributes = sample_attributes(stream, CATEGORIES[index % 3])
        picture = render(attributes, sample_nuisance(stream))
        pixels.append(_tiny().preprocess(Image.fromarray(picture)))
        texts.append(describe(attributes, stream))
        colours.append(attributes.colour)
    return torch.stack(pixels), texts, colours


# --- text ----------------------------------------------------------------------------------------------------------


def test_ids_hand_table():
    tokens = _tiny().tokenize(["Red, has 3/4 sleeves!", "quokka"])
    assert tokens["ids"][0].tolist() == [VOCABULARY.index(word) + 1 for word in ("red", "has", "3/4", "sleeves")]
    first = len(VOCABULARY) + 1
    assert first <= tokens["ids"][1, 0] < first + BUCKETS
    assert tokens["ids"][1, 1:].tolist() == [0, 0, 0]
    assert tokens["colour"].tolist() == [[True, False, False, False], [False] * 4]
    assert tokens["shape"].tolist() == [[False, False, False, True], [False] * 4]


def test_texts_of_any_length():
    assert _tiny().tokenize(["red " * 500])["ids"].shape == (1, MAX_WORDS)
    assert torch.isfinite(_tiny().text_queries(["", "red " * 500, "¡qué!"])).all()


# --- identity and weights ------------------------------------------------------------------------------------------


def test_what_is_trained_starts_alike_for_all_encoders():
    one = build(Tiny, seed=3)
    two = build(Tiny, seed=3, weights="random")
    for name, parameter in one.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter, two.get_parameter(name)), name


def test_the_feature_key_follows_both_encoders(tmp_path, example):
    """Texts are frozen as well, and kept as long as the key stays."""
    encoders = load_encoders(SHIPPED)
    metadata = read_metadata(SHIPPED)
    keys = {_tiny().feature_key}
    for encoder in (encoders.text, encoders.image):
        with torch.no_grad():
            encoder.output.bias += 1
        example.write(encoders, metadata, tmp_path / "changed.safetensors")
        keys.add(build(Tiny, weights=str(tmp_path / "changed.safetensors")).feature_key)
    assert len(keys) == 3
    assert build(Tiny, seed=5, fusion="sum").feature_key == _tiny().feature_key


def test_shipped_file_is_small_and_says_how_it_was_made():
    assert SHIPPED.stat().st_size < 1.2e6
    metadata = read_metadata(SHIPPED)
    assert metadata["command"].startswith("python examples/pretrain_tiny.py --seed 1000000 ")
    assert int(metadata["steps"]) > 0
    assert json.loads(metadata["vocabulary"]) == list(VOCABULARY)


def test_shipped_weights_were_made_with_todays_renderer(example):
    # fails after every change to the garments: rerun the command in the file's metadata
    assert read_metadata(SHIPPED)["renderer"] == example.renderer_sha256()


def test_weights_that_are_missing_or_do_not_fit(tmp_path, subtests):
    with pytest.raises(WeightsError, match=r"no weights at .*nowhere.*pretrain_tiny"):
        build(Tiny, weights=str(tmp_path / "nowhere"))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no safetensors")
    with pytest.raises(WeightsError, match=r"broken\.safetensors is not a safetensors file"):
        build(Tiny, weights=str(broken))
    save_file({"x": torch.zeros(1)}, broken)
    with pytest.raises(WeightsError, match="has format None"):
        build(Tiny, weights=str(broken))
    for vocabulary in ({}, {"vocabulary": "["}, {"vocabulary": "5"}):
        with subtests.test(vocabulary=vocabulary):
            save_file({"x": torch.zeros(1)}, broken, {"format": FORMAT, **vocabulary})
            with pytest.raises(WeightsError, match="has no vocabulary"):
                build(Tiny, weights=str(broken))
    state = Encoders(VOCABULARY).state_dict()
    state["text.output.bias"] = torch.zeros(3)
    save_file(state, broken, read_metadata(SHIPPED))
    with pytest.raises(WeightsError, match=r"does not fit the tiny backbone: wrong shape text\.output\.bias"):
        build(Tiny, weights=str(broken))


def test_shipped_weights_of_another_content_are_refused(tmp_path, monkeypatch, subtests):
    whole = SHIPPED.read_bytes()
    flipped = bytes([*whole[:-100], whole[-100] ^ 1, *whole[-99:]])  # valid tensors, but different weights
    for content in (flipped, whole[:-1], b""):
        with subtests.test(size=len(content)):
            other = tmp_path / "tiny.safetensors"
            other.write_bytes(content)
            monkeypatch.setattr(tiny, "SHIPPED", other)
            with pytest.raises(WeightsError, match="is not the file that negbench ships"):
                build(Tiny)


# --- quality of the shipped encoders, on pictures of a stream that nothing else uses ---------------------------------


def test_shipped_encoders_find_a_picture_by_its_description():
    pixels, texts, _ = _garments()
    encoders = _tiny().encoders
    with torch.no_grad():
        images = F.normalize(encoders.image(pixels), dim=1)
        queries = F.normalize(encoders.text(encoders.word_ids(texts)[0])[1], dim=1)
    scores = queries @ images.T
    ranks = (scores > scores.diag()[:, None]).sum(1)
    assert (ranks < 3).float().mean() > 0.5  # chance: 0.01


# --- the command that made them --------------------------------------------------------------------------------------


def test_pretraining_learns_and_repeats_itself(tmp_path, capsys, example):
    state = torch.random.get_rng_state()
    encoders, metadata = example.pretrain(1_000_007, 128, 2)
    again, _ = example.pretrain(1_000_007, 128, 2)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = encoders.state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    first, last = (float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()[:2])
    assert last < first
    example.write(encoders, metadata, tmp_path / "made.safetensors")
    loaded = load_encoders(tmp_path / "made.safetensors")
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, weights[name].half().float(), rtol=0, atol=0, msg=name)
    assert read_metadata(tmp_path / "made.safetensors") == metadata
