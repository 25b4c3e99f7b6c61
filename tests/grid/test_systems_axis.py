"""Systems as an axis: its cells, and settings that stay untouched."""

from pathlib import Path

from negbench.analysis.verdict_record import read_verdicts
from negbench.campaign.plan import ComparisonPlan, plan_comparison
from negbench.cli.main import run as negbench
from negbench.machine.files import read_json
from negbench.settings.config import ResolvedConfig
from negbench.settings.options import Compare


def matrix_of(vector_sets: list[str], systems: str, strategies: str) -> ComparisonPlan:
    asked = Compare(systems=systems, strategies=strategies, seeds=1, sets=tuple(vector_sets), lr="fixed")
    return plan_comparison(asked, Path("nowhere"))


def config_of(matrix: ComparisonPlan, system: str, strategy: str) -> ResolvedConfig:
    return next(c.config for c in matrix.cells if c.labels["system"] == system and c.config.strategy.name == strategy)


def without_negatives(config: ResolvedConfig) -> dict[str, object]:
    return {
        key: value
        for key, value in config.flat().items()
        if not key.startswith(("strategy.", "schedule.")) and key != "train.num_negatives"
    }


def test_all_else_is_untouched(subtests, vector_sets):
    matrix = matrix_of(vector_sets, "plain,qure,dqe", "all-corpus,in-batch,cirqrs,hycole")
    for system, own in (("plain", "in-batch"), ("qure", "qure"), ("dqe", "dqe")):
        with subtests.test(system=system, own=own):
            cells = [cell for cell in matrix.cells if cell.labels["system"] == system]
            assert [cell.config.strategy.name for cell in cells if cell.columns["own"]] == [own]
            base = config_of(matrix, system, own)
            swapped = {c.config.strategy.name: c.config for c in cells}
            assert set(swapped) == {own, "all-corpus", "in-batch", "cirqrs", "hycole"}
            for config in swapped.values():
                assert without_negatives(config) == without_negatives(base), config.strategy.name


def test_negatives_per_query_and_schedule_are_the_systems_own(subtests, vector_sets):
    matrix = matrix_of(vector_sets, "plain,qure", "all-corpus,in-batch,hycole,cirqrs")
    for strategy, plain, qure in (("all-corpus", 23, 1), ("in-batch", None, 1), ("hycole", None, 1), ("cirqrs", 23, 1)):
        with subtests.test(strategy=strategy, plain=plain):
            assert config_of(matrix, "plain", strategy).train.num_negatives == plain  # the 23 others in a batch of 24
            assert config_of(matrix, "qure", strategy).train.num_negatives == qure
    matrix = matrix_of([*vector_sets, "schedule.n_def=null", "train.epochs=12"], "qure,cirqrs", "qure,cirqrs")
    assert {cell.config.schedule.refresh_epochs for cell in matrix.cells} == {(2, 4, 6, 8, 10)}


def test_what_is_not_defined_says_why(vector_sets):
    matrix = matrix_of(vector_sets, "plain,qure", "gist,all-corpus")  # gist needs a guide
    assert {cell.config.strategy.name for cell in matrix.cells} == {"in-batch", "qure", "all-corpus"}
    left_out = matrix.folder.about["left_out"]
    assert [(each["system"], each["strategy"]) for each in left_out] == [("plain", "gist"), ("qure", "gist")]
    for each in left_out:
        assert "mining.guide" in each["reason"], each
        assert "\n" not in each["reason"], each


def test_the_command_keeps_the_matrix_for_its_readers(vector_flags, tmp_path, capsys, run_command):
    command = ["compare", "--systems", "plain,qure", "--strategies", "all-corpus,in-batch", "--seeds", "1"]
    command += ["--name", "s", "--no-report", "--lr=fixed", "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    command += vector_flags
    assert negbench(command) == 0
    rows = read_json(tmp_path / "s" / "comparison.json")["cells"]
    assert {(row["system"], row["strategy"]) for row in rows if row["own"]} == {("plain", "in-batch"), ("qure", "qure")}
    assert len(rows) == 2 + 3  # in-batch is plain's own
    assert all(row["run"] for row in rows)
    verdicts = read_verdicts(tmp_path / "s")
    assert {(verdict.system, verdict.baseline) for verdict in verdicts} == {("plain", "in-batch"), ("qure", "qure")}
    assert all(verdict.facts["own"] == (verdict.verdict == "baseline") for verdict in verdicts)
    capsys.readouterr()
    out = " ".join(run_command(*command, "--dry-run").out.split())
    assert "5 cells (2 systems x 2 strategies), 5 already finished" in out
