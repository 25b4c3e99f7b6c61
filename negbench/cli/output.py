"""Options that all commands share: --json for those that return a document, --quiet and -v."""

import functools
import inspect
import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.errors import printable

if TYPE_CHECKING:
    from negbench.campaign.driver import Round


_JSON = ContextVar("json", default=False)  # of the running command


def wants_json() -> bool:
    """Whether standard output is one JSON document, and nothing else may be printed there."""
    return _JSON.get()


class _Handler(logging.Handler):
    """Logs to the current standard error, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        colour = {logging.ERROR: typer.colors.RED, logging.WARNING: typer.colors.YELLOW}.get(record.levelno)
        lines = [printable(line) for line in self.format(record).split("\n")]
        typer.secho("\n".join(lines), err=True, fg=colour)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Send the logger `negbench` to standard error while a command runs."""
    logger = logging.getLogger("negbench")
    handler = _Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    token = _JSON.set(False)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        _JSON.reset(token)


def console() -> Any:
    """Return the console for results: as wide as the terminal, unwrapped without one, and silent under --json.

    Notes and progress go to standard error, see `negbench.display.log`.
    """
    from rich.console import Console

    default = Console(quiet=wants_json())
    return default if default.is_terminal else Console(soft_wrap=True, quiet=default.quiet)


_AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
_QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result: no notes, no progress.")]
_VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print detailed tables and the time of each stage.")
]


def with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command; `function` returns its document for --json."""
    signature = inspect.signature(function, eval_str=True)
    shared: dict[str, Any] = {"quiet": _QUIET, "verbose": _VERBOSE}
    if signature.return_annotation is not None and "as_json" not in signature.parameters:
        shared = {"as_json": _AS_JSON, **shared}

    @functools.wraps(function)
    def command(**flags: Any) -> None:
        shared_flags = {name: flags.pop(name) for name in shared}
        _JSON.set(shared_flags.get("as_json", False))
        level = logging.INFO
        if shared_flags["verbose"]:
            level = logging.DEBUG
        elif shared_flags["quiet"]:
            level = logging.ERROR
        logging.getLogger("negbench").setLevel(level)
        document = function(**flags)
        if _JSON.get() and document is not None:
            typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))

    parameters = list(signature.parameters.values())
    for name, annotation in shared.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


# takes the options and a function that prints a line; returns the first round, if there is any, and more lines
DryRun = Callable[[Any, Callable[[str], None]], "tuple[Round | None, list[str]]"]


def show_plan(dry_run: DryRun, options: Any) -> dict[str, Any]:
    """Print what `--dry-run` shows.

    Returns:
        Each cell, whether it is reused, resumed or computed anew, and the lines.
    """
    from negbench.campaign.driver import foresee
    from negbench.loop.runs import DATA

    result_console = console()

    def say(line: str) -> None:
        result_console.print(line, highlight=False, soft_wrap=True)

    lines = []
    with DATA.lenient() as missing:
        first, more = dry_run(options, say)
        if first is not None:
            lines += foresee(first)
        lines += more
    if missing:
        reasons = "; ".join(text.split("; ")[0] for text in missing.values())
        lines.insert(0, f"finished runs cannot be recognised without them: {reasons}")
    for line in lines:
        say(line)
    if first is None:
        return {"notes": lines}
    cells = []
    for cell in first.command_cells:
        cells.append({**cell.labels, "seed": cell.seed, "hash": cell.hash, "step": cell.action(first.runs)})
    return {"cells": cells, "notes": lines}


def _plain(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity, which it lacks, become null, and numpy numbers plain ones."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
