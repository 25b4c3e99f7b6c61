"""Options of built-in losses and strategies: their defaults and the ranges that a study searches.

A row of a table only says "qure" or "hcl", so changing a default changes the meaning of published numbers.
"""

import dataclasses
from typing import Any

import pytest

from negbench.plugins.registry import registry

# name -> option -> (default,), (default, low, high), (default, low, high, "log") for a search on a log scale, or
# (default, choice, ...)
OPTIONS: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "losses": {
        "bradley-terry": {},
        "hcl": {"tau_plus": (0.1, 0.0, 0.3), "beta": (1.0, 0.0, 2.0)},
        "hn-nce": {"alpha": (1.0, 0.1, 2.0), "beta": (0.5, 0.0, 2.0)},
        "info-nce": {},
        "margin-kl": {
            "kl_over": ("batch",), "margin": (0.8, 0.0, 1.0), "margin_aspect": (0.2, 0.0, 0.5),
            "lambda_rank": (1.0, 0.1, 10.0, "log"),
        },
        "multi-similarity": {
            "alpha": (2.0, 0.5, 10.0, "log"), "beta": (50.0, 10.0, 100.0, "log"), "base": (0.5, 0.0, 1.0),
        },
        "triplet": {"margin": (0.2, 0.01, 0.5, "log")},
    },
    "strategies": {
        "after-target": {"n_def": (6,), "k": (100, 10, 1000, "log")},
        "all-corpus": {"n_def": (1,)},
        "bank": {"n_def": (1,), "k": (None,)},
        "cirqrs": {"n_def": (5,), "n_neg": (50, 10, 500, "log")},
        "distance-weighted": {"n_def": (6,), "width": (None,), "cutoff": (0.5, 0.1, 1.0), "limit": (1.4, 1.1, 1.5)},
        "dqe": {"n_def": (6,), "alpha": (0.2, 0.0, 0.4), "beta": (0.8, 0.5, 1.0), "scale": ("absolute",)},
        "fnc": {"n_def": (1,), "threshold": (0.7, 0.3, 0.95), "k": (10, 1, 100, "log")},
        "gist": {"n_def": (1,), "margin": (0.0, 0.0, 0.3), "relative": (False,)},
        "hardness": {"n_def": (1,), "alpha": (9.0, 1.0, 20.0)},
        "hdc": {"n_def": (1,), "share": (0.5, 0.05, 1.0)},
        "hycole": {"n_def": (1,)},
        "in-batch": {"n_def": (1,)},
        "in-batch-both": {"n_def": (1,)},
        "in-batch-cube": {"n_def": (1,), "k": (189, 10, 1000, "log")},
        "in-batch-semi-hard": {"n_def": (1,), "margin": (0.2, 0.01, 0.5, "log"), "triplets": ("semi-hard",)},
        "margin-pos": {"n_def": (6,), "margin": (0.05, 0.0, 0.3), "k": (10, 5, 1000, "log")},
        "mochi": {
            "n_def": (1,), "queue": (8192, 64, 65536, "log"), "hardest": (32, 4, 1024, "log"), "pairs": (16, 0, 256),
            "with_query": (16, 0, 256),
        },
        "multi-similarity": {"n_def": (6,), "epsilon": (0.1, 0.01, 0.5, "log")},
        "ngame": {"n_def": (1,), "cluster": (8, 2, 64, "log"), "k": (10, 1, 100, "log")},
        "no-duplicates": {"n_def": (1,)},
        "oracle-after-target": {"n_def": (6,), "k": (100, 10, 1000, "log")},
        "oracle-all": {"n_def": (1,)},
        "oracle-kind": {"n_def": (1,), "kind": ("composed",)},
        "pair-margin": {"n_def": (6,), "margin": (0.8, 0.4, 1.4)},
        "perc-pos": {"n_def": (6,), "share": (0.95, 0.5, 1.0), "k": (10, 5, 1000, "log"), "variant": ("sign-safe",)},
        "qure": {"n_def": (6,), "variant": ("paper", "paper", "release"), "consecutive_threshold": (1,)},
        "rocketqa": {"n_def": (6,), "k": (50, 10, 1000, "log"), "n": (4, 1, 100, "log"), "limit": (0.1, 0.0, 0.9)},
        "semi-hard": {"n_def": (6,), "margin": (0.2, 0.01, 0.5, "log"), "triplets": ("semi-hard",)},
        "sentence-transformers": {
            "n_def": (6,), "range_min": (0, 0, 100), "range_max": (None,), "max_score": (None,), "min_score": (None,),
            "absolute_margin": (None,), "relative_margin": (None,), "num_negatives": (3, 1, 100, "log"),
            "sampling_strategy": ("top",),
        },
        "shifted-top-k": {"n_def": (6,), "start": (10, 0, 500, "log"), "stop": (210, 2, 1000, "log")},
        "simans": {
            "n_def": (6,), "a": (0.5, 0.1, 1000.0, "log"), "b": (0.0,), "k": (100, 10, 1000, "log"),
            "variant": ("paper",),
        },
        "listed": {"n_def": (1,), "file": (None,)},
        "top-k": {"n_def": (6,), "k": (100, 10, 1000, "log"), "halve": (False,)},
        "top-k-abs": {"n_def": (6,), "limit": (0.7, 0.0, 1.0), "k": (10, 5, 1000, "log")},
        "trisampler": {"n_def": (6,), "k": (100, 10, 1000, "log")},
        "uniform-bins": {"n_def": (6,), "bins": (100, 5, 500, "log")},
        "xbm": {"n_def": (1,), "queue": (8192, 64, 65536, "log")},
    },
}  # fmt: skip


def options_of(cls: Any) -> dict[str, tuple[Any, ...]]:
    options: dict[str, tuple[Any, ...]] = {"n_def": (cls.n_def,)} if hasattr(cls, "n_def") else {}
    for field in dataclasses.fields(cls):
        searched = field.metadata.get("range")
        band = () if searched is None else searched.choices or (searched.low, searched.high, *["log"] * searched.log)
        options[field.name] = (field.default, *band)
    return options


def test_defaults_and_ranges_are_those_written_here():
    for kind in OPTIONS:
        options = {name: options_of(registry.get(kind, name)) for name in registry.plugins(kind)}
        for loss in options.values() if kind == "losses" else ():
            assert loss.pop("tau") == (None,)
        assert options == OPTIONS[kind]


def test_options_of_a_loss_are_given_by_name():
    """All options except `tau`, which every loss has, are keyword-only."""
    for name in OPTIONS["losses"]:
        with pytest.raises(TypeError, match="positional"):
            registry.get("losses", name)(None, 0.1)
