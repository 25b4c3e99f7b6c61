"""`negbench run`: train and score one strategy."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from negbench.cli import command, output
from negbench.settings.options import Run

if TYPE_CHECKING:
    from negbench.store.run_result import RunResult


def _dry_run(options: Run, say: Callable[[str], None]) -> Any:
    """Return a round of the one run."""
    from negbench import api
    from negbench.campaign.driver import Round
    from negbench.display import Display
    from negbench.grid.cells import plan_cells
    from negbench.grid.comparison import ComparisonFolder
    from negbench.loop.runs import DATA
    from negbench.machine import files

    runs = files.runs_dir(options.runs_dir)
    config = api.plan_of(options).config
    return Round(ComparisonFolder(runs / "run"), plan_cells([config], runs, Display(), DATA)), []


@command.of(
    Run,
    "negbench run --strategy qure --backbone tiny --dataset synthetic",
    "negbench run --strategy qure --backbone blip2 --dataset fashioniq",
    "negbench run --system dqe --backbone clip --dataset cirr --seed 1",
    help="Train and score one run; prints its metrics and where it is stored. Rerun the command to resume.",
    dry_run=_dry_run,
)
def run(options: Run) -> dict[str, Any]:
    """Compute and print."""
    from negbench import api

    result = api.run(options=options)
    _print(output.console(), result, options.tracking_uri)
    return {"run": result.run_id, "path": result.path, "reused": result.reused, **result.details}


def _print(console: Any, result: "RunResult", tracking_uri: str | None) -> None:
    from negbench.analysis.run_tables import behaviour_lines, run_table
    from negbench.display import notes

    manifest = result.folder.manifest
    notes([*manifest["dataset"]["remarks"], *result.details["remarks"]])
    if manifest["dataset"]["partial"]:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(run_table(result.folder))
    for line in behaviour_lines(result.folder):
        console.print(line, highlight=False)
    if result.reused:
        console.print("already finished", highlight=False)
    console.print(f"run    {result.run_id}", highlight=False, soft_wrap=True)
    console.print(f"stored {result.path}", highlight=False, soft_wrap=True)
    if result.tracking_error:
        console.print(
            f"no MLflow copy: {result.tracking_error}; `negbench ui` copies runs that the store lacks", style="yellow"
        )
    elif tracking_uri != "none":
        console.print(f"look   negbench ui --runs-dir {result.path.parent}", highlight=False, soft_wrap=True)
