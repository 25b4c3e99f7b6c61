"""The arrows of docs/architecture.md: what may import what, held by import-linter."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINTER = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]


def test_no_arrow_points_up() -> None:
    done = subprocess.run([*LINTER, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Contracts: [4-9] kept, 0 broken", done.stdout)


def test_the_picture_shows_the_layers() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(t["layers"] for t in tables if t["type"] == "layers")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = [line for line in text.split("```")[1].splitlines() if line.strip(" |")]
    last = -1
    for layer in layers:
        rooms = [room.strip() for room in layer.split("|")]
        at = [
            next((n for n, line in enumerate(picture) if re.match(rf"\s+(\w+ +)*{room}\b", line)), None)
            for room in rooms
        ]
        assert None not in at, rooms
        assert min(n for n in at if n is not None) >= last, rooms
        last = max(n for n in at if n is not None)
