"""MIT-States: a toy tree, the split by noun, metrics against loops, training pairs, oddly named folders."""

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from negbench.benchmarks.mit_states import TEST_NOUNS, MitStates
from negbench.errors import DataError
from negbench.plugins.registry import build, registry
from negbench.testing.datasets import SIGNS, toy_table
from tests import standin

FOLDERS = {
    "ripe tomato": 3, "sliced tomato": 2, "mashed tomato": 1, "empty glass": 2, "full glass": 1, "lone sky": 1,
    "adj tomato": 2, "tall tree": 3, "bare tree": 2, "mossy tree": 1, "old dog": 2, "wet dog": 1, "adj dog": 1,
}  # fmt: skip
TEST = [name for name in FOLDERS if name.split()[1] in ("tomato", "glass", "sky") and not name.startswith("adj")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "mit-states"
    for name, count in FOLDERS.items():
        standin.write_images(path / "images" / name, [str(n) for n in range(count)])
    (path / "images/readme").mkdir()
    (path / "images/ripe tomato/notes.txt").write_text("no image")
    return path


def load(root: Path, **options: Any) -> MitStates:
    return build(MitStates, root=root, **options)


def class_of(image: str | None) -> str:
    return str(image).split("/")[0]


def test_the_nouns_of_training_and_test_differ(root):
    assert len(set(TEST_NOUNS)) == len(TEST_NOUNS) == 49
    train = load(root, split="train")
    test = load(root)
    assert {class_of(i) for i in test.images} == set(TEST)
    assert {class_of(i) for i in train.images} == {"tall tree", "bare tree", "mossy tree", "old dog", "wet dog"}
    assert len(test.images) == sum(FOLDERS[name] for name in TEST)
    assert test.images[0] == "empty glass/0"
    assert test.identity == load(root, split="test").identity == load(root.parent, images=False).identity
    assert test.open_image("ripe tomato/1").size == (8, 8)


def test_test_queries_are_every_image_with_every_other_adjective(root):
    data = load(root)
    want = []
    for name, other in itertools.permutations(TEST, 2):
        if other.split()[1] == name.split()[1]:
            want += [(f"{name}/{number}", other) for number in range(FOLDERS[name])]
    assert sorted((query.reference, class_of(query.target)) for query in data.queries) == sorted(want)
    for query in data.queries:
        target = class_of(query.target)
        assert query.relevant[0] == query.target, query.id
        assert set(query.relevant) == {image for image in data.images if class_of(image) == target}, query.id
        old = class_of(query.reference).split()[0]
        new = target.split()[0]
        assert query.text == f"is not {old}, is {new}.", query.id
        assert query.reference_text is None, query.id


@pytest.mark.parametrize("sign", SIGNS)
def test_metrics_against_loops(root, sign):
    data = load(root)
    scores = toy_table(data, 1, sign)
    want = {}
    by_pair = {}
    for k in (1, 5, 10):
        hits = []
        hits_of_pairs = []
        for query, row in zip(data.queries, scores.tolist(), strict=True):
            target = class_of(query.target)
            candidates = []
            for image, score in zip(data.images, row, strict=True):
                if image != query.reference:
                    candidates.append((-score, class_of(image) == target))  # at equal scores the wrong ones come first
            hit = any(is_right for _, is_right in sorted(candidates)[:k])
            hits.append(hit)
            # HyCoLe's test samples are pairs of images: one for every image of the target class
            hits_of_pairs += [hit] * FOLDERS[target]
        want[f"recall_at_{k}"] = sum(hits) / len(hits)
        by_pair[f"pair/recall_at_{k}"] = sum(hits_of_pairs) / len(hits_of_pairs)
    want["average"] = sum(want.values()) / 3
    by_pair["pair/average"] = sum(by_pair.values()) / 3
    want |= by_pair
    metrics = data.evaluate(scores)
    assert metrics == pytest.approx(want)
    assert list(metrics) == list(data.card.metrics) == list(want)
    assert metrics["pair/average"] != metrics["average"]


def test_training_pairs_change_the_state_of_one_noun(root):
    data = load(root, split="train")
    drawn = Counter((query.reference, class_of(query.target)) for query in data.pairs.draw(12_000, 1, 0))
    classes = {class_of(image) for image in data.images}
    expected = {}
    for image in data.images:
        noun = class_of(image).split()[1]
        others = {name for name in classes if name.split()[1] == noun} - {class_of(image)}
        expected |= {(image, other): 12_000 / len(data.images) / len(others) for other in others}
    assert set(drawn) == set(expected)
    statistic = sum((drawn[pair] - n) ** 2 / n for pair, n in expected.items())
    assert statistic < len(expected) + 4 * (2 * len(expected)) ** 0.5
    first = data.queries[0]
    assert first.reference_text == f"{class_of(first.reference)}."
    assert first.target_text == f"{class_of(first.target)}."


def test_weighting_chooses_main_metric_and_protocol(root):
    one = load(root)
    pair = load(root, weighting="pair")
    assert (one.card.main, pair.card.main) == ("average", "pair/average")
    assert one.identity.startswith("mit-states@tirg-")
    assert pair.identity.startswith("mit-states@hycole-")
    assert one.queries == pair.queries


def test_oddly_named_folders(root):
    standin.write_images(root / "images" / "very ripe tomato", ["0"])
    with pytest.raises(DataError, match="folder 'very ripe tomato' is not named ADJECTIVE NOUN: rename or move it"):
        load(root)
    shutil.rmtree(root / "images")
    with pytest.raises(DataError, match="has no images; the data come from http"):
        load(root)
    (root / "images").mkdir()
    with pytest.raises(DataError, match=r"mit-states test: no query in .* is left \(0 images missing\)"):
        registry.make("datasets", "mit-states", root=str(root))
