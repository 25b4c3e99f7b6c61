"""Runs that collapsed, and runs that score identically."""

from pathlib import Path

import pandas as pd
import pytest

from negbench.analysis.answer import answer_of
from negbench.analysis.collapse import Ends, bound, ends_of
from negbench.analysis.findings import judge_comparison
from negbench.analysis.verdicts import Rules
from negbench.api import compare
from negbench.settings.config import build_config
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from tests.made import RESULT, group, rank_anew


@pytest.mark.parametrize(
    ("untrained", "best", "fell", "scattered"),
    [
        (0.02, 0.80, 0.21, 0.22),  # a quarter of the gain is left
        (0.45, 0.52, 0.41, 0.43),  # training gains little: seeds 9 points apart scatter
        (0.45, 0.05, 0.05, 0.36),  # every run ends far below the untrained model
        (0.02, 0.03, -0.1, 0.02),  # nothing was learned, so nothing could be lost
    ],
)
def test_the_bound_lies_between_the_untrained_model_and_the_best_run(untrained, best, fell, scattered):
    assert fell < bound(untrained, best) <= scattered


def group_of(runs: Path, strategy: str, ends: dict[int, float], untrained: float = 0.02) -> pd.DataFrame:
    folders = []
    for seed, end in ends.items():
        folder = RunFolder(runs / f"{strategy}-{seed}")
        config = build_config([{"strategy": {"name": "qure"}, "dataset": {"name": "fashioniq"}, "seed": seed}])
        folder.write_manifest({"config": config.model_dump(mode="json"), "hash": "0" * 64})
        baselines = {"untrained": {"m": untrained, "n": 1.0}}
        folder.write_result({**RESULT, "metrics": {"m": end, "n": 1.0}, "baselines": baselines})
        folders.append(folder)
    return group({"strategy": strategy}, folders)


def test_runs_are_held_against_their_own_group_and_alike_only_in_all_seeds(tmp_path):
    groups = [
        group_of(tmp_path, "steady", {0: 0.80, 1: 0.75, 4: 0.71}),
        group_of(tmp_path, "fallen", {0: 0.90, 1: 0.10, 4: 0.23}),
        group_of(tmp_path, "twin", {0: 0.80, 1: 0.75, 4: 0.71}),
        group_of(tmp_path, "shorter", {0: 0.80, 1: 0.75}),
        group_of(tmp_path, "low", {0: 0.02, 1: 0.02, 4: 0.02}),  # far below the others, but not below its own best
    ]
    assert ends_of(groups, "m") == {
        "steady": Ends(identical=("twin",)),
        "fallen": Ends(collapsed=frozenset({1, 4})),
        "twin": Ends(identical=("steady",)),
        "shorter": Ends(),
        "low": Ends(unmoved=True),
    }


def test_the_answer_names_them(vector_sets, tmp_path):
    """At a rate of almost 0 all strategies score as the untrained model; then one run is made to fall."""
    options = Compare(
        strategies="qure,top-k,all-corpus", lr="fixed", seeds=2, name="c",
        sets=(*(text for text in vector_sets if not text.startswith("train.lr")), "train.lr=1e-30", "train.epochs=1"),
        runs_dir=tmp_path, tracking_uri="none", report=False,
    )  # fmt: skip
    result = compare(options)
    assert "all-corpus, qure and top-k score identically: probably the learning rate is too low" in str(result.answer)
    for seed, end in ((0, 0.9), (1, 0.1)):
        (run,) = result.cells.query(f"strategy == 'qure' and seed == {seed}")["run"]
        folder = RunFolder(tmp_path / run)
        ranks = folder.ranks()
        hits = round(end * len(ranks))
        rank_anew(folder, ranks.assign(target_rank=[1] * hits + [20] * (len(ranks) - hits)))
    findings = judge_comparison(tmp_path, "c", Rules())
    rows = {row.strategy: row for row in findings.main_verdicts}
    assert {name: row.collapsed for name, row in rows.items()} == {"qure": 1, "top-k": 0, "all-corpus": 0}
    assert rows["top-k"].identical == ("all-corpus",)
    assert "Collapsed, so without a place in the order: qure in 1 of 2 seeds (" in str(answer_of(findings).lines)
