"""Systems as an axis: its cells, and settings that stay untouched."""

from pathlib import Path

import pytest

from negbench.analysis.verdict_record import read_verdicts
from negbench.campaign.plan import ComparisonPlan, plan_comparison
from negbench.cli.main import run as negbench
from negbench.machine.files import read_json
from negbench.settings.config import ResolvedConfig
from negbench.settings.options import Compare


def matrix_of(vector_sets: list[str], systems: str, strategies: str) -> ComparisonPlan:
    options = Compare(systems=systems, strategies=strategies, seeds=1, sets=tuple(vector_sets), lr="fixed")
    return plan_comparison(options, Path("nowhere"))


def configs_of(matrix: ComparisonPlan, system: str) -> dict[str, ResolvedConfig]:
    """Return the configurations of a system, by strategy."""
    cells = [cell for cell in matrix.cells if cell.labels["system"] == system]
    return {cell.config.strategy.name: cell.config for cell in cells}


def without_negatives(config: ResolvedConfig) -> dict[str, object]:
    """Return the settings that have nothing to do with negatives."""
    settings = {}
    for key, value in config.flat().items():
        if not key.startswith(("strategy.", "schedule.")) and key != "train.num_negatives":
            settings[key] = value
    return settings


@pytest.mark.parametrize(("system", "own_strategy"), [("plain", "in-batch"), ("qure", "qure"), ("dqe", "dqe")])
def test_all_else_is_untouched(vector_sets, system, own_strategy):
    matrix = matrix_of(vector_sets, "plain,qure,dqe", "all-corpus,in-batch,cirqrs,hycole")
    marked = [cell for cell in matrix.cells if cell.labels["system"] == system and cell.columns["own"]]
    assert [cell.config.strategy.name for cell in marked] == [own_strategy]
    configs = configs_of(matrix, system)
    assert set(configs) == {own_strategy, "all-corpus", "in-batch", "cirqrs", "hycole"}
    for strategy, config in configs.items():
        assert without_negatives(config) == without_negatives(configs[own_strategy]), strategy


def test_negatives_per_query_are_the_systems_own(vector_sets):
    """Without a system, rules draw as many as the batch of 24 has others."""
    matrix = matrix_of(vector_sets, "plain,qure", "all-corpus,in-batch,hycole,cirqrs")
    strategies = ("all-corpus", "in-batch", "hycole", "cirqrs")
    plain = configs_of(matrix, "plain")
    assert [plain[strategy].train.num_negatives for strategy in strategies] == [23, None, None, 23]
    qure = configs_of(matrix, "qure")
    assert [qure[strategy].train.num_negatives for strategy in strategies] == [1, 1, 1, 1]


def test_the_schedule_is_the_systems_own(vector_sets):
    matrix = matrix_of([*vector_sets, "schedule.n_def=null", "train.epochs=12"], "qure,cirqrs", "qure,cirqrs")
    assert {cell.config.schedule.refresh_epochs for cell in matrix.cells} == {(2, 4, 6, 8, 10)}


def test_what_is_not_defined_says_why(vector_sets):
    matrix = matrix_of(vector_sets, "plain,qure", "gist,all-corpus")  # gist needs a guide
    assert {cell.config.strategy.name for cell in matrix.cells} == {"in-batch", "qure", "all-corpus"}
    left_out = matrix.folder.about["left_out"]
    assert [(cell["system"], cell["strategy"]) for cell in left_out] == [("plain", "gist"), ("qure", "gist")]
    for cell in left_out:
        assert "mining.guide" in cell["reason"], cell
        assert "\n" not in cell["reason"], cell


def test_the_command_keeps_the_matrix_for_its_readers(vector_flags, tmp_path, capsys, run_command):
    command = ["compare", "--systems", "plain,qure", "--strategies", "all-corpus,in-batch", "--seeds", "1"]
    command += ["--name", "s", "--no-report", "--lr=fixed", "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    command += vector_flags
    assert negbench(command) == 0
    rows = read_json(tmp_path / "s" / "comparison.json")["cells"]
    assert {(row["system"], row["strategy"]) for row in rows if row["own"]} == {("plain", "in-batch"), ("qure", "qure")}
    assert len(rows) == 2 + 3  # in-batch is plain's own
    assert [row for row in rows if not row["run"]] == []
    verdicts = read_verdicts(tmp_path / "s")
    assert {(verdict.system, verdict.baseline) for verdict in verdicts} == {("plain", "in-batch"), ("qure", "qure")}
    for verdict in verdicts:
        assert verdict.facts["own"] == (verdict.verdict == "baseline"), f"{verdict.system}, {verdict.strategy}"
    capsys.readouterr()
    out = " ".join(run_command(*command, "--dry-run").out.split())
    assert "5 cells (2 systems x 2 strategies), 5 already finished" in out
