"""`negbench ui`: serve the MLflow pages of the runs, on this machine only."""

import os
import shlex
import socket
import subprocess
import sys
import sysconfig

import typer

from negbench.cli import command
from negbench.settings.command_options import Ui

_PANEL = "Close MLflow's Assistant on the right, which a first visit opens: beside it the titles of charts are cut."
_HOSTS = "127.0.0.1,127.0.0.1:*,localhost,localhost:*"  # MLflow's default also allows every private address

_SAY = """
import http.client, os, sys, time
_, port, server, address = sys.argv
while os.getppid() == int(server):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=1)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
        sys.exit(print(address, flush=True))
    except (OSError, http.client.HTTPException):
        time.sleep(0.2)
"""  # run beside the server until it answers or ends


@command.of(
    Ui,
    "negbench ui demo",
    "negbench ui",
    "negbench ui --runs-dir other/runs --port 5001",
    help="Copy what the MLflow store lacks, serve MLflow's pages on 127.0.0.1 unless the store is a server, and print "
    "the address of a comparison: bar charts of its strategies, the best first.",
)
def ui(options: Ui) -> None:
    """Replace this process by MLflow's server; another prints the address when it answers."""
    from negbench.errors import OptionError, RunError
    from negbench.machine import files

    root = files.runs_dir(options.runs_dir)
    if options.tracking_uri is None and not any((*root.glob("*/config.json"), *root.glob("*/study.json"))):
        raise RunError(f"no run in {root}: compute one first, or name the folder with --runs-dir")
    typer.echo(f"reading {root}, and copying to MLflow what its store lacks ...")

    from negbench.machine.signals import APART
    from negbench.store.parents import restore  # the line comes first: this takes seconds
    from negbench.store.tracking import Tracker

    tracker = Tracker.open(root, options.tracking_uri)
    if tracker.uri.startswith("http"):  # a server, which has pages of its own
        for line in (*restore(tracker), tracker.printable_uri.rstrip("/") + tracker.address(options.name)):
            typer.echo(line)
        return
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", options.port))
        except OSError as error:
            raise OptionError(f"--port {options.port}: {error.strerror}: give another one") from error
    for line in restore(tracker):
        typer.echo(line)
    address = f"http://127.0.0.1:{options.port}{tracker.address(options.name)}"
    address += f"\n({tracker.printable_uri}; stop it with Ctrl-C)"
    typer.echo(_PANEL)
    typer.echo("starting MLflow's server ...")
    arguments = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1"]
    arguments += ["--port", str(options.port), "--workers", "1", "--allowed-hosts", _HOSTS]
    # uvicorn imports from the current folder first, even if Python is told not to
    arguments += ["--uvicorn-opts", f"--app-dir {shlex.quote(sysconfig.get_path('purelib'))}"]
    store = {"MLFLOW_BACKEND_STORE_URI": tracker.uri}  # may hold a password, which a list of processes must not show
    sys.stdout.flush()
    subprocess.Popen([sys.executable, "-I", "-c", _SAY, str(options.port), str(os.getpid()), address])
    # MLflow's job runner starts extra processes, for evaluations by language models
    os.execve(sys.executable, arguments, os.environ | store | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | APART)
