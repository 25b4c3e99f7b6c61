"""Forms in which people have triplets: files, columns, splits, images; and what is refused, by name."""

import gzip
import io
import json
import re
import tomllib
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from negbench.benchmarks.triplets import Triplets
from negbench.errors import DataError, OptionError
from negbench.files.row_files import at, read_rows, unwritten
from negbench.own import init
from negbench.own.init import inspect_folder
from negbench.plugins.registry import build
from negbench.scoring.scorers import train_queries_in
from negbench.settings.config import PluginConfig

ROWS = [{"reference": f"r{n}", "text": f"in red {n}", "target": f"t{n}", "split": "val"} for n in range(3)]
FORMS = tomllib.loads((Path(__file__).parents[1] / "golden" / "forms.toml").read_text(encoding="utf-8"))
WANT = [(row["reference"], row["text"], row["target"]) for row in ROWS]


def load(file: Path | list[Path], columns: str = "", split: str = "val", **options: Any) -> Triplets:
    file_or_files = tuple(file) if isinstance(file, list) else file
    return build(Triplets, file=file_or_files, columns=columns, split=split, **{"images": False, **options})


def frame(**changes: Any) -> pd.DataFrame:
    """Return the first row with other values."""
    return pd.DataFrame([{**ROWS[0], **changes}])


