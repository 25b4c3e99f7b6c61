"""`negbench init`: a folder with one's own model and data, and the files and commands to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "init",
        help="Look at a folder of images, or embeddings, and triplets: say what is there and what is missing, write a "
        "commented recipe and a strategy to change, and name the next commands.",
        epilog="Example: negbench init my-data",
    )(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder with images or embeddings, and a .jsonl, .csv or .parquet.")],
) -> dict[str, Any]:
    """Look, write, print."""
    from negbench.errors import DataError
    from negbench.own.init import commands, document, look, write

    console = options.console()
    found = look(folder)
    for title, lines in (("found", found.said), ("missing", found.missing)):
        for line in lines:
            console.print(f"{title:8} {line}", highlight=False, markup=False)
    if not found.comparable and not found.minable:
        raise DataError(f"{folder}: nothing to begin with yet; missing: {'; '.join(found.missing)}")
    written = write(found)
    for path in written:
        console.print(f"{'wrote':8} {path}", highlight=False, soft_wrap=True)
    console.print("next", highlight=False)
    for line in commands(found):
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    return dict(document(found, written))
