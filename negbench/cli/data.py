"""`negbench data`: make and check data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(help="Make and check data sets.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(data_app, name="data")


@data_app.command("synthesize")
def synthesize(
    out: Annotated[Path, typer.Option("--out", help="New folder, in FashionIQ's layout with relevance.json.")],
    seed: Annotated[int, typer.Option(help="Fixes every pixel and word.", min=0)] = 0,
    twins: Annotated[float, typer.Option(help="Mean number of relevant images per query.")] = 4.5,
    train_images: Annotated[int, typer.Option(help="Per category.")] = 1000,
    train_queries: Annotated[int, typer.Option(help="Per category.")] = 1000,
    val_images: Annotated[int, typer.Option(help="Per category.")] = 600,
    val_queries: Annotated[int, typer.Option(help="Per category.")] = 400,
) -> None:
    """Write a synthetic data set of any size: rendered garments with known ground truth."""
    from rich.progress import Progress

    from negbench.datasets._synthesis import Spec
    from negbench.datasets._synthesis import synthesize as write

    spec = Spec(seed, twins, train_images, train_queries, val_images, val_queries)
    with Progress(transient=True) as progress:
        task = progress.add_task("render", total=None)
        write(out, spec, lambda done, total: progress.update(task, completed=done, total=total))
    typer.echo(f"wrote {out}: use it with --dataset synthetic --data-root {out}")
