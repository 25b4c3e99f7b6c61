"""`negbench doctor`: check this machine, leftovers of killed processes, and stored files for damage."""

from dataclasses import asdict
from typing import Any

import typer

from negbench.cli import command, output
from negbench.settings.command_options import Doctor


@command.of(
    Doctor,
    "negbench doctor",
    "negbench doctor --runs-dir other/runs",
    "negbench doctor --recipe qure-fashioniq --data-root DIR",
    help="Check versions, devices, disk, stores and every stored file; remove leftovers of killed processes. "
    "With options of `negbench run`: say what that run takes on this machine.",
)
def doctor(options: Doctor) -> dict[str, Any]:
    """Print one line per check; exit code 2 if something is wrong."""
    from negbench.errors import ProblemsError
    from negbench.own.doctor import examine

    remarks = []
    for remark in examine(options):
        remarks.append(remark)
        if not output.wants_json():
            mark = "PROBLEM: " if remark.problem else ""
            typer.echo(f"{remark.part:9} {mark}{remark.text}")
    problems = sum(remark.problem for remark in remarks)
    document = {"problems": problems, "findings": [asdict(remark) for remark in remarks]}
    if problems:
        raise ProblemsError(problems, document)
    return document
