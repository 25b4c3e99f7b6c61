"""Describe a plug-in's options to users: types, defaults and ranges from fields, texts from docstrings."""

import inspect
import sys
import types
import typing
from dataclasses import dataclass, fields
from typing import Any

from docstring_parser import google

from negbench.contracts import tunable_ranges
from negbench.plugins.registry import option_defaults, options_class, registry


@dataclass(frozen=True)
class Option:
    """One option of a plug-in, as users read it."""

    name: str
    type: str
    default: str
    range: str  # "10..1000 log", or empty
    text: str  # from the docstrings


def options_of(kind: str, name: str) -> list[Option]:
    """Import a plug-in and return its options, with the texts of the first class or module that documents each."""
    cls = registry.get(kind, name)
    declared = options_class(cls)
    hints = typing.get_type_hints(declared)
    ranges = tunable_ranges(declared)
    documents = [inspect.getdoc(base) for base in declared.__mro__]
    documents.append(sys.modules[cls.__module__].__doc__)
    documents += [inspect.getdoc(part) for part in getattr(cls, "parts", ())]  # of a composite
    texts: dict[str, str] = {}
    for document in documents:
        texts = {**_argument_texts(document or ""), **texts}  # the first text of a name wins
    options = []
    for option, default in option_defaults(cls).items():
        default_text = "none" if default is None else str(default)
        span = _span_text(ranges.get(option))
        options.append(Option(option, _type_text(hints[option]), default_text, span, texts.get(option, "")))
    return options


def fixed_numbers(kind: str, name: str) -> dict[str, list[Option]]:
    """Import a plug-in and return the numbers that draw its data and that no option changes, by what they draw.

    They are dataclasses in the class attribute `fixed`, documented as options are: the first line says what they draw.
    """
    numbers = {}
    for part in getattr(registry.get(kind, name), "fixed", ()):
        document = inspect.getdoc(part) or ""
        texts = _argument_texts(document)
        hints = typing.get_type_hints(type(part))
        numbers_of_part = []
        for field in fields(part):
            value = str(getattr(part, field.name))
            numbers_of_part.append(Option(field.name, _type_text(hints[field.name]), value, "", texts[field.name]))
        first_line = document.partition("\n")[0]
        numbers[first_line.removesuffix(".")] = numbers_of_part
    return numbers


def _type_text(hint: Any) -> str:
    """Return 'int', 'float or none', 'paper or release'."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(str(part) for part in parts)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if part is type(None) else _type_text(part) for part in parts)
    if not parts:
        return getattr(hint, "__name__", str(hint))
    return str(hint).replace("typing.", "")


def _span_text(span: Any) -> str:
    if span is None:
        return ""
    if span.choices:
        return "|".join(str(choice) for choice in span.choices)
    text = f"{span.low}..{span.high}"
    return f"{text} log" if span.log else text


def _argument_texts(document: str) -> dict[str, str]:
    """Return name -> text of a docstring's section "Args:"; names may share an entry: 'root, split: ...'."""
    texts = {}
    for entry in google.parse(inspect.cleandoc(document)).params:
        for name in entry.arg_name.split(","):
            texts[name.strip()] = " ".join((entry.description or "").split())
    return texts
