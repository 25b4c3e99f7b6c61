"""`negbench study`: tune what the papers set by hand, and measure how much it matters."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.cli import command, output
from negbench.settings.options import Study

if TYPE_CHECKING:
    from rich.console import Console


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
    """Print the result again, or compute and print."""
    from negbench.report.loaded import StudyResult
    from negbench.report.shown_again import show_or_compute

    path = show_or_compute(options, output.console(), _study)
    return StudyResult(path, options.storage).plain() if output.wants_json() else {}


def _study(options: Study, console: "Console") -> Path:
    """Compute and print; return the study's folder."""
    from negbench import api

    return api.study(options, console=console).path
