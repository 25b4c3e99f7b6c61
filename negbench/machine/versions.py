"""Versions of what is installed."""

import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

MOVES_SCORES = False  # only records

_PACKAGES = ("negbench", "torch", "transformers", "open_clip_torch", "mlflow", "optuna", "numpy")


@cache
def versions() -> dict[str, str]:
    """Return versions of Python and of packages that affect results; cached, as this is slower than a small epoch."""
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # part of the extra [full]
            installed[name] = version(name)
    return installed
