"""Icon packages (one JSON file of SVG bodies each): which we know, how they are checked, and their pictures drawn once.

A package lies in a folder named after its artist: `icons.json` (name -> SVG), `chars.json` (code points -> name) and
`info.json` (author and licence). Its pictures are drawn into `drawn-HASH` beside them, HASH being that of `icons.json`,
with an index `pictures.json` of code points, names and the hashes of the pixels.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.datasets._read import Reader, get, image_id, quoted, typed
from negbench.errors import DataError, NegbenchError, missing_package
from negbench.files import locked, write_json

FILES = ("icons.json", "chars.json", "info.json")
SIDE = 128  # pixels
MEND = "fetch it with `negbench data fetch emoji`, or put {files} of the npm package {package} there"

Progress = Callable[[int, int], None]  # pictures drawn, pictures in all


@dataclass(frozen=True)
class Package:
    """One artist's icons as we know them.

    Args:
        name: of the npm package.
        version: the one that our counts are for.
        author: whom to name.
        licence: of the drawings.
        shown: the artist's name in texts.
        tarball: SHA-256 of what npm packs.
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

    def mend(self) -> str:
        """What to do where a file of it is missing or damaged."""
        return MEND.format(files=", ".join(FILES), package=f"{self.name}@{self.version}")


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
    """One drawing of an artist: the icon's name, the file, and the hash of its pixels."""

    name: str
    path: Path
    pixels: str


@dataclass(frozen=True)
class Icons:
    """A package on disk, opened by `icons`.

    Args:
        artist: key of `PACKAGES`.
        reader: of the folder above.
        names: code points -> name of the icon.
        hashes: SHA-256 of `icons.json` and `chars.json`.
    """

    artist: str
    reader: Reader
    names: Mapping[str, str]
    hashes: tuple[str, str]

    @property
    def pinned(self) -> bool:
        """Whether it is the version that we know."""
        package = PACKAGES[self.artist]
        return self.hashes == (package.icons, package.chars)

    def pictures(self, wanted: Mapping[str, str], progress: Progress | None = None) -> dict[str, Picture]:
        """Code points -> picture, drawn if they are not there yet; of several processes one draws, others wait.

        Args:
            wanted: those of `names` to draw.
            progress: called as pictures are drawn; not at all where they are there.

        Raises:
            DataError: an icon that is missing or no plain SVG; a folder that cannot be written.
            NegbenchError: resvg-py is not installed.
        """
        folder = self.reader.root / self.artist / f"drawn-{self._drawing(wanted)}"
        index = folder / "pictures.json"
        if not index.exists():
            try:
                with locked(folder.with_name(".drawing.lock")):
                    if not index.exists():
                        self._draw(folder, wanted, progress)
            except OSError as error:
                raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
        try:
            pixels = json.loads(index.read_text(encoding="utf-8"))
            return {codes: Picture(name, folder / f"{name}.png", str(pixels[name])) for codes, name in wanted.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{index} is damaged: delete {folder}, and it is drawn again") from error

    def _drawing(self, wanted: Mapping[str, str]) -> str:
        """Hash of what is drawn, and from what."""
        what = json.dumps([self.hashes[0], SIDE, sorted(wanted.values())])
        return hashlib.sha256(what.encode()).hexdigest()[:12]

    def _draw(self, folder: Path, wanted: Mapping[str, str], progress: Progress | None) -> None:
        """Fill a folder of another name, which then takes this one: it is there whole or not at all."""
        try:
            import resvg_py
        except ImportError as error:
            raise NegbenchError(missing_package(error) or str(error)) from error
        beside = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(beside, ignore_errors=True)  # its maker died: it would hold the lock
        beside.mkdir()
        hashes: dict[str, str] = {}
        names = sorted(set(wanted.values()))
        for name, svg in zip(names, self._documents(names), strict=True):
            drawn = resvg_py.svg_to_bytes(
                svg_string=svg, width=SIDE, height=SIDE, background="#ffffff", skip_system_fonts=True
            )
            (beside / f"{name}.png").write_bytes(drawn)
            hashes[name] = _pixels(drawn)
            if progress is not None:
                progress(len(hashes), len(names))
        write_json(beside / "pictures.json", hashes)
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)

    def _documents(self, names: list[str]) -> Iterator[str]:
        """The icons as SVG, each checked."""
        path = self.reader.root / self.artist / "icons.json"
        data = typed(self.reader.json(path), dict, str(path))
        found = get(data, "icons", dict, str(path))
        for name in names:
            where = f"{path}: icon {quoted(name)}"
            if name not in found:
                raise DataError(f"{where} is missing, and chars.json names it: {PACKAGES[self.artist].mend()}")
            icon = get(found, name, dict, where)
            sides = tuple(icon.get(side, data.get(side, 16)) for side in ("width", "height"))
            yield document(get(icon, "body", str, where), sides, where)


