"""CLIP against open_clip's own encoders and explicit formulas; files, activations and gradients at toy size."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from negbench.backbones import _open_clip
from negbench.backbones.clip import Clip
from negbench.errors import OptionError, WeightsError
from negbench.plugins.registry import build

TEXTS = ["is darker blue with longer sleeves", "Is a red dress, no belt.", "", "shorter"]
REFERENCES = ["a blue dress", "a long skirt with dots", "red", "a plain tee"]
COMMIT = "abc123" + 34 * "0"
TWO = ("ViT-Toy", "ViT-Toy-quickgelu")  # registered by the fixture `offline`


@pytest.fixture(autouse=True)
def _tags(offline: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Register pretrained tags for the toy model in open_clip."""
    from open_clip import pretrained  # takes seconds, which only these tests' worker pays

    mean = (0.5, 0.5, 0.5)
    tags = {
        "openai": pretrained._pcfg(hf_hub="toys/openai/", quick_gelu=True),
        "laion": pretrained._pcfg(hf_hub="toys/laion/", mean=mean, std=mean),
    }
    monkeypatch.setitem(pretrained._PRETRAINED, TWO[0], tags)
    monkeypatch.setitem(pretrained._PRETRAINED, TWO[1], {"openai": tags["openai"]})


def toy(**options: Any) -> Clip:
    return build(Clip, **{"init": "random", "size": "toy", **options})


def weights(seed: int = 1) -> dict[str, Tensor]:
    """Return a state dict in open_clip's format in which every tensor affects the output."""
    model = _open_clip.build(_open_clip.TOY, seed)
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "logit_scale":
            state[name] = torch.tensor(3.0)
        else:
            state[name] = tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
    state["token_embedding.weight"] *= 10
    return state


def pixels(count: int = len(TEXTS), size: int = 32, seed: int = 5) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def tensors(path: Path, state: dict[str, Any]) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def hub(tmp_path: Path, name: str, state: dict[str, Tensor], config: dict[str, Any] | None = None) -> None:
    """Write the hub's cache as it is after a download."""
    home = tmp_path / "hub" / f"models--toys--{name}"
    folder = home / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    save_file(state, folder / "open_clip_model.safetensors")
    if config is not None:
        (folder / "open_clip_config.json").write_text(json.dumps(config))


# --- against open_clip ---------------------------------------------------------------------------------------------


def gated(clip: Clip, image: Tensor, text: Tensor) -> Tensor:
    """Compute HyCoLe eq. 2 with explicit z."""
    z = torch.cat([image, text, image * text, image - text], dim=-1)
    h, g = (z @ clip.fusion.linear.weight.T + clip.fusion.linear.bias).chunk(2, -1)
    g = torch.sigmoid(g)
    return F.normalize(g * F.gelu(h) + (1 - g) * image, dim=-1)


MODELS = [
    ("quick_gelu", False, 32, True),
    ("quick_gelu", False, 32, False),
    ("gelu", True, 32, True),
    ("quick_gelu", 24, 24, False),
]


