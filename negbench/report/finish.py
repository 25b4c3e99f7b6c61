"""Finish a comparison: print and store its tables and answer, write its page and MLflow's summary runs."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from negbench.analysis.answer import AnswerText, answer_of, divide_lines
from negbench.analysis.columns import NEGATIVES
from negbench.analysis.findings import Findings, judge_comparison, plain_rules, read_findings
from negbench.analysis.unchanged import inputs_of, keep, unchanged_files
from negbench.analysis.verdicts import Rules
from negbench.display import Grid, log
from negbench.errors import install_line
from negbench.grid.comparison import ComparisonFolder
from negbench.machine.files import write_text
from negbench.report.loaded import Comparison
from negbench.report.summaries import summary_runs
from negbench.report.tables import Table, files_of, tables
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker


def finish(
    console: Console,
    runs: Path,
    name: str,
    tracking_uri: str | None,
    rules: Rules | None = None,
    *,
    report: bool = True,
) -> None:
    """Judge a comparison, print its tables and answer, write them into its folder, renew its page and summary runs.

    Args:
        console: where to print.
        runs: runs folder.
        name: of the comparison.
        tracking_uri: MLflow store.
        rules: how strategies are compared; default: `Rules()`.
        report: whether to write the HTML page, which is also an artifact of the comparison's MLflow run.
    """
    folder = runs / name
    rules = rules or Rules()
    report = report and install_line("matplotlib") is None
    inputs = inputs_of(runs, ComparisonFolder(folder).read(), rules, report)
    parent = Parent(Tracker.open(runs, tracking_uri), folder)
    is_stored = bool(unchanged_files(folder, inputs))
    if is_stored:
        findings = read_findings(runs, name)
        answer = divide_lines(Comparison(folder).answer, findings)
    else:
        findings = judge_comparison(runs, name, rules)
        answer = answer_of(findings)
    all_tables = tables(findings)
    _print_tables(console, all_tables, findings, folder)
    if is_stored:
        parent.complete()
    elif os.access(folder, os.W_OK):  # others' may be read-only
        paths = _write_files(parent, findings, all_tables, answer, report=report)
        keep(folder, inputs, paths, plain_rules(rules))
        is_stored = True
    console.print("\nanswer", style="bold", highlight=False)
    for line in answer.lines:
        console.print(line, highlight=False, markup=False)
    where = f"stored {folder}" if is_stored else f"{folder} cannot be written: nothing was stored"
    console.print(f"\n{where}", highlight=False, soft_wrap=True)
    page = folder / "report" / "index.html"
    if report and page.exists():
        console.print(f"report {page}", highlight=False, soft_wrap=True)
    if tracking_uri != "none":
        console.print(f"look   negbench ui {name} --runs-dir {runs}", highlight=False, soft_wrap=True)


def print_findings(console: Console, findings: Findings) -> None:
    """Print the tables and the answer of findings that are not stored."""
    _print_tables(console, tables(findings), findings, None)
    console.print("\nanswer", style="bold", highlight=False)
    for line in answer_of(findings).lines:
        console.print(line, highlight=False, markup=False)


def _print_tables(console: Console, all_tables: Sequence[Table], findings: Findings, folder: Path | None) -> None:
    """Print the tables that are no details, and the notes; the folder holds the whole tables as .csv, if given."""
    for table in all_tables:
        if not table.detail or log.isEnabledFor(logging.DEBUG):
            console.print(_grid(table, None if folder is None else folder / f"{table.name}.csv"))
    for note in findings.notes():
        console.print(f"note: {note}", highlight=False, markup=False)


def _write_files(
    parent: Parent, findings: Findings, all_tables: Sequence[Table], answer: AnswerText, *, report: bool
) -> list[Path]:
    """Write the tables, the page, and the summary runs; return the files in the comparison's folder."""
    folder = parent.folder
    written = [findings.write(folder), write_text(folder / "answer.md", "\n\n".join(answer.lines) + "\n")]
    for file, text in files_of(all_tables).items():
        written.append(write_text(folder / file, text))
    if report:
        from negbench.report.build import comparison_page
        from negbench.report.page import write_page

        pages = write_page(folder / "report", comparison_page(folder, findings, all_tables, answer=answer))
        written += [path for path in pages if path.parent.name != "tables"]  # the same tables as ours
    summaries, not_drawn = summary_runs(findings)
    description = answer.lines
    if not_drawn:
        description.insert(1, not_drawn)
    parent.close(summaries, written, "\n\n".join(description))
    return written


def _grid(table: Table, file: Path | None) -> Grid:
    """Build a table for the terminal; columns with the same value in every row are folded into the caption.

    `file` holds the whole table, if it is stored.
    """
    constant = dict(table.constant)
    count = constant.pop(NEGATIVES.title, None)
    parts = [f"{column} {value}" for column, value in constant.items()]
    if count:
        parts.append(f"negatives {count} per query and step")
    elif NEGATIVES.title in table.frame:
        parts.append("negatives: per query and step")
    if table.caption:
        parts.append(table.caption)
    return Grid(
        table.frame.drop(columns=list(table.constant)), table.title, ", ".join(parts), rest=str(file or "--markdown")
    )
