"""Summary runs: names that MLflow's cut titles tell apart, and which ten rows it draws."""

import dataclasses
import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.metrics.fixed import KINDS
from negbench.metrics.names import SHORT
from negbench.mining.mined import SHARES
from negbench.mining.regime import Regime
from negbench.report import summaries
from negbench.report.summaries import DRAWN, chart_name, sort_for_drawing

GROUPS_KINDS_CUTS = product(("", "dress/", "shirt/"), SHORT, (1, 10, 50))
NAMES = [f"{group}{kind}{cut}" for group, kind, cut in GROUPS_KINDS_CUTS]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("recall_at_10", "R/10"),
        ("average/recall_at_10", "R/10 average"),
        ("average/recall", "R/average"),
        ("subset_recall_at_3", "Rs/3"),
        ("map_at_5", "map/5"),
        ("neg_recall_at_5", "negrecall/5"),
        ("mrr", "mrr"),
        ("dress/of_a_plugin", "of_a_plugin dress"),
    ],
)
def test_a_score_is_named_by_its_kind_and_cut(name, want):
    assert chart_name(name, score=True) == want


def test_recall_comes_first_and_mlflow_takes_every_name():
    values = ["used/train_seconds", "used/encode_seconds", "mined/hardness", "mistakes/wrong_at_10"]
    for kind in SHARES:
        values += [f"mined/draws_{kind}", f"mined/random_{kind}"]
    values += [f"mistakes/{kind}/wrong_at_10" for kind in KINDS]
    values += [f"regime_end/{field.name}" for field in dataclasses.fields(Regime)]
    names = [chart_name(name, score=True) for name in NAMES]
    names += [chart_name(name) for name in dict.fromkeys([*summaries._CHARTS, *values])]
    assert len(set(names)) == len(names)
    assert min(names).startswith("R/")
    for name in names:
        assert re.fullmatch(r"[\w\-. :/]+", name), name
    often = [name for name in names if not name.startswith(("negrecall/", "cirqrs/"))]  # of data without groups
    assert len({name[:10] for name in often}) == len(often)


@pytest.mark.parametrize("tables", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 10, 11, 30])
def test_the_best_the_baseline_and_the_worst_of_each_table_are_drawn(count, tables):
    generator = np.random.default_rng(count)
    groups: list[pd.DataFrame] = []
    rows: list[Any] = []
    for index in range(count):
        mean = SimpleNamespace(value=float(generator.random()))
        verdict = "baseline" if index < tables else "worse"  # the first of each table
        groups.append(pd.DataFrame([{"index": index}]))
        rows.append(SimpleNamespace(mean=mean, verdict=verdict, table_key=(index % tables,)))
    if count == 30:
        rows[-1] = None  # was not judged
    order = [int(group["index"].iloc[0]) for group in sort_for_drawing(groups, rows)]
    assert sorted(order) == list(range(count))
    means = {index: row.mean.value for index, row in enumerate(rows) if row is not None}
    for table in range(min(tables, count)):
        members = [index for index in means if rows[index].table_key == (table,)]
        best = max(members, key=means.__getitem__)
        worst = min(members, key=means.__getitem__)
        assert {best, worst, table} <= set(order[:DRAWN]), table  # the baseline of a table has its number as index
    for name, part in (("drawn", order[:DRAWN]), ("others", order[DRAWN:])):
        values = [means[index] for index in part if index in means]
        assert values == sorted(values, reverse=True), name


BESTS = [f"best {table}" for table in range(DRAWN)]
BASELINES = [f"baseline {table}" for table in range(4)]


@pytest.mark.parametrize(
    ("tables", "drawn"),
    [(4, [*BESTS[:4], *BASELINES, "worst 0", "worst 1"]), (6, [*BESTS[:6], *BASELINES]), (11, BESTS)],
)
def test_of_many_tables_the_worst_rows_are_left_out_first_and_then_the_baselines(tables, drawn):
    groups: list[pd.DataFrame] = []
    rows: list[Any] = []
    for table in range(tables):
        for name, mean in (("worst", 0.3), ("middle", 0.6), ("baseline", 0.5), ("best", 0.7)):
            groups.append(pd.DataFrame([{"name": f"{name} {table}"}]))
            value = SimpleNamespace(value=mean - 0.001 * table)
            rows.append(SimpleNamespace(mean=value, verdict=name, table_key=(table,)))
    order = [group["name"].iloc[0] for group in sort_for_drawing(groups, rows)]
    assert order[:DRAWN] == drawn


def test_the_description_names_the_rows_that_are_not_drawn(monkeypatch):
    findings = SimpleNamespace(groups=[pd.DataFrame([{"strategy": f"s{n}"}]) for n in range(12)], verdicts=[])
    monkeypatch.setattr(summaries, "key_of", shared_name)
    monkeypatch.setattr(summaries, "_summary", lambda name, group, row, index: SimpleNamespace(name=name))
    runs, line = summaries.summary_runs(findings)  # type: ignore[arg-type]
    assert [run.name for run in runs] == [f"s{n}" for n in range(12)]
    assert line.startswith("MLflow draws 10 of these 12 rows: ")
    assert line.endswith(": s10 and s11.")
    findings.groups = findings.groups[:10]
    assert summaries.summary_runs(findings)[1] == ""  # type: ignore[arg-type]


def shared_name(group: pd.DataFrame) -> str:
    return str(group["strategy"].iloc[0])
