"""`negbench report`: one page of tables, figures and galleries, readable without network."""

from __future__ import annotations

from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "report",
        help="Write one self-contained HTML page with the tables and figures of a comparison, a study or a run.",
        epilog="Example: negbench report demo",
    )(report)


def report(
    name: Annotated[str, typer.Argument(help="A comparison, a study, or a run by its id or a part of that.")],
    galleries: Annotated[
        int, typer.Option(min=0, max=20, help="Best, worst and random queries to show, each so many; 0: no images.")
    ] = 2,
    runs_dir: options.RunsDir = None,
) -> None:
    """Build the page and print where it lies."""
    from negbench import files
    from negbench.report.build import write_report

    page, *others = write_report(files.runs_dir(runs_dir), name, galleries)
    typer.echo(str(page))
    for folder, what in (("tables", "md, tex, csv"), ("figures", "png")):
        count = sum(path.parent.name == folder for path in others)
        if count:
            typer.echo(f"{page.parent / folder}: {count} files ({what})")
