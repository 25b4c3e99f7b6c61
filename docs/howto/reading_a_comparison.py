"""Reading a comparison in pandas: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Reading a comparison in pandas
#
# A comparison is a table: `negbench.load(NAME).results` has a row per finished cell. Its folder holds plain files, too,
# which you can read without negbench.

# %%
from pathlib import Path

import pandas as pd

import negbench
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

# %% [markdown]
# An example: the batch alone, and with an image that a rule draws for each query; three seeds, on generated
# vectors (seconds).

# %%
status = negbench_command(
    "compare --strategies in-batch,in-batch+top-k,in-batch+qure --losses info-nce --seeds 3 --datasets vectors "
    "--backbones vectors --lr 0.01 --set train.epochs=2 --set dataset.train_images=200 --set dataset.train_queries=100 "
    "--set dataset.val_images=200 --set dataset.val_queries=100 "
    "--name read-me --tracking-uri none --runs-dir runs".split()
)
comparison = negbench.load("read-me", Path("runs"))
print("exit status", status)

# %% [markdown]
# ## Every cell
#
# A column for each axis of the comparison, then `seed`, `run`, the metrics, what the strategy did, and the cost. Shares
# are in points, as everything printed: a recall of 0.31 is 31.

# %%
results = comparison.results
print(results.groupby("strategy")[["recall_at_10", "false_negative_rate_draws", "train_seconds"]].agg(["mean", "std"]))

# %% [markdown]
# ## The verdicts
#
# One row per strategy and metric. `against_baseline` is its mean minus that of the baseline, here the batch alone;
# `against_baseline_low` and `against_baseline_high` bound its simultaneous interval for the whole table; `verdict`
# follows from it. `against_best` and `standing` are the same against the best with as many negatives. See
# [statistics](../statistics.md).

# %%
main = comparison.verdicts.query("main").set_index("strategy")
print(main[["mean", "negatives", "against_baseline", "against_baseline_low", "against_baseline_high", "verdict"]])

# %% [markdown]
# ## By query
#
# `per_query` returns an array [cells, queries], a row for each row of `results`; the intervals are computed from paired
# differences of these. Here every seed has its own queries, so a difference is taken within a seed.

# %%
hits = pd.DataFrame(comparison.per_query("recall_at_10"), index=pd.MultiIndex.from_frame(results[["strategy", "seed"]]))
difference = hits.loc["in-batch+qure"] - hits.loc["in-batch"]
print("in-batch+qure minus in-batch:", round(difference.to_numpy().mean(), 2), "points; by seed:")
print(difference.mean(axis=1).round(2).to_string())

# %% [markdown]
# ## Files
#
# The folder has the same in files that need no negbench: `statistics.csv` (verdicts, in the unit of the metric),
# `comparison.json` (which run each cell is), and per run `result.json`, `ranks.parquet` and `metrics.jsonl`, which has
# a line per logged step.

# %%
files = sorted(path.name for path in Path("runs/read-me").iterdir() if path.is_file())
print(files)
curve = pd.read_json(Path("runs") / results["run"][0] / "metrics.jsonl", lines=True)
print(curve.filter(regex="^(step|epoch|train/loss|val/)").tail(3).to_string(index=False))
