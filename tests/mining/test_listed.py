"""Listed negatives, of a column and of a file, against loops; what does not fit is named."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from negbench.api import make_strategy
from negbench.benchmarks.triplets import Triplets
from negbench.data.scene import DataCache
from negbench.errors import DataError
from negbench.grid.axes import plugin_sections
from negbench.loop.mining_task import listed_plane, lists_of
from negbench.loop.runs import plan_run
from negbench.own.negatives import write_negatives
from negbench.plugins.registry import build
from negbench.settings.command_options import Mine
from tests.runs import config_of

ROWS = [{"reference": f"r{n}", "text": f"in red {n}", "target": f"t{n}", "split": "train"} for n in range(4)]
LISTS = [["t3", "x1"], ["r0"], [], ["x1", "x2", "t3"]]  # the last one lists its own target
IMAGES = [*(row["reference"] for row in ROWS), *(row["target"] for row in ROWS), "x1", "x2"]


def load(path: Path, rows: Any, columns: str = "", split: str = "train") -> Triplets:
    path.write_text(rows.to_csv(index=False) if isinstance(rows, pd.DataFrame) else json.dumps(rows), encoding="utf-8")
    return build(Triplets, file=path, columns=columns, split=split, images=False)


def pools(data: Triplets, file: Path | None = None) -> list[set[str]]:
    """Return the listed images of each query, from the plane."""
    plane = listed_plane(make_strategy("listed", file=file), data, torch.device("cpu"))["listed"]
    table = plane.block(torch.arange(len(data.queries)), torch.arange(len(data.images)))
    return [{data.images[column] for column in row.isnan().logical_not().nonzero()[:, 0].tolist()} for row in table]


def joined_lists(separator: str = ";") -> pd.DataFrame:
    """Return the triplets with their negatives as one text in a cell."""
    return pd.DataFrame(ROWS).assign(negatives=[separator.join(names) for names in LISTS])


def rows_with_lists(column: str) -> list[dict[str, Any]]:
    """Return the triplets with their negatives in a column of this name."""
    return [{**row, column: names} for row, names in zip(ROWS, LISTS, strict=True)]


FORMS: dict[str, tuple[str, Any, str]] = {
    "lists": ("a.json", rows_with_lists("negatives"), ""),
    "another name": ("a.json", rows_with_lists("hns"), "negatives=hns"),
    "cells": ("a.csv", joined_lists(), ""),
    "lists as texts": ("a.csv", pd.DataFrame(ROWS).assign(negatives=[str(names) for names in LISTS]), ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_column_lists_negatives(tmp_path, form):
    name, rows, columns = FORMS[form]
    data = load(tmp_path / name, rows, columns)
    assert pools(data) == [set(names) for names in LISTS]
    assert set(data.images) == {*IMAGES}
    assert [remark for remark in data.remarks if "unused" in remark] == []


def test_listed_images_join_the_galleries_of_train_only(tmp_path):
    rows = []
    for row in ROWS:
        rows.append({**row, "split": "train", "negative": "xtrain"})
        rows.append({**row, "split": "val", "negative": "xval"})
    assert set(load(tmp_path / "a.json", rows).images) == {*IMAGES, "xtrain"} - {"x1", "x2"}
    val = load(tmp_path / "a.json", rows, split="val")
    assert set(val.images) == {*IMAGES} - {"x1", "x2"}
    with pytest.raises(DataError, match=r"lists no negatives among its images: .*listed:file="):
        pools(val)


def test_a_list_with_another_separator_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"column 'negatives': 't3\|r0' is 2 images with '\|' between"):
        load(tmp_path / "a.csv", joined_lists().assign(negatives="t3|r0"))


KEYS = {"ids": [{"query": f"train-{n}"} for n in (2, 3, 4, 5)], "triplets": ROWS}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("long", [False, True])
def test_a_file_lists_negatives(tmp_path, ending, keys, long):
    """By query, or by its triplet; a list in each row, or a negative; a row that fell back lists nothing."""
    data = load(tmp_path / "a.csv", pd.DataFrame([*ROWS, {**ROWS[0], "reference": "x1", "target": "x2", "text": "y"}]))
    frame = pd.DataFrame(KEYS[keys]).assign(negatives=LISTS, fallback=[0, 2, 0, 0])
    if long:
        frame = frame.explode("negatives").dropna().rename(columns={"negatives": "negative"})
    elif ending == "csv":
        frame["negatives"] = [";".join(names) for names in LISTS]
    file = tmp_path / f"n.{ending}"
    if ending == "parquet":
        frame.to_parquet(file)
    else:
        file.write_text(frame.to_csv() if ending == "csv" else frame.to_json(orient="records", lines=True))
    assert pools(data, file) == [set(LISTS[0]), set(), set(), set(LISTS[3]), set()]


def trainer_rows(row: dict[str, str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Return a query's negatives as FlagEmbedding and sentence-transformers take them."""
    flag = {"query": row["text"], "pos": [row["target"]], "neg": names, "neg_scores": [0.5] * len(names)}
    columns = {f"negative_{number}": name for number, name in enumerate(names or [None], start=1)}
    return {"flagembedding": flag, "pairs": {"anchor": row["text"], "positive": row["target"], **columns}}


