"""Does the window of ranks that `negbench audit` names before training hold? Judge it, and fit it again.

Compare windows and rules in worlds of different dials, once per number of negatives, then read the folders:

    negbench compare --recipe zone-1 --epochs 120 --name worlds-1 --dial dataset.train_images=1000,2000,8000 \
        --dial dataset.twins=1.5,4 --dial backbone.noise=0.4,1.2
    negbench compare --recipe zone-16 --epochs 120 --name worlds-16 --dial ... # the same dials
    python examples/zone_formula.py runs/worlds-1 runs/worlds-16

The formula takes the window nearest, in logarithms, to factor x negatives^power x the target's median rank before
training, at a fixed temperature times (tau / 0.07)^temper. In each world it is compared with the window and with the
rule that are best in the other worlds with as many negatives at this temperature. Regrets are to the world's best
window, chosen on one half of the seeds and judged on the other, both ways.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from negbench.analysis.findings import read_findings
from negbench.analysis.frame import config_of, folders_of, labels_of
from negbench.contracts import DEFAULT_TEMPERATURE
from negbench.mining.window import WINDOW, middle

HALVES = ["first", "second"]
SETTING = ["negatives", "tau"]  # tau: 0 if learned
COLUMNS = ["world", "strategy", "rank", *SETTING, "target", *HALVES]
BASELINES = {"all-corpus", "in-batch"}
FACTORS, POWERS, TEMPERS = np.geomspace(0.5, 8, 25), np.linspace(0, 0.6, 16), np.linspace(0.5, 2, 16)


def rows(folder: Path) -> pd.DataFrame:
    """Return a row per world and strategy: the formula's inputs, and R@10 in points on either half of the seeds.

    `rank` is the geometric middle of a window, from 1; NaN for other strategies.
    """
    records = []
    for group in read_findings(folder.parent, folder.name).groups:
        results = [run.result for run in folders_of(group)]
        config, first = config_of(group), results[0]["regime_by_refresh"][0]
        own = config.strategy.options if config.strategy.name == WINDOW else None
        rank = np.sqrt((own["start"] + 1) * own["stop"]) if own else np.nan
        scores = [100 * result["metrics"][result["main_metric"]] for result in results]
        half = len(scores) // 2
        tau = config.loss.options.get("tau") or 0.0
        inputs = (rank, config.train.num_negatives, tau, first["target_rank_median"])
        ends = (np.mean(scores[:half]), np.mean(scores[half:]))
        labels = labels_of(group)
        records.append((str(labels.get("point", "")), labels["strategy"], *inputs, *ends))
    return pd.DataFrame(records, columns=COLUMNS)


def nearest(ranks: np.ndarray, rank: float) -> int:
    """Return the position of the rank nearest to another, in logarithms."""
    return int(np.abs(np.log(ranks / rank)).argmin())


def fitted(table: pd.DataFrame) -> tuple[float, float, float]:
    """Return the factor, the power and the temper with the highest mean score; the middle of those that tie."""
    worlds = [
        (negatives, tau, here["target"].iloc[0], here["rank"].to_numpy(), here[HALVES].mean(axis=1).to_numpy())
        for (negatives, tau, _), here in table[table["rank"].notna()].groupby([*SETTING, "world"])
    ]
    grid = np.array(list(itertools.product(FACTORS, POWERS, TEMPERS if (table["tau"] > 0).all() else [0.0])))
    means = [
        np.mean(
            [
                scores[nearest(ranks, factor * n**power * (tau / DEFAULT_TEMPERATURE) ** temper * target)]
                for n, tau, target, ranks, scores in worlds
            ]
        )
        for factor, power, temper in grid
    ]
    best = grid[np.isclose(means, max(means))]
    return float(np.exp(np.log(best[:, 0]).mean())), float(best[:, 1].mean()), float(best[:, 2].mean())


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of the formula, a constant window and the best rule, in points; a row per setting and world."""
    found = {}
    for (negatives, tau, world), here in table.groupby([*SETTING, "world"]):
        peers = table[(table[SETTING] == [negatives, tau]).all(axis=1) & (table["world"] != world)]
        peers = peers[~peers["strategy"].isin(BASELINES)].assign(mean=peers[HALVES].mean(axis=1))
        constant, rule = (
            peers[peers["rank"].notna() == window].groupby("strategy")["mean"].mean().idxmax()
            for window in (True, False)
        )
        scores, own = here.set_index("strategy")[HALVES], here[here["rank"].notna()].set_index("strategy")
        said = own.index[nearest(own["rank"].to_numpy(), middle(here["target"].iloc[0], negatives, tau or None))]
        best = np.mean([scores[other][own[half].idxmax()] for half, other in zip(HALVES, HALVES[::-1], strict=True)])
        named = {"formula": said, "constant": constant, "rule": rule}
        found[negatives, tau, world] = {name: best - scores.loc[strategy].mean() for name, strategy in named.items()}
    return pd.DataFrame(found).T


def summary(regret: pd.DataFrame) -> pd.DataFrame:
    """Return mean regrets with 95 % t intervals over worlds, and how much less the formula's is than the others'."""
    less = regret.drop(columns="formula").sub(regret["formula"], axis=0).add_suffix(" less formula")
    frame = pd.concat([regret, less], axis=1).groupby(level=2).mean()  # a world's settings are no sample
    reach = stats.t.ppf(0.975, len(frame) - 1) * frame.std() / np.sqrt(len(frame))
    return pd.DataFrame({"points": frame.mean(), "low": frame.mean() - reach, "high": frame.mean() + reach})


if __name__ == "__main__":
    table = pd.concat([rows(Path(name)) for name in sys.argv[1:]])
    regret = regrets(table)
    for setting, part in [*regret.groupby(level=[0, 1]), ("all", regret)]:
        print(f"negatives, tau: {setting}", summary(part).round(2).to_string(), sep="\n")
    factor, power, temper = fitted(table)
    print(f"these worlds would fit {factor:.2f} x negatives^{power:.2f} x (tau / 0.07)^{temper:.2f} x the median rank")
