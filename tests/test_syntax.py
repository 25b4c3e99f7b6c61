"""Syntax trees: imports, base classes and the text that a tree is reduced to."""

import ast

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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x = 1", "x = (\n  1  # one\n)", True),
        ("def f():\n  'doc'\n  return 1", "def f():\n  return 1", True),
        ("class A:\n  'doc'\n  x: int = 1\n  'of x'", "class A:\n  x: int = 1", True),
        ("x = 'a' 'b'", 'x = "ab"', True),
        ("x = 1", "x = 1.0", False),
        ("x = True", "x = 1", False),
        ("x = '1'", "x = b'1'", False),
        ("x = a < b", "x = a <= b", False),
        ("x = [1, 2]", "x = [12]", False),
        ("x = f(1)", "x = f(k=1)", False),
        ("if a:\n  f()\ng()", "if a:\n  f()\n  g()", False),
        ("x: int = 1", "x: float = 1", False),
        ("if a:\n  raise E(f'{a} is bad')", "if a:\n  raise E('a must not be ' + str(a), hint=f'{b}') ", True),
        ("assert a, 'one text'", "assert a", True),
        ("if a:\n  raise E('text')", "if a < 1:\n  raise E('text')", False),
        ("raise E('text')", "raise F('text')", False),
        ("raise E('text')", "raise E('text') from None", False),
        ("raise Stop(1)", "raise Stop(2)", False),
        ("raise E[a]('text')", "raise E[b]('text')", False),
        ("assert a, 'text'", "assert b, 'text'", False),
        ("x = E('text')", "x = E('other')", False),
    ],
)
def test_the_text_of_a_tree(one, other, same):
    assert (syntax.canonical(ast.parse(one)) == syntax.canonical(ast.parse(other))) == same


def test_constants_of_modules_and_classes():
    tree = ast.parse("A = 'x'\nB: Final = ('y', 2)\nC = f()\nD: int\nclass K:\n  E = 5\n")
    assert [syntax.constant(tree, name) for name in "ABCDE"] == ["x", ("y", 2), None, None, None]
    assert isinstance(tree.body[-1], ast.ClassDef)
    assert syntax.constant(tree.body[-1], "E") == 5


def test_modules_are_located_without_importing_them():
    assert syntax.locate("negbench.contracts.strategy").name == "strategy.py"
    for name in ("negbench.contracts.Strategy", "negbench.none", "no_such_package.x", "negbench.strategies.none"):
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
