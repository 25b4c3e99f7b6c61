"""Names -> lazily imported plug-ins: built-ins by file name, third parties by entry point or `--plugin FILE.py`.

A plug-in is a module, not named `_...`, that defines one public class of its kind; its docstring's first line is what
`negbench list` prints, and a constant `PAPER`, which a built-in must have, names its source. Listing reads syntax trees
and imports nothing; a class is imported at first `get`.
"""

import ast
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
import sys
import traceback
import typing
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from negbench.errors import NegbenchError, OptionError, UnknownNameError, missing_package, short_repr
from negbench.machine.contents import stamp
from negbench.machine.files import check_name, sha256_of
from negbench.plugins import syntax

MOVES_SCORES = False  # only finds plug-ins; those that a run names are hashed themselves

Made = TypeVar("Made")

SECTIONS = {"strategy": "strategies", "loss": "losses", "backbone": "backbones", "dataset": "datasets"}
KINDS = (*SECTIONS.values(),)
COMPOSITES = "negbench.mining.composite"  # makes strategies of strategies
_SINGULAR = {kind: section for section, kind in SECTIONS.items()}
_PACKAGES = {  # of the built-in plug-ins
    "strategies": ("negbench.strategies",),
    "losses": ("negbench.losses",),
    "backbones": ("negbench.backbones",),
    "datasets": ("negbench.benchmarks", "negbench.worlds"),
}
_BASES = {
    "strategies": ("negbench.contracts.strategy", "Strategy"),
    "losses": ("negbench.contracts.loss", "Loss"),
    "backbones": ("negbench.contracts.backbone", "Backbone"),
    "datasets": ("negbench.datasets.dataset", "Dataset"),
}


@dataclass(frozen=True)
class Plugin:
    """Location of a registered name: `module` to import, or `path` of a file given by `--plugin`."""

    kind: str
    name: str
    module: str
    path: Path | None
    origin: str  # "built-in", the distribution's name, or the file

    def source(self) -> Path:
        """File that defines the plug-in, found without importing it."""
        if self.path is not None:
            return self.path
        file = syntax.locate(self.module)
        if file is None:
            raise NegbenchError(f"plug-in '{self.name}' of {self.origin}: module {self.module} not found")
        return file


@dataclass(frozen=True)
class Description:
    """What `negbench list` prints about a plug-in, read from its source without importing it."""

    name: str
    summary: str
    paper: str
    origin: str


