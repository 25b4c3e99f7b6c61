"""`negbench pack`: a comparison as one file that others can merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "pack",
        help="Write a comparison's finished cells into one file to share: configurations, versions, per-query ranks, "
        "curves and tables; no weights, no images, no paths of this machine.",
        epilog="Example: negbench pack demo --out demo.negbench.zip",
    )(pack)


def pack(
    name: Annotated[str, typer.Argument(help="A comparison.")],
    out: Annotated[Path | None, typer.Option(help="File to write [default: NAME.negbench.zip].")] = None,
    runs_dir: options.RunsDir = None,
) -> None:
    """Write the file and say what is in it."""
    from negbench import files
    from negbench.grid.pack import ENDING, write_pack

    path = out or Path(files.checked_name(name, "NAME") + ENDING)
    count = write_pack(files.runs_dir(runs_dir), name, path)
    typer.echo(f"{path}: {count} cells, {path.stat().st_size / 2**20:.1f} MiB")
