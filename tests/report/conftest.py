"""Fixtures of a small comparison with all that a report shows, and of a large one."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from negbench.analysis import cell_check
from negbench.analysis.findings import judge_comparison, read_findings
from negbench.analysis.verdicts import Rules
from negbench.display import Display
from negbench.grid.axes import Axes
from negbench.grid.cells import plan_cells
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution, compute_and_log
from negbench.grid.executors import InProcess
from negbench.loop.runs import DATA
from negbench.machine.files import lock_file, seal, write_json, write_text
from negbench.report.build import comparison_page, write_report
from negbench.report.charts import Chart
from negbench.report.page import PageSection, html
from negbench.report.tables import tables
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from tests.made import rank_anew

STRATEGIES = ("in-batch", "qure", "top-k")
LOSSES = ("bradley-terry", "info-nce")


@pytest.fixture(scope="session")
def compared(toy_sets: list[str], shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of the comparison 'small': three strategies, two losses, two seeds, tested.

    It is computed once for all processes; each has its own copy.
    """
    runs = shared_folder / "compared"
    sets = (*toy_sets, "train.epochs=3")
    with lock_file(shared_folder / "compared.lock"):
        if not (runs / "small" / "statistics.json").exists():
            axes = Axes.of(Compare(strategies=STRATEGIES, losses=LOSSES, seeds=2, sets=sets))
            cells = plan_cells(axes.configs(), runs, Display(), DATA)
            compute_and_log(ComparisonFolder(runs / "small"), cells, Execution(InProcess(), "none"))
            judge_comparison(runs, "small", Rules()).write(runs / "small")
    return Path(shutil.copytree(runs, tmp_path_factory.mktemp("compared") / "runs"))


@pytest.fixture(scope="session")
def page_text(words_of: Callable[[Path], str]) -> Callable[..., str]:
    """Return a function that gives the text of a comparison's page without its charts: most of the time of a page."""

    def text(runs: Path, name: str, galleries: int = 0) -> str:
        findings = read_findings(runs, name)
        page = comparison_page(runs / name, findings, tables(findings), galleries)
        chapters = {}
        for key, sections in page.chapters.items():
            chapters[key] = [without_charts(section) for section in sections]
        return words_of(write_text(runs / name / "undrawn.html", html(replace(page, chapters=chapters))))

    return text


def without_charts(section: PageSection) -> PageSection:
    return replace(section, parts=tuple(part for part in section.parts if not isinstance(part, Chart)))


@pytest.fixture(autouse=True)
def relabelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let made comparisons give runs other labels than their own, which `tests/reliability/test_forged.py` refuses."""
    monkeypatch.setattr(cell_check, "check_cells", lambda runs, cells: None)


MANY = (
    "in-batch", "in-batch-semi-hard", "sentence-transformers", "fnc", "oracle-after-target", "cirqrs", "dqe",
    "distance-weighted", "after-target", "all-corpus", "shifted-top-k", "simans", "uniform-bins", "top-k", "qure",
)  # fmt: skip
_EPOCHS = 30  # of a published schedule (QuRe's), as its refreshes
_REFRESHES = 6


def repeat(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return `count` rows, of which each repeats the next of the given ones; none if none is given."""
    return [dict(row) for row in islice(cycle(rows), count)]


def make_longer(folder: RunFolder) -> None:
    """Repeat a run's epochs and refreshes, so that it is as long as a published one."""
    points = repeat(folder.metrics(), _EPOCHS)
    for epoch, point in enumerate(points):
        point.update(step=epoch, epoch=epoch)
    folder.write_metrics(points)
    result = folder.result
    for key in ("behaviour_by_refresh", "regime_by_refresh"):
        refreshes = repeat(result.get(key) or [], _REFRESHES)
        for number, refresh in enumerate(refreshes):
            refresh["epoch"] = 5 * number
        result[key] = refreshes
    folder.write_result(result)


@pytest.fixture(scope="session")
def many(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of the comparison 'many': 30 groups of runs as long as published ones.

    Nothing is trained for it: they are copies of the runs of `compared`, with ranks that differ, whose epochs and
    refreshes are repeated.
    """
    runs = tmp_path_factory.mktemp("many")
    cells = []
    trained = {(row["strategy"], row["loss"], row["seed"]): row for row in ComparisonFolder(compared / "small").cells()}
    for number, name in enumerate(MANY):
        for loss in LOSSES:
            row = trained[STRATEGIES[number % 3], loss, 0]
            folder = RunFolder(runs / f"{row['run']}-{number}")
            shutil.copytree(compared / row["run"], folder.path)
            make_longer(folder)
            ranks = folder.ranks()
            worse = (ranks["target_rank"] + number // 3).clip(upper=ranks["gallery_size"])  # so that they differ
            rank_anew(folder, ranks.assign(target_rank=worse))
            cells.append({**row, "strategy": name, "run": folder.run_id})
    book = ComparisonFolder(runs / "many")
    seal(book.path)
    write_json(book.path / "comparison.json", {"kind": "comparison", "cells": cells})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_check, "check_cells", lambda runs, cells: None)
        judge_comparison(runs, "many", Rules()).write(book.path)
        write_report(runs, "many")
    return runs
