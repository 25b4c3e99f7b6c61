"""`negbench claims`: what four papers say of negatives, tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from negbench.cli import command, options
from negbench.command_options import Claims

if TYPE_CHECKING:
    from pathlib import Path

    from negbench.claims.planning import ClaimsPlan
    from negbench.grid.cells import Outcome
    from negbench.grid.comparison import ComparisonFolder


def register(app: typer.Typer) -> None:
    """Add the command."""
    command.add(
        app,
        "claims",
        Claims,
        claims,
        help="Test what the papers claim about negatives: each is confirmed, refuted, undecided or not testable here. "
        "Computes the runs that are missing. Rerun the command to resume.",
        examples=["negbench claims --only 5,8,17 --seeds 3"],
    )


def claims(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plan, compute or read, judge, print."""
    from negbench import files
    from negbench.claims import table
    from negbench.claims.claim import chosen
    from negbench.claims.planning import findings
    from negbench.grid.compute import raise_failed

    asked, console = Claims.parsed(given), options.console()
    if asked.listed:
        named = chosen(asked.only)
        console.print(table.listed(named))
        return {"claims": [asdict(claim) for claim in named]}
    runs = files.runs_dir(asked.runs_dir)
    plan = _plan(asked, runs)
    folder, outcomes = _compute(asked, plan, runs) if asked.compare is None else _read(asked.compare, plan, runs)
    with options.stages("judge") as display:
        found = findings(plan, outcomes, runs, display)
    console.print(table.shown(found))
    about = f"{plan.config.dataset.name}, {plan.config.backbone.name}, seeds {', '.join(map(str, plan.seeds))}"
    console.print(f"{table.counts(found)} ({about})", highlight=False, soft_wrap=True)
    for path in table.write(found, folder.path, about):
        console.print(str(path), highlight=False, soft_wrap=True)
    raise_failed(outcomes)
    document: dict[str, Any] = files.read_json(folder.path / "claims.json")
    return document


def _plan(asked: Claims, runs: Path) -> ClaimsPlan:
    from negbench.claims.claim import chosen
    from negbench.claims.planning import base_layers, plan_claims
    from negbench.grid.cells import SCENES
    from negbench.grid.comparison import groups_of
    from negbench.options import parse_seeds

    seeds, named, base = parse_seeds(asked.seeds or "3"), chosen(asked.only), base_layers(asked)
    if asked.compare is not None:
        groups = groups_of(runs, asked.compare)  # raises where there is no such comparison
        if asked.seeds is None:
            seeds = tuple(sorted({run.config.seed for group in groups for run in group.runs}))
    with options.stages("plan") as display:
        plan = plan_claims(named, base, seeds, runs, display, SCENES)
    options.notes(plan.remarks)
    return plan


def _read(name: str, plan: ClaimsPlan, runs: Path) -> tuple[ComparisonFolder, list[Outcome]]:
    """The runs of a finished comparison."""
    from negbench.claims.planning import outcomes_in
    from negbench.grid.comparison import ComparisonFolder

    folder = ComparisonFolder(runs / name)
    return folder, outcomes_in(folder, plan.cells)


def _compute(asked: Claims, plan: ClaimsPlan, runs: Path) -> tuple[ComparisonFolder, list[Outcome]]:
    """Compute the runs that are missing."""
    from negbench.grid.comparison import ComparisonFolder, default_name
    from negbench.grid.compute import computed, executor_of

    executor = executor_of(asked.executor, asked.address, asked.workers, runs)
    distinct = {cell.hash: cell for cell in plan.cells}.values()
    done = sum(cell.step(runs, asked.overwrite) == "reuse" for cell in distinct)
    options.console().print(
        f"{len(plan.claims)} claims need {len(distinct)} runs ({len(plan.seeds)} seeds), "
        f"{done} of them finished before",
        highlight=False,
    )
    folder = ComparisonFolder(runs / (asked.name or default_name(plan.cells).replace("compare-", "claims-")))
    return folder, computed(
        folder, plan.cells, executor=executor, tracking_uri=asked.tracking_uri, overwrite=asked.overwrite
    )
