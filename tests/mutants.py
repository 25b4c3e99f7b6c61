"""Mutation tests (`make mutants`): put a single fault into a module; the tests of its area must fail.

    python tests/mutants.py [GROUP ...] [--sample N] [--seed S] [--only PATTERN] [--jobs J] [--seconds SECONDS]

A group is an area of the code and its tests. The group `protocol` holds the hand-written faults of `tests/faults.toml`;
the others sample changes to the syntax tree: a comparison, an operator, a constant, a condition, a returned value, a
removed statement. Each mutant runs in its own process, forked from one that has imported negbench's dependencies, and
the fault exists only in memory: no file is written, and processes that a test starts anew lack it. Tests stop at the
first failure; a timeout counts as a killed mutant.
"""

import argparse
import ast
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.toml"

GROUPS: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

# --- faults ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A module with one fault: its file, the fault's line and kind, and the text that replaces the file."""

    path: Path
    line: int
    what: str
    text: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.what}"


_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield named replacements for one node."""
    match node:
        case ast.Compare(left=first, ops=ops, comparators=others):
            for index, op in enumerate(ops):
                other = _COMPARISONS[type(op)]()
                new = ast.Compare(first, [*ops[:index], other, *ops[index + 1 :]], others)
                yield f"{type(op).__name__} -> {type(other).__name__}", new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            new = ast.BinOp(left, _OPERATORS[type(op)](), right)
            yield f"{type(op).__name__} -> {_OPERATORS[type(op)].__name__}", new
        case ast.AugAssign(target=target, op=op, value=value):
            if type(op) in _OPERATORS:
                new = ast.AugAssign(target, _OPERATORS[type(op)](), value)
                yield f"{type(op).__name__}= -> {_OPERATORS[type(op)].__name__}=", new
            yield "statement left out", ast.Pass()
        case ast.BoolOp(op=op, values=values):
            yield "and <-> or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"{type(node.op).__name__} left out", operand
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield f"{value} -> {value + 1}", ast.Constant(value + 1)
            yield f"{value} -> {value - 1}", ast.Constant(value - 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "condition turned round", ast.IfExp(test, orelse, body)
        case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
            yield "condition turned round", type(node)(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue() | ast.Delete():
            yield "statement left out", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement left out", ast.Pass()


def _sites(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes to mutate, leaving out annotations, error messages and code for type checkers."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "exc", "cause", "type_comment"):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Assign | ast.AnnAssign) and "MOVES_SCORES" in ast.unparse(child):
                continue
            if not isinstance(child, ast.Assert):
                yield child
                yield from _sites(child)


class _Replace(ast.NodeTransformer):
    """Replace `old` by `new`."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def _choices(tree: ast.AST) -> list[tuple[ast.AST, str, ast.AST]]:
    """Return all single faults of a module: node, name, replacement."""
    choices = []
    for site in _sites(tree):
        choices += [(site, what, new) for what, new in _variants(site)]
    return choices


def mutant_of(path: Path, number: int, tests: Sequence[str]) -> Mutant:
    """Return the mutant with fault `number` of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    site, what, new = _choices(tree)[number]
    line = getattr(site, "lineno", 0)
    text = ast.unparse(ast.fix_missing_locations(_Replace(site, new).visit(tree)))
    return Mutant(path, line, what, text, tuple(tests))


def protocol() -> list[Mutant]:
    """Return the hand-written mutants: each replaces a text that must occur once in its file.

    Raises:
        ValueError: the file does not contain the text exactly once.
    """
    mutants = []
    for fault in tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]:
        path = ROOT / fault["file"]
        text = path.read_text(encoding="utf-8")
        if text.count(fault["old"]) != 1:
            raise ValueError(f"{fault['file']} holds {text.count(fault['old'])} times, not once: {fault['old']!r}")
        line = text[: text.index(fault["old"])].count("\n") + 1
        new = text.replace(fault["old"], fault["new"])
        mutants.append(Mutant(path, line, fault["what"], new, tuple(fault["tests"])))
    return mutants


# --- trying one -----------------------------------------------------------------------------------------------------


def _test_files(mutant: Mutant) -> list[str]:
    """Return the test files in the given order; within a folder, those named after the module come first."""
    module = mutant.path.stem.lstrip("_")
    files: list[Path] = []
    for path in (ROOT / name for name in mutant.tests):
        tests = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        files += [file for file in tests if module in file.name]
        files += [file for file in tests if module not in file.name]
    return [str(file) for file in dict.fromkeys(files)]


_WALL = 10  # wall-clock seconds allowed per CPU second, as other processes may compete
# without tests that compare with another process: it lacks the fault, so they would kill any mutant that moves a number
_PYTEST = ("-knot another_process", "-xq", "--no-header", "--tb=line", "-Wignore", "-pno:xdist", "--timeout=0")


def _in_child(mutant: Mutant, output: Path, basetemp: str) -> int:
    """Run the tests with the fault in place and return pytest's exit code."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    read = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        if Path(self.path) == mutant.path:
            return compile(mutant.text, self.path, "exec", dont_inherit=True)
        return read(self, fullname)

    SourceFileLoader.get_code = get_code
    import pytest

    for file in _test_files(mutant):  # one by one: most mutants die in the first file
        # a cache of its own: numba must neither find the code without the fault nor leave the code with it
        code = int(pytest.main([*_PYTEST, f"--basetemp={basetemp}", f"-ocache_dir={basetemp}-cache", file]))
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
    return 0


