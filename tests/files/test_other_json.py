"""JSON files of any shape beside the triplets, such as a model's configuration, stop nothing."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from negbench.errors import DataError, NegbenchError
from negbench.files.row_files import read_rows
from negbench.files.triplet_files import read_triplets
from negbench.own.init import survey

OTHERS: dict[str, Any] = {
    "preprocessor": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_resize": True},
    "splits": {"version": 1, "splits": ["train", "val"]},
    "data": {"version": "1", "data": ["a", "b"]},
    "COCO": {"info": {}, "images": [{"id": 1}, {"id": 2}], "annotations": [{"image_id": 1}, {"image_id": 2}]},
    "vocabulary": {"a": 0, "b": 1},
    "a list of names": ["a.png", "b.png"],
    "a log": [{"loss": 0.1, "epoch": 1}, {"loss": 0.05, "epoch": 2}],
    "an index": {"metadata": {"total_size": 3}, "weight_map": {"a": "f", "b": "g"}},
    "a map of lists": {"a": ["b", "c"], "d": ["e", "f"]},
    "lists and texts of one length": {"a": ["b", "c"], "d": "ef"},
    "empty parts": {"a": {}, "b": {}},
    "a number": 3,
    "nothing": None,
    "deep": {"a": {"b": {"c": [[], {}]}}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("other")
    lines = []
    for number, split in enumerate(("val", "train", "train", "train")):
        row = {"reference": f"{number}", "text": "t", "target": f"{number + 1}", "split": split}
        lines.append(json.dumps(row))
    (out / "t.jsonl").write_text("\n".join(lines))
    (out / "model").mkdir()
    return out


@pytest.mark.parametrize("case", OTHERS)
def test_other_files_are_passed_over(folder, case):
    (folder / "model" / "other.json").write_text(json.dumps(OTHERS[case]))
    scan = survey(folder)
    assert scan.missing == []
    assert scan.triplets is not None
    assert scan.triplets[0] == (folder / "t.jsonl",)


def test_columns_as_pandas_writes_them_are_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": [1, 2], "b": ["x", "y"]}))
    assert [row.values for row in read_rows(tmp_path / "a.json")] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    (tmp_path / "a.json").write_text(json.dumps(OTHERS["lists and texts of one length"]))
    with pytest.raises(DataError, match="expected a list of objects, a row each"):
        read_rows(tmp_path / "a.json")


_LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 99) | st.floats(allow_nan=False) | st.sampled_from(["", "a", "val"])
)
_KEYS = st.sampled_from(["reference", "target", "text", "split", "train", "val", "0", "1", "data", "a", ""])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4)


_SHAPES = st.recursive(_LEAVES, _containers, max_leaves=12)


def refusal(read: Callable[[], Any]) -> str:
    """Return the error of what is refused; "" if it is read; anything but a NegbenchError fails the test."""
    try:
        read()
    except NegbenchError as error:
        return str(error)
    return ""


@settings(
    max_examples=int(os.environ.get("NEGBENCH_FUZZ", "150")),
    derandomize="NEGBENCH_FUZZ" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(_SHAPES, st.sampled_from(["json", "jsonl"]))
def test_any_shape_is_read_or_refused_in_one_line(folder, shape, ending):
    file = folder / "model" / f"any.{ending}"
    file.write_text(json.dumps(shape))
    of_rows = refusal(lambda: read_rows(file))
    of_triplets = refusal(lambda: read_triplets([file], "", [folder]))
    file.unlink()
    assert "\n" not in of_rows
    assert "\n" not in of_triplets
