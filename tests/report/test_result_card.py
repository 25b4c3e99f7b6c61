"""A comparison's result card: it follows the published schema, holds the runs' own numbers, and repeats them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from negbench.report.result_card import write_result_card
from negbench.settings.config import build_config, resolve
from negbench.store.runfolder import RunFolder

CARDS = Path(__file__).parents[2] / "docs/cards"
SCHEMA = json.loads((CARDS / "card.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def card(compared: Path) -> dict[str, Any]:
    write_result_card(compared, "small")  # test_build.py has the command
    text = (compared / "small/card.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return document


@pytest.fixture(scope="module")
def card_text(card: dict[str, Any], compared: Path) -> str:
    return (compared / "small/card.md").read_text(encoding="utf-8")


def test_a_card_is_of_the_published_schema(card, subtests):
    jsonschema.validate(card, SCHEMA)
    first = card["rows"][0]
    for flaw in ({"unknown": 1}, {"rows": []}, {"rows": [{**first, "seeds": []}]}, {"provenance": {}}):
        with subtests.test(flaw=flaw), pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**card, **flaw}, SCHEMA)


def test_contributed_cards_are_of_the_published_schema(subtests):
    for path in {*CARDS.glob("*.json")} - {CARDS / "card.schema.json"}:
        with subtests.test(path.name):
            jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), SCHEMA)


def test_a_card_has_the_numbers_of_the_runs(card, card_text, compared):
    for row in card["rows"]:
        case = f"{row['strategy']} under {row['loss']}"
        runs = [RunFolder(compared / name) for name in row["runs"]]
        assert [run.config.seed for run in runs] == row["seeds"] == [0, 1], case
        for name, values in row["metrics"].items():
            assert values == [run.result["metrics"][name] for run in runs], f"{case}, {name}"
        seconds = [sum(run.result["seconds"].values()) for run in runs]
        assert row["seconds"] == pytest.approx(np.mean(seconds)), case
        assert f"| {row['strategy']}" in card_text, case
        assert f"| {row['loss']}" in card_text, case


def test_the_recipe_of_a_card_and_the_settings_of_a_row_are_those_of_its_runs(card, card_text, compared):
    (recipe,) = re.findall(r"```toml\n(.*?)```", card_text, flags=re.S)
    for row in card["rows"]:
        settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in row["settings"].items())
        for run in [RunFolder(compared / name) for name in row["runs"]]:
            folder_and_seed = {"dataset": {"root": run.config.flat()["dataset.root"]}, "seed": run.config.seed}
            layers = [tomllib.loads(recipe), tomllib.loads(settings) | folder_and_seed]
            assert resolve(build_config(layers)).identity() == resolve(run.config).identity(), run.run_id


def test_a_difference_in_a_card_is_that_of_its_means(card):
    means = {}
    for row in card["rows"]:
        means[row["loss"], row["strategy"]] = np.mean(row["metrics"][row["test"]["metric"]])
    for row in card["rows"]:
        test = row["test"]
        if test["verdict"] == "baseline":
            expected = None
        else:
            gap = means[row["loss"], row["strategy"]] - means[row["loss"], test["baseline"]]
            expected = pytest.approx(gap, abs=1e-9)
        assert test["difference"] == expected, f"{row['strategy']} under {row['loss']}"


def test_only_a_comparison_has_a_card(tmp_path, run_command):
    (tmp_path / "held").mkdir()
    for name in ("comparison", "claims"):
        (tmp_path / f"held/{name}.json").write_text('{"kind": "claims"}', encoding="utf-8")
    error = run_command("report", "held", "--card", "--runs-dir", str(tmp_path), code=2).err
    assert "only a comparison has a card" in error
