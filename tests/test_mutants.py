"""What the mutation tests change; `make mutants` runs them."""

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULE = """
MOVES_SCORES = False
LIMIT = 3

def half(rows: list[int], top: int = 2) -> float:
    assert rows, 1 + 1
    if top < LIMIT and not rows[0]:
        raise ValueError(f"want {top + 1}")
    rows.append(-1)
    return sum(rows) / 2
"""

FORKING_TEST = """
from multiprocessing import get_context

def test_a_forked_process_ends_well():
    process = get_context("fork").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.fixture
def mutants(load_file: Callable[[Path], ModuleType]) -> Any:
    return load_file(Path(__file__).with_name("mutants.py"))


def test_every_fault_by_hand_stands_in_its_file(mutants):
    faults = mutants.protocol()
    assert len({(fault.path, fault.text) for fault in faults}) == len(faults) > 80
    for fault in faults:
        compile(fault.text, str(fault.path), "exec")
        missing = [name for name in fault.tests if not (mutants.ROOT / name.partition("::")[0]).exists()]
        assert missing == [], fault.what


def test_faults_of_a_module_by_hand(mutants, tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(MODULE, encoding="utf-8")
    count = len(mutants._choices(ast.parse(MODULE)))
    faults = [mutants.mutant_of(path, number, ["tests"]) for number in range(count)]
    assert Counter(mutant.what for mutant in faults) == {
        "3 -> 4": 1, "3 -> 2": 1,  # LIMIT
        "2 -> 3": 2, "2 -> 1": 2,  # top and the divisor
        "1 -> 2": 1, "1 -> 0": 1, "USub left out": 1,  # -1
        "0 -> 1": 1, "0 -> -1": 1,
        "condition turned round": 1, "and <-> or": 1, "Lt -> LtE": 1, "Not left out": 1,
        "statement left out": 2,  # raise, append
        "return None": 1, "Div -> Mult": 1,
    }  # fmt: skip
    assert len({mutant.text for mutant in faults}) == len(faults)
    assert ast.unparse(ast.parse(MODULE)) not in {mutant.text for mutant in faults}
    assert {mutant.text.count("MOVES_SCORES = False") for mutant in faults} == {1}
    (turned,) = (mutant for mutant in faults if mutant.what == "Lt -> LtE")
    assert (turned.line, "if top <= LIMIT and (not rows[0]):" in turned.text) == (7, True)


def test_a_sample_is_that_of_its_seed(mutants):
    first, total = mutants.sample_of("losses", 9, 0)
    again, _ = mutants.sample_of("losses", 9, 0)
    other, _ = mutants.sample_of("losses", 9, 1)
    assert first == again
    assert first != other
    assert total > 200
    assert len({str(mutant) for mutant in first}) <= 9 == len(first)


def test_a_group_names_files_that_exist(mutants):
    for name, group in mutants.GROUPS.items():
        assert [pattern for pattern in group["sources"] if not list(mutants.ROOT.glob(pattern))] == [], name
        assert [path for path in group["tests"] if not (mutants.ROOT / path).exists()] == [], name


def test_tests_of_a_mutant_may_fork_processes(mutants, tmp_path, monkeypatch):
    file = tmp_path / "test_fork.py"
    file.write_text(FORKING_TEST, encoding="utf-8")
    path = mutants.ROOT / "negbench" / "errors.py"
    no_fault = mutants.Mutant(path, 1, "no fault", path.read_text(encoding="utf-8"), (str(file),))
    monkeypatch.setattr(mutants, "sample_of", lambda *_: ([no_fault], 1))
    options = SimpleNamespace(sample=1, seed=0, only="", jobs=1, seconds=60)
    assert mutants.try_group("losses", options).endswith("   0 killed,   1 survived")
