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
    values = {
        name: [[1 / int(digit) if digit != "0" else 0.0 for digit in row] for row in rows]
        for name, rows in stored["values"].items()
    }
    labels = {key: np.array(list(stored[key])) for key in ("strata", "clusters") if key in stored}
    design = Design(nested=stored.get("nested", False), share=stored.get("share", 1.0), **labels)
    return ValueTable({name: np.array(rows) for name, rows in values.items()}, design, stored.get("seeds"))


def verdicts(table: ValueTable) -> dict[str, list[Any]]:
    """Return the interval of each strategy's mean; value, interval, p-value and verdict of each pair."""
    rows: dict[str, list[Any]] = {
        name: [each.mean, each.interval.low, each.interval.high] for name, each in summarise(table).items()
    }
    for pair, each in pairs(table, table.generator()).differences.items():
        numbers = (each.value, each.interval.low, each.interval.high, each.p_adjusted, each.minimum_detectable)
        rows[" - ".join(pair)] = [*numbers, each.verdict]
    return rows


def differing() -> list[str]:
    """Return a line for each result that is not as stored."""
    lines = []
    for title, stored in json.loads(TABLES.read_text(encoding="utf-8")).items():
        for name, new in verdicts(table_of(stored)).items():
            if not all(
                a == b if isinstance(b, str) else abs(a - b) <= 1e-9
                for a, b in zip(stored["is"][name], new, strict=True)
            ):
                lines.append(f"{title}: {name}: {stored['is'][name]} -> {new}")
    return lines


def main() -> bool:
    """Record, or print what differs; return whether anything does."""
    if "--record" in sys.argv:
        tables = json.loads(TABLES.read_text(encoding="utf-8"))
        texts = [
            json.dumps(title) + ": " + json.dumps(stored | {"is": verdicts(table_of(stored))})
            for title, stored in tables.items()
        ]
        TABLES.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
        return False
    lines = differing()
    print(f"== statistics of stored values: {len(lines)} differ", *lines, sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
