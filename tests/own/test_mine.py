"""Negatives of a data set by name, against a plain loop over all scores."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from negbench.display import Display
from negbench.errors import OptionError
from negbench.own.negatives import _SAMPLE, _mine_rows, write_negatives
from negbench.own.scored_split import configure, open_split
from negbench.settings.command_options import Mine


def test_the_highest_scored_negative_of_each_query_is_named(vector_sets, tmp_path):
    options = options_of(vector_sets, tmp_path / "n.parquet")
    mined = write_negatives(options)
    config, _, _ = configure(options, options.strategy)
    split = open_split(config, "train", Display())
    task = split.task
    data = split.dataset
    for row, query in enumerate(data.queries):
        assert query.target is not None, row
        corpus = task.groups[int(task.group[row])].tolist()
        left_out = {int(task.target[row]), *task.excluded.row(row).tolist()}
        scores = {}
        for column in corpus:
            if column not in left_out:
                scores[data.images[column]] = float((task.candidates[column] @ task.queries[row]).max())
        line = mined.frame.iloc[row]
        assert (line["query"], line["target"], line["text"]) == (query.id, query.target, query.text), row
        assert line["negatives"] == [max(scores, key=scores.__getitem__)], row  # two draws of a pool of one
        score_of_target = float((task.candidates[task.target[row]] @ task.queries[row]).max())
        assert line["target_rank"] == 1 + sum(score >= score_of_target for score in scores.values()), row
    assert mined.source.endswith("(untrained)")
    assert mined.summary["pool_size"] == 1


def options_of(vector_sets: list[str], out: Path) -> Mine:
    sets = (*vector_sets, "mining.exclude_reference=true")
    return Mine(strategy="top-k:k=1", out=out, dataset="vectors", sets=sets, draws=2, seed=5)


def test_both_kinds_of_files_have_the_negatives(vector_sets, tmp_path):
    mined = write_negatives(options_of(vector_sets, tmp_path / "n.parquet"))
    table = pd.read_parquet(tmp_path / "n.parquet")
    assert [list(row) for row in table["negatives"]] == mined.frame["negatives"].tolist()
    write_negatives(options_of(vector_sets, tmp_path / "n.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["negatives"] for line in lines] == mined.frame["negatives"].tolist()


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"--out .*\.parquet or \.jsonl"):
        Mine.from_flags({"strategy": "qure", "out": tmp_path / "n.csv", "dataset": "vectors"})


@pytest.mark.parametrize("strategy", ["qure", "top-k:k=5", "dqe"])
def test_a_dry_run_samples_queries_and_names_them(strategy, tmp_path):
    options = Mine(
        strategy=strategy,
        draws=5,
        dataset="vectors",
        backbone="vectors:dim=16",
        sets=("dataset.train_images=300", "dataset.train_queries=300"),
        out=tmp_path / "n.parquet",
    )
    sample, total = _mine_rows(options, _SAMPLE)
    whole, _ = _mine_rows(options)
    assert (len(sample.frame), total, len(whole.frame)) == (_SAMPLE, 300, 300)
    by_query = whole.frame.set_index("query")
    names = ["reference", "text", "target", "target_rank"]
    pd.testing.assert_frame_equal(sample.frame.set_index("query")[names], by_query.loc[sample.frame["query"], names])


def test_images_keep_the_spelling_of_the_file(tmp_path):
    """With backslashes, and in full: in what is written, and when it is listed again."""
    names = [f"{tmp_path}/pics/a.jpg", "shop\\b", "shop\\c", "shop/d"]
    targets = [*names[1:], names[0]]
    train = pd.DataFrame({"reference": names, "text": "x", "target": targets, "split": "train"})
    file = tmp_path / "t.csv"
    pd.concat([train, train.assign(split="val")]).to_csv(file, index=False)
    ids = ["pics/a.jpg", "shop/b", "shop/c", "shop/d"]
    np.savez(tmp_path / "images.npz", ids=np.array(ids), features=np.eye(4, dtype=np.float32))
    np.savez(tmp_path / "texts.npz", texts=np.array(["x"]), features=np.ones((1, 4), dtype=np.float32))
    sets = tuple(f"backbone.{name}={tmp_path / name}.npz" for name in ("images", "texts"))
    options = {"dataset": str(file), "backbone": "precomputed", "sets": sets, "draws": 2}
    mined = write_negatives(Mine(strategy="all-corpus", out=tmp_path / "n.jsonl", **options))
    assert mined.frame["target"].tolist() == targets
    assert {*mined.frame["reference"], *mined.frame["negatives"].explode()} == {*names}
    listed = write_negatives(Mine(strategy=f"listed:file={tmp_path / 'n.jsonl'}", out=tmp_path / "m.jsonl", **options))
    assert listed.frame["negatives"].map(sorted).tolist() == mined.frame["negatives"].map(sorted).tolist()
    assert not listed.frame["fallback"].any()
