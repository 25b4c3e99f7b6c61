"""The data set of vectors: its dials against brute force over the attributes that the ids name."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from negbench.datasets import galleries
from negbench.errors import DataError, OptionError
from negbench.loop.identity import read_files
from negbench.metrics.fixed import KINDS
from negbench.plugins.registry import build, registry
from negbench.settings.config import build_config, resolve
from negbench.worlds._garments import ATTRIBUTES, codes_of
from negbench.worlds._synthesis import Spec, plan
from negbench.worlds._wording import clauses
from negbench.worlds.vectors import VectorWorld, VectorWorldOptions, attributes_of, look_of

SMALL = {"train_images": 160, "train_queries": 120, "val_images": 120, "val_queries": 80}


def load(**options: Any) -> VectorWorld:
    return build(VectorWorld, **{**SMALL, "split": "train", **options})


@cache
def design_of(image: str) -> tuple[str, ...]:
    """Return an image's attributes without its category."""
    return dataclasses.astuple(attributes_of(image))[1:]


def distance(image: str, other: str) -> int:
    """Count the attributes by which two images differ."""
    return sum(one != two for one, two in zip(design_of(image), design_of(other), strict=True))


# --- ground truth --------------------------------------------------------------------------------------------------


def test_an_id_names_the_attributes():
    data = load()
    part = plan(Spec(0, 4.5, 160, 120, 120, 80), "train", "dress")
    assert [attributes_of(image) for image in data.images] == part.attributes
    attributes = attributes_of("dress-train-0-a31203-00017")
    assert dataclasses.astuple(attributes) == ("dress", "brown", "long", "v", "checked", "short", "logo")
    assert codes_of(attributes) == [10, 3, 1, 2, 0, 3]


@pytest.mark.parametrize(
    "image", ["dress-train-0-b31203-00017", "dress-train-0-a3120-00017", "skirt-train-0-a31203-00017", "dress", ""]
)
def test_another_id_is_refused(image):
    with pytest.raises(DataError, match=f"'{image}' is not an image of data set 'vectors'"):
        attributes_of(image)


@pytest.mark.parametrize("options", [{}, {"twins": 1.0}, {"world": 3}], ids=str)
@pytest.mark.parametrize("split", ["train", "val"])
def test_relevant_is_who_has_every_attribute(split, options):
    data = load(split=split, **options)
    for query in data.queries:
        alike = {image for image in data.images if design_of(image) == design_of(query.target)}
        assert query.relevant[0] == query.target, query.id
        assert set(query.relevant) == alike, query.id
        assert query.reference not in alike, query.id


# --- dials ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "options"), [("train", {}), ("val", {"look": 0.5, "twins": 1.5}), ("val", {"val_images": 16_000})]
)
def test_kinds_follow_from_the_attributes(split, options, toys, monkeypatch):
    data = load(split=split, **options)  # 16,000 images are of three categories: a category is an attribute
    rows = torch.arange(0, len(data.queries), 7)
    columns = torch.arange(len(data.images) - 1, -1, -11)
    table = data.kind_table(rows, columns)
    assert data.kinds == KINDS[:3]

    def differing(image: str, other: str) -> set[int]:
        """Return the indices of the attributes, the category first, by which two images differ."""
        pairs = zip(dataclasses.astuple(attributes_of(image)), dataclasses.astuple(attributes_of(other)), strict=True)
        return {index for index, (one, two) in enumerate(pairs) if one != two}

    for row, codes in zip(rows.tolist(), table.tolist(), strict=True):
        query = data.queries[row]
        changes = differing(query.target, query.reference)
        for column, code in zip(columns.tolist(), codes, strict=True):
            image = data.images[column]
            name = toys.kind_of(differing(image, query.target), changes)
            assert (image in query.relevant) == (name == "relevant"), f"{query.id}: {image}"
            assert code == (KINDS.index(name) + 1 if name in KINDS else 0), f"{query.id}: {image}"
    assert {*table.flatten().tolist()} >= {0, 2, 3}
    assert torch.equal(data.kind_table(rows, torch.arange(len(data.images)))[:, columns], table)
    monkeypatch.setattr(galleries, "_KEPT_KINDS", 0)  # a table too large to keep
    assert torch.equal(load(split=split, **options).kind_table(rows, columns), table)


@pytest.mark.parametrize(("split", "twins"), [("train", 4.5), ("train", 1.0), ("val", 2.0)])
def test_lines_are_pairs_three_attributes_apart(split, twins):
    data = load(split=split, twins=twins, look=0.7)
    lines: dict[str, set[tuple[str, ...]]] = {}
    for image in data.images:
        name, weight = look_of(image)
        assert weight == 0.7, image
        lines.setdefault(name, set()).add(design_of(image))
    sizes = sorted(len(designs) for designs in lines.values())
    assert sizes[:-1] == [2] * (len(lines) - 1)  # one line may have a third design
    assert len(set().union(*lines.values())) == sum(sizes)
    for query in data.queries:
        assert look_of(query.reference)[0] == look_of(str(query.target))[0], query.id
    distances = [distance(query.reference, str(query.target)) for query in data.queries]
    assert set(distances) <= {1, 2, 3}
    assert distances.count(3) > 0.9 * len(distances)


