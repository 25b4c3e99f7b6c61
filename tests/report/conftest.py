"""A small comparison with all that a report shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from negbench.commands.compare import build_grid
from negbench.display import Display
from negbench.executors import executor_of
from negbench.files import write_json
from negbench.grid.cells import plan
from negbench.grid.comparison import ComparisonFolder, groups_of
from negbench.report.verdicts import Rules, rows_of, tables_of
from negbench.scene import Scenes

STRATEGIES = ("in-batch", "qure", "top-k")
LOSSES = ("bradley-terry", "info-nce")


@pytest.fixture(scope="session")
def compared(toy_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs folder of the comparison 'small': three strategies, two losses, two seeds, tested."""
    runs = tmp_path_factory.mktemp("compared")
    axes = {"strategies": ",".join(STRATEGIES), "losses": ",".join(LOSSES), "backbones": None, "datasets": None}
    grid = build_grid({**axes, "seeds": "2"}, {}, None, [*toy_sets], None)
    cells = plan(grid.configs(), runs, Display(), Scenes())
    ComparisonFolder(runs / "small").compute(cells, executor_of(1), tracking_uri="none")
    tables = tables_of(groups_of(runs, "small"))
    write_json(runs / "small" / "statistics.json", [r.plain() for t in tables for r in rows_of(t, Rules())])
    return runs