@pytest.mark.parametrize("trainer", ["flagembedding", "pairs"])
def test_formats_of_trainers_list_negatives(tmp_path, trainer):
    rows = [trainer_rows(row, names)[trainer] for row, names in zip(ROWS, LISTS, strict=True)]
    (tmp_path / "n.json").write_text(json.dumps(rows))
    assert pools(load(tmp_path / "a.csv", joined_lists()), tmp_path / "n.json") == [set(names) for names in LISTS]


def test_files_that_do_not_fit(tmp_path, mistakes, subtests):
    data = load(tmp_path / "a.csv", pd.DataFrame(ROWS))
    file = tmp_path / "n.json"
    for case in mistakes["listed"]:
        with subtests.test(case["message"]):
            file.write_text(json.dumps(case["rows"]))
            with pytest.raises(DataError, match=case["message"]):
                pools(data, file)


def test_what_mine_wrote_is_mined_again(vector_sets, tmp_path):
    """Same negatives, same queries that fell back; in a union, too."""
    settings: dict[str, Any] = {"dataset": "vectors", "sets": vector_sets, "draws": 3}
    first = write_negatives(Mine(strategy="qure", out=tmp_path / "n.parquet", **settings)).frame
    fell_back = first["fallback"] > 0
    assert 0 < fell_back.sum() < len(first)
    listed = f"listed:file={tmp_path / 'n.parquet'}"
    second = write_negatives(Mine(strategy=listed, out=tmp_path / "m.jsonl", **settings)).frame
    assert second["fallback"].gt(0).tolist() == fell_back.tolist()
    mined = first[~fell_back]["negatives"].map(set).tolist()
    assert second[~fell_back]["negatives"].map(set).tolist() == mined


def test_the_file_of_a_union_is_found_and_a_strategy_without_one_is_in_no_grid():
    assert lists_of(make_strategy("in-batch+listed", file="n.parquet")) == Path("n.parquet")
    assert {"name": "listed"} not in plugin_sections("strategies", "all")


def test_the_file_is_part_of_what_a_run_is(vector_sets, tmp_path):
    write_negatives(Mine(strategy="top-k:k=3", out=tmp_path / "n.jsonl", dataset="vectors", sets=vector_sets))
    content = (tmp_path / "n.jsonl").read_text()

    def hash_of(file: str) -> str:
        config = config_of(["dataset=vectors", *vector_sets], f"listed:file={tmp_path / file}")
        return plan_run(config, DataCache()).hash

    before = hash_of("n.jsonl")
    (tmp_path / "copy.jsonl").write_text(content)
    assert hash_of("copy.jsonl") == before
    (tmp_path / "copy.jsonl").write_text(content[: content.rindex("{")])
    assert hash_of("copy.jsonl") != before
