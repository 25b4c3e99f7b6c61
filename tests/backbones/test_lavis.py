"""LAVIS checkpoints: reading, writing and reading back, missing or unexpected keys, sizes."""

import math
import pickle
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from negbench.backbones._lavis import LAYOUTS, Blip2Sizes, BlipSizes, apply_config, check_names, read_tower
from negbench.backbones._weights import Advice, Source, parse_weights
from negbench.backbones.blip import Blip
from negbench.backbones.blip2 import Blip2
from negbench.contracts import relevance
from negbench.errors import OptionError, UnknownNameError, WeightsError
from negbench.plugins.registry import build

FAMILIES = ("eva_clip_g", "clip_vit_L", "blip")


class Family:
    """State dict and loader of one of the three checkpoint formats."""

    def __init__(self, lavis: Any, name: str) -> None:
        self.lavis = lavis
        self.name = name
        self.state: dict[str, Tensor]
        if name == "blip":
            self.sizes = lavis.Sizes(tower="eva_clip_g", rows=len(lavis.vocabulary) + 2)
            self.state = lavis.blip_state(self.sizes)
            self.config = lavis.config(self.sizes, "text")
        else:
            self.sizes = lavis.Sizes(tower=name, rows=len(lavis.vocabulary) + 1)
            self.state = lavis.blip2_state(self.sizes)
            self.config = lavis.config(self.sizes, "qformer")

    def load(self, path: Path, **options: Any) -> Blip | Blip2:
        backbone = Blip if self.name == "blip" else Blip2
        return build(backbone, weights=f"lavis:{path}", config=self.config, **options)

    def load_state(self, state: object) -> Blip | Blip2:
        return self.load(self.lavis.save(state))

    def scores(self, model: Blip | Blip2) -> Tensor:
        pixels = self.lavis.pixels(self.sizes)
        with torch.no_grad():
            features = model.image_features(pixels)
            return relevance(model.queries(features, self.lavis.captions), model.candidates(features))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, lavis: Any) -> Family:
    return Family(lavis, request.param)


# --- writing and reading back ----------------------------------------------------------------------------------------


def test_safetensors_with_lavis_names(tmp_path, lavis):
    from safetensors.torch import save_file

    family = Family(lavis, "clip_vit_L")
    save_file({name: tensor.clone() for name, tensor in family.state.items()}, tmp_path / "model.safetensors")
    scores = family.scores(family.load(tmp_path / "model.safetensors"))
    assert torch.equal(scores, family.scores(family.load_state(family.state)))


def test_parameters_do_not_share_memory(family):
    model = family.load_state(family.state)
    storages = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(storages)) == len(storages)
    for name, parameter in model.named_parameters():
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4, name


# --- strictness ------------------------------------------------------------------------------------------------------


def test_every_missing_key_is_named(family, subtests):
    """Loading fails without a needed key (here every fifth); keys that give sizes are tested by real loading."""
    model = family.load_state(family.state)
    needed = set()
    for name, _ in model.named_parameters():
        needed |= {*model.sizes.layout.keys(name)}
    droppable = {key for key in family.state if model.sizes.layout.droppable.fullmatch(key)}
    assert needed | droppable == set(family.state)
    assert not needed & droppable
    for key in sorted(needed)[::5]:
        with subtests.test(key=key):
            without = {name: tensor for name, tensor in family.state.items() if name != key}
            with pytest.raises(WeightsError, match=rf"^x\.pth does not fit the model: missing {re.escape(key)}$"):
                check_names(model, without, model.sizes.layout, Path("x.pth"))
    of_sizes = [key for key in needed if re.fullmatch(r".*(cls_token|pos.*embed.*|query_tokens)", key)]
    for key in sorted(of_sizes):
        with subtests.test(key=key), pytest.raises(WeightsError, match=rf"missing {re.escape(key)}$"):
            family.load_state({name: tensor for name, tensor in family.state.items() if name != key})


