"""Turn a command's recipe, flags and `--set` into layers of a configuration: nested dicts, later ones win."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from negbench.errors import NegbenchError, OptionError, UnknownNameError, short_repr
from negbench.machine.received import read_text
from negbench.plugins import syntax
from negbench.plugins.registry import SECTIONS, registry
from negbench.settings.options import DatasetOptions, ModelOptions, PluginSpec, RunSettings

MOVES_SCORES = False  # everything decided here is in the resolved configuration, which is hashed

_RECIPE_BYTES = 2**20  # largest recipe; parsing takes many times as much memory

# --- recipes -------------------------------------------------------------------------------------------------------


def recipes() -> dict[str, Path]:
    """Return the recipes that come with negbench, by name; their folders only sort them."""
    home = syntax.locate("negbench.recipes")
    if home is None:
        return {}
    return {file.stem: file for file in sorted(home.parent.glob("*/*.toml"), key=lambda file: file.stem)}


def _recipe_file(path: Path) -> Path:
    """Return the file of a recipe: one here, else one of negbench's, by its name or its path before it had a folder.

    Raises:
        UnknownNameError: a name of no recipe.
    """
    if path.is_file():
        return path
    shipped = recipes()
    if path.suffix == "" and len(path.parts) == 1:
        if path.name not in shipped:
            raise UnknownNameError("recipe", path.name, shipped)
        return shipped[path.name]
    file = shipped.get(path.stem)
    if file is not None:
        old_folder = file.parent.parent
        if path.suffix == file.suffix and path.parent.resolve() == old_folder.resolve():
            return file
    return path


def read_recipe(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe as nested dict, merged over the one that it extends (`extends = FILE`, relative to its folder).

    `path` may be the name of a recipe that comes with negbench, unless a file here has it; `above` are the files that
    extend it. The files of `plugins` are relative to the recipe's folder, too. Raises NegbenchError if a file is
    missing, not a regular file of at most 1 MiB, not TOML, or extends itself.
    """
    path = _recipe_file(path)
    try:
        size = path.stat().st_size
        if size > _RECIPE_BYTES or not path.is_file():
            problem = f"has {size:,} bytes" if path.is_file() else "is no regular file"
            raise NegbenchError(f"--recipe {path}: {problem}; expected a TOML file of at most {_RECIPE_BYTES:,} bytes")
        recipe = tomllib.loads(read_text(path))
    except OSError as error:
        raise NegbenchError(f"--recipe {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5,000 digits
        raise NegbenchError(f"--recipe {path}: not a TOML file: {error}") from error
    if "plugins" in recipe:
        files = recipe["plugins"]
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise NegbenchError(f"--recipe {path}: plugins must be a list of Python files, got {short_repr(files)}")
        recipe["plugins"] = [str((path.parent / file).resolve()) for file in files]
    if "extends" not in recipe:
        return recipe
    below = path.parent / str(recipe.pop("extends"))
    above = (*above, path.resolve())
    if below.resolve() in above:
        raise NegbenchError(f"--recipe {path}: extends {below}, which extends it in turn")
    return merge_layers([read_recipe(below, above), recipe])


def recipe_settings(path: Path | None) -> dict[str, Any]:
    """Read a recipe without the tables of single commands ([compare], [study]); register its `plugins`.

    Returns {} without a recipe.
    """
    recipe = {} if path is None else read_recipe(path)
    plugin_layer([Path(file) for file in recipe.get("plugins", ())])
    return {key: value for key, value in recipe.items() if key not in ("compare", "study")}


# --- texts ----------------------------------------------------------------------------------------------------------


def parse_value(text: str, option: str) -> Any:
    """Parse text as a TOML value, else keep it as a string; `null` is None. Errors name the option."""
    if text.strip() == "null":  # TOML has no word for it
        return None
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option}: the value is too long or nested too deeply") from error
    return document["value"] if len(document) == 1 else text


