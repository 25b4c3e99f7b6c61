"""`negbench list`: what there is, with its source, without importing it; or one plug-in's options and their ranges."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from negbench.cli import command, output
from negbench.command_options import List, PluginKind
from negbench.layers import plugin_layer

if TYPE_CHECKING:
    from negbench.cli.explain import Option
    from negbench.registry import Description

KINDS = get_args(PluginKind)


@command.of(
    List,
    "negbench list backbones precomputed",
    "negbench list",
    "negbench list strategies",
    help="List strategies, losses, backbones, datasets, systems or recipes with their sources, or explain one.",
)
def list_(given: Mapping[str, Any]) -> dict[str, Any]:
    """Print the registry."""
    asked = List.parsed(given)
    plugin_layer(asked.plugin)
    found = {each: _documents(each, asked.name) for each in (KINDS if asked.kind is None else (asked.kind,))}
    if output.wants_json():
        return found
    for number, each in enumerate(found):
        if asked.kind is None:
            typer.echo(f"{'' if number == 0 else chr(10)}{each}")
        if each in ("systems", "recipes"):
            _files(_toml(each), asked.name)
        elif asked.name is not None:
            _one(each, asked.name)
        else:
            _all(each)
    return found


def _documents(kind: str, name: str | None) -> Any:
    """For JSON: what there is of a kind, or all of one."""
    from dataclasses import asdict

    from negbench.errors import UnknownNameError
    from negbench.registry import registry

    if kind in ("systems", "recipes"):
        files = _toml(kind)
        if name is not None and name not in files:
            raise UnknownNameError(kind.removesuffix("s"), name, files)
        return {each: file.read_text(encoding="utf-8") for each, file in files.items() if name in (None, each)}
    if name is None:
        return [asdict(each) for each in registry.describe(kind)]
    described, _, found = explained(kind, name)
    return {**asdict(described), "options": [asdict(option) for option in found]}


def _toml(kind: str) -> dict[str, Path]:
    """File of every system or recipe."""
    from negbench.layers import recipes
    from negbench.systems.system import system_files

    return recipes() if kind == "recipes" else system_files()


def _files(found: Mapping[str, Path], name: str | None) -> None:
    """All TOML files with the first sentence of their comment, or one file as it is."""
    if name is not None:
        typer.echo(found[name].read_text(encoding="utf-8"), nl=False)
        return
    width = max(map(len, found), default=0)
    for each, file in found.items():
        comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
        text = " ".join(line.removeprefix("# ") for line in comment)
        _print(f"  {each:{width}}  ", re.split(r"[.] (?=[A-Z`])", text)[0].removesuffix("."))


def _all(kind: str) -> None:
    from negbench.registry import registry

    described = registry.describe(kind)
    width = max((len(d.name) for d in described), default=0)
    for d in described:
        origin = "" if d.origin == "built-in" else f" [{d.origin}]"
        _print(f"  {d.name:{width}}  ", f"{d.summary}{origin}")
        _print(" " * (width + 4), f"source: {d.paper or 'none named'}")


def _print(lead: str, text: str) -> None:
    """A text behind its lead: wrapped to a terminal's width, indented by the lead; without one a line, for grep."""
    console, line = output.console(), lead + " ".join(text.split())
    if console.is_terminal:
        rest = " " * len(lead)  # names and paths are copied: they stay whole
        line = textwrap.fill(
            line, console.width, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
        )
    typer.echo(line)


def explained(kind: str, name: str) -> tuple[Description, str, list[Option]]:
    """A plug-in's description, its section of a configuration, and the options that its user sets."""
    from negbench.cli.explain import options_of
    from negbench.config import by_run
    from negbench.registry import SECTIONS, registry

    described = next(d for d in registry.describe(kind) if d.name == registry.find(kind, name).name)
    section = next(section for section, each in SECTIONS.items() if each == kind)
    return described, section, [option for option in options_of(kind, name) if option.name not in by_run(section)]


def _one(kind: str, name: str) -> None:
    """Every option with type, default, range and its lines of the docstring."""
    described, section, found = explained(kind, name)
    _print(f"{described.name}  ", described.summary)
    _print("source: ", described.paper or "none named")
    typer.echo(f"\noptions, as --set {section}.NAME=VALUE or --{section} {name}:NAME=VALUE:" if found else "no options")
    for option in found:
        text = f"{option.type}, default {option.default}" + f"; tunable {option.range}" * bool(option.range)
        _print(f"  {option.name} = ", text)
        if option.text:
            _print(" " * 6, option.text)
