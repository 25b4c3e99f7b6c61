"""Negatives of a data set by name, against a plain loop over all scores."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from negbench.commands.audit import configured
from negbench.config import set_layer
from negbench.display import Display
from negbench.errors import OptionError
from negbench.own.mine import check_out, mine_dataset, write_negatives
from negbench.own.subject import AuditOptions, open_subject


def test_the_highest_scored_negative_of_each_query_is_named(vector_sets: list[str]) -> None:
    config, strategies = configured(
        "top-k:k=1", None, [set_layer(text) for text in (*vector_sets, "mining.exclude_reference=true")], seed=3
    )
    (strategy,) = strategies.values()
    found = mine_dataset(config, strategy, draws=2, seed=5)
    subject = open_subject(config, "train", AuditOptions(queries=0), Display())
    task, data = subject.task, subject.dataset
    assert task.excluded is not None
    for row, query in enumerate(data.queries):
        assert query.target is not None
        corpus = task.groups[int(task.group[row])].tolist()
        kept_out = {int(task.target[row]), *task.excluded.row(row).tolist()}
        scores = {
            data.images[column]: float((task.candidates[column] @ task.queries[row]).max())
            for column in corpus
            if column not in kept_out
        }
        line = found.frame.iloc[row]
        assert (line["query"], line["target"], line["text"]) == (query.id, query.target, query.text)
        assert line["negatives"] == [max(scores, key=lambda image: scores[image])] * 2
        assert line["target_rank"] == 1 + sum(
            score >= float((task.candidates[task.target[row]] @ task.queries[row]).max()) for score in scores.values()
        )
    assert found.model == "untrained"
    assert found.summary["pool_size"] == 1


def test_files_hold_the_same(tmp_path: Path) -> None:
    frame = pd.DataFrame({"query": ["a", "b"], "negatives": [["ü", "y"], ["z", "y"]], "hardness": [0.5, float("nan")]})
    for name in ("n.parquet", "n.jsonl"):
        check_out(tmp_path / name)
        write_negatives(frame, tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text(encoding="utf-8").splitlines()]
    read = pd.read_parquet(tmp_path / "n.parquet")
    assert [line["negatives"] for line in lines] == [list(row) for row in read["negatives"]] == [["ü", "y"], ["z", "y"]]
    assert lines[1]["hardness"] is None
    with pytest.raises(OptionError, match=r"\.parquet or \.jsonl"):
        check_out(tmp_path / "n.csv")
