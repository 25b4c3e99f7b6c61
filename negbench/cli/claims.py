"""`negbench claims`: test what four papers say about negatives."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Claims
from negbench.settings.options import option


class _CommandLine(Claims):
    """Options of the command line."""

    listed: bool = option(False, "Print the claims and their tests; compute nothing.", flags=("--list",))


def _dry_run(options: _CommandLine, say: Callable[[str], None]) -> Any:
    """Return the first round, and how many seeds would decide each claim."""
    from negbench.papers.planning import plan_claims

    plan = plan_claims(options)
    say(plan.line())
    return next(plan.course()), plan.dry_run()


@command.of(
    _CommandLine,
    "negbench claims --only 5,8,17 --seeds 3",
    "negbench claims --recipe world --until decided --workers 2",
    help="Test what the papers claim about negatives: each is supported, refuted, undecided or not testable here. "
    "Computes the runs that are missing. Rerun the command to resume.",
    dry_run=_dry_run,
)
def claims(options: _CommandLine) -> dict[str, Any]:
    """Judge and print."""
    console = output.console()
    if options.listed:
        from negbench.papers import table
        from negbench.papers.claim import select_claims

        named = select_claims(options.only)
        console.print(table.claims_table(named))
        return {"claims": [asdict(claim) for claim in named]}
    from negbench import api

    return api.claims(options, console=console).plain()
