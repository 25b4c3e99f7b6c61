"""What goes wrong for a user: one line that says what, where and the mend. Exit code 2, no traceback."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

MOVES_SCORES = False  # messages


def quoted(value: object) -> str:
    """Short one-line form of any value, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."


class NegbenchError(Exception):
    """Base of every error that a user can mend; the command line prints it as one line and exits with 2."""


class UnknownNameError(NegbenchError):
    """A name (strategy, option, configuration key, ...) that does not exist; suggests the nearest right one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        mend = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
        super().__init__(f"unknown {kind} {quoted(name)}{f' in {where}' if where else ''}: {mend}")


class OptionError(NegbenchError):
    """An option whose value is out of range or of the wrong type; quotes the value."""


def check_option(name: str, value: object, ok: bool, want: str) -> None:
    """Raise OptionError quoting `value` unless `ok` and finite; the constructors of plug-ins validate with it."""
    if not ok or (isinstance(value, float) and not math.isfinite(value)):
        raise OptionError(f"{name} must be {want}, got {quoted(value)}")


class DataError(NegbenchError):
    """A data set that is not as published: a file or image missing, a key absent, a value of the wrong type."""


class WeightsError(NegbenchError):
    """Weights that are missing or do not fit; says what to fetch and where to put it, or which keys differ."""


class RunError(NegbenchError):
    """A run that cannot be found, resumed or reused."""


_FULL = ("cmaes", "matplotlib", "mlflow", "open_clip", "optuna", "sklearn", "transformers")
_EXTRAS = {**dict.fromkeys(_FULL, "full"), "ray": "ray"}  # module -> extra that brings it


def missing_package(error: ImportError) -> str | None:
    """The mend, where a module of an extra is not installed; None where something else is wrong."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}: pip install 'negbench[{_EXTRAS[name]}]'" if name in _EXTRAS else None
