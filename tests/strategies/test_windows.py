"""Windows of ranks are checked against the training gallery before anything is computed."""

import pytest

from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.loop.runs import plan_run
from negbench.systems.system import load_config


def test_a_window_outside_the_training_gallery_is_refused_before_training():
    def plan(start: int | str, stop: int | str, name: str = "shifted-top-k") -> None:
        flags = {"strategy": {"name": name, "start": start, "stop": stop}, "backbone": "vectors", "dataset": "vectors"}
        sets = ("dataset.train_images=100", "dataset.twins=2", "dataset.train_queries=20", "dataset.val_queries=20")
        plan_run(load_config(flags=flags, sets=sets), DataCache())

    plan(99, 500)
    plan("1%", "1.5%")  # 1.5 images are rounded to 2
    for start, stop, problem in (
        (100, 500, r"start = 100 lies outside a gallery of 100 images"),
        ("100%", 500, r"start = 100% lies outside a gallery of 100 images"),
        ("1%", "1.4%", r"start must be below stop \(1.4%\) in a gallery of 100 images, got '1%'"),
        ("4%", 3, r"start must be below stop \(3\) in a gallery of 100 images"),
    ):
        for name in ("shifted-top-k", "in-batch+shifted-top-k", "all-corpus:2>shifted-top-k"):
            with pytest.raises(OptionError, match=problem):
                plan(start, stop, name)
