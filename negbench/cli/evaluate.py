"""`negbench evaluate`: score a run again, on its own or another data set; or stored ranks, without any model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.datasets.dataset import Dataset
    from negbench.scoring import Encoded, Scored, Valued

TREC_DEPTH = 1000
RECALL = "recall-at-5"
CIRQRS = "cirqrs"
CIRQRS_K = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "evaluate",
        help="Score a finished run on any data set, or stored ranks and rankings without any model.",
        epilog="Example: negbench evaluate RUN --dataset cirr --split test1 --submission DIR",
    )(evaluate)


def evaluate(
    run: Annotated[
        str | None, typer.Argument(help="Run, by id or a part of it that only one has, or its folder.")
    ] = None,
    ranks: Annotated[
        Path | None,
        typer.Option("--ranks", metavar="FILE", help="Not a run: ranks (.parquet), {query: [ids]} (.json), TREC."),
    ] = None,
    subset_ranks: Annotated[
        Path | None, typer.Option("--subset-ranks", metavar="FILE", help="With --ranks: lists within CIRR's groups.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Data set [default: the run's own].")] = None,
    split: Annotated[str, typer.Option("--split", help="Split of the data set.")] = "val",
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a key of the sections dataset and compute."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option("--queries", metavar="FILE", help="Only these query ids: one a line, or a JSON list.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help=f"{CIRQRS}: mean score, under the run --scorer names, of each query's first k."),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option("--scorer", help=f"Run that scores for --metric; or {RECALL}, to judge hp-fashioniq by targets."),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", min=1, help=f"With --metric {CIRQRS} [default: {CIRQRS_K}].")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the values of each query as parquet.")
    ] = None,
    submission: Annotated[
        Path | None, typer.Option("--submission", metavar="DIR", help="Write the files of the benchmark's test server.")
    ] = None,
    trec: Annotated[
        Path | None, typer.Option("--trec", metavar="FILE", help=f"Write the {TREC_DEPTH} best images as a TREC run.")
    ] = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> None:
    """Score, print, write."""
    from rich.console import Console

    from negbench.config import set_layer

    lists = bool(submission or trec)
    _check_options(run, ranks, metric, scorer, k=k, lists=lists, subset=subset_ranks is not None)
    options.plugin_layer(plugin)
    layers = [options.dataset_layer(dataset, data_root, allow_missing), *map(set_layer, sets or ())]
    job = _Job(Console(), files_dir(runs_dir), layers, split, queries)
    found: Scored | Valued | None
    if metric is not None:
        found = job.cirqrs(run, ranks, str(scorer), k or CIRQRS_K)
    elif run is None:
        found = job.without_model(ranks, subset_ranks)
    else:
        encoded = job.encode(run, layers, _check(out, submission, trec))
        found = job.score(encoded)
        _write_lists(job.console, encoded, submission, trec)
    if found is not None:
        _print(job.console, found)
        if out is not None:
            _write_values(job.console, found, out)


def _check(out: Path | None, submission: Path | None, trec: Path | None) -> Callable[[Dataset], None]:
    """What the split must offer, told before anything is encoded: labels, unless only lists are wanted."""

    def check(dataset: Dataset) -> None:
        if submission is not None:
            dataset.check_submission()
        if out is not None or (submission is None and trec is None):
            dataset.require_labels()

    return check


def _encode(
    console: Console,
    name: str,
    runs_dir: Path | None,
    layers: list[dict[str, Any]],
    split: str,
    queries: Path | None,
    check: Callable[[Dataset], None],
) -> Encoded:
    from negbench import files, scoring
    from negbench.display import Display
    from negbench.runfolder import find_run

    folder = find_run(files.runs_dir(runs_dir), name)
    display = Display(console)
    with display.live("evaluate"):
        return scoring.encode_run(folder, layers, split, queries, display, check=check)


def _write_lists(console: Console, encoded: Encoded, submission: Path | None, trec: Path | None) -> None:
    from negbench.exports import write_trec

    written = [] if submission is None else encoded.write_submission(submission)
    if trec is not None:
        write_trec(trec, encoded.dataset, *encoded.top(TREC_DEPTH))
        written.append(trec)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _write_ranks(console: Console, found: Scored, out: Path) -> None:
    from negbench.files import atomic_write

    with atomic_write(out, "wb") as file:
        found.ranks.to_frame().to_parquet(file, index=False)
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)


def _print(console: Console, found: Scored) -> None:
    from rich.table import Table

    from negbench.report.curve import label_of
    from negbench.report.tables import percent

    for remark in found.remarks:
        console.print(f"note: {remark}", style="yellow", highlight=False, soft_wrap=True)
    if found.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(f"{found.title}, {len(found.ranks):,} queries", highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("metric")
    table.add_column("%", justify="right")
    for metric, value in found.metrics.items():
        table.add_row(label_of(metric), percent(value, 2), style="bold" if metric == found.main else "")
    console.print(table)
