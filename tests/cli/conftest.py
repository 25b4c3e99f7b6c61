"""What the tests of commands share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from negbench.cli.main import run as negbench


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command, checks its exit code, and returns what it printed: `out` and `err`."""

    def run(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        got, printed = negbench([*map(str, arguments)]), capsys.readouterr()
        assert got == code, printed
        return printed

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write 24 images, one of them rotated by EXIF and one grey, and 60 triplets."""
    rng, folder = np.random.default_rng(0), tmp_path / "my data"
    (folder / "pictures").mkdir(parents=True)
    names = [f"p{n}" for n in range(24)]
    for n, name in enumerate(names):
        image = Image.fromarray(np.full((8 + n % 5, 9, 3), rng.integers(256, size=3), dtype=np.uint8))
        image = image.convert("L") if n == 3 else image
        exif = Image.Exif()
        exif[0x0112] = 6  # orientation: a quarter turn
        image.save(folder / "pictures" / f"{name}.png", exif=exif if n == 5 else None)
    places = (np.concatenate([rng.permutation(24) for _ in range(3)])[:60] for _ in range(2))
    rows = [
        {"reference": names[a], "text": ("in blue", "longer", "with stripes and a zip")[n % 3], "target": names[b]}
        for n, (a, b) in enumerate(zip(*places, strict=True))
    ]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
