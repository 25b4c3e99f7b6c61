"""The notebook runs from top to bottom, as in Jupyter: bars, an HTML view of the result, and negatives in a file."""

from __future__ import annotations

import base64
import builtins
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pandas as pd
import pytest

from negbench import display
from tests.examples.conftest import EXAMPLES


class ZMQInteractiveShell:
    """The name by which a notebook's shell is recognised."""

    execution_count = 0


class Line:
    """An output of a cell that is drawn again and again."""

    drawn: ClassVar[list[tuple[int, str]]] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.drawn.append((ZMQInteractiveShell.execution_count, data["text/plain"]))


def run_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the cells as a notebook's shell would, with few epochs and one seed; return the cells and their names."""
    shell = ZMQInteractiveShell
    ipython = ModuleType("IPython")
    outputs = ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", shell, raising=False)
    monkeypatch.setattr(ipython, "version_info", (9, 0), raising=False)  # matplotlib asks
    monkeypatch.setattr(outputs, "display", lambda *_, **__: Line(), raising=False)
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", outputs)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    cells = json.loads((EXAMPLES / "own_arrays.ipynb").read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        shell.execution_count = number
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("epochs=10", "epochs=1")
            exec(source.replace("seeds=3", 'seeds=1, lr="fixed", report=False'), names)
    return cells, names


def test_the_notebook_ends_with_negatives(tmp_path, monkeypatch, subtests):
    cells, names = run_notebook(tmp_path, monkeypatch)

    with subtests.test("a bar is drawn in the cell that compares, and cleared"):
        (bars,) = {number for number, text in Line.drawn if re.search(r"compute cells.*[1-4]/4", text)}
        assert "negbench.compare" in "".join(cells[bars]["source"])
        _, last_text = Line.drawn[-1]
        assert last_text == ""
        assert display._line_of.cache_info().misses == len({number for number, _ in Line.drawn})

    with subtests.test("the result's view has its strategies, its answer and a picture"):
        comparison = names["comparison"]
        view = comparison._repr_html_()
        assert [name for name in comparison.table.strategy if f"<td>{name}</td>" not in view] == []
        assert comparison.answer[0].partition(":")[0] in view
        pictures = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]+)"', view)
        assert any(b"top-k(k=20)" in base64.b64decode(picture) for picture in pictures)

    with subtests.test("each query has five different negatives, none of them its target"):
        mined = pd.read_parquet("negatives.parquet")
        triplets = names["triplets"].query("split == 'train'")
        assert list(mined.target) == list(triplets.target)
        distinct = [len(set(row) - {target}) for row, target in zip(mined.negatives, mined.target, strict=True)]
        assert set(distinct) == {5}
        assert set(mined.negatives.explode()) <= set(names["image_ids"])
