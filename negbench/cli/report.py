"""`negbench report`: one page of tables, figures and galleries, readable without network."""

from pathlib import Path
from typing import Any

import typer

from negbench.cli import command, output
from negbench.machine.received import read_text
from negbench.settings.options import Report


@command.of(
    Report,
    "negbench report demo",
    "negbench report demo --galleries 5",
    "negbench report demo --metric R@20",
    "negbench report demo --card --figures pdf",
    "negbench report demo --latex --columns R@1,R@10",
    help="Write one HTML file with the tables and figures of a comparison or of claims.",
)
def report(options: Report) -> dict[str, Any]:
    """Build the page and print its path."""
    from negbench.machine import files
    from negbench.settings.layers import plugin_layer

    plugin_layer(options.plugin)
    runs = files.runs_dir(options.runs_dir)
    if options.latex or options.markdown:
        text = _table(runs, options)
        typer.echo(text)
        if options.out:
            files.write_text(options.out, text)
        return {"table": text}
    if options.share:
        from negbench.report.share import share

        copied = share(runs, options.name, options.share)
        _say(f"{copied[0]} and {len(copied) - 1} runs")
        return {"shared": copied}
    if options.metric is not None:
        from negbench.analysis.answer import answer_of
        from negbench.analysis.findings import judge_by_metric
        from negbench.report.finish import print_findings

        findings = judge_by_metric(runs, options.name, options.metric)
        print_findings(output.console(), findings)
        return {"answer": answer_of(findings).lines}
    if options.card:
        from negbench.report.result_card import write_result_card

        for path in write_result_card(runs, options.name):
            _say(str(path))
    return _page(runs, options)


def _say(line: str) -> None:
    output.console().print(line, highlight=False, soft_wrap=True)


def _page(runs: Path, options: Report) -> dict[str, Any]:
    """Write the page, its tables and its figures, and print where they are; only a card does without matplotlib."""
    from negbench.display import notes
    from negbench.errors import NegbenchError, install_line
    from negbench.machine import files

    line = install_line("matplotlib")
    if line:
        if not options.card:
            raise NegbenchError(line)
        notes([f"no page: {line}"])
        return {"page": None, "files": []}
    from negbench.report.build import write_report

    page, *others = write_report(runs, options.name, options.galleries, options.figures)
    _say(str(page))
    if options.out:
        files.write_text(options.out, read_text(page))
        _say(str(options.out))
    for folder in ("tables", "figures"):
        kinds = [path.suffix.removeprefix(".") for path in others if path.parent.name == folder]
        if kinds:
            _say(f"{page.parent / folder}: {len(kinds)} files ({', '.join(dict.fromkeys(kinds))})")
    return {"page": page, "files": others}


def _table(runs: Path, options: Report) -> str:
    """Return the leader table as LaTeX or Markdown: the stored one, without pandas, if that is what is asked for."""
    from negbench.report.loaded import stored_latex

    if options.latex and not (options.markdown or options.metric or options.columns or options.epochs):
        text = stored_latex(runs, options.name)
        if text is not None:
            return text

    from negbench.analysis.findings import judge_by_metric, read_findings
    from negbench.report.tables import leader_text

    if options.metric is None:
        findings = read_findings(runs, options.name)
    else:
        findings = judge_by_metric(runs, options.name, options.metric)
    return leader_text(findings, options)
