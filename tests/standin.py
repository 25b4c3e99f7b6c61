"""Write stand-in pictures, and people's choices between sets of them.

Every image is a PNG of one colour derived from its id, so that images differ and two calls write the same bytes.
"""

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def color_of(image: str) -> bytes:
    """Return the first three bytes of the id's SHA-256."""
    return hashlib.sha256(image.encode()).digest()[:3]


def write_images(folder: Path, images: Iterable[str], size: int = 8) -> None:
    """Write one stand-in picture per id, as ID.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in images:
        Image.new("RGB", (size, size), tuple(color_of(image))).save(folder / f"{image}.png")


def write_preferences(root: Path, users: int, judgements: int, images: int) -> None:
    """Write a small hpfiq.json (people's choices between two sets of five) with its pictures; some ratings tie."""
    order = random.Random(0)
    data = {}
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
