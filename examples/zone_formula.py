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
FACTORS = np.geomspace(0.5, 8, 25)
POWERS = np.linspace(0, 0.6, 16)
TEMPERS = np.linspace(0.5, 2, 16)


def rows(folder: Path) -> pd.DataFrame:
    """Return a row per world and strategy: the formula's inputs, and R@10 in points on either half of the seeds.

    `rank` is the geometric middle of a window, from 1; NaN for other strategies.
    """
    records = []
    for group in read_findings(folder.parent, folder.name).groups:
        results = [run.result for run in folders_of(group)]
        config = config_of(group)
        first = results[0]["regime_by_refresh"][0]
        rank = np.nan
        if config.strategy.name == WINDOW:
            options = config.strategy.options
            rank = np.sqrt((options["start"] + 1) * options["stop"])
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


def fit(table: pd.DataFrame) -> tuple[float, float, float]:
    """Return the factor, the power and the temper with the highest mean score; the middle of those that tie."""
    windows = table[table["rank"].notna()]
    worlds = []
    for (negatives, tau, _), world in windows.groupby([*SETTING, "world"]):
        target = world["target"].iloc[0]
        worlds.append((negatives, tau, target, world["rank"].to_numpy(), world[HALVES].mean(axis=1).to_numpy()))
    tempers = TEMPERS if (table["tau"] > 0).all() else [0.0]
    grid = np.array(list(itertools.product(FACTORS, POWERS, tempers)))
    means = []
    for factor, power, temper in grid:
        scores_at_formula = []
        for negatives, tau, target, ranks, scores in worlds:
            rank = factor * negatives**power * (tau / DEFAULT_TEMPERATURE) ** temper * target
            scores_at_formula.append(scores[nearest(ranks, rank)])
        means.append(np.mean(scores_at_formula))
    best = grid[np.isclose(means, max(means))]
    factors, powers, best_tempers = best.T
    return float(np.exp(np.log(factors).mean())), float(powers.mean()), float(best_tempers.mean())


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return the regret of the formula, a constant window and the best rule, in points; a row per setting and world."""
    regret_of = {}
    for (negatives, tau, world), rows_of_world in table.groupby([*SETTING, "world"]):
        peers = table[(table[SETTING] == [negatives, tau]).all(axis=1) & (table["world"] != world)]
        peers = peers[~peers["strategy"].isin(BASELINES)].assign(mean=peers[HALVES].mean(axis=1))
        is_window = peers["rank"].notna()
        scores = rows_of_world.set_index("strategy")[HALVES]
        windows = rows_of_world[rows_of_world["rank"].notna()].set_index("strategy")
        rank = middle(rows_of_world["target"].iloc[0], negatives, tau or None)
        choices = {
            "formula": windows.index[nearest(windows["rank"].to_numpy(), rank)],
            "constant": best_strategy(peers[is_window]),
            "rule": best_strategy(peers[~is_window]),
        }
        first, second = HALVES
        best = np.mean([scores[second][windows[first].idxmax()], scores[first][windows[second].idxmax()]])
        regret_of[negatives, tau, world] = {
            name: best - scores.loc[strategy].mean() for name, strategy in choices.items()
        }
    return pd.DataFrame(regret_of).T


def best_strategy(rows: pd.DataFrame) -> str:
    """Return the strategy with the highest mean over some worlds."""
    return rows.groupby("strategy")["mean"].mean().idxmax()


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
    factor, power, temper = fit(table)
    print(f"these worlds would fit {factor:.2f} x negatives^{power:.2f} x (tau / 0.07)^{temper:.2f} x the median rank")
