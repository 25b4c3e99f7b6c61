"""`negbench evaluate`: score a run again, on any data set or by another run; or stored ranks, without any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from negbench.cli import options

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from negbench.datasets.dataset import Dataset
    from negbench.scoring.result import Ranked, Result
    from negbench.scoring.scorers import Encoded, Order, Scale

TREC_DEPTH = 1000
RECALL = "recall-at-5"
CIRQRS, RELEVANT = "cirqrs", "relevant"
CUTOFFS = "10,50"
SCALES = ("tau", "cosine")


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
        typer.Option(
            "--ranks",
            metavar="FILE",
            help="Not a run: ranks (.parquet), {query: [ids]} or ranx' {query: {id: score}} (.json), TREC run.",
        ),
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
        typer.Option(
            "--metric",
            help=f"{CIRQRS}: mean score, under the run --scorer names, of each query's first k; RUN may be a "
            f"comparison's name. {RELEVANT}: how relevant images that are not the target rank.",
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option("--scorer", help=f"Run that scores for --metric; or {RECALL}, to judge hp-fashioniq by targets."),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help=f"With --metric: cutoffs [default: {CUTOFFS}].")] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", help=f"With {CIRQRS}: tau (score / scorer's temperature) or cosine [default: tau]."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help=f"With {CIRQRS} of a comparison: metric whose order is held against it."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the values of each query as parquet.")
    ] = None,
    submission: Annotated[
        Path | None, typer.Option("--submission", metavar="DIR", help="Write the files of the benchmark's test server.")
    ] = None,
    trec: Annotated[
        Path | None,
        typer.Option(
            "--trec", metavar="FILE", help=f"Write the {TREC_DEPTH} best images as a TREC run (.json: for ranx)."
        ),
    ] = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Score, print, write."""
    from negbench import files
    from negbench.config import set_layer

    options.plugin_layer(plugin)
    asked = _Asked.of(metric, scorer, k, scale, against)
    asked.check_sources(run, ranks)
    _check_files(run, metric, subset_ranks, lists=submission is not None or trec is not None)
    layers = [options.dataset_layer(dataset, data_root, allow_missing), *map(set_layer, sets or ())]
    job = _Job(options.console(), files.runs_dir(runs_dir), layers, split, queries)
    found: Result | None
    if metric == CIRQRS and run is not None and (job.runs_dir / run / "comparison.json").exists():
        order = job.order(run, asked)
        _print_order(job.console, order)
        _write(job.console, order.runs, out)
        return {"unit": order.unit, "other": order.other, "runs": order.runs.to_dict("records")} | {
            "agreement": {name: each._asdict() for name, each in order.agreement.items()}
        }
    if metric == CIRQRS:
        found = job.cirqrs(run or Path(str(ranks)), asked)
    elif scorer == RECALL:
        found = job.by_recall()
    elif run is None:
        found = asked.of_ranks(job.stored(Path(str(ranks)), subset_ranks))
    else:
        encoded = job.encode(run, layers, _check(out, submission, trec))
        found = _score(encoded, asked)
        _write_lists(job.console, encoded, submission, trec)
    if found is not None:
        _print(job.console, found)
        _write(job.console, found.queries, out)
    return {} if found is None else found.plain()


@dataclass(frozen=True)
class _Asked:
    """Which metric, and how."""

    metric: str | None
    scorer: str | None
    cutoffs: tuple[int, ...]
    scale: Scale
    against: str | None

    @classmethod
    def of(
        cls, metric: str | None, scorer: str | None, k: str | None, scale: str | None, against: str | None
    ) -> _Asked:
        """Raise NegbenchError where an option is unknown or has no metric to go with."""
        from negbench.errors import OptionError, UnknownNameError, check_option

        if metric not in (None, CIRQRS, RELEVANT):
            raise UnknownNameError("metric", metric, [CIRQRS, RELEVANT])
        if k is not None and metric is None:
            raise OptionError(f"--k goes with --metric {CIRQRS} or {RELEVANT}")
        for name, value in (("scale", scale), ("against", against)):
            if value is not None and metric != CIRQRS:
                raise OptionError(f"--{name} goes with --metric {CIRQRS}")
        check_option("--scale", scale, scale in (None, *SCALES), " or ".join(SCALES))
        cutoffs = (k or CUTOFFS).split(",")
        numbers = tuple(int(part) for part in cutoffs if part.strip().isdecimal() and int(part) > 0)
        good = len(set(numbers)) == len(cutoffs)
        check_option("--k", k, good, "whole numbers >= 1 with commas between, each once")
        chosen: Literal["tau", "cosine"] = "cosine" if scale == "cosine" else "tau"
        return cls(metric, scorer, numbers, chosen, against)

    def check_sources(self, run: str | None, ranks: Path | None) -> None:
        """Raise OptionError unless these say what is ranked and what scores it."""
        from negbench.errors import OptionError

        if self.metric == CIRQRS and self.scorer in (None, RECALL):
            raise OptionError(f"--metric {CIRQRS} needs --scorer RUN: the run whose model scores what is ranked first")
        if self.scorer is not None and self.metric != CIRQRS:
            if self.scorer != RECALL:
                raise OptionError(
                    f"--scorer {self.scorer}: a run scores with --metric {CIRQRS}; alone only {RECALL} is known"
                )
            if run is not None or ranks is not None or self.metric is not None:
                raise OptionError(f"--scorer {RECALL} stands alone: leave out the run, --ranks and --metric")
        elif (run is None) == (ranks is None):
            raise OptionError("name a run to score, or give --ranks FILE: one of the two")

    def of_ranks(self, ranked: Ranked) -> Result:
        """The metric of ranks: the data set's own, or that of all relevant images."""
        return ranked.relevant(self.cutoffs) if self.metric == RELEVANT else ranked.benchmark()


