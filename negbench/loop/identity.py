"""Hash of a run: its resolved configuration, its data, and the code that can change its scores.

Code is hashed as syntax trees without docstrings and comments, so that a finished run survives edits that change no
score. It is everything that `negbench.loop.train` imports, directly or indirectly, and the plug-ins that the run names,
but not another strategy's file. An imported module that cannot change scores declares ``MOVES_SCORES = False`` with
the reason; modules that only such modules import are left out too.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from negbench.plugins import syntax
from negbench.plugins.registry import COMPOSITES, SECTIONS, Plugin, is_composite, registry
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # names a run

_LOOP = "negbench.loop.train"
_WARMUP = ("strategies", "all-corpus")  # defines the pools of the first epochs, whatever the strategy


def code_version(config: ResolvedConfig) -> str:
    """Return a hash of the code that can change this run's scores, 12 hexadecimal digits."""
    roots = [(p.module if p.path is None else f"--plugin {p.path.name}", p.source()) for p in plugins_of(config)]
    if is_composite("strategies", config.strategy.name):
        roots.append((COMPOSITES, _file(COMPOSITES)))
    return _version(((_LOOP, _file(_LOOP)), *roots))


def plugins_of(config: ResolvedConfig) -> list[Plugin]:
    """Return the plug-ins that a run uses."""
    named = ((kind, getattr(config, section).name) for section, kind in SECTIONS.items())
    others = (("backbones", other.name) for other in config.mining.backbones)
    return [plugin for kind, name in (*named, *others, _WARMUP) for plugin in registry.parts(kind, name)]


@cache
def _version(roots: tuple[tuple[str, Path], ...]) -> str:
    digest = hashlib.sha256()
    for module, path in sorted(counted(roots).items()):
        digest.update(f"{module} {_digest(path)}\n".encode())
    return digest.hexdigest()[:12]


def counted(roots: tuple[tuple[str, Path], ...]) -> dict[str, Path]:
    """Return the modules to hash: the roots and all that they import from negbench or from a root's package."""
    packages = {"negbench", *(module.split(".")[0] for module, _ in roots)}
    modules: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        module, path = todo.pop()
        if module in modules or not _moves_scores(path):
            continue
        modules[module] = path
        todo += [(name, _file(name)) for name in _imports(module, path) if name.split(".")[0] in packages]
    return modules


@cache
def _imports(module: str, path: Path) -> frozenset[str]:
    """Return the modules that a file imports and their packages, except `negbench`, which only re-exports names."""
    modules = set()
    package = path.name == "__init__.py"
    for _, dotted in syntax.imported_names(syntax.parse(path), module, package=package):
        if dotted.split(".")[0] not in ("negbench", module.split(".")[0]):
            continue
        parts = dotted.split(".")
        names = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        modules |= {name for name in names if name != "negbench" and syntax.locate(name) is not None}
    return frozenset(modules)


@cache
def _moves_scores(path: Path) -> bool:
    return syntax.constant(syntax.parse(path), "MOVES_SCORES") is not False


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(syntax.canonical(syntax.parse(path)).encode()).hexdigest()


def _file(module: str) -> Path:
    path = syntax.locate(module)
    assert path is not None, module
    return path


def config_hash(config: ResolvedConfig, *, data: str) -> str:
    """Hash a resolved configuration, the code of its run, and the data's identity."""
    identity = {**config.identity(), "code": code_version(config), "data": data}
    # the data's identity replaces the paths it was read from and the world that was drawn
    identity["dataset"] = {
        k: v for k, v in identity["dataset"].items() if k not in ("root", "file", "gallery", "world")
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