def attempt(mutant: Mutant, seconds: int) -> tuple[str, str]:
    """Run the tests on a mutant in a new process with a CPU time limit; return the outcome and the failing test."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        output = Path(folder, "output")
        until = time.monotonic() + _WALL * seconds
        pid = os.fork()
        if not pid:
            code = 3
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
                code = _in_child(mutant, output, f"{folder}/tests")
            finally:
                sys.stdout.flush()
                os._exit(code)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(ProcessLookupError):  # the child and leftovers of its tests
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out", ""
    if code == 0:
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    return "killed", failed[1] if failed else "the import"


def warm() -> None:
    """Import negbench's dependencies, so that each fork imports only negbench itself."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["CI"] = "1"  # makes hypothesis deterministic and removes its deadlines
    import hypothesis  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    sys.path[0] = str(ROOT)  # not tests/: workers import tests.cluster_tasks
    assert not any(name.split(".")[0] == "negbench" for name in sys.modules)


def sample_of(group: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Return a sample of a group's mutants, determined by seed and code, and the size of the group."""
    if group == "protocol":
        faults = protocol()
        return faults, len(faults)
    paths = set[Path]()
    for pattern in GROUPS[group]["sources"]:
        paths.update(ROOT.glob(pattern))
    faults = list[tuple[Path, int]]()
    for path in sorted(paths):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        faults += [(path, number) for number in range(len(_choices(tree)))]
    sample = random.Random(f"{group}/{seed}").sample(faults, min(count, len(faults)))
    return [mutant_of(path, number, GROUPS[group]["tests"]) for path, number in sample], len(faults)


def try_group(group: str, options: argparse.Namespace) -> str:
    """Try the sample of a group and print a line for each mutant; return the line of the table."""
    mutants, total = sample_of(group, options.sample, options.seed)
    mutants = [mutant for mutant in mutants if re.search(options.only, str(mutant))]
    tests = dict[str, None]()  # in order, each once
    for mutant in mutants:
        tests |= dict.fromkeys(mutant.tests)
    first = mutants[0]
    clean = replace(first, what="no fault", text=first.path.read_text(encoding="utf-8"), tests=tuple(tests))
    outcome, test = attempt(clean, options.seconds)
    if outcome != "survived":
        sys.exit(f"{group}: the tests fail without a fault: {outcome} {test}")
    counts = Counter[str]()
    # no ThreadPoolExecutor: each process that a test forks would wait, at its end, for the pool's thread, and fail
    with ThreadPool(options.jobs) as pool:
        outcomes = pool.imap(partial(attempt, seconds=options.seconds), mutants)
        for mutant, (outcome, test) in zip(mutants, outcomes, strict=True):
            counts[outcome] += 1
            print(f"{outcome:9} {mutant}  {test}", flush=True)
    killed = counts["killed"] + counts["timed out"]
    tried = f"{group:12} {total:5} possible, {len(mutants):4} tried, "
    return f"{tried}{killed:4} killed, {counts['survived']:3} survived"


def main() -> int:
    """Run the command; return exit code 1 if a mutant survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("groups", nargs="*", help=f"protocol, {', '.join(GROUPS)}; default: all")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each group (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--only", default="", help="those whose line of output this regular expression finds")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default 2)")
    parser.add_argument("--seconds", type=int, default=300, help="of processor time for each (default 300)")
    options = parser.parse_args()
    groups = options.groups or ["protocol", *GROUPS]
    unknown = set(groups) - {"protocol", *GROUPS}
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}: want protocol, {', '.join(GROUPS)}")
    warm()
    table = []
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="mutants-hypothesis-")
    for group in groups:
        table.append(try_group(group, options))
        print(table[-1], flush=True)
    print("\n".join(["", *table]))
    return int(any("   0 survived" not in line for line in table))


if __name__ == "__main__":
    sys.exit(main())