class Registry:
    """All plug-ins of the four kinds. One instance, `registry`, serves the process."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], Plugin] = {}
        self._classes: dict[tuple[str, str], type] = {}

    def plugins(self, kind: str) -> dict[str, Plugin]:
        """Return name -> plug-in of one kind, sorted; raise NegbenchError if two share a name."""
        if kind not in KINDS:
            raise UnknownNameError("kind of plug-in", kind, KINDS)
        by_name: dict[str, Plugin] = {}
        for plugin in [*_built_ins(kind), *_entry_points(kind, tuple(sys.path)), *self._of_files(kind)]:
            if plugin.name in by_name:
                first = by_name[plugin.name]
                raise NegbenchError(
                    f"two {kind} are named '{plugin.name}': {first.origin} and {plugin.origin}; rename one"
                )
            by_name[plugin.name] = plugin
        return dict(sorted(by_name.items()))

    def find(self, kind: str, name: str) -> Plugin:
        """Return the plug-in of this name; raise UnknownNameError that suggests the nearest name.

        An installed plug-in that is asked for by its module or its package is named, too.
        """
        by_name = self.plugins(kind)
        if name not in by_name:
            for plugin in by_name.values():
                _, _, module = plugin.module.rpartition(".")
                if plugin.origin != "built-in" and name in (plugin.origin, _name_of(module)):
                    raise NegbenchError(
                        f"unknown {_SINGULAR[kind]} {short_repr(name)}: {plugin.origin} offers '{plugin.name}'"
                    )
            raise UnknownNameError(_SINGULAR[kind], name, by_name)
        return by_name[name]

    def parts(self, kind: str, name: str) -> list[Plugin]:
        """Return the plug-ins of a name: one, or the parts of a composite (`a+b`, `a:5>b`)."""
        names = re.split(r"[+>]", name) if is_composite(kind, name) else [name]
        return [self.find(kind, re.sub(r":\s*\d+\s*$", "", part).strip()) for part in names]

    def reader_of(self, path: str) -> str | None:
        """Return the data set whose class lists the path's extension in `extensions`; None if there is none."""
        ending = Path(path).suffix.lower()
        for plugin in self.plugins("datasets").values() if ending else ():
            tree = syntax.parse(plugin.source())
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and ending in (syntax.constant(node, "extensions") or ()):  # type: ignore[operator]
                    return plugin.name
        return None

    def get(self, kind: str, name: str) -> type:
        """Return the class of this name, importing it if needed."""
        key = (kind, name)
        if key not in self._classes:
            if is_composite(kind, name):
                compose = importlib.import_module(COMPOSITES).compose
                self._classes[key] = compose(name, partial(self.get, kind))
            else:
                self._classes[key] = _plugin_class(self.find(kind, name))
        return self._classes[key]

    def make(self, kind: str, name: str, /, **values: Any) -> Any:
        """Make an instance from options, and for a backbone or a data set from what the run sets; see `build`."""
        return build(self.get(kind, name), name, **values)

    def add_file(self, path: Path) -> list[str]:
        """Register every plug-in class that a Python file defines (`--plugin FILE.py`); return their names.

        The file may hold one class of each kind, all under the file's name.
        """
        module = import_file(path, "--plugin")
        names = []
        _check_complete(module, path)
        for kind in KINDS:
            name = check_name(_name_of(path.stem), f"--plugin {path}: name")
            plugin = Plugin(kind, name, module.__name__, path.resolve(), str(path))
            if _classes_of(kind, module):
                cls = _plugin_class(plugin)
                if self._classes.get((kind, name), cls) is not cls:
                    self._classes.clear()  # of those composed of the earlier class, too
                self._classes[kind, name] = cls
                registered = self._files.get((kind, name))
                if registered is not None and registered.path != plugin.path:
                    raise NegbenchError(f"two {kind} are named '{name}': {registered.origin} and {path}; rename one")
                self._files[kind, name] = plugin
                names.append(name)
        if not names:
            raise NegbenchError(f"--plugin {path}: defines no Strategy, Loss, Backbone or Dataset")
        for kind in KINDS:
            self.plugins(kind)  # raises if a name is already taken
        return names

    def plugin_file(self, sha256: str) -> Path | None:
        """Return the file given by `--plugin` that has this content; None if the user gave no such file."""
        paths = {plugin.path for plugin in self._files.values() if plugin.path is not None}
        return next((path for path in paths if sha256_of(path) == sha256), None)

    def describe(self, kind: str) -> list[Description]:
        """Return what `negbench list` prints, without importing any plug-in."""
        return [_describe(plugin) for plugin in self.plugins(kind).values()]

    def describe_parts(self, kind: str, name: str) -> list[Description]:
        """Return the description of each part of a name, as `parts` finds them, without importing any plug-in."""
        return [_describe(plugin) for plugin in self.parts(kind, name)]

    def _of_files(self, kind: str) -> list[Plugin]:
        return [plugin for plugin in self._files.values() if plugin.kind == kind]


registry = Registry()


def blame(error: BaseException) -> str | None:
    """Describe in one line an error from a third-party plug-in, with its line number; None for other errors."""
    path = tuple(sys.path)
    foreign = {}
    for kind in KINDS:
        for plugin in (*registry._of_files(kind), *_entry_points(kind, path)):
            foreign[plugin.module] = plugin
    failed_at = line_in(error, foreign)
    if failed_at is None:
        return None
    module, line = failed_at
    plugin = foreign[module]
    return f"{_SINGULAR[plugin.kind]} '{plugin.name}' of {plugin.origin} failed in line {line}: {on_one_line(error)}"


