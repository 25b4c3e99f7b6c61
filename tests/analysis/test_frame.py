"""The results frame, values per query, verdicts as users get them, and the schemas of both files, this and the last."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel

import negbench
from negbench.analysis.findings import Findings
from negbench.analysis.frame import facts_of, groups_of, known_numbers, mean_of, results_frame, shared_value
from negbench.analysis.shown import cells_of, per_query, shown_results, shown_verdicts
from negbench.analysis.verdict_record import Estimate, StatisticsRecord, read_flat, read_verdicts, write_verdicts
from negbench.analysis.verdicts import Rules, seed_text, tables_of, verdicts_of
from negbench.errors import NegbenchError, OptionError, UnknownNameError
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.comparison_record import ComparisonRecord
from negbench.machine.files import write_json
from tests.made import cell, group, outcome_of, rank_anew, verdict
from tests.report.test_verdicts import group_of, ranks_of

LABELS = {"loss": "l", "backbone": "b", "dataset": "d", "strategy": "s"}


@pytest.fixture
def results(tmp_path: Path) -> pd.DataFrame:
    return pd.concat([group_of(tmp_path, "qure", 0.5, seeds=(4, 7)), group_of(tmp_path, "top-k", 0.1, seeds=(4,))])


# --- the frame ---------------------------------------------------------------------------------------------------


def test_cells_of_a_group_are_adjacent_and_in_the_order_of_their_seeds():
    rows = []
    for strategy, seed in (("b", 2), ("a", 1), ("b", 0)):
        axes = {"system": "", "point": "", "settings": "", "epochs": ""}
        rows.append({**LABELS, **axes, "strategy": strategy, "seed": seed})
    frame = results_frame(rows)
    assert list(zip(frame["strategy"], frame["seed"], strict=True)) == [("b", 0), ("b", 2), ("a", 1)]
    assert [shared_value(cells, "strategy") for cells in groups_of(frame)] == ["b", "a"]


def test_a_dials_values_stay_whole_numbers_and_fractions(tmp_path):
    cells = group_of(tmp_path, "qure", 0.5, seeds=(0,))
    folders = [run.folder for run in cells["stored"]]
    whole, fraction = (group(LABELS, folders, **{"dataset.look": value}) for value in (0, 0.5))
    both = pd.concat([whole, fraction.assign(strategy="t")])
    assert [str(facts_of(cells)["dataset.look"]) for cells in groups_of(both)] == ["0", "0.5"]


def test_numbers_that_no_run_has_are_no_zeros(results):
    (cells, _) = groups_of(results)
    assert known_numbers(cells, "behaviour/pool_size") == [14.0, 17.0]
    assert mean_of(cells, "behaviour/pool_size") == 15.5
    assert known_numbers(cells, "behaviour/overlap") == known_numbers(cells, "behaviour/nothing") == []
    assert math.isnan(mean_of(cells, "behaviour/overlap"))


# --- what users get ----------------------------------------------------------------------------------------------


def test_users_get_points(results):
    table = shown_results(results)
    assert list(table["strategy"]) == ["qure", "qure", "top-k"]
    assert "point" not in table  # no axis of this comparison
    first = next(iter(results["stored"])).result
    assert table["average/recall_at_10"].iloc[0] == pytest.approx(100 * first["metrics"]["average/recall_at_10"])
    assert list(table["pool_size"]) == [14.0, 17.0, 14.0]  # no share
    assert list(table["train_seconds"]) == [6.0, 9.0, 6.0]
    assert table["negatives_seen"].dtype.kind == "i"


def test_values_per_query_are_in_the_order_of_the_rows(results):
    assert list(results.index) == [0, 1, 0]  # alike for two rows
    values = per_query(results, "average/recall_at_10")
    results = results.reset_index(drop=True)
    want = []
    for seed, better in ((404, 0.5), (407, 0.5), (504, 0.1)):
        ranks = ranks_of(seed, better).target_rank.tolist()
        want.append([100.0 * (rank <= 10) for rank in ranks])
    assert values.tolist() == want
    turned = per_query(results[::-1], "average/recall_at_10")
    assert turned.tolist() == want[::-1]
    strata = np.array(ranks_of(0, 0.0).group)
    means = np.mean([values[:, strata == name].mean(1) for name in np.unique(strata)], axis=0)
    np.testing.assert_allclose(means, shown_results(results)["average/recall_at_10"])


@pytest.mark.parametrize(
    ("printed", "column"),
    [
        ("R@10", "average/recall_at_10"),
        ("average R@10", "average/recall_at_10"),
        ("recall_at_10", "average/recall_at_10"),
        ("dress R@10", "dress/recall_at_10"),
    ],
    ids=["average", "average in full", "without a group", "one group"],
)
def test_a_metric_may_be_named_as_tables_print_it(results, printed, column):
    results = results.reset_index(drop=True)
    np.testing.assert_array_equal(per_query(results, printed), per_query(results, column))


CHOICES_OF_ROWS: dict[str, list[int]] = {
    "a group's rows apart": [0, 2, 1],
    "seeds turned": [1, 2, 0],
    "one row": [2],
    "a row twice": [1, 2, 1],
}


@pytest.mark.parametrize("rows", CHOICES_OF_ROWS.values(), ids=CHOICES_OF_ROWS)
@pytest.mark.parametrize("index", ["kept", "new", "alike"])
def test_values_per_query_are_those_of_the_chosen_rows(results, rows, index):
    results = results.reset_index(drop=True)
    every = per_query(results, "average/recall_at_10")
    assert len({row.tobytes() for row in every}) == 3
    table = shown_results(results).iloc[rows]
    if index == "new":
        table = table.reset_index(drop=True)
    elif index == "alike":
        table = table.set_index(pd.Index([0] * len(rows)))
    cells = cells_of(results, table)
    np.testing.assert_array_equal(per_query(cells, "average/recall_at_10"), every[rows])


def test_rows_that_are_no_cells_are_refused_in_one_line(results):
    table = shown_results(results)
    with pytest.raises(OptionError, match="no column 'run': choose whole rows"):
        cells_of(results, table[["strategy"]])
    with pytest.raises(OptionError, match="run other is not in these results"):
        cells_of(results, table.assign(run="other"))
    with pytest.raises(OptionError, match="there are no cells"):
        per_query(cells_of(results, table.iloc[:0]), "average/recall_at_10")


def test_what_has_no_values_per_query_is_one_line(results, tmp_path):
    with pytest.raises(UnknownNameError, match="unknown metric 'recoll_at_10' in the results on f@1: did you mean"):
        per_query(results.reset_index(drop=True), "recoll_at_10")
    other = group_of(tmp_path, "qure", 0.5, seeds=(4,), dataset="g@1")
    for run in other["stored"]:
        rank_anew(run.folder, ranks_of(1, 0.5, queries=60).to_frame())
    both = pd.concat([results, other], ignore_index=True)
    with pytest.raises(OptionError, match="60 and 120 queries: choose cells of one data set"):
        per_query(both, "average/recall_at_10")


def test_verdicts_in_points_have_a_column_for_each_end(results):
    (computed,) = tables_of(groups_of(results), main_only=True)
    verdicts = verdicts_of(computed, Rules("top-k"))
    points = shown_verdicts(verdicts).set_index("strategy")
    (qure,) = [verdict for verdict in verdicts if verdict.strategy == "qure"]
    assert points.loc["qure", "mean_low"] == pytest.approx(100 * qure.mean.low)
    assert points.loc["qure", "against_baseline"] == pytest.approx(100 * qure.against_baseline.value)
    assert points.loc["qure", "against_baseline_p"] == qure.against_baseline.p  # no share
    assert math.isnan(points.loc["top-k", "against_baseline"])
    assert points.loc["top-k", "against_best"] == -points.loc["qure", "against_baseline"]
    assert {"system", "point", "settings", "epochs"}.isdisjoint(points)


# --- stored ------------------------------------------------------------------------------------------------------


def test_what_seeds_the_intervals_is_frozen():
    """A change of this text moves every stored interval by the noise of its draws."""
    assert seed_text(("", "k=1", "", "20", "bradley-terry", "tiny", "d@1"), "recall_at_10") == (
        "k=1/20/bradley-terry/tiny/d@1/recall_at_10"
    )


def test_verdicts_are_read_as_they_were_written(results, tmp_path):
    (table,) = tables_of(groups_of(results), main_only=True)
    verdicts = [verdict.round_numbers() for verdict in verdicts_of(table, Rules("top-k"))]
    Findings(results, {}, tuple(verdicts)).write(tmp_path)
    assert list(map(repr, read_verdicts(tmp_path))) == list(map(repr, verdicts))  # as texts, in which NaN equals NaN
    document = json.loads((tmp_path / "statistics.json").read_text())
    assert document["schema"] == 3
    assert StatisticsRecord.model_validate(document).verdicts


def test_the_schema_before_is_read(tmp_path):
    """A row of schema 2: the best's differences were its mean minus the strategy's, and facts were columns."""
    flat = {
        **LABELS, "metric": "m", "main": True, "mean": 0.4, "sd": None, "low": 0.3, "high": 0.5, "seeds": 1,
        "queries": 9, "baseline": "t", "verdict": "worse", "beaten_by": ["t"], "gap": 0.1, "gap_low": 0.05,
        "gap_high": 0.2, "behind": None, "behind_low": None, "behind_high": None, "against": True, "difference": -0.1,
        "diff_low": -0.2, "diff_high": -0.05, "p_adjusted": 0.01, "more_seeds": 3, "plugin": "s", "num_negatives": 5,
    }  # fmt: skip
    write_json(tmp_path / "statistics.json", {"rows": [flat]})
    (read,) = read_verdicts(tmp_path)
    assert read.against_best == Estimate(-0.1, -0.2, -0.05)
    assert read.behind_best == Estimate(0.1, 0.05, 0.2)
    assert read.against_highest is None
    assert read.against_baseline == Estimate(-0.1, -0.2, -0.05, 0.01)
    assert (read.facts, read.beaten_by, math.isnan(read.sd)) == ({"plugin": "s", "num_negatives": 5}, ("t",), True)
    flat_again = read.flat()
    for key, value in {**flat, "beaten_by": ("t",)}.items():
        if value is not None:
            assert flat_again[key] == value, key


def test_flat_columns_are_those_of_the_schema_before():
    row = verdict(**LABELS, mean=0.4, gap=0.1, gap_low=0.05, gap_high=0.2, num_negatives=5)
    assert repr(read_flat(row.flat())) == repr(row)
    assert list(row.flat())[:7] == ["dataset", "loss", "backbone", "strategy", "metric", "main", "mean"]
    assert row.flat()["behind"] != row.flat()["behind"]  # NaN: nothing to compare


FLAWS: dict[str, dict[str, Any]] = {
    "a later schema": {"schema": 4, "verdicts": []},
    "an unknown field": {"schema": 3, "verdicts": [], "more": 1},
    "a missing field": {"schema": 3, "verdicts": [{"strategy": "s"}]},
    "rows of another form": {"rows": [{"name": "s"}]},
}


@pytest.mark.parametrize("document", FLAWS.values(), ids=FLAWS)
def test_statistics_of_another_form_are_refused_in_one_line(document, tmp_path):
    write_json(tmp_path / "statistics.json", document)
    with pytest.raises(
        NegbenchError, match=r"statistics\.json is from another version of negbench: rerun its command"
    ) as error:
        read_verdicts(tmp_path)
    assert "\n" not in str(error.value)


CELL = {**LABELS, "seed": 0, "hash": "h", "run": None, "error": "mend this"}
COMPARISONS: dict[str, tuple[dict[str, Any], str]] = {
    "a later schema": ({"schema": 3, "cells": []}, "schema: Input should be 2"),
    "an unknown key": ({"schema": 2, "cells": [], "more": 1}, "more: Extra inputs are not permitted"),
    "a cell without its run": ({"schema": 2, "cells": [{**LABELS, "seed": 0}]}, "cells.0.hash: Field required"),
    "a cell without its dial": (
        {"schema": 2, "cells": [CELL], "dials": [{"key": "dataset.twins", "values": [1]}]},
        "cells.0 has no value of the dial dataset.twins",
    ),
    "a list as a dial's value": ({"schema": 2, "cells": [{**CELL, "dataset.twins": [1]}]}, "cells.0.dataset.twins"),
    "a dial of lists": (
        {"schema": 2, "cells": [], "dials": [{"key": "dataset.twins", "values": [[1]]}]},
        "dials.0.values.0",
    ),
    "a seed that is a text": ({"schema": 2, "cells": [{**CELL, "seed": "0"}]}, "cells.0.seed: Input should be"),
}


@pytest.mark.parametrize(("document", "why"), COMPARISONS.values(), ids=COMPARISONS)
def test_a_comparison_of_another_form_is_refused_in_one_line(document, why, tmp_path):
    write_json(tmp_path / "demo" / "comparison.json", document)
    with pytest.raises(NegbenchError, match=r"rerun its command, negbench compare \.\.\. --name demo$") as error:
        ComparisonFolder(tmp_path / "demo").read()
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [("claims", "c", "claims ... --name c"), ("final", "s-final", "study ... --name s"), ("other", "o", "compare")],
)
def test_what_is_refused_names_the_command_that_makes_it_anew(kind, name, command, tmp_path, subtests):
    folder = tmp_path / name
    write_json(folder / "comparison.json", {"kind": kind, "schema": 9, "cells": []})
    write_json(folder / "statistics.json", {"schema": 9})
    for read in (ComparisonFolder(folder).read, lambda: read_verdicts(folder)):
        with (
            subtests.test(read=read.__qualname__),
            pytest.raises(NegbenchError, match=f"rerun its command, negbench {command}"),
        ):
            read()


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    plain: dict[str, Any] = json.loads(json.dumps(schema).replace("NaN", "null"))  # as numbers are stored
    return plain


SCHEMAS = {"comparison": ComparisonRecord, "statistics": StatisticsRecord}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schema_is_that_of_the_model(name):
    """NEGBENCH_GOLDEN=1 writes it."""
    published = Path(negbench.__file__).with_name(f"{name}.schema.json")
    if "NEGBENCH_GOLDEN" in os.environ:
        published.write_text(json.dumps(schema_of(SCHEMAS[name]), indent=2) + "\n", encoding="utf-8")
    assert json.loads(published.read_text(encoding="utf-8")) == schema_of(SCHEMAS[name])


def test_what_is_written_is_of_the_published_schema(results, tmp_path, subtests):
    (table,) = tables_of(groups_of(results), main_only=True)
    write_verdicts(tmp_path, verdicts_of(table, Rules("top-k")))
    statistics = json.loads((tmp_path / "statistics.json").read_text())
    assert None in [verdict["sd"] for verdict in statistics["verdicts"]]  # of one seed
    jsonschema.validate(statistics, schema_of(StatisticsRecord))
    about = {"dials": [{"key": "dataset.twins", "values": [1, 0.5]}], "remarks": ["r"]}
    ComparisonFolder(tmp_path, about).write([outcome_of(cell("a", 0)), outcome_of(cell("b", 1), "why")])
    document = json.loads((tmp_path / "comparison.json").read_text())
    jsonschema.validate(document, schema_of(ComparisonRecord))
    for flawed in ({**document, "more": 1}, {**document, "schema": 1}, {**document, "cells": [{"seed": 0}]}):
        with subtests.test(flawed=flawed), pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(flawed, schema_of(ComparisonRecord))


def test_comparisons_of_the_schemas_before_are_read(tmp_path):
    write_json(tmp_path / "comparison.json", {"cells": [{**CELL, "dataset.twins": 3}]})  # of schema 1
    (cell,) = ComparisonFolder(tmp_path).cells()
    assert cell["dataset.twins"] == 3


def test_estimates_are_turned_without_a_negative_zero(tmp_path):
    assert str(Estimate(0.0, -1.0, 0.0, 0.5).reverse()) == "Estimate(value=0.0, low=0.0, high=1.0, p=0.5, seeds=None)"
    write_verdicts(tmp_path, [replace(verdict(**LABELS, mean=0.0), more_seeds=22)])
    assert '"more_seeds": 22,' in (tmp_path / "statistics.json").read_text()  # a whole number stays one