@pytest.mark.parametrize(("activation", "projection", "width", "frozen"), MODELS)
def test_scores_are_those_of_open_clips_encoders(tmp_path, activation, projection, width, frozen):
    """HyCoLe's two projections, for images and texts, follow the encoder; stored features precede them."""
    from open_clip import create_model, tokenize

    file = tensors(tmp_path / "clip.pt", weights())
    options = {"model": "ViT-Toy", "weights": str(file), "activation": activation, "frozen": frozen}
    clip = build(Clip, **options, projection=projection)
    plain = build(Clip, **options)
    theirs = create_model(TWO[0], pretrained=str(file), force_quick_gelu=activation == "quick_gelu").eval()
    sides = (clip.project_image, clip.project_text) if projection else ()
    with torch.no_grad():
        for side in sides:
            side.bias.normal_(generator=torch.Generator().manual_seed(1))
        project_image, project_text = sides or (torch.nn.Identity(), torch.nn.Identity())
        features = clip.image_features(pixels())
        assert torch.equal(features, plain.image_features(pixels()))
        image = F.normalize(project_image(theirs.encode_image(pixels())), dim=-1)
        text = F.normalize(project_text(theirs.encode_text(tokenize(TEXTS))), dim=-1)
        described = F.normalize(project_text(theirs.encode_text(tokenize(REFERENCES))), dim=-1)
        torch.testing.assert_close(clip.candidates(features)[:, 0], image)
        torch.testing.assert_close(clip.text_queries(TEXTS), text)
        torch.testing.assert_close(clip.queries(features, TEXTS), gated(clip, image, text))
        torch.testing.assert_close(clip.compose_texts(REFERENCES, TEXTS), gated(clip, described, text))
    assert len({bytes(side.weight.detach().numpy()) for side in sides}) == len(sides)
    assert features.shape == (4, 1, 32)
    assert image.shape == (4, width)
    assert float(clip.temperature.detach()) == pytest.approx(torch.exp(torch.tensor(-3.0)).item())
    assert (clip.identity.embedding_dim, clip.identity.activation) == (width, activation)
    assert clip.identity.details.get("projection", False) == projection
    assert clip.feature_key == plain.feature_key


# --- files ---------------------------------------------------------------------------------------------------------


def test_every_published_format_gives_the_same_scores(tmp_path):
    state = weights()
    config = {"model_cfg": _open_clip.TOY, "preprocess_cfg": {"mean": [0.48145466, 0.4578275, 0.40821073]}}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    inside = tensors(folder / "open_clip_model.safetensors", state)
    hub(tmp_path, "whole", state, config)
    hub(tmp_path, "openai", state)
    in_module = {f"module.{name}": tensor for name, tensor in state.items()}
    wrapped = {"epoch": 3, "name": "run", "state_dict": in_module, "optimizer": {}}
    compiled = {f"model.clip_model._orig_mod.{name}": tensor for name, tensor in state.items()}
    two = {"CLIP": weights(2), "ema": compiled}
    openai = dict(state)
    for key, number in zip(_open_clip._OPENAI_KEYS, (32, 77, 49408), strict=True):
        openai[key] = torch.tensor(number)
    named: dict[str, dict[str, Any]] = {
        "plain": {"weights": str(tensors(tmp_path / "a.pt", state)), "activation": "quick_gelu"},
        "training": {"weights": str(tensors(tmp_path / "b.pt", wrapped)), "activation": "quick_gelu"},
        "compiled": {"weights": f"{tensors(tmp_path / 'e.pt', two)},key=ema", "activation": "quick_gelu"},
        "safetensors": {"weights": str(tensors(tmp_path / "c.safetensors", state)), "activation": "quick_gelu"},
        "named": {"weights": str(tmp_path / "c.safetensors"), "model": TWO[1], "activation": "quick_gelu"},
        "openai": {"weights": str(tensors(tmp_path / "d.pt", openai))},
        "tag": {"weights": "openai"},
        "folder": {"weights": str(folder), "model": None},
        "beside": {"weights": str(inside), "model": None},
        "hub": {"weights": f"hf-hub:toys/whole@{COMMIT}", "model": None},
    }
    scores = {}
    identities = {}
    for name, options in named.items():
        clip = build(Clip, **{"model": "ViT-Toy", **options})
        with torch.no_grad():
            features = clip.image_features(pixels())
            scores[name] = clip.queries(features, TEXTS) @ clip.candidates(features)[:, 0].T
        identities[name] = clip.identity
    for name, table in scores.items():
        torch.testing.assert_close(table, scores["plain"], atol=1e-5, rtol=0, msg=name)
    assert {i.activation for i in identities.values()} == {"quick_gelu"}
    assert len({i.sha256 for i in identities.values()}) == 1
    assert (identities["tag"].weights, identities["tag"].revision) == ("toys/openai", COMMIT)
    assert identities["tag"].details["model"] == "ViT-Toy-quickgelu"
    assert (identities["hub"].weights, identities["hub"].revision) == ("toys/whole", COMMIT)
    assert (identities["plain"].weights, identities["plain"].revision) == ("a.pt", "local")


