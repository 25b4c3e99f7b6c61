"""BLIP against a forward pass on plain tensors and transformers' model; pitfalls of the reference page, section 5."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from negbench.backbones._lavis import BlipSizes
from negbench.backbones.blip import Blip
from negbench.contracts import relevance
from negbench.errors import WeightsError
from negbench.plugins.registry import build
from tests.backbones.test_blip2 import SETTINGS, difference


@pytest.fixture
def world(lavis: Any) -> Any:
    sizes = lavis.Sizes(rows=len(lavis.vocabulary) + 2)
    state = lavis.blip_state(sizes)
    model = build(Blip, weights=f"lavis:{lavis.save(state)}", config=lavis.config(sizes, "text"))
    return lavis.World(lavis, sizes, state, model)


def test_forward_equals_plain_tensors(world):
    lavis = world.lavis
    state = world.state
    s = world.sizes
    features = lavis.blip_features(state, world.pixels, s)
    queries = lavis.blip_queries(state, features, world.ids, world.mask, s)
    candidates = F.normalize(lavis.linear(state, "vision_proj", features[:, :1]), dim=-1)
    alone = lavis.blip_text_hidden(state, world.ids, world.mask, s, None)[:, 0]
    differences = {
        "features": difference(world.features, features),
        "queries": difference(world.queries, queries),
        "candidates": difference(world.candidates, candidates),
        "scores": difference(relevance(world.queries, world.candidates), queries @ candidates[:, 0].T),
        "text": difference(
            world.model.text_queries(lavis.captions), F.normalize(lavis.linear(state, "text_proj", alone), dim=-1)
        ),
    }
    assert max(differences.values()) < 1e-5


@pytest.mark.parametrize(("vision", "text"), SETTINGS, ids=str)
def test_transformers_folder(lavis, tmp_path, vision, text):
    model = lavis.hub("blip", tmp_path / "saved", vision, text)
    ours = build(Blip, weights=str(tmp_path / "saved"))
    texts = ["red dress", "blue shirt, longer"]
    tokens = ours.tokenize(texts)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ids = tokens["input_ids"].clone()
    ids[:, 0] = model.config.text_config.vocab_size - 1  # [ENC]
    mask = tokens["attention_mask"]
    with torch.no_grad():
        fused = model(input_ids=ids, pixel_values=pixels, attention_mask=mask, use_itm_head=True)
        alone = model(input_ids=tokens["input_ids"], pixel_values=pixels, attention_mask=mask, use_itm_head=False)
        features = ours.image_features(pixels)
        queries = ours.queries(features, tokens)
        candidates = ours.candidates(features)
        assert difference(features, fused.last_hidden_state) < 1e-5
        assert difference(queries, F.normalize(model.text_proj(fused.question_embeds[:, 0]), dim=-1)) < 1e-5
        assert difference(relevance(ours.text_queries(texts), candidates), alone.itm_score.T) < 1e-5
    assert float(ours.temperature.detach()) == pytest.approx(0.07)  # transformers' class has none
    assert ours.identity.activation == vision.get("hidden_act", "gelu")
    assert ours.text_encoder.config.hidden_dropout_prob == 0.1


def test_only_the_text_side_trains_with_frozen_images():
    whole = build(Blip, init="random", size="toy", frozen=None)
    text = build(Blip, init="random", size="toy", frozen="images")
    assert (whole.frozen_images, text.frozen_images) == (False, True)
    assert (Blip.freezes(whole.options), Blip.freezes(text.options)) == (False, True)
    trained = {name.split(".")[0] for name, parameter in text.named_parameters() if parameter.requires_grad}
    assert trained == {"text_encoder", "text_proj", "temp"}
    everything = {name.split(".")[0] for name, _ in whole.named_parameters()}
    assert everything == trained | {"vision_model", "vision_proj"}
    assert text.identity.trainable_parameters < whole.identity.trainable_parameters


def test_a_folders_tokenizer_and_image_processor(subtests, lavis, tmp_path):
    from transformers import BertTokenizer
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    def ours() -> Blip:
        return build(Blip, weights=str(tmp_path), freeze_images=True)

    def write(file: str, **settings: Any) -> None:
        (tmp_path / file).write_text(json.dumps(settings))

    lavis.hub("blip", tmp_path)
    texts = ["RED dress", "caf\xe9, red"]
    hashes = set()
    for spelling in ({}, {"do_lower_case": False}, {"strip_accents": False}):
        with subtests.test(spelling=spelling):
            write("tokenizer_config.json", tokenizer_class="BertTokenizer", **spelling)
            loaded = ours()
            tokens = loaded.tokenize(texts)
            theirs = BertTokenizer.from_pretrained(tmp_path)(texts)
            rows = zip(tokens["input_ids"], tokens["attention_mask"], theirs["input_ids"], strict=True)
            for ids, mask, want in rows:
                assert ids[mask.bool()].tolist() == want, want
            hashes.add(loaded.identity.details["tokenizer_sha256"])
    assert len(hashes) == 3
    picture = Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 50, 3), dtype=np.uint8))
    size = {"height": 32, "width": 32}
    for settings in (
        {},
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
        {"resample": 2},
        {"do_normalize": False},
    ):
        with subtests.test(settings=settings):
            write("preprocessor_config.json", size=size, **settings)
            theirs = BlipImageProcessorPil.from_pretrained(tmp_path)(picture, return_tensors="pt")["pixel_values"][0]
            assert difference(ours().preprocess(picture), theirs) < 1e-5
            write("processor_config.json", image_processor={"size": size, **settings})  # counts before the other
            write("preprocessor_config.json", image_mean=[0.9] * 3)
            assert difference(ours().preprocess(picture), theirs) < 1e-5
            (tmp_path / "processor_config.json").unlink()
    odd = {"do_rescale": False, "do_resize": False, "rescale_factor": 0.5, "resample": 0, "size": {"shortest_edge": 40}}
    for key, value in odd.items():
        with subtests.test(key=key, value=value):
            write("preprocessor_config.json", **{key: value})
            with pytest.raises(WeightsError, match=f"image processor asks for {key} "):
                ours()


def test_heads_dropout_and_text_length_are_laviss(world):
    assert (BlipSizes().text_heads, BlipSizes().vit_heads, BlipSizes().max_txt_len) == (12, 12, 35)
    assert world.model.vision_model.post_layernorm.eps == 1e-6
    config = world.model.text_encoder.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    with pytest.raises(WeightsError, match="text_heads 12 does not divide text_hidden_size 16"):
        build(Blip, weights=f"lavis:{world.lavis.save(world.state)}", config={"vit_heads": 3, "max_txt_len": 16})


def test_vocabulary_must_have_a_row_for_enc(world):
    name = "text_encoder.embeddings.word_embeddings.weight"
    path = world.lavis.save({**world.state, name: world.state[name][:-1]})
    with pytest.raises(WeightsError, match=r"\[DEC\] and \[ENC\]"):
        build(Blip, weights=f"lavis:{path}", config=world.lavis.config(world.sizes, "text"))
