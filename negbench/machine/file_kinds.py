"""What a file is that is not what was expected: told from its first bytes, with how to get the real one."""

import zipfile
from pathlib import Path

from negbench.errors import DataError
from negbench.machine.received import TORCHSCRIPT, is_torchscript, open_regular

MOVES_SCORES = False  # only words of errors

_AGAIN = "download it again"
_BEGINNINGS = (  # first bytes -> what it is, and what to do
    (b"version https://git-lfs", "the pointer of Git LFS in place of the file: `git lfs pull` fetches it"),
    (b"/annex/objects/", "the pointer of git-annex in place of the file: `git annex get` fetches it"),
    (b"../.git/annex/", "the pointer of git-annex in place of the file: `git annex get` fetches it"),
    (b"%PDF", f"a PDF document: {_AGAIN}"),
    (b"\x1f\x8b", "compressed by gzip: unpack it first"),
    (b"BZh", "compressed by bzip2: unpack it first"),
    (b"\xfd7zXZ", "compressed by xz: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it first"),
    (b"7z\xbc\xaf", "a 7-Zip archive: unpack it first"),
    (b"Rar!", "a RAR archive: unpack it first"),
    (b"\x89HDF", "an HDF5 file, as Keras and h5py write it"),
    (b"\x93NUMPY", "an array of numpy (.npy)"),
    (b"GGUF", "a GGUF file of llama.cpp"),
    (b"PAR1", "a parquet table"),
    (b"ARROW1", "an arrow table"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
)
_READ = 4096  # bytes that are looked at


def file_kind(path: Path) -> str | None:
    """Return what a file is, as the end of the sentence "FILE is ...", with how to get the real one.

    None if its first bytes tell nothing, or if it cannot be read.
    """
    try:
        with open_regular(path) as file:
            start = file.read(_READ)
    except (OSError, DataError):
        return None
    if not start:
        return f"empty: {_AGAIN}"
    for beginning, words in _BEGINNINGS:
        if start.startswith(beginning):
            return words
    if start.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path)
    if len(start) > 9 and start[8:10] in (b'{"', b"{}") and b"\x00" in start[:8]:
        return "a safetensors file: give it the ending .safetensors"
    if start[4:8] == b"ftyp":
        return _kind_of_film(start[8:12])
    if start[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    return _kind_of_text(start)


def _kind_of_film(brand: bytes) -> str:
    if brand in (b"heic", b"heix", b"mif1", b"msf1", b"hevc"):
        return "an HEIC picture, as phones take it, which Pillow does not read: save it as .jpg or .png"
    if brand in (b"avif", b"avis"):
        return "an AVIF picture, which this Pillow does not read: save it as .png"
    return "a film, not a picture"


def _kind_of_zip(path: Path) -> str | None:
    """Return what a zip archive is; None for one of torch."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return f"cut off, as its end is missing: {_AGAIN}"
    if is_torchscript(names):
        return TORCHSCRIPT
    if any(Path(name).name == "data.pkl" for name in names):
        return None
    if names and all(name.endswith(".npy") for name in names):
        return f"a file of numpy arrays (.npz): {', '.join(names[:3])}"
    return f"a zip archive of {', '.join(names[:3]) or 'nothing'}: unpack it first"


def _kind_of_text(start: bytes) -> str | None:
    """Return what a text is, from its beginning; None for other bytes."""
    try:
        text = start.decode("utf-8", errors="strict" if len(start) < _READ else "ignore").strip()
    except UnicodeDecodeError:
        return None
    if not text or any(not sign.isprintable() and not sign.isspace() for sign in text):
        return None
    lower = text[:200].lower()
    if lower.startswith(("<!doctype html", "<html", "<head")):
        return f"a web page, perhaps of a log-in or an error: {_AGAIN}"
    if "<svg" in lower:
        return "an SVG drawing: draw it as .png"
    if lower.startswith("<?xml"):
        return f"an XML text, perhaps an error of the server: {_AGAIN}"
    kind = "a JSON text" if text[0] in "{[" else "a text"
    line = " ".join(text.splitlines()[0].split())[:60]
    return f"{kind} that begins with {line!r}: {_AGAIN}"
