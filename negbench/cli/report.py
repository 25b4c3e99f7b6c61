"""`negbench report`: one page of tables, figures and galleries, readable without network."""

from collections.abc import Mapping
from typing import Any

from negbench.cli import command, output
from negbench.settings.options import Report


@command.of(
    Report,
    "negbench report demo",
    "negbench report demo --galleries 5",
    "negbench report demo --card",
    help="Write one HTML file with the tables and figures of a comparison or of claims.",
)
def report(given: Mapping[str, Any]) -> dict[str, Any]:
    """Build the page and print its path."""
    from negbench.machine import files
    from negbench.report.build import write_report
    from negbench.settings.layers import plugin_layer

    asked, shown = Report.parsed(given), output.console()
    plugin_layer(asked.plugin)
    runs = files.runs_dir(asked.runs_dir)
    if asked.card:
        from negbench.report.result_card import write_result_card

        for path in write_result_card(runs, asked.name):
            shown.print(str(path), highlight=False, soft_wrap=True)
    page, *others = write_report(runs, asked.name, asked.galleries)
    shown.print(str(page), highlight=False, soft_wrap=True)
    for folder, what in (("tables", "md, tex, csv"), ("figures", "svg")):
        count = sum(path.parent.name == folder for path in others)
        if count:
            shown.print(f"{page.parent / folder}: {count} files ({what})", highlight=False, soft_wrap=True)
    return {"page": page, "files": others}