def parse_set(text: str) -> tuple[list[str], Any]:
    """Parse 'section.key=value' as (['section', 'key'], value), the value with `parse_value`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise OptionError(f"--set {short_repr(text)}: expected section.key=value, e.g. --set train.epochs=12")
    return key.strip().split("."), parse_value(value, f"--set {short_repr(key.strip())}")


def set_layer(text: str) -> dict[str, Any]:
    """Parse 'section.key=value' as a configuration layer."""
    path, value = parse_set(text)
    if len(path) > 2:
        raise OptionError(f"--set {short_repr(text)}: expected section.key=value, e.g. --set train.epochs=12")
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def parse_plugin(text: str) -> dict[str, Any]:
    """Parse 'qure:variant=release' as {"name": "qure", "variant": "release"}; values are parsed as for --set.

    A colon separates two options only if `KEY=` follows it, so that values may contain colons.
    """
    name, *options = re.split(r":(?=\s*\w+\s*=)", text)
    if re.match(r"\s*\w+\s*=", name) and registry.reader_of(name) is None:  # after the comma of a list
        raise OptionError(f"{short_repr(text)} is an option without a name: separate options by ':', as NAME:a=1:b=2")
    if ":" in re.sub(r":\s*\d+\s*>", ">", name) and registry.reader_of(name) is None:
        raise OptionError(f"{short_repr(text)}: expected NAME, or NAME:option=value:option=value")
    section: dict[str, Any] = {"name": name.strip()}
    for option in options:
        key, _, value = option.partition("=")
        if key.strip() in section:  # a name is given before the first colon
            rule = "in a switch or union, options of the parts follow the last name"
            raise OptionError(f"{short_repr(text)}: {key.strip()} is given twice; {rule}")
        section[key.strip()] = parse_value(value, short_repr(text))
    return section


def plugin_section(kind: str, plugin: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a plug-in section from a flag or a recipe; a data set may be a file whose extension one of them reads."""
    section = parse_plugin(plugin) if isinstance(plugin, str) else dict(plugin)
    name = section.get("name")
    if kind == "datasets" and isinstance(name, str):
        reader = registry.reader_of(name)
        if reader is not None:
            file = Path(name).expanduser().resolve()
            return {**section, "name": reader, "file": str(file)}
    return section


# --- layers ---------------------------------------------------------------------------------------------------------


def merge_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge layers key by key; later ones win, and one that names another plug-in drops the earlier one's options.

    Options without a name stay, whichever plug-in is named later. Files of `plugins` add up.
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key in SECTIONS and isinstance(value, str):
                value = {"name": value}
            before = result.get(key)
            if isinstance(value, Mapping) and isinstance(before, dict):
                if key in SECTIONS and _renames(before, value):
                    result[key] = dict(value)
                else:
                    result[key] = {**before, **value}
            elif key == "plugins" and isinstance(before, list | tuple) and isinstance(value, list | tuple):
                result[key] = [*before, *(file for file in value if file not in before)]
            else:
                result[key] = dict(value) if isinstance(value, Mapping) else value
    return result


def _renames(before: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Whether a section names another plug-in than the one below it."""
    return "name" in before and "name" in section and before["name"] != section["name"]


def plugin_layer(files: Sequence[Path] | None) -> dict[str, Any]:
    """Register plug-in files, and return the layer that names them."""
    for file in files or ():
        registry.add_file(file)
    return {"plugins": [str(file.resolve()) for file in files]} if files else {}


def plugin_layer_of(section: str, plugin: PluginSpec | None) -> dict[str, Any]:
    """Return the layer of one plug-in, NAME:option=value:... or a table; {} of None."""
    return {} if plugin is None else {section: plugin_section(SECTIONS[section], plugin)}


def dataset_layer(name: PluginSpec | None, root: Path | None, allow_missing: bool) -> dict[str, Any]:
    """Return `--dataset`, `--data-root` and `--allow-missing` as a section."""
    section: dict[str, Any] = {}
    if name is not None:
        section |= plugin_section("datasets", name)
    if root is not None:
        section["root"] = str(root)
    if allow_missing:
        section["allow_missing"] = True
    return {"dataset": section} if section else {}


def flag_layer(options: DatasetOptions) -> dict[str, Any]:
    """Return the layer of `--plugin` (first: other flags may name its classes), plug-in flags, and a run's `--seed`."""
    layer = plugin_layer(options.plugin) | dataset_layer(options.dataset, options.data_root, options.allow_missing)
    if isinstance(options, ModelOptions):
        layer |= plugin_layer_of("backbone", options.backbone)
    if isinstance(options, RunSettings):
        layer |= plugin_layer_of("strategy", options.strategy) | plugin_layer_of("loss", options.loss)
        if options.seed is not None:
            layer["seed"] = options.seed
    return layer


def layers_of(options: DatasetOptions) -> list[dict[str, Any]]:
    """Return the recipe ({} if there is none), the flags and each `--set`, lowest first; register `--plugin`."""
    recipe = recipe_settings(options.recipe) if isinstance(options, ModelOptions) else {}
    return [recipe, flag_layer(options), *(set_layer(text) for text in options.sets)]
