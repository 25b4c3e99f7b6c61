"""Warnings before training: each appears on data that deserve it, and on no others."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from negbench.campaign.forewarn import forewarnings
from negbench.display import Display
from negbench.loop.runs import DATA
from negbench.settings.config import build_config


def warnings_of(folder: Path, margin: float, weight: float, texts: Any = None, **options: Any) -> list[str]:
    """Return the warnings: 40 images; query n asks for image n + 1 from image n; texts are `weight` times as long."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 16)).astype(np.float32)
    if "twin" in options:
        images[options.pop("twin")] = images[0]
    words = rng.normal(size=(2, 16)).astype(np.float32) if texts is None else texts(images)
    np.savez(folder / "i.npz", ids=np.array([f"i{n}" for n in range(40)]), features=images)
    names = [f"t{n}" for n in range(len(words))]
    np.savez(folder / "t.npz", texts=np.array(names), features=weight * words)
    rows = []
    for n in (*range(20, 39), *range(19)):
        text = names[n % len(names)]
        split = "train" if n >= 20 else "val"
        rows.append({"reference": f"i{n}", "text": text, "target": f"i{n + 1}", "split": split})
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    dataset = {"name": "triplets", "file": str(folder / "q.jsonl"), **options}
    backbone = {"name": "precomputed", "images": str(folder / "i.npz"), "texts": str(folder / "t.npz")}
    layer = {"dataset": dataset, "backbone": {**backbone, "fusion": "sum"}, "strategy": "in-batch"}
    return forewarnings([build_config([layer])], margin, Display(), DATA)


def test_each_reason_is_one_line(tmp_path):
    few, gallery, first = warnings_of(tmp_path, 0.01, weight=0.01)
    # by hand: 1.96 sqrt(0.05 / 19) = 10.1 points; 0.05 (1.96 / 0.01)^2 = 1,921
    assert few.startswith("19 val queries are few for a margin of 1 point")
    assert "±10.1 points" in few
    assert "1,921 queries" in few
    assert gallery.startswith("val ranks only the 20 of 40 images")
    assert first.startswith("a query's own reference ranks first for")
    assert "R@1 is 0.0% before training" in first
    # with a gallery, without references and with a wide margin there is no warning
    assert warnings_of(tmp_path, 0.2, 0.01, gallery=str(tmp_path / "i.npz"), exclude_reference=True) == []


def test_a_metric_that_is_high_already_and_equal_images(tmp_path):
    def answers(images: Any) -> Any:
        unit = images / np.linalg.norm(images, axis=1, keepdims=True)
        return 3 * unit[1:] - unit[:-1]  # their sum with the reference is the target's direction

    options = {"gallery": str(tmp_path / "i.npz"), "exclude_reference": True}
    (line,) = warnings_of(tmp_path, 0.2, 1.0, answers, **options)
    assert line.startswith("R@10 is 100.0% before any training")
    (line,) = warnings_of(tmp_path, 0.2, 0.01, twin=30, **options)
    assert line.startswith("1 of 40 images in val have the same embedding as another")


def test_what_cannot_be_loaded_is_left_to_the_runs(tmp_path):
    layer = {"dataset": {"name": "triplets", "file": str(tmp_path / "none.jsonl")}, "strategy": "in-batch"}
    assert forewarnings([build_config([layer])], 0.01, Display(), DATA) == []
