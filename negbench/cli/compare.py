"""`negbench compare`: strategies, losses, backbones, data sets, systems and dials, every combination once."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.cli import command, output
from negbench.settings.options import Compare

if TYPE_CHECKING:
    from rich.console import Console


def _dry_run(options: Compare, say: Callable[[str], None]) -> Any:
    """For `--dry-run`: return the first round, and lines on what more seeds would detect."""
    from negbench import api
    from negbench.analysis.deciding import resolution

    planned, rules, course = api.plan_compare(options, say)
    return next(course), resolution(planned.cells, planned.folder.path.parent, rules)


@command.of(
    Compare,
    "negbench compare --losses info-nce --strategies in-batch,in-batch+qure,in-batch+top-k --seeds 3",
    "negbench compare --recipe world --dial dataset.twins=1,2,4 --strategies qure,in-batch",
    "negbench compare --systems all --strategies cir --seeds 5 --workers 2",
    "negbench compare --strategies qure,dqe --tuned 40",
    help="Compute every combination once, then print tables and an answer. Rerun the command to resume.",
    dry_run=_dry_run,
)
def compare(options: Compare) -> dict[str, Any]:
    """Print the result again, or plan, compute, print."""
    from negbench.report.loaded import Comparison
    from negbench.report.shown_again import show_or_compute

    path = show_or_compute(options, output.console(), _compare)
    return Comparison(path).plain() if output.wants_json() else {}


def _compare(options: Compare, console: "Console") -> Path:
    """Plan, compute, print; return the comparison's folder."""
    from negbench import api

    return api.compare(options, console=console).path