def write(path: Path, content: Any) -> Path:
    """Write a text or bytes as they are, a list as JSON, a frame as its ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pd.DataFrame):
        content.to_parquet(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def triples(data: Triplets) -> list[tuple[str, str, str | None]]:
    return [(query.reference, query.text, query.target) for query in data.queries]


LINES = "\n".join(map(json.dumps, ROWS))
ARRAYS = [[*row.values()] for row in ROWS]
NO_SPLIT = pd.DataFrame(ROWS).drop(columns="split").to_dict("records")
INDICES = "reference=[0],text=[1],target=[2],split=[3]"
FILES: dict[str, tuple[str, Any, str]] = {
    "array": ("a.json", ROWS, ""),
    "indented array": ("a.json", json.dumps(ROWS, indent=1), ""),
    "array under another ending": ("a.jsonl", ROWS, ""),
    "indented array under another ending": ("a.jsonl", json.dumps(ROWS, indent=1), ""),
    "lines under another ending": ("a.json", LINES, ""),
    "objects by key": ("a.json", {f"q{n}": row for n, row in enumerate(ROWS)}, ""),
    "array within an object": ("a.json", {"version": 1, "data": ROWS}, ""),
    "arrays by split": ("a.json", {"Val": NO_SPLIT, "test": NO_SPLIT}, ""),
    "columns of lists": ("a.json", pd.DataFrame(ROWS).to_dict("list"), ""),
    "columns by row": ("a.json", pd.DataFrame(ROWS).to_json(), ""),
    "arrays as rows": ("a.jsonl", "\n".join(map(json.dumps, ARRAYS)), INDICES),
    "tabs": ("a.TSV", "\ufeff" + pd.DataFrame(ROWS).to_csv(index=False, sep="\t").replace("\n", "\r\n"), ""),
    "bars": ("a.csv", pd.DataFrame(ROWS).to_csv(index=False, sep="|"), ""),
    "no header": ("a.csv", "\n".join(";".join(row) for row in ARRAYS), "reference=0,text=1,target=2,split=3"),
    "numbers as a header": ("a.csv", pd.DataFrame(ARRAYS).to_csv(index=False), "reference=0,text=1,target=2,split=3"),
    "parquet": ("a.parquet", pd.DataFrame(ROWS), ""),
    "categories": ("a.parquet", pd.DataFrame(ROWS).astype("category").set_index("text"), ""),
    "lists of objects": ("a.parquet", pd.DataFrame(ROWS).assign(target=[[{"path": row[2]}] for row in WANT]), ""),
    "pairs": ("a.json", [{**row, "reference": [7, row["reference"]]} for row in ROWS], "reference=reference[1]"),
    "objects": ("a.parquet", pd.DataFrame(ROWS).assign(target=[{"bytes": None, "path": row[2]} for row in WANT]), ""),
    "a path": ("a.json", [{**row, "q": {"ref": row["reference"]}, "reference": 1} for row in ROWS], "reference=q.ref"),
    "a text of a list": ("a.csv", pd.DataFrame([{**row, "target": str([row["target"]])} for row in ROWS]).to_csv(), ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FILES)
def test_every_form_holds_the_same_triplets(tmp_path, form):
    name, content, columns = FILES[form]
    data = load(write(tmp_path / name, content), columns)
    assert triples(data) == WANT
    assert len({query.id for query in data.queries}) == 3
    assert [remark for remark in data.remarks if "none of train, val and test" in remark] == []


def test_ids_of_other_rows_lead_to_paths(tmp_path):
    write(tmp_path / "pool/c.jsonl", "\n".join(json.dumps({"did": n, "path": f"t{n}"}) for n in range(3)))
    file = write(tmp_path / "q/a.json", [{**row, "target": [n]} for n, row in enumerate(ROWS)])
    data = load(file, "paths=../pool/c.jsonl:did:path")
    assert triples(data) == WANT
    write(tmp_path / "pool/c.jsonl", '{"did": 0, "path": "else"}')
    assert load(file, "paths=../pool/c.jsonl:did:path").identity != data.identity
    write(tmp_path / "pool/c.jsonl", '{"did": 0, "path": "a"}\n{"did": 0, "path": "b"}')
    with pytest.raises(DataError, match="line 2: '0' is 'a' in another row"):
        load(file, "paths=../pool/c.jsonl:did:path")
    write(tmp_path / "pool/c.jsonl", '{"did": 0, "path": "else"}')
    with pytest.raises(DataError, match=r"no column 'img' for paths \(it has did, path\)"):
        load(file, "paths=../pool/c.jsonl:did:img")


def test_lists(subtests, tmp_path):
    rows = [{**ROWS[0], "text": ["is Red.", "has a belt"], "target": ["t0", "t1"], "more": ["t2"]}, ROWS[1]]
    for name, content in (("a.json", rows), ("a.csv", pd.DataFrame(rows).to_csv(index=False))):
        with subtests.test(name=name):
            first, second = load(write(tmp_path / name, content)).queries
            assert (first.text, first.captions) == ("Is red and has a belt", ("is Red.", "has a belt"))
            assert (first.target, first.relevant, second.relevant) == ("t0", ("t0", "t1"), ())
            assert load(tmp_path / name, "relevant=more").queries[0].relevant == ("t0", "t1", "t2")
    joined = pd.DataFrame(rows).assign(target=["t0;t1", "t1"])
    assert load(write(tmp_path / "b.csv", joined.to_csv(index=False))).queries[0].relevant == ("t0", "t1")


def test_a_text_is_a_list_if_it_reads_as_one():
    assert unwritten("['a' 'b']") == "['a' 'b']"
    assert at({"a": "[4, 5]"}, "a[1]") == 5


def test_a_column_comes_before_a_path_of_its_name():
    assert at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_numbers_are_texts_without_a_decimal_point(tmp_path):
    csv = "qid,reference,target,text,split\nx,1,2.0,red,val\ny,3,4.0,red,val\n"
    data = load(write(tmp_path / "a.csv", csv), "id=qid")
    assert [(query.id, query.reference, query.target) for query in data.queries] == [("x", "1", "2"), ("y", "3", "4")]
    with pytest.raises(DataError, match="line 3, column 'target' is missing"):
        load(write(tmp_path / "a.csv", csv.replace("4.0", "")), "id=qid")


def test_a_column_of_ids_is_used_if_they_differ(tmp_path):
    csv = "id,reference,target,text,split\nx,1,2.0,red,val\ny,3,4.0,red,val\n"
    assert [query.id for query in load(write(tmp_path / "a.csv", csv)).queries] == ["x", "y"]
    data = load(write(tmp_path / "a.csv", csv.replace("\ny", "\nx")))
    assert [query.id for query in data.queries] == ["val-2", "val-3"]
    assert data.remarks == ("a.csv: unused columns: 'id'",)


REFUSED: dict[str, tuple[str, Any, str, str]] = {  # FORMS has those that are text
    "bytes": ("a.parquet", frame(reference={"bytes": b"x", "path": "p"}), "", "holds a picture"),
    "Latin": ("a.csv", "reference,text,target\na,größer,c".encode("cp1252"), "", "seems to be CP1252: iconv -f CP1252"),
    "Japanese": ("a.csv", "reference,text,target\na,もっと長く,c".encode("shift_jis"), "", "seems to be SHIFT_JIS"),
    "Excel's": ("a.csv", "reference,text,target\na,b,ü".encode("utf-16"), "", "seems to be UTF-16"),
    "four bytes": ("a.csv", "reference,text,target\na,b,ü".encode("utf-32"), "", "seems to be UTF-32"),
    "a workbook": ("a.csv", b"PK\3\4\x14\0\xff", "", "begins as .xlsx or .zip files do: give it that ending"),
    "compressed": ("a.jsonl", gzip.compress(b"{}"), "", "begins as .gz files do"),
    "a parquet file": ("a.csv", b"PAR1\x15\xff", "", "begins as .parquet files do"),
    "no parquet": ("a.parquet", b"PAR1", "", "cannot be read as parquet"),
    "not UTF-8": ("a.jsonl", b'{"reference": "\xff"}', "", r"is not UTF-8 \(byte 15\) but seems to be CP1252: iconv"),
}  # fmt: skip


def test_what_is_refused_says_why(subtests, tmp_path):
    for name, content, columns, message in (*FORMS["refused"].values(), *REFUSED.values()):
        with subtests.test(name=name):
            with pytest.raises(DataError, match=message) as error:
                load(write(tmp_path / name, content), columns)
            assert "\n" not in str(error.value)


def test_the_mapped_column_wins_wherever_it_stands(subtests, tmp_path):
    row = {**ROWS[0], "text": "no", "caption": "yes"}
    for order, columns in (("after", row), ("before", dict(reversed(row.items())))):
        with subtests.test(order=order):
            data = load(write(tmp_path / "a.json", [columns]), "text=caption")
            assert data.queries[0].text == "yes"
            assert data.remarks == ("a.json: unused columns: 'text'",)


def test_a_column_is_mapped_once(tmp_path):
    with pytest.raises(OptionError, match="each once"):
        load(write(tmp_path / "a.json", ROWS), "text=caption,text=text")


def test_likely_mistakes_are_remarked(tmp_path):
    lines = [
        "reference,text,target,split",
        "7,red,8,val",
        "8,red,x,val",
        "8,red,x,val",
        "9,red,9,val",
        "9,red,7,val",
        "a,red,c,trian",
        "a,red,c,trian",
        "a,red,c,dev",
    ]
    file = write(tmp_path / "a.csv", "\n".join(lines))
    assert load(file).remarks[:3] == (
        "a.csv: 3 of 8 triplets are in none of train, val and test: 'trian' (2), 'dev' (1)",
        "a.csv: 1 of 5 val triplets are duplicates",
        "a.csv: in 1 val triplets the target is the reference itself",
    )
    assert load(file, split="dev").remarks[0].endswith("in none of train, val and test: 'trian' (2)")


@pytest.mark.parametrize("columns", ["reference", "reference=", "image=ref"])
def test_columns_are_pairs_of_our_names_and_theirs(tmp_path, columns):
    file = write(tmp_path / "a.json", ROWS)
    with pytest.raises(OptionError, match="columns must be OURS=THEIRS with commas between"):
        load(file, columns)


def test_columns_with_other_names_can_be_named(tmp_path):
    write(tmp_path / "a.csv", "ref;caption;target\na;b;c\nd;e;x\\y")
    assert "name them with --columns reference=NAME,text=NAME " in inspect_folder(tmp_path).missing[0]
    scan = inspect_folder(tmp_path, "reference=ref, text=caption")
    assert scan.triplets is not None
    assert scan.triplets[1].rows[1].target == "x/y"


# --- splits ------------------------------------------------------------------------------------------------------


def bare(count: int, letter: str = "t") -> list[dict[str, str]]:
    """Return rows without a split."""
    return [{"reference": f"r{n}", "text": "x", "target": f"{letter}{n}"} for n in range(count)]


def in_both_splits(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return each row for train, and once more for val."""
    both = []
    for row in rows:
        both += [{**row, "split": "train"}, {**row, "split": "val"}]
    return both


