"""The curve of one run: its main metric, loss and refreshes against the epoch."""

from __future__ import annotations

from pathlib import Path

from negbench.files import atomic_write
from negbench.runfolder import RunFolder


def write_curve(folder: RunFolder) -> Path:
    """Draw `curve.png` into the run's folder and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result, points = folder.result, folder.metrics()
    main = f"val/{result['main_metric']}"
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    scored = [(point["epoch"] + 1, point[main]) for point in points if main in point]
    axes.plot(
        *zip(*scored, strict=True), color="#1f5fa8", marker="o", markersize=3, label=label_of(result["main_metric"])
    )
    for number, epoch in enumerate(result["refresh_epochs"]):
        axes.axvline(epoch, color="#888888", linewidth=0.8, linestyle=":", label="refresh" if number == 0 else None)
    axes.set(xlabel="epoch", ylabel=label_of(result["main_metric"]), title=folder.run_id)
    losses = axes.twinx()
    trained = [(point["epoch"] + 1, point["train/loss"]) for point in points if "train/loss" in point]
    losses.plot(*zip(*trained, strict=True), color="#c05a2e", linewidth=1, label="train loss")
    losses.set_ylabel("train loss")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    path = folder.path / "curve.png"
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, metadata={"Software": None})
    return path


def label_of(metric: str) -> str:
    """How tables and plots print a metric: 'average/recall_at_10' -> 'average R@10'."""
    *group, name = metric.split("/")
    for long, short in (("subset_recall_at_", "Rs@"), ("recall_at_", "R@"), ("map_at_", "mAP@"), ("hit_at_", "hit@")):
        name = name.replace(long, short)
    return " ".join([*group, name])
