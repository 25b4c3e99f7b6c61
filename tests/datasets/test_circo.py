"""CIRCO: the real test queries, toy files of both splits, metrics against the server's arithmetic, submission files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from negbench.datasets.circo import ASPECTS, Circo
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.registry import registry

Files = dict[str, Any]
VAL, TEST = "annotations/val.json", "annotations/test.json"
INFO = "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json"


def info_of(numbers: list[int]) -> dict[str, Any]:
    return {"info": {}, "images": [{"id": n, "file_name": f"{n:012d}.jpg", "width": 8} for n in numbers]}


def entry(number: int, reference: int, truths: list[int], aspects: list[str] | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {"reference_img_id": reference, "relative_caption": f" has {number} cats ", "id": number}
    value["shared_concept"] = "a sofa"
    if truths:
        value |= {"target_img_id": truths[0], "gt_img_ids": truths}
    return value if aspects is None else value | {"semantic_aspects": aspects}


def toy_files() -> Files:
    return {
        VAL: [
            entry(0, 10, [20, 30, 40], ["cardinality", "Direct Addressing"]),
            entry(1, 20, [10], ["negation"]),
            entry(2, 243611, [50, 10], []),
        ],
        TEST: [entry(0, 30, []), entry(1, 50, [])],
        INFO: info_of([10, 20, 30, 40, 50, 60, 243611]),
    }


def write(root: Path, files: Files) -> Path:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "circo", toy_files())


def load(root: Path, **options: Any) -> Circo:
    return Circo.load(root=root, **{"images": False, **options})


def table_of(data: Circo, seed: int, levels: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(data.queries), len(data.images))
    if levels is None:
        return torch.randn(shape, generator=generator) - 3  # negative as a rule
    return torch.randint(-levels, 1, shape, generator=generator).float()


def block(scores: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda rows, columns: scores[rows][:, columns]


def submission_faults(files: dict[str, Any], queries: set[str], gallery: set[int]) -> list[str]:
    """What the test server's description rules out."""
    if list(files) != ["circo-test.json"]:
        return ["files"]
    body = files["circo-test.json"]
    faults = [] if set(body) == queries else ["queries"]
    for query, listed in body.items():
        numbers = all(type(number) is int for number in listed)
        good = numbers and len(listed) == len(set(listed)) == 50 and set(listed) <= gallery
        faults += [] if good else [query]
    return faults


# --- the real files ----------------------------------------------------------------------------------------------


@pytest.mark.data
def test_the_real_queries_without_the_gallery_file(shared_data: Path) -> None:
    data = load(shared_data / "circo", split="test")
    annotations = json.loads((shared_data / "circo/annotations/test.json").read_text())
    assert [q.id for q in data.queries] == [str(n) for n in range(800)]
    assert [int(q.reference) for q in data.queries] == [a["reference_img_id"] for a in annotations]
    assert [q.text for q in data.queries] == [a["relative_caption"].strip() for a in annotations]
    assert (data.queries[0].target, data.queries[0].relevant, data.queries[0].aspects) == (None, (), ())
    assert len(data.images) == 798
    assert data.remarks == (
        "all test: 798 gallery where 123,403 are published",
        "there is no image_info_unlabeled2017.json: the gallery holds only the images that the annotations name",
    )
    assert data.identity.startswith("circo@caption-named-images-")
    with pytest.raises(DataError, match="closed"):
        data.evaluate(torch.zeros(800, 798))
    with pytest.raises(DataError, match=r"there is no image_info_unlabeled2017\.json"):
        data.submission(block(torch.zeros(800, 798)))
    with pytest.raises(DataError, match=r"no image_info_unlabeled2017\.json below .*: it defines the gallery"):
        load(shared_data / "circo", split="test", images=True)


@pytest.mark.data
def test_submission_of_random_scores_to_the_real_queries(shared_data: Path, tmp_path: Path) -> None:
    text = (shared_data / "circo" / TEST).read_text()
    references = sorted({a["reference_img_id"] for a in json.loads(text)})
    gallery = [*references, *range(1_000_000, 1_001_000)]
    data = load(write(tmp_path, {TEST: text.encode(), INFO: info_of(gallery)}), split="test")
    assert data.remarks == ("all test: 1,798 gallery where 123,403 are published",)
    scores = table_of(data, 1)
    files = json.loads(json.dumps(data.submission(block(scores))))
    assert submission_faults(files, {str(n) for n in range(800)}, set(gallery)) == []
    for index in range(0, 800, 61):
        order = sorted(range(len(gallery)), key=lambda column: -float(scores[index, column]))
        assert files["circo-test.json"][str(index)] == [gallery[c] for c in order[:50]]
    files["circo-test.json"]["3"][7] = files["circo-test.json"]["3"][8]
    files["circo-test.json"]["4"][7] = "30"
    del files["circo-test.json"]["799"]
    assert submission_faults(files, {str(n) for n in range(800)}, set(gallery)) == ["queries", "3", "4"]


