"""Result cards: what a comparison computed, for others to repeat and to compare with, as card.json and card.md."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.frame import first_run, key_of, known_numbers, labels_of, seconds_of
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.words import escape_markup, markdown
from negbench.errors import RunError
from negbench.grid.axis import group_key
from negbench.machine.files import without_folders, write_json, write_text
from negbench.report.build import comparison_page
from negbench.report.claims import is_of_claims
from negbench.report.page import Page, PageSection
from negbench.report.tables import Table, tables

_HERE = ("compute.", "plugins", "dataset.root", "seed", "schedule.refresh_epochs", "schedule.refresh_counts")
_TEST = (
    "metric", "standing", "gap", "gap_low", "gap_high", "baseline", "verdict", "difference", "diff_low", "diff_high",
)  # fmt: skip


def write_result_card(runs: Path, name: str) -> list[Path]:
    """Write card.json (docs/cards/card.schema.json) and card.md into a comparison's folder; return their paths.

    Raises:
        RunError: no such comparison, none of its runs is finished, or it holds claims.
    """
    folder = runs / name
    if is_of_claims(folder):
        raise RunError(f"'{name}' holds claims: only a comparison has a card")
    findings = read_findings(runs, name)
    page = comparison_page(folder, findings, tables(findings), galleries=0)
    settings = _common(run.config.flat() for run in findings.runs)
    write_json(folder / "card.json", _document(name, page, settings, findings))
    return [folder / "card.json", write_text(folder / "card.md", _markdown(name, page, settings))]


def _common(flats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that these runs share, without those of this machine and those derived from others.

    Of a file's path only the name is kept.
    """
    first, *others = flats
    settings = {}
    for key, value in first.items():
        if value is None or key.startswith(_HERE) or any(other.get(key) != value for other in others):
            continue
        settings[key] = without_folders(value) if isinstance(value, str) else value
    return settings


def _document(name: str, page: Page, settings: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """Return the content of card.json."""
    tests = {group_key(vars(row)): row for row in findings.main_verdicts}
    return {
        "name": name,
        "answer": list(page.answer),
        "provenance": dict(page.facts),
        "settings": dict(settings),
        "rows": [_row(group, tests.get(key_of(group)), settings) for group in findings.groups],
    }


def _row(group: pd.DataFrame, test: Verdict | None, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a strategy's labels, runs, settings besides the shared ones, metrics per seed, and means over seeds."""
    plain = {} if test is None else test.flat()
    settings = _common(run.config.flat() for run in group["stored"])
    regime = pd.DataFrame([run.result.get("regime") or {} for run in group["stored"]]).astype(float).mean()
    return {
        **labels_of(group),
        "negatives": plain.get("negatives"),
        "settings": {key: value for key, value in settings.items() if key not in shared},
        "seeds": group["seed"].tolist(),
        "runs": group["run"].tolist(),
        "metrics": {key: known_numbers(group, f"metrics/{key}") for key in first_run(group).result["metrics"]},
        "test": {key: plain[key] for key in _TEST} if plain else None,
        "regime": {str(key): value for key, value in sorted(regime.items())},
        "seconds": float(np.mean([seconds_of(run) for run in group["stored"]])),
    }


def _tables_in(sections: Iterable[PageSection]) -> list[Table]:
    """Return the tables of these sections, in order."""
    tables_of_page = []
    for section in sections:
        tables_of_page += [part for part in section.parts if isinstance(part, Table)]
    return tables_of_page


def _markdown(name: str, page: Page, settings: Mapping[str, Any]) -> str:
    """Return the card as a page: answer, tables of the result and of the regime, settings, provenance."""
    lines = [f"# Result card: {name}", escape_markup(" · ".join(page.header))]
    lines += [escape_markup(line) for line in page.answer]
    for chapter, sections in page.chapters.items():
        for table in _tables_in(sections):
            if chapter != "result" and table.name != "regime":
                continue
            title = f"**{table.title}**"
            if table.common:
                title += f" (all rows: {escape_markup(', '.join(table.common))})"
            lines.append(title)
            lines.append(markdown(table.visible_frame).rstrip())
    lines += ["## Settings that all runs share, as a recipe", "Each row's other settings are in `card.json`."]
    rows = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]  # JSON's scalars and lists are TOML's
    lines.append("\n".join(["```toml", *rows, "```"]))
    lines += ["## Provenance", markdown(pd.DataFrame(page.facts, columns=["", "value"])).rstrip()]
    return "\n\n".join(lines) + "\n"
