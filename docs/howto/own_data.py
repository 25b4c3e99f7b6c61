"""Your own data: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Your own data
#
# A file of triplets (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`) is a data set. `reference` and `target` name
# images, `text` says what changes. Optional columns: `split` (train, val), `id` (names the query), `group` (queries of
# a group share a gallery), `relevant` (every image that answers the query, so that
# [false negatives](false_negatives.md) can be counted; a list, or in a cell names with `;` between). Without `split`, a
# file is the split in its name (`own_train.json`, `own_val.json`), or a fifth of the targets becomes val, the same ones
# when rows are added. `--columns reference=pair[1],text=captions` names other columns or paths in a row, `reference=0`
# places without a header, `paths=pool.jsonl:did:img_path` a table of paths by id.

# %%
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import negbench

# %% [markdown]
# ## A folder to try
#
# 60 small pictures of plain colours, and "make it lighter" as the change. Use your own folder instead.

# %%
images = Path("images")
images.mkdir(exist_ok=True)
colours = np.random.default_rng(0).integers(0, 200, size=(30, 3))
for number, colour in enumerate(colours):
    Image.new("RGB", (48, 48), tuple(map(int, colour))).save(images / f"{number:02}.png")
    Image.new("RGB", (48, 48), tuple(map(int, colour + 55))).save(images / f"{number:02}-light.png")

rows = [
    {
        "reference": f"{number:02}.png",
        "text": "make it lighter",
        "target": f"{number:02}-light.png",
        "split": "val" if number % 3 == 0 else "train",
    }
    for number in range(30)
]
Path("triplets.jsonl").write_text("\n".join(json.dumps(row) for row in rows))

# %% [markdown]
# ## What negbench reads

# %%
data = negbench.load_dataset("triplets", file=Path("triplets.jsonl"), root=images, split="val")
print(len(data.queries), "queries against", len(data.images), "images:", data.identity)

# %% [markdown]
# ## What a strategy would draw, without training
#
# `negbench audit` scores the training queries once, before training, and reports what each rule would draw.

# %%
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

where = "--data-root images"
status = negbench_command(f"audit --strategy top-k --dataset triplets.jsonl --backbone tiny {where}".split())
print("exit status", status)

# %% [markdown]
# ## Train and compare
#
# The tiny backbone was trained on garments and is used for its speed. Replace it by `--backbone clip` or `blip2` with
# weights, or by [your own embeddings](ten_minutes.md#your-own-embeddings).

# %%
status = negbench_command(
    f"compare --strategies in-batch,in-batch+top-k --losses info-nce --seeds 1 --datasets triplets.jsonl {where} "
    "--backbones tiny --set train.epochs=1 --name own --tracking-uri none".split()
)
print("exit status", status)

# %% [markdown]
# ## Scores of your own model
#
# Evaluation needs no model of negbench: any [queries, images] table of scores will do, and so will ranked lists, with
# `negbench evaluate --ranks FILE.json --dataset triplets.jsonl --data-root images`. The file maps a query's id to image
# ids, best first: the first is column `id`, or split and line in the triplets, from 1 (`val-1`); the others are the
# names there.

# %%
table = np.random.default_rng(1).normal(size=(len(data.queries), len(data.images)))
scores = data.evaluate(torch.from_numpy(table).float())
print({name: round(value, 3) for name, value in scores.items()})
