"""The example that says the best window before training, on tables whose peak is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

import negbench
from negbench.store.runfolder import RunFolder

RANKS = [2.0**power for power in range(10)]


def test_a_peak_that_follows_the_target_is_said_where_a_constant_window_misses_it(example):
    records = []
    for images in (200, 300, 500, 900, 1500, 3000, 6000, 9000):
        for rank, negatives in itertools.product(RANKS, (1, 16)):
            score = 80 - 2 * (np.log(rank) - np.log(0.02 * images * np.sqrt(negatives))) ** 2
            records.append((f"w{images:05}", f"window {rank}", rank, negatives, images / 75, score, score))
        for negatives in (1, 16):
            records.append((f"w{images:05}", "top-k", np.nan, negatives, images / 75, 79.0, 79.0))
            records.append((f"w{images:05}", "all-corpus", np.nan, negatives, images / 75, 99.0, 99.0))
    module = example("zone_formula")
    table = pd.DataFrame(records, columns=["world", "strategy", *module.INPUTS, "choose", "judge"])
    regret = module.regrets(table)
    judged = sorted(np.random.default_rng(0).permutation(sorted(table["world"].unique()))[1::2])
    assert list(regret.index) == [(negatives, world) for negatives in (1, 16) for world in judged]
    best = table[table["rank"].notna()].groupby(["negatives", "world"])["judge"].max()
    assert regret["formula"].tolist() == pytest.approx([0] * 8, abs=0.3)
    assert regret["rule"].tolist() == pytest.approx((best[regret.index] - 79).tolist())
    frame = module.summary(regret.loc[16])
    assert frame.loc["constant less formula", "points"] > 1
    assert frame.loc["rule", "points"] == pytest.approx(regret.loc[16, "rule"].mean())


def test_rows_hold_the_runs_own_numbers(example, tmp_path):
    sizes = [f"dataset.{key}=60" for key in ("train_images", "train_queries", "val_images", "val_queries")]
    asked = negbench.Compare(
        datasets="vectors", backbones="vectors", strategies="top-k,shifted-top-k:start=1:stop=8", seeds=2, lr="fixed",
        dials=["dataset.twins=1.5,3"], sets=(*sizes, "train.epochs=2"), runs_dir=tmp_path, tracking_uri="none",
        report=False, name="w",
    )  # fmt: skip
    runs = [RunFolder(tmp_path / run) for run in negbench.compare(asked).cells["run"]]
    table = example("zone_formula").rows(tmp_path / "w")
    assert table["world"].nunique() == 2
    assert table["rank"].dropna().tolist() == pytest.approx([4, 4])  # sqrt((1 + 1) * 8)
    scores = [100 * run.result["metrics"]["recall_at_10"] for run in runs if run.config.seed == 0]
    assert sorted(table["choose"]) == pytest.approx(sorted(scores))
