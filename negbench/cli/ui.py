"""`negbench ui`: the MLflow pages of the runs, on this machine only."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui", help="Open the MLflow pages of the runs on 127.0.0.1.")(ui)


def ui(
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 5000,
) -> None:
    """Replace this process by MLflow's server."""
    from negbench import files
    from negbench.errors import RunError
    from negbench.tracking import default_uri

    root = files.runs_dir(runs_dir)
    if tracking_uri is None and not (root / "mlflow.db").exists():
        raise RunError(f"there is no MLflow store in {root}: compute a run first, or name the folder with --runs-dir")
    uri = tracking_uri or default_uri(root)
    typer.echo(f"http://127.0.0.1:{port}  ({uri}); stop it with Ctrl-C")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    sys.stdout.flush()
    os.execv(sys.executable, command)
