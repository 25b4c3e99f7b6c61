"""docs/concepts.md explains the words of public class names that pandas, PyTorch or the field do not have."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts.md"

# rooms whose classes are named after methods, data sets and commands
APART = ("negbench/losses", "negbench/benchmarks", "negbench/worlds")
COMMANDS = ("negbench/settings/options.py", "negbench/settings/command_options.py")

# of English, Python, pandas, PyTorch, MLflow, Optuna and retrieval, used as they are used there
WORDS = """
    adam answer architecture batch block bounded build cache call callback card case chart checked checkpoint choice
    chosen closed column combination command compose compute computed condition config content context copy count cut
    damaged data dataset description display done dropout embedded embedding end epoch error eval event example extra
    feature file filter folder format freeze grid has hold identity image in input interval kind learning left
    line list listing log mapped measured member memory metric mining missing model module name need negbench noise
    note nothing objective option ordered page pair parent part patient paused pending per picture
    plugin precision preference problem process progress pruned published ragged range rank ranking rate ray
    reader reading recomputed record registry remark resolved row sampler scalar schedule scored search section see
    seeded seen server setting shard share source spec spelling state statistic step stopped store stored
    stream sub summary synthetic table test text time timer top toy tracker train training triplet
    trusted tuning turn unknown up value view w weight without
"""
ORDINARY = {*WORDS.split()}


def singular(word: str) -> str:
    if word == "axes":
        return "axis"
    for plural, end in (("ies", "y"), ("ches", "ch"), ("sses", "ss")):
        if word.endswith(plural):
            return word.removesuffix(plural) + end
    return word if word.endswith(("ss", "us", "is")) or len(word) <= 3 else word.removesuffix("s")


def words_of_classes() -> dict[str, str]:
    """Return word -> a public class whose name has it."""
    words: dict[str, str] = {}
    for path in sorted((ROOT / "negbench").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(APART) or place in COMMANDS or path.stem.startswith("_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", node.name):
                    words.setdefault(singular(word.lower()), f"{place}: {node.name}")
    return words


def rows_of_page() -> list[list[str]]:
    """Return the cells of every row of the page's tables."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] != "word"]


def explained() -> set[str]:
    """Return the words of first columns, and those that a row sets in bold."""
    words = set()
    for word, meaning, *_ in rows_of_page():
        for text in (word, *re.findall(r"\*\*(.+?)\*\*", meaning)):
            words.update(singular(part) for part in re.findall(r"[a-z]+", text.lower()))
    return words


def test_every_word_of_a_class_name_has_a_row_or_is_an_ordinary_one():
    known = explained() | ORDINARY
    lacking = {word: place for word, place in words_of_classes().items() if word not in known}
    assert lacking == {}, "give each a row, or take a word that pandas, PyTorch or the field has"


def test_no_word_is_called_ordinary_that_no_class_has_or_that_the_page_explains():
    words = words_of_classes()
    assert {word for word in ORDINARY if word not in words} == set()
    assert ORDINARY & {singular(row[0].lower()) for row in rows_of_page()} == set()


@pytest.mark.parametrize("row", rows_of_page(), ids=lambda row: row[0])
def test_every_row_has_a_meaning_and_an_example(row):
    assert len(row) == 3
    assert all(row)
