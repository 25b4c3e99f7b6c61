"""The notebook runs from top to bottom, as in Jupyter: bars, an HTML view of the result, and negatives in a file."""

from __future__ import annotations

import base64
import builtins
import json
import re
import sys
from types import ModuleType
from typing import Any, ClassVar

import pandas as pd

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


def test_the_notebook_ends_with_negatives(tmp_path, monkeypatch):
    shell, ipython, outputs = ZMQInteractiveShell, ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", shell, raising=False)
    monkeypatch.setattr(ipython, "version_info", (9, 0), raising=False)  # matplotlib asks
    monkeypatch.setattr(outputs, "display", lambda *_, **__: Line(), raising=False)
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", outputs)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    cells = json.loads((EXAMPLES / "own_arrays.ipynb").read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        shell.execution_count = number
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("epochs=10", "epochs=1")
            exec(source.replace("seeds=3", 'seeds=1, lr="fixed", report=False'), names)

    (bars,) = {number for number, text in Line.drawn if re.search(r"compute cells.*[1-4]/4", text)}
    assert "negbench.compare" in "".join(cells[bars]["source"])
    assert Line.drawn[-1][1] == ""  # nothing is left of a bar
    assert display._line_of.cache_info().misses == len({number for number, _ in Line.drawn})

    view, comparison = names["comparison"]._repr_html_(), names["comparison"]
    assert [name for name in comparison.table.strategy if f"<td>{name}</td>" not in view] == []
    assert comparison.answer[0].partition(":")[0] in view
    pictures = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]+)"', view)
    assert any(b"top-k(k=20)" in base64.b64decode(picture) for picture in pictures)

    mined, triplets = pd.read_parquet("negatives.parquet"), names["triplets"].query("split == 'train'")
    assert list(mined.target) == list(triplets.target)
    assert {len(set(row) - {target}) for row, target in zip(mined.negatives, mined.target, strict=True)} == {5}
    assert set(mined.negatives.explode()) <= set(names["image_ids"])
