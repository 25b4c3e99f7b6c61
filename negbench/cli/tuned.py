"""`negbench compare --tuned N`: the same comparison again, every strategy at the best of its N trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.config import RunConfig
    from negbench.grid.cells import Cell, Outcome
    from negbench.report.verdicts import Rules
    from negbench.runfolder import Overwrite
    from negbench.study.tuned import Combination


def combinations_of(
    console: Any, configs: Sequence[RunConfig], cells: Sequence[Cell], trials: int | None, search: list[str] | None
) -> list[Combination]:
    """What is tuned, said in a line; none without `--tuned`."""
    from negbench.errors import OptionError
    from negbench.study.tuned import combinations

    if trials is None:
        if search:
            raise OptionError("--search is what trials move: add --tuned N")
        return []
    found = combinations(configs, cells, search or ())
    tuned = [each for each in found if each.spec is not None]
    console.print(f"tuning: {trials} trials for each of {len(tuned)} strategies, on a part of train", highlight=False)
    knobless = dict.fromkeys(each.labels["strategy"] for each in found if each.spec is None)
    if knobless:
        console.print(f"nothing to tune: {', '.join(knobless)}", highlight=False)
    return found


def at_equal_tuning(
    console: Any,
    found: Sequence[Combination],
    folder: Path,
    trials: int,
    rules: Rules,
    *,
    workers: int,
    tracking_uri: str | None,
    overwrite: Overwrite,
    report: bool,
) -> list[Outcome]:
    """Trials, the runs of what they found, and both tables side by side; the outcomes of these runs.

    Raises:
        NegbenchError: a search that failed; what the others found is computed and printed before.
    """
    from negbench.cli.cells import computed
    from negbench.errors import NegbenchError
    from negbench.grid.cells import SCENES, plan
    from negbench.grid.comparison import ComparisonFolder
    from negbench.grid.tuning import SUFFIX, write_tunings
    from negbench.report.build import read_rows, write_report
    from negbench.report.comparison import finish
    from negbench.report.tuned import finish_tuned
    from negbench.study.tuned import tune

    runs, name = folder.parent, folder.name
    results = tune(found, runs, name, trials, workers=workers, tracking_uri=tracking_uri, report=typer.echo)
    write_tunings(folder, trials, [tuning for tuning, _ in results])
    configs = [config for _, mine in results for config in mine]
    labels = [tuning.labels for tuning, mine in results for _ in mine]
    with options.stages(console, "plan") as display:
        cells = plan(configs, runs, display, SCENES, labels)
    tuned = ComparisonFolder(runs / f"{name}{SUFFIX}")
    outcomes = computed(console, tuned, cells, workers=workers, tracking_uri=tracking_uri, overwrite=overwrite)
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
