"""Which model a folder or a file means: several checkpoints, shards, adapters, prefixes, files of another kind."""

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save, save_file
from torch import Tensor

from negbench.backbones import _open_clip
from negbench.backbones._checkpoint import checkpoints_in, fit, one_checkpoint, shards_of
from negbench.backbones._lavis import read_checkpoint
from negbench.backbones.clip import Clip, ClipOptions
from negbench.errors import WeightsError
from negbench.machine.file_kinds import file_kind
from tests.backbones.test_clip import weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An open_clip folder without weights."""
    config = {"model_cfg": _open_clip.TOY, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    return tmp_path


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")


# --- folders -----------------------------------------------------------------------------------------------------


SEVERAL = {
    "epochs": (("epoch_10.pt", "epoch_1.pt", "epoch_2.pt"), "3 checkpoints (epoch_1.pt, epoch_2.pt, epoch_10.pt)"),
    "pretrained and fine-tuned": (
        ("open_clip_pytorch_model.bin", "epoch_10.pt"),
        "2 checkpoints (epoch_10.pt, open_clip_pytorch_model.bin)",
    ),
    "with its average": (("model.safetensors", "model_ema.safetensors"), "2 checkpoints (model.safetensors, model_ema"),
    "shards beside a file": (("a-00001-of-00002.bin", "a-00002-of-00002.bin", "b.bin"), "2 checkpoints (a.bin, b.bin)"),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_models_in_a_folder_are_refused_with_their_names(folder, case):
    names, message = SEVERAL[case]
    write(folder, *names)
    with pytest.raises(WeightsError) as error:
        Clip.load(ClipOptions(weights=str(folder)))
    assert message in str(error.value)
    assert "name one, weights=" in str(error.value)


ONE = {  # the first is the model
    "formats of one model": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", "pytorch_model.bin"),
    "a trainer's own state": ("a.pt", "optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth"),
    "other files": ("a.pt", "vocab.json", "log.txt", "merges.txt"),
}


@pytest.mark.parametrize("case", ONE)
def test_one_model_in_a_folder_is_found(tmp_path, case):
    model, *others = ONE[case]
    write(tmp_path, model, *others)
    formats = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    assert one_checkpoint(tmp_path, formats, ("pytorch_model.bin",)) == (tmp_path / model,)


TRAINERS = {
    "DeepSpeed": (("latest", "global_step9/mp_rank_00_model_states.pt"), "zero_to_fp32.py"),
    "FSDP": ((".metadata", "__0_0.distcp"), "dcp_to_torch"),
    "Trainer": (("checkpoint-90/config.json", "checkpoint-100/config.json"), "checkpoint-90, checkpoint-100"),
    "PEFT": (("adapter_config.json", "adapter_model.safetensors", "open_clip_model.safetensors"), "merge_and_unload"),
}


@pytest.mark.parametrize("case", TRAINERS)
def test_a_folder_that_has_to_be_converted_says_how(folder, case):
    names, message = TRAINERS[case]
    write(folder, *names)
    with pytest.raises(WeightsError, match=message):
        Clip.load(ClipOptions(weights=str(folder)))


def save_shards(folder: Path, state: dict[str, Tensor], stem: str, count: int = 3) -> list[Path]:
    names = sorted(state)
    files = [folder / f"{stem}-{part + 1:05}-of-{count:05}.safetensors" for part in range(count)]
    for part, file in enumerate(files):
        save_file({name: state[name].contiguous() for name in names[part::count]}, file)
    return files


def test_shards_are_read_as_one_checkpoint(subtests, folder):
    state = weights()
    files = save_shards(folder, state, "open_clip_model")
    expected = Clip.load(ClipOptions(init="random", size="toy")).clip
    expected.load_state_dict(state)
    index = folder / "open_clip_model.safetensors.index.json"
    file_of_tensor = dict.fromkeys(state, files[0].name) | {"z": files[2].name, "y": files[1].name}
    index.write_text(json.dumps({"weight_map": file_of_tensor}))
    for spec in (folder, files[1], index):
        with subtests.test(spec=spec):
            loaded = Clip.load(ClipOptions(weights=str(spec))).clip.state_dict()
            for name, tensor in expected.state_dict().items():
                assert torch.equal(loaded[name], tensor), name
    outline = Clip.outline(ClipOptions(weights=str(folder)), 0)
    assert sorted(outline.files) == files
    files[1].unlink()
    for spec in (folder, files[0], index):
        with (
            subtests.test(spec=spec),
            pytest.raises(WeightsError, match=r"in 3 shards and lacks open_clip_model-00002-of-00003\.safetensors"),
        ):
            Clip.load(ClipOptions(weights=str(spec)))


def test_a_name_in_two_shards_is_refused(folder):
    files = save_shards(folder, weights(), "open_clip_model", 2)
    shutil.copy(files[0], files[1])
    with pytest.raises(WeightsError, match="as another shard does"):
        Clip.load(ClipOptions(weights=str(folder)))


@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"weight_map": 3}'])
def test_an_index_that_is_none(tmp_path, text):
    (tmp_path / "a.index.json").write_text(text)
    with pytest.raises(WeightsError, match="is no index of shards"):
        shards_of(tmp_path / "a.index.json")


def test_shards_count_once(tmp_path):
    write(tmp_path, "m-00001-of-00002.bin", "m-00002-of-00002.bin")
    assert [len(files) for files in checkpoints_in(tmp_path).values()] == [2]


# --- prefixes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["module.", "clip.", "a.b.c.", "base_model.model."])
def test_the_prefix_of_a_wrapper_is_dropped_and_named(folder, prefix, logged):
    state = weights()
    torch.save({"state_dict": {prefix + name: value for name, value in state.items()}}, folder / "best.pt")
    clip = Clip.load(ClipOptions(weights=str(folder)))
    assert torch.equal(clip.clip.state_dict()["visual.proj"], state["visual.proj"])
    assert clip.identity.details["weights_prefix"] == prefix
    assert f"the prefix {prefix} of the tensors' names is dropped" in logged.pop().getMessage()


def test_what_lies_outside_of_the_prefix_is_said(folder, logged):
    state = {f"clip.{name}": value for name, value in weights().items()}
    torch.save(state | {"combiner.weight": torch.zeros(1), "combiner.bias": torch.zeros(1)}, folder / "best.pt")
    clip = Clip.load(ClipOptions(weights=str(folder)))
    assert clip.identity.details["weights_left_out"] == ["combiner.*"]
    assert "2 tensors outside of it are left out: combiner.*" in logged.pop().getMessage()


def test_of_two_models_in_a_file_the_user_names_one(subtests, folder):
    average = weights(2)
    state = weights() | {f"ema_model.{name}": value for name, value in average.items()}
    torch.save(state, folder / "best.pt")
    with pytest.raises(
        WeightsError, match=r"holds 2 models, behind the prefixes none, ema_model\.: .*prefix=ema_model\."
    ):
        Clip.load(ClipOptions(weights=str(folder)))
    for prefix in ("ema_model", "ema_model."):
        with subtests.test(prefix=prefix):
            clip = Clip.load(ClipOptions(weights=f"{folder},prefix={prefix}"))
            assert torch.equal(clip.clip.state_dict()["visual.proj"], average["visual.proj"])
    with pytest.raises(WeightsError, match=r"no tensor of the model stands behind prefix=other: its names begin with"):
        Clip.load(ClipOptions(weights=f"{folder},prefix=other"))
    average_outline = Clip.outline(ClipOptions(weights=f"{folder},prefix=ema_model"), 0)
    plain_outline = Clip.outline(ClipOptions(weights=f"{folder},prefix="), 0)
    assert average_outline.key != plain_outline.key


AVERAGES = {
    "timm": ({"state_dict": 1, "state_dict_ema": 2}, "state_dict_ema"),
    "ultralytics": ({"model": 1, "ema": {"module": 2, "decay": 0.99}}, "ema.module"),
    "Lightning": ({"state_dict": 1, "callbacks": {"EMA": {"state": {"weights": 2}}}}, "callbacks.EMA.state.weights"),
}


def with_states(parts: Any) -> Any:
    """Put state dicts of seed 1 and 2 in the place of these numbers."""
    if isinstance(parts, dict):
        return {key: with_states(value) for key, value in parts.items()}
    if isinstance(parts, int):
        return weights(parts)
    return parts


@pytest.mark.parametrize("case", AVERAGES)
def test_an_average_of_the_weights_in_another_part_is_named(folder, case):
    parts, average = AVERAGES[case]
    torch.save(with_states(parts), folder / "best.pt")
    with pytest.raises(WeightsError, match=rf"holds the state dicts \w+, {average}: name the one to load, as .*,key="):
        Clip.load(ClipOptions(weights=str(folder)))
    clip = Clip.load(ClipOptions(weights=f"{folder},key={average}"))
    assert torch.equal(clip.clip.state_dict()["visual.proj"], weights(2)["visual.proj"])


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_an_average_without_names_is_no_second_choice_in_silence(folder, share):
    """As torch_ema and diffusers keep one; a short list of tensors is none."""
    shadow = [*weights(2).values()]
    shadow = shadow[: int(len(shadow) * share)]
    torch.save({"model": weights(), "ema": {"decay": 0.99, "shadow_params": shadow}}, folder / "best.pt")
    source = str(folder)
    if share == 1:
        text = rf"holds the state dict model, and as ema\.shadow_params {len(shadow)} tensors without names.*,key=model"
        with pytest.raises(WeightsError, match=text):
            Clip.load(ClipOptions(weights=source))
        source = f"{folder},key=model"
    clip = Clip.load(ClipOptions(weights=source))
    assert torch.equal(clip.clip.state_dict()["visual.proj"], weights()["visual.proj"])


BESIDE = {
    "an optimiser's": {"state": {0: {"exp_avg": torch.zeros(3), "step": torch.tensor(1.0)}}, "param_groups": []},
    "an optimiser's by name": {"state": {"visual.proj": {"exp_avg": torch.zeros(3), "step": torch.tensor(1.0)}}},
    "another model's": {"inner": {"layers.0.bias": torch.zeros(3), "layers.0.scale": torch.zeros(3)}},
}


@pytest.mark.parametrize("case", BESIDE)
def test_another_state_in_the_file_is_no_second_model(folder, case):
    torch.save({"model": weights(1), "other": BESIDE[case]}, folder / "best.pt")
    clip = Clip.load(ClipOptions(weights=str(folder)))
    assert torch.equal(clip.clip.state_dict()["visual.proj"], weights(1)["visual.proj"])


def test_a_model_that_lacks_a_tensor_is_compared_behind_its_prefix(folder):
    state = {f"clip.{name}": value for name, value in weights().items() if name != "visual.proj"}
    torch.save(state, folder / "best.pt")
    with pytest.raises(
        WeightsError, match=r"behind the prefix clip\., does not fit its architecture: missing visual\.proj$"
    ):
        Clip.load(ClipOptions(weights=str(folder)))


def test_a_whole_model_without_prefix_is_left_alone():
    state = {"a.x": 1, "b": 2, "deep.a.x": 3}
    assert fit(state, {"a.x", "b"}, "f").state == state


# --- files of another kind ---------------------------------------------------------------------------------------


def _zip(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return content.getvalue()


KINDS = {
    "empty": (b"", "empty: download it again"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "git lfs pull"),
    "annex": (b"/annex/objects/SHA256E-s9--ab.pt\n", "git annex get"),
    "web page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "a web page"),
    "error": (b'{"error": "Repository not found"}', "a JSON text that begins with"),
    "text": (b"Access denied\n", "a text that begins with 'Access denied'"),
    "gzip": (b"\x1f\x8b\x08\x00abc", "compressed by gzip"),
    "archive": (_zip("model/weights.pt"), "a zip archive of model/weights.pt: unpack it first"),
    "TorchScript": (_zip("m/constants.pkl", "m/data.pkl", "m/code/m.py"), "a TorchScript archive, which runs code"),
    "cut": (_zip("archive/data.pkl")[:40], "cut off, as its end is missing"),
    "Keras": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "safetensors": (save({"x": torch.zeros(2)}), "give it the ending .safetensors"),
}


@pytest.mark.parametrize("case", KINDS)
def test_a_file_that_is_no_checkpoint_says_what_it_is(tmp_path, case):
    content, message = KINDS[case]
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(WeightsError) as error:
        read_checkpoint(tmp_path / "model.pt")
    assert f"{tmp_path / 'model.pt'} is no checkpoint but " in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_torch_and_numpy_write_is_told(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "a.pt")
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    Image.new("RGB", (2, 2)).save(tmp_path / "c.pt", "png")
    (tmp_path / "d.pt").write_bytes(bytes(range(256)))
    kinds = [file_kind(tmp_path / name) for name in ("a.pt", "b.npz", "c.pt", "d.pt", "absent.pt")]
    assert kinds == [None, "a file of numpy arrays (.npz): x.npy", "a PNG picture", None, None]


# --- transformers' folders ---------------------------------------------------------------------------------------


@pytest.fixture
def transformers_folder(tmp_path: Path) -> Path:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    from tests.backbones.test_encoders import tokenizer

    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = tokenizer(tmp_path / "m", 24)
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**small, **ends, "vocab_size": len(words), "max_position_embeddings": 24}
    vision = {**small, "image_size": 32, "patch_size": 16}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(tmp_path / "m")
    CLIPProcessor(CLIPImageProcessor(size=32, crop_size=32), words).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def add_adapter(folder: Path, base: str | None = None, layer: str = "vision_model.encoder.layers.0") -> None:
    key = f"base_model.model.{layer}.self_attn.q_proj.lora_"
    tensors = {f"{key}A.weight": torch.ones(4, 8), f"{key}B.weight": torch.ones(8, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": base,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def encoder(folder: Path) -> Any:
    from negbench.backbones._encoders import load

    return load("transformers", str(folder), torch.device("cpu"))


def test_an_adapter_without_peft_is_refused(transformers_folder, monkeypatch):
    add_adapter(transformers_folder)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(WeightsError, match=r"holds an adapter of PEFT .*`pip install peft`.*merge_and_unload\(\)"):
        encoder(transformers_folder)


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_is_merged_by_peft(transformers_folder, tmp_path, alone, logged):
    plain = encoder(transformers_folder)
    folder = transformers_folder
    if alone:
        folder = tmp_path / "adapter"
        folder.mkdir()
    add_adapter(folder, str(transformers_folder) if alone else None)
    merged = encoder(folder)
    name = "vision_model.encoder.layers.0.self_attn.q_proj.weight"
    difference = merged._model.state_dict()[name] - plain._model.state_dict()[name]
    torch.testing.assert_close(difference, torch.full((8, 8), 8.0))  # alpha 8 / rank 4, and four ones times one
    note = logged.pop().getMessage()
    assert "its adapter (adapter_config.json) is merged" in note
    assert "it holds nothing for base_model.model.text_model.encoder.layers.0.self_attn.q_proj.lora_A" in note


@pytest.mark.parametrize("layer", ["model.vision_model.encoder.layers.0", "vision_model.encoder.layers.7"])
def test_an_adapter_of_another_model_is_refused(transformers_folder, layer):
    add_adapter(transformers_folder, layer=layer)
    with pytest.raises(WeightsError, match=rf"is not of this model, which has no place for .*{layer}.*lora_A"):
        encoder(transformers_folder)


def test_what_transformers_leaves_alone_is_said(transformers_folder, logged):
    write(transformers_folder, "epoch_3.pt", "training_args.bin")
    encoder(transformers_folder)
    assert "model.safetensors is read, and not epoch_3.pt beside it" in logged.pop().getMessage()


def test_the_prefix_in_a_transformers_folder_is_named(transformers_folder):
    from safetensors.torch import load_file

    file = transformers_folder / "model.safetensors"
    save_file({f"inner.{name}": value for name, value in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"their names begin with the prefix inner\.: save the model inside"):
        encoder(transformers_folder)