def test_droppable_keys_may_be_missing(family):
    droppable = LAYOUTS[family.name].droppable
    bare = {name: tensor for name, tensor in family.state.items() if not droppable.fullmatch(name)}
    assert len(bare) < len(family.state)
    whole = family.load_state(family.state)
    without = family.load_state(bare)
    assert torch.equal(family.scores(whole), family.scores(without))
    assert whole.identity.details["keys_left_out"] == len(family.state) - len(bare)


def test_sprc_prompt_tokens_are_left_out(lavis):
    family = Family(lavis, "eva_clip_g")
    sprc = {"epoch": 4, "Blip2QformerCirAlignPrompt": {**family.state, "prompt_tokens": torch.zeros(1, 5, 16)}}
    assert torch.equal(family.scores(family.load_state(sprc)), family.scores(family.load_state(family.state)))


WRAPPED = [("eva_clip_g", "module."), ("clip_vit_L", "net.encoder."), ("blip", "clip_model.")]


@pytest.mark.parametrize(("family", "prefix"), [*WRAPPED, ("blip", "model.module._orig_mod.")], indirect=["family"])
def test_prefixes_of_wrappers_are_dropped(family, prefix):
    plain = family.load_state(family.state).identity.sha256
    inside = {name.replace("encoder.", "encoder._orig_mod.", 1): tensor for name, tensor in family.state.items()}
    wrapped = {prefix + name: tensor for name, tensor in inside.items()}
    assert family.load_state({"state_dict": wrapped}).identity.sha256 == plain
    twice = wrapped | {f"ema.{name}": tensor + 1 for name, tensor in inside.items()}  # which are the weights?
    with pytest.raises(WeightsError) as error:
        family.load_state(twice)
    message = str(error.value)
    short = prefix.replace("module._orig_mod.", "")  # as wrappers inside of names are dropped first
    assert f"holds 2 models, behind the prefixes {', '.join(sorted(('ema.', short)))}: name the one" in message
    path = family.lavis.save(twice)
    named = family.load(Path(f"{path},prefix={prefix}"))
    assert named.identity.sha256 == plain
    assert named.identity.details["weights_prefix"] == short
    assert named.identity.details["weights_left_out"] == ["ema.*"]


@pytest.mark.parametrize("family", FAMILIES[1:], indirect=True)
def test_one_of_several_state_dicts_is_named(family):
    other = {name: tensor + 1 for name, tensor in family.state.items()}
    path = family.lavis.save({"epoch": 3, "model": family.state, "ema": other})
    options = {"freeze_images": True} if family.name == "blip" else {}
    with pytest.raises(WeightsError, match=rf"the state dicts model, ema: name the one to load, as {path},key=model$"):
        family.load(path)
    with pytest.raises(WeightsError, match="the state dicts model, ema, not em: name"):
        family.load(Path(f"{path},key=em"))
    model = family.load(Path(f"{path},key=model"), **options)
    ema = family.load(Path(f"{path},key=ema"), **options)
    assert model.identity.weights == "lavis:model.pth,key=model"
    assert ema.identity.weights == "lavis:model.pth,key=ema"
    assert model.identity.sha256 == family.load_state(family.state).identity.sha256 != ema.identity.sha256
    assert model.outline(model.options, 0).key != ema.outline(ema.options, 0).key


def test_what_only_training_reads_is_left_out_with_a_remark(subtests, lavis, logged):
    """The names are those of BLIP's own retrieval checkpoint, and of CoVR's, whose temperature is a plain number."""
    for name in FAMILIES:
        with subtests.test(name=name):
            family = Family(lavis, name)
            without = {key: tensor for key, tensor in family.state.items() if key != "temp"}
            model = family.load_state(without)
            assert float(model.temperature.detach()) == pytest.approx(0.07)
            notes = [record.getMessage().split("model.pth: ")[-1] for record in logged]
            heads = "itm_head" if name == "blip" else "Qformer.cls, itm_head"
            assert notes == [
                "it holds no temperature, which starts at 0.07; --set backbone.temperature=T sets it",
                f"left out, as no score here reads them: {heads}",
            ]
            assert torch.equal(family.scores(model), family.scores(family.load_state(family.state)))
            logged.clear()


