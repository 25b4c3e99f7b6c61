"""FashionIQ: the real annotation files, toy files with every flaw, both protocols, all caption modes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from negbench.benchmarks.fashioniq import FashionIQ
from negbench.contracts import Query
from negbench.datasets.overlap import overlap
from negbench.errors import DataError
from negbench.plugins.registry import build, registry
from tests.datasets import flaws
from tests.datasets.flaws import append, drop, put

QUERIES = {"train": (5985, 5988, 6027), "val": (2017, 2038, 1961)}
ORIGINAL = {"train": (11452, 19036, 16121), "val": (3817, 6346, 5373)}


def toy_files() -> flaws.Files:
    """Return two entries per category and split; the fourth image is in the split file only."""
    files: flaws.Files = {}
    for letter, category in (("D", "dress"), ("S", "shirt"), ("T", "toptee")):
        for split in ("train", "val"):
            ids = [f"{letter}{split}{n}" for n in range(4)]
            entries: list[dict[str, Any]] = [
                {"candidate": ids[0], "target": ids[1], "captions": ["is Darker.", " has no sleeves"]},
                {"candidate": ids[0], "target": ids[2], "captions": ["is red?", "and shorter, "]},
            ]
            files[f"captions/cap.{category}.{split}.json"] = entries
            files[f"image_splits/split.{category}.{split}.json"] = ids
    return files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flaws.write(tmp_path / "fashioniq", toy_files())


def load(root: Path, **options: Any) -> FashionIQ:
    return build(FashionIQ, root=root, **{"images": False, **options})


def sizes(data: FashionIQ) -> tuple[int, ...]:
    return tuple(len(columns) for columns in data.groups.values())


# --- the real files ----------------------------------------------------------------------------------------------


@pytest.mark.data
def test_published_counts(subtests, shared_data):
    for split in ("train", "val"):
        with subtests.test(split=split):
            data = load(shared_data / "fashioniq", split=split, corpus="images")
            counts = Counter(query.group for query in data.queries)
            assert tuple(counts[name] for name in data.groups) == QUERIES[split]
            assert sizes(data) == ORIGINAL[split]
            assert data.remarks == tuple(data.sharing())  # the counts are the published ones
            assert data.extra_images == []
            captions = json.loads((shared_data / f"fashioniq/captions/cap.shirt.{split}.json").read_text())
            shirts = [query for query in data.queries if query.group == "shirt"]
            for query, entry in zip(shirts, captions, strict=True):
                assert (query.reference, query.target) == (entry["candidate"], entry.get("target")), query.id
                assert list(query.captions) == entry["captions"], query.id


@pytest.mark.data
def test_what_the_real_splits_share(shared_data):
    train = load(shared_data, split="train", corpus="images")
    val = load(shared_data, split="val", corpus="images")
    assert overlap(train, val) == [
        "100 of 6,016 val queries have a target that is one in train (51 shirt, 49 toptee)",
        "3 val queries stand in train, with reference, text and target alike",
        "811 of 15,415 val images are among train's, 400 of them in its pairs",
    ]
    assert [len(data.rows_with_several_targets) for data in (train, val)] == [89, 9]
    assert "R@1 is at most 99.82% (6,005 rows)" in val.remarks[-1]


@pytest.mark.data
def test_val_protocol_is_the_union_of_references_and_targets(shared_data):
    data = load(shared_data, protocol="val")  # the parent folder works too
    assert sizes(data) == (2628, 3089, 2902)
    assert data.remarks == tuple(data.sharing())
    for category in data.groups:
        entries = json.loads((shared_data / f"fashioniq/captions/cap.{category}.val.json").read_text())
        want = {entry["candidate"] for entry in entries} | {entry["target"] for entry in entries}
        assert {data.images[c] for c in data.groups[category].tolist()} == want, category
    assert data.identity.startswith("fashioniq@val-")
    assert load(shared_data).identity.startswith("fashioniq@original-")


# --- toy files ---------------------------------------------------------------------------------------------------


def test_queries_of_the_toy(root):
    data = load(root)
    captions, text = ("is Darker.", " has no sleeves"), "Is darker and has no sleeves"
    assert data.queries[0] == Query("dress-val-00000", "Dval0", text, "Dval1", "dress", captions=captions)
    assert data.queries[1].text == "Is red and and shorter"
    assert sizes(data) == (4, 4, 4)
    assert data.remarks[:2] == (
        "dress val: 2 queries, but 2,017 are published",
        "dress val: 4 gallery, but 3,817 are published",
    )


def test_galleries_of_every_option(root):
    assert sizes(load(root, protocol="val")) == (3, 3, 3)
    targets = load(root, split="train")
    assert targets.images[:2] == ["Dtrain1", "Dtrain2"]
    assert targets.extra_images == ["Dtrain0", "Strain0", "Ttrain0"]
    assert sizes(load(root, split="train", corpus="images")) == (4, 4, 4)


def test_a_target_of_two_queries_is_once_in_the_corpus(root):
    files = toy_files()
    files["captions/cap.dress.train.json"][1]["target"] = "Dtrain1"
    flaws.write(root, files)
    assert sizes(load(root, split="train")) == (1, 2, 2)


def test_an_image_of_two_categories_is_one_column(root):
    files = toy_files()
    files["image_splits/split.shirt.val.json"].append("Dval3")
    data = load(flaws.write(root, files))
    assert len(data.images) == 12
    assert sizes(data) == (4, 5, 4)


def test_caption_modes(root):
    comma = load(root, caption_mode="comma")
    assert [q.text for q in comma.queries[:2]] == ["is Darker, has no sleeves.", "is red, and shorter."]
    assert comma.identity != load(root).identity


def test_attributes_are_privileged_texts_of_train(root):
    words = {"Dtrain0": [["Red", "floral"], ["red ", "long sleeve"]], "Dtrain1": [[], []]}
    flaws.write(root, {"image_tag_dataset/tags/asin2attr.dress.train.json": words})
    flaws.write(root, {"tags/asin2attr.dress.val.json": {"Dval0": [["red"]]}})
    first = load(root, split="train").queries[0]
    assert (first.reference_text, first.target_text) == ("is red, floral, long sleeve.", None)
    assert load(root).queries[0].reference_text is None
    flaws.write(root, {"captions/asin2attr.dress.train.new.json": {"Dtrain1": [["blue"]]}})
    assert load(root, split="train").queries[0].target_text == "is blue."
    flaws.write(root, {"captions/asin2attr.dress.train.new.json": {"Dtrain1": ["blue"]}})
    with pytest.raises(DataError, match=r"asin2attr\.dress\.train\.new\.json: key 'Dtrain1'\[0\]: expected a list"):
        load(root, split="train")


def test_relevance_is_read_and_kept_within_the_gallery(root):
    rows = [["Dval1", "Dval3", "Dtrain0", "Dval3"], ["Dval0", "Dval2"]]
    flaws.write(root, {"relevance.json": {"val": {"dress": rows}}})
    data = load(root)
    assert data.queries[0].relevant == ("Dval1", "Dval3")
    assert data.queries[1].relevant == ("Dval2", "Dval0")
    assert data.queries[2].relevant == ()
    assert data.relevant.row(2).tolist() == [int(data.target_columns[2])]
    flaws.write(root, {"relevance.json": {"val": {"dress": rows[:1]}}})
    with pytest.raises(DataError, match=r"1 rows in relevance\.json for 2 entries of cap\.dress\.val\.json"):
        load(root)


# --- where the data are ------------------------------------------------------------------------------------------


def test_root_from_the_environment(subtests, root, monkeypatch):
    monkeypatch.setenv("NEGBENCH_DATA", str(root.parent))
    want = load(root).identity
    assert build(FashionIQ, images=False).identity == want
    assert registry.make("datasets", "fashioniq", images=False).images[0] == "Dval0"
    monkeypatch.delenv("NEGBENCH_DATA")
    with pytest.raises(DataError, match="NEGBENCH_DATA") as caught:
        build(FashionIQ, images=False)
    for part in ("--data-root", "https://github.com/XiaoxiaoGuo/fashion-iq", "captions/cap.CATEGORY.SPLIT.json"):
        with subtests.test(part=part):
            assert part in str(caught.value)


# --- flawed files ------------------------------------------------------------------------------------------------

CAPTIONS = "captions/cap.dress.val.json"
SPLIT = "image_splits/split.dress.val.json"
RELEVANCE = "relevance.json"


def put_in_entry(key: str, value: Any) -> flaws.Change:
    return put(CAPTIONS, 1, key, value=value)


def truncate(files: flaws.Files) -> None:
    files[CAPTIONS] = json.dumps(files[CAPTIONS], indent=1).encode()[:-40]


FLAWS: dict[str, tuple[flaws.Change, str]] = {
    "caption file absent": (drop("captions/cap.shirt.val.json"), r"cap\.shirt\.val\.json is missing"),
    "key absent": (drop(CAPTIONS, 1, "target"), r"cap\.dress\.val\.json: entry 1: key 'target' is missing"),
    "wrong type": (put_in_entry("candidate", 7), r"entry 1: key 'candidate': expected a string, got 7"),
    "three captions": (put_in_entry("captions", ["a", "b", "c"]), r"entry 1: key 'captions': expected 2 captions"),
    "path in an id": (put_in_entry("candidate", "../../etc/passwd"), r"'\.\./\.\./etc/passwd' is not an image id"),
    "empty id": (put_in_entry("target", ""), r"'' is not an image id"),
    "entry no object": (append(CAPTIONS, value=3), r"entry 2: expected an object, got 3"),
    "file no list": (put(CAPTIONS, value={"a": 1}), r"cap\.dress\.val\.json: expected a list"),
    "duplicate": (append(SPLIT, value="Dval0"), r"image 'Dval0' occurs twice \(entries 0 and 4\)"),
    "target not in the gallery": (
        put_in_entry("target", "Dval9"),
        r"target 'Dval9' of query dress-val-00001 is not in the gallery",
    ),
    "truncated": (truncate, r"cap\.dress\.val\.json is not valid JSON \(.* line \d+ column \d+"),
    "not UTF-8": (put(CAPTIONS, value=b'[{"candidate": "\xff"}]'), r"is not UTF-8 \(byte 16\)"),
    "empty file": (put(CAPTIONS, value=b""), r"is not valid JSON \(Expecting value: line 1 column 1"),
    "too deep": (put(CAPTIONS, value=b"[" * 100_000), r"is not valid JSON"),
    "relevance no object": (put(RELEVANCE, value=[]), r"relevance\.json: expected an object, got"),
    "relevance no list": (put(RELEVANCE, value={"val": {"dress": 3}}), r"key 'dress': expected a list, got 3"),
}


def test_a_flawed_file_is_one_clear_line(subtests, tmp_path):
    flaws.check(subtests, FLAWS, toy_files, tmp_path, load)