def test_lines_change_nothing_where_there_are_none():
    assert load(look=0.0).identity == load().identity
    assert look_of(load().images[0]) == ("", 0.0)
    assert load(look=0.7).card.protocol == "twins4.5-160x120x120x80-look0.7"


@pytest.mark.parametrize(("share", "count"), [(0.1, 12), (0.9, 108)])
def test_a_wrong_target_does_not_answer_and_what_does_stays_relevant(share, count):
    data = load(wrong=share, twins=12.0)
    right = load(twins=12.0)
    pairs = list(zip(data.queries, right.queries, strict=True))
    assert sum(query != annotated for query, annotated in pairs) == count
    assert data.images == right.images
    for query, annotated in pairs:
        if query == annotated:
            continue
        assert query.target not in (*annotated.relevant, query.reference), query.id
        assert query.relevant == (query.target, *annotated.relevant), query.id
        assert query.target_text != annotated.target_text, query.id
        assert (query.id, query.reference, query.text) == (annotated.id, annotated.reference, annotated.text), query.id
    assert load(wrong=share, split="val").queries == load(split="val").queries
    assert data.card.protocol.endswith(f"-wrong{share}")
    assert VectorWorld.made_card(VectorWorldOptions(wrong=share, twins=12.0, **SMALL)) == data.card
    assert data.queries == load(wrong=share, twins=12.0, world=0).queries


def test_more_images_than_garments():
    data = load(train_images=11_000, twins=3.0)
    assert len(set(data.images)) == 11_000
    assert np.mean([len(query.relevant) for query in data.queries]) == pytest.approx(3, rel=0.1)
    assert {attributes_of(image).category for image in data.images} == {"dress"}
    with pytest.raises(OptionError, match=r"90% of the 10,560 possible ones may be used: ask for fewer"):
        load(train_images=60_000, twins=2.0)


def test_a_world_too_large_for_one_category_has_three(subtests):
    """10,000 images without twins need more than 9,504 garments."""
    sizes = {"train_images": 10_000, "twins": 1.0}
    train = load(**sizes)
    val = load(split="val", **sizes)
    for data in (train, val):
        with subtests.test(split=data.split):
            assert {attributes_of(image).category for image in data.images} == {"dress", "shirt", "toptee"}
            assert list(data.groups) == ["dress"]
            assert len({query.id for query in data.queries}) == len(data.queries)
            for query in data.queries:
                assert attributes_of(query.reference).category == attributes_of(str(query.target)).category, query
                assert query.relevant == (query.target,), query
    assert (len(train.images), len(train.queries), len(val.images), len(val.queries)) == (10_000, 120, 120, 80)
    backbone = registry.make("backbones", "vectors", dim=64, tokens=1, noise=0.0, seed=0)
    features = backbone.features_of(train.images)[:, 0]
    assert len(torch.unique(features.round(decimals=4), dim=0)) == 10_000  # also garments of equal attributes


def test_the_world_is_the_golden_one():
    # a change here changes published numbers: raise GENERATOR in _synthesis.py
    assert load().identity == "vectors@twins4.5-160x120x120x80-764a3018"
    run = resolve(build_config([{"strategy": "qure", "dataset": "vectors", "backbone": "vectors"}]))
    read = {"_garments.toml", "_wording.toml", "_words.toml"}  # a run's hash has them
    assert {file.name for file in read_files(run).values()} == read


def test_seeds_make_other_worlds():
    one = load()
    other = load(world=1)
    assert not set(one.images) & set(other.images)
    assert one.identity != other.identity == load(world=1).identity


def test_privileged_texts_are_those_of_train():
    query = load().queries[0]
    attributes = attributes_of(str(query.target))
    phrases = {clauses(attributes, name)[0].phrase.removeprefix("a ") for name in ATTRIBUTES}
    assert set(query.target_text.removeprefix("is ").removesuffix(".").split(", ")) == phrases
    assert query.reference_text not in (None, query.target_text)
    assert load(split="val").queries[0].target_text is None


# --- scores --------------------------------------------------------------------------------------------------------


def test_a_garment_without_near_ones_has_queries_from_the_nearest():
    """Check world 10, the only one of 0 to 59 with 60 images where a target has no garment 1 to 3 attributes away."""
    world = load(world=10, train_images=60, train_queries=300, val_images=600, twins=3.0)
    assert len(world.queries) == 300
    assert [query.id for query in world.queries if query.reference == query.target] == []
