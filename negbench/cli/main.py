"""`negbench`: the commands, and how errors end: one line, exit code 2."""

from __future__ import annotations

import importlib
import sys

import typer

from negbench.errors import NegbenchError

app = typer.Typer(
    name="negbench",
    help="Which negatives should a composed-image-retrieval model be trained against? Compare strategies fairly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# one file each; every file has `register(app)`
_COMMANDS = ("run", "compare", "study", "audit", "report", "evaluate", "encode", "list_", "data", "ui", "export")

for _name in _COMMANDS:
    importlib.import_module(f"negbench.cli.{_name}").register(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 0, 2 (a user's mistake), 130 (interrupted) or 1 (a fault of ours)."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The command line as a function: exit code."""
    from typer.exceptions import Abort, Exit, TyperException

    try:
        code = app(args=arguments, standalone_mode=False)
    except NegbenchError as error:
        return _fail(str(error))
    except TyperException as error:
        return _fail(error.format_message())
    except Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, Abort):
        how = "compare and study go on by the same command, a run by --resume"
        typer.echo(f"negbench: interrupted; what was finished is kept: {how}", err=True)
        return 130
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    typer.echo(f"negbench: error: {' '.join(message.split())}", err=True)
    return 2
