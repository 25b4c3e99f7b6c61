"""Hash of a run: its resolved configuration, its data, and the code that can change its scores.

Code is hashed as syntax trees without docstrings, comments and the texts of errors, so that a finished run survives
edits that change no score. It is everything that `negbench.loop.train` imports, directly or indirectly, and the
plug-ins that the run names, but not another strategy's file. What a plug-in imports from outside site-packages and the
standard library counts too, and so do the data files beside it that it names: ``READS = ("weights.npz",)``. An
imported module that cannot change scores declares ``MOVES_SCORES = False`` with the reason; modules that only such
modules import are left out too.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from negbench.plugins import syntax
from negbench.plugins.registry import COMPOSITES, SECTIONS, Plugin, check_unchanged, files_read, is_composite, registry
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # names a run

_LOOP = "negbench.loop.train"
_WARMUP = ("strategies", "all-corpus")  # defines the pools of the first epochs, whatever the strategy


def code_version(config: ResolvedConfig) -> str:
    """Return a hash of the code that can change this run's scores, 12 hexadecimal digits.

    Raises:
        NegbenchError: the code in memory is not that of the files.
    """
    for plugin in plugins_of(config):
        check_unchanged(plugin)
    modules = sorted(modules_of(config).items())
    trees = "".join(f"{module} {syntax.traits(module, path).code}\n" for module, path in modules)
    return hashlib.sha256(trees.encode()).hexdigest()[:12]


def read_files(config: ResolvedConfig) -> dict[str, Path]:
    """Return the data files that the modules of `modules_of` name in `READS`."""
    return files_read(modules_of(config))


def modules_of(config: ResolvedConfig) -> dict[str, Path]:
    """Return the modules that can change this run's scores, with their files."""
    roots = []
    for plugin in plugins_of(config):
        name = plugin.module if plugin.path is None else f"--plugin {plugin.path.name}"
        roots.append((name, plugin.source()))
    if is_composite("strategies", config.strategy.name):
        roots.append((COMPOSITES, _file(COMPOSITES)))
    return syntax.closure(((_LOOP, _file(_LOOP)), *roots))


def plugins_of(config: ResolvedConfig) -> list[Plugin]:
    """Return the plug-ins that a run uses."""
    names = [(kind, getattr(config, section).name) for section, kind in SECTIONS.items()]
    names += [("backbones", other.name) for other in config.mining.backbones]
    names.append(_WARMUP)
    plugins: list[Plugin] = []
    for kind, name in names:
        plugins += registry.parts(kind, name)
    return plugins


def _file(module: str) -> Path:
    path = syntax.locate(module)
    assert path is not None, module
    return path


def config_hash(config: ResolvedConfig, *, data: str) -> str:
    """Hash a resolved configuration, the code of its run, and the data's identity."""
    identity = {**config.identity(), "code": code_version(config), "data": data}
    # the data's identity replaces the paths it was read from and the world that was drawn
    for section in (identity["dataset"], identity["eval"].get("also", {})):
        for key in ("root", "file", "gallery", "world"):
            section.pop(key, None)
    rule: Any = registry.get("strategies", config.strategy.name)
    if "listed" in rule.reads:  # likewise its file of negatives
        identity["strategy"].pop("file", None)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
