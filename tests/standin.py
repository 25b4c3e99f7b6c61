"""Write a full-size FashionIQ folder: the real annotation files with small stand-in pictures.

Every image is a PNG of one colour derived from its id, so that images differ and two calls write the same bytes.
Images lie in one folder per category, as in the usual copies of the data.
"""

import hashlib
import json
import random
import shutil
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

CATEGORIES = ("dress", "shirt", "toptee")


def png(color: bytes, size: int) -> bytes:
    """Encode a size x size RGB picture of one colour by hand, so that 75,000 of them take seconds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    pixels = (b"\x00" + color * size) * size
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 1)) + chunk(b"IEND", b"")
    )


def color_of(image: str) -> bytes:
    """Return the first three bytes of the id's SHA-256."""
    return hashlib.sha256(image.encode()).digest()[:3]


def write_images(folder: Path, images: Iterable[str], size: int = 8) -> None:
    """Write one stand-in picture per id, as ID.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in images:
        (folder / f"{image}.png").write_bytes(png(color_of(image), size))


def write_standin(annotations: Path, out: Path, *, splits: Sequence[str] = ("train", "val"), size: int = 8) -> int:
    """Copy the annotation files, write a picture for every name in them and return the number of pictures."""
    written = 0
    for category in CATEGORIES:
        names: set[str] = set()
        for split in splits:
            for relative in (f"captions/cap.{category}.{split}.json", f"image_splits/split.{category}.{split}.json"):
                source, copy = annotations / relative, out / relative
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
                data = json.loads(source.read_text(encoding="utf-8"))
                for entry in data:
                    names |= {entry} if isinstance(entry, str) else {entry["candidate"], entry.get("target", "")}
        names.discard("")
        write_images(out / "images" / category, sorted(names), size)
        written += len(names)
    return written


def write_preferences(root: Path, users: int, judgements: int, images: int) -> None:
    """Write a small hpfiq.json (people's choices between two sets of five) with its pictures; some ratings tie."""
    order, data = random.Random(0), {}
    for user in range(users):
        keys = ("ref_img_paths", "targ_img_paths", "sentences", "retrieved_set1", "retrieved_set2", "preferred set")
        entry: dict[str, list[object]] = {key: [] for key in keys}
        for index in range(judgements):
            paths = [f"/-/image_data/shirt/B{n:02d}.jpg" for n in order.sample(range(images), images)]
            ratings = [order.randint(1, 5) for _ in range(2)]
            entry["ref_img_paths"].append(paths[0])
            entry["targ_img_paths"].append(paths[1 + index % 3 * 5])  # in set 1, in set 2, in neither
            entry["sentences"].append(f"is {index} darkerdotmark  and has dots")
            for side in (0, 1):
                members = {"img_path": paths[1 + 5 * side : 6 + 5 * side], "user_score": str(ratings[side])}
                entry[f"retrieved_set{side + 1}"].append(members)
            entry["preferred set"].append("1" if ratings[0] > ratings[1] else "2")
        data[f"user_{user}"] = {"question_set_1": entry}
    root.mkdir(parents=True, exist_ok=True)
    (root / "hpfiq.json").write_text(json.dumps(data))
    write_images(root / "image_data" / "shirt", [f"B{n:02d}" for n in range(images)])
