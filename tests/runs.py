"""What `negbench run` does, without its command: a configuration, the untrained run that it opens, the finished run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.loop.runs import DATA, RunContext, compute_or_reuse, open_run
from negbench.loop.types import Callbacks, OpenRun
from negbench.settings.config import RunConfig
from negbench.settings.layers import parse_plugin
from negbench.store.run_result import RunResult
from negbench.systems.system import load_config


def config_of(sets: Iterable[str], strategy: str, *more: str, **flags: Any) -> RunConfig:
    """Return the configuration of a strategy, named as in a command, with these `--set` values and flags."""
    return load_config(flags={"strategy": parse_plugin(strategy), **flags}, sets=[*sets, *more])


def untrained(config: RunConfig) -> OpenRun:
    """Open a run with data and features of its own."""
    return open_run(config, Display(), DataCache())


def run(config: RunConfig, where: Path, **hooks: Callable[..., None]) -> RunResult:
    """Compute a run, or read it, in a runs folder without a tracking store; hooks are those of `Callbacks`.

    It shares data and backbones with earlier runs, as in a command.
    """
    return compute_or_reuse(config, replace(RunContext.open(where, "none"), cache=DATA, callbacks=Callbacks(**hooks)))


def flags_of(sets: Iterable[str]) -> list[str]:
    """Return `--set` values as arguments of a command."""
    flags = list[str]()
    for text in sets:
        flags += ["--set", text]
    return flags
