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

    audited = run_audit(options)
    console = output.console()
    console.print(audit_table(audited))
    console.print(f"regime  {in_words([audited.regime])}", highlight=False)
    if audited.window:
        why = "without the batch, best in generated worlds at this train.num_negatives, on emoji level with the best"
        why += f"; {where_judged()}; beside a batch no window is known (docs/findings.md)"
        console.print(f"window  {audited.window}: {why}", highlight=False)
    if audited.gained:
        console.print(f"batch   {audited.gained} (docs/findings.md)", highlight=False)
    return audited.plain()
