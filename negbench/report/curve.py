"""The curve of one run: its main metric, loss and refreshes against the epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from negbench.analysis.words import label_of
from negbench.files import atomic_write
from negbench.report.charts import GREY, PALETTE, Chart, Panel, png
from negbench.runfolder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_curve(folder: RunFolder) -> Path:
    """Draw `curve.png` into the run's folder and return its path."""
    result, points = folder.result, folder.metrics()
    name = label_of(result["main_metric"])
    scored = [(p["epoch"] + 1, 100 * p[f"val/{result['main_metric']}"]) for p in points if _scored(p, result)]
    trained = [(p["epoch"] + 1, p["train/loss"]) for p in points if "train/loss" in p]

    def metric(axes: Axes) -> None:
        for epoch in result["refresh_epochs"]:
            axes.axvline(epoch, color=GREY, linewidth=0.8, linestyle=":", label="refresh")
        axes.plot(*zip(*scored, strict=True), color=PALETTE[0], marker="o", label=name)
        axes.set(xlabel="epochs trained", ylabel=f"{name} (%)")

    def loss(axes: Axes) -> None:
        axes.plot(*zip(*trained, strict=True), color=PALETTE[1], label="train loss")
        axes.set(xlabel="epochs trained", ylabel="loss")

    path = folder.path / "curve.png"
    panels = (Panel(name, metric), Panel("training loss", loss))
    with atomic_write(path, "wb") as file:
        file.write(png(Chart("curve", folder.run_id, "", panels)))
    return path


def _scored(point: dict[str, float], result: dict[str, str]) -> bool:
    return f"val/{result['main_metric']}" in point
