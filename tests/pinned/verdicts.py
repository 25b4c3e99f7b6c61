"""Pins that no arithmetic moves: differences and verdicts of the value tables stored in tables.json.

    python -m tests.pinned.verdicts [--record]

They are the same on every machine, with any number of threads and any BLAS kernel: words are equal, numbers within
1e-9. `make test` runs them with several of both.
A strategy has a text per seed with a digit per query: 0 is a miss, d the value 1 / d.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from negbench.analysis.statistics import Design, ValueTable, pairs, summarise

TABLES = Path(__file__).with_name("tables.json")


def table_of(stored: dict[str, Any]) -> ValueTable:
    """Build a table from its stored form."""
    values = {}
    for name, texts in stored["values"].items():
        values[name] = np.array([values_in(text) for text in texts])
    labels = {key: np.array(list(stored[key])) for key in ("strata", "clusters") if key in stored}
    design = Design(nested=stored.get("nested", False), alpha_part=stored.get("share", 1.0), **labels)
    return ValueTable(values, design, stored.get("seeds"))


def values_in(text: str) -> list[float]:
    """Return the values of a seed's text: 0 for a 0, 1 / d for another digit d."""
    return [0.0 if digit == "0" else 1 / int(digit) for digit in text]


def verdicts(table: ValueTable) -> dict[str, list[Any]]:
    """Return the interval of each strategy's mean; value, interval, p-value and verdict of each pair."""
    rows: dict[str, list[Any]] = {}
    for name, summary in summarise(table).items():
        rows[name] = [summary.mean, summary.interval.low, summary.interval.high]
    for pair, difference in pairs(table, table.generator()).differences.items():
        rows[" - ".join(pair)] = [
            difference.value,
            difference.interval.low,
            difference.interval.high,
            difference.p_adjusted,
            difference.minimum_detectable,
            difference.verdict,
        ]
    return rows


def find_differences() -> list[str]:
    """Return a line for each result that is not as stored."""
    lines = []
    for title, stored in json.loads(TABLES.read_text(encoding="utf-8")).items():
        for name, new in verdicts(table_of(stored)).items():
            old = stored["is"][name]
            if not all(is_same(before, after) for before, after in zip(old, new, strict=True)):
                lines.append(f"{title}: {name}: {old} -> {new}")
    return lines


def is_same(before: Any, after: Any) -> bool:
    """Whether a word is equal, or a number up to 1e-9."""
    if isinstance(after, str):
        return bool(before == after)
    return bool(abs(before - after) <= 1e-9)


def main() -> bool:
    """Record, or print what differs; return whether anything does."""
    if "--record" in sys.argv:
        texts = []
        for title, stored in json.loads(TABLES.read_text(encoding="utf-8")).items():
            document = stored | {"is": verdicts(table_of(stored))}
            texts.append(f"{json.dumps(title)}: {json.dumps(document)}")
        TABLES.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
        return False
    lines = find_differences()
    print(f"== statistics of stored values: {len(lines)} differ", *lines, sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
