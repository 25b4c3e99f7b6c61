"""`negbench init`: inspect a folder of your own data, and write the files and print the commands to start with."""

from typing import Any

from negbench.cli import command, output
from negbench.settings.command_options import Init


@command.of(
    Init,
    "negbench init my-data",
    "negbench init my-data --columns reference=ref,text=caption",
    help="Inspect a folder of triplets and images or embeddings: list what is there and what is missing, write "
    "a commented recipe and an example strategy, and print the next commands.",
)
def init(options: Init) -> dict[str, Any]:
    """Inspect the folder, write the files, print the next commands."""
    from negbench.errors import DataError, printable
    from negbench.own.init import commands, inspect_folder, write

    console = output.console()
    scan = inspect_folder(options.folder, options.columns, options.allow_missing)
    for title, lines in (("found", scan.present), ("warning", scan.warnings)):
        for line in lines:
            console.print(f"{title:8} {printable(line)}", highlight=False, markup=False)
    if not scan.comparable:
        raise DataError(f"{options.folder}: cannot start yet: {'; '.join(scan.missing)}")
    written = write(scan)
    steps = commands(scan)
    for path in written:
        console.print(f"{'wrote':8} {printable(str(path))}", highlight=False, soft_wrap=True, markup=False)
    console.print("next", highlight=False)
    for line in steps:
        console.print(f"  {printable(line)}", highlight=False, soft_wrap=True, markup=False)
    return {
        "found": scan.present,
        "missing": scan.missing,
        "warnings": scan.warnings,
        "written": written,
        "next": steps,
    }
