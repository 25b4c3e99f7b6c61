"""Published encoders in `negbench embed`: the files match what each library computes for single images and texts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from negbench.backbones import _open_clip
from negbench.errors import OptionError
from negbench.own.embed import embed_folder
from negbench.settings.command_options import Embed
from tests.backbones.test_clip import TWO, weights

TEXTS = ["in blue", "with longer sleeves and a zip, and no dots at all", "Red", "ten"]

pytestmark = pytest.mark.usefixtures("offline")


def pictures() -> dict[str, Image.Image]:
    """Return eleven noise images: seven RGB images of different shapes and four images of other modes."""
    rng = np.random.default_rng(0)
    images = {}
    for n in range(7):
        images[f"n{n}"] = Image.fromarray(rng.integers(0, 256, (30 + 3 * n, 50 - 2 * n, 3), dtype=np.uint8))
    images["grey"] = images["n0"].convert("L")
    images["palette"] = images["n1"].convert("P")
    images["clear"] = images["n2"].copy()
    images["clear"].putalpha(60)
    images["deep"] = Image.fromarray(rng.integers(0, 2**16, (33, 40)).astype(np.uint16))
    return images


def as_rgb(name: str, image: Image.Image) -> Image.Image:
    """Convert the image to RGB, keeping the high byte of 16-bit values."""
    if name == "deep":
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the images, and triplets that name each of them."""
    out = tmp_path_factory.mktemp("data")
    names = list(pictures())
    for name, image in pictures().items():
        image.save(out / f"{name}.png")
    others = [*names[1:], names[0]]
    rows = []
    for n, (reference, target) in enumerate(zip(names, others, strict=True)):
        split = "val" if n < 4 else "train"
        rows.append({"reference": reference, "text": TEXTS[n % len(TEXTS)], "target": target, "split": split})
    (out / "triplets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def tower() -> dict[str, Any]:
    return {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def save(model: Any, out: Path, *parts: Any) -> Path:
    """Save a model with random weights, large enough to tell inputs apart, in transformers' format."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    for part in (model, *parts):
        part.save_pretrained(out)
    return out


def tokenizer(folder: Path, most: int) -> Any:
    """Return a tokenizer of single letters with CLIP's start and end tokens."""
    from open_clip.tokenizer import bytes_to_unicode
    from transformers import CLIPTokenizer

    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=most)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory, tower: dict[str, Any]) -> Path:
    """Save a tiny transformers CLIP whose texts have at most 24 tokens."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    out = tmp_path_factory.mktemp("models") / "clip"
    words = tokenizer(out, 24)
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**tower, **ends, "vocab_size": len(words), "max_position_embeddings": 24}
    vision = {**tower, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))
    square = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return save(model, out, CLIPProcessor(CLIPImageProcessor(**square), words))


def check(folder: Path, spec: str, image: Callable[[Image.Image], Tensor], text: Callable[[str], Tensor]) -> None:
    """Check that `spec`, in batches of three, writes what `image` and `text` return for single items."""
    embedded = embed_folder(Embed(folder=folder, encoder=spec, batch_size=3, overwrite=True))
    with np.load(embedded.images) as images, np.load(embedded.texts) as texts, torch.no_grad():
        assert set(images["ids"]) == set(pictures())
        assert sorted(texts["texts"]) == sorted(TEXTS)
        assert images["features"].dtype == texts["features"].dtype == np.float32
        for name, row in zip(images["ids"].tolist(), images["features"], strict=True):
            want = image(as_rgb(name, pictures()[name]))
            torch.testing.assert_close(torch.from_numpy(row), want, rtol=1e-4, atol=1e-5, msg=name)
        for name, row in zip(texts["texts"].tolist(), texts["features"], strict=True):
            torch.testing.assert_close(torch.from_numpy(row), text(name), rtol=1e-4, atol=1e-5, msg=name)
        rows = images["features"]
        assert len(np.unique(rows.round(4), axis=0)) == len(pictures()) - 1  # "clear" is n2 without its transparency
        assert len(np.unique(texts["features"].round(4), axis=0)) == len(TEXTS)


# --- the libraries -------------------------------------------------------------------------------------------------


Encoding = tuple[Callable[[Image.Image], Tensor], Callable[[str], Tensor]]  # of a single image and of a single text


def encoding(model: Any, processor: Any, **options: Any) -> Encoding:
    """Return transformers' own functions to encode an image and a text; the options are its tokenizer's."""

    def encode_image(image: Image.Image) -> Tensor:
        inputs = processor(images=image, return_tensors="pt")
        return model.get_image_features(**inputs).pooler_output[0]

    def encode_text(text: str) -> Tensor:
        inputs = processor(text=text, truncation=True, return_tensors="pt", **options)
        return model.get_text_features(**inputs).pooler_output[0]

    return encode_image, encode_text


def test_transformers(folder, clip):
    from transformers import CLIPModel, CLIPProcessor

    model = CLIPModel.from_pretrained(clip).eval()
    processor = CLIPProcessor.from_pretrained(clip)
    state = torch.get_rng_state()
    check(folder, f"transformers:{clip}", *encoding(model, processor, max_length=24))
    assert torch.equal(torch.get_rng_state(), state)


def test_siglip_sees_its_padding(folder, tower, tmp_path):
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel, SiglipProcessor

    out = tmp_path / "siglip"
    words = tokenizer(out, 20)
    text = {**tower, "vocab_size": len(words), "max_position_embeddings": 20, "projection_size": 16}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config={**tower, "image_size": 32, "patch_size": 16}))
    processor = SiglipProcessor(SiglipImageProcessor(size={"height": 32, "width": 32}), words)
    save(model.eval(), out, processor)
    check(folder, f"transformers:{out}", *encoding(model, processor, padding="max_length", max_length=20))


def open_clip_encoding(name: str, **options: Any) -> Encoding:
    """Return open_clip's own functions to encode an image and a text, with its loading and preprocessing."""
    import open_clip

    model, preprocess = open_clip.create_model_from_pretrained(name, **options)
    model = model.eval()

    def encode_image(image: Image.Image) -> Tensor:
        return model.encode_image(preprocess(image)[None])[0]

    def encode_text(text: str) -> Tensor:
        return model.encode_text(open_clip.tokenize([text]))[0]

    return encode_image, encode_text


