"""No process runs code from the current folder or from somebody else's runs folder; test_browser.py has servers."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from negbench.cli.main import run as negbench
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config
from tests.plugin_file import ANSWER, PLUGIN
from tests.runs import config_of, run

WORKERS = """
import sys
from negbench.grid.executors import Processes

def path(task, report):
    import numpy, selectors
    return sys.path

if __name__ == "__main__":
    (event,) = Processes(1).run(path, [0])
    print(event)
"""


@pytest.fixture
def strange(tmp_path: Path, strangers: Callable[[Path], Path]) -> Path:
    return strangers(tmp_path / "strange")


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.ran"))


def test_workers_import_nothing_from_the_current_folder(strange, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(WORKERS, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], cwd=strange, capture_output=True, text=True, timeout=200)
    assert ran(strange) == []
    assert "kind='done'" in done.stdout, done.stderr
    assert str(strange) not in done.stdout


def test_python_m_negbench_leaves_the_current_folder_to_nobody(strange):
    (strange / "negbench.py").unlink()  # Python itself imports that one
    done = subprocess.run(
        [sys.executable, "-m", "negbench", "list", "losses"], cwd=strange, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, ran(strange)) == (0, []), done.stderr


@pytest.fixture
def received(vector_sets: list[str], tmp_path: Path) -> tuple[RunFolder, Path]:
    """Return somebody else's run, which names a plug-in file, and that file, which leaves a mark when run."""
    config = config_of(vector_sets, "qure")
    folder = run(config, tmp_path / "runs").folder
    plugin = tmp_path / "theirs.py"
    plugin.write_text(f"import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n{PLUGIN}", encoding="utf-8")
    manifest = folder.manifest
    manifest["config"]["plugins"] = [str(plugin)]
    folder.write_manifest({**manifest, "plugins": {str(plugin): hashlib.sha256(plugin.read_bytes()).hexdigest()}})
    return folder, plugin


@pytest.mark.parametrize("command", ["evaluate", "audit --queries 5 --strategy qure --run"])
def test_a_stored_run_executes_no_file_that_is_not_named(command, received, own_registry, expect_error):
    folder, plugin = received
    arguments = [*command.split(), folder.run_id, "--runs-dir", str(folder.path.parent)]
    expect_error(arguments, "--plugin theirs.py")
    assert ran(plugin.parent) == []
    other = plugin.with_name("other.py")
    other.write_text(plugin.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    expect_error([*arguments, "--plugin", str(other)], "--plugin theirs.py")
    assert ran(plugin.parent) == ["other.ran"]  # that one was named
    moved = plugin.rename(plugin.with_name("mine.py"))  # same content, another path
    assert negbench([*arguments, "--plugin", str(moved)]) == 0
    assert ran(plugin.parent) == ["mine.ran", "other.ran"]


def test_a_run_names_the_plugin_files_that_it_uses(subtests, vector_sets, tmp_path, own_registry):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.replace(ANSWER, "view.allowed"), encoding="utf-8")
    for strategy, used in (("mine", [str(file)]), ("qure", [])):
        with subtests.test(strategy=strategy):
            config = load_config(flags={"strategy": {"name": strategy}, "plugins": [str(file)]}, sets=vector_sets)
            assert list(run(config, tmp_path / "runs").folder.manifest["plugins"]) == used
