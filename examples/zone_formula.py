"""Can the best window of ranks be said before training? Fit a formula on some worlds and judge it on others.

Compare windows and rules in worlds of different dials, once per number of negatives, then read the folders:

    negbench compare --recipe zone-1 --epochs 120 --name worlds-1 --dial dataset.train_images=1000,2000,8000 \
        --dial dataset.twins=1.5,3,6
    negbench compare --recipe zone-16 --epochs 120 --name worlds-16 --dial ... # the same dials
    python examples/zone_formula.py runs/worlds-1 runs/worlds-16

The formula is ridge regression of a window's R@10, less the mean over the world's windows, on the squares and products
of the logarithms of the window's rank, the number of negatives, the gallery's size and the target's median rank before
training; its choice is the window with the highest prediction. A random half of the worlds fits, the others judge. In
each, the best window is chosen on the first half of the seeds, and all regrets to it are measured on the second half.
The constant window and the rule are the best of the fitting worlds with as many negatives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from negbench.analysis.findings import stored

INPUTS = ["rank", "negatives", "images", "target"]
BASELINES = {"all-corpus", "in-batch"}


def rows(folder: Path) -> pd.DataFrame:
    """Return a row per world and strategy: the inputs, and R@10 in points on either half of the seeds.

    `rank` is the geometric middle of a window, from 1; NaN for other strategies.
    """
    records = []
    for group in stored(folder.parent, folder.name).groups:
        config, first = group.configs[0], group.results[0]["regime_by_refresh"][0]
        own = config.strategy.options if config.strategy.name == "shifted-top-k" else None
        rank = np.sqrt((own["start"] + 1) * own["stop"]) if own else np.nan
        scores = [100 * result["metrics"][result["main_metric"]] for result in group.results]
        half = len(scores) // 2
        world = str(group.labels.get("point", ""))
        inputs = (rank, config.train.num_negatives, first["images"], first["target_rank_median"])
        ends = (np.mean(scores[:half]), np.mean(scores[half:]))
        records.append((world, group.labels["strategy"], *inputs, *ends))
    return pd.DataFrame(records, columns=["world", "strategy", *INPUTS, "choose", "judge"])


def fitted(windows: pd.DataFrame) -> Pipeline:
    """Fit the formula on windows of several worlds, all seeds."""
    score = (windows["choose"] + windows["judge"]) / 2
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2), RidgeCV(np.logspace(-3, 3, 13)))
    means = score.groupby([windows["world"], windows["negatives"]]).transform("mean")
    return model.fit(np.log(windows[INPUTS]), score - means)


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of the formula, a constant window and the best rule, in points; a row per number and world."""
    worlds = np.random.default_rng(0).permutation(sorted(table["world"].unique()))
    fits = table[table["world"].isin(worlds[::2])]
    model = fitted(fits[fits["rank"].notna()])
    found = {}
    for (negatives, world), here in table[table["world"].isin(worlds[1::2])].groupby(["negatives", "world"]):
        peers = fits[(fits["negatives"] == negatives) & ~fits["strategy"].isin(BASELINES)]
        mean = peers.assign(both=peers["choose"] + peers["judge"], window=peers["rank"].notna())
        constant, rule = (
            mean[mean["window"] == window].groupby("strategy")["both"].mean().idxmax() for window in (True, False)
        )
        own, judge = here[here["rank"].notna()], here.set_index("strategy")["judge"]
        said = own["strategy"].iloc[int(np.argmax(model.predict(np.log(own[INPUTS]))))]
        best = judge[own["strategy"][own["choose"].idxmax()]]
        found[negatives, world] = {
            "formula": best - judge[said],
            "constant": best - judge[constant],
            "rule": best - judge[rule],
        }
    return pd.DataFrame(found).T


def summary(regret: pd.DataFrame) -> pd.DataFrame:
    """Return mean regrets with 95 % t intervals over worlds, and how much less the formula's is than the others'."""
    less = regret.drop(columns="formula").sub(regret["formula"], axis=0).add_suffix(" less formula")
    frame = pd.concat([regret, less], axis=1)
    reach = stats.t.ppf(0.975, len(frame) - 1) * frame.std() / np.sqrt(len(frame))
    return pd.DataFrame({"points": frame.mean(), "low": frame.mean() - reach, "high": frame.mean() + reach})


if __name__ == "__main__":
    table = regrets(pd.concat([rows(Path(name)) for name in sys.argv[1:]]))
    for negatives, regret in table.groupby(level=0):
        print(f"{negatives:g} negatives, {len(regret)} worlds", summary(regret).round(2).to_string(), sep="\n")
