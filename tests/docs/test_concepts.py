"""docs/concepts.md explains the words of public class names that pandas, PyTorch or the field do not have."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts.md"

# rooms whose classes are named after methods, data sets and commands
APART = ("negbench/losses", "negbench/benchmarks", "negbench/worlds")
COMMANDS = ("negbench/settings/options.py", "negbench/settings/command_options.py")

# of English, Python, pandas, PyTorch, MLflow, Optuna and retrieval, used as they are used there
WORDS = """
    adam answer architecture block bounded build cache call callback card case chart checked checkpoint choice
    chosen closed column combination command compose compute computed condition config content context copy count
    cut damaged data dataset description display done dropout embedded embedding end epoch error eval event example
    extra feature file filter folder format freeze grid has hold identity image in input interval kind left line
    list listing log mapped mean measured member memory metric mining missing model module name need negbench noise note
    nothing objective option ordered page pair parent patient paused pending per picture plugin precision preference
    problem process progress pruned published ragged rank ranking ray reader reading recomputed record registry
    remark resolved row sampler scalar schedule scored section see seeded seen server setting shard share source
    spec spelling state statistic step stopped store stored stream sub summary synthetic test text thumbnail
    time timer top toy tracker train training triplet trusted tuning turn unknown up value view w weight without
"""
ORDINARY = {*WORDS.split()}


def singular(word: str) -> str:
    if word == "axes":
        return "axis"
    for plural, end in (("ies", "y"), ("ches", "ch"), ("sses", "ss")):
        if word.endswith(plural):
            return word.removesuffix(plural) + end
    return word if word.endswith(("ss", "us", "is")) or len(word) <= 3 else word.removesuffix("s")


def words_of(text: str) -> list[str]:
    """Return the words of a text or a class name, in the singular."""
    return [singular(word.lower()) for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z][a-z0-9]*", text)]


def words_of_classes() -> dict[str, set[str]]:
    """Return word -> the public classes whose names have it."""
    words = defaultdict[str, set[str]](set)
    for path in sorted((ROOT / "negbench").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(APART) or file in COMMANDS or path.stem.startswith("_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for word in words_of(node.name):
                    words[word].add(f"{file}: {node.name}")
    return dict(words)


def rows_of_page() -> list[dict[str, str]]:
    """Return the rows of the page's tables by their headers."""
    rows = []
    headers: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| "):
            continue
        if cells[0] == "word":
            headers = cells
        else:
            rows.append(dict(zip(headers, cells, strict=True)))
    return rows


def words_of_the_code() -> list[tuple[str, str]]:
    """Return each word of the code with whose word it is; a row names one for all of its words, or one for each."""
    pairs: list[tuple[str, str]] = []
    for row in rows_of_page():
        if "word of" not in row:
            continue
        names = row["word"].split(", ")
        origins = row["word of"].split("; ")
        if len(names) == 1:
            origins = [row["word of"]]
        elif len(origins) == 1:
            origins *= len(names)
        pairs += zip(names, origins, strict=True)
    return pairs


def explained() -> set[str]:
    """Return the words of first columns, and those that a row sets in bold."""
    words = set[str]()
    for row in rows_of_page():
        words.update(words_of(row["word"]))
        for text in re.findall(r"\*\*(.+?)\*\*", row["means"]):
            words.update(words_of(text))
    return words


def test_every_word_of_a_class_name_has_a_row_or_is_an_ordinary_one():
    known = explained() | ORDINARY
    lacking = {word: classes for word, classes in words_of_classes().items() if word not in known}
    assert lacking == {}, "give each a row, or take a word that pandas, PyTorch or the field has"


def test_no_word_is_called_ordinary_that_no_class_has_or_that_the_page_explains():
    words = words_of_classes()
    assert {word for word in ORDINARY if word not in words} == set()
    assert ORDINARY & explained() == set()


@pytest.mark.parametrize("row", rows_of_page(), ids=lambda row: row["word"])
def test_every_row_has_a_meaning_and_an_example(row):
    columns = ["word", "means", "for example"]
    assert list(row) in (columns, [*columns, "word of"])
    assert "" not in row.values()


@pytest.mark.parametrize(("word", "origin"), words_of_the_code(), ids=[word for word, _ in words_of_the_code()])
def test_a_word_that_only_negbench_has_serves_several_classes(word, origin):
    assert origin
    if origin == "negbench":
        classes = words_of_classes().get(singular(word), set())
        assert len(classes) >= 2, "rename the class, or say whose word it is"
