"""Checking a data set: clean data, every kind of problem, the manifest, worker processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from negbench.datasets.verify import CheckedDataset, Problem, verify
from negbench.errors import DataError, OptionError
from negbench.plugins.registry import registry
from tests import standin
from tests.datasets import toys


def rows() -> list[dict[str, Any]]:
    """Return two queries per split; 'r0' is a reference of both splits."""
    query = {"reference": "r0", "text": "is red"}
    return [
        {**query, "target": "train0", "split": "train"},
        {**query, "target": "train1", "split": "train"},
        {**query, "target": "val0", "split": "val"},
        {**query, "target": "val1", "split": "val"},
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    write_rows(path, rows())
    standin.write_images(tmp_path / "images", ["r0", "train0", "train1", "val0", "val1"])
    return path


def check(file: Path, **options: Any) -> CheckedDataset:
    return verify("triplets", {"file": file}, **options)


def kinds(checked: CheckedDataset) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(problem.kind, problem.split, problem.images) for problem in checked.problems]


def test_a_clean_data_set(file):
    progress: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        progress.append((done, total))

    checked = check(file, progress=note)
    assert checked.problems == []
    assert [(s.split, s.queries, s.gallery, s.published) for s in checked.splits] == [
        ("train", 2, {"all": 3}, False),
        ("val", 2, {"all": 3}, False),
    ]
    assert progress[-1] == (5, 5)
    assert checked.images == 5


def test_what_val_shares_with_train_is_noted(file):
    """A query of train stands in val again; another has its target; r0 and train0 are in both splits' pairs."""
    again = {**rows()[0], "split": "val"}
    more = [again, {**again, "reference": "val1", "text": "is blue"}]
    write_rows(file, [*rows(), *more])
    assert [note for note in check(file).notes if "share reference" not in note] == [
        "2 of 4 val queries have a target that is one in train",
        "1 val queries stand in train, with reference, text and target alike",
        "2 of 4 val images are among train's, 2 of them in its pairs",
    ]
    assert "in train" not in " ".join(check(file, splits=("val",)).notes)


def test_missing_empty_and_undecodable_images(file):
    """train0 is missing, which drops its query; the query's other images are still checked."""
    images = file.parent / "images"
    (images / "train0.png").unlink()
    (images / "val0.png").write_bytes(b"")
    raw = (images / "val1.png").read_bytes()
    (images / "val1.png").write_bytes(raw[:40])
    checked = check(file)
    assert kinds(checked) == [
        ("missing", "train", ("train0",)),
        ("load", "val", ()),
        ("missing", "val", ("val0",)),
        ("undecodable", "", ("val1",)),
    ]
    assert [p.detail for p in checked.problems[:3:2]] == ["train0: no file", "val0: empty file"]
    assert "images/val1.png is not a readable image" in checked.problems[3].detail
    assert checked.images == 3
    (images / "r0.png").unlink()
    with pytest.raises(DataError, match="no query"):  # r0 is the reference of every query
        registry.make("datasets", "triplets", file=file, allow_missing=True)
    (images / "r0.png").write_bytes(raw)
    (images / "train1.png").write_bytes(raw)
    extra = {"reference": "val1", "text": "t", "target": "gone", "split": "train"}
    write_rows(file, [*rows(), extra, {**extra, "split": "val"}])
    assert {("missing", "train", ("gone",)), ("missing", "val", ("gone",))} <= set(kinds(check(file)))


def test_copies_are_found_by_their_pixels(file):
    images = file.parent / "images"
    (images / "val1.png").write_bytes((images / "r0.png").read_bytes())
    Image.open(images / "r0.png").save(images / "train1.webp", lossless=True)  # other bytes, equal pixels
    (images / "train1.png").unlink()
    Image.open(images / "val0.png").resize((4, 16)).save(images / "train0.png")  # equal colour, another shape
    assert kinds(check(file)) == [("duplicate", "", ("r0", "train1", "val1"))]


def test_splits(file):
    assert [s.split for s in check(file, splits=("val",)).splits] == ["val"]
    assert kinds(check(file, splits=("val", "dev"))) == [("load", "dev", ())]
    with pytest.raises(DataError, match="no row of split 'dev'"):
        check(file, splits=("dev",))


def test_counts_against_the_card(tmp_path):
    toys.fashioniq(tmp_path)
    checked = verify("fashioniq", {"root": tmp_path})
    assert {problem.kind for problem in checked.problems} == {"counts"}
    assert Problem("counts", "dress val: 6 gallery, but 3,817 are published", split="val") in checked.problems
    assert [split.split for split in checked.splits if not split.published] == []
    (tmp_path / "image_splits/split.dress.val.json").write_text('["dress-val-0"]')
    checked = verify("fashioniq", {"root": tmp_path})
    [problem] = [p for p in checked.problems if p.kind == "load"]
    assert "target 'dress-val-1' of query dress-val-00000 is not in the gallery" in problem.detail


def test_a_split_that_a_benchmark_does_not_have_is_left_out(tmp_path, monkeypatch):
    toys.mit_states(tmp_path)
    with pytest.raises(OptionError, match="split must be"):
        verify("mit-states", {"root": tmp_path}, splits=("val", "dev"))
    monkeypatch.setattr("negbench.datasets.verify.DEFAULT_SPLITS", ("dev", "val"))
    checked = verify("mit-states", {"root": tmp_path})
    assert (checked.problems, [s.split for s in checked.splits]) == ([], ["val"])
    assert checked.notes == ["dev is left out: split must be one of train, val, test, got 'dev'"]
    assert checked.images == 12


@pytest.mark.parametrize(
    ("name", "as_shown", "says"),
    [
        ("triplets", False, "which is not applied: --set dataset.as_shown=true turns them"),
        ("triplets", True, "are turned as EXIF says"),
        ("cirr", False, "which is not applied"),
    ],
)
def test_pictures_that_viewers_show_otherwise_are_counted(file, tmp_path, name, as_shown, says):
    """By `data verify`, and by whatever loads; a benchmark has no option that applies the orientation."""
    options: dict[str, Any] = {"file": file, "as_shown": as_shown}
    if name == "cirr":
        options = toys.cirr(tmp_path / "cirr")
    images = sorted(file.parent.rglob("*.png")) if name == "triplets" else sorted((tmp_path / "cirr").rglob("*.png"))
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(images[0]) as picture:
        picture.save(images[0], exif=exif)
    (note,) = [note for note in verify(name, options).notes if "EXIF" in note]
    assert note.endswith(f"images are turned by EXIF orientation, {says}" if not as_shown else f"images {says}")
    assert note.startswith("1 of ")
    (remark,) = [remark for remark in registry.make("datasets", name, **options).remarks if "EXIF" in remark]
    assert remark.partition(" images ")[2] == note.partition(" images ")[2]