def line_in(error: BaseException, modules: Container[str]) -> tuple[str, int] | None:
    """Return module and line of an error's innermost frame in one of `modules`; None if there is none."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__"))
        if module in modules:
            return module, line
    return None


def on_one_line(error: BaseException) -> str:
    """Format an error on one line, as 'ValueError: message'."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_composite(kind: str, name: str) -> bool:
    """Whether a name denotes a strategy made of strategies."""
    return kind == "strategies" and any(sign in name for sign in "+>")


# --- options -----------------------------------------------------------------------------------------------------


@cache
def options_class(cls: type) -> type:
    """Return the dataclass whose fields are a plug-in's options.

    It is a strategy or a loss itself, and the type of the first parameter of a backbone's or a data set's `load`. All
    other parameters of `load` are set by the run.
    """
    if not hasattr(cls, "load"):
        return cls
    hint = _types_of(cls.load, cls.__name__).get(next(iter(inspect.signature(cls.load).parameters), ""))
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        raise NegbenchError(f"{cls.__name__}.load: annotate its first parameter with the dataclass of its options")
    return hint


def option_defaults(cls: type) -> dict[str, Any]:
    """Return option -> default of a plug-in's class; `dataclasses.MISSING` if the option is required."""
    defaults = {}
    for field in dataclasses.fields(options_class(cls)):
        if not field.init:
            continue
        if field.default_factory is dataclasses.MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = field.default_factory()
    return defaults


def build(cls: type[Made], name: str = "", /, **values: Any) -> Made:
    """Make a plug-in from its options and, for one with `load`, from what the run sets.

    Args:
        cls: the plug-in's class.
        name: the plug-in's, for errors; default: the class's.
        values: checked as by `make_options`.

    Raises:
        UnknownNameError, OptionError: an option that does not exist, is missing or has a wrong value.
    """
    plugin: Made
    load = getattr(cls, "load", None)
    if load is None:
        plugin = make_options(cls, values, name)
        return plugin
    section = _section_of(cls)
    _, *set_by_run = inspect.signature(load).parameters  # the first are the options
    option_values = {}
    run_values = {}
    for key, value in values.items():
        if key in set_by_run:
            run_values[key] = value
        else:
            option_values[key] = value
    options = make_options(cls, option_values, name)
    for key in set_by_run:
        if key in run_values:
            run_values[key] = _coerce(f"{section}.{key}", run_values[key], _adapter(load, name, key))
    plugin = load(options, **run_values)
    return plugin


def make_options(cls: type, values: Mapping[str, Any], name: str = "") -> Any:
    """Return the instance of `options_class` that holds these values; arguments and errors as for `build`.

    An int passes for a float, a string for a Path, a list for a tuple.
    """
    kind = options_class(cls)
    section = _section_of(cls)
    name = name or cls.__name__
    defaults = option_defaults(cls)
    for key in values:
        if key not in defaults:
            if kind is not cls and key in inspect.signature(cls.load).parameters:  # type: ignore[attr-defined]
                raise OptionError(f"{section}.{key} is set by the run itself: leave it out")
            raise UnknownNameError("option", key, defaults, where=f"{section} '{name}'")
    checked = {key: _coerce(f"{section}.{key}", value, _adapter(kind, name, key)) for key, value in values.items()}
    for key, value in {**defaults, **checked}.items():
        if value is dataclasses.MISSING:
            raise OptionError(f"{section} '{name}' needs {section}.{key}: --set {section}.{key}=...")
    return kind(**checked)


def _section_of(cls: type) -> str:
    """Return the configuration's section of a plug-in's class."""
    return next(section for section, kind in SECTIONS.items() if issubclass(cls, _base_of(kind)))


def _base_of(kind: str) -> type:
    home, name = _BASES[kind]
    base: type = getattr(importlib.import_module(home), name)
    return base


@cache
def _types_of(subject: Any, name: str) -> dict[str, Any]:
    """Return name -> type, with ranges, of a dataclass's fields or a function's parameters."""
    try:
        return typing.get_type_hints(subject, include_extras=True)
    except NameError as error:
        raise NegbenchError(f"'{name}': the types of its options cannot be read: {error}") from error


