"""CIRR: the real test1 files, toy files of the other splits, metrics against loops, both trees, submission files."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.benchmarks.cirr import Cirr
from negbench.contracts import Query
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.testing.datasets import SIGNS, toy_table
from tests import standin
from tests.datasets import flaws
from tests.datasets.test_dataset import block_of

PREFIX = {"train": "train", "val": "dev", "test1": "test1"}
CAPTIONS, SPLIT = "captions/cap.rc2.val.json", "image_splits/split.rc2.val.json"


def entry_of(pair: int, reference: str, target: str, members: list[str]) -> dict[str, Any]:
    group = {"id": pair, "members": members, "reference_rank": 0, "target_rank": 1}
    labels = {"target_hard": target, "target_soft": {target: 1.0}}
    return {"pairid": pair, "reference": reference, "caption": "other", "img_set": group} | labels


def toy_files(split: str = "val") -> flaws.Files:
    """Return files of nine images and three entries; the last image is in the split file only."""
    prefix = PREFIX[split]
    ids = [f"{prefix}-{n}-0-img0" for n in range(9)]
    folder = "train/34" if split == "train" else prefix
    entries: list[dict[str, Any]] = []
    for index, (reference, target, members) in enumerate(((0, 1, range(6)), (1, 5, range(6)), (7, 3, range(2, 8)))):
        entry = entry_of(100 + index, ids[reference], ids[target], [ids[m] for m in members])
        entry["caption"] = f" Make it {index} times as big "
        if split == "test1":
            del entry["target_hard"], entry["target_soft"], entry["img_set"]["target_rank"]
        entries.append(entry)
    return {
        f"captions/cap.rc2.{split}.json": entries,
        f"image_splits/split.rc2.{split}.json": {name: f"./{folder}/{name}.png" for name in ids},
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flaws.write(tmp_path / "cirr", toy_files("train") | toy_files("val") | toy_files("test1"))


def load(root: Path, **options: Any) -> Cirr:
    return build(Cirr, root=root, **{"images": False, **options})


# --- the real files ----------------------------------------------------------------------------------------------


@pytest.mark.data
def test_published_counts(shared_data):
    data = load(shared_data / "cirr", split="test1")
    assert (len(data.queries), len(data.images), list(data.groups)) == (4148, 2315, ["all"])
    assert data.remarks == ()
    assert load(shared_data, split="test1").identity == data.identity  # the parent folder works too
    captions = json.loads((shared_data / "cirr/captions/cap.rc2.test1.json").read_text())
    assert data.images == list(json.loads((shared_data / "cirr/image_splits/split.rc2.test1.json").read_text()))
    for query, entry in zip(data.queries, captions, strict=True):
        assert (query.id, query.reference, query.target) == (str(entry["pairid"]), entry["reference"], None), query.id
        assert {*query.subset, query.reference} == set(entry["img_set"]["members"]), query.id
        assert len(query.subset) == 5, query.id
    with pytest.raises(DataError, match="the labels of cirr test1 are closed"):
        data.evaluate(torch.zeros(4148, 2315))


@pytest.mark.data
def test_submission_of_random_scores_to_the_real_split(subtests, shared_data):
    data = load(shared_data / "cirr", split="test1")
    scores = toy_table(data, 0)
    files = json.loads(json.dumps(data.submission(block_of(scores))))
    for metric, count in (("recall", 50), ("recall_subset", 3)):
        with subtests.test(metric=metric, count=count):
            body = files[f"cirr-test1-{metric}.json"]
            assert len(json.dumps(body, separators=(",", ":"))) < 5_000_000
            assert (body.pop("version"), body.pop("metric")) == ("rc2", metric)
            assert [*body] == [query.id for query in data.queries]
            assert {len({*listed}) for listed in body.values()} == {count}
    for index in range(0, 4148, 829):
        with subtests.test(index=index):
            query = data.queries[index]
            order = scores[index].argsort(descending=True, stable=True).tolist()
            best = [data.images[column] for column in order if data.images[column] != query.reference]
            assert files["cirr-test1-recall.json"][query.id] == best[:50]
            inside = [image for image in best if image in query.subset]
            assert files["cirr-test1-recall_subset.json"][query.id] == inside[:3]


# --- toy files ---------------------------------------------------------------------------------------------------


def test_queries_of_the_toy(root):
    data = load(root)
    assert data.queries[0] == Query(
        "100",
        reference="dev-0-0-img0",
        text="Make it 0 times as big",
        target="dev-1-0-img0",
        group="all",
        captions=(" Make it 0 times as big ",),
        subset=tuple(f"dev-{number}-0-img0" for number in range(1, 6)),
    )
    assert data.images == [f"dev-{n}-0-img0" for n in range(9)]  # in the order of the split file
    assert data.extra_images == []
    assert data.remarks == (
        "all val: 3 queries, but 4,181 are published",
        "all val: 9 gallery, but 2,297 are published",
    )
    assert data.identity.startswith("cirr@rc2-")


def loop_metrics(data: Cirr, scores: Tensor) -> dict[str, float]:
    """Compute the benchmark's metrics from ids alone; ties count against the model."""
    hits: dict[str, list[bool]] = {}
    for query, row in zip(data.queries, scores.tolist(), strict=True):
        score = dict(zip(data.images, row, strict=True))
        for name, pool, ks in (("", data.images, (1, 5, 10, 50)), ("subset_", query.subset, (1, 2, 3))):
            rivals = set(pool) - {query.reference, query.target}
            rank = 1 + sum(score[image] >= score[str(query.target)] for image in rivals)
            for k in ks:
                hits.setdefault(f"{name}recall_at_{k}", []).append(rank <= k)
    metrics = {name: sum(values) / len(values) for name, values in hits.items()}
    return metrics | {
        "average": (metrics["recall_at_5"] + metrics["subset_recall_at_1"]) / 2,
        "overall": sum(metrics.values()) / 7,
    }


