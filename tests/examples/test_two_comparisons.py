"""The example that puts two comparisons side by side, against their stored rows and commands."""

import pytest

from negbench.analysis.findings import read_findings
from negbench.cli.main import run as negbench


def test_rows_in_both_verdicts_that_changed_and_settings_that_differ(subtests, example, vector_sets, tmp_path):
    common = [f"--set={text}" for text in vector_sets]
    common += ["--runs-dir", str(tmp_path), "--no-report"]
    common += ["--tracking-uri", "none", "--losses", "bradley-terry", "--lr=fixed"]
    two = ["--strategies", "in-batch,qure,top-k", "--seeds", "2", "--set", "train.epochs=2"]
    assert negbench(["compare", *common, *two, "--name", "two"]) == 0
    one = ["--strategies", "in-batch,qure", "--seeds", "1", "--set", "train.epochs=1"]
    assert negbench(["compare", *common, *one, "--name", "one"]) == 0
    first = read_findings(tmp_path, "two")
    second = read_findings(tmp_path, "one")
    module = example("two_comparisons")
    rows = module.rows(first, second).set_index("strategy")
    assert list(rows.index) == ["in-batch", "qure"]  # top-k is not in `one`
    for findings, mean, verdict in ((first, "mean", "verdict"), (second, "other mean", "other verdict")):
        with subtests.test(mean=mean, verdict=verdict):
            by_name = {row.strategy: row for row in findings.main_verdicts}
            assert rows[mean].to_dict() == {name: 100 * by_name[name].mean.value for name in rows.index}
            assert rows[verdict].to_dict() == {name: by_name[name].verdict for name in rows.index}
    assert list(rows["changed"]) == list(rows["verdict"] != rows["other verdict"])
    assert list(rows["moved"]) == pytest.approx(list(rows["mean"] - rows["other mean"]))
    settings = module.settings(first, second).set_index("setting")
    assert tuple(settings.loc["train.epochs"]) == ("2", "1")
    assert {key.split(".")[0] for key in settings.index} <= {"schedule", "train"}  # no entry for the missing seed
    assert module.settings(first, first).empty
