"""`negbench claims`: test what four papers say about negatives."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Claims
from negbench.settings.options import option


class _Asked(Claims):
    """Options of the command line."""

    listed: bool = option(False, "Print the claims and their tests; compute nothing.", flags=("--list",))


def _outlook(asked: _Asked, say: Callable[[str], None]) -> Any:
    """Return the first round, and how many seeds would decide each claim."""
    from negbench.papers.planning import plan_claims

    plan = plan_claims(asked)
    say(plan.line())
    return next(plan.course()), plan.outlook()


@command.of(
    _Asked,
    "negbench claims --only 5,8,17 --seeds 3",
    "negbench claims --recipe world --until decided --workers 2",
    help="Test what the papers claim about negatives: each is supported, refuted, undecided or not testable here. "
    "Computes the runs that are missing. Rerun the command to resume.",
    outlook=_outlook,
)
def claims(asked: _Asked) -> dict[str, Any]:
    """Judge and print."""
    console = output.console()
    if asked.listed:
        from negbench.papers import table
        from negbench.papers.claim import selected_claims

        named = selected_claims(asked.only)
        console.print(table.claims_table(named))
        return {"claims": [asdict(claim) for claim in named]}
    from negbench import api

    return api.claims(asked, console=console).plain()
