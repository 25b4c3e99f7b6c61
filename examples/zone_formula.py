"""Does the window of ranks that `negbench audit` names before training hold? Judge it, and fit it again.

Compare windows and rules in worlds of different dials, once per number of negatives, then read the folders:

    negbench compare --recipe zone-1 --epochs 120 --name worlds-1 --dial dataset.train_images=1000,2000,8000 \
        --dial dataset.twins=1.5,4 --dial backbone.noise=0.4,1.2
    negbench compare --recipe zone-16 --epochs 120 --name worlds-16 --dial ... # the same dials
    python examples/zone_formula.py runs/worlds-1 runs/worlds-16

The formula takes the window nearest, in logarithms, to factor x negatives^power x the target's median rank before
training. In each world it is compared with the window and with the rule that are best in the other worlds with as many
negatives. Regrets are to the world's best window, chosen on one half of the seeds and judged on the other, both ways.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from negbench.analysis.findings import stored
from negbench.mining.window import WINDOW, middle

HALVES = ["first", "second"]
COLUMNS = ["world", "strategy", "rank", "negatives", "target", *HALVES]
BASELINES = {"all-corpus", "in-batch"}
FACTORS, POWERS = np.geomspace(0.5, 8, 25), np.linspace(0, 0.6, 16)


def rows(folder: Path) -> pd.DataFrame:
    """Return a row per world and strategy: the formula's inputs, and R@10 in points on either half of the seeds.

    `rank` is the geometric middle of a window, from 1; NaN for other strategies.
    """
    records = []
    for group in stored(folder.parent, folder.name).groups:
        config, first = group.configs[0], group.results[0]["regime_by_refresh"][0]
        own = config.strategy.options if config.strategy.name == WINDOW else None
        rank = np.sqrt((own["start"] + 1) * own["stop"]) if own else np.nan
        scores = [100 * result["metrics"][result["main_metric"]] for result in group.results]
        half = len(scores) // 2
        inputs = (rank, config.train.num_negatives, first["target_rank_median"])
        ends = (np.mean(scores[:half]), np.mean(scores[half:]))
        records.append((str(group.labels.get("point", "")), group.labels["strategy"], *inputs, *ends))
    return pd.DataFrame(records, columns=COLUMNS)


def nearest(ranks: np.ndarray, rank: float) -> int:
    """Return the position of the rank nearest to another, in logarithms."""
    return int(np.abs(np.log(ranks / rank)).argmin())


def fitted(table: pd.DataFrame) -> tuple[float, float]:
    """Return the factor and the power with the highest mean score; the middle of those that tie."""
    worlds = [
        (negatives, here["target"].iloc[0], here["rank"].to_numpy(), here[HALVES].mean(axis=1).to_numpy())
        for (negatives, _), here in _worlds(table[table["rank"].notna()])
    ]
    grid = list(itertools.product(FACTORS, POWERS))
    means = [
        np.mean([scores[nearest(ranks, factor * n**power * target)] for n, target, ranks, scores in worlds])
        for factor, power in grid
    ]
    best = np.array(grid)[np.isclose(means, max(means))]
    return float(np.exp(np.log(best[:, 0]).mean())), float(best[:, 1].mean())


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of the formula, a constant window and the best rule, in points; a row per number and world."""
    found = {}
    for (negatives, world), here in _worlds(table):
        peers = table[(table["negatives"] == negatives) & (table["world"] != world)]
        peers = peers[~peers["strategy"].isin(BASELINES)].assign(mean=peers[HALVES].mean(axis=1))
        constant, rule = (
            peers[peers["rank"].notna() == window].groupby("strategy")["mean"].mean().idxmax()
            for window in (True, False)
        )
        scores, own = here.set_index("strategy")[HALVES], here[here["rank"].notna()].set_index("strategy")
        said = own.index[nearest(own["rank"].to_numpy(), middle(here["target"].iloc[0], negatives))]
        best = np.mean([scores[other][own[half].idxmax()] for half, other in zip(HALVES, HALVES[::-1], strict=True)])
        named = {"formula": said, "constant": constant, "rule": rule}
        found[negatives, world] = {name: best - scores.loc[strategy].mean() for name, strategy in named.items()}
    return pd.DataFrame(found).T


def _worlds(table: pd.DataFrame) -> pd.api.typing.DataFrameGroupBy:
    return table.groupby(["negatives", "world"])


def summary(regret: pd.DataFrame) -> pd.DataFrame:
    """Return mean regrets with 95 % t intervals over worlds, and how much less the formula's is than the others'."""
    less = regret.drop(columns="formula").sub(regret["formula"], axis=0).add_suffix(" less formula")
    frame = pd.concat([regret, less], axis=1).groupby(level=1).mean()  # a world's numbers of negatives are no sample
    reach = stats.t.ppf(0.975, len(frame) - 1) * frame.std() / np.sqrt(len(frame))
    return pd.DataFrame({"points": frame.mean(), "low": frame.mean() - reach, "high": frame.mean() + reach})


if __name__ == "__main__":
    table = pd.concat([rows(Path(name)) for name in sys.argv[1:]])
    regret = regrets(table)
    for negatives, part in [*regret.groupby(level=0), ("all", regret)]:
        print(f"negatives: {negatives}", summary(part).round(2).to_string(), sep="\n")
    factor, power = fitted(table)
    print(f"these worlds would fit {factor:.2f} x negatives^{power:.2f} x the target's median rank")