def test_keys_that_do_not_fit_are_all_named(subtests, tmp_path):
    state = weights()
    del state["visual.ln_post.bias"], state["ln_final.weight"]
    state["visual.extra"] = torch.zeros(1)
    state["visual.proj"] = torch.zeros(3, 4)
    file = tensors(tmp_path / "wrong.pt", state)
    with pytest.raises(WeightsError) as caught:
        build(Clip, model="ViT-Toy", weights=str(file), activation="gelu")
    line = str(caught.value)
    for part in ("ln_final.weight", "visual.ln_post.bias", "visual.extra", "visual.proj [3, 4] for [32, 32]"):
        with subtests.test(part=part):
            assert part in line
    assert "\n" not in line
    assert "logit_scale" not in line


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("ViT-B-32.pt", "timm/vit_base_patch32_clip_224.openai"),
        ("ViT-L-14-336px.pt", "timm/vit_large_patch14_clip_336.openai"),
        ("script.pt", "timm/vit_base_patch32_clip_224.openai"),
    ],
)
def test_an_archive_of_code_is_refused(tmp_path, name, fetched):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / name))
    with pytest.raises(WeightsError, match=rf"is a TorchScript archive, .*`hf download {fetched} open_clip_model"):
        build(Clip, model="ViT-Toy", weights=str(tmp_path / name), activation="gelu")


@pytest.mark.parametrize("prefix", ["", "module."], ids=["as published", "of DataParallel"])
def test_clip4cirs_combiner_is_named(prefix, tmp_path):
    layers = ("text_projection_layer", "image_projection_layer", "combiner_layer", "output_layer")
    state = {}
    for layer in layers:
        state[f"{prefix}{layer}.weight"] = torch.zeros(2)
        state[f"{prefix}{layer}.bias"] = torch.zeros(2)
    torch.save({"epoch": 3, "Combiner": state}, tmp_path / "combiner.pt")
    with pytest.raises(WeightsError, match=r"combiner\.pt is CLIP4Cir's Combiner, .* fine-tuned CLIP"):
        build(Clip, model="ViT-Toy", weights=str(tmp_path / "combiner.pt"), activation="gelu")


def test_missing_weights_are_one_line_that_says_what_to_fetch():
    with pytest.raises(WeightsError) as caught:
        build(Clip)
    line = str(caught.value)
    assert line.startswith(
        "open_clip_model.safetensors of timm/vit_base_patch32_clip_224.openai is not cached and could not be"
    )
    assert "hf download timm/vit_base_patch32_clip_224.openai open_clip_model.safetensors" in line
    assert (
        "--set backbone.weights=FILE --set backbone.model=ViT-B-32-quickgelu --set backbone.activation=quick_gelu"
        in line
    )
    assert "--set backbone.init=random --set backbone.size=toy --set backbone.weights=null" in line
    assert "\n" not in line


def test_a_folder_without_configuration_or_weights_says_so(tmp_path, subtests):
    with pytest.raises(WeightsError, match=r"has no open_clip_config\.json: .*--encoder transformers:"):
        build(Clip, weights=str(tmp_path))
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(WeightsError, match="has no weights"):
        build(Clip, weights=str(tmp_path))
    tensors(tmp_path / "open_clip_model.safetensors", weights())
    for content in ("{}", "[" * 100_000):
        with subtests.test(content=content[:2]):
            (tmp_path / "open_clip_config.json").write_text(content)
            with pytest.raises(WeightsError, match="is not a configuration of open_clip"):
                build(Clip, weights=str(tmp_path))


# --- the activation ------------------------------------------------------------------------------------------------


def test_a_file_that_does_not_tell_its_activation_must_be_told(tmp_path):
    file = tensors(tmp_path / "clip.pt", weights())
    with pytest.raises(OptionError, match=r"--set backbone\.activation=quick_gelu .* or =gelu"):
        build(Clip, model=TWO[0], weights=str(file))
    with pytest.raises(OptionError, match="name its architecture"):
        build(Clip, weights=str(file))


