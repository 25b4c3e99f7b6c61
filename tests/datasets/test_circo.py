"""CIRCO: the real test queries, toy files of both splits, metrics against the server's arithmetic, submission files."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from negbench.benchmarks.circo import Circo
from negbench.contracts import Query
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.testing.datasets import toy_table
from tests import standin
from tests.datasets import flaws
from tests.datasets.flaws import append, put
from tests.datasets.test_dataset import block_of

VAL, TEST = "annotations/val.json", "annotations/test.json"
INFO = "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json"


def info_of(numbers: list[int]) -> dict[str, Any]:
    return {"info": {}, "images": [{"id": n, "file_name": f"{n:012d}.jpg", "width": 8} for n in numbers]}


def entry(number: int, reference: int, truths: list[int]) -> dict[str, Any]:
    value: dict[str, Any] = {"reference_img_id": reference, "relative_caption": f" has {number} cats ", "id": number}
    value["shared_concept"] = "a sofa"
    if truths:
        value |= {"target_img_id": truths[0], "gt_img_ids": truths}
    return value


def toy_files() -> flaws.Files:
    return {
        VAL: [entry(0, 10, [20, 30, 40]), entry(1, 20, [10]), entry(2, 243611, [50, 10])],
        TEST: [entry(0, 30, []), entry(1, 50, [])],
        INFO: info_of([10, 20, 30, 40, 50, 60, 243611]),
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flaws.write(tmp_path / "circo", toy_files())


def load(root: Path, **options: Any) -> Circo:
    return build(Circo, root=root, **{"images": False, **options})


# --- the real files ----------------------------------------------------------------------------------------------


@pytest.mark.data
def test_the_real_queries_and_a_submission_of_random_scores(subtests, shared_data, tmp_path):
    text = (shared_data / "circo" / TEST).read_text()
    annotations = json.loads(text)
    gallery = [*sorted({a["reference_img_id"] for a in annotations}), *range(1_000_000, 1_001_000)]
    data = load(flaws.write(tmp_path, {TEST: text.encode(), INFO: info_of(gallery)}), split="test")
    assert [query.id for query in data.queries] == [str(number) for number in range(800)]
    for query, annotation in zip(data.queries, annotations, strict=True):
        assert (query.target, query.relevant) == (None, ()), query.id
        assert int(query.reference) == annotation["reference_img_id"], query.id
        assert query.text == annotation["relative_caption"].strip(), query.id
    assert data.remarks == ("all test: 1,798 gallery, but 123,403 are published",)
    scores = toy_table(data, 1, "negative")
    with pytest.raises(DataError, match="closed"):
        data.evaluate(scores)
    files = json.loads(json.dumps(data.submission(block_of(scores))))
    assert [*files] == ["circo-test.json"]
    lists = files["circo-test.json"]
    assert [*lists] == [str(number) for number in range(800)]
    assert {len(set(numbers)) for numbers in lists.values()} == {50}
    for index in range(0, 800, 61):
        with subtests.test(index=index):
            order = scores[index].argsort(descending=True, stable=True)
            assert lists[str(index)] == [gallery[column] for column in order[:50].tolist()]
    with pytest.raises(DataError, match=r"no image_info_unlabeled2017\.json below .*: it defines the gallery"):
        load(shared_data / "circo", split="test")


# --- toy files ---------------------------------------------------------------------------------------------------


def test_queries_of_the_toy(root):
    data = load(root)
    assert data.images == ["10", "20", "30", "40", "50", "60", "243611"]
    captions = (" has 0 cats ", "a sofa")
    assert data.queries[0] == Query("0", "10", "has 0 cats", "20", "all", ("20", "30", "40"), captions)
    assert [data.relevant.row(i).tolist() for i in range(3)] == [[1, 2, 3], [0], [4, 0]]
    assert data.remarks == (
        "all val: 3 queries, but 220 are published",
        "all val: 7 gallery, but 123,403 are published",
    )
    other = load(root, text="concept")
    assert [q.text for q in other.queries][:2] == [f"Find a picture that also a sofa, but has {n} cats" for n in (0, 1)]
    assert (other.card.protocol, other.card.text_template) == (
        "concept",
        "Find a picture that also CONCEPT, but CAPTION",
    )
    assert other.identity != data.identity


def server_metrics(annotations: list[dict[str, Any]], lists: dict[str, list[int]]) -> dict[str, float]:
    """Compute the metrics with the published evaluation's arithmetic, on lists of numbers."""
    precisions: dict[int, np.ndarray] = {}
    values: dict[str, list[float]] = {}
    for value in annotations:
        listed = np.array(lists[str(value["id"])])
        label = np.array([number in value["gt_img_ids"] for number in listed], dtype=float)
        precisions[value["id"]] = np.cumsum(label) * label / (1 + np.arange(len(label)))

        def ap(k: int, value: dict[str, Any] = value) -> float:
            return float(precisions[value["id"]][:k].sum() / min(len(value["gt_img_ids"]), k))

        for k in (5, 10, 25, 50):
            values.setdefault(f"map_at_{k}", []).append(ap(k))
            values.setdefault(f"recall_at_{k}", []).append(float(value["target_img_id"] in listed[:k]))
    return {name: float(np.mean(by_query)) for name, by_query in values.items()}


def test_metrics_are_the_servers(tmp_path):
    source = random.Random(4)
    numbers = source.sample(range(10**6), 90)
    annotations = [entry(n, source.choice(numbers), source.sample(numbers, source.randint(1, 12))) for n in range(60)]
    data = load(flaws.write(tmp_path, {VAL: annotations, INFO: info_of(numbers)}))
    scores = toy_table(data, 2, "negative")
    lists = {}
    for query, row in zip(data.queries, scores, strict=True):
        order = row.argsort(descending=True, stable=True).tolist()
        lists[query.id] = [int(data.images[column]) for column in order]
    want = server_metrics(annotations, lists)
    metrics = data.evaluate(scores)
    assert metrics == pytest.approx(want, abs=1e-12)
    assert list(metrics) == list(data.card.metrics)
    assert data.card.main == "map_at_5"


# --- images ------------------------------------------------------------------------------------------------------


def test_images_are_found_by_number(root):
    names = [f"{number:012d}" for number in (10, 20, 30, 40, 50, 60, 243611)]
    standin.write_images(root / "COCO2017_unlabeled/unlabeled2017", names)
    assert load(root, images=True).open_image("243611").getpixel((0, 0)) == tuple(standin.color_of("000000243611"))


# --- flawed files ------------------------------------------------------------------------------------------------


FLAWS: dict[str, tuple[flaws.Change, str]] = {
    "too long": (put(VAL, 0, "target_img_id", value=10**12), r"1000000000000 is not an image number"),
    "truth": (put(VAL, 0, "gt_img_ids", value=[20, "30"]), r"key 'gt_img_ids'\[1\]: expected an integer, got '30'"),
    "target no truth": (put(VAL, 0, "target_img_id", value=60), r"the target 60 is not among the ground truths"),
    "truth twice": (put(VAL, 0, "gt_img_ids", value=[20, 30, 30]), r"an image occurs twice: \['20', '30', '30'\]"),
    "reference outside": (put(VAL, 0, "reference_img_id", value=99), r"image 99 of query 0 is not in image_info"),
    "image twice": (append(INFO, "images", value={"id": 10}), r"image '10' occurs twice \(entries 0 and 7\)"),
}


def test_a_flawed_file_is_one_clear_line(subtests, tmp_path):
    flaws.check(subtests, FLAWS, toy_files, tmp_path, load)