def numbered(names: Iterable[str], count: int) -> list[str]:
    """Return each name with the numbers from 0."""
    return [f"{name}{number}" for name, number in product(names, range(count))]


@pytest.mark.parametrize(("files", "want"), FORMS["splits"])
def test_names_of_files_are_splits(tmp_path, monkeypatch, files, want):
    monkeypatch.setattr(init, "audit", lambda *_: SimpleNamespace(window=""))  # which takes a second
    for name, count in files.items():
        write(tmp_path / name, bare(count, name))
    write_vectors(tmp_path, "npz", "ids", numbered(("r", *files), 4))
    write_vectors(tmp_path, "npz", "texts", ["x"])
    scan = inspect_folder(tmp_path)
    if isinstance(want, str):
        assert want in scan.missing[0]
    else:
        assert (scan.missing, (scan.train, scan.val)) == ([], tuple(want))


def test_files_whose_column_says_one_split_are_read_together(tmp_path):
    for name, split in (("a.json", "train"), ("b.json", "dev")):
        write(tmp_path / name, [{**row, "split": split} for row in bare(4, name)])
    scan = inspect_folder(tmp_path)
    assert scan.triplets is not None
    assert (len(scan.triplets[0]), scan.triplets[1].splits) == (2, ["train", "val"])


