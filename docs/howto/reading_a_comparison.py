"""Reading a comparison in pandas: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Reading a comparison in pandas
#
# A comparison is a folder of plain files; you can read it without negbench.

# %%
import json
from pathlib import Path

import pandas as pd

from negbench.cli.main import run as negbench_command  # the shell's `negbench`

# %% [markdown]
# An example: three strategies, three seeds, on generated vectors (seconds).

# %%
status = negbench_command(
    "compare --strategies qure,top-k,in-batch --losses bradley-terry --seeds 3 --datasets vectors --backbones vectors "
    "--lr 0.01 --set train.epochs=2 --set dataset.train_images=200 --set dataset.train_queries=100 "
    "--set dataset.val_images=200 --set dataset.val_queries=100 "
    "--name read-me --tracking-uri none --runs-dir runs".split()
)
folder = Path("runs/read-me")
print("exit status", status)

# %% [markdown]
# ## The verdicts
#
# One row per strategy and metric. `gap` is how far it is behind the best with as many negatives; `gap_low` and
# `gap_high` bound its simultaneous interval for the whole table; `standing` follows from it. `difference` and `verdict`
# are the same against the baseline. See [statistics](../statistics.md).

# %%
verdicts = pd.read_csv(folder / "statistics.csv")
main = verdicts[verdicts.main]
print(main[["strategy", "mean", "negatives", "gap", "gap_low", "gap_high", "standing"]].to_string(index=False))

# %% [markdown]
# ## Every cell
#
# `comparison.json` names the run of each cell; a run's `result.json` has its metrics, behaviour and cost.

# %%
cells = pd.DataFrame(json.loads((folder / "comparison.json").read_text())["cells"])
results = [json.loads((Path("runs") / run / "result.json").read_text()) for run in cells.run]
cells["recall"] = [result["metrics"][result["main_metric"]] for result in results]
cells["false_negatives"] = [result["behaviour"].get("false_negative_rate_draws") for result in results]
print(cells.groupby("strategy")[["recall", "false_negatives"]].agg(["mean", "std"]))

# %% [markdown]
# ## By query
#
# `ranks.parquet` has the rank of every query's target; the intervals are computed from paired differences of these.

# %%
ranks = pd.concat(
    [
        pd.read_parquet(Path("runs") / row.run / "ranks.parquet").assign(strategy=row.strategy, seed=row.seed)
        for row in cells.itertuples()
    ]
)
print(ranks.columns.tolist())
hit = ranks.assign(hit=(ranks["target_rank"] <= 10).astype(float)).pivot_table(
    index=["seed", "query"], columns="strategy", values="hit"
)
difference = hit["qure"] - hit["in-batch"]
print("qure minus in-batch:", round(100 * difference.mean(), 2), "points;", "by seed:")
print((100 * difference.groupby("seed").mean()).round(2).to_string())

# %% [markdown]
# ## Training curves
#
# `metrics.jsonl` has one line per logged step: losses, recall, statistics of the pools and the regime.

# %%
curve = pd.read_json(Path("runs") / cells.run[0] / "metrics.jsonl", lines=True)
print(curve.filter(regex="^(step|epoch|train/loss|val/)").tail(3).to_string(index=False))
