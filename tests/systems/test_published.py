"""Whatever a recipe, a system or a strategy calls published or released has its source in docs/published.md."""

import re
from pathlib import Path

import pytest

from negbench.plugins.registry import registry
from negbench.settings.layers import recipes
from negbench.systems.system import system_files

PAGE = Path(__file__).parents[2] / "docs" / "published.md"
MARKED = re.compile(r"\b(published|released)\b")


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of each row below a heading; a cell may hold `\\|`."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def marked_settings(path: Path) -> set[str]:
    """Return the settings of a TOML file whose comment says "published" or "released"."""
    found = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        setting, hash_sign, comment = line.partition(" # ")
        if hash_sign and MARKED.search(comment) and not line.startswith("#"):
            found.add(setting.strip().rstrip(","))
    return found


FILES = recipes() | {f"system {name}": path for name, path in system_files().items()}
SOURCES = {
    (name, setting.strip("`")): source for names, setting, source, _ in rows_of("Recipes") for name in names.split(", ")
}


@pytest.mark.parametrize("name", FILES)
def test_every_setting_that_a_file_calls_published_has_its_source(name):
    marked = marked_settings(FILES[name])
    assert marked == {setting for place, setting in SOURCES if place == name}


def test_every_row_names_a_file_and_says_which_of_the_two_it_is():
    assert {place for place, _ in SOURCES} <= set(FILES)
    for key, source in SOURCES.items():
        assert MARKED.match(source), key


def test_every_strategy_that_speaks_of_a_release_has_its_source():
    speaking = {
        plugin.name
        for plugin in registry.plugins("strategies").values()
        if plugin.origin == "built-in" and re.search(r"\b(published|released?)\b", plugin.source().read_text())
    }
    assert speaking == {name for name, _, _, _ in rows_of("Strategies")}


ROWS = rows_of("Recipes") + rows_of("Strategies")


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_a_row_says_whether_code_or_notes_of_a_paper_were_checked(row):
    """A paper cannot be read as code, and a setting that only the paper prints was not read in code."""
    source, checked = row[2:]
    if "released" not in source:
        assert checked == "notes" or row[0] == "perc-pos"
    elif source.startswith("released"):
        assert checked == "code"
    else:
        assert checked == "both" or row[0] == "simans"
