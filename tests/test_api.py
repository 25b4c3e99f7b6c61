"""Python's side of the commands: names and objects, the same runs as the command line, frames, and one-line errors."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import negbench
from negbench.cli.main import run as command
from negbench.errors import NegbenchError
from negbench.executors import Event, Function, Here
from tests.plugin_file import ANSWER, PLUGIN


def test_objects_and_names_make_the_same_comparison_as_the_command(
    vector_sets: list[str], vector_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategies = [negbench.make_strategy("top-k", k=3), "in-batch"]
    where: dict[str, Any] = {"sets": vector_sets, "runs_dir": tmp_path, "tracking_uri": "none"}
    loss = negbench.make_loss("info-nce")
    found = negbench.compare(
        negbench.Compare(strategies=strategies, losses=loss, seeds=2, name="c", report=False, **where)
    )
    assert capsys.readouterr().out == ""
    grid = ["--strategy", "top-k:k=3,in-batch", "--loss", "info-nce", "--seeds", "2", "--name", "c", *vector_flags]
    place = ["--runs-dir", str(tmp_path), "--tracking-uri", "none", "--no-report"]
    assert command(["compare", *grid, *place, "--json"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert len(list(tmp_path.glob("*/result.json"))) == 4  # the command found the runs of the call
    assert document["cells"] == json.loads((tmp_path / "c" / "comparison.json").read_text())["cells"]
    assert document["answer"] == found.answer

    assert list(found.cells.strategy) == ["in-batch", "in-batch", "top-k(k=3)", "top-k(k=3)"]
    mean = found.cells.groupby("strategy")["recall_at_10"].mean()
    rows = found.statistics[found.statistics.metric == "recall_at_10"].set_index("strategy")["mean"]
    np.testing.assert_allclose(rows[mean.index], mean, atol=1e-9)
    assert found.answer[0] in repr(found)
    assert "<table" in found._repr_html_()
    assert set(found.cost.strategy) == {"in-batch", "top-k(k=3)"}
    again = negbench.load("c", tmp_path)
    assert repr(again) == repr(found) == repr(negbench.load(tmp_path / "c"))
    one = negbench.load(str(found.cells.run[0]), tmp_path)
    assert one.metrics["recall_at_10"] == found.cells.recall_at_10[0]  # type: ignore[union-attr]


def test_a_class_of_ones_own_runs_by_its_file(
    own_registry: None, vector_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PLUGIN.replace(ANSWER, "view.window(view.allowed, self.k)")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import mine  # type: ignore[import-not-found]

    where = negbench.Run(runs_dir=tmp_path, tracking_uri="none", seed=3)
    result = negbench.run(strategy=mine.Mine(k=2), sets=vector_sets, options=where)
    assert result.folder.config.seed == 3
    assert result.details["behaviour"]["pool_size"] == 2
    assert result.folder.config.plugins == (str(tmp_path / "mine.py"),)


def test_an_audit_of_objects_is_that_of_the_command(vector_sets: list[str], tmp_path: Path) -> None:
    found = negbench.audit(
        negbench.Audit(strategies=[negbench.make_strategy("qure")], queries=10, sets=vector_sets[:-4])
    )
    sets = [part for text in vector_sets[:-4] for part in ("--set", text)]
    assert command(["audit", "--strategy", "qure", "--queries", "10", *sets, "--out", str(tmp_path)]) == 0
    (stored,) = json.loads((tmp_path / "audit.json").read_text())["audits"]
    assert stored["rows"][0]["pool_size"] == found.rows[0].pool_size
    assert "qure" in repr(found)
    assert "<table" in found._repr_html_()


def test_what_no_configuration_can_name_is_one_line() -> None:
    with pytest.raises(NegbenchError, match="backbones: want names, or tables of a name and options") as told:
        negbench.run(strategy="qure", backbone=object())  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
    with pytest.raises(NegbenchError, match="want names or objects of that kind, got int"):
        negbench.compare(negbench.Compare(strategies=[3]))
    with pytest.raises(NegbenchError, match="--address is a Ray cluster's"):
        negbench.study(negbench.Study(strategy="qure", address="head:6379"))
    with pytest.raises(NegbenchError, match="an executor of your own knows its workers"):
        negbench.compare(negbench.Compare(executor=Here(), workers=2))
    with pytest.raises(NegbenchError, match="workers 0: input should be greater than or equal to 1"):
        negbench.Compare(workers=0)
    with pytest.raises(NegbenchError, match="unknown option 'strategie': did you mean 'strategies'"):
        negbench.Compare(strategie="qure")  # type: ignore[call-arg]
    with pytest.raises(NegbenchError, match="there is no run 'nothing'"):
        negbench.load("nothing", Path("nowhere"))


def test_one_model_is_signature_help_and_check() -> None:
    """Every option of the model is a flag with its help, and a parameter that an editor completes."""
    from typer.main import get_command

    from negbench.cli.main import app

    for model, name in ((negbench.Compare, "compare"), (negbench.Run, "run")):
        parameters = inspect.signature(model).parameters
        assert set(parameters) == set(model.model_fields)
        flags = {each.name: each for each in get_command(app).commands[name].params}  # type: ignore[attr-defined]
        for field, info in model.model_fields.items():
            assert (info.description or "?") in flags[field].help, field
    for function in (negbench.run, negbench.compare):
        assert len(inspect.signature(function).parameters) <= 8


def test_progress_goes_to_the_logger(
    vector_sets: list[str], tmp_path: Path, logged: list[logging.LogRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    class Counting(Here):
        """An executor of one's own."""

        tasks = 0

        def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
            Counting.tasks += len(tasks)
            return super().run(function, tasks)

    where: dict[str, Any] = {"sets": vector_sets, "runs_dir": tmp_path, "tracking_uri": "none"}
    quick: dict[str, Any] = {"seeds": 1, "report": False}
    negbench.compare(negbench.Compare(strategies="qure,in-batch", executor=Counting(), **quick, **where))
    assert Counting.tasks == 2
    assert any("[2/2]" in record.getMessage() for record in logged)
    assert capsys.readouterr().out == ""
