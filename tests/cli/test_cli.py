"""The command line: light start, one-line errors with exit code 2, run, resume after kill -9, compare."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.cli.main import main
from negbench.cli.main import run as negbench
from negbench.loop import train as loop
from negbench.registry import KINDS, registry
from negbench.runfolder import RunFolder

HEAVY = ("torch", "transformers", "mlflow", "optuna", "open_clip", "pandas", "matplotlib")


def test_light_commands_import_nothing_heavy() -> None:
    commands = [["--help"], ["run", "--help"], ["list"], ["list", "strategies"]]
    code = (
        "import sys\nfrom negbench.cli.main import run\n"
        f"codes = [run(arguments) for arguments in {commands!r}]\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], codes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("HEAVY [] [0, 0, 0, 0]"), done.stdout[-500:] + done.stderr


def test_what_imports_leave_is_not_collected_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = gc.get_threshold(), []
    monkeypatch.setattr("negbench.cli.main.stop_on_signals", lambda: None)
    monkeypatch.setattr("negbench.cli.main.run", lambda _: during.append(gc.get_threshold()) or 0)
    try:
        with pytest.raises(SystemExit):
            main([])
        assert gc.get_freeze_count() > 10_000  # nor once more at the end of the process
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert during[0][0] > 10 * before[0]
    assert gc.isenabled()


def test_list_prints_every_key_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(["list"]) == 0
    out = capsys.readouterr().out
    for kind in KINDS:
        assert f"{kind}\n" in out
        for description in registry.describe(kind):
            assert re.search(rf"^  {description.name} +{re.escape(description.summary)}", out, re.M)
            assert description.paper in out


def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in [
        (["rn"], "No such command 'rn'"),
        (["run", "--stratgy", "qure"], "--strategy"),
        (["run"], "no strategy is named"),
        (["run", "--strategy", "quer"], "unknown strategy 'quer': did you mean 'qure'?"),
        (["run", "--strategy", "qure", "--backbone", "tinny"], "unknown backbone 'tinny': did you mean 'tiny'?"),
        (["run", "--strategy", "qure", "--loss", "infonce"], "did you mean 'info-nce'?"),
        (["run", "--strategy", "qure", "--dataset", "fashionqi"], "did you mean 'fashioniq'?"),
        (["run", "--strategy", "qure", "--set", "train.epoch=2"], "did you mean 'train.epochs'?"),
        (["run", "--strategy", "dqe", "--set", "strategy.alpha=3"], "3"),
        (["run", "--recipe", "none.toml"], "--recipe none.toml"),
        (["run", "--plugin", "none.py"], "--plugin none.py: there is no such file"),
        (["list", "strategy"], "KIND 'strategy': input should be 'strategies'"),
        (["compare", "--strategies", "qure,cirqs"], "did you mean 'cirqrs'?"),
        (["compare", "--seeds", "two"], "--seeds 'two'"),
        (["compare", "--pairs", "some"], "--pairs 'some': input should be 'baseline' or 'all'"),
        (["compare", "--margin", "-0.1"], "--margin -0.1: input should be greater than or equal to 0"),
        (["compare", "--margin", "nan"], "--margin"),
        (["compare", "--alpha", "0"], "--alpha 0.0: input should be greater than or equal to 0.001"),
        (["compare", "--alpha", "1"], "--alpha 1.0: input should be less than 1"),
        (["ui", "--runs-dir", "nowhere"], "there is no run in nowhere"),
        (["run", "--strategy", "qure", "--dataset", "fashioniq"], "NEGBENCH_DATA"),
    ]:
        monkeypatch.chdir(tmp_path)
        assert negbench(arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("negbench: error: ")
        assert captured.err.count("\n") == 1
        assert message in captured.err
        assert list(tmp_path.iterdir()) == []


def flags(vector_sets: list[str], where: Path, *more: str) -> list[str]:
    sets = [part for text in (*vector_sets, *more) for part in ("--set", text)]
    return [*sets, "--runs-dir", str(where), "--tracking-uri", "none"]


def test_run_prints_metrics_place_and_cost(
    toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert negbench(["run", "--strategy", "qure", *flags(toy_sets, tmp_path)]) == 0
    out = capsys.readouterr().out
    (folder,) = (RunFolder(p.parent) for p in tmp_path.glob("*/result.json"))
    assert f"{100 * folder.result['metrics']['average/recall_at_10']:.1f}" in out
    for text in (
        "average R@10",
        "untrained",
        "image only",
        "text only",
        folder.run_id,
        "gallery dress 16",
        "negatives",
    ):
        assert text in out


def test_a_plugin_file_runs_like_a_built_in(
    vector_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for held in ("_files", "_classes"):  # the file is known to this test alone
        monkeypatch.setattr(registry, held, dict(getattr(registry, held)))
    plugin = tmp_path / "lowest.py"
    plugin.write_text(
        '"""The lowest-scored image."""\n'
        "from dataclasses import dataclass\n"
        "from torch import Tensor, zeros_like\n"
        "from negbench import ScoreView, Strategy\n"
        'PAPER = "none"\n'
        "@dataclass(frozen=True)\n"
        "class Lowest(Strategy):\n"
        '    """The lowest-scored image."""\n'
        "    def pool(self, view: ScoreView) -> Tensor:\n"
        "        lowest = view.scores.masked_fill(~view.allowed, float('inf')).argmin(1, keepdim=True)\n"
        "        return zeros_like(view.allowed).scatter(1, lowest, True)\n",
        encoding="utf-8",
    )
    command = ["run", "--plugin", str(plugin), "--strategy", "lowest"]
    assert negbench([*command, *flags(vector_sets, tmp_path / "runs")]) == 0
    (result,) = (tmp_path / "runs").glob("*/result.json")
    behaviour = json.loads(result.read_text(encoding="utf-8"))["behaviour"]
    assert behaviour["pool_size"] == 1
    assert behaviour["band_mean"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_killed_and_resumed_ends_with_the_same_bits(
    vector_sets: list[str], tmp_path: Path, start_command: Callable[[list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again goes on from the checkpoint."""
    more, real, epochs = ("train.epochs=40",), loop.train_epoch, list[int]()

    def noted(run: Any, moving: Any, state: Any, batches: Any) -> Any:
        epochs.append(state.epoch)
        return real(run, moving, state, batches)

    monkeypatch.setattr(loop, "train_epoch", noted)
    process = start_command(["run", "--strategy", "qure", *flags(vector_sets, tmp_path / "killed", *more)])
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("*/checkpoint.pt")):
        assert time.monotonic() < deadline, "no checkpoint appeared"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    (killed,) = (RunFolder(p.parent) for p in (tmp_path / "killed").glob("*/config.json"))
    assert killed.status == "interrupted"
    assert negbench(["run", "--strategy", "qure", *flags(vector_sets, tmp_path / "killed", *more)]) == 0
    assert epochs == list(range(epochs[0], 40))
    assert epochs[0] > 0
    assert negbench(["run", "--strategy", "qure", *flags(vector_sets, tmp_path / "straight", *more)]) == 0
    straight = RunFolder(tmp_path / "straight" / killed.run_id)
    assert killed.result["metrics"] == straight.result["metrics"]
    for name in ("metrics.jsonl", "ranks.parquet"):
        assert (killed.path / name).read_bytes() == (straight.path / name).read_bytes()
    weights = straight.weights()
    assert all(torch.equal(value, weights[name]) for name, value in killed.weights().items())


@pytest.mark.parametrize("flaw", ["image", "captions", "key"])
def test_a_flaw_of_the_data_is_one_line(
    flaw: str, toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    root = tmp_path / "data"
    shutil.copytree(toy_root, root)
    captions = root / "captions" / "cap.shirt.val.json"
    if flaw == "image":
        image = sorted((root / "images" / "shirt").glob("*.png"))[0]
        image.unlink()
        names = [image.stem, "--allow-missing"]
    elif flaw == "captions":
        captions.unlink()
        names = ["cap.shirt.val.json"]
    else:
        entries = json.loads(captions.read_text(encoding="utf-8"))
        del entries[3]["candidate"]
        captions.write_text(json.dumps(entries), encoding="utf-8")
        names = ["cap.shirt.val.json", "candidate", "3"]
    arguments = ["run", "--strategy", "qure", "--dataset", "fashioniq", "--data-root", str(root)]
    assert negbench([*arguments, "--set", "backbone.weights='random'", "--runs-dir", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for name in names:
        assert name in error
