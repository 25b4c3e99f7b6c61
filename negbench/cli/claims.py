"""`negbench claims`: test what four papers say about negatives."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Claims
from negbench.settings.options import option


class _Asked(Claims):
    """Options of the command line."""

    dry_run: bool = option(
        False, "Print the plan, what is finished, and how many seeds would decide each claim; then stop."
    )


@command.of(
    _Asked,
    "negbench claims --only 5,8,17 --seeds 3",
    "negbench claims --recipe world --until decided --workers 2",
    help="Test what the papers claim about negatives: each is supported, refuted, undecided or not testable here. "
    "Computes the runs that are missing. Rerun the command to resume.",
)
def claims(given: Mapping[str, Any]) -> dict[str, Any]:
    """Judge and print."""
    from negbench.claims import table
    from negbench.claims.claim import chosen
    from negbench.claims.planning import ClaimsWork, judge_claims
    from negbench.grid.compute import raise_failed
    from negbench.machine import files
    from negbench.report.build import write_report

    asked, console = _Asked.parsed(given), output.console()
    if asked.listed:
        named = chosen(asked.only)
        console.print(table.listed(named))
        return {"claims": [asdict(claim) for claim in named]}

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    if asked.dry_run:
        from negbench.loop.runs import SCENES

        with SCENES.lenient() as lacking:
            work = ClaimsWork.of(asked, say)
            lines = [*[output.unrecognised(lacking)] * bool(lacking), *work.price()]
        for line in lines:
            say(line)
        return output.plan_document(work.plan.cells, work.runs, lines)
    judged = judge_claims(asked, say)
    console.print(table.shown(judged.claims))
    say(f"{table.counts(judged.claims)} ({judged.about})")
    folder = judged.files[-1].parent
    for path in (*judged.files, write_report(folder.parent, folder.name)[0]):
        say(str(path))
    raise_failed(judged.outcomes)
    document: dict[str, Any] = files.read_json(judged.files[-1])
    return document
