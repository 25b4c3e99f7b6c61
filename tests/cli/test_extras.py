"""Without the extra [full]: what a result needs is asked for before computing, what only a page needs is said."""

import json
import sys

import pytest

from negbench.errors import NegbenchError, install_line, require

GRID = ("compare", "--strategies", "qure,in-batch", "--seeds", "1", "--lr", "fixed", "--name", "c")
FULL = "pip install 'negbench[full]'"


@pytest.fixture
def without(monkeypatch):
    """Return a function that hides modules."""

    def hide(*names: str) -> None:
        for name in [module for module in sys.modules if module.partition(".")[0] in names]:
            monkeypatch.delitem(sys.modules, name)
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.fixture
def flags(tmp_path, vector_flags):
    return [*vector_flags, "--set", "train.epochs=2", "--runs-dir", str(tmp_path)]


def test_a_missing_module_is_named_with_its_line(without):
    assert install_line("json", "torch") is None
    without("optuna", "sklearn")
    assert install_line("json", "sklearn", "optuna") == f"this needs sklearn: {FULL}"
    with pytest.raises(NegbenchError, match=r"this needs optuna: pip install 'negbench\[full\]'"):
        require("optuna")


def test_a_comparison_without_matplotlib_says_so_first_and_goes_on_to_its_answer(without, flags, tmp_path, run_command):
    without("matplotlib")
    output = run_command(*GRID, *flags, "--tracking-uri", "none")
    lines = output.err.splitlines()
    (note_line,) = [number for number, line in enumerate(lines) if "no page will be written" in line]
    assert FULL in lines[note_line]
    assert [line for line in lines[:note_line] if "qure" in line] == []  # before a cell is computed
    assert "\nanswer" in output.out
    assert f"stored {tmp_path / 'c'}" in output.out.replace("\n", "")
    assert not (tmp_path / "c" / "report").exists()
    card = run_command("report", "c", "--card", "--runs-dir", str(tmp_path))
    assert "no page: this needs matplotlib" in card.err
    assert json.loads((tmp_path / "c" / "card.json").read_text(encoding="utf-8"))["name"] == "c"
    assert FULL in run_command("report", "c", "--runs-dir", str(tmp_path), code=2).err


def test_without_mlflow_each_command_says_how_to_get_it(without, flags, tmp_path, run_command):
    without("mlflow")
    output = run_command(*GRID, *flags, "--no-report")
    assert f"no copy in MLflow: this needs mlflow: {FULL}" in output.err
    assert "ModuleNotFoundError" not in output.err
    assert FULL in run_command("ui", "c", "--runs-dir", str(tmp_path), code=2).err


@pytest.mark.parametrize("module", ["optuna", "sklearn"])
def test_a_study_asks_for_what_its_end_needs(without, flags, tmp_path, run_command, module):
    without(module)
    study = ["study", "--strategy", "all-corpus", "--search", "train.lr=0.01|0.03", "--name", "s"]
    assert f"this needs {module}: {FULL}" in run_command(*study, *flags, code=2).err
    assert not list(tmp_path.iterdir())
