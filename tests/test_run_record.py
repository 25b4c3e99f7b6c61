"""The published schema of result.json: the file matches the model, and runs write results that follow it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import negbench
from negbench import api
from negbench.analysis.verdicts import negatives_of
from negbench.grid.comparison import CellGroup
from negbench.settings.options import Run
from negbench.store.runfolder import RunRecord

FILE = Path(negbench.__file__).with_name("result.schema.json")


@pytest.fixture(scope="module")
def results(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of a corpus strategy and a batch strategy."""
    runs = tmp_path_factory.mktemp("runs")
    for strategy in ("qure", "in-batch"):
        api.run(strategy=strategy, sets=vector_sets, options=Run(runs_dir=runs, tracking_uri="none"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(runs.glob("*/result.json"))]


def test_the_file_is_that_of_the_model():
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunRecord.model_json_schema()}
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema


def test_what_runs_write_is_of_the_schema(results):
    for result in results:
        read = RunRecord.model_validate_json(json.dumps(result))
        assert read.metrics[read.main_metric] == result["metrics"][result["main_metric"]]
        for name in result:  # nothing is lost when parsing
            assert json.loads(read.model_dump_json())[name] == result[name]
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(schema["required"]) == set(schema["properties"]) == set(results[0])


def test_what_is_not_of_the_schema_is_refused(results):
    flaws: list[dict[str, Any]] = [{"metrics": None}, {"steps": -1}, {"selected_on": "test"}, {"unknown": 1}]
    for flaw in [*flaws, {"seconds": {"train": "1"}}]:
        with pytest.raises(ValidationError):
            RunRecord.model_validate_json(json.dumps({**results[0], **flaw}))


def test_unknown_numbers_are_null(results, tmp_path):
    from negbench.machine.files import write_json

    write_json(tmp_path / "r.json", {**results[0], "behaviour": {"overlap": math.nan}})
    assert RunRecord.model_validate_json((tmp_path / "r.json").read_text()).behaviour == {"overlap": None}


@pytest.mark.parametrize("select", ["select=last", "select=dev", "select=val", "reported=false"])
def test_one_negative_is_one_however_the_epoch_is_chosen(vector_sets, tmp_path, select):
    """Regression: with a dev part, 1.11 or 1.25 negatives were printed where one is drawn."""
    sets = [*vector_sets, "train.epochs=2", "schedule.n_def=1", f"eval.{select}", "eval.dev_fraction=0.2"]
    run = api.run(strategy="all-corpus", sets=sets, options=Run(runs_dir=tmp_path, tracking_uri="none"))
    assert negatives_of(CellGroup({"strategy": "all-corpus"}, (run.folder,))) == 1
