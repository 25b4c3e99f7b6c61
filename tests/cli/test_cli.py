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
    code = (
        "import sys\nfrom negbench.cli.main import run\n"
        f"codes = [run(arguments) for arguments in {commands!r}]\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], codes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("HEAVY [] [0, 0, 0, 0]"), done.stdout[-500:] + done.stderr


def test_what_imports_leave_is_not_collected_again_and_again(monkeypatch):
    before, during = gc.get_threshold(), []
    gc.set_threshold(700)
    monkeypatch.setattr("negbench.cli.main.stop_on_signals", lambda: None)
    monkeypatch.setattr("negbench.cli.main.run", lambda _: during.append(gc.get_threshold()) or 0)
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


def test_list_prints_every_key_with_its_source(said):
    out = said("list").out
    for kind in KINDS:
        assert f"{kind}\n" in out
        for description in registry.describe(kind):
            assert re.search(rf"^  {description.name} +{re.escape(description.summary)}", out, re.M)
            assert description.paper in out


def test_a_mistake_is_one_line_and_exit_code_2(refused, tmp_path, monkeypatch):
    for arguments, message in [
        (["rn"], "No such command 'rn'"),
        (["run", "--stratgy", "qure"], "--strategy"),
        (["run", "--strategy", "quer"], "unknown strategy 'quer': did you mean 'qure'?"),
        (["run", "--recipe", "none.toml"], "--recipe none.toml"),
        (["run", "--plugin", "none.py"], "--plugin none.py: no such file"),
        (["list", "strategy"], "KIND 'strategy': input should be 'strategies'"),
        (["list", "backbones", "clp"], "unknown backbone 'clp': did you mean 'clip'?"),
        (["compare", "--strategies", "qure,cirqs"], "did you mean 'cirqrs'?"),
        (["compare", "--strategies", "dqe:alpha=0.1,beta=0.5"], "separate options by ':', as NAME:a=1:b=2"),
        (["run", "--strategy", "dqe:alpha=0.1,beta=0.5"], "should be a valid number; separate options by ':'"),
        (["compare", "--lr", "1e-3", "--set", "train.lr=5"], "--set train.lr=5 and --lr 0.001 set the same key"),
        (["compare", "--dial", "compute.threads=1,2"], "compute.threads is where runs are computed"),
        (["compare", "--pairs", "some"], "--pairs 'some': input should be 'baseline', 'all' or 'best'"),
        (["compare", "--margin", "nan"], "--margin"),
        (["compare", "--alpha", "1"], "--alpha 1.0: input should be less than 1"),
        (["ui", "--runs-dir", "nowhere"], "no run in nowhere"),
        (["run", "--strategy", "qure", "--backbone", "blip2", "--dataset", "fashioniq"], "NEGBENCH_DATA"),  # no weights
    ]:
        monkeypatch.chdir(tmp_path)
        refused(arguments, message)
        assert list(tmp_path.iterdir()) == []


def test_run_prints_metrics_place_and_cost(toy_sets, tmp_path, said):
    sets = [part for text in toy_sets for part in ("--set", text)]
    out = said("run", "--strategy", "qure", *sets, "--runs-dir", tmp_path, "--tracking-uri", "none").out
    (folder,) = (RunFolder(p.parent) for p in tmp_path.glob("*/result.json"))
    assert f"{100 * folder.result['metrics']['average/recall_at_10']:.1f}" in out
    wanted = {"average R@10", "untrained", "image only", "text only", folder.run_id, "gallery dress 16", "negatives"}
    assert {text for text in wanted if text in out} == wanted
