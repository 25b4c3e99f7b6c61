"""`negbench data`: make and check data sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import command, options
from negbench.options import FetchData

if TYPE_CHECKING:
    from negbench.datasets.verify import Verification

SHOWN = 10  # problems of one kind on the terminal

data_app = typer.Typer(help="Make and check data sets.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    command.add(
        data_app,
        "fetch",
        FetchData,
        fetch,
        help="Fetch a data set's packages with npm (pinned versions, our hashes, no scripts) and draw its pictures.",
        examples=["negbench data fetch emoji"],
    )
    app.add_typer(data_app, name="data")


def fetch(given: Mapping[str, Any]) -> None:
    """Fetch, draw, and say whose pictures they are."""
    import os
    import time

    from rich.progress import Progress

    from negbench.datasets._fetch import fetch as fetched
    from negbench.datasets.emoji import draw

    asked = FetchData.parsed(given)
    out = asked.out or Path(os.environ.get("NEGBENCH_DATA") or "data") / "emoji"
    started = time.perf_counter()
    for line in fetched(out):
        typer.echo(line)
    typer.echo(f"fetched in {time.perf_counter() - started:.0f} s")
    started = time.perf_counter()
    with Progress(transient=True) as progress:
        task = progress.add_task("draw", total=None)
        count = draw(out, lambda done, total: progress.update(task, completed=done, total=total))
    typer.echo(f"{count:,} pictures drawn in {time.perf_counter() - started:.0f} s")
    typer.echo(f"use them with --dataset emoji --data-root {out}")


@data_app.command("synthesize")
def synthesize(
    out: Annotated[Path, typer.Option("--out", help="New folder, in FashionIQ's layout with relevance.json.")],
    seed: Annotated[int, typer.Option(help="Fixes every pixel and word.", min=0)] = 0,
    twins: Annotated[float, typer.Option(help="Mean number of relevant images per query.")] = 4.5,
    train_images: Annotated[int, typer.Option(help="Per category.")] = 1000,
    train_queries: Annotated[int, typer.Option(help="Per category.")] = 1000,
    val_images: Annotated[int, typer.Option(help="Per category.")] = 600,
    val_queries: Annotated[int, typer.Option(help="Per category.")] = 400,
    near_misses: Annotated[
        float | None, typer.Option(help="Mean number of images per query that miss one attribute [default: by chance].")
    ] = None,
    label_noise: Annotated[float, typer.Option(help="Share of train queries with a wrong target.")] = 0.0,
) -> None:
    """Write a synthetic data set of any size: rendered garments with known ground truth."""
    from rich.progress import Progress

    from negbench.datasets._synthesis import Spec
    from negbench.datasets._synthesis import synthesize as write

    spec = Spec(seed, twins, train_images, train_queries, val_images, val_queries, near_misses, label_noise)
    with Progress(transient=True) as progress:
        task = progress.add_task("render", total=None)
        write(out, spec, lambda done, total: progress.update(task, completed=done, total=total))
    typer.echo(f"wrote {out}: use it with --dataset synthetic --data-root {out}")


@data_app.command("verify")
def verify(
    dataset: Annotated[str, typer.Argument(help="Data set, or triplets: FILE.jsonl, .csv, .parquet or hf:NAME.")],
    data_root: options.DataRoot = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Split to check, repeatable [default: train and val].")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the data set.")
    ] = None,
    plugin: options.Plugins = None,
    annotations: Annotated[bool, typer.Option("--annotations", help="Counts and targets alone, no images.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that decode images; 0 decodes here.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file for everything found, with a manifest of hashes.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as JSON, without the manifest.")
    ] = False,
) -> None:
    """Check counts, images (missing, empty, undecodable, copies) and targets; exit code 1 where something is wrong."""
    import json

    from rich.console import Console
    from rich.progress import Progress

    from negbench import files
    from negbench.config import parse_set
    from negbench.datasets.verify import verify as check

    options.plugin_layer(plugin)
    section = options.dataset_layer(dataset, data_root, False)["dataset"]
    section |= {path[-1]: value for path, value in map(parse_set, sets or ())}
    console = Console(stderr=True)  # standard output is the report's
    with Progress(transient=True, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("decode", total=None)
        found = check(
            section.pop("name"),
            section,
            splits=tuple(split or ()),
            images=not annotations,
            workers=workers,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if out is not None:
        files.write_json(out, found.to_dict(manifest=True))
    if as_json:
        typer.echo(json.dumps(found.to_dict(manifest=False), indent=2))
    else:
        _print(found, out)
    if found.problems:
        raise typer.Exit(1)


def _print(found: Verification, out: Path | None) -> None:
    for each in found.splits:
        gallery = " / ".join(f"{name} {size:,}" for name, size in each.gallery.items())
        counts = "" if each.published else " (no published counts to compare with)"
        typer.echo(f"{each.split}: {each.identity}, {each.queries:,} queries, gallery {gallery}{counts}")
    typer.echo(f"{len(found.manifest):,} images checked")
    for note in found.notes:
        typer.echo(f"note: {note}")
    kinds: dict[str, list[Any]] = {}
    for problem in found.problems:
        kinds.setdefault(problem.kind, []).append(problem)
    for kind, problems in kinds.items():
        typer.echo(f"{kind}: {len(problems):,}")
        for problem in problems[:SHOWN]:
            where = f"{', '.join(problem.splits)}: " if problem.splits else ""
            typer.echo(f"  {where}{problem.detail}")
        if len(problems) > SHOWN:
            typer.echo(f"  ... {len(problems) - SHOWN:,} more; --out FILE or --json has all")
    if not found.problems:
        typer.echo("clean")
    if out is not None:
        typer.echo(f"wrote {out}")
