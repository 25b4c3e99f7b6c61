"""Image names that hold a path: checked to stay below the folder of the images."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath

from negbench.datasets._read import quoted
from negbench.datasets.image_files import EXTENSIONS
from negbench.errors import DataError


def relative_path(value: str, where: str) -> PurePosixPath:
    """`value` as a path below the images' folder, in its shortest form.

    Raises:
        DataError: an empty path, an absolute one, one with '..', a backslash or a character that cannot be printed.
    """
    path = PurePosixPath(value)
    good = bool(value) and value.isprintable() and "\\" not in value and bool(path.parts)
    if not good or path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{where}: {quoted(value)} is no path below the images' folder: want a relative one, without '..'"
        )
    return path


def without_extension(path: PurePath) -> str:
    """Path without the extension of an image file; any other ending belongs to the name.

    Example:
        >>> without_extension(PurePosixPath("women/dresses/51_0.jpeg")), without_extension(PurePosixPath("a/v1.2"))
        ('women/dresses/51_0', 'a/v1.2')
    """
    return (path.with_suffix("") if path.suffix.lower() in EXTENSIONS else path).as_posix()
