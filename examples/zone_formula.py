"""Can the best window of ranks be said before training? Fit a formula on some worlds and judge it on others.

Compare windows and rules in worlds of different dials, once per number of negatives, then read the folders:

    negbench compare --recipe zone-1 --epochs 120 --name worlds-1 --dial dataset.train_images=1000,2000,8000 \
        --dial dataset.twins=1.5,4 --dial backbone.noise=0.4,1.2
    negbench compare --recipe zone-16 --epochs 120 --name worlds-16 --dial ... # the same dials
    python examples/zone_formula.py runs/worlds-1 runs/worlds-16

The formula takes the window nearest, in logarithms, to a factor times the target's median rank before training. A
random half of the worlds fits the factor, once per number of negatives, the others judge. In each, the best window is
chosen on the first half of the seeds, and all regrets to it are measured on the second half. The constant window and
the rule are the best of the fitting worlds with as many negatives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from negbench.analysis.findings import stored

INPUTS = ["rank", "negatives", "target"]
BASELINES = {"all-corpus", "in-batch"}
FACTORS = np.geomspace(0.2, 16, 40)


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
        inputs = (rank, config.train.num_negatives, first["target_rank_median"])
        ends = (np.mean(scores[:half]), np.mean(scores[half:]))
        records.append((world, group.labels["strategy"], *inputs, *ends))
    return pd.DataFrame(records, columns=["world", "strategy", *INPUTS, "choose", "judge"])


def window(world: pd.DataFrame, factor: float) -> str:
    """Return the window that the formula takes in a world."""
    own = world[world["rank"].notna()]
    return str(own["strategy"].iloc[int(np.argmin(np.abs(np.log(own["rank"] / (factor * own["target"])))))])


def fitted(fits: pd.DataFrame) -> float:
    """Return the factor with the highest mean score over worlds, all seeds; the geometric mean of those that tie."""
    worlds = [(here, (here["choose"] + here["judge"]).set_axis(here["strategy"])) for _, here in fits.groupby("world")]
    means = [np.mean([score[window(here, factor)] for here, score in worlds]) for factor in FACTORS]
    return float(np.exp(np.log(FACTORS[np.isclose(means, max(means))]).mean()))


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of the formula, a constant window and the best rule, in points; a row per number and world."""
    worlds = np.random.default_rng(0).permutation(sorted(table["world"].unique()))
    fits = table[table["world"].isin(worlds[::2])]
    found = {}
    for (negatives, world), here in table[table["world"].isin(worlds[1::2])].groupby(["negatives", "world"]):
        peers = fits[(fits["negatives"] == negatives) & ~fits["strategy"].isin(BASELINES)]
        mean = peers.assign(both=peers["choose"] + peers["judge"], window=peers["rank"].notna())
        constant, rule = (
            mean[mean["window"] == kind].groupby("strategy")["both"].mean().idxmax() for kind in (True, False)
        )
        own, judge = here[here["rank"].notna()], here.set_index("strategy")["judge"]
        said = window(here, fitted(fits[fits["negatives"] == negatives]))
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