def icons(reader: Reader, artist: str) -> Icons:
    """Open an artist's package.

    Args:
        reader: of the folder above that of the artist; keeps the hashes.
        artist: key of `PACKAGES`.

    Raises:
        DataError: files that are missing or not in the format.
    """
    folder = reader.root / artist
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise DataError(f"{folder / absent[0]} is missing: {PACKAGES[artist].mend()}")
    path = folder / "chars.json"
    named = typed(reader.json(path), dict, str(path))
    names = {codes: image_id(name, f"{path}: '{codes}'") for codes, name in named.items()}
    strange = next((codes for codes in names if not re.fullmatch(r"[0-9a-f]+(-[0-9a-f]+)*", codes)), None)
    if strange is not None:
        raise DataError(f"{path}: {quoted(strange)} is no sequence of code points such as 1f469-200d-1f692")
    reader.json(folder / "info.json")
    raw = (folder / "icons.json").read_bytes()  # parsed where it is drawn from
    hashes = hashlib.sha256(raw).hexdigest(), reader.hashes[f"{artist}/chars.json"]
    reader.hashes[f"{artist}/icons.json"] = hashes[0]
    return Icons(artist, reader, names, hashes)


def _pixels(png: bytes) -> str:
    """SHA-256 of the pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


# --- SVG ---------------------------------------------------------------------------------------------------------

_REFUSED = {"script", "foreignobject", "iframe", "style"}  # elements that can run or fetch
_EMBEDDED = re.compile(r"data:image/(png|jpeg|gif|webp);base64,")


def document(body: str, sides: tuple[Any, ...], where: str) -> str:
    """An icon's body as an SVG document that refers to nothing outside itself.

    Args:
        body: elements.
        sides: width and height of what it shows.
        where: for errors.

    Raises:
        DataError: no well-formed XML, or one with an external reference, a script, foreign content or a style sheet.
    """
    if any(isinstance(side, bool) or not isinstance(side, int | float) or not 0 < side < 1e5 for side in sides):
        raise DataError(f"{where}: width and height must be numbers > 0, got {quoted(sides)}")
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    text = f'<svg {spaces} viewBox="0 0 {sides[0]} {sides[1]}">{body}</svg>'
    if "<!" in body or "<?" in body:
        raise DataError(f"{where}: it declares entities or instructions: not drawn")
    try:
        elements = list(xml.fromstring(text).iter())
    except xml.ParseError as error:
        raise DataError(f"{where}: it is no well-formed SVG ({error})") from error
    for element in elements:
        tag = element.tag.rpartition("}")[2]
        if tag.lower() in _REFUSED:
            raise DataError(f"{where}: it holds <{tag}>: not drawn")
        for name, value in element.attrib.items():
            if _leads_outside(name.rpartition("}")[2].lower(), value):
                raise DataError(f"{where}: {name.rpartition('}')[2]}={quoted(value)} refers to something outside it")
    return text


def _leads_outside(name: str, value: str) -> bool:
    """Whether an attribute refers to more than a part of the document or an image that it holds."""
    value = value.strip()
    if name.startswith("on") or name == "base":
        return True
    if name in ("href", "src"):
        return not (value.startswith("#") or _EMBEDDED.match(value))
    inside = re.sub(r"""url\(\s*(['"]?)#[\w.:-]+\1\s*\)""", "", value, flags=re.IGNORECASE).lower()
    return re.search(r"url\s*\(", inside) is not None or "@import" in inside or "\\" in inside
