"""`negbench export`: copy runs from their folders into an MLflow store."""

from __future__ import annotations

from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", help="Copy finished runs into an MLflow store (again), in place of earlier copies there.")(
        export
    )


def export(
    runs: Annotated[list[str], typer.Argument(help="Runs, by id or a part of it that only one has.")],
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Copy each run."""
    from negbench import files
    from negbench.report.curve import write_curve
    from negbench.runfolder import find_run
    from negbench.tracking import Tracker

    root = files.runs_dir(runs_dir)
    tracker = Tracker.open(root, tracking_uri)
    for name in runs:
        folder = find_run(root, name)
        write_curve(folder)  # drawn here alone: MLflow draws its own, and a run need not wait for a plot
        typer.echo(f"{folder.run_id} -> {tracker.shown} run {tracker.export(folder)}")