def test_a_tag_knows_its_activation_whatever_the_models_name(subtests, tmp_path):
    hub(tmp_path, "openai", weights())
    hub(tmp_path, "laion", weights())
    for model in TWO:
        with subtests.test(model=model):
            assert build(Clip, model=model, weights="openai").identity.activation == "quick_gelu"
    laion = build(Clip, model="ViT-Toy", weights="laion")
    assert laion.identity.activation == "gelu"
    assert laion.identity.preprocessing == "target-pad 1.25, bicubic 32, mean/std 0.5/0.5/0.5 0.5/0.5/0.5"
    with pytest.raises(OptionError, match=r"were trained with gelu: --set backbone\.model=ViT-Toy"):
        build(Clip, model=TWO[1], weights="laion")
    with pytest.raises(OptionError, match="'gelu': ViT-Toy openai was trained with quick_gelu"):
        build(Clip, model="ViT-Toy", weights="openai", activation="gelu")


# --- training ------------------------------------------------------------------------------------------------------


def _loss(clip: Clip) -> Tensor:
    features = clip.image_features(pixels())
    queries = clip.queries(features, TEXTS)
    return F.cross_entropy(queries @ clip.candidates(features)[:, 0].T / clip.temperature, torch.arange(4).roll(1))


def test_gradients_are_the_same_with_checkpoints():
    """test_conformance.py checks that gradients reach every trainable parameter."""
    clip = toy(frozen=False).train()
    clip.recompute(True)
    loss = _loss(clip)
    loss.backward()
    plain = toy(frozen=False).train()
    value = _loss(plain)
    value.backward()
    torch.testing.assert_close(loss, value)
    for (name, p), q in zip(clip.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_frozen_encoders_have_nothing_to_compute_again():
    with pytest.raises(OptionError, match=r"compute\.recompute: backbone 'clip' has no trained layers"):
        toy().recompute(True)
    toy().recompute(False)


# --- HyCoLe's projections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [True, False])
def test_projections_learn_at_the_full_rate_and_the_encoders_at_gamma(frozen):
    clip = toy(projection=16, frozen=frozen)
    rates = {}
    for group in clip.parameter_groups(1e-4, 0.01):
        for parameter in group["params"]:
            rates[id(parameter)] = group["lr"]
    for part in (clip.project_image, clip.project_text, clip.fusion):
        assert {rates[id(p)] for p in part.parameters()} == {1e-4}, type(part).__name__
    encoder = [rates[id(p)] for p in clip.clip.visual.parameters() if p.requires_grad]
    assert bool(encoder) != frozen
    assert encoder == pytest.approx([1e-7] * len(encoder))


def test_gamma_zero_keeps_the_encoders_as_they_are():
    """HyCoLe's table 4 has a row gamma = 0."""
    clip = toy(frozen=False, gamma=0.0).train()
    before = {name: parameter.detach().clone() for name, parameter in clip.named_parameters()}
    optimizer = torch.optim.AdamW(clip.parameter_groups(1e-2, 0.5))
    _loss(clip).backward()
    optimizer.step()
    encoders = {name for name in before if clip._rate(name) == 0}
    changed = {name for name, parameter in clip.named_parameters() if not torch.equal(parameter, before[name])}
    assert encoders
    assert not encoders & changed
    assert changed


def test_batch_normalisation_keeps_its_statistics(monkeypatch):
    from open_clip.factory import _MODEL_CONFIGS

    config = copy.deepcopy(_open_clip.TOY)
    config["vision_cfg"] = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64, "patch_size": None}
    monkeypatch.setitem(_MODEL_CONFIGS, "RN-Toy", config)
    clip = build(Clip, model="RN-Toy", init="random", frozen=False).train()
    before = {name: buffer.clone() for name, buffer in clip.named_buffers()}
    _loss(clip).backward()
    assert [name for name in before if "running_mean" in name]
    for name, buffer in clip.named_buffers():
        torch.testing.assert_close(buffer, before[name], rtol=0, atol=0)
    assert clip.clip.visual.bn1.weight.grad is not None
    assert clip.clip.training
    assert clip.identity.activation == "quick_gelu"


