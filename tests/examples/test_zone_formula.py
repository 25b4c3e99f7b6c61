"""The example that says the best window before training, on tables whose peak is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

import negbench
from negbench.store.runfolder import RunFolder

RANKS = [2.0**power for power in range(10)]


@pytest.mark.parametrize(
    ("taus", "expected"), [([0.0], (1.6, 0.24, 0.0)), ([0.03, 0.15], (0.85, 0.15, 1.25))], ids=["learned", "fixed"]
)
def test_a_peak_that_follows_the_target_is_said_where_a_constant_window_misses_it(example, taus, expected):
    factor, power, temper = expected
    records = []
    for target, negatives, tau in itertools.product((3, 4, 7, 12, 20, 40, 80, 120), (1, 16), taus):
        world = f"target {target}"
        setting = (negatives, tau, target)
        for rank in RANKS:
            peak = factor * target * negatives**power * (tau / 0.07) ** temper
            score = 80 - 2 * np.log(rank / peak) ** 2
            records.append((world, f"window {rank}", rank, *setting, score + 1, score - 1))
        records.append((world, "top-k", np.nan, *setting, 79.0, 79.0))
        records.append((world, "all-corpus", np.nan, *setting, 99.0, 99.0))
    module = example("zone_formula")
    table = pd.DataFrame(records, columns=module.COLUMNS)
    regret = module.regrets(table)
    best = table[table["rank"].notna()].groupby(["negatives", "tau", "world"])[module.HALVES].max().mean(axis=1)
    assert regret["formula"].tolist() == pytest.approx([0] * 16 * len(taus), abs=1e-9)
    assert regret["rule"].tolist() == pytest.approx((best - 79).tolist())
    frame = module.summary(regret)
    assert frame.loc["constant less formula", "low"] > 0.5
    assert frame.loc["rule", "points"] == pytest.approx(regret["rule"].mean())
    fit = module.fit(table[table["target"].isin((7, 40))])
    assert fit == tuple(pytest.approx(value, rel=0.2, abs=0.08) for value in expected)


def test_rows_hold_the_runs_own_numbers(example, tmp_path):
    sizes = [f"dataset.{key}=60" for key in ("train_images", "train_queries", "val_images", "val_queries")]
    options = negbench.Compare(
        datasets="vectors", backbones="vectors", strategies="top-k,shifted-top-k:start=1:stop=8", seeds=2, lr="fixed",
        dials=["dataset.twins=1.5,3"], sets=(*sizes, "train.epochs=2"), runs_dir=tmp_path, tracking_uri="none",
        report=False, name="w",
    )  # fmt: skip
    runs = [RunFolder(tmp_path / run) for run in negbench.compare(options).cells["run"]]
    table = example("zone_formula").rows(tmp_path / "w")
    assert table["world"].nunique() == 2
    assert table["rank"].dropna().tolist() == pytest.approx([4, 4])  # sqrt((1 + 1) * 8)
    scores = [100 * run.result["metrics"]["recall_at_10"] for run in runs if run.config.seed == 0]
    assert sorted(table["first"]) == pytest.approx(sorted(scores))
