"""What the tests of commands share."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write 24 images, one of them rotated by EXIF and one grey, and 60 triplets."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "my data"
    (folder / "pictures").mkdir(parents=True)
    names = [f"p{n}" for n in range(24)]
    for n, name in enumerate(names):
        image = Image.fromarray(np.full((8 + n % 5, 9, 3), rng.integers(256, size=3), dtype=np.uint8))
        image = image.convert("L") if n == 3 else image
        exif = Image.Exif()
        exif[0x0112] = 6  # orientation: a quarter turn
        image.save(folder / "pictures" / f"{name}.png", exif=exif if n == 5 else None)
    texts = ("in blue", "longer", "with stripes and a zip")
    references = np.concatenate([rng.permutation(24) for _ in range(3)])[:60]
    targets = np.concatenate([rng.permutation(24) for _ in range(3)])[:60]
    rows = []
    for n, (reference, target) in enumerate(zip(references, targets, strict=True)):
        rows.append({"reference": names[reference], "text": texts[n % 3], "target": names[target]})
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
