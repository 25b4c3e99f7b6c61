"""The example that says the best window before training, on tables whose peak is known."""

import numpy as np
import pandas as pd
import pytest

import negbench
from negbench.store.runfolder import RunFolder

RANKS = [2.0**power for power in range(10)]


def test_a_peak_that_follows_the_gallery_is_said_where_a_constant_window_misses_it(example):
    records = []
    for images in (200, 300, 500, 900, 1500, 3000, 6000, 9000):
        for rank in RANKS:
            score = 80 - 2 * (np.log(rank) - np.log(0.02 * images)) ** 2
            records.append((f"w{images:05}", f"window {rank}", rank, 1, images, 30, score, score))
        records.append((f"w{images:05}", "top-k", np.nan, 1, images, 30, 79.0, 79.0))
    module = example("zone_formula")
    table = pd.DataFrame(records, columns=["world", "strategy", *module.INPUTS, "choose", "judge"])
    regret = module.regrets(table)
    assert list(regret.index) == ["w00300", "w00900", "w03000", "w09000"]  # every second world
    best = table[table["rank"].notna()].groupby("world")["judge"].max()
    assert regret["formula"].tolist() == pytest.approx([0] * 4, abs=0.3)
    assert regret["top-k"].tolist() == pytest.approx((best[regret.index] - 79).tolist())
    frame = module.summary(regret)
    constant = next(name for name in regret if name.startswith("window"))
    assert frame.loc[f"{constant} less formula", "points"] > 1
    assert frame.loc["top-k", "points"] == pytest.approx(regret["top-k"].mean())


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
