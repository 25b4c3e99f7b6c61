"""`negbench audit`: show what strategies would draw, without training."""

from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Audit


@command.of(
    Audit,
    "negbench audit --strategy qure,top-k --backbone tiny --dataset synthetic --json",
    "negbench audit --run RUN",
    help="Show what corpus strategies would draw, without training: false negatives, hardness, diversity, fallbacks.",
)
def audit(options: Audit) -> dict[str, Any]:
    """Audit and print."""
    from negbench.analysis.regime_card import in_words
    from negbench.analysis.run_tables import audit_table
    from negbench.mining.window import where_judged
    from negbench.own.audit import run_audit

    result = run_audit(options)
    console = output.console()
    console.print(audit_table(result))
    console.print(f"regime  {in_words([result.regime])}", highlight=False)
    if result.window:
        reason = "without the batch, best in generated worlds at this train.num_negatives, on emoji level with the best"
        reason += f"; {where_judged()}; beside a batch no window is known (docs/findings.md)"
        console.print(f"window  {result.window}: {reason}", highlight=False)
    if result.gained:
        console.print(f"batch   {result.gained} (docs/findings.md)", highlight=False)
    return result.plain()
