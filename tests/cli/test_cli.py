"""The command line: no heavy imports at start, one-line errors with exit code 2, `run`."""

import gc
import re
import subprocess
import sys

import pytest

from negbench.cli.main import main
from negbench.plugins.registry import KINDS, registry
from negbench.store.runfolder import RunFolder

HEAVY = ("torch", "numpy", "transformers", "mlflow", "optuna", "open_clip", "pandas", "matplotlib")


def test_light_commands_import_nothing_heavy():
    commands = [["--help"], ["run", "--help"], ["list"], ["list", "strategies"]]
    planned = ["compare", "--strategies", "none", "--dry-run"]  # fails after its imports
    code = (
        "import sys\nfrom negbench.cli.main import run\n"
        f"codes = [run(arguments) for arguments in {commands!r}]\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], codes)\n"
        f"print('PLAN', run({planned!r}), [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY [] [0, 0, 0, 0]\n" in done.stdout, done.stdout[-500:] + done.stderr
    assert done.stdout.strip().endswith("PLAN 2 ['torch', 'numpy', 'pandas']"), done.stdout[-500:] + done.stderr


def test_what_imports_leave_is_not_collected_again_and_again(monkeypatch):
    before = gc.get_threshold()
    during = []

    def note_threshold(arguments: object) -> int:
        during.append(gc.get_threshold())
        return 0

    gc.set_threshold(700)
    monkeypatch.setattr("negbench.cli.main.stop_on_signals", lambda: None)
    monkeypatch.setattr("negbench.cli.main.run", note_threshold)
    try:
        monkeypatch.setitem(sys.modules, "triton", sys)  # no freeze then: triton would list the frozen objects as leaks
        with pytest.raises(SystemExit):
            main([])
        assert gc.get_freeze_count() == 0
        monkeypatch.delitem(sys.modules, "triton")
        with pytest.raises(SystemExit):
            main([])
        assert gc.get_freeze_count() > 10_000  # nor collected when the process ends
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert during[0][0] > 7_000
    assert gc.isenabled()


def test_list_prints_every_key_with_its_source(subtests, run_command):
    out = run_command("list").out
    for kind in KINDS:
        with subtests.test(kind=kind):
            assert f"{kind}\n" in out
            for plugin in registry.describe(kind):
                assert re.search(rf"^  {plugin.name} +{re.escape(plugin.summary)}", out, re.M), plugin.name
                assert plugin.paper in out, plugin.name


def test_a_mistake_is_one_line_and_exit_code_2(subtests, expect_error, tmp_path, monkeypatch, mistakes):
    for arguments, message in mistakes["command"].items():
        with subtests.test(arguments=arguments):
            monkeypatch.chdir(tmp_path)
            expect_error(arguments.split(), message)
            assert list(tmp_path.iterdir()) == []


def test_run_prints_metrics_folder_and_cost(toy_sets, tmp_path, run_command):
    sets = [part for text in toy_sets for part in ("--set", text)]
    out = run_command("run", "--strategy", "qure", *sets, "--runs-dir", tmp_path, "--tracking-uri", "none").out
    (folder,) = (RunFolder(p.parent) for p in tmp_path.glob("*/result.json"))
    assert f"{100 * folder.result['metrics']['average/recall_at_10']:.1f}" in out
    texts = ("average R@10", "untrained", "image only", "text only", folder.run_id, "gallery dress 16", "negatives")
    assert [text for text in texts if text not in out] == []
