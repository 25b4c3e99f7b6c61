"""Third-party plug-ins by entry point: listed without import, made like built-ins, and never replacing one."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import negbench
from negbench.plugins.registry import KINDS
from tests.plugin_file import PLUGIN


@pytest.fixture
def site(tmp_path: Path, own_registry: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of installed packages that holds a module with a plug-in."""
    (tmp_path / "keep_plugin.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("keep_plugin", None)


def install(site: Path, name: str) -> None:
    info = site / "keep-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keep\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[negbench.strategies]\n{name} = keep_plugin:Mine\n", encoding="utf-8")


def test_listed_without_import_made_like_a_built_in_and_named_if_asked_for_by_module_or_package(
    site, expect_error, run_command, subtests
):
    install(site, "K-strategy")
    assert "Nothing at all. [keep]" in run_command("list", "strategies").out
    for name in ("keep", "keep-plugin"):
        with subtests.test(name=name):
            expect_error(["list", "strategies", name], f"unknown strategy '{name}': keep offers 'K-strategy'")
    assert "keep_plugin" not in sys.modules
    assert repr(negbench.make_strategy("K-strategy", k=4)) == "Mine(k=4)"


def test_installed_packages_are_looked_through_once_for_all_kinds(site, spy_on):
    install(site, "K-strategy")
    calls = spy_on(importlib.metadata, "entry_points")
    names = {kind: negbench.list_plugins(kind) for kind in KINDS}
    assert [kind for kind in KINDS if "K-strategy" in names[kind]] == ["strategies"]
    assert len(calls) == 1


def test_a_taken_name_is_one_line(site, expect_error):
    install(site, "qure")
    expect_error(["list", "strategies"], "two strategies are named 'qure': built-in and keep; rename one")
