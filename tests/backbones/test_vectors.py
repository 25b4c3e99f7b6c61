"""The backbone `vectors`: what each of its options does to drawn features, texts and capacity."""

from typing import Any

import pytest
import torch

from negbench.backbones._fusion import make_fusion
from negbench.backbones.vectors import Vectors
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.worlds._garments import ATTRIBUTES, values
from negbench.worlds._wording import clauses, phrases
from negbench.worlds.vectors import VectorWorld, attributes_of

TWINS = ("dress-train-0-a31203-00017", "dress-train-0-a31203-00018")
OTHER = "dress-train-0-a31202-00019"  # a different print


def load(**options: Any) -> Vectors:
    return build(Vectors, **{"tokens": 1, "noise": 0.5, "hidden": 0, **options})


def features(ids: tuple[str, ...] = TWINS, **options: Any) -> torch.Tensor:
    return load(**options).features_of(ids)


# --- images --------------------------------------------------------------------------------------------------------


def test_an_image_is_its_attributes_and_noise_of_its_own():
    clean = features((*TWINS, OTHER), noise=0.0)
    assert clean.shape == (3, 1, 64)
    assert torch.equal(clean[0], clean[1])
    assert not torch.equal(clean[0], clean[2])
    noise = features((*TWINS, OTHER), noise=0.5) - clean
    assert noise.norm(dim=-1).flatten().tolist() == pytest.approx([0.5] * 3, rel=0.3)
    assert torch.cosine_similarity(noise[0], noise[1]).abs() < 0.5
    torch.testing.assert_close(features((*TWINS, OTHER), noise=1.0) - clean, 2 * noise)


def test_features_are_a_function_of_the_id(monkeypatch):
    monkeypatch.setattr("negbench.backbones.vectors._AT_A_TIME", 2)
    whole = features((*TWINS, OTHER))
    alone = features((OTHER,))
    assert torch.equal(whole[2], alone[0])
    assert torch.equal(features(seed=5), features(seed=0))
    assert not torch.equal(features(world=5), features())
    assert features(()).shape == (0, 1, 64)


def test_tokens_are_views_of_one_image():
    tokens = features(tokens=8, noise=1.0)
    assert tokens.shape == (2, 8, 64)
    noise, _ = tokens - features(noise=0.0)
    directions = torch.nn.functional.normalize(noise, dim=-1)
    assert (directions @ directions.T - torch.eye(8)).abs().max() < 0.6


@pytest.mark.parametrize("decay", [None, 1.0, 0.5])
def test_weights_of_the_attributes_fall(decay):
    ids = ("dress-val-0-000000-0", *(f"dress-val-0-{'0' * a}1{'0' * (5 - a)}-0" for a in range(6)))
    options = {} if decay is None else {"decay": decay}
    clean = features(ids, noise=0.0, dim=1024, **options)[:, 0]
    distances = (clean[1:] - clean[0]).norm(dim=-1)  # sqrt 2 times the weight if random vectors are orthogonal
    expected = torch.tensor([(decay or 0.9) ** a for a in range(6)])
    torch.testing.assert_close(distances / distances[0], expected, rtol=0.1, atol=0)
    assert clean[0].norm() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("decay", [0.9, 0.5])
def test_texts_weigh_attributes_as_images_do(decay):
    backbone = load(dim=64, decay=decay)
    named = {value: phrase for phrase, value in phrases().items() if value}
    lengths = []
    for attribute in ATTRIBUTES:
        phrase = named[attribute, values("dress", attribute)[0]]
        text = backbone.frozen_text(backbone.tokenize([" ".join(phrase)]))
        lengths.append(text["pooled"].norm().item())
    assert [length / lengths[0] for length in lengths] == pytest.approx([decay**a for a in range(6)], rel=1e-5)


