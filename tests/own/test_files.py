"""Triplet files as users have them: other separators and column names, numbers as ids, Windows paths."""

from pathlib import Path

import pytest

from negbench.datasets.triplets import Triplets
from negbench.errors import OptionError
from negbench.own.init import inspect_folder
from negbench.plugins.registry import build

ROWS = [("7", "in red", "8"), ("8", "in red", "x\\y"), ("8", "in red", "x\\y"), ("9", "blue", "9"), ("9", "red", "7")]


def written(path: Path, separator: str = ",", header: str = "reference,text,target") -> Path:
    lines = [header.replace(",", separator), *(separator.join(row) for row in ROWS)]
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


def triples(file: Path, columns: str = "") -> list[tuple[str, str, str | None]]:
    data = [build(Triplets, file=file, images=False, columns=columns, split=split) for split in ("train", "val")]
    return sorted((query.reference, query.text, query.target) for each in data for query in each.queries)


def test_files_are_read_as_people_have_them(tmp_path):
    want = sorted((one, text, other.replace("\\", "/")) for one, text, other in ROWS)
    for separator in (",", ";", "\t"):
        assert triples(written(tmp_path / "a.csv", separator)) == want
        other = written(tmp_path / "b.csv", separator, "ref,caption,target")
        assert triples(other, "reference=ref, text=caption") == want
    numbers = [f'{{"ref": {one}, "text": "{text}", "target": 7}}' for one, text, _ in ROWS]
    (tmp_path / "c.jsonl").write_text("\n".join([*numbers, '{"ref": 7, "text": "more", "target": 8}']))
    assert triples(tmp_path / "c.jsonl", "reference=ref")[0] == ("7", "in red", "7")
    for columns in ("reference", "reference=", "image=ref"):
        with pytest.raises(OptionError, match="columns must be OURS=THEIRS with commas between"):
            triples(other, columns)


def test_likely_mistakes_are_remarked(tmp_path):
    file = written(tmp_path / "a.csv")
    splits = ["split", "val", "val", "val", "val", "val", "trian", "trian", "dev"]
    lines = [*file.read_text().split("\n"), "a,b,c", "a,b,c", "a,b,c"]
    file.write_text("\n".join(f"{line},{split}" for line, split in zip(lines, splits, strict=True)))
    remarks = build(Triplets, file=file, images=False).remarks
    assert remarks == (
        "a.csv: 3 of 8 triplets are in none of train, val and test: 'trian' (2), 'dev' (1)",
        "a.csv: 1 of 5 val triplets are duplicates",
        "a.csv: in 1 val triplets the target is the reference itself",
    )
    dev = build(Triplets, file=file, images=False, split="dev")
    assert dev.remarks[0].endswith("in none of train, val and test: 'trian' (2)")


def test_other_columns_are_named_by_an_option(tmp_path):
    """Missing columns are named, and `--columns` maps them; tests/cli/test_embed.py covers the rest."""
    written(tmp_path / "mine.csv", ";", "ref;caption;target")
    assert "name them with --columns reference=NAME,text=NAME " in inspect_folder(tmp_path).missing[0]
    assert inspect_folder(tmp_path, "reference=ref,text=caption").triplets is not None
