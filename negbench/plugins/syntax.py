"""Read Python files as syntax trees: what a module imports and defines, without importing it.

The registry finds plug-ins with it, and `negbench.loop.identity` hashes the code that can change a score.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from sysconfig import get_paths
from typing import Any, NamedTuple

from negbench.errors import NegbenchError
from negbench.machine import files
from negbench.machine.contents import stamp
from negbench.machine.received import read_bytes

_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)  # statements, and nodes that hold them
_CONSTANTS = ("MOVES_SCORES", "PAPER", "READS")
_MOST = 3_000  # entries that are kept: older ones are of files that have changed


def forget() -> None:
    """Look for imported modules again: some have changed."""
    importlib.invalidate_caches()
    for cached in (closure, imports, is_local, _spec, _traits):
        cached.cache_clear()


def parse(path: Path, content: bytes | None = None) -> ast.Module:
    """Return the syntax tree of a file, whose content may be known; NegbenchError if it cannot be read or parsed."""
    try:
        return ast.parse((_read(path) if content is None else content).decode())
    except (SyntaxError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a null byte
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        problem = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NegbenchError(f"{path}{line}: not valid Python: {problem}") from error


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise NegbenchError(f"cannot read {path}: {error.strerror or error}") from error


class ModuleSummary(NamedTuple):
    """What commands read of a module: the hash of `canonical`, its imports, and its constants of `_CONSTANTS`."""

    code: str
    imports: list[str]
    constants: dict[str, object]


def traits(module: str, path: Path) -> ModuleSummary:
    """Return a module's traits, parsing a content of its file only once, whatever the command; errors as in `parse`."""
    return _traits(module, path, stamp(path))


@cache
def _traits(module: str, path: Path, _changed: tuple[int, ...]) -> ModuleSummary:
    content = _read(path)
    package = path.name == "__init__.py"
    memory = _memory()
    key = hashlib.sha256(f"{module} {package}\n".encode() + content).hexdigest()
    if key not in memory:
        tree = parse(path, content)
        code = hashlib.sha256(canonical(tree).encode()).hexdigest()
        names = sorted({dotted for _, dotted in imported_names(tree, module, package=package)})
        texts = {}
        for name in _CONSTANTS:
            value = constant(tree, name)
            if value is not None:
                texts[name] = repr(value)
        memory[key] = (code, names, texts)
    code, names, texts = memory[key]
    return ModuleSummary(code, names, {name: ast.literal_eval(text) for name, text in texts.items()})


@cache
def _memory() -> dict[str, Any]:
    """Return key -> traits that earlier commands found with this code and Python; this one adds its own at its end."""
    name = f"{files.sha256_of(Path(__file__))[:16]}-{sys.implementation.cache_tag}.json"
    file = files.cache_dir() / "code" / name
    memory = dict[str, Any]()
    with suppress(NegbenchError):  # there is none, or it is damaged
        memory |= files.read_json(file)
    atexit.register(_store, file, memory, len(memory))
    return memory


def _store(file: Path, memory: dict[str, Any], count_before: int) -> None:
    with suppress(NegbenchError, OSError):  # a cache that cannot be written
        if len(memory) > count_before:
            files.seal(file.parent)
            latest = dict([*memory.items()][-_MOST:])
            with files.lock_file(file.with_suffix(".lock")):  # removes what killed commands left
                files.write_text(file, json.dumps(latest))


def locate(module: str) -> Path | None:
    """Return the file of a module; None if there is none (a name inside a module, or not installed)."""
    spec = _spec(module)
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


_PYTHON = tuple({Path(get_paths()[name]).resolve() for name in ("stdlib", "platstdlib")})


@cache
def is_local(package: str) -> bool:
    """Whether a top-level module lies outside the standard library and outside installed packages."""
    spec = _spec(package)
    locations = () if spec is None else (spec.origin, *(spec.submodule_search_locations or ()))
    paths = [Path(location).resolve() for location in locations if location and Path(location).exists()]
    return bool(paths) and not any(_is_installed(path) for path in paths)