def test_open_clip_from_a_file_of_tensors(folder, tmp_path):
    file = tmp_path / "toy.safetensors"
    save_file(weights(), file)
    plain_name, quick_name = TWO
    quick = open_clip_encoding(quick_name, pretrained=str(file))
    plain = open_clip_encoding(plain_name, pretrained=str(file))
    check(folder, f"open_clip:{quick_name}:{file}", *quick)
    check(folder, f"open_clip:{plain_name}:{file}:activation=quick_gelu", *quick)
    check(folder, f"open_clip:{plain_name}:{file}:activation=gelu", *plain)


def test_open_clip_prepares_images_as_its_folder_says(folder, tmp_path):
    save_file(weights(), tmp_path / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7], "interpolation": "bilinear", "resize_mode": "squash"}
    config = {"model_cfg": _open_clip.TOY, "preprocess_cfg": preprocess}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    check(folder, f"open_clip:{tmp_path}", *open_clip_encoding(f"local-dir:{tmp_path}"))


# --- what cannot be used -------------------------------------------------------------------------------------------


def test_what_is_not_there_is_one_line(subtests, folder, mistakes):
    for spec, message in mistakes["encoders"].items():
        with subtests.test(spec=spec):
            with pytest.raises(OptionError) as caught:
                embed_folder(Embed(folder=folder, encoder=spec, overwrite=True))
            assert message in str(caught.value)
            assert str(caught.value).startswith(f"--encoder {spec}: ")
            assert "backbone." not in str(caught.value)
            assert "\n" not in str(caught.value)


def test_weights_that_are_not_whole(folder, clip, tmp_path):
    from safetensors.torch import load_file

    out = shutil.copytree(clip, tmp_path / "clip")
    tensors = load_file(clip / "model.safetensors")
    del tensors["visual_projection.weight"]
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OptionError, match=r"do not fit CLIPModel: missing visual_projection\.weight"):
        embed_folder(Embed(folder=folder, encoder=f"transformers:{out}", overwrite=True))
    (out / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(OptionError, match=r"cannot be loaded: "):
        embed_folder(Embed(folder=folder, encoder=f"transformers:{out}", overwrite=True))