def test_copies_and_queues_of_training_are_left_out(lavis, logged):
    family = Family(lavis, "blip")
    copies = re.compile(r"\A(visual_encoder|text_encoder|vision_proj|text_proj)\.")
    training = {copies.sub(r"\1_m.", key): tensor for key, tensor in family.state.items() if copies.match(key)}
    training |= {f"{queue}_queue": torch.zeros(1, 3) for queue in ("image", "text", "idx", "ptr")}
    whole = family.load_state({"model": {**family.state, **training}})
    assert whole.identity.sha256 == family.load_state(family.state).identity.sha256
    left_out = ", ".join(sorted({key.split(".")[0] for key in training} | {"itm_head"}))
    assert logged[0].getMessage().split(": ")[-1] == left_out
    with pytest.raises(WeightsError, match="unexpected image_encoder_m"):
        family.load_state({**family.state, "image_encoder_m.x": torch.zeros(1)})


HEADS = ("itm_head.", "Qformer.cls.")  # matching and words: LAVIS, QuRe and SPRC save both, CoVR-2 the second
COVR2 = {  # what a file lacks, and whether it is CoVR-2's
    "temp a number": (("temp", "itm_head."), True),
    "temp a parameter": (("itm_head.",), True),
    "temp a number, no word head": (("temp", *HEADS), True),
    "LAVIS's": ((), False),
    "LAVIS's without temp": (("temp",), False),
    "without heads": (HEADS, False),
    "without the word head": (("Qformer.cls.",), False),
}


@pytest.mark.parametrize(("lacking", "refused"), COVR2.values(), ids=COVR2)
def test_covr2_is_refused_by_name(lacking, refused, lavis):
    """Its class pools by another formula; it has LAVIS's names, here behind a wrapper's, and no matching head."""
    family = Family(lavis, "eva_clip_g")
    state = {f"model.{key}": value for key, value in family.state.items() if not key.startswith(lacking)}
    if refused:
        with pytest.raises(WeightsError, match=r"model\.pth is CoVR-2's BLIP-2 .* mean of normalised tokens"):
            family.load_state({"model": state})
    else:
        family.load_state({"model": state})


