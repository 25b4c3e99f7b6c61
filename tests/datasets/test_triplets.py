"""Triplets: equal content in two formats, splits, galleries, paths of images, flaws named by row and column."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from negbench.benchmarks.triplets import Triplets
from negbench.data.scene import DataCache
from negbench.errors import DataError, OptionError
from negbench.files import row_files
from negbench.files.row_files import read_rows
from negbench.files.triplet_files import read_triplets
from negbench.loop.runs import plan_run
from negbench.plugins.registry import build, registry
from negbench.settings.config import PluginConfig
from negbench.systems.system import load_config
from tests.datasets.test_dataset import block_of

Rows = list[dict[str, Any]]


def toy_rows() -> Rows:
    """Return rows of two splits and two groups; the first row of a split has three relevant images."""
    rows: Rows = []
    for split, letter in (("train", "t"), ("val", "v")):
        ids = [f"{letter}{n}.png" for n in range(6)]
        rows += [
            {"reference": ids[0], "text": " is red ", "target": ids[1], "relevant": [ids[2], ids[1], ids[3]],
             "group": "one", "split": split},
            {"reference": ids[1], "text": 'says "x, y"', "target": ids[2], "relevant": None, "group": "one",
             "split": split},
            {"reference": ids[4], "text": "is wide", "target": ids[5], "relevant": None, "group": "two",
             "split": split},
        ]  # fmt: skip
    return rows


def plain_rows(count: int = 20) -> Rows:
    """Return rows without optional columns; two rows share each target."""
    return [{"reference": f"r{n}", "text": f"text {n}", "target": f"i{n // 2}"} for n in range(count)]


def save(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: ";".join(v) if isinstance(v, list) else v for k, v in row.items()})
        path.write_text(text.getvalue(), newline="")
    return path


def load(file: Path, **options: Any) -> Triplets:
    return build(Triplets, file=file, **{"images": False, **options})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save(tmp_path / "pairs.jsonl", toy_rows())


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_queries_and_galleries(tmp_path, kind):
    data = load(save(tmp_path / f"pairs.{kind}", toy_rows()))
    first = data.queries[0]
    assert (first.reference, first.text, first.target, first.group) == ("v0.png", "is red", "v1.png", "one")
    assert first.relevant == ("v1.png", "v2.png", "v3.png")
    assert data.queries[1].text == 'says "x, y"'
    assert data.queries[1].relevant == ()
    assert list(data.groups) == ["one", "two"]
    assert images_of(data, "one") == ["v0.png", "v1.png", "v2.png", "v3.png"]
    assert images_of(data, "two") == ["v4.png", "v5.png"]
    # a query is named by its line (a CSV file has a header)
    assert [q.id for q in data.queries] == (
        ["val-5", "val-6", "val-7"] if kind == "csv" else ["val-4", "val-5", "val-6"]
    )
    assert [q.text for q in load(tmp_path / f"pairs.{kind}", split="train").queries] == [q.text for q in data.queries]
    assert data.remarks == ()
    assert data.extra_images == []


def images_of(data: Triplets, group: str) -> list[str]:
    """Return the gallery of a group."""
    return [data.images[column] for column in data.groups[group].tolist()]


def test_identity_follows_the_bytes_and_not_the_folder(file, tmp_path):
    before = load(file).identity
    assert load(save(tmp_path / "elsewhere/pairs.jsonl", toy_rows())).identity == before
    rows = toy_rows()
    rows[3]["text"] = "is blue"
    assert load(save(file, rows)).identity != before


def test_cells_with_lines_and_lists(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('reference,text,target,relevant,split\r\n\r\na,"two\nlines",b,c; b,val\r\nd,e,f,,val\r\n')
    data = load(path)
    assert data.queries[0].relevant == ("b", "c")
    assert data.queries[0].text == "two\nlines"
    assert [q.id for q in data.queries] == ["val-4", "val-5"]


def test_judged_negatives_and_wordings(tmp_path):
    rows = [
        {"reference": "a", "text": "x", "target": "b", "split": "val", "relevant": ["e"], "wordings": ["y", "z"]}
        | {"judged_wrong": ["c", "d"], "judged_wrong_visual": ["d"]},
        {"reference": "c", "text": "x", "target": "d", "split": "val", "judged_wrong_composed": ["b", "lost"]},
        {"reference": "c", "text": "x", "target": "e", "split": "val"},  # answers the query above, too
        {"reference": "a", "text": "x", "target": "c", "split": "train"},
    ]
    bare = []
    for row in rows:
        bare.append({key: value for key, value in row.items() if not key.startswith(("judged", "word"))})
    data = load(save(tmp_path / "judged.jsonl", rows))
    plain = load(save(tmp_path / "bare.jsonl", bare))
    assert (data.identity, data.images) == (plain.identity, plain.images)
    assert (data.kinds, plain.kinds, plain.wrong_digest) == (("composed", "visual", "unspecified"), (), "")
    assert data.queries[0].wordings == ("y", "z")
    assert [f"{kind} {image}" for kind, image in data.queries[0].wrong] == ["unspecified c", "visual d"]
    table = data.kind_table(torch.arange(3), torch.tensor([data.column_of[image] for image in "abcde"]))
    assert table.tolist() == [[0, 0, 4, 2, 0], [0, 1, 0, 0, 0], [0] * 5]
    (remark,) = (remark for remark in data.remarks if "judged" in remark)
    assert remark.startswith("val: 4 judged negatives of 2 of 3 queries (2 composed, 1 visual, 1 unspecified); 1 are")


def test_judged_negatives_and_wordings_in_cells_of_csv(tmp_path):
    cells = pd.DataFrame(
        [{"reference": "a", "text": "x", "target": "b", "judged_wrong": "c; d", "wordings": '["y"]'}] * 2
    )
    cells["target"] = ["b", "e"]
    cells.to_csv(tmp_path / "cells.csv", index=False)
    row = read_triplets([tmp_path / "cells.csv"]).rows[0]
    assert (row.wrong, row.wordings) == ((("unspecified", "c"), ("unspecified", "d")), ("y",))


@pytest.mark.parametrize(
    ("wrong", "flaw"),
    [
        ({"judged_wrong": ["b"]}, "column 'judged_wrong': 'b' is relevant, too"),
        ({"judged_wrong_visual": ["c"], "judged_wrong_textual": ["c"]}, "_textual': 'c' is visual, too"),
        ({"judged_wrong": "c"}, "column 'judged_wrong': expected a list"),
    ],
)
def test_judged_negatives_that_contradict_themselves(wrong, flaw, tmp_path):
    row = {"reference": "a", "text": "x", "target": "b", "split": "train"}
    with pytest.raises(DataError, match=flaw) as caught:
        load(save(tmp_path / "flawed.jsonl", [{**row, **wrong}]))
    assert "\n" not in str(caught.value)


def test_a_gallery_file(file, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/gallery.txt").write_text("v1.png\nx/y.jpg\r\n\nz\n")
    data = load(file, gallery=tmp_path / "more/gallery.txt")
    assert images_of(data, "two") == ["v4.png", "v5.png", "v1.png", "x/y.jpg", "z"]
    assert len(data.groups["one"]) == 6
    assert data.identity != load(file).identity
    (tmp_path / "more/other.txt").write_text("./v1\nall/v4.jpg\nv9\n")  # the rows' images in other spellings
    data = load(file, gallery=tmp_path / "more/other.txt")
    assert images_of(data, "two") == ["v4.png", "v5.png", "v1.png", "v9"]
    (tmp_path / "more/gallery.txt").write_text("a\n../b\n")
    with pytest.raises(DataError, match=r"gallery\.txt: line 2: '\.\./b' is not a path below the image folder"):
        load(file, gallery=tmp_path / "more/gallery.txt")


def test_groups_are_columns_of_the_results(tmp_path, subtests):
    """Nine queries of `big` rank third, the only one of `small` first; more than twelve groups stay together."""
    rows = []
    for group in ["big"] * 9 + ["small"]:
        number = len(rows)
        pair = {"reference": f"{group}r{number}", "text": "x", "target": f"{group}t{number}"}
        rows.append({**pair, "group": group, "split": "val"})
    data = load(save(tmp_path / "a.jsonl", rows))
    scores = torch.zeros(10, len(data.images))
    scores[torch.arange(10), data.target_columns] = torch.tensor([-1.0] * 9 + [1.0])
    measured = data.evaluate(scores)
    assert tuple(measured) == data.card.metrics
    assert {name: measured[name] for name in measured if name.endswith("recall_at_1")} == pytest.approx(
        {"recall_at_1": 0.1, "big/recall_at_1": 0, "small/recall_at_1": 1, "average/recall_at_1": 0.5}
    )
    (part,) = data.per_query(data.rank(block_of(scores)), ["average/recall_at_1"]).values()
    assert sorted(set(part.strata)) == ["big", "small"]
    many = [{**rows[0], "reference": f"r{n}", "target": f"t{n}", "group": f"g{n}"} for n in range(13)]
    plain = ("recall_at_1", "recall_at_5", "recall_at_10", "recall_at_50")
    assert load(save(tmp_path / "b.jsonl", many)).card.metrics == plain
    assert len(load(save(tmp_path / "c.jsonl", many[:12])).card.metrics) == 14 * len(plain)
    for group in ("average", None):  # the other columns' names
        with subtests.test(group=group), pytest.raises(DataError, match="has the name of a column of the results"):
            load(save(tmp_path / "e.jsonl", [*rows, {**rows[0], "reference": "r", "group": group}]))
    for row in many:
        del row["group"]
    assert load(save(tmp_path / "d.jsonl", many)).card.metrics == plain


# --- splits ------------------------------------------------------------------------------------------------------


def test_a_file_without_splits_is_split_by_target(tmp_path):
    fraction = 0.3
    path = save(tmp_path / "a.jsonl", plain_rows())
    train = load(path, split="train", val_fraction=fraction)
    val = load(path, split="val", val_fraction=fraction)
    assert len(val.queries) == round(fraction * 20)
    assert len(train.queries) + len(val.queries) == 20
    assert not {q.target for q in train.queries} & {q.target for q in val.queries}
    assert load(path, val_fraction=fraction).queries == val.queries
    drawn = [load(path, val_fraction=fraction, seed=seed) for seed in range(6)]
    assert len({tuple(query.id for query in data.queries) for data in drawn}) > 1
    assert len({data.identity for data in drawn}) == 6
    with pytest.raises(OptionError, match=r"split must be train or val \(a\.jsonl has no column 'split'\), got 'test'"):
        load(path, split="test")
    with pytest.raises(DataError, match="all rows have the same target"):
        load(save(path, plain_rows(2)))
    with pytest.raises(DataError, match=r"no row of split 'test': it has 'train', 'val'"):
        load(save(path, toy_rows()), split="test")


# --- metrics -----------------------------------------------------------------------------------------------------


def test_the_excluded_reference_is_no_target(tmp_path):
    path = save(tmp_path / "a.jsonl", [{"reference": "a", "text": "x", "target": "a", "split": "val"}])
    assert load(path).queries[0].target == "a"
    with pytest.raises(DataError, match=r"line 1, column 'target': is the reference"):
        load(path, exclude_reference=True)


# --- images ------------------------------------------------------------------------------------------------------


def test_images_by_path_and_by_name(subtests, tmp_path, standin):
    standin.write_images(tmp_path / "data/x/y", ["a", "b", "deep"])
    standin.write_images(tmp_path / "pool", ["c", "d.v2"])
    rows = [
        {"reference": "./x/y/a.png", "text": "t", "target": "x/y/b", "split": "val"},  # path, path without extension
        {"reference": "c.png", "text": "t", "target": "d.v2", "split": "val"},  # below root
        {"reference": "deep", "text": "t", "target": "c", "split": "val"},
    ]
    file = save(tmp_path / "data/pairs.jsonl", rows)
    with pytest.raises(DataError, match=r"'c\.png' and 'c' are one image, .*pool/c\.png: write one name for it"):
        build(Triplets, file=file, root=tmp_path)
    file = save(file, [*rows[:2], {**rows[2], "target": "c.png"}])
    data = build(Triplets, file=file, root=tmp_path)
    assert data.images[0] == "x/y/a.png"
    for image, stem in (("x/y/a.png", "a"), ("x/y/b", "b"), ("c.png", "c"), ("d.v2", "d.v2"), ("deep", "deep")):
        with subtests.test(image=image, stem=stem):
            assert data.open_image(image).tobytes() == bytes(standin.color_of(stem)) * 64
    with pytest.raises(DataError, match=r"2 of 5 images are missing below .*: c\.png \(no file\), d\.v2 \(no file\)"):
        build(Triplets, file=file)  # the file's own folder
    part = build(Triplets, file=file, allow_missing=True)
    assert (len(part.queries), part.partial) == (1, True)
    standin.write_images(tmp_path / "other", ["deep"])
    (tmp_path / "other/deep.png").write_bytes(b"another")
    with pytest.raises(DataError, match="image 'deep' is ambiguous"):
        build(Triplets, file=file, root=tmp_path)


def test_an_image_outside_the_folder_is_refused(tmp_path, standin, subtests):
    standin.write_images(tmp_path, ["secret"])
    for value in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png", "..", "..\\secret.png"):
        with subtests.test(value=value):
            file = save(tmp_path / "in/a.jsonl", [{"reference": "r", "text": "t", "target": value, "split": "val"}])
            with pytest.raises(DataError, match=r"line 1, column 'target': .* is not a path below the image folder"):
                build(Triplets, file=file)


def test_which_file(tmp_path):
    with pytest.raises(OptionError, match=r"file must be given: name FILE\.jsonl \(\.csv\) instead of triplets"):
        registry.make("datasets", "triplets")
    with pytest.raises(OptionError, match=r"file must end in \.jsonl, \.json, \.csv, \.tsv, \.parquet, got '"):
        load(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.csv is missing"):
        load(tmp_path / "a.csv")
    path = save(tmp_path / "a.jsonl", toy_rows())
    assert registry.make("datasets", "triplets", file=str(path), images=False).identity == load(path).identity
    cache = DataCache()
    section = PluginConfig(name="triplets", file=str(path))
    first = cache.dataset(section, "val", images=False)
    assert cache.dataset(section, "val", images=False) is first
    save(path, toy_rows()[:-1])
    assert len(cache.dataset(section, "val", images=False).queries) == len(first.queries) - 1  # changed: read again


def test_a_run_depends_on_judgements_only_if_its_rule_reads_them(subtests, tmp_path, standin):
    rows = toy_rows()
    images = [*(row["reference"] for row in rows), *(row["target"] for row in rows), "t3.png", "v3.png"]
    standin.write_images(tmp_path, {Path(image).stem for image in images})
    plain = save(tmp_path / "plain.jsonl", rows)
    for row in rows:
        if row["reference"] == "t1.png":
            row["judged_wrong"] = ["t5.png"]
    judged = save(tmp_path / "judged.jsonl", rows)

    def hash_of(strategy: str, file: Path) -> str:
        flags = {"strategy": {"name": strategy}, "dataset": {"name": "triplets", "file": str(file)}}
        config = load_config(flags=flags, sets=["backbone.name=tiny", "backbone.weights=random"])
        return plan_run(config, DataCache()).hash

    for strategy, reads in (("qure", False), ("oracle-kind", True)):
        with subtests.test(strategy=strategy, reads=reads):
            assert (hash_of(strategy, plain) != hash_of(strategy, judged)) == reads


LONG: dict[str, tuple[str, list[Any]]] = {
    "a cell of 12,000 names": ("reference,negatives\na,{}\n", [";".join(f"image-{n:05d}" for n in range(12_000))]),
    "such a cell with quotes": ('reference;negatives\na;"{}"\n', [";".join(f"image-{n:05d}" for n in range(12_000))]),
    "a header of 15,000 columns": (
        "{}\n{}\n",
        [",".join(f"column{n:06d}" for n in range(15_000)), ",".join("1" * 15_000)],
    ),
}


@pytest.mark.parametrize("case", LONG)
def test_long_cells_and_lines_are_read(tmp_path, case):
    """Python's csv module alone stops at 131,072 characters, also of a line that another separator would not divide."""
    form, parts = LONG[case]
    (tmp_path / "t.csv").write_text(form.format(*parts), encoding="utf-8")
    (row,) = read_rows(tmp_path / "t.csv")
    if "negatives" in form:
        assert row.entries("negatives", row.values["negatives"]) == parts[0].split(";")
    else:
        assert len(row.values) == 15_000
    assert csv.field_size_limit() == 131_072


def test_a_cell_that_is_really_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "_LONGEST", 1000)
    (tmp_path / "t.csv").write_text('a,b\n1,2\n3,"' + "x" * 2000 + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.csv: line 3: a cell has more than 1,000 characters: close the quote"):
        read_rows(tmp_path / "t.csv")