@cache  # making one takes a hundred times as long as a check
def _adapter(subject: Any, name: str, key: str) -> Any:
    """Return pydantic's adapter of the type of a dataclass's field or a function's parameter."""
    from pydantic import ConfigDict, TypeAdapter

    hint: Any = _types_of(subject, name).get(key)
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def _coerce(where: str, value: Any, adapter: Any) -> Any:
    """Convert `value` to the adapter's type or raise OptionError; strict pydantic, except for lossless widenings."""
    from pydantic import ValidationError

    try:
        text = json.dumps(str(value) if isinstance(value, Path) else value)
        return adapter.validate_json(text, strict=True)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValidationError):
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            several = isinstance(value, str) and re.search(r",\s*\w+\s*=", value) is not None
            apart = "; separate options by ':'" if several else ""
            raise OptionError(f"{where} = {short_repr(value)}: {problem[0].lower()}{problem[1:]}{apart}") from error
        return value  # an object (a Path, a module) that JSON cannot carry: the plug-in checks it


# --- discovery ---------------------------------------------------------------------------------------------------


def _name_of(stem: str) -> str:
    """Return the name of a plug-in by that of its file or module."""
    return stem.replace("_", "-")


def _built_ins(kind: str) -> list[Plugin]:
    """Return the plug-ins of a kind's packages: their public modules with a constant `PAPER`."""
    plugins: list[Plugin] = []
    for package in _PACKAGES[kind]:
        init = syntax.locate(package)
        if init is None:
            raise NegbenchError(f"{package} is not installed: run `pip install -e .` in the checkout")
        plugins += _plugins_in(init.parent, kind, package, init.parent.stat().st_mtime_ns)
    return plugins


@cache  # a run asks some twenty times
def _plugins_in(folder: Path, kind: str, package: str, _changed: int) -> tuple[Plugin, ...]:
    plugins = []
    for path in sorted(folder.glob("[!_]*.py")):
        module = f"{package}.{path.stem}"
        if _holds_plugin(module, path):
            plugins.append(Plugin(kind, _name_of(path.stem), module, None, "built-in"))
    return tuple(plugins)


def _holds_plugin(module: str, file: Path) -> bool:
    """Whether a module has a constant `PAPER`; one that cannot be read counts as a plug-in, to be reported."""
    try:
        return "PAPER" in syntax.traits(module, file).constants
    except NegbenchError:
        return True


