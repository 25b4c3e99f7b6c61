"""Negatives of a data set by name, against a plain loop over all scores."""

import json

import numpy as np
import pandas as pd
import pytest

from negbench.display import Display
from negbench.errors import OptionError
from negbench.own.negatives import _SAMPLE, _mine_rows, write_negatives
from negbench.own.scored_split import configure, open_split
from negbench.settings.command_options import Mine


def test_the_highest_scored_negative_of_each_query_is_named(vector_sets, tmp_path):
    sets = (*vector_sets, "mining.exclude_reference=true")
    asked = Mine(strategy="top-k:k=1", out=tmp_path / "n.parquet", dataset="vectors", sets=sets, draws=2, seed=5)
    mined = write_negatives(asked)
    config, _, _ = configure(asked, asked.strategy)
    subject = open_split(config, "train", Display())
    task, data = subject.task, subject.dataset
    for row, query in enumerate(data.queries):
        assert query.target is not None, row
        corpus = task.groups[int(task.group[row])].tolist()
        kept_out = {int(task.target[row]), *task.excluded.row(row).tolist()}
        scores = {
            data.images[column]: float((task.candidates[column] @ task.queries[row]).max())
            for column in corpus
            if column not in kept_out
        }
        line = mined.frame.iloc[row]
        assert (line["query"], line["target"], line["text"]) == (query.id, query.target, query.text), row
        assert line["negatives"] == [max(scores, key=lambda image: scores[image])], row  # two draws of a pool of one
        own = float((task.candidates[task.target[row]] @ task.queries[row]).max())
        assert line["target_rank"] == 1 + sum(score >= own for score in scores.values()), row
    assert mined.source.endswith("(untrained)")
    assert mined.summary["pool_size"] == 1

    read = pd.read_parquet(asked.out)
    assert [list(row) for row in read["negatives"]] == mined.frame["negatives"].tolist()
    write_negatives(asked.model_copy(update={"out": tmp_path / "n.jsonl"}))
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["negatives"] for line in lines] == mined.frame["negatives"].tolist()
    with pytest.raises(OptionError, match=r"--out .*\.parquet or \.jsonl"):
        Mine.from_flags({"strategy": "qure", "out": tmp_path / "n.csv", "dataset": "vectors"})


@pytest.mark.parametrize("strategy", ["qure", "top-k:k=5", "dqe"])
def test_a_dry_run_samples_queries_and_names_them(strategy, tmp_path):
    sets = tuple(f"dataset.{key}={size}" for key, size in (("train_images", 300), ("train_queries", 300)))
    given = {"dataset": "vectors", "backbone": "vectors:dim=16", "sets": sets, "out": tmp_path / "n.parquet"}
    mined, total = _mine_rows(Mine(strategy=strategy, draws=5, **given), _SAMPLE)
    whole, _ = _mine_rows(Mine(strategy=strategy, draws=5, **given))
    assert (len(mined.frame), total, len(whole.frame)) == (_SAMPLE, 300, 300)
    by_query = whole.frame.set_index("query")
    names = ["reference", "text", "target", "target_rank"]
    pd.testing.assert_frame_equal(mined.frame.set_index("query")[names], by_query.loc[mined.frame["query"], names])


def test_images_keep_the_spelling_of_the_file(tmp_path):
    """With backslashes, and in full: in what is written, and when it is listed again."""
    names = [f"{tmp_path}/pics/a.jpg", "shop\\b", "shop\\c", "shop/d"]
    rows = [
        {"reference": one, "text": "x", "target": other, "split": split}
        for split in ("train", "val")
        for one, other in zip(names, names[1:] + names[:1], strict=True)
    ]
    file = tmp_path / "t.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    ids = ["pics/a.jpg", "shop/b", "shop/c", "shop/d"]
    np.savez(tmp_path / "images.npz", ids=np.array(ids), features=np.eye(4, dtype=np.float32))
    np.savez(tmp_path / "texts.npz", texts=np.array(["x"]), features=np.ones((1, 4), dtype=np.float32))
    sets = tuple(f"backbone.{name}={tmp_path / name}.npz" for name in ("images", "texts"))
    given = {"dataset": str(file), "backbone": "precomputed", "sets": sets, "draws": 2}
    mined = write_negatives(Mine(strategy="all-corpus", out=tmp_path / "n.jsonl", **given))
    assert mined.frame["target"].tolist() == names[1:] + names[:1]
    assert {*mined.frame["reference"], *mined.frame["negatives"].explode()} == {*names}
    again = write_negatives(Mine(strategy=f"listed:file={tmp_path / 'n.jsonl'}", out=tmp_path / "m.jsonl", **given))
    pairs = zip(mined.frame["negatives"], again.frame["negatives"], strict=True)
    assert all(sorted(one) == sorted(other) for one, other in pairs)
    assert not again.frame["fallback"].any()