@pytest.mark.parametrize(
    ("scale", "temperature", "source"),
    [(None, 0.07, "default"), (2.6592, 0.07, "default"), (3.0, math.exp(-3.0), "file")],
    ids=["none", "transformers' constant", "learned"],
)
@pytest.mark.parametrize("name", ["blip", "blip2"])
def test_a_folder_says_where_its_temperature_comes_from(lavis, tmp_path, logged, name, scale, temperature, source):
    lavis.hub(name, tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    if scale is not None:
        save_file({**load_file(file), "logit_scale": torch.tensor(scale)}, file, {"format": "pt"})
    model = build(Blip if name == "blip" else Blip2, weights=str(tmp_path / "saved"))
    assert float(model.temperature.detach()) == pytest.approx(temperature, rel=1e-4)
    details = model.identity.details
    assert (details["temperature"], details["temperature_from"]) == (pytest.approx(temperature, abs=1e-4), source)
    notes = [record.getMessage() for record in logged if "temperature" in record.getMessage()]
    assert len(notes) == (1 if source == "default" else 0)


def test_a_temperature_that_is_set_replaces_that_of_the_weights(subtests, lavis, logged):
    family = Family(lavis, "eva_clip_g")
    for state in (family.state, {key: tensor for key, tensor in family.state.items() if key != "temp"}):
        with subtests.test(state=state):
            model = family.load(lavis.save(state), temperature=0.005)
            assert float(model.temperature.detach()) == pytest.approx(0.005)  # LAVIS's bound is 0.001
            assert model.identity.details["temperature_from"] == "option"
    assert [record.getMessage() for record in logged if "starts at" in record.getMessage()] == []


def test_a_whole_model_is_known_to_be_fine_tuned():
    """LAVIS publishes what it pretrained without the frozen tower, so that a file with one is somebody's."""
    whole = Source("lavis", Path("model.pth"))
    pretrained = Source("lavis", Path("blip2_pretrained.pth"), tower=Path("eva_vit_g.pth"))
    assert "fine-tuned" in Blip2._tuning_of(whole)
    assert Blip2._tuning_of(pretrained) == ""
    assert Blip._tuning_of(whole) == ""  # BLIP's own file holds its tower


class _Stranger:
    """An object that would run code when unpickled; checkpoints must not contain it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


def test_not_a_checkpoint(family, subtests):
    contents: list[tuple[object, str]] = [
        (torch.zeros(3), "holds no state dict: expected named tensors.*got Tensor"),
        ({"model": {}}, "holds no state dict.*with keys model"),
        ({"a": {"x": torch.zeros(1)}, "b": {"x": torch.zeros(1)}}, r"the state dicts a, b: name .*pth,key=a$"),
        ({f"net/{name}": tensor for name, tensor in family.state.items()}, r"no key starts with .*; it has net/"),
        ({3: torch.zeros(1)}, "holds no state dict"),
        ({"model": {"weight": torch.zeros(1)}}, "is not a LAVIS BLIP"),
    ]
    for content, message in contents:
        with subtests.test(message), pytest.raises(WeightsError, match=message):
            family.load_state(content)


def test_pickles_are_refused_and_not_executed(family, capfd, subtests):
    path = family.lavis.save({**family.state, "stranger": _Stranger()})
    odd = {"numpy._core.multiarray.scalar": np.float64(1), "argparse.Namespace": Namespace(lr=1), "print": _Stranger()}
    for name, content in odd.items():
        with subtests.test(name=name):
            family.lavis.save({"model": family.state, "held": content}, path.name)
            message = rf"is refused: it holds a pickled object, {name} .*weights_only=True"
            with pytest.raises(WeightsError, match=message) as error:
                family.load(path)
            assert str(error.value).isprintable(), name
    path.write_bytes(pickle.dumps(_Stranger(), protocol=2))
    with pytest.raises(WeightsError):
        family.load(path)
    assert "executed" not in capfd.readouterr().out


# --- towers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tower", ["eva_clip_g", "clip_vit_L"])
def test_one_tower_exactly(lavis, tower, subtests):
    s = lavis.Sizes(tower=tower)
    whole = lavis.save(lavis.blip2_state(s))
    without = lavis.save(lavis.qformer_state(s), "without.pth")
    vit = lavis.save(lavis.tower_state(s), "vit.pth")
    for weights, more, message in (
        (without, {}, r"without\.pth has no visual_encoder: .*tower=FILE"),
        (f"{whole},tower={vit}", {}, "has its own visual_encoder: leave out tower="),
        (f"{without},tower={without}", {}, r"without\.pth is not a visual tower"),
        (f"{without},tower={vit}", {"vit_layers": 4}, "has 3 blocks, config asks for vit_layers 4"),
        (vit, {}, r"vit\.pth is not a LAVIS BLIP-2 checkpoint"),
    ):
        with subtests.test(message), pytest.raises(WeightsError, match=message):
            build(Blip2, weights=f"lavis:{weights}", config={**lavis.config(s), **more})
    with pytest.raises(WeightsError, match="leave out tower="):
        build(Blip, weights=f"lavis:{whole},tower={vit}")


@pytest.mark.parametrize(
    ("tower", "width", "blocks", "used"),
    [("eva_clip_g", 1408, 40, 39), ("clip_vit_L", 1024, 24, 23), ("clip_vit_L", 1024, 22, 22)],
)
def test_depth_of_the_published_towers(tmp_path, tower, width, blocks, used):
    if tower == "eva_clip_g":
        first = "cls_token"
        block = "blocks.{}.norm1.weight"
    else:
        first = "class_embedding"
        block = "transformer.resblocks.{}.ln_1.weight"
    state = {block.format(n): torch.zeros(1) for n in range(blocks)}
    torch.save({first: torch.zeros(width), **state}, tmp_path / "vit.pth")
    names = read_tower(tmp_path / "vit.pth", None).keys()
    assert len(names) == 1 + used
    assert [name for name in names if not name.startswith("visual_encoder.")] == []


# --- sizes and config ------------------------------------------------------------------------------------------------


def test_positions_that_are_no_square(family):
    name = next(n for n in family.state if n in ("visual_encoder.pos_embed", "visual_encoder.positional_embedding"))
    state = {**family.state, name: family.state[name].repeat_interleave(3, dim=-2)}
    with pytest.raises(WeightsError, match=f"{name} has 15 positions"):
        family.load_state(state)


def test_config_may_repeat_what_the_tensors_say_and_not_contradict_it(subtests):
    sizes = Blip2Sizes(vit_heads=16)
    config = {"vit_layers": 39, "vit_heads": 8, "max_txt_len": 40}
    assert apply_config(sizes, config, source="x.pth") == Blip2Sizes(vit_heads=8, max_txt_len=40)
    for key, value in (("vit_layers", 38), ("tower", "clip_vit_L"), ("patch_size", 16)):
        with (
            subtests.test(key=key, value=value),
            pytest.raises(WeightsError, match=rf"config says {key} {value}, but the tensors of x\.pth say"),
        ):
            apply_config(sizes, {key: value}, source="x.pth")
    assert apply_config(sizes, {"vit_layers": 38}, source="").vit_layers == 38
    with pytest.raises(UnknownNameError, match="unknown key 'text_heads'"):
        apply_config(sizes, {"text_heads": 2}, source="x.pth")
    with pytest.raises(UnknownNameError, match="did you mean 'text_heads'"):
        apply_config(BlipSizes(), {"text_head": 2}, source="x.pth")
    with pytest.raises(OptionError, match="vit_layers must be a whole number"):
        apply_config(sizes, {"vit_layers": 2.5}, source="")


# --- what weights= says ----------------------------------------------------------------------------------------------

ADVICE = Advice("blip2", "org/default", "FILES")


def test_parse_weights(tmp_path):
    model = tmp_path / "a,b.pth"
    tower = tmp_path / "vit.pth"
    for path in (model, tower):
        path.touch()
    assert parse_weights(f"lavis:{model}", ADVICE) == Source("lavis", model)
    assert parse_weights(f"lavis:{model},tower={tower}", ADVICE) == Source("lavis", model, tower)
    assert parse_weights(f"lavis:{model},tower={tower}", ADVICE).label == "lavis:a,b.pth,tower=vit.pth"
    assert parse_weights(str(tmp_path), ADVICE) == Source("folder", tmp_path)
    assert parse_weights("org/some-name", ADVICE) == Source("hub", hub_id="org/some-name")
    assert parse_weights("org/name@v1.0", ADVICE) == Source("hub", hub_id="org/name", revision="v1.0")


def test_parse_weights_errors_quote_the_text(subtests, tmp_path):
    (tmp_path / "model.pth").touch()
    for spec in ("lavis:", "lavis:{0},tower=", "lavis:{0}x", "lavis:{0},tower=x", "{0}", "/no/such", "a b"):
        with subtests.test(spec=spec):
            text = spec.format(tmp_path / "model.pth")
            with pytest.raises(WeightsError) as error:
                parse_weights(text, ADVICE)
            assert repr(text) in str(error.value)
            assert "\n" not in str(error.value)