def test_a_look_is_the_lines():
    line = "dress-train-0-a31203-00017-4x0.6"
    other = "dress-train-0-a31202-00018-5x0.6"
    mate = "dress-train-0-a31202-00017-4x0.6"
    plain = features(tuple(image.rsplit("-", 1)[0] for image in (line, mate, other)), noise=0.0, dim=512)[:, 0]
    clean = features((line, mate, other), noise=0.0, dim=512)[:, 0]
    looks = (clean - 0.8 * plain) / 0.6
    torch.testing.assert_close(looks.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(looks[0], looks[1])
    assert abs(looks[0] @ looks[2]) < 0.2
    assert torch.equal(features((line,), noise=0.0, dim=512)[0, 0], clean[0])
    val = features((line.replace("train", "val"),), noise=0.0, dim=512)[0, 0]
    assert abs((val - 0.8 * plain[0]) / 0.6 @ looks[0]) < 0.2


def test_an_image_of_another_data_set():
    with pytest.raises(DataError, match=r"'dress-train-3fa09b-0017' .* backbone 'vectors' works only with --dataset"):
        features(("dress-train-3fa09b-0017",))


# --- texts ---------------------------------------------------------------------------------------------------------


def test_every_phrase_names_the_value_that_it_is_said_for(subtests):
    named = phrases()
    for image in build(VectorWorld, train_images=80, twins=1.0, split="train").images:
        with subtests.test(image=image):
            attributes = attributes_of(image)
            for name in ATTRIBUTES:
                if name == "colour":
                    continue
                for clause in clauses(attributes, name):
                    words = set(clause.phrase.lower().split())
                    values_named = [value for phrase, value in named.items() if set(phrase) <= words]
                    assert (name, getattr(attributes, name)) in values_named, clause.phrase
    for name in ATTRIBUTES:
        assert set(named.values()) >= {(name, value) for value in values("dress", name)}, name


@pytest.mark.parametrize("alignment", [None, 0.8])
def test_a_description_points_at_its_image(alignment):
    world = build(VectorWorld, train_images=40, twins=1.0, train_queries=20, split="train")
    options = {} if alignment is None else {"alignment": alignment}
    backbone = load(noise=0.0, dim=1024, **options)
    images = backbone.candidates(backbone.features_of([str(query.target) for query in world.queries]))[:, 0]
    cosines = (images * backbone.text_queries([str(query.target_text) for query in world.queries])).sum(-1)
    assert cosines.tolist() == pytest.approx([alignment or 0.3] * 20, abs=0.15)


def test_phrases_are_found_in_sentences():
    backbone = load()
    texts = ["Is more red and has long sleeves.", "this gown has a red color, and long sleeved", "red, short sleeves"]
    one, other, third = backbone.text_queries(texts).detach()
    torch.testing.assert_close(one, other)
    assert one @ third < 0.9
    longer = backbone.tokenize(["has longer sleeves", "is longer"])["ids"]  # "longer" of sleeves and of the garment
    assert longer.shape == (2, 1)
    assert longer[0] != longer[1]
    assert not torch.equal(backbone.text_queries(["is velvet"]), backbone.text_queries(["is denim"]))


def test_words_of_aspects():
    tokens = load().tokenize(["is royal blue, has no print and long sleeves", "is plain"])
    assert tokens["ids"].shape == (2, 3)
    assert tokens["colour"].tolist() == [[True, False, False], [False] * 3]
    assert tokens["shape"].tolist() == [[False, False, True], [False] * 3]


# --- capacity ------------------------------------------------------------------------------------------------------


def test_a_wide_fusion_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    fusion = make_fusion("gated", 6, generator, hidden=10)
    x, y = torch.randn(2, 5, 6, generator=generator)
    inner = fusion.inner
    before = inner._mix(x, y, inner._of_image(x), inner._of_text(y))
    layer = torch.relu(torch.cat([x, y], 1) @ fusion.hidden.weight.T + fusion.hidden.bias) @ fusion.output.weight.T
    torch.testing.assert_close(fusion(x, y), torch.nn.functional.normalize(before + layer, dim=-1))
    crossed = fusion.cross(x, y, chunk=2)
    for r in range(5):
        for p in range(5):
            torch.testing.assert_close(crossed[r, p], fusion(x[r : r + 1], y[p : p + 1])[0], msg=f"pair {r}, {p}")