def test_mined_files_are_taken_last(tmp_path):
    write(tmp_path / "all.json", [{**row, "negatives": ["r0"]} for row in ROWS])
    write(tmp_path / "mine.json", ROWS)
    scan = inspect_folder(tmp_path)
    assert scan.triplets is not None
    assert [file.name for file in scan.triplets[0]] == ["mine.json"]
    assert scan.present[1].startswith("all.json: triplets with negatives, as `negbench mine` writes them")


@pytest.mark.parametrize("name", ["validation", "valid", "dev", "VAL", "Dev"])
def test_a_split_by_any_name_is_val(tmp_path, name):
    rows = [{**ROWS[0], "split": "Train"}, {**ROWS[1], "split": name}]
    file = write(tmp_path / "a.json", rows)
    assert [triples(load(file, split=split)) for split in ("train", "val")] == [WANT[:1], WANT[1:2]]
    write(tmp_path / "a.json", [*rows, {**ROWS[2], "split": "val"}])
    if name.lower() in ("dev", "val"):
        assert triples(load(file))[-1:] == WANT[2:]
    else:
        with pytest.raises(DataError, match=r"'val' \(.*row 3\) and .* both name the split val"):
            load(file)


def targets_in(file: Path, split: str) -> set[str | None]:
    return {query.target for query in load(file, split=split).queries}


def test_a_row_more_moves_no_other(subtests, tmp_path):
    rows = bare(40)
    of_all = write(tmp_path / "all.json", rows)
    train = targets_in(of_all, "train")
    val = targets_in(of_all, "val")
    for count in range(30, 40):
        with subtests.test(count=count):
            file = write(tmp_path / "a.json", rows[:count])
            targets = {row["target"] for row in rows[:count]}
            assert targets_in(file, "train") == train & targets
            assert targets_in(file, "val") == val & targets
            assert targets_in(file, "train") | targets_in(file, "val") == targets


def test_a_share_of_the_rows_is_val(tmp_path):
    count = len(load(write(tmp_path / "b.json", bare(2000)), val_fraction=0.3).queries)
    assert abs(count - 600) < 4 * (2000 * 0.3 * 0.7) ** 0.5  # a binomial count
    assert len(load(write(tmp_path / "train.json", bare(2))).queries) == 1


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """Return a run that was trained on the train split of a.json."""
    file = write(tmp_path / "a.json", in_both_splits(bare(6)))
    config = SimpleNamespace(dataset=PluginConfig(name="triplets", file=str(file)))
    return SimpleNamespace(config=config, manifest={"dataset": {"train": load(file, split="train").identity}})


def test_evaluate_counts_the_queries_of_training(trained, tmp_path):
    three = in_both_splits(bare(3))
    other = load(write(tmp_path / "b.json", [*three, *ROWS]))
    (remark,) = train_queries_in(trained, other)
    assert remark == "3 of these 6 queries are in the run's train split"
    assert train_queries_in(trained, load(write(tmp_path / "b.json", ROWS))) == ()


def test_queries_of_training_are_found_whatever_their_spelling(trained, tmp_path):
    three = in_both_splits(bare(3))
    spelled = []
    for row in three:
        spelled.append({**row, "reference": f"all/{row['reference']}.jpg", "target": f"./{row['target']}"})
    remarks = train_queries_in(trained, load(write(tmp_path / "b.json", three)))
    assert remarks != ()
    assert train_queries_in(trained, load(write(tmp_path / "b.json", spelled))) == remarks


def test_evaluate_says_if_the_file_of_training_changed_or_is_gone(trained, tmp_path):
    other = load(write(tmp_path / "b.json", [*in_both_splits(bare(3)), *ROWS]))
    file = write(tmp_path / "a.json", in_both_splits(bare(6)[1:]))
    (remark,) = train_queries_in(trained, other)
    assert remark == "2 of these 6 queries are in the run's train split, whose file has changed since"
    file.unlink()
    (remark,) = train_queries_in(trained, other)
    assert remark.startswith("not known whether the run was trained on these queries")


# --- images ------------------------------------------------------------------------------------------------------


