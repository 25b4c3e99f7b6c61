"""Icon packages (one JSON file of SVG bodies each): known versions, their checks, and their pictures, drawn once.

A package is in a folder named after its artist: `icons.json` (name -> SVG), `chars.json` (code points -> name) and
`info.json` (author and licence). Its pictures are drawn into `drawn-HASH` beside them, HASH being that of `icons.json`,
with an index `pictures.json` of names and the SHA-256 of their pixels and of their files, which are checked when read.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from negbench.datasets._read import Reader
from negbench.errors import DataError, NegbenchError, missing_package
from negbench.machine.contents import content_hashes
from negbench.machine.files import cache_dir, locked, sha256_of, write_json

FILES = ("icons.json", "chars.json", "info.json")
SIDE = 128  # pixels
SPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

Progress = Callable[[int, int], None]  # pictures drawn, pictures in all


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


PACKAGES = {
    "noto": Package(
        "@iconify-json/noto", "1.2.9", "Google Inc", "Apache-2.0", "Noto",
        "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad",
        "9eac6ef4e7ec122b6f0e7ac281d61008afdbc720d0ce861e398b939daaa347c6",
        "91485653ca890bff640f2a6c2d7be62d625a90527b6b4d816b41593675bf5c8f",
    ),
    "twemoji": Package(
        "@iconify-json/twemoji", "1.2.5", "Twitter", "CC-BY-4.0", "Twemoji",
        "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7",
        "5d5d820790565b764f2728675d487c9ee4c1fc83916d8567d5aca8ba7527c242",
        "8e6a83d5a3ac185b2446154b9c4ee07c983bd4a5b2a21aa4b9ff04af9831eefe",
    ),
    "openmoji": Package(
        "@iconify-json/openmoji", "1.2.29", "OpenMoji", "CC-BY-SA-4.0", "OpenMoji",
        "03181e2c156cab35cf4a62f1f7886bd971d59212e75ac3f189d5a4cae3930fc5",
        "7075331faab544067dbff4236471dd378bb5410aa05799a8a343c9ebf5c5984c",
        "8583c4c65723c22c043a50a27038c43d3d12de336ad409872b23356f4c3e3825",
    ),
    "fluent": Package(
        "@iconify-json/fluent-emoji-flat", "1.2.6", "Microsoft Corporation", "MIT", "Fluent",
        "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175",
        "f5f4cf457c0db2ad5a2e42e033e02e0c87d10e43d0164cfffb3bb84914970a63",
        "7f084c5a95807edb4702a7c9f6f18e74d59026d1c34ceb8cae85df0b9a9f0a10",
    ),
}  # fmt: skip


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

    def pictures(self, wanted: Mapping[str, str], progress: Progress | None = None) -> dict[str, Picture]:
        """Return code points -> picture, drawing missing ones; of several processes one draws, others wait.

        Args:
            wanted: those of `names` to draw.
            progress: called as pictures are drawn; never if all exist.

        Raises:
            DataError: a folder that cannot be written, or drawings that were changed since.
            NegbenchError: resvg-py is not installed.
        """
        folder = self.folder / f"drawn-{self._drawing(wanted)}"
        index = folder / "pictures.json"
        if not index.exists():
            try:
                with locked(folder.with_name(".drawing.lock")):
                    if not index.exists():
                        self._draw(folder, wanted, progress)
            except OSError as error:
                raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
        try:
            known = json.loads(index.read_text(encoding="utf-8"))
            pictures = {c: Picture(name, folder / f"{name}.png", *map(str, known[name])) for c, name in wanted.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"cannot read {index} ({type(error).__name__}: {error}); fetch the data set into another folder"
            ) from error
        drawn = {picture.name: picture for picture in pictures.values() if picture.path.exists()}
        present = {name: picture for name, picture in drawn.items() if picture.path.stat().st_size}  # else: missing
        found = content_hashes({name: picture.path for name, picture in present.items()}, cache_dir())
        for name, picture in present.items():
            if found[name].hex() != picture.sha256:
                raise DataError(f"{picture.path} is not as it was drawn: move {folder} elsewhere to draw it again")
        return pictures

    def _drawing(self, wanted: Mapping[str, str]) -> str:
        """Hash the pictures to draw and their source."""
        what = json.dumps(["checked", PACKAGES[self.artist].icons, SIDE, sorted(wanted.values())])
        return hashlib.sha256(what.encode()).hexdigest()[:12]

    def _draw(self, folder: Path, wanted: Mapping[str, str], progress: Progress | None) -> None:
        """Draw into a temporary folder, then rename it: `folder` exists complete or not at all."""
        try:
            import resvg_py
        except ImportError as error:
            raise NegbenchError(missing_package(error) or str(error)) from error
        beside = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(beside, ignore_errors=True)  # left by a dead process: a live one would hold the lock
        beside.mkdir()
        hashes: dict[str, tuple[str, str]] = {}
        names = sorted(set(wanted.values()))
        data = json.loads((self.folder / "icons.json").read_bytes())
        for name in names:
            icon = data["icons"][name]
            width, height = (icon.get(side, data.get(side, 16)) for side in ("width", "height"))
            svg = f'<svg {SPACES} viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
            drawn = resvg_py.svg_to_bytes(
                svg_string=svg, width=SIDE, height=SIDE, background="#ffffff", skip_system_fonts=True
            )
            (beside / f"{name}.png").write_bytes(drawn)
            hashes[name] = _pixels(drawn), hashlib.sha256(drawn).hexdigest()
            if progress is not None:
                progress(len(hashes), len(names))
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
    return Icons(artist, folder, json.loads((folder / "chars.json").read_bytes()))


def _pixels(png: bytes) -> str:
    """SHA-256 of the pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