def _check(out: Path | None, submission: Path | None, trec: Path | None) -> Callable[[Dataset], None]:
    """What the split must offer, told before anything is encoded: labels, unless only lists are wanted."""
    from negbench.datasets._submission import submittable

    def check(dataset: Dataset) -> None:
        if submission is not None:
            submittable(dataset)
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
        from negbench.runfolder import find_run
        from negbench.scoring.scorers import encode_run

        folder = find_run(self.runs_dir, name)
        with options.stages(title) as display:
            return encode_run(folder, layers, self.split, self.queries, display, check=check)

    def stored(self, ranks: Path, subset_ranks: Path | None) -> Ranked:
        from negbench.scoring.stored import score_file

        return score_file(ranks, self.layers, self.split, self.queries, subset_ranks)

    def by_recall(self) -> Result:
        from negbench.config import merged
        from negbench.report.published import published_rows
        from negbench.scoring.stored import judge_by_recall

        found = judge_by_recall(self.layers, self.split, self.queries)
        published = [
            f"{row.source} prints for {row.row}: {_label(metric)} {value:g}, {row.about}"
            for row in published_rows()
            if (row.dataset, row.row) == (merged(self.layers)["dataset"]["name"], "Recall@5")
            for metric, value in row.metrics.items()
        ]
        return replace(found, remarks=(*found.remarks, *published))

    def cirqrs(self, ranking: str | Path, asked: _Asked) -> Result:
        from negbench.scoring import scorers as scoring
        from negbench.scoring.stored import read_rankings

        if isinstance(ranking, Path):
            read_rankings(ranking)  # before anything is encoded
            return scoring.cirqrs(ranking, self._scorer(asked, None), asked.cutoffs, asked.scale)
        ranked = self.encode(ranking, self.layers, _any_split)
        return scoring.cirqrs(ranked, self._scorer(asked, ranking), asked.cutoffs, asked.scale)

    def order(self, comparison: str, asked: _Asked) -> Order:
        """CIRQRS of every finished run of a comparison, all by one scorer, which is encoded once."""
        from negbench.errors import NegbenchError
        from negbench.grid.comparison import groups_of
        from negbench.scoring import scorers as scoring

        groups = groups_of(self.runs_dir, comparison)
        if len({group.labels["dataset"] for group in groups}) > 1:
            raise NegbenchError(f"comparison '{comparison}' holds several data sets: CIRQRS orders the runs of one")
        first = groups[0].runs[0]
        scorer = self._scorer(asked, str(first.path))
        labels, results, others = {}, {}, {}
        for group in groups:
            for folder in group.runs:
                ranked = self.encode(str(folder.path), self.layers, _any_split)
                labels[folder.run_id] = {"strategy": group.labels["strategy"], "loss": group.labels["loss"]}
                labels[folder.run_id] |= {"backbone": group.labels["backbone"], "seed": str(folder.config.seed)}
                results[folder.run_id] = scoring.cirqrs(ranked, scorer, asked.cutoffs, asked.scale)
                others[folder.run_id] = folder.result["metrics"]
        return scoring.cirqrs_order(labels, results, others, asked.against or first.result["main_metric"])

    def _scorer(self, asked: _Asked, ranker: str | None) -> Encoded:
        """The scoring run's model on what `ranker` ranks (a ranking file: on the scorer's own data)."""
        from negbench.runfolder import find_run
        from negbench.scoring.scorers import scorer_layers

        layers = self.layers if ranker is None else scorer_layers(find_run(self.runs_dir, ranker), self.layers)
        return self.encode(str(asked.scorer), layers, _any_split, "scorer")


def _any_split(dataset: Dataset) -> None:
    """What a model scores high needs no labels."""


