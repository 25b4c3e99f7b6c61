"""`negbench report`: one page of tables, figures and galleries, readable without network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from negbench.cli import command
from negbench.options import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    command.add(
        app,
        "report",
        Report,
        report,
        help="Write one HTML file with the tables and figures of a comparison or of claims.",
        examples=[
            "negbench report demo",
            "negbench report demo --galleries 5",
        ],
    )


def report(given: Mapping[str, Any]) -> None:
    """Build the page and print where it lies."""
    from negbench import files
    from negbench.layers import plugin_layer
    from negbench.report.build import write_report

    asked = Report.parsed(given)
    plugin_layer(asked.plugin)
    page, *others = write_report(files.runs_dir(asked.runs_dir), asked.name, asked.galleries)
    typer.echo(str(page))
    for folder, what in (("tables", "md, tex, csv"), ("figures", "png")):
        count = sum(path.parent.name == folder for path in others)
        if count:
            typer.echo(f"{page.parent / folder}: {count} files ({what})")
