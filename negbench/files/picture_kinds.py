"""What is special about pictures: turned by EXIF, transparent, animated, of 16 bits, in CMYK. Counted, to be said."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from negbench.errors import NegbenchError
from negbench.machine.contents import SETTLED, read_entries, stamp
from negbench.machine.files import atomic_write, cache_dir, lock_file, open_file, seal
from negbench.machine.received import open_picture
from negbench.machine.viewed import is_transparent, plain_path, shown_path

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112  # tag of EXIF


@dataclass(frozen=True)
class _Words:
    """What is said of pictures of a kind.

    Args:
        is_read: how they are read.
        apply: how to have them read otherwise, after the option; "" if nothing does that.
        applied: how they are read then.
    """

    is_read: str
    apply: str = ""
    applied: str = ""


_WORDS = {
    "turned": _Words("are turned by EXIF orientation, which is not applied", "turns them", "are turned as EXIF says"),
    "transparent": _Words(
        "have transparent parts, whose hidden colours are read",
        "puts them on white",
        "have transparent parts, put on white",
    ),
    "animated": _Words("are animated: their first frame is read"),
    "deep": _Words("have 16 bits or more for a colour: their upper 8 are read"),
    "cmyk": _Words("are in CMYK: they are converted to RGB without their colour profile"),
}


def picture_remarks(
    files: Iterable[Path], *, as_shown: bool | None = None, option: str = "--set dataset.as_shown=true"
) -> list[str]:
    """Return a line for each kind of special pictures, with their number.

    Args:
        files: of the pictures; one named twice, or as viewers show it, counts once, as it is stored.
        as_shown: whether orientation and transparency are applied; None if there is no option that applies them.
        option: what the user types to apply them.
    """
    kinds = picture_kinds(dict.fromkeys(plain_path(path) or path for path in files))
    counts = Counter(chain.from_iterable(kinds.values()))
    lines = []
    for kind, words in _WORDS.items():
        if not counts[kind]:
            continue
        text = words.is_read
        if as_shown and words.applied:
            text = words.applied
        elif as_shown is not None and words.apply:
            text = f"{words.is_read}: {option} {words.apply}"
        lines.append(f"{counts[kind]:,} of {len(kinds):,} images {text}")
    return lines


def picture_kinds(files: Iterable[Path]) -> dict[Path, tuple[str, ...]]:
    """Return file -> the kinds of special pictures that it is; () for a plain one, or one that cannot be read.

    Only headers are read, and the transparency of pictures that may have some; files that have not changed since are
    not read again.
    """
    files = list(files)
    memory = cache_dir() / "features" / "pictures.json"
    entries = read_entries(memory)  # name of a file -> its stamp, and its kinds
    kinds_of: dict[Path, tuple[str, ...]] = {}
    stamps = {}
    unread = []
    for path in files:
        stamps[path] = list(stamp(path))
        then, kinds = entries.get(str(path.absolute()), ([], []))
        if then == stamps[path]:
            kinds_of[path] = tuple(kinds)
        else:
            unread.append(path)
    with ThreadPoolExecutor(8) as pool:
        kinds_of |= zip(unread, pool.map(_kinds, unread), strict=True)
    now = time.time_ns()
    fresh = {}
    for path in unread:
        if stamps[path] and now - max(stamps[path][1:3]) > SETTLED:
            fresh[str(path.absolute())] = [stamps[path], list(kinds_of[path])]
    if fresh:
        with suppress(NegbenchError):  # a cache that cannot be written: the files are read again
            seal(memory.parent)
            with lock_file(memory.with_suffix(".lock")), atomic_write(memory) as file:
                file.write(json.dumps(read_entries(memory) | fresh))
    return {path: kinds_of[path] for path in files}


def _kinds(path: Path) -> tuple[str, ...]:
    """Return the kinds of special pictures that a file is; () for one that cannot be read."""
    try:
        with open_file(path) as file, open_picture(path, file) as image:
            holds = {
                "turned": _is_turned(image),
                "transparent": is_transparent(image),
                "animated": bool(getattr(image, "is_animated", False)),
                "deep": _is_deep(image),
                "cmyk": image.mode in ("CMYK", "YCCK"),
            }
    except Exception:  # whatever a damaged file makes PIL raise: reading it reports that
        return ()
    return tuple(kind for kind, is_so in holds.items() if is_so)


def _is_turned(image: "Image") -> bool:
    if image.format == "PNG" and "exif" not in image.info:  # PIL would decode it to look behind the pixels
        return False
    return image.getexif().get(_ORIENTATION, 1) in range(2, 9)


def _is_deep(image: "Image") -> bool:
    """Whether a picture has 16 bits or more for a colour; of several colours PIL reads 8 by itself."""
    if image.mode.startswith("I") or image.mode == "F":
        return True
    parts = chain.from_iterable(getattr(image, "tile", ()))
    return any(";16" in str(part) for part in parts)


# --- as viewers show them ----------------------------------------------------------------------------------------


def as_shown(paths: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
    """Return the files of pictures, those that viewers turn or put on white by paths that read them so.

    See `machine.viewed`; the contents of such a path, and so a run's identity, are those of the changed picture.
    """
    kinds = picture_kinds(chain.from_iterable(paths.values()))
    special = {path for path, names in kinds.items() if "turned" in names or "transparent" in names}
    paths_shown = {}
    for name, files in paths.items():
        paths_shown[name] = tuple(shown_path(path) if path in special else path for path in files)
    return paths_shown
