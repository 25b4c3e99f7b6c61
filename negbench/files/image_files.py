"""Image files: find them by id under any nesting and extension, check and read them; ids that hold a path."""

import os
import re
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import eq
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from negbench.errors import DataError, short_repr
from negbench.files.reader import list_files
from negbench.machine.contents import stamp
from negbench.machine.file_kinds import file_kind
from negbench.machine.files import inside_tar, open_file
from negbench.machine.received import open_picture, read_bytes
from negbench.machine.viewed import plain_path

if TYPE_CHECKING:
    from PIL.Image import Image

COMMON = (".jpg", ".jpeg", ".png", ".webp")
# what else PIL reads as one picture; of equal ids one of COMMON comes first
_LESS_COMMON = (".apng", ".avif", ".bmp", ".dib", ".gif", ".ico", ".jfif", ".jp2", ".jpe", ".pbm", ".pcx", ".pgm")
EXTENSIONS = frozenset((*COMMON, *_LESS_COMMON, ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff"))
_OTHERS = (".heic", ".heif", ".jxl", ".svg", ".psd", ".eps", ".exr", ".hdr", ".dng", ".cr2", ".nef", ".arw", ".raw")
THREADS = 4  # default number of threads that decode images
_AHEAD = 64  # images decoded before they are asked for, at most

_NO_FILE = "no file"

T = TypeVar("T")
Key = Callable[[PurePath], str]  # path below the root -> id


def is_picture(name: str | PurePath) -> bool:
    """Whether a file's name ends as that of a picture that is read, in any case: one function for all commands."""
    return PurePath(name).suffix.lower() in EXTENSIONS


def unread_format(name: str | PurePath) -> str | None:
    """Return why a picture of this name is not read; None for one that is, and for what is no picture."""
    ending = PurePath(name).suffix.lower()
    if ending not in _OTHERS:
        return None
    return f"{ending} is not read ({', '.join(COMMON)}, .gif, .bmp, .tif, .avif and others are): save it as .png"


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image id -> the files with that id, in sorted order (several only if a tree holds copies).

    Args:
        root: the folder.
        paths: files of each id.
        tree: the expected files, in a few words, for errors.
    """

    root: Path
    paths: Mapping[str, tuple[Path, ...]]
    tree: str = ""

    @classmethod
    def scan(
        cls, root: Path, *, key: Key | None = None, files: Iterable[Path] | None = None, tree: str = ""
    ) -> "ImageFiles":
        """Index every picture (`is_picture`) below a folder; links to folders are followed.

        Args:
            root: folder to walk.
            key: path relative to `root` -> image id; by default the file name without its extension.
            files: result of `list_files(root)`, to save a second walk.
            tree: for errors, as `ImageFiles.tree`.
        """
        by_id: dict[str, tuple[Path, ...]] = {}
        less_common: dict[str, tuple[Path, ...]] = {}
        for path in list_files(root) if files is None else files:
            if is_picture(path):
                name = path.stem if key is None else key(path.relative_to(root))
                kind = by_id if path.suffix.lower() in COMMON else less_common
                kind[name] = (*kind.get(name, ()), path)
        return cls(root, less_common | by_id, tree)

    def path(self, image: str) -> Path:
        """File of an image. Raises DataError where there is none."""
        if image not in self.paths:
            raise DataError(f"image '{image}': no file of that name below {self.root}")
        return self.paths[image][0]

    def found(self, images: Iterable[str]) -> list[Path]:
        """Return the files of those of the images that have one, in their order."""
        return [self.paths[image][0] for image in images if image in self.paths]

    def missing(self, images: Iterable[str]) -> dict[str, str]:
        """Return image id -> problem ("no file" or "empty file"), for the ids that cannot be used, in their order.

        Raises:
            DataError: two files with the id of one of the images differ in content.
        """
        bad = {}
        for image in images:
            if image not in self.paths:
                bad[image] = _NO_FILE
                continue
            first, *copies = self.paths[image]
            for copy in copies:
                if stamp(first)[:1] != stamp(copy)[:1] or read_bytes(first) != read_bytes(copy):
                    raise DataError(f"image '{image}' is ambiguous: {first} and {copy} differ; keep one")
            if stamp(first)[:1] == (0,):
                bad[image] = "empty file"
        return bad

    def undecodable(self, images: Iterable[str]) -> dict[str, str]:
        """Return image id -> why its file cannot be decoded, for those of the images whose file cannot, in order."""
        paths = {image: self.paths[image][0] for image in images}
        with ThreadPoolExecutor(THREADS) as pool:
            faults = pool.map(_fault_now, paths.values())
            return {image: fault for image, fault in zip(paths, faults, strict=True) if fault}

    def require(
        self, images: Iterable[str], *, allow_missing: bool, naming: Callable[[Collection[str]], str] | None = None
    ) -> tuple[str, ...]:
        """Return the ids without a usable file, if `allow_missing`; otherwise they are an error.

        Files are decoded only if some are missing, or may be. `naming` says for the error what needs the bad ones.

        Raises:
            DataError: some are missing and `allow_missing` is False, or two files of one id differ.
        """
        images = list(images)
        bad = self.missing(images)
        if bad or allow_missing:
            bad |= self.undecodable(image for image in images if image not in bad)
        if bad and not allow_missing:
            first = ", ".join(f"{image} ({why})" for image, why in list(bad.items())[:5])
            more = ", ..." if len(bad) > 5 else ""
            if self.tree:
                more += f"; expected: {self.tree}"
            more += self._near(bad)
            if naming is not None:
                more += naming(bad)
            raise DataError(
                f"{len(bad):,} of {len(images):,} images are missing below {self.root}: {first}{more}; "
                "put them there, or leave them out with --allow-missing "
                "(allow_missing=True): the result is then partial"
            )
        return tuple(bad)

    def _near(self, bad: Mapping[str, str]) -> str:
        """Show for an error the file that one of the missing images may mean, and why it is not read as it is."""
        lacking = [image for image, why in bad.items() if why == _NO_FILE]
        if not lacking:
            return ""
        if not self.paths:
            hint = self._by_path(lacking)
            if hint:
                return hint
        by_form: dict[str, list[Path]] = {}
        for path in _all_names(self.root):
            by_form.setdefault(_form(path.stem), []).append(path)
        for image in lacking:
            *folders, name = _parts(image)
            candidates = by_form.get(_form(name)) or by_form.get(_form(PurePath(name).stem))
            if candidates:
                most = max(_count_shared_folders(path, folders) for path in candidates)
                nearest = [path for path in candidates if _count_shared_folders(path, folders) == most]
                return f"; {self._difference(image, nearest)}"
        return ""

    def _by_path(self, lacking: Sequence[str]) -> str:
        """Where no id at all names a file: show one that is called like one of these images, with its folders."""
        files_by_stem = ImageFiles.scan(self.root).paths
        for image in lacking:
            *folders, name = _parts(image)
            files = files_by_stem.get(name)
            if not files:
                continue
            nearest = max(files, key=lambda path: _count_shared_folders(path, folders)).relative_to(self.root)
            text = f"; there is {short_repr(nearest.as_posix())}: name images by such paths"
            *file_folders, _ = nearest.parts
            above = file_folders[: len(file_folders) - len(folders)]
            if above and file_folders == [*above, *folders]:  # only the first folders are left out
                text += f", or move what {short_repr('/'.join(above))} holds into {self.root}"
            return text
        return ""

    def _difference(self, image: str, near: Sequence[Path]) -> str:
        """Say what the files that are called nearly like an image are, and why none of them is taken."""
        path = near[0]
        name = short_repr(path.relative_to(self.root).as_posix())
        if path.is_symlink() and not path.exists():
            return f"{name} is a link to {short_repr(path.readlink())}, which is not there: fetch what it leads to"
        why = unread_format(path)
        if why is not None:
            return f"there is {name}, but {why}"
        if len(near) > 1:
            names = ", ".join(short_repr(file.relative_to(self.root).as_posix()) for file in near[:3])
            return f"there are {names}, spelled alike: name {short_repr(image)} as its file is"
        if not is_picture(path):
            return f"there is {name}, whose ending is none of a picture"
        return f"there is {name}, in another folder or of another spelling"

    def open(self, image: str) -> "Image":
        """Open an image, decoded, in the mode of its file. Raises DataError naming a file that cannot be read."""
        return read_image(self.path(image))


class NothingLeftError(DataError):
    """No query of a split is left without the missing images; `files` are those that were found."""

    def __init__(self, what: str, files: ImageFiles | None) -> None:
        super().__init__(what)
        self.files = files


def read_image(path: Path) -> "Image":
    """Read and decode an image in the mode of its file. Raises DataError naming a file that cannot be decoded."""
    try:
        with open_file(path) as file, open_picture(path, file) as image:
            image.load()
            return image
    except DataError:
        raise
    except Exception as error:  # a damaged file can make PIL raise anything
        plain = plain_path(path) or path
        raise DataError(
            f"{plain} is not a readable image: {_why(plain, error)}, or leave it out with --allow-missing; "
            "`negbench data verify` lists all such files"
        ) from error


def _why(path: Path, error: Exception) -> str:
    """Return why PIL cannot read a file, and what to do."""
    if isinstance(error, DataError):
        return str(error).partition(" is not read: ")[2] or str(error)
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if "cannot identify image file" in reason:
        kind = None if inside_tar(path) else file_kind(path)
        if kind is None:
            return "it is in no format that Pillow reads: fetch it again, or save it as .png"
        if kind.endswith(" picture"):  # of a kind that Pillow reads
            return f"it begins as {kind} but is broken: fetch it again"
        return f"it is {kind}"
    return f"{reason}: fetch it again"


def _fault_now(path: Path) -> str:
    """Return `_fault` of a file as it is now."""
    return _fault(path, stamp(path))


@cache
def _fault(path: Path, then: tuple[int, ...]) -> str:
    """Return why a file cannot be decoded; "" if it can: PNG by its checksums, JPEG at an eighth of its size."""
    try:
        with warnings.catch_warnings(action="ignore"), open_file(path) as file, open_picture(path, file) as image:
            if image.format == "PNG":
                image.verify()
            else:
                image.draft(image.mode, (1, 1))
                image.load()
    except Exception as error:  # as in `read_image`
        return _why(plain_path(path) or path, error)
    return ""


def decode_ahead(
    paths: Iterable[Path],
    use: "Callable[[Image], T]",
    *,
    threads: int = THREADS,
    ahead: int = 2**29,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[T | DataError]:
    """Decode image files in threads, ahead of the consumer by at most 64 images.

    Args:
        paths: image files.
        use: called with each decoded image, in one of the threads.
        threads: >= 1.
        ahead: bytes of pixels, as RGB, that may be decoded ahead; an image that has more alone is decoded alone.
        pool: the threads, instead of `threads` of its own; it goes on afterwards.

    Yields:
        What `use` returned for each file, in their order; for one that cannot be decoded the DataError that names it.
    """

    def read(path: Path) -> T | DataError:
        try:
            image = read_image(path)
        except DataError as error:
            return error
        return use(image)

    executor = pool or ThreadPoolExecutor(threads, thread_name_prefix="negbench-decode")
    waiting: deque[Future[T | DataError]] = deque()
    sizes: deque[int] = deque()  # bytes of each image that waits
    try:
        for path in paths:
            size = pixel_bytes(path)
            while waiting and (len(waiting) > _AHEAD or sum(sizes) + size > ahead):
                sizes.popleft()
                yield waiting.popleft().result()
            waiting.append(executor.submit(read, path))
            sizes.append(size)
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:  # a caller who stops early waits only for images being decoded
            future.cancel()
        if pool is None:
            executor.shutdown()


def pixel_bytes(path: Path) -> int:
    """Return the bytes of an image's pixels, as its header gives them; 0 for a file that is no image."""
    try:
        with open_file(path) as file, open_picture(path, file) as image:
            return 3 * image.width * image.height
    except Exception:  # as in `read_image`, which reports it
        return 0


def readable(outcomes: Iterable[T | DataError]) -> Iterator[T]:
    """Yield what `decode_ahead` yields, but raise its first DataError."""
    for outcome in outcomes:
        if isinstance(outcome, DataError):
            raise outcome
        yield outcome


# --- ids ---------------------------------------------------------------------------------------------------------


class Spellings:
    """Finds ids by other spellings.

    These are: with folders before, an ending behind, a whole number by a padded one; and in another normal form of
    Unicode, in another case, or with percent signs for characters, where one id alone fits.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = frozenset(ids)
        self._by_stem: dict[str, list[str]] = {}
        self._by_number: dict[str, list[str]] = {}
        self._by_form: dict[str, list[str]] = {}
        for name in self._ids:
            stem = _parts(name)[-1]
            self._by_stem.setdefault(stem, []).append(name)
            self._by_form.setdefault(_form(stem), []).append(name)
            number = re.search(r"(?:^0*|\D0+)(\d+?)$", stem)
            if number:
                self._by_number.setdefault(number[1], []).append(name)

    def find(self, name: str) -> str | None:
        """Return the id that is meant; None if none fits, or several do."""
        if name in self._ids:
            return name
        *folders, stem = _parts(name)
        if any(_parts(folder)[-1] in self._by_stem for folder in folders):  # a list with slashes between
            return None
        same_name = self._by_stem.get(stem) or self._by_number.get(stem.lstrip("0") or "0", [])
        exact = [image for image in same_name if _fit(folders, _folders(image))]
        if exact:
            return exact[0] if len(exact) == 1 else None
        forms = [_form(folder) for folder in folders]
        alike = []
        for image in self._by_form.get(_form(stem), []):
            if _fit(forms, [_form(folder) for folder in _folders(image)]):
                alike.append(image)
        return alike[0] if len(alike) == 1 else None


def one_spelling(names: Sequence[str], ids: Iterable[str]) -> list[str]:
    """Return names as `ids` spells them, where one fits and no other name would be the same."""
    spellings = Spellings(ids)
    matches = [spellings.find(name) or name for name in names]
    counts = Counter(matches)
    return [name if counts[match] > 1 else match for name, match in zip(names, matches, strict=True)]


def check_names(names: Iterable[str], sources: Iterable[object]) -> None:
    """Raise DataError where two names are of one source: a file, or a row of embeddings."""
    first: dict[object, str] = {}
    for name, source in zip(names, sources, strict=True):
        if first.setdefault(source, name) != name:
            raise DataError(
                f"{short_repr(first[source])} and {short_repr(name)} are one image, {source}: write one name for it"
            )


@lru_cache(maxsize=2**16)
def _form(name: str) -> str:
    """Return what all spellings of a name have in common: composed, without percent signs, in one case."""
    return unicodedata.normalize("NFC", unquote(name)).casefold()


def _folders(name: str) -> list[str]:
    """Return the folders of an id."""
    *folders, _ = _parts(name)
    return folders


def _fit(folders: Sequence[str], others: Sequence[str]) -> bool:
    """Whether the folders that both names have, from the last one up, are the same."""
    return all(map(eq, reversed(folders), reversed(others)))


def _count_shared_folders(path: Path, folders: Sequence[str]) -> int:
    """Return how many folders above a file are as an id names them, counted from the file."""
    return sum(map(eq, path.parts[-2::-1], reversed(folders)))


def _all_names(root: Path) -> list[Path]:
    """Return everything below a folder that is no folder, links to nothing included, sorted."""
    paths = []
    for folder, _, names in os.walk(root):
        paths += [Path(folder, name) for name in names]
    return sorted(paths)


def _parts(name: str) -> list[str]:
    """Return the folders of an id, and its stem."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    *folders, last = parts or [name]
    stem, dot, ending = last.rpartition(".")
    if stem and dot + ending.lower() in EXTENSIONS:
        last = stem
    return [*folders, last]


# --- ids that hold a path ----------------------------------------------------------------------------------------


def relative_path(value: str, where: str) -> PurePosixPath:
    """Return `value` as a path below the images' folder, in its shortest form.

    Raises:
        DataError: an empty path, an absolute one, one with '..', a backslash or a character that cannot be printed.
    """
    path = PurePosixPath(value)
    good = bool(value) and value.isprintable() and "\\" not in value and bool(path.parts)
    if not good or path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{where}: {short_repr(value)} is not a path below the image folder: expected a relative path without '..'"
        )
    return path


def path_below(value: str, where: str, folders: Sequence[Path]) -> PurePosixPath:
    """Return a path below one of the images' folders, relative to it: as given, in full, or from the last one upwards.

    Raises DataError for a path that leads elsewhere.
    """
    if value.startswith("/") or ".." in value.split("/"):
        full = Path(os.path.normpath(folders[-1].absolute() / value))
        starts: dict[Path, None] = {}
        for folder in folders:
            starts |= {folder.absolute(): None, folder.resolve(): None}
        for path in (full, full.parent.resolve() / full.name):
            for start in starts:
                if path.is_relative_to(start) and path != start:
                    return relative_path(path.relative_to(start).as_posix(), where)
        names = " or ".join(map(str, dict.fromkeys(folders)))
        raise DataError(f"{where}: {short_repr(value)} is not a path below the image folder {names}")
    return relative_path(value, where)


def without_extension(path: PurePath) -> str:
    """Return a path without the extension of an image file; any other ending belongs to the name.

    Example:
        >>> without_extension(PurePosixPath("women/dresses/51_0.jpeg")), without_extension(PurePosixPath("a/v1.2"))
        ('women/dresses/51_0', 'a/v1.2')
    """
    if is_picture(path):
        path = path.with_suffix("")
    return path.as_posix()
