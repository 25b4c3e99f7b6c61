"""Prose that lists the values of a setting lists exactly those that the code takes."""

import itertools
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from negbench.contracts.strategy import Slot
from negbench.contracts.view import PlaneName
from negbench.settings.command_options import List, MinedFormat, PluginKind
from negbench.settings.options import Pruner, Sampler, Study

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
OTHER_TRAINERS = (ROOT / "docs" / "howto" / "other_trainers.md").read_text(encoding="utf-8")
ROWS = OTHER_TRAINERS.partition("| `--format` |")[2].partition("\n\n")[0].splitlines()[2:]
FORMATS = " ".join(row.split("|")[1] for row in ROWS)  # the first column
# what is listed -> the type, the text, and how a value stands in it
LISTED: dict[str, tuple[Any, str, str]] = {
    "planes": (PlaneName, CONTRIBUTING.partition("- **Planes**")[2].partition("\n- **")[0], r'"(\w+)"'),
    "slots": (Slot, CONTRIBUTING.partition("## What a strategy is")[2].partition("\n- **An order**")[0], r'"(\w+)"'),
    "formats of mine": (MinedFormat, FORMATS, r"`([a-z][a-z-]+)`"),
    "kinds of list": (PluginKind, str(List.model_fields["kind"].description), r"(strategies|\w+s)(?=,| or | \[)"),
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EMPTY_HEADER = re.compile(r"^ *\|(?:[^|\n]*\|)*? *\|.*\n *\|[-:| ]+\|$", re.MULTILINE)  # a cell without a word


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_column_of_a_table_has_a_name(page):
    """A screen reader says a column's name before each of its cells."""
    assert EMPTY_HEADER.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", LISTED)
def test_prose_lists_the_values_that_the_code_takes(name):
    kind, text, pattern = LISTED[name]
    assert set(re.findall(pattern, text, flags=re.MULTILINE)) == set(get_args(kind))


@pytest.mark.parametrize(("field", "kind"), [("sampler", Sampler), ("pruner", Pruner)])
def test_a_flags_help_names_each_of_its_choices(field, kind):
    help_text = str(Study.model_fields[field].description)
    assert [choice for choice in get_args(kind) if not re.search(rf"\b{choice}\b", help_text)] == []


RESULTS = ["README.md", "docs/findings.md", "docs/findings_tables.md"]


@pytest.mark.parametrize("page", RESULTS)
def test_a_table_with_a_learned_temperature_says_where_it_starts(page):
    """In the table, or in the paragraph above it."""
    paragraphs = (ROOT / page).read_text(encoding="utf-8").split("\n\n")
    silent = []
    for above, table in itertools.pairwise(paragraphs):
        rows = table.lstrip().startswith("|")
        if rows and re.search(r"\b[Ll]earned\b", table) and "earned from 0." not in " ".join((above + table).split()):
            silent.append(table.splitlines()[0])
    assert silent == []
