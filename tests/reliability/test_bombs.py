"""Files that unpack to more than the machine holds, and a clock that goes back: one line, or the same result."""

import os
import struct
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np

from negbench.cli.main import run as negbench
from negbench.machine.free_memory import machine_memory
from tests.runs import flags_of
from tests.standin import write_images
from tests.vector_files import write_vectors

CLAIMED = 2**32 - 2  # bytes, the most that a plain zip entry can claim


def bomb(path: Path, names: list[str]) -> None:
    """Write a small .npz whose entries claim more bytes than this machine's memory."""
    names = [*names, *(f"more{number}" for number in range(machine_memory() // CLAIMED + 2))]
    with zipfile.ZipFile(path, "w") as pack:
        for name in names:
            pack.writestr(f"{name}.npy", b"")
    content = bytearray(path.read_bytes())
    at = content.find(b"PK\1\2")
    while at >= 0:
        content[at + 24 : at + 28] = struct.pack("<I", CLAIMED)
        at = content.find(b"PK\1\2", at + 4)
    path.write_bytes(content)


def test_zip_bombs_are_refused(tmp_path, expect_error):
    sets = write_vectors(tmp_path)
    flags = flags_of(sets)
    np.save(tmp_path / "q.npy", np.eye(4))
    np.save(tmp_path / "t.npy", np.arange(4))
    bomb(tmp_path / "images.npz", ["ids", "features"])
    store = ["--runs-dir", str(tmp_path / "runs"), "--tracking-uri", "none"]
    assert "more than 16 times as much" in expect_error(["run", "--strategy", "qure", *flags, *store], "images.npz")
    files = [f"--{name}={tmp_path / file}" for name, file in (("queries", "q.npy"), ("targets", "t.npy"))]
    mine = ["mine", *files, f"--images={tmp_path / 'images.npz'}", "--strategy=qure", f"--out={tmp_path}/n.jsonl"]
    assert "images.npz" in expect_error(mine, "more than 16 times as much")
    expect_error(["init", str(tmp_path)], "images.npz")


def test_an_image_bomb_is_refused(tmp_path, expect_error):
    """A picture of 100 bytes that claims 60,000 x 60,000 pixels, among those to embed."""
    write_images(tmp_path, ["p0"])
    content = bytearray((tmp_path / "p0.png").read_bytes())
    content[16:24] = struct.pack(">II", 60_000, 60_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    for number in range(12):
        (tmp_path / f"p{number}.png").write_bytes(content)
    lines = "".join(f"p{number},more,p{number + 1}\n" for number in range(11))
    (tmp_path / "rows.csv").write_text(f"reference,text,target\n{lines}", encoding="utf-8")
    encoder = tmp_path / "encoder.py"
    encoder.write_text("class Mine:\n    encode_image = encode_text = lambda self, given: None\n", encoding="utf-8")
    line = expect_error(["embed", str(tmp_path), "--encoder", f"{encoder}:Mine"], "png is not read: ")
    assert "3,600 million pixels" in line


def test_a_clock_that_goes_back_changes_nothing(vector_flags, tmp_path, monkeypatch):
    """Every file of the first run lies a day in the future of the second command, which reuses it."""
    command = ["run", "--strategy", "qure", *vector_flags, "--runs-dir", str(tmp_path), "--set", "train.epochs=2"]
    assert negbench(command) == 0
    (result,) = tmp_path.glob("*/result.json")
    before = result.read_bytes()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 86_400)
    for path in tmp_path.rglob("*"):
        os.utime(path, (now() + 86_400, now() + 86_400))
    assert negbench(command) == 0
    assert list(tmp_path.glob("*/result.json")) == [result]
    assert result.read_bytes() == before
    assert negbench([*command, "--seed", "1"]) == 0
    assert len(list(tmp_path.glob("*/result.json"))) == 2
