"""Names -> lazily imported plug-ins: built-ins by file name, third parties by entry point or `--plugin FILE.py`.

A plug-in is a module with a docstring (its first line is what `negbench list` prints), a constant `PAPER` (its source)
and one public class of its kind. Listing reads the source text and imports nothing; a class is imported at first `get`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from negbench.errors import NegbenchError, OptionError, UnknownNameError

KINDS = ("strategies", "losses", "backbones", "datasets")
_PACKAGES = {
    "strategies": "negbench.strategies",
    "losses": "negbench.losses",
    "backbones": "negbench.backbones",
    "datasets": "negbench.datasets",
}
_BASES = {
    "strategies": ("negbench.contracts", "Strategy"),
    "losses": ("negbench.contracts", "Loss"),
    "backbones": ("negbench.contracts", "Backbone"),
    "datasets": ("negbench.datasets.dataset", "Dataset"),
}
_SINGULAR = {"strategies": "strategy", "losses": "loss", "backbones": "backbone", "datasets": "dataset"}


@dataclass(frozen=True)
class Plugin:
    """Where a registered name lives: `module` to import, or `path` of a file given by `--plugin`."""

    kind: str
    name: str
    module: str
    path: Path | None
    origin: str  # "built-in", the distribution's name, or the file

    def source(self) -> Path:
        """File that defines the plug-in, found without importing it."""
        if self.path is not None:
            return self.path
        try:
            spec = importlib.util.find_spec(self.module)
        except ImportError as error:
            raise NegbenchError(f"plug-in '{self.name}' of {self.origin} cannot be imported: {error}") from error
        if spec is None or spec.origin is None:
            raise NegbenchError(f"plug-in '{self.name}' of {self.origin}: there is no module {self.module}")
        return Path(spec.origin)


@dataclass(frozen=True)
class Description:
    """What `negbench list` prints of a plug-in: read from its source, nothing imported."""

    name: str
    summary: str
    paper: str
    ranges: Mapping[str, str]  # field -> "default; low..high (log)" or "default; a|b|c"
    origin: str


class Registry:
    """All plug-ins of the four kinds. One instance, `registry`, serves the process."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], Plugin] = {}
        self._classes: dict[tuple[str, str], type] = {}

    def plugins(self, kind: str) -> dict[str, Plugin]:
        """Name -> plug-in of one kind, sorted. Raises NegbenchError where two claim one name."""
        _check_kind(kind)
        found: dict[str, Plugin] = {}
        for plugin in [*_built_ins(kind), *_entry_points(kind), *self._of_files(kind)]:
            if plugin.name in found:
                raise NegbenchError(
                    f"two {kind} are named '{plugin.name}': {found[plugin.name].origin} and {plugin.origin}; rename one"
                )
            found[plugin.name] = plugin
        return dict(sorted(found.items()))

    def find(self, kind: str, name: str) -> Plugin:
        """Plug-in of this name. Raises UnknownNameError with the nearest right one."""
        known = self.plugins(kind)
        if name not in known:
            raise UnknownNameError(_SINGULAR[kind], name, known)
        return known[name]

    def get(self, kind: str, name: str) -> type:
        """Class of this name, imported now if it was not before."""
        key = (kind, name)
        if key not in self._classes:
            self._classes[key] = _plugin_class(self.find(kind, name))
        return self._classes[key]

    def make(self, kind: str, name: str, **options: Any) -> Any:
        """Instance from options; unknown names and values of the wrong type are one-line errors."""
        constructor = constructor_of(kind, self.get(kind, name))
        return constructor(**checked_options(kind, name, constructor, options))

    def add_file(self, path: Path) -> list[str]:
        """Register every plug-in class that a Python file defines (`--plugin FILE.py`); returns their names.

        The file may hold several classes of any kind; a class's name is its attribute `key`, or the file's name.
        """
        if not path.is_file():
            raise NegbenchError(f"--plugin {path}: there is no such file")
        module = _import_file(path)
        names = []
        for kind in KINDS:
            for cls in _classes_of(kind, module):
                name = getattr(cls, "key", None) or path.stem.replace("_", "-")
                plugin = Plugin(kind, name, module.__name__, path.resolve(), str(path))
                known = self._files.get((kind, name))
                if known is not None and known.path != plugin.path:
                    raise NegbenchError(f"two {kind} are named '{name}': {known.origin} and {path}; rename one")
                self._files[kind, name] = plugin
                self._classes[kind, name] = cls
                names.append(name)
        if not names:
            raise NegbenchError(f"--plugin {path}: defines no Strategy, Loss, Backbone or Dataset")
        for kind in KINDS:
            self.plugins(kind)  # raises where a name was taken before
        return names

    def describe(self, kind: str) -> list[Description]:
        """What `negbench list` prints, without importing any plug-in."""
        return [_describe(plugin) for plugin in self.plugins(kind).values()]

    def _of_files(self, kind: str) -> list[Plugin]:
        return [plugin for (k, _), plugin in self._files.items() if k == kind]


