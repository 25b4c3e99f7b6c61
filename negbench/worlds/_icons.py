"""Icon packages (one JSON file of SVG bodies each): known versions, their checks, and their pictures, drawn once.

A package is in a folder named after its artist: `icons.json` (name -> SVG), `chars.json` (code points -> name) and
`info.json` (author and licence). Its pictures are drawn into `drawn-HASH` beside them, HASH being that of `icons.json`,
with an index `pictures.json` of names and the SHA-256 of their pixels and of their files, which are checked when read.
"""

import hashlib
import io
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from negbench.errors import DataError, NegbenchError, missing_package
from negbench.files.reader import Reader
from negbench.machine.contents import content_hashes
from negbench.machine.files import cache_dir, lock_file, sha256_of, write_json
from negbench.machine.received import read_json_text

READS = ("_icons.toml",)
FILES = ("icons.json", "chars.json", "info.json")
SIDE = 128  # pixels
SPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

Progress = Callable[[int, int], None]  # pictures drawn, pictures in all


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Package:
    """The known version of one artist's icons.

    Args:
        name: name of the npm package.
        version: the version that our counts are for.
        author: author to credit.
        licence: of the drawings.
        shown: the artist's name in texts.
        tarball: SHA-256 of npm's tarball.
        icons, chars: SHA-256 of the files in it.
    """

    name: str
    version: str
    author: str
    licence: str
    shown: str
    tarball: str
    icons: str
    chars: str

    def flaw(self, folder: Path) -> str:
        """Return what is wrong with a package's folder and how to fix it; empty if its files are the known ones."""
        for file, digest in (("icons.json", self.icons), ("chars.json", self.chars), ("info.json", "")):
            path = folder / file
            if not path.is_file() or (digest and sha256_of(path) != digest):
                return (
                    f"{path} {'has an unexpected SHA-256' if path.is_file() else 'is missing'}: fetch it with "
                    f"`negbench data fetch emoji`, or put {', '.join(FILES)} of the npm package "
                    f"{self.name}@{self.version} there"
                )
        return ""


_KNOWN = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
PACKAGES = {artist: Package(**values) for artist, values in _KNOWN.items()}


@dataclass(frozen=True)
class Picture:
    """One drawing of an artist: the icon's name, the file, and the SHA-256 of its pixels and of the file as drawn."""

    name: str
    path: Path
    pixels: str
    sha256: str


@dataclass(frozen=True)
class Icons:
    """A package on disk, opened by `icons`.

    Args:
        artist: key of `PACKAGES`.
        folder: its folder.
        names: code points -> name of the icon.
    """

    artist: str
    folder: Path
    names: Mapping[str, str]

    def pictures(self, names: Mapping[str, str], progress: Progress = no_progress) -> dict[str, Picture]:
        """Return code points -> picture, drawing missing ones; of several processes one draws, others wait.

        Args:
            names: which of the package's `names` to draw.
            progress: called as pictures are drawn; never if all exist.

        Raises:
            DataError: a folder that cannot be written, or drawings that were changed since.
            NegbenchError: resvg-py is not installed.
        """
        what = json.dumps(["checked", PACKAGES[self.artist].icons, SIDE, sorted(names.values())])
        folder = self.folder / f"drawn-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
        index = folder / "pictures.json"
        if not index.exists():
            try:
                with lock_file(folder.with_name(".drawing.lock")):
                    if not index.exists():
                        self._draw(folder, names, progress)
            except OSError as error:
                raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
        pictures = {}
        try:
            hashes = json.loads(read_json_text(index))
            for codes, name in names.items():
                pixels, file = hashes[name]
                pictures[codes] = Picture(name, folder / f"{name}.png", str(pixels), str(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"cannot read {index} ({type(error).__name__}: {error}); fetch the data set into another folder"
            ) from error
        present = {}  # an empty file counts as missing
        for picture in pictures.values():
            if picture.path.exists() and picture.path.stat().st_size:
                present[picture.name] = picture
        hashes_now = content_hashes({name: picture.path for name, picture in present.items()}, cache_dir())
        for name, picture in present.items():
            if hashes_now[name].hex() != picture.sha256:
                raise DataError(f"{picture.path} is not as it was drawn: move {folder} elsewhere to draw it again")
        return pictures

    def _draw(self, folder: Path, names: Mapping[str, str], progress: Progress) -> None:
        """Draw into a temporary folder, then rename it: `folder` exists complete or not at all."""
        try:
            import resvg_py
        except ImportError as error:
            raise NegbenchError(missing_package(error) or str(error)) from error
        beside = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(beside, ignore_errors=True)  # left by a dead process: a live one would hold the lock
        beside.mkdir()
        hashes: dict[str, tuple[str, str]] = {}
        icon_names = sorted(set(names.values()))
        data = json.loads(read_json_text(self.folder / "icons.json"))
        for name in icon_names:
            icon = data["icons"][name]
            width = icon.get("width", data.get("width", 16))
            height = icon.get("height", data.get("height", 16))
            svg = f'<svg {SPACES} viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
            png = resvg_py.svg_to_bytes(
                svg_string=svg, width=SIDE, height=SIDE, background="#ffffff", skip_system_fonts=True
            )
            (beside / f"{name}.png").write_bytes(png)
            hashes[name] = (_pixels_hash(png), hashlib.sha256(png).hexdigest())
            progress(len(hashes), len(icon_names))
        write_json(beside / "pictures.json", hashes)
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)


def icons(reader: Reader, artist: str) -> Icons:
    """Open an artist's package.

    Args:
        reader: reader of the artist folder's parent; keeps the hashes.
        artist: key of `PACKAGES`.

    Raises:
        DataError: files that are missing, or not those of the known version.
    """
    folder = reader.root / artist
    try:
        flaw = PACKAGES[artist].flaw(folder)
    except OSError as error:
        flaw = f"{error.filename} cannot be read: {error.strerror}"
    if flaw:
        raise DataError(flaw)
    for name in FILES:
        reader.text(folder / name)  # records its hash
    return Icons(artist, folder, json.loads(read_json_text(folder / "chars.json")))


def _pixels_hash(png: bytes) -> str:
    """Return the SHA-256 of the pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
