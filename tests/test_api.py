"""The Python API: arguments by name or object, the same runs as the command line, data frames, one-line errors."""

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import negbench
from negbench.errors import NegbenchError
from negbench.grid.executors import Event, Function, InProcess
from negbench.grid.looks import Looks
from negbench.report.loaded import Comparison
from tests.plugin_file import ANSWER, PLUGIN


class Counting(InProcess):
    """An executor of the user's own, which notes its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = list[Any]()

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        self.tasks.extend(tasks)
        return super().run(function, tasks)


def small_comparison(sets: Sequence[str], runs: Path, executor: InProcess) -> Comparison:
    """Compare two strategies at one seed, as `c`."""
    where: dict[str, Any] = {"sets": sets, "runs_dir": runs, "tracking_uri": "none", "name": "c", "report": False}
    quick: dict[str, Any] = {"losses": "info-nce", "lr": "fixed", "seeds": 1, "executor": executor}
    strategies = [{"name": "top-k", "k": 3}, "in-batch"]
    return negbench.compare(negbench.Compare(strategies=strategies, **quick, **where))


@pytest.fixture(scope="module")
def comparison(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return small_comparison(vector_sets, tmp_path_factory.mktemp("api"), InProcess())


def test_a_call_makes_the_same_comparison_as_the_command(
    vector_sets, vector_flags, tmp_path, capsys, run_command, logged
):
    """With an executor of the user's; progress goes to the logger."""
    executor = Counting()
    comparison = small_comparison(vector_sets, tmp_path, executor)
    assert len(executor.tasks) == 2
    assert "[2/2]" in " ".join(record.getMessage() for record in logged)
    assert capsys.readouterr().out == ""
    grid = ["--strategy", "top-k:k=3,in-batch", "--loss", "info-nce", "--seeds", "1", "--name", "c", *vector_flags]
    flags = ["--runs-dir", str(tmp_path), "--tracking-uri", "none", "--no-report"]
    document = json.loads(run_command("compare", "--lr=fixed", *grid, *flags, "--json").out)
    assert len(list(tmp_path.glob("*/result.json"))) == 2  # the command reused the runs of the Python call
    assert document["cells"] == json.loads((tmp_path / "c" / "comparison.json").read_text())["cells"]
    assert document["answer"] == comparison.answer


def test_the_tables_of_a_comparison_agree(comparison):
    """Cells are shares, as stored; verdicts and results are in points."""
    assert list(comparison.cells.strategy) == ["in-batch", "top-k(k=3)"]
    mean = comparison.cells.set_index("strategy")["recall_at_10"]
    verdicts = comparison.verdicts.query("metric == 'recall_at_10'").set_index("strategy")
    np.testing.assert_allclose(verdicts["mean"][mean.index], 100 * mean, atol=1e-7)
    results = comparison.results.set_index("strategy")
    np.testing.assert_allclose(results["recall_at_10"][mean.index], 100 * mean)
    np.testing.assert_allclose(comparison.per_query("recall_at_10").mean(1), results["recall_at_10"])
    with pytest.warns(FutureWarning, match="use .verdicts"):
        former = comparison.statistics.query("metric == 'recall_at_10'").set_index("strategy")
    np.testing.assert_allclose(former["mean"][mean.index], mean, atol=1e-9)
    assert set(comparison.cost.strategy) == {"in-batch", "top-k(k=3)"}


def test_a_comparison_and_its_runs_are_loaded_by_name(comparison):
    runs = comparison.path.parent
    assert comparison.answer[0] in repr(comparison)
    assert repr(negbench.load("c", runs)) == repr(comparison)
    one = negbench.load(str(comparison.cells.run[0]), runs)
    assert one.metrics["recall_at_10"] == comparison.cells.recall_at_10[0]


def test_until_none_turns_off_that_of_a_recipe():
    assert Looks.of(negbench.Compare(until=None, max_seeds=4), (0, 1)) is None


def test_a_class_of_ones_own_runs_by_its_file(own_registry, vector_sets, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.replace(ANSWER, "view.window(view.allowed, self.k)"), encoding="utf-8")
    where = negbench.Run(runs_dir=tmp_path, tracking_uri="none", seed=3, plugin=(file,))
    result = negbench.run(strategy="mine:k=2", sets=vector_sets, options=where)
    assert result.folder.config.seed == 3
    assert result.details["behaviour"]["pool_size"] == 2
    assert result.folder.config.plugins == (str(file),)


def test_an_audit_in_python_is_that_of_the_command(vector_sets, vector_flags, document):
    audit = negbench.audit(negbench.Audit(strategies="qure", queries=10, sets=vector_sets[:-4]))
    stored = document("audit", "--strategy", "qure", "--queries", "10", *vector_flags[:-8])
    assert stored["rows"][0]["pool_size"] == audit.rows[0]["pool_size"]
    assert stored["regime"]["target_rank_median"] == audit.regime["target_rank_median"]


def test_what_no_configuration_can_name_is_one_line():
    with pytest.raises(NegbenchError, match=r"backbone <object .*: input should be a valid string") as caught:
        negbench.run(strategy="qure", backbone=object())
    assert "\n" not in str(caught.value)
    with pytest.raises(NegbenchError, match=r"strategies \[3\]: input should be a valid string"):
        negbench.Compare(strategies=[3])
    with pytest.raises(NegbenchError, match="an executor object has its own workers"):
        negbench.compare(negbench.Compare(executor=InProcess(), workers=2))
    with pytest.raises(NegbenchError, match="workers 0: input should be greater than or equal to 1"):
        negbench.Compare(workers=0)
    with pytest.raises(NegbenchError, match="unknown option 'strategie': did you mean 'strategies'"):
        negbench.Compare(strategie="qure")
    with pytest.raises(NegbenchError, match="run 'nothing' in nowhere: not found"):
        negbench.load("nothing", Path("nowhere"))


def test_one_model_is_signature_help_and_check(subtests):
    """Every field of the model is a parameter of its signature and a flag with the same help text."""
    from typer.main import get_command

    from negbench.cli.main import app

    for model, name in ((negbench.Compare, "compare"), (negbench.Run, "run")):
        with subtests.test(name=name):
            assert set(inspect.signature(model).parameters) == set(model.model_fields)
            flags = {parameter.name: parameter for parameter in get_command(app).commands[name].params}
            for field, info in model.model_fields.items():
                assert (info.description or "?") in flags[field].help, field
    for function in (negbench.run, negbench.compare):
        with subtests.test(function=function):
            assert len(inspect.signature(function).parameters) <= 8
