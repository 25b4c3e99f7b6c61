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
    rows = []
    for line in text.splitlines():
        if line.startswith("| "):
            _, *cells, _ = re.split(r"(?<!\\)\|", line)
            rows.append([cell.strip().replace(r"\|", "|") for cell in cells])
    return rows[1:]


def marked_settings(path: Path) -> set[str]:
    """Return the settings of a TOML file whose comment says "published" or "released"."""
    settings = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        setting, hash_sign, comment = line.partition(" # ")
        if hash_sign and MARKED.search(comment) and not line.startswith("#"):
            settings.add(setting.strip().rstrip(","))
    return settings


FILES = recipes() | {f"system {name}": path for name, path in system_files().items()}


def sources_of_settings() -> dict[tuple[str, str], str]:
    """Return the source of each setting of each file, from the page's table of recipes."""
    sources = {}
    for names, setting, source, _ in rows_of("Recipes"):
        for name in names.split(", "):
            sources[name, setting.strip("`")] = source
    return sources


SOURCES = sources_of_settings()


@pytest.mark.parametrize("name", FILES)
def test_every_setting_that_a_file_calls_published_has_its_source(name):
    assert marked_settings(FILES[name]) == {setting for file, setting in SOURCES if file == name}


def test_every_row_names_a_file_and_says_which_of_the_two_it_is():
    assert {file for file, _ in SOURCES} <= set(FILES)
    for key, source in SOURCES.items():
        assert MARKED.match(source), key


def test_every_strategy_that_speaks_of_a_release_has_its_source():
    names = set()
    for plugin in registry.plugins("strategies").values():
        if plugin.origin == "built-in" and re.search(r"\b(published|released?)\b", plugin.source().read_text()):
            names.add(plugin.name)
    assert names == {name for name, _, _, _ in rows_of("Strategies")}


ROWS = rows_of("Recipes") + rows_of("Strategies")


@pytest.mark.parametrize(("name", "setting", "source", "checked"), ROWS)
def test_a_row_says_whether_code_or_notes_of_a_paper_were_checked(name, setting, source, checked):
    """A paper cannot be read as code, and a setting that only the paper prints was not read in code."""
    if "released" not in source:
        assert checked == "notes" or name == "perc-pos"
    elif source.startswith("released"):
        assert checked == "code"
    else:
        assert checked == "both" or name == "simans"
