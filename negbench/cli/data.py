"""`negbench data`: fetch and check data sets, and store their features."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from negbench.cli import command, output
from negbench.settings.command_options import EncodeData, FetchData, VerifyData

if TYPE_CHECKING:
    from rich.progress import Progress

    from negbench.datasets.verify import CheckedDataset

SHOWN = 10  # problems of one kind to print on the terminal


@command.of(
    FetchData,
    "negbench data fetch emoji --out data/emoji",
    help="Fetch a data set's packages with npm (pinned versions, checked hashes, no scripts) and draw its pictures.",
)
def fetch(options: FetchData) -> None:
    """Fetch, draw, and say whose pictures they are."""
    import os
    import time

    from rich.progress import Progress

    from negbench.worlds._fetch import fetch as fetched
    from negbench.worlds.emoji import draw

    out = options.out or Path(os.environ.get("NEGBENCH_DATA") or "data") / "emoji"
    started = time.perf_counter()
    for line in fetched(out):
        typer.echo(line)
    typer.echo(f"fetched in {time.perf_counter() - started:.0f} s")
    started = time.perf_counter()
    with Progress(transient=True) as progress:
        count = draw(out, _bar(progress, "draw"))
    typer.echo(f"{count:,} pictures drawn in {time.perf_counter() - started:.0f} s")
    typer.echo(f"use them with --dataset emoji --data-root {out}")


def _bar(progress: "Progress", name: str) -> Callable[[int, int], None]:
    """Add a bar; return the function that moves it to (done, total)."""
    task = progress.add_task(name, total=None)

    def move(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return move


@command.of(
    VerifyData,
    "negbench data verify fashioniq --data-root DIR",
    help="Check counts, targets and images (missing, empty, undecodable, copies). Exit code 2 if something is wrong.",
)
def verify(options: VerifyData) -> dict[str, Any]:
    """Check and print."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import Progress

    from negbench.datasets.verify import verify as check
    from negbench.errors import ProblemsError
    from negbench.settings.layers import dataset_layer, parse_set, plugin_layer

    plugin_layer(options.plugin)
    section = dataset_layer(options.dataset, options.data_root, options.allow_missing)["dataset"]
    for text in options.sets:
        path, value = parse_set(text)
        section[path[-1]] = value
    console = Console(stderr=True)  # standard output is for the report
    with Progress(transient=True, console=console, disable=not console.is_terminal) as progress:
        checked = check(
            section.pop("name"),
            section,
            splits=options.split,
            images=not options.annotations,
            workers=options.workers,
            progress=_bar(progress, "decode"),
        )
    document = asdict(checked)
    if not output.wants_json():
        _print(checked)
    if checked.problems:
        raise ProblemsError(len(checked.problems), document)
    return document


@command.of(
    EncodeData,
    "negbench data encode --backbone blip2 --dataset fashioniq --data-root DIR --set compute.workers=8",
    help="Store a backbone's image features of train and val, once for all runs. Rerun the command to resume.",
)
def encode(options: EncodeData) -> None:
    """Store the features of train and val, as a run would, and print how many."""
    from negbench.contracts import HoldsFeatures
    from negbench.data.scene import DataCache
    from negbench.display import notes, progress
    from negbench.errors import OptionError
    from negbench.loop.runs import open_run
    from negbench.settings.config import build_config
    from negbench.settings.layers import layers_of
    from negbench.systems.system import with_system

    cache = DataCache()
    # a configuration must name a strategy; it is not used here
    whole, remarks = with_system([*layers_of(options), {"strategy": {"name": "all-corpus"}}], cache)
    notes(remarks)
    with progress("encode") as display:
        run = open_run(build_config([whole]), display, cache)
    if not run.scene.frozen or isinstance(run.backbone, HoldsFeatures):
        raise OptionError(f"backbone '{run.config.backbone.name}' with these options stores no features")
    count = len(run.scene.row_of)
    encoded = run.scene.encoded
    typer.echo(f"{count:,} images: {encoded:,} encoded, {count - encoded:,} stored before")


def _print(checked: "CheckedDataset") -> None:
    from negbench.machine.grouping import group_pairs

    for counts in checked.splits:
        gallery = " / ".join(f"{name} {size:,}" for name, size in counts.gallery.items())
        remark = "" if counts.published else " (no published counts to compare with)"
        typer.echo(f"{counts.split}: {counts.identity}, {counts.queries:,} queries, gallery {gallery}{remark}")
    typer.echo(f"{checked.images:,} images checked")
    for note in checked.notes:
        typer.echo(f"note: {note}")
    for kind, problems in group_pairs((problem.kind, problem) for problem in checked.problems).items():
        typer.echo(f"{kind}: {len(problems):,}")
        for problem in problems[:SHOWN]:
            split = f"{problem.split}: " if problem.split else ""
            typer.echo(f"  {split}{problem.detail}")
        if len(problems) > SHOWN:
            typer.echo(f"  ... {len(problems) - SHOWN:,} more; --json lists all")
    if not checked.problems:
        typer.echo("clean")


data = command.SubCommands("Fetch and check data sets, and store their features.", (verify, encode, fetch))
