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


def test_a_card_holds_what_others_need_to_repeat_the_comparison(compared, subtests):
    write_result_card(compared, "small")  # test_build.py has the command
    card = json.loads((compared / "small/card.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    jsonschema.validate(card, SCHEMA)
    text = (compared / "small/card.md").read_text(encoding="utf-8")
    recipe = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, flags=re.S)[0])
    mains: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    for row in card["rows"]:
        runs = [RunFolder(compared / name) for name in row["runs"]]
        assert [run.config.seed for run in runs] == row["seeds"] == [0, 1], row
        for name, values in row["metrics"].items():
            assert values == [run.result["metrics"][name] for run in runs], row
        assert row["seconds"] == pytest.approx(np.mean([sum(run.result["seconds"].values()) for run in runs])), row
        mains[row["loss"], row["strategy"]] = np.array(row["metrics"][row["test"]["metric"]])
        for run in runs:
            own = tomllib.loads("\n".join(f"{key} = {json.dumps(value)}" for key, value in row["settings"].items()))
            own |= {"dataset": {"root": run.config.flat()["dataset.root"]}, "seed": run.config.seed}  # one's own folder
            assert resolve(build_config([recipe, own])).identity() == resolve(run.config).identity(), row
        assert all(f"| {row[name]}" in text for name in ("strategy", "loss")), row
    for row in card["rows"]:
        gap = mains[row["loss"], row["strategy"]] - mains[row["loss"], row["test"]["baseline"]]
        expected = None if row["test"]["verdict"] == "baseline" else pytest.approx(gap.mean(), abs=1e-9)
        assert row["test"]["difference"] == expected, row
    for contributed in {*CARDS.glob("*.json")} - {CARDS / "card.schema.json"}:
        jsonschema.validate(json.loads(contributed.read_text(encoding="utf-8")), SCHEMA)
    for flaw in ({"unknown": 1}, {"rows": []}, {"rows": [{**card["rows"][0], "seeds": []}]}, {"provenance": {}}):
        with subtests.test(flaw=flaw), pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**card, **flaw}, SCHEMA)


def test_only_a_comparison_has_a_card(tmp_path, run_command):
    (tmp_path / "held").mkdir()
    for name in ("comparison", "claims"):
        (tmp_path / f"held/{name}.json").write_text('{"kind": "claims"}', encoding="utf-8")
    assert (
        "only a comparison has a card"
        in run_command("report", "held", "--card", "--runs-dir", str(tmp_path), code=2).err
    )
