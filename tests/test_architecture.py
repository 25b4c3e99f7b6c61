"""Layers of docs/architecture.md, checked by import-linter; unique names, short signatures, no cycles."""

import ast
import dataclasses
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx
import pytest

from negbench.cli.main import _GROUPS
from negbench.plugins.registry import options_class, registry
from negbench.settings.config import RunConfig

ROOT = Path(__file__).parents[1]
LINTER = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
PLUGINS = [ROOT / name for name in ("strategies", "backbones")]
PLUGINS += [ROOT / "negbench" / name for name in ("losses", "benchmarks", "worlds")]
MOST_PARAMETERS = 8


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    texts = {}
    for folder in ("negbench", "strategies", "backbones"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            texts[path] = path.read_text(encoding="utf-8")
    return texts


@pytest.fixture(scope="module")
def trees(sources: dict[Path, str]) -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in sources.items()}


@pytest.fixture(scope="module")
def nodes(trees: dict[Path, ast.Module]) -> list[tuple[Path, ast.AST]]:
    nodes = list[tuple[Path, ast.AST]]()
    for path, tree in trees.items():
        nodes += [(path, node) for node in ast.walk(tree)]
    return nodes


def test_no_arrow_points_up():
    done = subprocess.run([*LINTER, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Contracts: [4-9] kept, 0 broken", done.stdout)


@pytest.mark.parametrize(
    ("folder", "rooms"),
    [
        ("strategies", {"contracts", "errors", "metrics", "mining"}),
        ("backbones", {"contracts", "errors", "files", "machine", "metrics", "worlds"}),
    ],
)
def test_what_plug_ins_import(folder, rooms):
    """The linter does not see these folders, which stand outside of the package."""
    imported = set()
    for path in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("negbench."):
                imported.add(str(node.module).split(".")[1])
            elif isinstance(node, ast.Import):
                assert [name.name for name in node.names if name.name.startswith("negbench")] == [], path.name
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "negbench", path.name
    assert imported == rooms | {folder}


def test_the_picture_shows_the_layers():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(table["layers"] for table in tables if table["type"] == "layers")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = [line for line in text.split("```")[1].splitlines() if line.strip(" |")]

    def line_of(room: str) -> int:
        """Return the number of the picture's first line that shows a room."""
        for number, line in enumerate(picture):
            if re.match(rf"\s+(\w+ +)*{room}\b", line):
                return number
        raise AssertionError(f"the picture does not show {room}")

    last = -1
    for layer in layers:
        lines = [line_of(room.strip()) for room in layer.split("|")]
        assert min(lines) >= last, layer
        last = max(lines)


@dataclasses.dataclass(frozen=True)
class Step:
    """A row of a reading path: a file, what a reader looks for in it (functions, other files), and what it calls."""

    file: str
    names: list[str]
    calls: list[str]


def reading_paths() -> list[list[Step]]:
    """Return the reading paths of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = []
    for block in re.split(r"\n\n", text):
        if block.startswith("| file | what it does | and calls |"):
            steps = []
            for line in block.splitlines()[2:]:
                cell, _, calls = line.strip("|").split("|")
                file, *names = re.findall(r"`(.+?)`", cell)
                steps.append(Step(file, names, re.findall(r"`(\w+)`", calls)))
            paths.append(steps)
    return paths


@pytest.mark.parametrize("number", range(3), ids=["to the executor", "to words", "to the file"])
def test_a_reading_path_names_each_file_once_and_its_next_step(number, subtests):
    """Each file defines what its row names and holds what its row calls, which a later row defines."""
    path = reading_paths()[number]
    files = list[str]()
    for step in path:
        files += [name for name in (step.file, *step.names) if name.endswith(".py")]
    assert len(files) == len(set(files))
    for index, step in enumerate(path):
        with subtests.test(step.file):
            home = ROOT if step.file.startswith("strategies/") else ROOT / "negbench"
            if "NAME" in step.file:
                continue
            text = (home / step.file).read_text(encoding="utf-8")
            for name in step.names:
                if not name.endswith(".py"):
                    assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", text), name
            for call in step.calls:
                assert re.search(rf"\b{call}\b", text), call
            later = " ".join(" ".join([other.file, *other.names]) for other in path[index + 1 :])
            assert not step.calls or any(re.search(rf"\b{call}\b", later) for call in step.calls), step.calls


def test_a_file_of_a_reading_path_is_read_downwards(subtests):
    """A private function of such a file stands below the first one that calls it."""
    files = set[str]()
    for path in reading_paths():
        files.update(step.file for step in path if "NAME" not in step.file)
    for file in sorted(files):
        tree = ast.parse((ROOT / "negbench" / file).read_text(encoding="utf-8"))
        with subtests.test(file):
            assert early_helpers(tree) == []


@pytest.mark.parametrize(
    ("code", "early"),
    [
        pytest.param("def _a(): pass\ndef b(): _a()", ["_a"], id="above"),
        pytest.param("def _a(): pass\nclass B:\n    def c(self): _a()", ["_a"], id="above a class"),
        pytest.param("def b(): _a()\ndef _a(): pass\ndef c(): _a()", [], id="between"),
        pytest.param("def a(): pass\ndef b(): a()", [], id="public"),
    ],
)
def test_which_helpers_stand_too_high(code, early):
    assert early_helpers(ast.parse(code)) == early


def early_helpers(tree: ast.Module) -> list[str]:
    """Return the private functions that only functions and classes below them call."""
    first_calls: dict[str, int] = {}
    for top in tree.body:
        if not isinstance(top, ast.FunctionDef | ast.ClassDef):
            continue
        for node in ast.walk(top):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != top.name:
                first_calls.setdefault(node.func.id, top.lineno)
    early = []
    for top in tree.body:
        if isinstance(top, ast.FunctionDef) and top.name.startswith("_") and top.lineno < first_calls.get(top.name, 0):
            early.append(top.name)
    return early


def names_of_page() -> list[str]:
    """Return the texts between backticks of docs/architecture.md, but for its picture, files, options and commands."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    other = re.compile(r"NAME|^-|/|\.(py|toml|json|md)$|^make ")
    return [name for name in re.findall(r"`([^`]+)`", text) if not other.search(name)]


def test_the_names_of_the_page_stand_in_the_code(sources):
    """What a text between backticks calls is a function or class of the code, its other words are words of it."""
    code = "\n".join(sources.values())
    words = set(re.findall(r"\w+", code))
    callables = set(re.findall(r"\b(?:def|class) (\w+)", code))
    names = names_of_page()
    assert len(names) > 150
    assert [name for name in names if not words.issuperset(re.findall(r"\w+", name))] == []
    assert [name for name in names if not callables.issuperset(re.findall(r"(\w+)\(", name))] == []


def test_every_hint_of_a_setting_names_one_that_exists(sources):
    """Each `--set section.key=` of a message can be pasted: the section and the key exist."""
    plugins = {"strategy": "strategies", "loss": "losses", "backbone": "backbones", "dataset": "datasets"}
    keys = set[str]()
    for section, kind in plugins.items():
        for name in registry.plugins(kind):
            options = dataclasses.fields(options_class(registry.get(kind, name)))
            keys.update(f"{section}.{option.name}" for option in options)
    for section, field in RunConfig.model_fields.items():
        if section not in plugins:
            keys.update(f"{section}.{key}" for key in getattr(field.annotation, "model_fields", ()))
    hints = set[str]()
    for text in sources.values():
        hints.update(re.findall(r"--set ([a-z_]+\.[a-z_]+)=", text))
    assert len(hints) > 15
    assert hints <= keys


def test_no_class_name_means_two_things(nodes):
    homes = defaultdict(list)
    for path, node in nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_file_name_means_two_things(sources):
    """Except for a command's file in cli/ and plug-ins of two kinds that share a key."""
    commands = {name for group in _GROUPS.values() for name in group}
    homes = defaultdict(list)
    for path in sources:
        if path.stem not in ("__init__", "__main__") and not (path.parent.name == "cli" and path.stem in commands):
            homes[path.stem].append(path)
    assert {stem: paths for stem, paths in homes.items() if len(paths) > 1 and not _one_key(paths)} == {}


def test_no_circle_of_imports(sources, nodes):
    """Includes imports under TYPE_CHECKING and inside functions."""
    files = {_module(path): path for path in sources}
    graph = networkx.DiGraph()
    for path, node in nodes:
        if path.stem != "__init__":  # packages only re-export
            graph.add_edges_from((path, other) for other in _imports_of(path, node, files) if other.stem != "__init__")
    circles = [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert circles == []


def test_no_function_has_many_parameters(nodes):
    """Except for plug-in options, `Loss.__call__` and functions compiled by numba."""
    wide = set()
    for path, node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _may_be_wide(path, node):
            if len(_parameters(node)) > MOST_PARAMETERS:
                wide.add(f"{path.relative_to(ROOT)} {node.name}")
    assert wide == set()


def test_nothing_is_multiplied_by_a_condition():
    """`if` says it: `text * (n > 1)` hides a branch, and always computes what it may drop. A number may be a factor."""
    assert _find_lines(multiplied_conditions) == []


def test_no_walrus_hides_in_a_loop():
    """A line that assigns says it: a walrus in a `while` or in a comprehension is read over."""
    assert _find_lines(walruses_in_loops) == []


def _find_lines(lines_of: Callable[[ast.Module], list[int]]) -> list[str]:
    """Return 'file:line' of what this finds in the code, the tests and the docs."""
    found = []
    for top in ("negbench", "strategies", "backbones", "tests", "docs", "examples"):
        for path in sorted((ROOT / top).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(ROOT)}:{line}" for line in lines_of(tree)]
    return found


REFUSED_WALRUSES = {
    "condition of a comprehension": "[y for x in xs if (y := f(x))]",
    "element of a comprehension": "{(y := f(x)): y for x in xs}",
    "generator": "any((y := x) > 1 for x in xs)",
    "while": "while (line := read()):\n    use(line)",
}
ACCEPTED_WALRUSES = {
    "within the body": "while ready:\n    if (line := read()):\n        use(line)",
    "if": "if (line := read()):\n    use(line)",
}


@pytest.mark.parametrize("code", REFUSED_WALRUSES.values(), ids=REFUSED_WALRUSES)
def test_which_walruses_are_refused(code):
    assert len(walruses_in_loops(ast.parse(code))) == 1


@pytest.mark.parametrize("code", ACCEPTED_WALRUSES.values(), ids=ACCEPTED_WALRUSES)
def test_which_walruses_are_accepted(code):
    assert walruses_in_loops(ast.parse(code)) == []


def walruses_in_loops(tree: ast.Module) -> list[int]:
    """Return the lines of assignments within a comprehension or the condition of a `while`."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, comprehensions):
            lines.update(part.lineno for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
        if isinstance(node, ast.While):
            lines.update(part.lineno for part in ast.walk(node.test) if isinstance(part, ast.NamedExpr))
    return sorted(lines)


REFUSED_PRODUCTS = {
    "comparison": "'s' * (n > 1)",
    "not": "[x] * (not y)",
    "bool": "lines * bool(y)",
    "on the left": "(n > 1) * 's'",
    "part of a condition": "'s' * (a and b > 1)",
    "annotated name": "def f(said: bool): return block() * said",
    "not on the left": "(not x) * [1]",
    "bool on the left": "bool(x) * [1]",
    "in place": "text *= n > 1",
    "negative": "-(n > 1) * 's'",
    "annotated within": "if x:\n    said: bool = y\n's' * said",
    "bool or None": "def f(said: bool | None): return 's' * said",
}
ACCEPTED_PRODUCTS = {"number": "4 * (n > 1)", "a number in place": "count *= 2", "no condition": "'-' * width"}


@pytest.mark.parametrize("code", REFUSED_PRODUCTS.values(), ids=REFUSED_PRODUCTS)
def test_which_products_are_refused(code):
    assert len(multiplied_conditions(ast.parse(code))) == 1


@pytest.mark.parametrize("code", ACCEPTED_PRODUCTS.values(), ids=ACCEPTED_PRODUCTS)
def test_which_products_are_accepted(code):
    assert multiplied_conditions(ast.parse(code)) == []


def multiplied_conditions(tree: ast.Module) -> list[int]:
    """Return the lines of a condition times anything but a number."""
    lines = []

    def visit(node: ast.AST, bools: set[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters = {parameter.arg for parameter in _parameters(node) if _is_bool(parameter.annotation)}
            bools = bools | parameters | _bools_of(node.body)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and _is_condition(node.value, bools):
            lines.append(node.lineno)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left = _is_condition(node.left, bools) and not _is_number(node.right)
            right = _is_condition(node.right, bools) and not _is_number(node.left)
            if left or right:
                lines.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, bools)

    visit(tree, _bools_of(tree.body))
    return lines


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _bools_of(body: list[ast.stmt]) -> set[str]:
    """Return the names that these statements, and those within them, annotate as bool; other scopes are left out."""
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_bool(node.annotation):
            names.add(node.target.id)
        names |= _bools_of([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])
    return names


def _is_bool(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.BinOp):  # bool | None
        return _is_bool(annotation.left) or _is_bool(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "bool"


def _is_condition(node: ast.expr, bools: set[str]) -> bool:
    """Return whether an expression is true or false; `bools` are the names that are."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("bool", "any", "all", "isinstance", "issubclass")
    if isinstance(node, ast.BoolOp):
        return any(_is_condition(value, bools) for value in node.values)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or _is_condition(node.operand, bools)
    if isinstance(node, ast.Name):
        return node.id in bools
    return isinstance(node, ast.Compare)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def test_what_scripts_import_is_there():
    """Every name that tests, docs and examples import from negbench exists, also in scripts that no test runs."""
    scripts = list[Path]()
    for folder in ("tests", "docs", "examples"):
        scripts += (ROOT / folder).rglob("*.py")
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "negbench":
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    exists = hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                    assert exists, f"{path.relative_to(ROOT)}: {node.module}.{name.name}"


def _one_key(paths: list[Path]) -> bool:
    homes = [path.parent for path in paths]
    return len(set(homes)) == len(homes) and set(homes) <= set(PLUGINS)


def _may_be_wide(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    compiled = any(isinstance(mark, ast.Name) and mark.id == "compiled" for mark in node.decorator_list)
    plugin = node.name == "load" and path.parent in PLUGINS
    return compiled or plugin or (path.name, node.name) == ("loss.py", "__call__")


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "negbench" else ("negbench", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(path: Path, node: ast.AST, files: dict[str, Path]) -> Iterator[Path]:
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: imports are absolute"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        other = files.get(name) or files.get(name.rpartition(".")[0])
        if other not in (None, path):
            yield other