# --- toy files ---------------------------------------------------------------------------------------------------


def test_queries_of_the_toy(root: Path) -> None:
    data = load(root)
    assert data.images == ["10", "20", "30", "40", "50", "60", "243611"]
    first, second, third = data.queries
    assert (first.id, first.reference, first.target, first.group) == ("0", "10", "20", "all")
    assert first.relevant == ("20", "30", "40")
    assert first.text == "has 0 cats"
    assert first.aspects == ("cardinality", "direct_addressing")
    assert (second.aspects, third.aspects) == (("negation",), ())
    assert data.relevant is not None
    assert [data.relevant.row(i).tolist() for i in range(3)] == [[1, 2, 3], [0], [4, 0]]
    assert data.remarks == (
        "all val: 3 queries where 220 are published",
        "all val: 7 gallery where 123,403 are published",
    )
    assert data.identity.startswith("circo@caption-")
    assert not data.identity.startswith("circo@caption-named")


def test_text_modes_and_options(root: Path) -> None:
    data = load(root, text="shared_concept")
    assert data.queries[0].text == "find a sofa but has 0 cats"
    assert data.identity != load(root).identity
    assert data.identity.startswith("circo@shared_concept-")
    with pytest.raises(OptionError, match="text must be one of caption, shared_concept, got 'both'"):
        load(root, text="both")
    with pytest.raises(OptionError, match="split must be val or test"):
        load(root, split="train")
    assert registry.make("datasets", "circo", root=str(root), images=False).identity == load(root).identity


def test_the_gallery_file_is_found_anywhere_and_matters(root: Path) -> None:
    whole = load(root)
    moved = root / "elsewhere" / Path(INFO).name
    moved.parent.mkdir()
    (root / INFO).rename(moved)
    assert load(root).images == whole.images
    moved.unlink()
    named = load(root)
    assert named.images == ["10", "20", "30", "40", "243611", "50"]
    assert named.identity != whole.identity


def test_annotations_of_the_first_release_have_no_aspects(root: Path) -> None:
    files = toy_files()
    for value in files[VAL]:
        del value["semantic_aspects"]
    found = load(write(root, files)).evaluate(torch.zeros(3, 7))
    assert not any("semantic" in name for name in found)


def server_metrics(annotations: list[dict[str, Any]], lists: dict[str, list[int]]) -> dict[str, float]:
    """The published evaluation's arithmetic, on lists of numbers."""
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
        for aspect in value["semantic_aspects"]:
            values.setdefault(f"semantic/{aspect}/map_at_10", []).append(ap(10))
    return {name: float(np.mean(each)) for name, each in values.items()}


def large(tmp_path: Path, queries: int, images: int, seed: int) -> tuple[Circo, list[dict[str, Any]]]:
    source = random.Random(seed)
    numbers = source.sample(range(10**6), images)
    annotations = [
        entry(
            n,
            source.choice(numbers),
            source.sample(numbers, source.randint(1, 12)),
            source.sample(ASPECTS, source.randint(1, 4)),
        )
        for n in range(queries)
    ]
    return load(write(tmp_path, {VAL: annotations, INFO: info_of(numbers)})), annotations


def test_metrics_are_the_servers(tmp_path: Path) -> None:
    data, annotations = large(tmp_path, 60, 90, seed=4)
    scores = table_of(data, 2)
    order = [[int(data.images[c]) for c in sorted(range(90), key=lambda c: -float(row[c]))] for row in scores]
    want = server_metrics(annotations, {q.id: o for q, o in zip(data.queries, order, strict=True)})
    found = data.evaluate(scores)
    assert found == pytest.approx(want, abs=1e-12)
    assert list(found) == list(data.card.metrics)
    assert data.card.main == "map_at_5"
    part = data.with_queries([7, 3], "two")
    want = server_metrics([annotations[7], annotations[3]], {"7": order[7], "3": order[3]})
    assert part.evaluate(scores[[7, 3]]) == pytest.approx(want, abs=1e-12)


# --- images ------------------------------------------------------------------------------------------------------


def test_images_are_found_by_number(standin: ModuleType, root: Path) -> None:
    names = [f"{number:012d}" for number in (10, 20, 30, 40, 50, 60, 243611)]
    standin.write_images(root / "COCO2017_unlabeled/unlabeled2017", names)
    data = load(root, images=True)
    assert data.open_image("243611").getpixel((0, 0)) == tuple(standin.color_of("000000243611"))
    (root / "COCO2017_unlabeled/unlabeled2017/000000000040.png").unlink()  # a ground truth
    (root / "COCO2017_unlabeled/unlabeled2017/000000000050.png").unlink()  # a target
    with pytest.raises(DataError, match=r"2 of 7 images are missing .*: 40 \(no file\), 50 \(no file\)"):
        load(root, images=True)
    data = load(root, images=True, allow_missing=True)
    assert [query.id for query in data.queries] == ["0", "1"]
    assert data.queries[0].relevant == ("20", "30")
    assert data.partial
    with pytest.raises(DataError, match="but 2 images are missing"):
        data.submission(block(torch.zeros(2, 5)))
    shutil.rmtree(root / "COCO2017_unlabeled/unlabeled2017")
    with pytest.raises(DataError, match="no query is left"):
        load(root, images=True, allow_missing=True)


