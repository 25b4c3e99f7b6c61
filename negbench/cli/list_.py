"""`negbench list`: all plug-ins with their sources, without importing them; or one plug-in's options and ranges."""

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import typer

from negbench.cli import command, output
from negbench.settings.command_options import List, PluginKind
from negbench.settings.layers import plugin_layer

if TYPE_CHECKING:
    from negbench.cli.explain import Option
    from negbench.plugins.registry import Description

KINDS = get_args(PluginKind)


@command.of(
    List,
    "negbench list backbones precomputed",
    "negbench list",
    "negbench list strategies",
    "negbench list qure",
    help="List strategies, losses, backbones, datasets, systems or recipes with their sources, or explain one.",
)
def list_(options: List) -> dict[str, Any]:
    """Print the registry."""
    plugin_layer(options.plugin)
    kinds, name = _kinds_and_name(options)
    documents = {kind: _document(kind, name) for kind in kinds}
    if output.wants_json():
        return documents
    for number, (kind, document) in enumerate(documents.items()):
        if len(documents) > 1:
            if number > 0:
                typer.echo()
            typer.echo(kind)
        if name is None:
            _print_all(document)
        elif kind in ("systems", "recipes"):
            typer.echo(document[name], nl=False)
            if kind == "recipes":
                from negbench.report.reproduce import reproduction

                typer.echo(f"\n{reproduction(name)}".rstrip())
        else:
            _print_one(document)
    return documents


def _kinds_and_name(options: List) -> tuple[tuple[str, ...], str | None]:
    """Return the kinds to list, and the name to explain, which may stand in the place of its kind.

    Raises:
        UnknownNameError: neither a kind nor a name of any kind.
    """
    from negbench.errors import UnknownNameError
    from negbench.plugins.registry import KINDS as PLUGINS
    from negbench.plugins.registry import is_composite, registry
    from negbench.settings.layers import recipes
    from negbench.systems.system import system_files

    if options.kind is None:
        return KINDS, None
    if options.kind in KINDS:
        return (options.kind,), options.name
    names = {kind: set(registry.plugins(kind)) for kind in PLUGINS}
    names |= {"systems": set(system_files()), "recipes": set(recipes())}
    if options.name is not None:
        raise UnknownNameError("kind", options.kind, KINDS)
    name = options.kind
    if is_composite("strategies", name):
        return ("strategies",), name
    kinds_of_name = tuple(kind for kind in KINDS if name in names[kind])
    if not kinds_of_name:
        raise UnknownNameError("kind or name", name, {*KINDS, *set().union(*names.values())})
    return kinds_of_name, name


def _document(kind: str, name: str | None) -> Any:
    """Return all plug-ins of a kind, or one in full; systems and recipes as the text of their files."""
    from dataclasses import asdict

    from negbench.errors import UnknownNameError
    from negbench.plugins.registry import registry
    from negbench.settings.layers import recipes
    from negbench.systems.system import system_files

    if kind in ("systems", "recipes"):
        files = recipes() if kind == "recipes" else system_files()
        if name is not None and name not in files:
            raise UnknownNameError(kind.removesuffix("s"), name, files)
        return {recipe: file.read_text(encoding="utf-8") for recipe, file in files.items() if name in (None, recipe)}
    if name is None:
        return [asdict(plugin) for plugin in registry.describe(kind)]
    description, section, options = explain_plugin(kind, name)
    from negbench.cli.explain import fixed_numbers  # imports torch, which the lists above do without

    fixed = {}
    for about, numbers in fixed_numbers(kind, name).items():
        fixed[about] = [asdict(number) for number in numbers]
    rows = [asdict(option) for option in options]
    return {**asdict(description), "section": section, "options": rows, "fixed": fixed}


def explain_plugin(kind: str, name: str) -> "tuple[Description, str, list[Option]]":
    """Return a plug-in's description, its section of a configuration, and the options that a user sets.

    Of a composite, such as `in-batch+qure`, the options are those of its parts and its own.
    """
    from negbench.cli.explain import options_of
    from negbench.plugins.registry import SECTIONS, Description, is_composite, registry

    if is_composite(kind, name):
        parts = registry.parts(kind, name)
        papers = {plugin.name: plugin.paper for plugin in registry.describe(kind)}
        sources = "; ".join(f"{part.name}: {papers[part.name]}" for part in parts)
        summary = str(registry.get(kind, name).__doc__).partition("\n")[0]
        description = Description(name, summary, sources, "built-in")
    else:
        full_name = registry.find(kind, name).name
        description = next(plugin for plugin in registry.describe(kind) if plugin.name == full_name)
    section = next(section for section, plugins in SECTIONS.items() if plugins == kind)
    return description, section, options_of(kind, name)


def _print_all(listing: Any) -> None:
    """Print plug-ins with their sources, or TOML files with the first sentence of their comment."""
    if isinstance(listing, Mapping):
        width = max((len(name) for name in listing), default=0)
        for name, text in listing.items():
            _print(f"  {name:{width}}  ", _first_sentence(text))
        return
    width = max((len(row["name"]) for row in listing), default=0)
    for row in listing:
        origin = "" if row["origin"] == "built-in" else f" [{row['origin']}]"
        _print(f"  {row['name']:{width}}  ", f"{row['summary']}{origin}")
        _print(" " * (width + 4), f"source: {row['paper'] or 'none named'}")


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment at the head of a TOML file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("# "))
    sentences = re.split(r"[.] (?=[A-Z`])", " ".join(lines))
    return sentences[0].removesuffix(".")


def _print_one(plugin: Mapping[str, Any]) -> None:
    """Print every option with its type, default, range and docstring text."""
    name = plugin["name"]
    section = plugin["section"]
    _print(f"{name}  ", plugin["summary"])
    _print("source: ", plugin["paper"] or "none named")
    options = f"\noptions, as --set {section}.NAME=VALUE or --{section} {name}:NAME=VALUE:"
    typer.echo(options if plugin["options"] else "no options")
    for option in plugin["options"]:
        tunable = f"; tunable {option['range']}" if option["range"] else ""
        _print(f"  {option['name']} = ", f"{option['type']}, default {option['default']}{tunable}")
        if option["text"]:
            _print(" " * 6, option["text"])
    for about, numbers in plugin["fixed"].items():
        typer.echo(f"\nnumbers that no option changes: {about[0].lower()}{about[1:]}")
        for number in numbers:
            _print(f"  {number['name']} = ", number["default"])
            _print(" " * 6, number["text"])


def _print(lead: str, text: str) -> None:
    """Print a text after its lead: wrapped and indented on a terminal, without one on a single line, for grep."""
    console = output.console()
    line = lead + " ".join(text.split())
    if console.is_terminal:
        rest = " " * len(lead)  # keep names and paths whole, for copying
        line = textwrap.fill(
            line, console.width, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
        )
    typer.echo(line)