def _check_files(run: str | None, metric: str | None, subset_ranks: Path | None, *, lists: bool) -> None:
    """Raise OptionError where a file that is named would not be read or written."""
    from negbench.errors import OptionError

    if lists and (run is None or metric is not None):
        raise OptionError(f"--submission and --trec need a run's own scores: no --ranks, --scorer or --metric {CIRQRS}")
    if subset_ranks is not None and (run is not None or metric is not None):
        raise OptionError("--subset-ranks goes with --ranks alone: a run ranks the groups itself")


def _score(encoded: Encoded, asked: _Asked) -> Result | None:
    from negbench.datasets._preferences import PreferenceFormat

    if isinstance(encoded.dataset, PreferenceFormat):
        return encoded.judged()
    return None if encoded.dataset.closed else asked.of_ranks(encoded.ranked())


def _write_lists(console: Console, encoded: Encoded, submission: Path | None, trec: Path | None) -> None:
    from negbench.scoring.trec import write_ranx, write_trec

    written = [] if submission is None else encoded.write_submission(submission)
    if trec is not None:
        write = write_ranx if trec.suffix == ".json" else write_trec
        write(trec, encoded.dataset, *encoded.top(TREC_DEPTH))
        written.append(trec)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _write(console: Console, table: pd.DataFrame, out: Path | None) -> None:
    from negbench.files import atomic_write

    if out is not None:
        with atomic_write(out, "wb") as file:
            table.to_parquet(file, index=False)
        console.print(f"wrote {out}", highlight=False, soft_wrap=True)


# --- tables ------------------------------------------------------------------------------------------------------


def _print(console: Console, found: Result) -> None:
    from negbench.scoring.result import PERCENT

    options.remarks(console, found.remarks)
    if found.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(f"{found.title}, {len(found.queries):,} queries", highlight=False, soft_wrap=True)
    console.print(_list(found) if found.unit == PERCENT else _grid(found))


def _list(found: Result) -> Table:
    """One line a metric, in percent."""
    from rich.table import Table

    from negbench.analysis.words import percent

    table = Table()
    table.add_column("metric")
    table.add_column("%", justify="right")
    for metric, value in found.metrics.items():
        table.add_row(_label(metric), percent(value, 2), style="bold" if metric == found.main else "")
    return table


def _grid(found: Result) -> Table:
    """A column for each part (`consistent/spearman`, `dress/cirqrs_at_10`); what has no part is of all queries."""
    from rich.table import Table

    parts: dict[str, dict[str, float]] = {}
    for metric, value in found.metrics.items():
        part, _, name = metric.rpartition("/")
        parts.setdefault(part or "all", {})[name] = value
    main_part, _, main = str(found.main).rpartition("/")
    table = Table(f"metric ({found.unit})" if found.unit else "metric")
    for part in parts:
        table.add_column(part, justify="right")
    for name in next(iter(parts.values())):
        cells = [_cell(values[name], part == (main_part or "all") and name == main) for part, values in parts.items()]
        table.add_row(_label(name), *cells)
    return table


def _print_order(console: Console, order: Order) -> None:
    from rich.table import Table

    from negbench.analysis.words import percent

    table = Table(caption=f"CIRQRS in {order.unit}; {_label(order.other)} in percent", caption_justify="left")
    scored = [*order.agreement, order.other]
    for column in order.runs.columns:
        table.add_column(_label(column), justify="right" if column in scored else "left")
    for row in order.runs.to_dict("records"):
        cells = {name: _cell(row[name], False) for name in order.agreement} | {
            order.other: percent(row[order.other], 2)
        }
        table.add_row(*(cells.get(str(name), str(value)) for name, value in row.items()))
    console.print(table)
    for name, found in order.agreement.items():
        console.print(
            f"Spearman's rank correlation of {_label(name)} with {_label(order.other)} over {len(order.runs)} runs: "
            f"{_cell(found.value, False)} (p = {_cell(found.p_value, False)})",
            highlight=False,
            soft_wrap=True,
        )


def _label(metric: str) -> str:
    """'average/cirqrs_at_10' -> 'average CIRQRS@10'."""
    from negbench.analysis.words import label_of

    for long, short in (
        ("cirqrs_at_", "CIRQRS@"),
        ("cirqrs", "CIRQRS, mean"),
        ("precision_at_", "P@"),
        ("other_recall_at_", "other relevant R@"),
        ("suppression_at_", "suppression@"),
    ):
        metric = metric.replace(long, short)
    return label_of(metric).replace("_", " ")


def _cell(value: float, bold: bool) -> str:
    small = 0 < abs(value) < 1e-4
    text = "-" if math.isnan(value) else f"{value:.1e}" if small else f"{value:.4f}"
    return f"[bold]{text}[/bold]" if bold else text
