"""Aggregates: tables read from comparisons, numbers recomputed from the runs, the folder read again."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from negbench.analysis import measures
from negbench.analysis.verdicts import Rules
from negbench.cli.main import run as negbench
from negbench.errors import RunError
from negbench.files import read_json, write_json
from negbench.report.aggregate import FILE, charts_of, results_of, tables_of
from negbench.report.charts import svgs

NAMES = ("all-corpus", "in-batch", "top-k")
WORLDS = ("2", "3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparisons of three strategies on worlds of vectors, one of which has a fourth strategy and three seeds."""
    folder = tmp_path_factory.mktemp("runs")
    small = ["train_images=40", "train_queries=30", "val_images=40", "val_queries=30"]
    sets = [*(f"dataset.{text}" for text in small), "train.epochs=3", "eval.select=dev"]
    for twins, extra, seeds in ((WORLDS[0], "", "2"), (WORLDS[1], ",after-target", "3")):
        command = ["compare", "--strategies", ",".join(NAMES) + extra, "--seeds", seeds, "--name", f"w{twins}"]
        command += ["--datasets", f"vectors:twins={twins}", "--backbones", "vectors", "--runs-dir", str(folder)]
        command += ["--tracking-uri", "none", "--no-audit", "--no-report"]
        assert negbench([*command, *(part for text in sets for part in ("--set", text))]) == 0
    return folder


def test_tables_hold_what_the_runs_came_to(runs: Path) -> None:
    found = tables_of(runs, ["w2", "w3"])
    assert found.strategies == NAMES
    assert found.scores.shape == (3, 2, 2)
    assert found.notes == (
        "left out, not in every table: after-target",
        "the first 2 seeds that all strategies have are used of each table",
    )
    for (k, strategy), (t, name) in product(enumerate(NAMES), enumerate(("w2", "w3"))):
        for cell in read_json(runs / name / "comparison.json")["cells"]:
            if cell["strategy"] == strategy and cell["seed"] < 2:
                result = read_json(runs / cell["run"] / "result.json")
                assert found.scores[k, cell["seed"], t] == result["metrics"][result["main_metric"]]
    assert tables_of(runs, ["w2", "w3", "w2"]).scores.tolist() == found.scores.tolist()


def test_the_aggregate_is_its_measures(runs: Path) -> None:
    tables = tables_of(runs, ["w2", "w3"])
    found = results_of(tables, Rules(), "all-corpus")
    iqm, plain = (measures.interquartile_mean(s) for s in (measures.scaled(tables.scores), tables.scores))
    won = measures.wins(tables.scores)
    for each in found.overall:
        k = NAMES.index(each.strategy)
        assert each.iqm == pytest.approx(iqm[k])
        assert each.percent_iqm == pytest.approx(plain[k])
        assert each.iqm_low <= each.iqm <= each.iqm_high
        assert each.elo == pytest.approx(measures.elo(won.sum(axis=0), 0)[k])
        assert each.rank == pytest.approx(measures.table_ranks(tables.scores)[:, k].mean())
    assert next(each for each in found.overall if each.strategy == "all-corpus").elo == 1000
    assert [each.elo for each in found.overall] == sorted((each.elo for each in found.overall), reverse=True)
    better = measures.improvement(tables.scores)
    for duel in found.duels:
        i, j = NAMES.index(duel.first), NAMES.index(duel.second)
        assert duel.improvement == pytest.approx(better[i, j])
        assert duel.low <= duel.improvement <= duel.high
        assert duel.wins == pytest.approx(won[:, i, j].mean())
    assert results_of(tables, Rules(), "all-corpus").overall == found.overall  # the same runs, the same intervals


def test_one_seed_has_no_interval(runs: Path) -> None:
    tables = tables_of(runs, ["w2", "w3"])
    alone = type(tables)(**{**vars(tables), "scores": tables.scores[:, :1]})
    found = results_of(alone, Rules(), "in-batch")
    assert all(math.isnan(each.iqm_low) and math.isnan(each.iqm_high) for each in found.overall)
    for chart in charts_of(found):
        assert svgs(chart)[0]


def test_the_command_writes_and_the_report_reads(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert negbench(["aggregate", "w2", "w3", "--name", "both", "--runs-dir", str(runs)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("answer\n3 strategies on 2 tables, 2 seeds: ")
    assert "2 tables are few" in out
    assert "Epoch chosen by dev instead of the last" in out
    folder = runs / "both"
    assert {path.name for path in folder.glob("*.csv")} == {
        "overall.csv", "duels.csv", "profile.csv", "selection.csv", "tables.csv",
    }  # fmt: skip
    for name in ("ranks", "overall", "profile", "wins"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    tables = tables_of(runs, ["w2", "w3"])
    means = pd.read_csv(folder / "tables.csv", index_col="table")
    assert means.loc[list(tables.tables), list(NAMES)].to_numpy() == pytest.approx(tables.scores.mean(axis=1).T)
    before = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "Performance profile" in before
    assert negbench(["report", "both", "--runs-dir", str(runs)]) == 0
    assert (folder / "report" / "index.html").read_text(encoding="utf-8") == before
    selected = pd.read_csv(folder / "selection.csv")
    last = selected[selected["rule"] == "last"].set_index(["table", "strategy"])["mean"]
    for table, mine in tables.groups.items():
        for strategy in NAMES:
            # the last point of each run's own curve
            curves = [[p for p in run.metrics() if "val/recall_at_10" in p][-1] for run in mine[strategy].runs]
            assert last[table, strategy] == pytest.approx(np.mean([point["val/recall_at_10"] for point in curves]))


def test_what_cannot_be_aggregated_is_said_in_a_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["aggregate", "--runs-dir", str(runs), "--name", "x"]
    assert negbench([*base, "w2"]) == 2
    assert "1 tables have 3 strategies in common: an aggregate needs at least 2 of each" in capsys.readouterr().err
    assert negbench([*base, "w2", "w3", "--baseline", "after-target"]) == 2
    assert "after-target" in capsys.readouterr().err
    assert negbench([*base[:-1], "w2", "w2", "w3"]) == 2
    assert "is no aggregate: give another --name" in capsys.readouterr().err
    assert not (runs / "x").exists()
    cells = read_json(runs / "w2" / "comparison.json")["cells"]
    seeds = [{**cell, "run": next(c["run"] for c in cells if c["seed"] != cell["seed"])} for cell in cells]
    write_json(runs / "turned" / "comparison.json", {"cells": seeds})
    with pytest.raises(RunError, match="is in 'w2' and in 'turned' with other runs: aggregate one of them"):
        tables_of(runs, ["w2", "turned", "w3"])
    assert FILE == "aggregate.json"