registry = Registry()


# --- options -----------------------------------------------------------------------------------------------------


def constructor_of(kind: str, cls: type) -> Callable[..., Any]:
    """What builds an instance: `load` for backbones and data sets, the class itself for strategies and losses."""
    return cls.load if kind in ("backbones", "datasets") else cls  # type: ignore[attr-defined]


def option_defaults(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Option -> default (`inspect.Parameter.empty` where it must be given)."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def checked_options(
    kind: str, name: str, constructor: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Options with their types checked (an int passes for a float, a string for a Path, a list for a tuple)."""
    defaults = option_defaults(constructor)
    hints = typing.get_type_hints(constructor.__init__ if inspect.isclass(constructor) else constructor)
    checked = {}
    for key, value in options.items():
        if key not in defaults:
            raise UnknownNameError("option", key, defaults, where=f"{_SINGULAR[kind]} '{name}'")
        checked[key] = _coerced(f"{_SINGULAR[kind]}.{key}", value, hints.get(key, Any))
    return checked


def _coerced(where: str, value: Any, hint: Any) -> Any:
    """`value` as the annotated type, or OptionError; pydantic decides, in strict mode but for lossless widenings."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_json(
            _as_json(value), strict=True
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, ValidationError):
            problem = error.errors()[0]["msg"]
            raise OptionError(f"{where} = {value!r}: {problem[0].lower()}{problem[1:]}") from error
        return value  # an object (a Path, a module) that JSON cannot carry: the constructor checks it


def _as_json(value: Any) -> str:
    import json

    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value)


# --- discovery ---------------------------------------------------------------------------------------------------


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UnknownNameError("kind of plug-in", kind, KINDS)


def _built_ins(kind: str) -> list[Plugin]:
    spec = importlib.util.find_spec(_PACKAGES[kind])
    if spec is None or not spec.submodule_search_locations:
        raise NegbenchError(f"{_PACKAGES[kind]} is not installed: run `pip install -e .` in the checkout")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.py"))
    return [
        Plugin(kind, f.stem.replace("_", "-"), f"{_PACKAGES[kind]}.{f.stem}", None, "built-in")
        for f in files
        if not f.stem.startswith("_") and "\nPAPER = " in f.read_text(encoding="utf-8")
    ]


def _entry_points(kind: str) -> list[Plugin]:
    return [
        Plugin(kind, point.name, point.module, None, point.dist.name if point.dist else point.value)
        for point in importlib.metadata.entry_points(group=_PACKAGES[kind])
    ]


def _import_file(path: Path) -> ModuleType:
    # the name holds the path's hash: two files of one name stay apart, one file imported twice is one module
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"negbench_plugin_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NegbenchError(f"--plugin {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise NegbenchError(f"--plugin {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _classes_of(kind: str, module: ModuleType) -> list[type]:
    home, name = _BASES[kind]
    base = getattr(importlib.import_module(home), name)
    return [
        cls
        for key, cls in vars(module).items()
        if inspect.isclass(cls)
        and issubclass(cls, base)
        and cls.__module__ == module.__name__
        and not key.startswith("_")
        and not inspect.isabstract(cls)
    ]


def _plugin_class(plugin: Plugin) -> type:
    try:
        module = importlib.import_module(plugin.module)
    except ImportError as error:
        raise NegbenchError(
            f"{_SINGULAR[plugin.kind]} '{plugin.name}' of {plugin.origin} cannot be imported: {error}"
        ) from error
    classes = _classes_of(plugin.kind, module)
    if len(classes) != 1:
        raise NegbenchError(
            f"{plugin.module} must define exactly one public {_BASES[plugin.kind][1]} class, "
            f"found {[cls.__name__ for cls in classes]}"
        )
    return classes[0]


# --- descriptions, from source text --------------------------------------------------------------------------------


def _describe(plugin: Plugin) -> Description:
    tree = ast.parse(plugin.source().read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").split("\n", 1)[0]
    paper = ""
    ranges: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "PAPER":
            paper = str(ast.literal_eval(node.value))
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    text = _range_text(statement.value)
                    if text:
                        ranges[statement.target.id] = text
    return Description(plugin.name, summary, paper, ranges, plugin.origin)


def _range_text(value: ast.expr | None) -> str:
    """'100; 10..1000 log' of a `tunable(100, low=10, high=1000, log=True)`; empty for any other default."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "tunable"):
        return ""
    default = ast.literal_eval(value.args[0])
    named = {k.arg: ast.literal_eval(k.value) for k in value.keywords}
    if "choices" in named:
        return f"{default}; {'|'.join(str(c) for c in named['choices'])}"
    return f"{default}; {named['low']}..{named['high']}{' log' if named.get('log') else ''}"
