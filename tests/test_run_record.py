"""The published schema of result.json: the file matches the model, and runs write results that follow it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open

import negbench
from negbench.analysis.verdicts import negatives_of
from negbench.store.run_record import RunRecord, check_types
from negbench.store.runfolder import RunFolder
from tests.made import group

FILE = Path(negbench.__file__).with_name("result.schema.json")


SETTINGS = ("select=last", "select=dev", "select=val", "reported=false")


@pytest.fixture(scope="module")
def results(finished: Callable[..., RunFolder]) -> list[dict[str, Any]]:
    """Return the results of a corpus strategy, by every way to choose the epoch, and of a batch strategy."""
    folders = [finished(setting) for setting in SETTINGS]
    folders.append(finished(SETTINGS[0], "in-batch"))
    return [json.loads((folder.path / "result.json").read_text(encoding="utf-8")) for folder in folders]


def test_the_file_is_that_of_the_model():
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunRecord.model_json_schema()}
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema


def test_equal_weights_are_equal_files(tmp_path):
    """Regression: the order of the metadata varied."""
    folder = RunFolder(tmp_path)
    about = {"run": "a-s0", "hash": "0123", "more": "x"}
    contents = set()
    for _ in range(8):
        folder.write_weights({"b": torch.ones(2), "a": torch.zeros(3)}, about)
        contents.add((tmp_path / "model.safetensors").read_bytes())
    assert len(contents) == 1
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["negbench"]) == about


def test_what_runs_write_is_of_the_schema(results):
    for result in results:
        read = RunRecord.model_validate_json(json.dumps(result))
        assert read.metrics[read.main_metric] == result["metrics"][result["main_metric"]], result["main_metric"]
        for name in result:  # nothing is lost when parsing
            assert json.loads(read.model_dump_json())[name] == result[name], name
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(schema["required"]) == set(schema["properties"]) == set(results[0])


def test_what_is_not_of_the_schema_is_refused(results, subtests):
    flaws: list[dict[str, Any]] = [{"metrics": None}, {"steps": -1}, {"selected_on": "test"}, {"unknown": 1}]
    for flaw in [*flaws, {"seconds": {"train": "1"}}]:
        with subtests.test(flaw=flaw), pytest.raises(ValidationError):
            RunRecord.model_validate_json(json.dumps({**results[0], **flaw}))


def test_a_result_of_another_version_may_have_other_fields(results):
    older = {key: value for key, value in results[0].items() if key not in ("regime", "features")}
    check_types(older)
    check_types({**older, "unknown": 1})


@pytest.mark.parametrize("field", ["metrics", "steps", "remarks"])
def test_a_result_of_any_version_has_what_tables_need(results, field):
    incomplete = {key: value for key, value in results[0].items() if key != field}
    with pytest.raises(ValueError, match=f"{field}: Field required"):
        check_types(incomplete)


def test_unknown_numbers_are_null(results, tmp_path):
    from negbench.machine.files import write_json

    write_json(tmp_path / "r.json", {**results[0], "behaviour": {"overlap": math.nan}})
    assert RunRecord.model_validate_json((tmp_path / "r.json").read_text()).behaviour == {"overlap": None}


@pytest.mark.parametrize("setting", SETTINGS)
def test_one_negative_is_one_however_the_epoch_is_chosen(finished, setting):
    """Regression: with a dev part, 1.11 or 1.25 negatives were printed where one is drawn."""
    run = finished(setting)
    assert negatives_of(group({"strategy": "qure"}, [run])) == run.result["negatives_per_query"] == 1
