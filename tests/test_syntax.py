"""Syntax trees: imports, base classes and the text that a tree is reduced to."""

import ast
import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from negbench.errors import NegbenchError
from negbench.plugins import syntax

TEXT = """
import os.path
import numpy as np
from . import near
from .sub import thing as other
from ..up import far
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from never import seen
else:
    import instead
try:
    import tried
except ImportError:
    import fallback
def f():
    match 1:
        case 1:
            from inside import deep
"""


def test_imports_of_a_module_and_of_a_package():
    tree = ast.parse(TEXT)
    imports = dict(syntax.imported_names(tree, "a.b.c"))
    assert imports == {
        "os.path": "os.path", "np": "numpy", "near": "a.b.near", "other": "a.b.sub.thing", "far": "a.up.far",
        "TYPE_CHECKING": "typing.TYPE_CHECKING", "instead": "instead", "tried": "tried", "fallback": "fallback",
        "deep": "inside.deep",
    }  # fmt: skip
    inside = dict(syntax.imported_names(tree, "a.b", package=True))
    assert (inside["near"], inside["far"]) == ("a.b.near", "a.up.far")


def test_the_text_of_a_tree():
    pairs = tomllib.loads((Path(__file__).parent / "golden" / "trees.toml").read_text(encoding="utf-8"))
    for kind, rows in pairs.items():
        for one, other in rows:
            same = syntax.canonical(ast.parse(one)) == syntax.canonical(ast.parse(other))
            assert same == (kind == "same"), (one, other)


def test_constants_of_modules_and_classes():
    tree = ast.parse("A = 'x'\nB: Final = ('y', 2)\nC = f()\nD: int\nclass K:\n  E = 5\n")
    assert [syntax.constant(tree, name) for name in "ABCDE"] == ["x", ("y", 2), None, None, None]
    assert isinstance(tree.body[-1], ast.ClassDef)
    assert syntax.constant(tree.body[-1], "E") == 5


def test_modules_are_located_without_importing_them(subtests):
    assert syntax.locate("negbench.contracts.strategy").name == "strategy.py"
    for name in ("negbench.contracts.Strategy", "negbench.none", "no_such_package.x", "negbench.strategies.none"):
        with subtests.test(name=name):
            assert syntax.locate(name) is None


@pytest.mark.parametrize("content", [b"def f(:\n", b"\xff\xfe", b"x = 1\0", b"(" * 3000])
def test_what_is_not_python_is_one_line(tmp_path, content):
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    with pytest.raises(NegbenchError, match=r"bad\.py.*: not valid Python: ") as caught:
        syntax.parse(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(NegbenchError, match="cannot read"):
        syntax.parse(tmp_path / "absent.py")


def test_a_content_is_parsed_once_and_a_damaged_cache_is_made_again(subtests, tmp_path, monkeypatch, spy_on):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    path = tmp_path / "one.py"
    at_exit = list[Any]()
    monkeypatch.setattr(syntax.atexit, "register", lambda *call: at_exit.append(call))
    parse = syntax.parse
    parsed = spy_on(syntax, "parse")
    memory = syntax._memory

    def commands(text: str, count: int = 1) -> int:
        """Read the file in so many commands at the same time, which then end; return how often it was parsed."""
        path.write_text(text, encoding="utf-8")
        parsed.clear()
        caches = [syntax._memory.__wrapped__() for _ in range(count)]
        for number, cache in enumerate(caches):
            monkeypatch.setattr(syntax, "_memory", lambda cache=cache: cache)
            traits = syntax._traits.__wrapped__("up.one", path, ())
            assert traits.constants == {"READS": ("a", "b")}, f"command {number}"
            assert traits.imports == ["up.near"], f"command {number}"
            code = syntax.canonical(parse(path))
            assert traits.code == hashlib.sha256(code.encode()).hexdigest(), f"command {number}"
        while at_exit:
            end, *arguments = at_exit.pop()
            end(*arguments)
        monkeypatch.setattr(syntax, "_memory", memory)
        return len(parsed)

    text = "READS = ('a', 'b')\nfrom . import near\n"
    assert [commands(text, 2), commands(text), commands(text + "x = 1\n"), commands(text, 2)] == [2, 0, 1, 0]
    (file,) = tmp_path.glob("code/*.json")
    whole = file.read_bytes()
    for name, damaged in (("torn", whole[:-9]), ("edited", whole.replace(b"near", b"far!"))):
        with subtests.test(name):
            file.write_bytes(damaged)
            assert [commands(text), commands(text)] == [1, 0]


def test_equal_contents_import_what_lies_beside_each(tmp_path):
    (tmp_path / "pack").mkdir()
    imports = {
        ("up.one", "one.py"): "up.near",
        ("down.one", "two.py"): "down.near",
        ("up.one", "pack/__init__.py"): "up.one.near",
    }
    for (module, name), near in imports.items():
        (tmp_path / name).write_text("from . import near\n", encoding="utf-8")
        assert syntax.traits(module, tmp_path / name).imports == [near], name