def large_files(queries: int, images: int, seed: int) -> flaws.Files:
    """Return a val split of random groups of six images."""
    source = random.Random(seed)
    ids = [f"dev-{n}-0-img1" for n in range(images)]
    entries = []
    for pair in range(queries):
        members = source.sample(ids, 6)
        reference, target = source.sample(members, 2)
        entries.append(entry_of(pair, reference, target, members))
    return {CAPTIONS: entries, SPLIT: {name: f"./dev/{name}.png" for name in ids}}


def test_metrics_against_loops(subtests, tmp_path):
    data = load(flaws.write(tmp_path, large_files(60, 80, seed=1)))
    for sign in SIGNS:
        with subtests.test(sign=sign):
            scores = toy_table(data, 3, sign)
            metrics = data.evaluate(scores)
            assert list(metrics) == list(data.card.metrics)
            assert metrics == pytest.approx(loop_metrics(data, scores), abs=1e-12)


def test_ranks_of_another_data_set_are_refused(root):
    ranks = load(root).rank(block_of(torch.zeros(3, 9)))
    with pytest.raises(DataError, match="needs CIRR's ranks within image groups"):
        Cirr.summarise(dataclasses.replace(ranks, subset_rank=None))


def test_submission_of_a_part_is_refused(root):
    data = load(root, split="test1")
    scores = toy_table(data, 0)
    best = data.submission(block_of(scores))["cirr-test1-recall.json"]
    assert {len({*best[query.id]}) for query in data.queries} == {8}  # lists are no longer than the gallery
    with pytest.raises(DataError, match="needs every query and image, but only two is loaded"):
        data.with_queries([0, 1], "two").submission(block_of(scores[:2]))


# --- images ------------------------------------------------------------------------------------------------------


def test_both_trees(root):
    names = list(toy_files("train")["image_splits/split.rc2.train.json"])
    standin.write_images(root / "img_raw/train/34", names[:5])
    standin.write_images(root / "train", names[5:])
    data = load(root, split="train", images=True)
    assert data.missing == ()
    assert data.open_image("train-7-0-img0").getpixel((0, 0)) == tuple(standin.color_of("train-7-0-img0"))
    assert data.identity == load(root, split="train").identity


def test_missing_images_name_the_tree_and_the_first_mismatch(root):
    standin.write_images(root / "dev", toy_files()[SPLIT])
    (root / "dev/dev-1-0-img0.png").unlink()
    (root / "dev/dev-8-0-img0.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load(root, images=True)
    message = str(caught.value)
    assert "2 of 9 images are missing" in message
    assert ": dev-1-0-img0 (no file), dev-8-0-img0 (empty file); expected: captions" in message
    assert "train/0/ID.png ... train/99/ID.png (or train/ID.png), dev/ID.png, test1/ID.png" in message
    data = load(root, images=True, allow_missing=True)
    assert [query.id for query in data.queries] == ["102"]
    with pytest.raises(DataError, match="but 2 images are missing"):
        data.submission(block_of(torch.zeros(1, 7)))
    with pytest.raises(DataError, match=r"no query in .* is left"):
        load(root, images=True, allow_missing=True, split="train")


# --- flawed files ------------------------------------------------------------------------------------------------


def put_in_entry(key: str, value: Any) -> flaws.Change:
    return flaws.put(CAPTIONS, 1, key, value=value)


def put_members(*members: str) -> flaws.Change:
    return flaws.put(CAPTIONS, 1, "img_set", "members", value=list(members))


MEMBERS = [f"dev-{n}-0-img0" for n in range(6)]
FLAWS: dict[str, tuple[flaws.Change, str]] = {
    "pairid twice": (put_in_entry("pairid", 100), r"val\.json: pairid '100' occurs twice \(entries 0 and 1\)"),
    "outside": (put_in_entry("target_hard", "dev-99"), r"and the target 'dev-99'"),
    "reference": (put_in_entry("reference", "dev-99"), r"'dev-99' of query 101 is not in split\.rc2\.val"),
    "five members": (put_members(*MEMBERS[:5]), r"expected 6 distinct members"),
    "reference not a member": (put_members("dev-6-0-img0", MEMBERS[0], *MEMBERS[2:]), r"expected 6"),
    "member unknown": (put_members(*MEMBERS[:5], "zzz"), r"'zzz' of query 101 is not in split"),
    "target not a member": (put_members(*MEMBERS[:5], "dev-8-0-img0"), r"and the target "),
}


def test_a_flawed_file_is_one_clear_line(subtests, tmp_path):
    flaws.check(subtests, FLAWS, toy_files, tmp_path, load)
