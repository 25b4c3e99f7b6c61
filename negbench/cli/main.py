"""`negbench`: run the commands; errors end in one line and exit code 2."""

import errno
import gc
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

from negbench import __version__
from negbench.cli import command, output
from negbench.errors import NegbenchError, ProblemsError, missing_package, out_of_memory, printable
from negbench.machine.free_memory import check_addresses
from negbench.machine.signals import Stopped, stop_on_signals
from negbench.plugins.registry import blame

# group in the help -> its commands: one file each, which has a `Command` or `SubCommands` of its name
_GROUPS = {
    "Start": ("init", "embed", "data", "doctor"),
    "Compare": ("run", "compare", "study", "claims"),
    "Negatives": ("audit", "mine"),
    "Inspect": ("report", "ui", "list_", "evaluate"),
}


app = typer.Typer(
    name="negbench",
    cls=type("_Root", (command.Listing,), {"sections": _GROUPS}),
    help="Which negatives should a composed-image-retrieval model be trained against? Compare strategies fairly.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"negbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the command."""


for _names in _GROUPS.values():
    for _name in _names:
        getattr(importlib.import_module(f"negbench.cli.{_name}"), _name).add(app, _name.rstrip("_"))


# Thresholds of the garbage collector. Imports leave a million objects that stay; at Python's default of 700 the
# collector walks through them again and again, which takes a tenth of a report's time.
_COLLECTED = (50_000, 10, 50)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 0, 2 (a user's mistake), 1 (a bug of ours) or 128 plus a signal's number."""
    gc.set_threshold(*_COLLECTED)
    os.environ.setdefault("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")  # a run or recipe from somebody else may name weights
    stop_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # a pipe whose other end is gone
                stream.reconfigure(errors="replace")  # a C locale prints "?" for what it lacks
    code = run(arguments)
    if "triton" not in sys.modules:  # triton would list all objects that it still holds
        gc.freeze()  # skips the last collections, which would walk through all imports for half a second
    sys.exit(code)


_WITHOUT_TORCH = {"list", "report", "ui", "--help", "-h", "--version"}


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from typer.exceptions import Abort, Exit, TyperException

    try:
        if not {*(sys.argv[1:] if arguments is None else arguments)[:1]} <= _WITHOUT_TORCH:
            check_addresses()
        with output.log_to_stderr():
            code = app(args=arguments, prog_name="negbench", standalone_mode=False)
    except NegbenchError as error:
        document = error.document if isinstance(error, ProblemsError) else None
        return _fail(str(error), arguments, error.code, document)
    except TyperException as error:
        message = error.format_message()
        context = getattr(error, "ctx", None)
        if context is not None and message == context.get_help():  # no command was named
            typer.echo(message, err=True)
            return 2
        return _fail(message, arguments)
    except Exit as error:
        return error.exit_code
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        return _fail(f"{_path_of(error)}: {error.strerror}", arguments)
    except Stopped as error:
        return _fail(f"stopped by {error}; finished work is kept: rerun the command to resume", arguments, error.code)
    except (Exception, SystemExit) as error:
        cause: BaseException = error
        if isinstance(error, Abort) and error.__cause__ is not None:  # typer's word for an EOFError
            cause = error.__cause__
        fix = None
        if isinstance(cause, ImportError):
            fix = missing_package(cause)
        fix = fix or blame(cause) or out_of_memory(cause)
        if fix is None:
            raise
        return _fail(fix, arguments)
    return code if isinstance(code, int) else 0


# a user can fix a folder or disk that cannot be read or written, wherever it occurs
_OF_THE_MACHINE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT, errno.EIO),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR),  # for a path from the user, wherever it is looked up
)


_LONGEST = 900  # characters of an error


def _fail(message: str, arguments: list[str] | None, code: int = 2, document: Mapping[str, Any] | None = None) -> int:
    """Print an error on one line, and with --json also in the document; return the exit code."""
    line = " ".join(printable(message).split())
    if len(line) > _LONGEST:  # it quotes a long value
        line = f"{line[: 2 * _LONGEST // 3]} ... {line[-_LONGEST // 3 :]}"
    if "--json" in (sys.argv[1:] if arguments is None else arguments):
        with suppress(OSError):  # standard output may be what failed
            typer.echo(json.dumps({**(document or {}), "error": line, "exit_code": code}, indent=2))
    word = "error: " if code == 2 else ""
    typer.echo(f"negbench: {word}{line}", err=True)
    return code


def _path_of(error: OSError) -> str:
    """Return the file that an error of the machine is about: standard output, if that takes no line."""
    if error.filename is None:
        try:
            print(flush=True)
        except OSError:
            return "standard output"
    return str(error.filename or "a file")
