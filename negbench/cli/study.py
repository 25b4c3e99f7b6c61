"""`negbench study`: tune what the papers set by hand, and measure how much it matters."""

from collections.abc import Callable
from typing import Any

from negbench.cli import command, output
from negbench.settings.options import Study


def _dry_run(options: Study, say: Callable[[str], None]) -> Any:
    """Return the round of the trials."""
    from negbench.tuning.search import plan_study

    return plan_study(options).first(), []


@command.of(
    Study,
    "negbench study --strategy dqe --backbone tiny --dataset synthetic --trials 40",
    "negbench study --recipe band-table",
    "negbench study --strategy top-k --search strategy.k=10:500:log --sampler random",
    help="Tune a strategy's options on a dev part, then compare the best with the default on fresh seeds, "
    "scored on val. Rerun the command to resume, also from other machines.",
    dry_run=_dry_run,
)
def study(options: Study) -> dict[str, Any]:
    """Compute and print."""
    from negbench import api

    return api.study(options, console=output.console()).plain()
