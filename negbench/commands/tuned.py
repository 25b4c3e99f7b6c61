"""`negbench compare --tuned N`: the same comparison again, every strategy at the best of its N trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from negbench.analysis.verdicts import Rules
from negbench.commands.cells import computed
from negbench.config import RunConfig
from negbench.display import log, stages
from negbench.errors import NegbenchError
from negbench.executors import Executor
from negbench.grid.cells import SCENES, Cell, Outcome, plan
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.tuning import SUFFIX, write_tunings
from negbench.report.build import read_rows, write_report
from negbench.report.finish import finish
from negbench.report.tuned import finish_tuned
from negbench.runfolder import Overwrite
from negbench.tuning.tuned import Combination, combinations, tune


def combinations_of(
    console: Console, configs: Sequence[RunConfig], cells: Sequence[Cell], trials: int, search: Sequence[str]
) -> list[Combination]:
    """What is tuned, said in a line."""
    found = combinations(configs, cells, search)
    tuned = [each for each in found if each.spec is not None]
    console.print(f"tuning: {trials} trials for each of {len(tuned)} strategies, on a part of train", highlight=False)
    knobless = dict.fromkeys(each.labels["strategy"] for each in found if each.spec is None)
    if knobless:
        console.print(f"nothing to tune: {', '.join(knobless)}", highlight=False)
    return found


def at_equal_tuning(
    console: Console,
    found: Sequence[Combination],
    folder: Path,
    trials: int,
    rules: Rules,
    *,
    executor: Executor,
    tracking_uri: str | None,
    overwrite: Overwrite,
    report: bool,
) -> list[Outcome]:
    """Trials, the runs of what they found, and both tables side by side; the outcomes of these runs.

    Raises:
        NegbenchError: a search that failed; what the others found is computed and printed before.
    """
    runs, name = folder.parent, folder.name
    results = tune(found, runs, name, trials, executor=executor, tracking_uri=tracking_uri, report=log.info)
    write_tunings(folder, trials, [tuning for tuning, _ in results])
    configs = [config for _, mine in results for config in mine]
    labels = [tuning.labels for tuning, mine in results for _ in mine]
    with stages("plan") as display:
        cells = plan(configs, runs, display, SCENES, labels)
    tuned = ComparisonFolder(runs / f"{name}{SUFFIX}")
    outcomes = computed(tuned, cells, executor=executor, tracking_uri=tracking_uri, overwrite=overwrite)
    if any(outcome.run_id for outcome in outcomes):
        finish(console, runs, tuned.path.name, tracking_uri, rules, report=report)
        finish_tuned(console, runs, name, read_rows(folder), read_rows(tuned.path))
        if report:
            write_report(runs, name)
    failed = [tuning for tuning, _ in results if tuning.error]
    if failed:
        told = f"{failed[0].labels['strategy']}: {failed[0].error}"
        raise NegbenchError(f"{len(failed)} of {len(results)} searches failed ({told}); the same command goes on")
    return outcomes
