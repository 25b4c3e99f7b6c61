"""`negbench evaluate`: score a run again, on any data set or by another run; or stored ranks, without any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from negbench.datasets.dataset import Dataset
    from negbench.scoring.scorers import Encoded, Scored, Valued

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

    from negbench import files
    from negbench.config import set_layer

    _check_sources(run, ranks, metric, scorer, k)
    _check_files(run, metric, subset_ranks, lists=submission is not None or trec is not None)
    options.plugin_layer(plugin)
    layers = [options.dataset_layer(dataset, data_root, allow_missing), *map(set_layer, sets or ())]
    job = _Job(Console(), files.runs_dir(runs_dir), layers, split, queries)
    found: Scored | Valued | None
    if metric is not None:
        found = job.cirqrs(run or Path(str(ranks)), str(scorer), k or CIRQRS_K)
    elif run is None:
        found = job.without_model(ranks, subset_ranks)
    else:
        encoded = job.encode(run, layers, _check(out, submission, trec))
        found = _score(encoded)
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


@dataclass(frozen=True)
class _Job:
    """What the command line says of data and place."""

    console: Console
    runs_dir: Path
    layers: list[dict[str, Any]]
    split: str
    queries: Path | None

    def encode(
        self, name: str, layers: Sequence[Mapping[str, Any]], check: Callable[[Dataset], None], title: str = "evaluate"
    ) -> Encoded:
        from negbench.display import Display
        from negbench.runfolder import find_run
        from negbench.scoring import scorers as scoring

        folder = find_run(self.runs_dir, name)
        display = Display(self.console)
        with display.live(title):
            return scoring.encode_run(folder, layers, self.split, self.queries, display, check=check)

    def without_model(self, ranks: Path | None, subset_ranks: Path | None) -> Scored | Valued:
        from negbench.scoring import scorers as scoring

        if ranks is None:
            return scoring.judge_by_recall(self.layers, self.split, self.queries)
        return scoring.score_file(ranks, self.layers, self.split, self.queries, subset_ranks)

    def cirqrs(self, ranking: str | Path, scorer: str, k: int) -> Valued:
        from negbench.runfolder import find_run
        from negbench.scoring import scorers as scoring

        if isinstance(ranking, Path):
            scoring.read_rankings(ranking)  # before anything is encoded
            return scoring.cirqrs(ranking, self.encode(scorer, self.layers, _any_split, "scorer"), k)
        scorer_layers = scoring.scorer_layers(find_run(self.runs_dir, ranking), self.layers)
        ranked = self.encode(ranking, self.layers, _any_split)
        return scoring.cirqrs(ranked, self.encode(scorer, scorer_layers, _any_split, "scorer"), k)


def _any_split(dataset: Dataset) -> None:
    """What a model scores high needs no labels."""


def _check_sources(run: str | None, ranks: Path | None, metric: str | None, scorer: str | None, k: int | None) -> None:
    """Raise OptionError unless these say what is ranked and what scores it."""
    from negbench.errors import OptionError, UnknownNameError

    if metric is not None and metric != CIRQRS:
        raise UnknownNameError("metric", metric, [CIRQRS])
    if k is not None and metric is None:
        raise OptionError(f"--k goes with --metric {CIRQRS}")
    if metric is not None and scorer in (None, RECALL):
        raise OptionError(f"--metric {CIRQRS} needs --scorer RUN: the run whose model scores what is ranked first")
    if scorer is not None and metric is None:
        if scorer != RECALL:
            raise OptionError(f"--scorer {scorer}: a run scores with --metric {CIRQRS}; alone only {RECALL} is known")
        if run is not None or ranks is not None:
            raise OptionError(f"--scorer {RECALL} stands alone: leave out the run or --ranks")
    elif (run is None) == (ranks is None):
        raise OptionError("name a run to score, or give --ranks FILE: one of the two")


def _check_files(run: str | None, metric: str | None, subset_ranks: Path | None, *, lists: bool) -> None:
    """Raise OptionError where a file that is named would not be read or written."""
    from negbench.errors import OptionError

    if lists and (run is None or metric is not None):
        raise OptionError(f"--submission and --trec need a run's own scores: no --ranks, --scorer or --metric {CIRQRS}")
    if subset_ranks is not None and (run is not None or metric is not None):
        raise OptionError("--subset-ranks goes with --ranks alone: a run ranks the groups itself")


def _score(encoded: Encoded) -> Scored | Valued | None:
    from negbench.datasets._preferences import PreferenceFormat

    if isinstance(encoded.dataset, PreferenceFormat):
        return encoded.judged()
    return None if encoded.dataset.closed else encoded.scored()


def _write_lists(console: Console, encoded: Encoded, submission: Path | None, trec: Path | None) -> None:
    from negbench.scoring.trec import write_trec

    written = [] if submission is None else encoded.write_submission(submission)
    if trec is not None:
        write_trec(trec, encoded.dataset, *encoded.top(TREC_DEPTH))
        written.append(trec)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _write_values(console: Console, found: Scored | Valued, out: Path) -> None:
    from negbench.files import atomic_write
    from negbench.scoring.scorers import Scored

    table = found.ranks.to_frame() if isinstance(found, Scored) else found.table
    with atomic_write(out, "wb") as file:
        table.to_parquet(file, index=False)
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)


def _print(console: Console, found: Scored | Valued) -> None:
    from negbench.scoring.scorers import Scored

    for remark in found.remarks:
        console.print(f"note: {remark}", style="yellow", highlight=False, soft_wrap=True)
    if found.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    count = len(found.ranks) if isinstance(found, Scored) else len(found.table)
    console.print(f"{found.title}, {count:,} queries", highlight=False, soft_wrap=True)
    console.print(_percent_table(found) if isinstance(found, Scored) else _value_table(found))


def _percent_table(found: Scored) -> Table:
    from rich.table import Table

    from negbench.report.words import label_of, percent

    table = Table()
    table.add_column("metric")
    table.add_column("%", justify="right")
    for metric, value in found.metrics.items():
        table.add_row(label_of(metric), percent(value, 2), style="bold" if metric == found.main else "")
    return table


def _value_table(found: Valued) -> Table:
    """A column for each part (`consistent/spearman`, `dress/cirqrs_at_10`); what has no part is of all queries."""
    from rich.table import Table

    parts: dict[str, dict[str, float]] = {}
    for metric, value in found.metrics.items():
        part, _, name = metric.rpartition("/")
        parts.setdefault(part or "all", {})[name] = value
    main_part, _, main = found.main.rpartition("/")
    table = Table("metric")
    for part in parts:
        table.add_column(part, justify="right")
    for name in next(iter(parts.values())):
        cells = [_cell(values[name], part == (main_part or "all") and name == main) for part, values in parts.items()]
        table.add_row(name.replace("cirqrs_at_", "CIRQRS@").replace("_", " "), *cells)
    return table


def _cell(value: float, bold: bool) -> str:
    small = 0 < abs(value) < 1e-4
    text = "-" if math.isnan(value) else f"{value:.1e}" if small else f"{value:.4f}"
    return f"[bold]{text}[/bold]" if bold else text