@cache  # a run asks some fifteen times
def _entry_points(kind: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the plug-ins of packages on `path` (`sys.path`)."""
    plugins = []
    for point in _read_entry_points(path).select(group=f"negbench.{kind}"):
        origin = point.dist.name if point.dist else point.value
        plugins.append(Plugin(kind, point.name, point.module, None, origin))
    return tuple(plugins)


@cache
def _read_entry_points(path: tuple[str, ...]) -> "importlib.metadata.SelectableGroups | importlib.metadata.EntryPoints":
    """Return what packages on `path` offer; read once for all kinds, as looking through all packages is slow."""
    return importlib.metadata.entry_points()


# module of an imported plug-in -> it and all that it imports or reads beside it: name -> file, with its stamp then
_IMPORTED: dict[str, dict[str, tuple[Path, tuple[int, ...]]]] = {}


def _stamps(module: str, path: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return a value of `_IMPORTED`, as the files are now."""
    modules = {module: path} if module.startswith("negbench.") else syntax.closure(((module, path),))
    return {name: (file, stamp(file)) for name, file in (modules | files_read(modules)).items()}


def files_read(modules: Mapping[str, Path]) -> dict[str, Path]:
    """Return the data files that modules name in `READS`, by module and name."""
    files: dict[str, Path] = {}
    for module, path in modules.items():
        names = syntax.traits(module, path).constants.get("READS")
        if names is None:
            continue
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise NegbenchError(f"{path}: READS must be a tuple of file names, got {names!r}")
        files |= {f"{module} {name}": path.parent / name for name in names}
    for file in files.values():
        if not file.is_file():
            raise NegbenchError(f"{file}: READS names this file, but there is none")
    return files


def _changed_file(module: str) -> Path | None:
    """Return a file of an imported plug-in that has changed since; None if all are as they were."""
    for file, stamp_at_import in _IMPORTED.get(module, {}).values():
        if stamp(file) != stamp_at_import:
            return file
    return None


def check_unchanged(plugin: Plugin) -> None:
    """Raise NegbenchError if a file of the plug-in has changed since it was imported."""
    file = _changed_file(plugin.module)
    if file is not None:
        raise NegbenchError(
            f"{_SINGULAR[plugin.kind]} '{plugin.name}': {file} changed after it was imported: rerun the command "
            "(in a notebook: restart Python, unless it is the file of --plugin)"
        )


def _drop(module: str) -> None:
    """Forget a plug-in's module and the local modules that it imports."""
    packages = {name.partition(".")[0] for name in _IMPORTED[module]}
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            del sys.modules[name]
    for file, _ in _IMPORTED.pop(module).values():
        with suppress(OSError, NotImplementedError):  # compiled code knows its source by size and whole seconds
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    syntax.forget()


def import_file(path: Path, flag: str) -> ModuleType:
    """Import a user's Python file, again if it or what it imports has changed.

    Raises:
        NegbenchError: it is missing or fails; names the flag.
    """
    if not path.is_file():
        raise NegbenchError(f"{flag} {path}: no such file")
    # the name holds the path's hash: two files of one name stay apart, one file imported twice is one module
    path_hash = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    name = f"negbench_plugin_{path.stem}_{path_hash[:8]}"
    if name in _IMPORTED:
        if name in sys.modules and _changed_file(name) is None:
            return sys.modules[name]
        _drop(name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NegbenchError(f"{flag} {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    _IMPORTED[name] = _stamps(name, path)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise NegbenchError(f"{flag} {path} cannot be imported: {on_one_line(error)}") from error
    return module


def _check_complete(module: ModuleType, path: Path) -> None:
    """Raise NegbenchError if a plug-in class lacks methods, unless another class of the file adds them."""
    bases = tuple(_base_of(kind) for kind in KINDS)
    classes = _classes_in(module).values()
    for cls in classes:
        lacking = sorted(getattr(cls, "__abstractmethods__", ()))
        inherited = any(other is not cls and issubclass(other, cls) for other in classes)
        if lacking and issubclass(cls, bases) and not inherited and not cls.__name__.startswith("_"):
            raise NegbenchError(f"--plugin {path}: class {cls.__name__} lacks {', '.join(lacking)}")


def _classes_in(module: ModuleType) -> dict[str, type]:
    """Return the classes that a module defines, by their names in it."""
    return {key: cls for key, cls in vars(module).items() if inspect.isclass(cls) and cls.__module__ == module.__name__}


def _classes_of(kind: str, module: ModuleType) -> list[type]:
    """Return the public, complete classes of a kind that a module defines."""
    public = [cls for key, cls in _classes_in(module).items() if not key.startswith("_")]
    return [cls for cls in public if issubclass(cls, _base_of(kind)) and not inspect.isabstract(cls)]


def _plugin_class(plugin: Plugin) -> type:
    try:
        if plugin.module not in _IMPORTED:
            _IMPORTED[plugin.module] = _stamps(plugin.module, plugin.source())
        module = importlib.import_module(plugin.module)
    except Exception as error:  # report any error of a plug-in's import in one line
        problem = (missing_package(error) if isinstance(error, ImportError) else None) or on_one_line(error)
        raise NegbenchError(
            f"{_SINGULAR[plugin.kind]} '{plugin.name}' of {plugin.origin} cannot be imported: {problem}"
        ) from error
    classes = _classes_of(plugin.kind, module)
    if len(classes) != 1:
        _, base = _BASES[plugin.kind]
        raise NegbenchError(
            f"{plugin.path or plugin.module} must define exactly one public {base} class, "
            f"found {[cls.__name__ for cls in classes]}"
        )
    return classes[0]


# --- descriptions, from source text --------------------------------------------------------------------------------


def _describe(plugin: Plugin) -> Description:
    try:
        tree = syntax.parse(plugin.source())
    except NegbenchError as error:
        return Description(plugin.name, str(error), "", plugin.origin)
    summary = (ast.get_docstring(tree) or "").split("\n", 1)[0]
    return Description(plugin.name, summary, str(syntax.constant(tree, "PAPER") or ""), plugin.origin)
