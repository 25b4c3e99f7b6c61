"""Fixtures of a small comparison with all that a report shows, and of a large one."""

import itertools
import shutil
from pathlib import Path

import pytest

from negbench.analysis.findings import judged
from negbench.analysis.verdicts import Rules
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.grid.axes import Axes
from negbench.grid.cells import plan
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution, compute
from negbench.grid.executors import Here
from negbench.machine.files import seal, write_json
from negbench.report.build import write_report
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder

STRATEGIES = ("in-batch", "qure", "top-k")
LOSSES = ("bradley-terry", "info-nce")


@pytest.fixture(scope="session")
def compared(toy_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of the comparison 'small': three strategies, two losses, two seeds, tested."""
    runs = tmp_path_factory.mktemp("compared")
    axes = Axes.of(Compare(strategies=STRATEGIES, losses=LOSSES, seeds=2, sets=tuple(toy_sets)))
    cells = plan(axes.configs(), runs, Display(), Scenes())
    compute(ComparisonFolder(runs / "small"), cells, Execution(Here(), "none"))
    judged(runs, "small", Rules()).write(runs / "small")
    return runs


MANY = (
    "in-batch", "in-batch-semi-hard", "sentence-transformers", "fnc", "oracle-after-target", "cirqrs", "dqe",
    "distance-weighted", "after-target", "all-corpus", "shifted-top-k", "simans", "uniform-bins", "top-k", "qure",
)  # fmt: skip
_EPOCHS, _REFRESHES = 30, 6  # of a published schedule (QuRe's)


@pytest.fixture(scope="session")
def many(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of the comparison 'many': 30 groups of runs as long as published ones.

    Nothing is trained for it: they are copies of the runs of `compared`, with ranks that differ, whose epochs and
    refreshes are repeated.
    """
    runs, cells = tmp_path_factory.mktemp("many"), []
    trained = {(row["strategy"], row["loss"], row["seed"]): row for row in ComparisonFolder(compared / "small").cells()}
    for number, name in enumerate(MANY):
        for loss, seed in itertools.product(LOSSES, (0, 1)):
            row = trained[STRATEGIES[number % 3], loss, seed]
            folder = RunFolder(runs / f"{row['run']}-{number}")
            shutil.copytree(compared / row["run"], folder.path)
            points = folder.metrics()
            folder.write_metrics([{**points[i % len(points)], "step": i, "epoch": i} for i in range(_EPOCHS)])
            result, ranks = folder.result, folder.ranks()
            for key in ("behaviour_by_refresh", "regime_by_refresh"):
                rows = result.get(key) or []
                result[key] = [{**rows[i % len(rows)], "epoch": 5 * i} for i in range(_REFRESHES * bool(rows))]
            folder.write_result(result)
            folder.write_ranks(ranks.assign(target_rank=ranks["target_rank"] + number // 3))  # so that they differ
            cells.append({**row, "strategy": name, "run": folder.run_id})
    book = ComparisonFolder(runs / "many")
    seal(book.path)
    write_json(book.path / "comparison.json", {"kind": "comparison", "cells": cells})
    judged(runs, "many", Rules()).write(book.path)
    write_report(runs, "many")
    return runs