def _is_installed(path: Path) -> bool:
    """Whether a path lies in the standard library or among installed packages."""
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return True
    return any(path.is_relative_to(folder) for folder in _PYTHON)


@cache
def _spec(module: str) -> ModuleSpec | None:
    # search the parent's folder if possible: `find_spec` would import the parent, and torch with it
    parent = module.rpartition(".")[0]
    if parent:
        above = _spec(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(module, above.submodule_search_locations)
        if spec is not None:
            return spec
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def imported_names(tree: ast.Module, module: str, *, package: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (name in this module, dotted name imported) of every import that runs, including those in functions.

    Args:
        tree: the module's.
        module: its dotted name, the base of relative imports.
        package: whether it is a package's `__init__`.
    """
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        todo += [child for child in _nodes_that_run(ast.iter_child_nodes(node)) if isinstance(child, _BLOCKS)]
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:  # relative
                parts = module.split(".")
                above = parts[: len(parts) - node.level + package]
                home = ".".join([*above, home] if home else above)
            for alias in node.names:
                yield alias.asname or alias.name, f"{home}.{alias.name}"


@cache
def closure(roots: tuple[tuple[str, Path], ...]) -> dict[str, Path]:
    """Return the modules that can change a score: the roots and all that they import from their packages or locally."""
    packages = {module.split(".")[0] for module, _ in roots}
    modules: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        module, path = todo.pop()
        if module in modules or traits(module, path).constants.get("MOVES_SCORES") is False:
            continue
        modules[module] = path
        for name in imports(module, path):
            top = name.split(".")[0]
            if top in packages or (top != "negbench" and is_local(top)):
                file = locate(name)
                if file is not None:
                    todo.append((name, file))
    return modules


@cache
def imports(module: str, path: Path) -> frozenset[str]:
    """Return the modules that a file imports and their packages, except `negbench`, which only re-exports names.

    Those of negbench and of the module's own package count, and of other code than negbench's, local ones.
    """
    modules = set()
    for dotted in traits(module, path).imports:
        parts = dotted.split(".")
        local = not module.startswith("negbench.") and is_local(parts[0])
        if parts[0] not in ("negbench", module.split(".")[0]) and not local:
            continue
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name != "negbench" and locate(name) is not None:
                modules.add(name)
    return frozenset(modules)


def constant(tree: ast.Module | ast.ClassDef, name: str) -> object:
    """Return the literal value that a module or class assigns to a name, annotated or not; None if there is none."""
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                return None if node.value is None else ast.literal_eval(node.value)
            except ValueError:
                return None
    return None


def canonical(node: object) -> str:
    """Return a tree as text that depends on what runs, not on layout, comments, docstrings or `TYPE_CHECKING`.

    The texts of errors are left out: arguments of a raised call that contain a string, and messages of `assert`.
    Empty parts are left out, so that a later Python, whose trees have more optional parts, gives the same text.
    """
    if isinstance(node, ast.AST):  # lists and plain loops here: a run reads 100,000 nodes before its first step
        node = _without_error_texts(node)
        fields = [(name, getattr(node, name, None)) for name in node._fields]
        parts = [f"{name}={canonical(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return f"[{','.join([canonical(statement) for statement in _nodes_that_run(node)])}]"
    return f"{type(node).__name__}:{node!r}"


def _without_error_texts(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Assert):
        return ast.Assert(node.test)
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        call = node.exc
        arguments = [argument for argument in call.args if not _holds_text(argument)]
        keywords = [keyword for keyword in call.keywords if not _holds_text(keyword)]
        return ast.Raise(ast.Call(call.func, arguments, keywords), node.cause)
    return node


def _holds_text(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", None), str):
            return True
    return False


def _nodes_that_run(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run: no bare constants (docstrings), no blocks for type checkers."""
    for node in nodes:
        if isinstance(node, ast.If) and _of_type_checkers(node.test):
            yield from node.orelse
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield node


def _of_type_checkers(test: ast.expr) -> bool:
    is_name = isinstance(test, ast.Name | ast.Attribute)  # else it may be long
    return is_name and ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
