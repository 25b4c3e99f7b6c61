"""Make a typer command from an options model: one flag per field, with the field's help."""

import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from negbench.cli.output import DryRun, show_plan, with_output
from negbench.display import notes
from negbench.machine.signals import limit_hours
from negbench.settings.options import DryRunOptions, LimitOptions, Options, extra_of


@dataclass(frozen=True)
class Command:
    """One `negbench` command.

    Attributes:
        model: its options; fields declared with `cli=False` have no flag.
        examples: command lines, printed below the help.
        help: what it does, in whole sentences.
        call: takes the options.
        dry_run: what `--dry-run` shows; None: the command has no such flag.
    """

    model: type[Options]
    examples: tuple[str, ...]
    help: str
    call: Callable[..., Any]
    dry_run: DryRun | None = None

    def add(self, app: typer.Typer, name: str) -> None:
        """Add the command to an app; flags that are left out are not passed on."""
        model = self.model
        if self.dry_run is not None:
            model = type(model.__name__, (model, LimitOptions, DryRunOptions), {"__module__": __name__})
        hints = get_type_hints(model)
        parameters = [_parameter(field, model, hints[field]) for field in _fields_in_order(model)]

        def command(**flags: Any) -> Any:
            values = {field: value for field, value in flags.items() if value not in (None, [], ())}
            planning = values.pop("dry_run", False)
            hours = values.pop("max_hours", None)
            options = self.model.from_flags(values)
            if hours is not None:
                limit_hours(hours)
            notes(unused_variables(options))
            if self.dry_run and planning:
                return show_plan(self.dry_run, options)
            return self.call(options)

        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=inspect.signature(self.call, eval_str=True).return_annotation
        )
        command.__name__ = name
        cls = type(f"_{name.title()}", (_Grouped,), {"examples": self.examples})
        app.command(name, cls=cls, help=self.help)(with_output(command))


# variables of the environment that other tools read, and the option that does the same here; those of Hugging Face
# (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT) and RAY_ADDRESS are used as they are
_VARIABLES = {"tracking_uri": "MLFLOW_TRACKING_URI", "name": "MLFLOW_EXPERIMENT_NAME", "storage": "OPTUNA_STORAGE"}


def unused_variables(options: Options) -> list[str]:
    """Return a line for each variable that is set for MLflow or Optuna where its option is not given."""
    lines = []
    for field, variable in _VARIABLES.items():
        if variable in os.environ and field in type(options).model_fields and getattr(options, field) is None:
            flag = "--" + field.replace("_", "-")
            lines.append(f"{variable} is set and not used: give {flag} to use it here")
    return lines


def of(
    model: type[Options], *examples: str, help: str, dry_run: DryRun | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a function the command of these options."""

    def make_command(call: Callable[..., Any]) -> Command:
        return Command(model, examples, help, call, dry_run)

    return make_command


class Listing(TyperGroup):
    """Command group whose help lists commands in sections, each with its whole text."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # default: one section of all commands

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        for title, names in (self.sections or {"Commands": tuple(self.commands)}).items():
            rows = []
            for name in names:
                typed = name.rstrip("_")
                rows.append((typed, self.commands[typed].get_short_help_str(limit=300)))
            with formatter.section(title):
                formatter.write_dl(rows)


@dataclass(frozen=True)
class SubCommands:
    """Commands behind one name; each is named like its function."""

    help: str
    commands: tuple[Command, ...]

    def add(self, app: typer.Typer, name: str) -> None:
        """Add the commands to an app."""
        group = typer.Typer(cls=Listing, help=self.help, no_args_is_help=True, rich_markup_mode=None)
        for command in self.commands:
            command.add(group, command.call.__name__)
        app.add_typer(group, name=name)


class _Grouped(TyperCommand):
    """Command whose help has a section per group of options, and examples in unbroken lines, for copying."""

    examples: ClassVar[tuple[str, ...]] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, the command's own options first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                title = getattr(parameter, "rich_help_panel", None) or "Output"
                if parameter.param_type_name == "argument":
                    title = "Arguments"
                sections.setdefault(title, []).append(row)
        for title in sorted(sections, key=_SECTIONS.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")


_SECTIONS = ("Arguments", "Options", "Settings", "Data", "Computing", "Output")


def _fields_in_order(model: type[Options]) -> list[str]:
    """Return the fields with a flag: the model's own first, then those of its bases."""
    fields: dict[str, None] = {}
    for base in model.__mro__:
        for name in vars(base).get("__annotations__", {}):
            if name in model.model_fields and extra_of(model.model_fields[name])["cli"] is not False:
                fields[name] = None
    return list(fields)


def _parameter(name: str, model: type[Options], hint: Any) -> inspect.Parameter:
    field = model.model_fields[name]
    extra = extra_of(model.model_fields[name])
    kind = extra["cli"] or _flag_type(hint)
    required = field.is_required()
    default = field.default
    help = field.description or ""
    if not (required or isinstance(default, bool) or default in (None, (), "") or "[default" in help):
        help = f"{help} [default: {default}]"
    missing = ... if required else None
    if extra["argument"]:
        info: Any = typer.Argument(missing, help=help, metavar=extra["metavar"], show_default=False)
    else:
        words = name.replace("_", "-")
        flags = extra["flags"]
        if not flags and default is True:
            flags = (f"--{words}/--no-{words}",)
        elif not flags:
            flags = (f"--{words}",)
        info = typer.Option(missing, *flags, help=help, metavar=extra["metavar"], show_default=False)
        home = next(base for base in reversed(model.__mro__) if name in vars(base).get("__annotations__", {}))
        info.rich_help_panel = str(vars(home).get("section", "Options"))  # that of the class that declares the field
    annotation = kind if required else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation)


def _flag_type(hint: Any) -> Any:
    """Return the type of a field's flag: without None, and str for a choice of texts, which the model checks."""
    if type(None) in get_args(hint):
        hint = next(part for part in get_args(hint) if part is not type(None))
    origin = get_origin(hint)
    if origin is Literal:
        return str
    if origin in (tuple, Sequence) or getattr(origin, "__name__", "") == "Sequence":
        return types.GenericAlias(list, get_args(hint)[:1])
    return hint
