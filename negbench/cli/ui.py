"""`negbench ui`: the MLflow pages of the runs, on this machine only."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "ui", help="Serve the MLflow pages of the runs on 127.0.0.1; prints the address of a comparison's runs."
    )(ui)


def ui(
    name: Annotated[
        str | None, typer.Argument(help="Comparison, study, ... to open [default: what was computed last].")
    ] = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 5000,
    workers: Annotated[int, typer.Option(help="Server processes; one is enough for one person.", min=1)] = 1,
) -> None:
    """Replace this process by MLflow's server."""
    from negbench import files
    from negbench.errors import RunError
    from negbench.tracking import Tracker

    root = files.runs_dir(runs_dir)
    if tracking_uri is None and not (root / "mlflow.db").exists():
        raise RunError(f"there is no MLflow store in {root}: compute a run first, or name the folder with --runs-dir")
    tracker = Tracker.open(root, tracking_uri)
    typer.echo(f"http://127.0.0.1:{port}{tracker.address(name)}\n({tracker.shown}; stop it with Ctrl-C)")
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", str(workers)]
    store = {"MLFLOW_BACKEND_STORE_URI": tracker.uri}  # may hold a password, which a list of processes must not show
    sys.stdout.flush()
    # MLflow's job runner starts processes of its own, for evaluations by language models; its pages report their use
    off = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    os.execve(sys.executable, command, os.environ | store | off)
