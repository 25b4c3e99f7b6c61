"""The cards in docs/cards follow the published schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from negbench.datasets._icons import PACKAGES

CARDS = Path(__file__).parents[2] / "docs/cards"
CARD, SCHEMA = (json.loads((CARDS / name).read_text(encoding="utf-8")) for name in ("emoji.json", "card.schema.json"))


def test_the_card_of_emoji_is_of_the_schema_and_of_the_packages_that_are_read() -> None:
    jsonschema.validate(CARD, SCHEMA)
    assert {name: (each["version"], each["sha256"]) for name, each in CARD["packages"].items()} == {
        package.name: (package.version, package.tarball) for package in PACKAGES.values()
    }
    for name, table in CARD["tables"].items():
        assert table["baseline"] in table["rows"], name
        for label, row in table["rows"].items():
            assert (row["difference"] is None) == (label == table["baseline"])
            (seeds,) = {len(values) for values in row["metrics"].values()}  # a row that is decided early has fewer
            assert 1 <= seeds <= len(table["seeds"])
            assert CARD["main_metric"] in row["metrics"]
            if row["difference"] is not None:
                means = [
                    100 * sum(each["metrics"][CARD["main_metric"]][:seeds]) / seeds
                    for each in (row, table["rows"][table["baseline"]])
                ]
                assert row["difference"]["mean"] == pytest.approx(means[0] - means[1])
                assert row["difference"]["low"] <= row["difference"]["mean"] <= row["difference"]["high"]


@pytest.mark.parametrize(
    "flaw", [{"unknown": 1}, {"tables": {}}, {"packages": {"x": {"version": "1", "sha256": "12"}}}, {"counts": None}]
)
def test_what_is_not_of_the_schema_is_refused(flaw: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CARD, **flaw}, SCHEMA)
