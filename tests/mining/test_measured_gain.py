"""What audit and answers say of a batch beside which a mined negative gained."""

from pathlib import Path

import pytest

from negbench.mining import measured_gain
from negbench.mining.measured_gain import ON_EMOJI, MeasuredDifference, where_mining_gained

TABLES = (Path(__file__).parents[2] / "docs" / "findings_tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("batch_size", "passes", "points"),
    [
        (16, 3, "2.0"),
        (8, 3, "2.0"),
        (16, 1, "2.0"),
        (32, 3, "1.0"),
        (17, 2, "1.0"),
        (16, 4, ""),
        (33, 3, ""),
        (128, 1, ""),
    ],
)
def test_the_smallest_batch_that_holds_yours_speaks(batch_size, passes, points, monkeypatch):
    rows = (
        MeasuredDifference(32, 3, 1.0, 0.5, 1.5),
        MeasuredDifference(16, 3, 2.0, 1.0, 3.0),
        MeasuredDifference(128, 3, 0.5, -0.5, 1.5),
    )
    monkeypatch.setattr(measured_gain, "ON_EMOJI", rows)
    text = where_mining_gained(batch_size, passes)
    if not points:
        assert text == ""
        return
    assert f"added {points} [" in text
    assert text.startswith(f"your batch of {batch_size} and {passes} pass")
    assert text.endswith("compare: --strategies in-batch,in-batch+shifted-top-k:start=8:stop=16")


@pytest.mark.parametrize("row", ON_EMOJI, ids=lambda row: f"{row.batch_size}-{row.passes}")
def test_the_numbers_are_those_of_the_findings(row):
    """Each stands below a paragraph that names its passes; a table has a column for each batch size, or it is named."""
    number = f"**{row.points:+.1f} [{row.low:.1f}, {row.high:.1f}]**"
    conditions = [f"a batch of {row.batch_size}, {row.passes} passes", f"Emoji, {row.passes} passes"]
    cells = []
    for condition in conditions:
        part = TABLES.partition(condition)[2]
        for line in part.partition("\n## ")[0].splitlines():
            if "ranks 8 to 15 |" in line and line.startswith("|") and number in line:
                cells.append((condition, line.split(" | ").index(number)))
    if row.batch_size == 16:
        assert cells == [(conditions[0], 2)]
    else:
        assert cells == [(conditions[1], 1 + [8, 32, 128].index(row.batch_size))]
