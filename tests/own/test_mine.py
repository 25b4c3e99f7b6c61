"""Negatives of a data set by name, against a plain loop over all scores."""

import json

import pandas as pd
import pytest

from negbench.checks.audit import configured
from negbench.checks.subject import open_subject
from negbench.display import Display
from negbench.errors import OptionError
from negbench.own.negatives import write_negatives
from negbench.settings.command_options import Audit, Mine


def test_the_highest_scored_negative_of_each_query_is_named(vector_sets, tmp_path):
    sets = (*vector_sets, "mining.exclude_reference=true")
    asked = Mine(strategy="top-k:k=1", out=tmp_path / "n.parquet", dataset="vectors", sets=sets, draws=2, seed=5)
    mined = write_negatives(asked)
    config, _, _ = configured(asked, asked.strategy)
    subject = open_subject(config, "train", Audit(queries=0), Display())
    task, data = subject.task, subject.dataset
    for row, query in enumerate(data.queries):
        assert query.target is not None
        corpus = task.groups[int(task.group[row])].tolist()
        kept_out = {int(task.target[row]), *task.excluded.row(row).tolist()}
        scores = {
            data.images[column]: float((task.candidates[column] @ task.queries[row]).max())
            for column in corpus
            if column not in kept_out
        }
        line = mined.frame.iloc[row]
        assert (line["query"], line["target"], line["text"]) == (query.id, query.target, query.text)
        assert line["negatives"] == [max(scores, key=lambda image: scores[image])]  # two draws of a pool of one
        own = float((task.candidates[task.target[row]] @ task.queries[row]).max())
        assert line["target_rank"] == 1 + sum(score >= own for score in scores.values())
    assert mined.source.endswith("(untrained)")
    assert mined.summary["pool_size"] == 1

    read = pd.read_parquet(asked.out)
    assert [list(row) for row in read["negatives"]] == mined.frame["negatives"].tolist()
    write_negatives(asked.model_copy(update={"out": tmp_path / "n.jsonl"}))
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["negatives"] for line in lines] == mined.frame["negatives"].tolist()
    with pytest.raises(OptionError, match=r"--out .*\.parquet or \.jsonl"):
        Mine.parsed({"strategy": "qure", "out": tmp_path / "n.csv", "dataset": "vectors"})