# --- texts and the rest --------------------------------------------------------------------------------------------


def test_tokens_are_open_clips_and_the_masks_name_whole_words():
    from open_clip.tokenizer import _tokenizer, tokenize

    clip = toy()
    tokens = clip.tokenize(TEXTS)
    torch.testing.assert_close(tokens["ids"], tokenize(TEXTS))
    assert tokens["ids"].shape == (4, 77)
    decoder = _tokenizer.decoder

    def words(row: int, aspect: str) -> list[str]:
        return [decoder[int(i)].removesuffix("</w>") for i in tokens["ids"][row][tokens[aspect][row]]]

    assert words(0, "colour") == ["darker", "blue"]
    assert words(0, "shape") == ["longer", "sleeves"]
    assert words(1, "colour") == ["red"]
    assert not tokens["colour"][2].any()
    assert clip.tokenize(["word " * 200])["ids"][0, -1] == 49407  # truncated, with the end token


def test_sub_queries_are_of_the_texts_token_features(subtests):
    clip = toy(attribute_weights=True)
    theirs = clip.clip
    ids = clip.tokenize(TEXTS)["ids"]
    with torch.no_grad():
        features = clip.image_features(pixels())
        x = theirs.token_embedding(ids) + theirs.positional_embedding
        words = theirs.ln_final(theirs.transformer(x, attn_mask=theirs.attn_mask))
        image = F.normalize(theirs.encode_image(pixels()), dim=-1)
        query = gated(clip, image, F.normalize(theirs.encode_text(ids), dim=-1))
        tokens = clip.tokenize(TEXTS)
        want = clip.attributes(query, words, {"colour": tokens["colour"], "shape": tokens["shape"]})
        sub_queries = clip.sub_queries(features, TEXTS)
        for aspect, sub in want.items():
            with subtests.test(aspect=aspect):
                torch.testing.assert_close(sub_queries[aspect].embeddings, sub.embeddings)
                torch.testing.assert_close(sub_queries[aspect].weight, sub.weight)
        torch.testing.assert_close(clip.queries(features, TEXTS), clip.attributes.combine(query, want))
    assert toy().sub_queries(features, TEXTS) == {}


def test_the_feature_key_is_the_towers_and_the_preprocessings(tmp_path):
    hub(tmp_path, "openai", weights())

    def key(**options: Any) -> str:
        return build(Clip, **{"model": "ViT-Toy", "weights": "openai", **options}).feature_key

    assert key() == key(fusion="sum", seed=9) == key(attribute_weights=True)
    assert len({key(), key(pad="square"), key(target_ratio=1.5)}) == 3


def test_only_the_text_encoder_trains_with_frozen_images():
    whole = toy(frozen=False)
    text = toy(frozen="images")
    none = toy(frozen=True)
    assert (whole.frozen_images, text.frozen_images, none.frozen_images) == (False, True, True)
    assert text.feature_key == none.feature_key  # the stored features are the same
    features = text.image_features(pixels())
    assert not features.requires_grad
    torch.testing.assert_close(features, none.image_features(pixels()))
    trained = {name for name, parameter in text.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if name.startswith("clip.visual.")} == set()
    of_text = {name for name, _ in text.clip.named_parameters() if not name.startswith("visual.")}
    assert {f"clip.{name}" for name in of_text} <= trained
    text.train()
    assert not text.clip.visual.training
    assert text.clip.transformer.training
    assert text.frozen_text(text.tokenize(TEXTS)).keys() == text.tokenize(TEXTS).keys()
    with torch.enable_grad():
        text.queries(features, TEXTS).sum().backward()
    assert text.clip.token_embedding.weight.grad is not None
    assert text.clip.visual.proj.grad is None
    assert text.identity.details["frozen"] == "images"
    assert toy(frozen="images", gamma=0.5).options.ratio == 0.5
