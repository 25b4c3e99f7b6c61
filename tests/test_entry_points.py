"""Third-party plug-ins by entry point: listed without import, made like built-ins, and never replacing one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin_file import PLUGIN


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "keep_plugin.py").write_text(
        f"{PLUGIN}\nimport sys\nprint('IMPORTED', file=sys.stderr)\n", encoding="utf-8"
    )
    return tmp_path


def install(site: Path, name: str) -> None:
    info = site / "keep-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keep\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[negbench.strategies]\n{name} = keep_plugin:Mine\n", encoding="utf-8")


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


def test_listed_without_import_made_like_a_built_in_and_named_if_asked_for_by_its_module_or_package(site):
    install(site, "K-strategy")
    code = "import sys, negbench; from negbench.cli.main import run; run(['list', 'strategies'])\n"
    code += "print('LISTED', file=sys.stderr); print(negbench.make_strategy('K-strategy', k=4))\n"
    code += "print(*[run(['list', 'strategies', asked]) for asked in ('keep', 'keep-plugin')])"
    done = python(site, "-c", code)
    assert "Nothing at all. [keep]" in done.stdout
    assert done.stdout.endswith("Mine(k=4)\n2 2\n")
    listed, imported, *refused = done.stderr.splitlines()
    assert (listed, imported) == ("LISTED", "IMPORTED")
    for asked, line in zip(("keep", "keep-plugin"), refused, strict=True):
        assert f"unknown strategy '{asked}': keep offers 'K-strategy'" in line


def test_a_taken_name_is_one_line(site):
    install(site, "qure")
    listed = python(site, "-m", "negbench", "list", "strategies")
    assert listed.returncode == 2
    assert "two strategies are named 'qure': built-in and keep; rename one" in listed.stderr