# --- flawed files ------------------------------------------------------------------------------------------------


def change(key: str, value: Any) -> Callable[[Files], None]:
    return lambda files: files[VAL][0].update({key: value})


FLAWS: dict[str, tuple[Callable[[Files], Any], str]] = {
    "no annotations": (lambda f: f.pop(VAL), r"has no annotations/val\.json; the data come from https"),
    "no target": (lambda f: f[VAL][0].pop("target_img_id"), r"val\.json: entry 0: key 'target_img_id' is missing"),
    "no truths": (lambda f: f[VAL][0].pop("gt_img_ids"), r"key 'gt_img_ids' is missing"),
    "no caption": (lambda f: f[VAL][0].pop("relative_caption"), r"key 'relative_caption' is missing"),
    "reference a string": (change("reference_img_id", "10"), r"key 'reference_img_id': want an integer, got '10'"),
    "negative": (change("reference_img_id", -1), r"-1 is no image number"),
    "too long": (change("target_img_id", 10**12), r"1000000000000 is no image number"),
    "truth": (change("gt_img_ids", [20, "30"]), r"key 'gt_img_ids'\[1\]: want an integer, got '30'"),
    "truths": (change("gt_img_ids", 20), r"key 'gt_img_ids': want a list, got 20"),
    "target no truth": (change("target_img_id", 60), r"the target 60 is not among the ground truths"),
    "truth twice": (change("gt_img_ids", [20, 30, 30]), r"an image is there twice: \['20', '30', '30'\]"),
    "outside": (change("gt_img_ids", [20, 99]), r"entry 0: image 99 of query 0 is not in image_info_unlabeled2017"),
    "reference outside": (change("reference_img_id", 99), r"image 99 of query 0 is not in image_info"),
    "id twice": (change("id", 1), r"query '1' is there twice \(entries 0 and 1\)"),
    "id a float": (change("id", 0.0), r"key 'id': want an integer, got 0\.0"),
    "aspects": (change("semantic_aspects", "negation"), r"key 'semantic_aspects': want a list, got 'negation'"),
    "aspect": (change("semantic_aspects", ["negation", 4]), r"key 'semantic_aspects'\[1\]: want a string, got 4"),
    "aspect empty": (change("semantic_aspects", ["../"]), r"'\.\./' is no name"),
    "image twice": (lambda f: f[INFO]["images"].append({"id": 10}), r"image '10' is there twice \(entries 0 and 7\)"),
    "image no object": (lambda f: f[INFO]["images"].append(10), r"key 'images'\[7\]: want an object, got 10"),
    "no images": (lambda f: f[INFO].pop("images"), r"image_info_unlabeled2017\.json: key 'images' is missing"),
    "truncated": (lambda f: f.update({INFO: json.dumps(f[INFO]).encode()[:-9]}), r"is not valid JSON"),
    "not UTF-8": (lambda f: f.update({VAL: b'["\xff"]'}), r"is not UTF-8 \(byte 2\)"),
    "a number too long": (lambda f: f.update({VAL: b"[" + b"9" * 5000 + b"]"}), r"is not valid JSON"),
    "empty": (lambda f: f.update({VAL: []}), r"circo val: no query is left"),
}  # fmt: skip


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flawed_file_is_one_clear_line(tmp_path: Path, flaw: str) -> None:
    alter, message = FLAWS[flaw]
    files = toy_files()
    alter(files)
    with pytest.raises(DataError, match=message) as caught:
        load(write(tmp_path, files))
    assert "\n" not in str(caught.value)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), split=st.sampled_from(["val", "test"]))
def test_no_file_makes_any_other_exception(tmp_path: Path, flaws: ModuleType, data: st.DataObject, split: str) -> None:
    root = flaws.write(tmp_path / "fuzz", flaws.damaged(data, toy_files(), [f"annotations/{split}.json", INFO]))
    try:
        loaded = load(root, split=split)
    except NegbenchError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either outcome is right
    else:
        scores = torch.zeros(len(loaded.queries), len(loaded.images))
        if split == "val":
            assert all(0 <= value <= 1 for value in loaded.evaluate(scores).values())
        assert all(image.isdigit() for image in loaded.all_images)
        assert all(len(listed) for listed in loaded.submission(block(scores))[f"circo-{split}.json"].values())
    finally:
        shutil.rmtree(root)