def picture(path: Path, size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 255, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_full_paths_and_paths_upwards_lie_below_the_folder(subtests, tmp_path):
    picture(tmp_path / "d/images/x.png")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    for value in (
        f"{tmp_path}/d/images/x.png",
        f"{tmp_path}/link/images/x.png",
        "../images/x.png",
        f"{tmp_path}\\d\\images\\x.png",
    ):
        with subtests.test(value=value):
            file = write(tmp_path / "d/ann/a.json", [{**ROWS[0], "reference": value, "target": value}])
            assert load(file, root=tmp_path / "d", images=True).images == ["images/x.png"]
    with pytest.raises(DataError, match="is not a path below the image folder"):
        load(file, root=tmp_path / "d/ann")


def test_numbers_match_padded_names_if_one_fits(tmp_path, subtests):
    for name in ("000000000017", "COCO_val_000000000018", "x19", "0020", "00020"):
        picture(tmp_path / f"images/{name}.png")
    file = write(tmp_path / "a.json", [{**ROWS[0], "reference": 17, "target": 18.0}])
    data = load(file, images=True)
    assert [path.name for path in data.image_paths().values()] == ["000000000017.png", "COCO_val_000000000018.png"]
    for number in (19, 20):  # no padding; two
        with (
            subtests.test(number=number),
            pytest.raises(DataError, match=rf"images are missing .*{number} \(no file\); 1 of 1 val queries"),
        ):
            load(write(tmp_path / "a.json", [{**ROWS[0], "reference": 17, "target": number}]), images=True)


def write_pictures(folder: Path) -> tuple[set[str], set[str]]:
    """Write pictures, and return the names of sound and of damaged ones."""
    png = picture(folder / "sound.png", 64).read_bytes()
    jpg = picture(folder / "sound.jpg", 64).read_bytes()
    webp = picture(folder / "sound.webp", 64).read_bytes()
    sound = {"sound.png": png, "sound.jpg": jpg, "sound.webp": webp, "tail.jpg": jpg + b"\0\0", "jpg.png": jpg}
    damaged = {
        "page.png": b"<html>",
        "half.png": png[:-900],
        "bytes.png": png[:900] + b"????" + png[904:],
        "half.jpg": jpg[:-900],
        "half.webp": webp[:-90],
        "middle.jpg": jpg[:900] + b"\xff\xd8" + jpg[902:],
    }
    for name, content in (sound | damaged).items():
        (folder / name).write_bytes(content)
    return set(sound), set(damaged)


def test_pictures_that_cannot_be_decoded_are_missing(tmp_path):
    sound, damaged = write_pictures(tmp_path / "images")
    rows = [{**ROWS[0], "reference": f"images/{name}", "target": "images/sound.png"} for name in sound | damaged]
    file = write(tmp_path / "a.json", rows)
    data = load(file, images=True, allow_missing=True)
    assert {query.reference for query in data.queries} == {f"images/{name}" for name in sound}
    assert {*data.missing} == {f"images/{name}" for name in damaged}
    assert load(file, images=True).missing == ()
    write(tmp_path / "a.json", in_both_splits(rows))
    (problem, _) = inspect_folder(tmp_path).missing
    assert "6 of 11 images cannot be decoded" in problem
    assert "; 6 of 11 train queries have one as reference or target" in problem
    assert inspect_folder(tmp_path, "", True).comparable


# --- embeddings --------------------------------------------------------------------------------------------------


def write_vectors(folder: Path, kind: str, role: str, names: list[str]) -> None:
    rows = np.random.default_rng(0).normal(size=(len(names), 4)).astype(np.float32)
    if kind == "parquet":
        pd.DataFrame({role: names, "vector": list(rows)}).to_parquet(folder / f"{role}.parquet")
    elif kind == "npy":
        np.save(folder / f"{role}.npy", rows)
        (folder / f"{role}.txt").write_text("\n".join(names) + "\n")
    else:
        np.savez(folder / f"{role}.npz", features=rows, **{role: np.array(names)})


@pytest.mark.parametrize(("kind", "spelled"), [("npz", "{}"), ("npy", "./dev/{}.JPG"), ("parquet", r"all\{}.png")])
def test_embeddings_of_any_form_and_those_that_are_absent(tmp_path, kind, spelled):
    rows = in_both_splits(bare(6))
    write(tmp_path / "a.json", rows)
    write_vectors(tmp_path, kind, "ids", [spelled.format(name) for name in numbered("rt", 6)])
    write_vectors(tmp_path, kind, "texts", ["x"])
    scan = inspect_folder(tmp_path)
    assert scan.missing == []
    assert {role: file.suffix for role, file in scan.vectors.items()} == {"images": f".{kind}", "texts": f".{kind}"}
    write(tmp_path / "a.json", [*rows, {**rows[0], "reference": "gone", "text": "y"}])
    of_images, of_texts, *_ = inspect_folder(tmp_path).missing  # both at once
    assert "lacks 1 images, the first: 'gone'" in of_images
    assert "1 of 7 train queries have one as reference or target" in of_images
    assert "lacks 1 texts, the first: 'y'" in of_texts
    scan = inspect_folder(tmp_path, "", True)
    assert (scan.missing, scan.train) == ([], 6)


def test_what_was_seen_is_named_with_the_line_that_converts_it(tmp_path):
    of_tensor = "np.savez('c.npz', ids=names, features=torch.load('c.pt').numpy())"
    of_dict = "of a dict of names and vectors, ids=[*d], features=torch.stack([*d.values()]).numpy()"
    lines = {
        "a.tar": "tar xf a.tar",
        "B.TAR.GZ": "tar xf B.TAR.GZ",
        "d.csv.gz": "gunzip d.csv.gz",
        "e.zst": "unzstd",
        "b.xlsx": "pandas.read_excel('b.xlsx').to_json('b.jsonl'",
        "texts.pt": "np.savez('texts.npz', texts=names",
        "c.pt": f"{of_tensor}; {of_dict}",
    }
    for name in lines:
        (tmp_path / name).write_bytes(b"x")
    (problem, _) = inspect_folder(tmp_path).missing
    for name, line in lines.items():
        assert f"; {name}: {line}" in problem, name


def test_tables_of_embeddings_and_of_pictures_are_named_with_the_line_that_converts_them(tmp_path, monkeypatch):
    write(tmp_path / "t.json", bare(6))
    numbers = pd.DataFrame(np.arange(12.0).reshape(3, 4), index=["a", "b", "c"])
    numbers.to_csv(tmp_path / "vectors.csv")
    pictures = []
    for shade in range(2):
        file = io.BytesIO()
        Image.new("RGB", (2, 2), (shade, 0, 0)).save(file, "png")
        pictures.append(file.getvalue())
    cells = [{"bytes": content, "path": None} for content in pictures]
    pd.DataFrame({"image": cells}).to_parquet(tmp_path / "shard.parquet")
    (problem,) = inspect_folder(tmp_path).missing
    line = re.search(r"vectors\.csv: (t = .*?\.to_numpy\(\)\))", problem)[1]
    monkeypatch.chdir(tmp_path)
    exec(line, {"np": np, "pandas": pd})
    with np.load(tmp_path / "vectors.npz") as arrays:
        assert arrays["ids"].tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(arrays["features"], numbers)
    line = re.search(r"shard\.parquet has pictures in its column 'image': (for k, .*?\['bytes'\]\))", problem)[1]
    exec(line, {"pandas": pd})
    assert [(tmp_path / "0.png").read_bytes(), (tmp_path / "1.png").read_bytes()] == pictures


def test_tables_that_belong_together_are_named_with_the_line_that_joins_them(tmp_path):
    write(tmp_path / "q.csv", "image,change,instance\na,red,1")
    write(tmp_path / "pool.jsonl", '{"file": "t", "instance": 1}')
    line = inspect_folder(tmp_path).missing[-2]
    assert "pool.jsonl and q.csv share the column 'instance'" in line
    joined = pd.read_json(tmp_path / "pool.jsonl", lines=True).merge(pd.read_csv(tmp_path / "q.csv"), on="instance")
    assert "pandas.read_json('pool.jsonl', lines=True).merge(pandas.read_csv('q.csv'), on='instance').to_json(" in line
    assert [*joined] == ["file", "instance", "image", "change"]


def test_rows_say_where_they_stand(subtests, tmp_path):
    for name, content, end in (("a.csv", "a,b\n\n1,2\n", "line 3"), ("a.json", [{"a": 1}], "row 1")):
        with subtests.test(name=name, end=end):
            (row,) = read_rows(write(tmp_path / name, content))
            assert (row.where, row.number) == (f"{tmp_path / name}: {end}", int(end[-1]))
    file = write(tmp_path / "b.csv", "a;b;x, y, z, w\nc;d;x")
    assert [[*row.values.values()] for row in read_rows(file, header=False)] == [
        ["a", "b", "x, y, z, w"], ["c", "d", "x"]]  # fmt: skip
