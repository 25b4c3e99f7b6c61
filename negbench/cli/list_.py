"""`negbench list`: what there is, with source and tunable ranges; imports no plug-in."""

from __future__ import annotations

from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list", help="List strategies, losses, backbones or datasets: one line, paper, tunable ranges.")(list_)


def list_(
    kind: Annotated[str | None, typer.Argument(help="strategies, losses, backbones or datasets [default: all]")] = None,
    plugin: options.Plugins = None,
) -> None:
    """Print the registry."""
    from negbench.errors import UnknownNameError
    from negbench.registry import KINDS, registry

    options.plugin_layer(plugin)
    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of plug-in", kind, KINDS)
    for number, each in enumerate(KINDS if kind is None else (kind,)):
        if kind is None:
            typer.echo(f"{'' if number == 0 else chr(10)}{each}")
        described = registry.describe(each)
        width = max((len(d.name) for d in described), default=0)
        for d in described:
            origin = "" if d.origin == "built-in" else f"  [{d.origin}]"
            typer.echo(f"  {d.name:{width}}  {d.summary}{origin}")
            typer.echo(f"  {'':{width}}  source: {d.paper or 'none named'}")
            for name, text in d.ranges.items():
                typer.echo(f"  {'':{width}}  tunable: {name} = {text}")
