"""`negbench compare`: strategies, losses, backbones, data sets, systems and dials, every combination once."""

from collections.abc import Mapping
from typing import Any

from negbench.cli import command, output
from negbench.settings.options import Compare, option


class _Asked(Compare):
    """Options of the command line."""

    dry_run: bool = option(
        False,
        "Print the plan, what is finished, what the rest takes and what more seeds would detect; then stop. "
        "Needs no weights, no images.",
    )


@command.of(
    _Asked,
    "negbench compare --strategies cir --losses bradley-terry --seeds 3",
    "negbench compare --recipe world --dial dataset.twins=1,2,4 --strategies qure,in-batch",
    "negbench compare --systems all --strategies cir --seeds 5 --workers 2",
    "negbench compare --strategies qure,dqe --tuned 40",
    help="Compute every combination once, then print tables and an answer. Rerun the command to resume.",
)
def compare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plan, compute, print."""
    from negbench import api

    asked, console = _Asked.parsed(given), output.console()
    if asked.dry_run:
        from negbench.analysis.deciding import resolution
        from negbench.grid.estimate import Estimate
        from negbench.loop.runs import SCENES

        with SCENES.lenient() as lacking:
            planned, rules, _ = api.plan_compare(asked, console)
        lines = [output.unrecognised(lacking)] * bool(lacking)
        lines += planned.price(rules.looks, Estimate()) + resolution(planned.cells, planned.folder.path.parent, rules)
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)
        return output.plan_document(planned.cells, planned.folder.path.parent, lines)
    return api.compare(asked, console=console).plain()
